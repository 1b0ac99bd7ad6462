"""`check_training`: loop, batch, ids, loss and search, examined together."""

import copy
import math
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformer.study.checks import Finding, Skipped, listed, not_finite, without_dropout, without_gradient
from transformer.study.model_checks import CheckReport, examine, first_line, inverted_mask, said
from transformer.study.readings import Program, Watched, differing, loss_value, mixed, plain_loss
from transformer.study.readings import searched, stripped, take_apart, words_of
from transformer.validation import check_number, check_type

__all__ = ["check_training"]


_right, _wrong = partial(Finding, True), partial(Finding, False)


# What is given, read and predicted


def _check_ids(p: Program) -> Finding:
    """Ids lie in their tables."""
    tables = [m.num_embeddings for m in p.model.modules() if isinstance(m, nn.Embedding)]
    ranges = []
    for role in p.batch.roles:
        ids, name = p.batch.ids(role), "src_vocab_size" if role == "src" else "tgt_vocab_size"
        size = said(p.model, None, name, "vocab_size") or max(tables, default=2**62)
        ranges.append(f"{role} {int(ids.min())} to {int(ids.max())}")
        if ids.max() >= size:
            measured = f"{ranges[-1]}, but the table has {size} rows"
            return _wrong(measured, "a vocabulary that isn't the model's")
        looked_up = role != "labels" or not (isinstance(p.batch.whole, Mapping) or "read" in p.batch.roles)
        if ids.min() < 0 and looked_up:
            return _wrong(ranges[-1], "-100 is for the labels of a loss; these ids are looked up in a table")
        words, counts = ids[(ids >= 0) & (ids != p.pad)].unique(return_counts=True)
        total, most = int(counts.sum()), int(counts.max()) if len(counts) else 0
        if total > 20 and most > 0.5 * total:
            measured = f"{most} of {total} words are id {int(words[counts.argmax()])}"
            return _wrong(measured, "unknown words: these texts don't belong to this vocabulary")
    return _right(", ".join(ranges))


def _check_dev(p: Program) -> Finding:
    """No held-out source is among those of training."""
    if p.dev is None:
        raise Skipped("no dev batch was given")
    role = "src" if "src" in p.batch.roles else "labels"
    held = [row for batch in p.dev for row in words_of(batch.ids(role), p.pad)]
    trained = set(words_of(p.batch.ids(role), p.pad))
    if both := [row for row in held if row in trained]:
        measured = f"{len(both)} of {len(held)} dev sources are in training, the first: {listed(both[0])}"
        return _wrong(measured, "split after pairs were repeated or shuffled")
    return _right(f"none of {len(held)} dev sources is among {len(trained)} of training")


def _check_runs(p: Program) -> Finding:
    """The loss of the batch is a finite number, and comes from the model that is given."""
    model, called = copy.deepcopy(p.original).train(), []
    for module in model.modules():
        module.register_forward_hook(lambda *_: called.append(1))
    try:
        value = loss_value(p.loss(model, p.few.given()))
    except Exception as error:
        if p.refused:
            raise Skipped("the loss refuses targets without a start token") from error
        hundreds = (p.few.ids("labels") < 0).any()
        cause = "labels hold -100, but the loss has another ignore_index"
        return _wrong(first_line(error), cause if hundreds else "raised by the loss or the model")
    if not called:
        return _wrong("the loss never calls the model that it's given", "it uses one from outside")
    if not value.isfinite():
        cause = inverted_mask(lambda: p.loss(model.eval(), p.unpadded.given()))
        return _wrong(f"the loss is {value.item()}", cause or "a mask that hides every key, or the log of 0")
    if not value.requires_grad:
        return _wrong(f"the loss {value.item():.3g} has no gradient", "no_grad, detach() or item() in it")
    first = p.each[0].logits
    if (first >= 0).all() and ((first.sum(dim=-1) - 1).abs() < 1e-4).all():
        return _wrong("the loss gets probabilities, not logits", "a softmax before a loss that has its own")
    return _right(f"the loss is {value.item():.3g}")


def _check_start(p: Program) -> Finding:
    """Every target begins with the start token, which is read and not predicted."""
    cause, firsts = "no start token, so the first word is read but never predicted", sorted(set(p.first))
    if p.refused:
        return _wrong(p.refused, cause)
    if "src" not in p.few.roles or not firsts:
        raise Skipped("a language model's text" if firsts else "what the decoder reads first can't be seen")
    if len(firsts) > 1:
        return _wrong(f"the decoder first reads {listed(firsts)}", cause)
    if p.bos is not None and firsts != [p.bos]:
        measured = f"the decoder first reads {firsts[0]}, not {p.bos}"
        return _wrong(measured, "a search from bos_id starts where training never did")
    if p.bos is None and len(p.first) == 1:
        raise Skipped("one sentence alone doesn't say what the start token is")
    return _right(f"every target begins with {firsts[0]}")


