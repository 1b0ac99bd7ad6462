"""What is measured where there is a GPU for a quarter of an hour: parts of `python book/tasks.py gpu`.

Each part writes its record anew with every row that it finds. On a CPU, fewer rows show that everything runs.
"""

from __future__ import annotations

import gc
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.measure import memory_bandwidth, product_peak, seconds
from benchmarks.peers import our_model, our_search
from benchmarks.workload import SIZES, Size, decoding_sources, sentence_batches, training_flops
from transformer import Transformer, accelerate, teacher_forced_loss
from transformer.commands.data import N_SHAPES
from transformer.commands.recipes import RECIPES, Recipe, changed, train_recipe
from transformer.files import write_record
from transformer.language.batches import padding_waste
from transformer.language.translator import Search, evaluate_translator
from transformer.layers import Residual
from transformer.runs.folder import run_facts
from transformer.runs.loop import Updater, accumulate_gradients, autocast, best_precision
from transformer.speed.graphs import GraphedTransformer, UpdateGraphs
from transformer.toy import exact_match, toy_config
from transformer.training import adamw, to_device

LENGTH = 32  # tokens that a search makes of each sentence


@dataclass(frozen=True)
class Rung:
    """How an update is made."""

    fast: bool = True
    tf32: bool = True
    precision: str = "auto"  # half precision on a GPU that has it
    graphs: bool = False
    compiled: str = ""  # "all" of the loss, or its "residuals" alone
    half_weights: bool = False
    without: str = ""  # a lever of the accelerated update


# Each adds one thing: TF32, precision, kernels, graphs, a compiler, and the compiler's work as a graph. A
# row *without* takes one lever from the accelerated update; the two below the graph add one to it.
LADDER = {
    "float32": Rung(False, False, "float32"),
    "TF32": Rung(False, True, "float32"),
    "half precision": Rung(False),
    "accelerated": Rung(),
    "without fused attention": Rung(without="fused attention"),
    "without fused Adam": Rung(without="fused Adam"),
    "without a chunked loss": Rung(without="chunked loss"),
    "graph": Rung(graphs=True),
    "half-precision weights, graph": Rung(graphs=True, half_weights=True),
    "compiled residuals, graph": Rung(graphs=True, compiled="residuals"),
    "compiled": Rung(compiled="all"),
    "compiled, graph": Rung(graphs=True, compiled="all"),
}
Rows = Iterator[tuple[str, dict[str, Any]]]


def facts(device: torch.device, until: float, folder: Path) -> Rows:
    """What the machine is, and its ceilings."""
    yield "run", run_facts(device)
    for precision in dict.fromkeys((best_precision(device), "float32")):
        yield precision, {"TFLOP/s": product_peak(precision, device, repeats=2)["flops"] / 1e12}
    yield "GB/s", {name: rate / 1e9 for name, rate in memory_bandwidth(device, 2).items()}


def ladder(device: torch.device, until: float, folder: Path) -> Rows:
    """Training steps, each row with one thing more than the row above it; then batches of other sizes."""
    yield from rungs(device, compiled=False)
    small = Size("toy", toy_config(pad_id=0, bos_id=1, eos_id=2))  # ids below those of the others
    others = [(SIZES["b"], 500), (SIZES["b"], 8000), *((small, 22 * rows) for rows in (32, 256, 4096))]
    for size, tokens in others if device.type == "cuda" else others[2:3]:
        row = partial(measured, size, tokens, LADDER["graph"], device)
        yield f"{size.name} {tokens:,} graph", attempted(row)


def compiled(device: torch.device, until: float, folder: Path) -> Rows:
    """The ladder's last rungs, which take the compiler's minutes."""
    yield from rungs(device, compiled=True)


def rungs(device: torch.device, compiled: bool) -> Rows:
    """The rungs of the ladder that are compiled, or those that aren't."""
    large = [("b", 2000), ("base", 2000)]
    large.insert(2 if compiled else 0, ("base", 25_000))  # with the compiler it takes longest
    for name, tokens in large if device.type == "cuda" else [("b", 200)]:
        for rung, how in LADDER.items():
            if bool(how.compiled) == compiled:
                row = partial(measured, SIZES[name], tokens, how, device)
                yield f"{name} {tokens:,} {rung}", attempted(row)


