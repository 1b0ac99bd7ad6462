"""Mistakes in `transformer.runs.folder`."""

from faults import Fault

FAULTS = [
    Fault(
        "log-with-half-a-line",
        "a line that was cut off is read",
        "read_log",
        "enumerate(lines, start=1)",
        "enumerate([*lines, *filter(None, [rest])], start=1)",
    ),
    Fault(
        "line-sum-unread",
        "a line of the log in which a bit has changed is read",
        "_log_entry",
        "not in (None, _line_sum(entry))",
        "== 0",
    ),
    Fault(
        "record-sum-unread",
        "a record in which a bit has changed is read",
        "read_record",
        "not in (None, _record_sum(record))",
        "== 0",
    ),
    Fault(
        "copies-are-checkpoints",
        "a copy of a checkpoint under another name is taken for the newest one",
        "RunFolder.checkpoints",
        'f"checkpoint-{digits}.pt"',
        '"checkpoint-*.pt"',
    ),
    Fault(
        "folder-without-a-lock",
        "two processes may train in one folder",
        "RunFolder._acquire",
        "self._lock.acquire(timeout=0)",
        "pass",
    ),
]
