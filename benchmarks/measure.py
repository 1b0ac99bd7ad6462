"""How things are measured: interleaved rounds, medians and ranges, the machine's best matrix product."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer.runs.loop import PRECISIONS
from transformer.speed.fast import FastLinear
from transformer.speed.kernels import HAS_ONEDNN, linear_by_onednn

MIB = 2**20
CPU = torch.device("cpu")
# Rows, inner size and columns: of the position-wise network, and square ones, which are the easiest.
PRODUCTS = {
    "cpu": [(2048, 256, 1024), (2048, 1024, 256), (1024, 1024, 1024), (2048, 2048, 2048)],
    "cuda": [(32768, 512, 2048), (32768, 2048, 512), (8192, 8192, 8192), (16384, 8192, 8192)],
}


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """How long `work` takes, from an idle device to an idle device.

    One thread on the CPU is timed by what it spends there: another program that takes the core for a while
    does not count.
    """
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if alone else time.perf_counter
    synchronize(device)
    start = clock()
    work()
    synchronize(device)
    return clock() - start


def interleaved(works: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Time several works on the CPU in turn, so that what slows the machine for a while slows all of them.

    Args:
        works: what to time, by name.
        rounds: how often each is timed, after a first one; in every second round the order is reversed.

    Returns:
        seconds by name, one number per round.
    """
    times: dict[str, list[float]] = {name: [] for name in works}
    for number in range(1 + rounds):
        for name in reversed(works) if number % 2 else works:
            times[name].append(seconds(works[name], CPU))
    return {name: found[1:] for name, found in times.items()}


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Median, least, most, and the values themselves, by round."""
    rounds = list(values)
    return {"median": statistics.median(rounds), "min": min(rounds), "max": max(rounds), "rounds": rounds}


def ratio(theirs: list[float], ours: list[float]) -> dict[str, Any]:
    """How many times as fast ours is: the spread of the ratios within each round."""
    return spread([other / mine for other, mine in zip(theirs, ours, strict=True)])


def ratios_to_ours(times: dict[str, list[float]]) -> dict[str, dict[str, Any]]:
    """How many times as fast as each engine ours is."""
    return {name: ratio(other, times["ours"]) for name, other in times.items()}


def product_peak(
    precision: str, device: torch.device, shapes: Sequence[tuple[int, int, int]] = (), repeats: int = 5
) -> dict[str, Any]:
    """The fastest matrix product of this process.

    The package's dense layer is tried beside torch's, and oneDNN by itself in float32 on a CPU, also where
    the package would leave the product to torch.

    Args:
        precision: `"float32"`, `"bfloat16"` or `"float16"`.
        device: to compute on.
        shapes: rows, inner size and columns of the products to try; by default some that a Transformer has.
        repeats: timed rounds of each; the fastest counts.

    Returns:
        `"flops"`: a second, of the best; `"products"`: all.
    """
    dtype = PRECISIONS[precision]
    shapes = shapes or PRODUCTS[device.type]
    kernels: dict[str, Callable[[Tensor], Callable[[Tensor], Tensor]]] = {
        "F.linear": lambda weight: partial(F.linear, weight=weight),
        "ours": _our_layer,
    }
    if device.type == "cpu" and precision == "float32" and HAS_ONEDNN:
        kernels["oneDNN"] = lambda weight: partial(linear_by_onednn, weight=weight)
    products: list[dict[str, Any]] = []
    for kernel, layer_of in kernels.items():
        for rows, inner, columns in shapes:
            x = torch.randn(rows, inner, device=device, dtype=dtype)
            weight = torch.randn(columns, inner, device=device, dtype=dtype)
            taken = _fastest(partial(layer_of(weight), x), repeats, device)
            flops = 2 * rows * inner * columns / taken
            products.append({"kernel": kernel, "shape": [rows, inner, columns], "flops": flops})
    return {"flops": max(product["flops"] for product in products), "products": products}


def _fastest(product: Callable[[], Tensor], repeats: int, device: torch.device) -> float:
    # So many calls that a clock sees them: about 0.02 s, on a slow machine and on a fast one.
    with torch.no_grad():
        once = min(seconds(product, device) for _ in range(2))
        calls = min(100, max(1, round(0.02 / once)))

        def work() -> None:
            for _ in range(calls):
                product()

        return min(seconds(work, device) for _ in range(repeats)) / calls


def _our_layer(weight: Tensor) -> nn.Module:
    layer = FastLinear(weight.size(1), weight.size(0), bias=False, device="meta")
    layer.weight = nn.Parameter(weight)
    return layer


def memory_bandwidth(device: torch.device, repeats: int = 5) -> dict[str, float]:
    """Bytes a second that memory delivers.

    Returns:
        of a copy, read and written: `"memory"`, too large for any cache, and on a CPU `"cache"`;
        `"reading"`: of a product of a matrix too large for any cache with one vector.
    """
    rates, many = {}, 1 if device.type == "cpu" else 16  # so that a GPU's launches don't count
    caches = {"cache": MIB // 4} if device.type == "cpu" else {}
    for name, size in {"memory": 256 * MIB, **caches}.items():
        source = torch.randn(size // 4, device=device)
        target = torch.empty_like(source)
        calls = max(1, many * 1024 * MIB // size)

        def work(target: Tensor = target, source: Tensor = source, calls: int = calls) -> None:
            for _ in range(calls):
                target.copy_(source)

        work()
        rates[name] = 2 * size * calls / min(seconds(work, device) for _ in range(repeats))
    matrix, vector = torch.randn(2**16, 2**10, device=device), torch.randn(2**10, device=device)
    read = lambda: [torch.mv(matrix, vector) for _ in range(many)]
    times = [seconds(read, device) for _ in range(1 + repeats)]
    return rates | {"reading": many * matrix.nbytes / min(times[1:])}


def saved_bytes(model: nn.Module, loss: Callable[[], Tensor]) -> int:
    """What one forward pass keeps for the backward pass.

    Args:
        model: its parameters do not count.
        loss: computes a scalar from it.

    Returns:
        bytes of all different storages that autograd saves, views and repetitions counted once.
    """
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    storages: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        kept = loss()  # as long as it is there, no address is given out twice
    del kept
    return sum(storages.values())


# Variables by which libraries are held to a part of the processor's instructions.
LIMITS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")


def machine_facts() -> dict[str, Any]:
    """What the measurements ran on, and the versions of what was measured beside the package."""
    facts = {
        "processor": _processor(),
        "family": _told("cpu family"),  # two generations may have one name
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "system": platform.platform(terse=True),
    }
    if limits := {name: os.environ[name] for name in LIMITS if name in os.environ}:
        facts["limits"] = limits
    versions = {}
    for library in ("torch", "transformers", "ctranslate2", "numpy"):
        try:
            versions[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            continue
    return {"machine": facts, "peers": versions}


def _processor() -> str:
    return _told("model name") or platform.processor()


def _told(what: str) -> str:
    # What Linux says of the first core; elsewhere nothing.
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf8").splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(what)), "")