def _check_shift(p: Program) -> Finding:
    """Position t reads token t and predicts token t + 1."""
    steps = [t.f - t.r for t in p.traces if t.r is not None and t.f is not None]
    read, targets = p.reads[p.longest], p.each[p.longest].targets
    cause = "no shift: read tgt[:, :-1], predict tgt[:, 1:]"
    if read is not None and ((read == targets) | (targets < 0)).all():
        return _wrong("the decoder reads the very token that it must predict", cause)
    if not steps:
        raise Skipped("no target token has an influence that can be seen")
    if read is None and max(steps) <= 0:
        measured = "every position sees the very token that it must predict"
        return _wrong(measured, f"{cause}; or no causal mask")
    if min(steps) > 1:
        measured = f"a token is predicted {min(steps)} positions before it is read, not 1"
        return _wrong(measured, "shifted twice: in the batch, and again in the model or the loss")
    return _right("each token is read one position after it is predicted")


def _check_end(p: Program) -> Finding:
    """Every target ends with the end token, and the loss asks for it."""
    if "src" not in p.few.roles:
        raise Skipped("a language model's text")
    asked = [stripped(sentence, p.pad if p.pad != p.eos else None) for sentence in p.sentences]
    ends = {sentence[-1] for sentence in asked if sentence}
    stand = {row[-1] for row in words_of(p.few.ids("labels"), p.pad) if row}
    one_of_many = lambda ends: len(ends) == 1 < len(asked) and p.eos is None
    if ends == {p.eos} or one_of_many(ends):
        return _right(f"every target ends with {min(ends)}")
    if p.eos in ends:
        others = listed(sorted(ends - {p.eos}))
        measured = f"some targets end with {others}, not with {p.eos}"
        return _wrong(measured, "cut to a length after the end token was put on")
    if p.eos is not None and p.eos == p.pad:
        return _wrong(f"the loss never asks for {p.eos}", "the end token is the padding, which is ignored")
    if stand == {p.eos} or one_of_many(stand):
        measured = f"targets end with {min(stand)}, but the loss never asks for it"
        return _wrong(measured, "ignore_index is the end token, or the last position is cut off")
    if len({len(sentence) for sentence in asked}) == 1:
        return _right("no end token, and all targets are equally long: the search needs max_length")
    return _wrong(f"targets end with {listed(sorted(ends))}", "no end token: a search never learns to stop")


def _check_padding(p: Program) -> Finding:
    """Padding stands behind the words, is ignored by the loss, and changes nothing."""
    counted = sum(max(0, sentence.count(p.pad) - (p.eos == p.pad)) for sentence in p.sentences)
    if counted:
        measured = f"the loss counts {counted} padded positions of {sum(map(len, p.sentences))}"
        return _wrong(measured, f"ignore_index isn't {p.pad}")
    for role in p.few.roles:
        if (p.few.ids(role)[:, :2] == p.pad).all(dim=1).any():
            cause = "a tokenizer with padding_side='left', but positions counted from the left"
            return _wrong(f"{role} is padded in front", cause)
    parts = {key for key, part in p.few.parts.items() if isinstance(part, Tensor) and part.dim() > 1}
    if "src" not in p.few.roles or parts - {*p.few.roles.values(), "attention_mask"}:
        return _right("the loss ignores it")  # masks of the batch would have to grow, too
    longer = {"src": F.pad(p.few.ids("src"), (0, 1), value=p.pad)}
    if (mask := p.few.parts.get("attention_mask")) is not None:
        longer["attention_mask"] = F.pad(mask, (0, 1))
    try:
        logits = p.read(p.few.put(**longer)).logits
    except Exception:  # longer than the model takes
        return _right("the loss ignores it")
    if differing(logits, p.read(p.few).logits).any():
        return _wrong("one more padding token after the source changes the logits", "no padding mask")
    return _right("the loss ignores it, and more of it changes nothing")


