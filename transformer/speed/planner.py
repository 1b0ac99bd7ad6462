"""How to divide a model over devices."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from typing import Any
from torch.profiler import ProfilerActivity, profile
from transformer.model import TransformerConfig
from transformer.speed.costs import (
    PROGRAMS,
    Cluster,
    ModelShape,
    Split,
    Work,
    step_memory,
    step_time,
    training_flops,
)
from transformer.validation import check_choice, check_number, check_size, check_type

__all__ = ["Plan", "check_split", "predict", "splits", "plan", "allocated_peak"]


@dataclass(frozen=True)
class Plan:
    """What a step takes, in bytes of a device and in seconds, by parts; what is hidden counts nothing.

    `utilization` counts the operations that the model needs, `rate` those that a device does in a second,
    with what is computed again. `limit` is what does not suffice, or takes most of the time.
    """

    split: Split
    memory: dict[str, float]
    time: dict[str, float]
    bytes: float
    seconds: float
    utilization: float
    rate: float
    limit: str


_AMOUNTS = "memory", "flops", "bandwidth", "link", "network", "efficiency", "launch"


def check_split(shape: ModelShape, work: Work, split: Split, cluster: Cluster) -> None:
    """Refuse sizes that are none, and a split that does not fit; `ValueError` names what does not."""
    check_choice(PROGRAMS, program=work.program)
    names = "data", "tensor", "pipeline", "shard", "micro", "chunks"
    sizes = {name: getattr(split, name) for name in names}
    check_size(batch=work.batch, length=work.length, devices=cluster.devices, **sizes)
    check_number(**{name: getattr(cluster, name) for name in _AMOUNTS})
    d, t, p = split.data, split.tensor, split.pipeline
    for wanted, holds in (
        (f"data · tensor · pipeline must be {cluster.devices}, the devices", d * t * p == cluster.devices),
        (f"shard must divide data, which is {d}", d % split.shard == 0),
        (f"data · micro must divide batch, which is {work.batch}", work.batch % (d * split.micro) == 0),
        (f"tensor must divide the heads, of which there are {shape.n_heads}", shape.n_heads % t == 0),
        (f"pipeline must be at most {shape.layers}, the layers", p <= shape.layers),
        (f"chunks must be at most {ceil(shape.layers / p)}", split.chunks <= ceil(shape.layers / p)),
        ("pipeline must be 1 with an encoder", p == 1 or not shape.encoder_layers),
    ):
        if not holds:
            raise ValueError(f"{wanted}, but the split is {split}")


def predict(shape: ModelShape, work: Work, split: Split, cluster: Cluster) -> Plan:
    """What a training step takes when it is divided so.

    Raises:
        TypeError, ValueError: as in `check_split`.

    Source: Narayanan et al. (2021), sections 2 and 3; for `"mixed"`, Korthikanti et al. (2023), section 4.
    """
    check_split(shape, work, split, cluster)
    memory, time = step_memory(shape, work, split), step_time(shape, work, split, cluster)
    held, seconds = sum(memory.values()), sum(time.values())
    limit = "memory" if held > cluster.memory else max(time, key=time.__getitem__)
    needed, done = (training_flops(shape, work, again) for again in (False, split.recompute))
    spent = seconds * cluster.devices
    return Plan(split, memory, time, held, seconds, needed / (spent * cluster.flops), done / spent, limit)


def splits(shape: ModelShape, work: Work, cluster: Cluster) -> Iterator[Split]:
    """All that fit, with tensor parallelism within a machine, and powers of two for `micro` and `chunks`."""
    divisors = [n for n in range(1, cluster.devices + 1) if cluster.devices % n == 0]
    for t, p in itertools.product(divisors, divisors):
        d = cluster.devices // (t * p)
        if t > cluster.per_node or d * t * p != cluster.devices:
            continue
        choices = {1, d}, (1, 2, 4, 8, 16), (1, 2, 4, 8) if p > 1 else (1,), {False, t > 1}, (False, True)
        for split in itertools.starmap(Split, itertools.product((d,), (t,), (p,), *choices)):
            with suppress(ValueError):
                check_split(shape, work, split, cluster)
                yield split


def plan(config: TransformerConfig | ModelShape, work: Work, cluster: Cluster) -> Plan:
    """The split of all `splits` with which a step takes the least time in the memory that there is.

    Args:
        config: a model of this package, or the shape of any.

    Returns:
        where none fits the memory, the one that needs the least.

    Raises:
        TypeError, ValueError: an argument is of the wrong type, or no split divides the batch.
    """
    shape = config if isinstance(config, ModelShape) else ModelShape.of(config)
    check_type(Work, work=work)
    check_type(Cluster, cluster=cluster)
    plans = [predict(shape, work, split, cluster) for split in splits(shape, work, cluster)]
    if not plans:
        raise ValueError(f"batch must divide among {cluster.devices} devices, but {work.batch} does not")
    full = lambda plan: plan.limit == "memory"
    return min(plans, key=lambda plan: (full(plan), plan.bytes if full(plan) else plan.seconds))


def allocated_peak(run: Callable[[], object]) -> int:
    """By how many bytes the tensors on the CPU grow while `run()` works, at most."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    profiler: Any = profiled.profiler
    events = profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return max(itertools.accumulate((size for _, size in changes), initial=0))
