"""Mistakes in `transformer.runs.trainer`."""

from faults import Fault

FAULTS = [
    Fault(
        "best-before-the-checkpoint",
        "best weights are replaced before a checkpoint knows of them",
        "Keeper.save",
        "if self.first:\n            save_checkpoint(self.folder.checkpoint(self.run.step), state)\n"
        "        self._tidy(self.folder)",
        "self._tidy(self.folder)\n"
        "        if self.first:\n            save_checkpoint(self.folder.checkpoint(self.run.step), state)",
    ),
    Fault(
        "schedule-of-another-run",
        "a run goes on with another schedule though its number of steps is the same",
        "Settings.check",
        "not (prolonged and name in _REMEMBERED)",
        "name not in _REMEMBERED",
    ),
    Fault(
        "evaluation-left-out-after-an-error",
        "what an update made due is never done if an error came before it",
        "Trainer._loop",
        "settled=False",
        "settled=True",
    ),
    Fault(
        "half-an-update-kept",
        "an error in the optimizer's step leaves a checkpoint of what is neither before nor after it",
        "Keeper._rescue",
        "run.updater.stepping or step != run.step",
        "False",
    ),
    Fault(
        "evaluation-untried",
        "a metric that is missing is found out at the first evaluation only",
        "Keeper.begin",
        "self.run.scores.trial()",
        "pass",
    ),
    Fault(
        "rates-not-remembered",
        "a checkpoint does not say which rates its updates had",
        "Settings.state_dict",
        "if number <= step",
        "if number < 0",
    ),
    Fault(
        "any-first-batch",
        "data whose first batch is another one are taken for the same",
        "_fingerprint",
        "waiting = [batch]",
        "waiting = [None]",
    ),
    Fault(
        "options-of-the-loss-forgotten",
        "a run goes on with another smoothing",
        "Settings._words",
        "isinstance(value, float | int | str)",
        "False",
    ),
]