def _check_masks(p: Program) -> Finding:
    """Positions see the past and not the future, the source, and not the rest of the batch."""
    if inverted := inverted_mask(lambda: p.loss(p.model, p.unpadded.given())):
        return _wrong("what may be attended to is hidden", inverted)
    early = [t for t in p.traces if t.r is not None and t.f is not None and t.f <= t.r]
    if early and _check_shift(p).passed:
        measured = f"position {early[0].f} sees token {early[0].u}, which comes later"
        return _wrong(measured, "the causal mask is missing, or one place too far")
    if p.traces and all(t.f is None for t in p.traces):
        return _wrong(
            "no target token changes any logit", "the decoder doesn't read its input, or masks hide it"
        )
    if words := [t.u for t in p.moved("src") if t.f is None]:
        return _wrong(
            f"source words {listed(words)} change nothing", "no cross-attention, or masks that hide them"
        )
    if leak := mixed(p):
        return _wrong(leak, "a mask of the wrong rank, which is broadcast along the batch; or a norm over it")
    return _right("past and source are seen, future and other sentences are not")


def _check_mean(p: Program) -> Finding:
    """Every real token counts the same, whatever it shares a batch with."""
    lengths = [len(sentence) for sentence in p.sentences]
    short, long = lengths.index(min(lengths)), lengths.index(max(lengths))
    once, twice = p.each[long].weights.sum(), p.read(p.few.rows(long, long)).weights.sum()
    if twice > 1.5 * once:
        measured = f"twice the batch has {float(twice / once):.2g} times the loss"
        return _wrong(measured, "a sum over tokens: divide it by their number, or return both")
    if lengths[short] == lengths[long]:
        raise Skipped("all targets are equally long, so all means are the same")
    weights = p.read(p.few.rows(short, long)).weights
    uneven = float(weights.max() / weights[weights > 0].min())
    if uneven > 1.02:
        measured = f"some tokens count {uneven:.2g} times as much as others"
        return _wrong(measured, "a mean of means: short sentences count more")
    share = float(p.each[short].weights.sum() / once)
    if share < 0.98 and once < 1.02:
        measured = f"tokens of a short sentence count {share:.2g} of a long one's"
        return _wrong(measured, "the mean runs over padded positions, too: more padding, lower loss")
    return _right("a mean over real tokens" if share > 0.98 else "a sum, a mean over sentences")


# What moves


def _check_gradients(p: Program) -> Finding:
    """Every parameter that is to be trained gets a gradient."""
    model = without_dropout(copy.deepcopy(p.original)).train()
    model.zero_grad()
    loss_value(p.loss(model, p.few.given())).backward()
    named = dict(model.named_parameters())
    if frozen := [name for name, q in named.items() if not q.requires_grad and "pos" not in name.lower()]:
        return _wrong(f"requires_grad is False: {listed(frozen)}", "frozen on purpose, or by fine-tuning")
    gradients = {name: q.grad for name, q in named.items() if q.requires_grad}
    if wrong := not_finite(gradients):
        return _wrong(f"not finite: {listed(wrong)}", "masks of -inf, the log of 0, or an overflow")
    if dead := without_gradient(gradients):
        return _wrong(f"none for {listed(dead)}", "detach or no_grad, or a layer that is built and not used")
    return _right(f"all of {len(gradients)} parameters have one")


def _check_optimizer(p: Program) -> Finding:
    """The optimizer holds the model's parameters, at a rate that isn't zero."""
    if p.optimizer is None:
        raise Skipped("no optimizer was given")
    held = {id(q) for group in p.optimizer.param_groups for q in group["params"]}
    missing = [name for name, q in p.original.named_parameters() if q.requires_grad and id(q) not in held]
    if missing:
        return _wrong(f"doesn't hold {listed(missing)}", "built from another model, or before it was changed")
    rates, (optimizer, schedule) = [], copy.deepcopy((p.optimizer, p.schedule))
    with warnings.catch_warnings(action="ignore"):  # the optimizer takes no step in between
        for _ in range(20):
            rates.append(float(optimizer.param_groups[0]["lr"]))
            if schedule is None or isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau):
                break
            schedule.step()
    if rates.count(0) > len(rates) / 2:
        return _wrong("the learning rate is 0", "an integer division, or a schedule that is over")
    return _right(f"holds all parameters; the rate goes from {rates[0]:.2g} to {rates[-1]:.2g}")


