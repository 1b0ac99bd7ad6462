"""Mistakes in `transformer.runs.journal`."""

from faults import Fault

FAULTS = [
    Fault(
        "bar-ends-the-run",
        "a run ends when nobody reads its progress bar",
        "_Bar.draw",
        "except Exception:",
        "except ZeroDivisionError:",
    ),
    Fault(
        "line-is-a-mean-of-means",
        "in a line of the log, short batches count as much as long ones",
        "LogLine.entry",
        "losses.double().sum().item() / max(tokens, 1)",
        "(losses.double() / counts.clamp(min=1)).mean().item()",
    ),
    Fault(
        "patience-forgotten",
        "a resumed run counts its patience from 0",
        "Scores.load_state_dict",
        "= best, best_step, stale",
        "= best, best_step, 0",
    ),
    Fault(
        "metric-not-a-number",
        "a metric that is not a number counts as no new best",
        "Scores.take",
        "check_finite(f",
        "(lambda *given: None)(f",
    ),
]
