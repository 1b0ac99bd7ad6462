"""Mistakes in `transformer.runs.distributed`."""

from faults import Fault

FAULTS = [
    Fault(
        "own-weights-in-each-process",
        "each process begins with the weights that it happens to have",
        "sharded",
        "distributed.broadcast(parameter.detach(), src=0)",
        "pass",
    ),
    Fault(
        "too-small-to-gain",
        "a model of any size is shared out",
        "sharded",
        "LEAST_SHARD * n_processes",
        "0",
    ),
    Fault(
        "shared-parameter-cut-twice",
        "a parameter of two layers is shared out with each of them",
        "sharded",
        "owners[id(parameter)] > 1",
        "owners[id(parameter)] > 2",
    ),
]
