"""Mistakes in the update across batches and processes."""

from faults import Fault

MODULE = "training"
FAULTS = [
    Fault(
        "accumulation-not-averaged",
        "earlier batches keep the weight that they had alone",
        "accumulate_gradients",
        "parameter.grad.mul_(before).div_(divisor)",
        "pass",
    ),
    Fault(
        "gradients-always-travel",
        "gradients are sent with every accumulated batch",
        "accumulate_gradients",
        "engine.no_sync() if engine is not None and alone else nullcontext()",
        "nullcontext()",
    ),
    Fault(
        "processes-averaged-twice",
        "it is forgotten that the engine averages over processes",
        "_tokens_per_process",
        " / distributed.get_world_size()",
        "",
    ),
    Fault(
        "prefetch-swallows-errors",
        "batches that fail look like the end of an epoch",
        "prefetch",
        "raise found[1]",
        "return",
    ),
    Fault(
        "infinite-loss-passes",
        "an infinite loss does not stop the run",
        "check_finite",
        "(~values.isfinite())",
        "values.isnan()",
    ),
]