def attempted(measurement: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What it finds; where it fails, why, and the next one may work."""
    try:
        return measurement()
    except Exception as error:
        return {"warning": f"{type(error).__name__}: {error}"}


def measured(size: Size, tokens: int, how: Rung, device: torch.device) -> dict[str, Any]:
    """An update of a batch of so many tokens."""
    gpu, (batch,) = device.type == "cuda", sentence_batches(size.config, tokens, 1)
    torch.set_float32_matmul_precision("high" if how.tf32 else "highest")
    torch.backends.cuda.enable_cudnn_sdp(False)  # as `autocast` does, which not all rungs enter
    if gpu:
        gc.collect()  # models of earlier rungs, whose memory would be counted
        torch.cuda.reset_peak_memory_stats()
    loss, model = teacher_forced_loss, our_model(size.config).to(device).train()
    model = accelerate(model) if how.fast else model
    if how.without == "chunked loss":
        loss = teacher_forced_loss.dispatch(Transformer)
    compiler = partial(torch.compile, dynamic=True, backend="inductor" if gpu else "eager")
    if how.compiled == "all":
        loss.dispatch(type(model))  # into its cache, whose change after a call would compile all again
        loss = compiler(loss)
    elif how.compiled:
        compile_residuals(model, compiler)
    kind = HalfWeights if how.half_weights else Updater
    updater = kind(model, loss, lambda step: 1e-4, size.clip_norm, how.precision)
    fused = how.without != "fused Adam"
    vars(updater.optimizer)["_step_supports_amp_scaling"] = fused  # the scaler's way to undo the scale
    for group in updater.optimizer.param_groups:
        group["fused"] = fused or None  # PyTorch's own choice
    work = partial(updater, [to_device(batch, device)])
    attention = sdpa_kernel(SDPBackend.MATH) if how.without == "fused attention" else nullcontext()
    with attention, UpdateGraphs(updater).used() if how.graphs else nullcontext():
        step = mean_seconds(work, device)
    target = int((batch[1][:, 1:] != size.config.pad_id).sum())
    found = {"ms": 1000 * step, "tokens/s": target / step}
    found["TFLOP/s"] = training_flops(size.config, [batch]) / step / 1e12
    return found | {"GB": torch.cuda.max_memory_allocated() / 1e9 if gpu else 0.0}


class HalfWeights(Updater):
    """Updates of a model whose weights and vectors are in half precision, by an optimizer that has the
    weights in float32: fewer bytes for sums and norms, and no casts. Small gradients aren't scaled."""

    def __init__(self, model: Transformer, *settings: Any) -> None:
        *given, precision = settings
        found = best_precision(next(model.parameters()).device) if precision == "auto" else precision
        masters = [p.detach().clone() for p in model.parameters()]
        super().__init__(model.to(getattr(torch, found)), *given)
        self.masters, self.optimizer = masters, adamw(masters)  # the parameters stay the same objects

    def update(self, batches: list[Any]) -> tuple[Tensor, ...]:
        """As in `Updater`."""
        for parameter in self.parameters:
            parameter.grad = None
        total, tokens = accumulate_gradients(self.loss, batches, self.parameters)
        for master, parameter in zip(self.masters, self.parameters, strict=True):
            master.grad = None if parameter.grad is None else parameter.grad.float()
        norm = nn.utils.clip_grad_norm_(self.masters, self.clip_norm)
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, self.masters)
        return total, tokens, norm


