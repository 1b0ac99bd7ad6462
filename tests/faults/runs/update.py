"""Mistakes in `transformer.runs.update`."""

from faults import Fault

FAULTS = [
    Fault(
        "rate-one-step-late",
        "an update has the rate of the one before",
        "Updater.__call__",
        "rate := self.schedule(self.step + 1)",
        "rate := self.schedule(max(self.step, 1))",
    ),
    Fault(
        "gradients-pile-up",
        "gradients of earlier updates are not cleared",
        "Updater.__call__",
        "self.optimizer.zero_grad()",
        "pass",
    ),
    Fault(
        "unscale-missing",
        "with float16, the gradient is clipped while it is still scaled",
        "Updater.__call__",
        "self.scaler.unscale_(self.optimizer)",
        "pass",
    ),
    Fault(
        "infinite-loss-passes",
        "an infinite loss does not stop the run",
        "check_finite",
        "(~values.isfinite())",
        "values.isnan()",
    ),
]
