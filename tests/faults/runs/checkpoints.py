"""Mistakes in `transformer.runs.checkpoints`."""

from faults import Fault

FAULTS = [
    Fault(
        "atomic-also-on-failure",
        "half a file takes the place of a whole one",
        "atomic_file",
        "os.replace(part, path)\n            sync_names(path.parent)\n    finally:\n        part.unlink(missing_ok=True)",
        "pass\n    finally:\n        os.replace(part, path)",
    ),
    Fault(
        "atomic-not-synced",
        "a file may get its name before the disk has its content",
        "atomic_file",
        "os.fsync(file.fileno())\n            os.replace(part, path)",
        "os.replace(part, path)",
    ),
    Fault(
        "name-not-synced",
        "a file's name may reach the disk after the removal of the file before it",
        "sync_names",
        "os.fsync(entries)",
        "pass",
    ),
    Fault(
        "checkpoint-executes",
        "a checkpoint may hold code that runs when it is read",
        "load_checkpoint",
        "weights_only=True",
        "weights_only=False",
    ),
    Fault(
        "check-sum-unread",
        "a checkpoint with a changed bit is read",
        "load_checkpoint",
        "not _is_whole(file)",
        "False",
    ),
    Fault(
        "lack-taken-for-damage",
        "a failing disk or a full memory counts as a damaged file",
        "load_checkpoint",
        "except (OSError, MemoryError):",
        "except ZeroDivisionError:",
    ),
    Fault(
        "weights-sum-unread",
        "weights in which a bit has changed are read",
        "load_weights",
        "not in (None, _weights_sum(weights, facts))",
        "== 0",
    ),
    Fault(
        "weights-cast-in-place",
        "saving in float16 rounds the model itself",
        "_in_dtype",
        "x.to(dtype)",
        "x.copy_(x.to(dtype)).to(dtype)",
    ),
    Fault(
        "too-large-becomes-infinite",
        "a weight that is too large for float16 is written as infinite",
        "_in_dtype",
        "lost.numel()",
        "False",
    ),
    Fault(
        "damaged-begins-anew",
        "a run whose checkpoints are all damaged begins anew",
        "newest_whole",
        "if damaged:",
        "if not paths:",
    ),
]