def _check_loop(p: Program) -> Finding:
    """A loop of the user's takes batches, clears gradients, moves all parameters, and learns."""
    if p.train is None:
        raise Skipped("no train(model, batches) was given")
    model = copy.deepcopy(p.original)
    before = loss_value(p.loss(model.eval(), p.few.given())).item()
    batches = Watched(model.train(), p.few)
    p.train(model, batches)
    still = [name for name, q in batches.now().items() if torch.equal(q, batches.start[name])]
    if len(still) == len(batches.start):
        cause = "no optimizer.step() or backward(), a rate of 0, or another model's parameters"
        return _wrong(f"{batches.taken} batches move no parameter", cause)
    if dead := [name for name in still if model.get_parameter(name).requires_grad]:
        return _wrong(f"never moves {listed(dead)}", "not in the optimizer, or no gradient reaches it")
    if batches.stale:
        return _wrong("gradients of earlier batches are still there", "no zero_grad() between updates")
    after = loss_value(p.loss(model.eval(), p.few.given())).item()
    measured = f"{batches.taken} times the same batch: the loss goes from {before:.3g} to {after:.3g}"
    return Finding(after < before + 0.1, measured, "the sign of the loss, or a rate that is too high")


_MODES = (  # which are wrong where
    ("evaluation", True, "evaluates in training mode", "no model.eval(): dropout is on while you measure"),
    ("training", False, "trains in evaluation mode", "no model.train(): dropout is off"),
    (
        "training again",
        False,
        "trains in evaluation mode after an evaluation",
        "no model.train() at its start",
    ),
)


def _check_modes(p: Program) -> Finding:
    """Training is in training mode and evaluation in evaluation mode, one after the other."""
    if p.train is None and p.evaluate is None:
        raise Skipped("neither train nor evaluate was given")
    model, modes, seen = copy.deepcopy(p.original).train(), [], {}
    for module in model.modules():
        module.register_forward_pre_hook(lambda module, _: modes.append(module.training))
    for name, call in (("training", p.train), ("evaluation", p.evaluate), ("training again", p.train)):
        if call is not None:
            call(model, [p.few.given() for _ in range(2)])
            seen[name], modes[:] = set(modes), []
    for name, mode, measured, cause in _MODES:
        if mode in seen.get(name, ()):
            return _wrong(measured, cause)
    return _right(", ".join(f"{name} in its mode" for name in seen))


# What is learned by heart, and what a search writes


def _check_overfit(p: Program) -> Finding:
    """A few sentences can be learned by heart."""
    model = p.model = without_dropout(copy.deepcopy(p.original))
    parameters = [q for q in model.parameters() if q.requires_grad]
    optimizer, start = torch.optim.Adam(parameters), time.monotonic()
    losses, right = [math.nan], 0.0
    while right < 1 and time.monotonic() - start < p.seconds:
        for _ in range(20):
            optimizer.param_groups[0]["lr"] = 3e-3 * min(1, len(losses) / 30)
            optimizer.zero_grad()
            loss = loss_value(p.loss(model.train(), p.few.given()))
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            losses.append(loss.item())
        logits, targets = p.read(p.few, model)[:2]
        right = float((logits.argmax(dim=-1) == targets)[targets >= 0].double().mean())
    steps = len(losses) - 1
    learned = f"{steps} updates on {len(p.few.ids('labels'))} sentences: {right:.0%} of tokens right"
    if right == 1:
        return _right(f"{learned}, loss {losses[1]:.3g} to {losses[-1]:.3g}")
    p.search = None
    if steps < 100:
        raise Skipped(f"{learned}; give it more seconds")
    return _wrong(learned, "the source doesn't reach the output, or the loss doesn't reach the model")


def _check_search(p: Program) -> Finding:
    """What was learned by heart is what the search writes."""
    if p.search is None or "src" not in p.few.roles:
        raise Skipped("no search was given, or nothing was learned")
    pairs = searched(p)
    wrong = [pair for pair in pairs if pair[0] != pair[1]]
    if not wrong:
        return _right(f"all {len(pairs)} sentences exactly")
    where, cause = _difference(*wrong[0])
    return _wrong(f"{len(wrong)} of {len(pairs)} learned sentences are written wrong: {where}", cause)


def _difference(ours: list[int], theirs: list[int]) -> tuple[str, str]:
    # Where what was written leaves what was learned, and the usual reason.
    place = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), len(theirs))
    if ours == theirs[1:]:
        return "the first word is missing", "training never asks for it, or the search drops it"
    if place >= len(theirs) - 1 and len(ours) >= len(theirs):
        return "it goes on after the last word", "the search doesn't stop at the end token"
    if ours == theirs[: len(ours)]:
        return f"the last {len(theirs) - len(ours)} tokens are missing", "max_length, or another end token"
    said = f"token {place} is {ours[place]} instead of {theirs[place]}"
    if place == 0:
        return said, "the search starts from another token than training, or reads another source"
    return said, "cache, positions, masks or dropout of the search, or it doesn't take the best"