def compile_residuals(model: Transformer, compiler: Callable[..., Any]) -> None:
    """Let a compiler make one kernel of each sublayer's dropout, sum and norm (post-norm)."""

    @compiler
    def normed_sum(x: Tensor, y: Tensor, rate: float, norm: tuple[Tensor, ...]) -> Tensor:
        return F.layer_norm(x + F.dropout(y, rate), norm[0].shape, *norm)

    def forward(residual: Residual, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        rate, norm = residual.dropout.p * residual.training, tuple(residual.norm.parameters())
        return normed_sum(x, sublayer(x), rate, norm)

    for part in model.modules():
        if isinstance(part, Residual):
            part.forward = partial(forward, part)  # type: ignore[method-assign]


def mean_seconds(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of `work`, as a mean over about a second, after what the first calls prepare."""
    *_, once = (seconds(work, device) for _ in range(4))
    calls = max(1, min(100, round(1 / once)))
    return seconds(lambda: [work() for _ in range(calls)], device) / calls


def searches(device: torch.device, until: float, folder: Path) -> Rows:
    """Searches of the accelerated model, with a half precision, and by graphs."""
    gpu, size = device.type == "cuda", SIZES["b"]
    model = our_model(size.config).to(device).eval()
    sizes = [(64, 1), (64, 4), (1, 4), (1024, 4), (1, 1), (8, 1), (1024, 1)]
    for sentences, beam_size in sizes if gpu else [(1, 1), (1, 4)]:
        src = decoding_sources(size.config, sentences).to(device)
        for kind, half in ((accelerate, False), (accelerate, gpu), (GraphedTransformer, gpu)):
            graphs = ", graphs" * (kind is GraphedTransformer)
            name = f"{sentences} sentences, beam {beam_size}{', half precision' * half}{graphs}"
            yield name, attempted(partial(searched, kind, model, src, beam_size, half))


def searched(kind: Callable[..., Any], model: Any, src: Any, beam_size: int, half: bool) -> dict[str, float]:
    """A search for tokens of all sentences of `src`."""
    with autocast(src.device, best_precision(src.device) if half else "float32"):
        took = mean_seconds(partial(our_search, kind(model), src, beam_size, LENGTH), src.device)
    return {"ms a step": 1000 * took / LENGTH, "tokens/s": len(src) * LENGTH / took}


def trained(recipe: Recipe, data: Any, device: torch.device, until: float) -> tuple[Any, dict[str, Any]]:
    """Train up to a time, in as many updates as a trial run says that there is time for."""
    trial, every = (1000, 10) if device.type == "cuda" else (10, 1)  # over two ends of an epoch
    train, start = partial(train_recipe, device=device, data=data, graphs=True), time.monotonic()
    _, tried = train(changed(recipe, steps=trial, log_every=every, evaluate_every=trial))
    lines = [entry["seconds"] for entry in tried.history if "rate" in entry]
    late = lines[len(lines) // 2 :]  # no graph is recorded any more; the wait for an epoch counts
    rate = every * len(late) / sum(late)
    begun = max(0.0, time.monotonic() - start - trial / rate)  # without graphs yet, or any batch
    steps = max(10, min(30_000, round(0.9 * rate * ((left := until - time.monotonic()) - begun))))
    recipe = changed(recipe, steps=steps, evaluate_every=steps, warmup_steps=max(1, steps // 10))
    result, trainer = train(recipe, max_minutes=max(0.1, left / 60))
    logged = [entry for entry in trainer.history if "rate" in entry]
    took, tokens = (sum(entry[name] for entry in logged) for name in ("seconds", "tokens"))
    found = {"updates": logged[-1]["step"], "updates/s": logged[-1]["step"] / took, "tokens/s": tokens / took}
    found |= {"seconds": took, "finished": trainer.finished}  # or cut before its cool-down ended
    return result, found | {"recipe": asdict(recipe), "log": trainer.history}


def toy(device: torch.device, until: float, folder: Path) -> Rows:
    """The toy's run, as long as there is time, and its score on unseen sequences."""
    result, found = trained(RECIPES["toy"], None, device, until)
    yield "run", found
    yield "score", exact_match(result, 10_000 if device.type == "cuda" else 100)


def ted(device: torch.device, until: float, folder: Path) -> Rows:
    """A translator of TED's talks, on a CPU of phrases, in a folder that `experiments.report` reads."""
    gpu = device.type == "cuda"
    best = changed(RECIPES["ted-small"], vocab_size=8000, dropout=0.1, bpe_dropout=0.1, max_tokens=4000)
    recipe = changed(best if gpu else RECIPES["phrases"], n_shapes=N_SHAPES)
    data: Any = recipe.data.read()
    data.batches = cache(data.batches)  # for both runs
    padding = padding_waste(data.batches(recipe.training.seed)(0))
    result, found = trained(recipe, data, device, until)
    yield "run", found | {"padding": padding}
    data.save(result, folder)
    search = Search(8, 1.4)  # the best on the development split for the record `ted-best`
    scores = evaluate_translator(result, data.test() if gpu else data.test()[:20], search)
    yield "score", {name: score["score"] for name, score in scores.items()}
    run = run_facts(device) | {"recipe": found["recipe"]}
    write_record(folder / "record.json", run | data.record(result, found["log"]))


PARTS = {part.__name__: part for part in (facts, ladder, searches, toy, ted, compiled)}


def main(name: str, device: str, until: str, folder: str) -> None:
    """Run a part that trains until this time of `time.monotonic`, which all processes share."""
    record: dict[str, Any] = {}
    with warnings.catch_warnings(record=True, action="always") as said:
        try:
            for row, found in PARTS[name](torch.device(device), float(until), Path(folder)):
                notes = list(dict.fromkeys(str(each.message) for each in said))  # such as for want of graphs
                said.clear()
                record[row] = found | {f"warning {n}": note for n, note in enumerate(notes, 1)}
                write_record(Path(folder) / f"{name}.json", record)
        finally:
            print(*(each.message for each in said), sep="\n", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
