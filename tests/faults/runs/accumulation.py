"""Mistakes in `transformer.runs.accumulation`."""

from faults import Fault

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
        "keep() if kept else nullcontext()",
        "nullcontext()",
    ),
    Fault(
        "processes-averaged-twice",
        "it is forgotten that the engine averages over processes",
        "_tokens_per_process",
        " / rank_and_world_size()[1]",
        "",
    ),
    Fault(
        "graphs-held",
        "the graph of every batch stays in memory until the update is over",
        "accumulate_gradients",
        "batch_loss.detach()",
        "batch_loss",
    ),
]