_CHECKS: dict[str, Callable[[Program], Finding]] = {
    "ids": _check_ids,
    "dev": _check_dev,
    "runs": _check_runs,
    "start": _check_start,
    "shift": _check_shift,
    "end": _check_end,
    "padding": _check_padding,
    "masks": _check_masks,
    "mean": _check_mean,
    "gradients": _check_gradients,
    "optimizer": _check_optimizer,
    "loop": _check_loop,
    "modes": _check_modes,
    "overfit": _check_overfit,
    "search": _check_search,
}


def check_training(
    model: nn.Module,
    batch: Any,
    loss: Callable[[Any, Any], Any] | None = None,
    search: Callable[[Any, Tensor, int], Any] | None = None,
    dev: Any = None,
    train: Callable[[Any, Any], Any] | None = None,
    evaluate: Callable[[Any, Any], Any] | None = None,
    optimizer: Any = None,
    schedule: Any = None,
    pad_id: int | None = None,
    bos_id: int | None = None,
    eos_id: int | None = None,
    seconds: float = 10.0,
) -> CheckReport:
    """Find why a loss is low and the output wrong: loop, batch, loss, masks and search, examined together.

    Everything runs on copies. The model, its mode, its gradients and torch's generators stay as they are.

    Args:
        model: any module that can be copied.
        batch: `(src, tgt)`, `(src, decoder input, labels)`, ids alone for a language model, or a
            mapping such as Hugging Face's; ids are `[B, ·]`. A few rows run, all are compared with `dev`.
        loss: called as `loss(model, batch)`, the loss as your program computes it: a scalar, or a sum
            and the number of tokens. `None`: cross-entropy of `model(src, tgt[:, :-1])`, by the adapters
            of `check_model`, or what `model(**batch)` calls its loss.
        search: called as `search(model, src, max_length)`; returns a row of ids for each source, with
            the start token or without. It is asked to write what a copy has learned by heart.
        dev: a held-out batch of the same form, or an iterable of batches.
        train: called as `train(model, batches)`: your own loop, which makes its own optimizer.
        evaluate: called as `evaluate(model, batches)`: your own evaluation.
        optimizer, schedule: those of this model, if they are made already; only copies take steps.
        pad_id, bos_id, eos_id: `None`: as the model's configuration says. Without one, `pad_id` is 0,
            and the others are seen in the batch.
        seconds: how long a copy may try to learn a few sentences by heart.

    Returns:
        a report with one result for each check. What a piece of yours raises is a failure.

    Raises:
        TypeError, ValueError: an argument has another form.

    Example:
        >>> from transformer import Transformer, TransformerConfig
        >>> model = Transformer(TransformerConfig(9, 9, d_model=8, n_heads=2, n_layers=1, d_ff=8))
        >>> batch = torch.tensor([[5, 6, 3], [7, 3, 0]]), torch.tensor([[7, 8, 3], [5, 3, 0]])
        >>> check_training(model, batch).failures  # no start token
        ('start',)
    """
    check_type(nn.Module, model=model)
    for name, piece in {"loss": loss, "search": search, "train": train, "evaluate": evaluate}.items():
        if piece is not None and not callable(piece):
            raise TypeError(f"{name} must be callable, not {type(piece).__name__}")
    check_number(seconds=seconds)
    parts = take_apart("batch", batch)
    pad = said(model, pad_id, "pad_id", "pad_token_id") or 0
    bos = said(model, bos_id, "bos_id", "decoder_start_token_id")
    eos = said(model, eos_id, "eos_id", "eos_token_id")
    if dev is not None:
        alone = isinstance(dev, Tensor | Mapping) or any(isinstance(part, Tensor) for part in dev)
        dev = [take_apart("dev", held) for held in ([dev] if alone else dev)]
    device = parts.ids("labels").device
    with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
        quiet = without_dropout(copy.deepcopy(model)).eval()
        pieces = search, dev, train, evaluate, optimizer, schedule
        few = parts.few(pad)
        program = Program(model, quiet, loss or plain_loss(pad), parts, few, pad, bos, eos, seconds, *pieces)
        dtype = next((str(q.dtype).removeprefix("torch.") for q in model.parameters()), "float32")
        needed = ("ids", "runs", "start") if program.refused else ("ids", "runs")
        return CheckReport(dtype, examine(_CHECKS, program, needed))
