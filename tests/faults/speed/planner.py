"""Mistakes in `transformer.speed.planner`."""

from faults import Fault

FAULTS = [
    Fault(
        "memory-never-limits",
        "a plan that does not fit the memory is called limited by time",
        "predict",
        "held > cluster.memory",
        "held < 0",
    ),
    Fault(
        "operations-of-one-device",
        "utilization counts the peak of one device for all of them",
        "predict",
        "spent = seconds * cluster.devices",
        "spent = seconds",
    ),
    Fault(
        "recomputed-counts-as-needed",
        "utilization counts what is computed again as if the model needed it",
        "predict",
        "for again in (False, split.recompute)",
        "for again in (split.recompute, split.recompute)",
    ),
    Fault(
        "tensor-between-machines",
        "the search divides matrices among machines",
        "splits",
        "t > cluster.per_node or ",
        "",
    ),
    Fault(
        "fastest-though-full",
        "the search takes the fastest split, whether or not it fits",
        "plan",
        "(full(plan), plan.bytes if full(plan) else plan.seconds)",
        "plan.seconds",
    ),
    Fault(
        "batch-in-unequal-parts",
        "a batch that does not divide among the devices is accepted",
        "check_split",
        "work.batch % (d * split.micro) == 0",
        "True",
    ),
    Fault(
        "frees-count-twice",
        "the peak is the sum of all that was ever allocated",
        "allocated_peak",
        "(size for _, size in changes)",
        "(max(size, 0) for _, size in changes)",
    ),
]
