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
from transformer.study.model_checks import CheckReport, config_value, examine, inverted_mask
from transformer.study.readings import Program, differing, loss_value, plain_loss, shift_of
from transformer.study.readings import parse_batch, without_padding
from transformer.validation import check_number, check_type

__all__ = ["check_training"]


# What is given, read and predicted

_right, _wrong = partial(Finding, True), partial(Finding, False)


def _check_ids(p: Program) -> Finding:
    """Ids lie in their tables."""
    tables = [m.num_embeddings for m in p.model.modules() if isinstance(m, nn.Embedding)]
    ranges = []
    for role in p.batch.roles:
        ids, name = p.batch.ids(role), "src_vocab_size" if role == "src" else "tgt_vocab_size"
        size = config_value(p.model, None, name, "vocab_size") or max(tables, default=2**62)
        ranges.append(f"{role} {int(ids.min())} to {int(ids.max())}")
        if ids.max() >= size:
            return _wrong(f"{ranges[-1]}, but the table has {size} rows", "another model's vocabulary")
        looked_up = role != "labels" or not (isinstance(p.batch.whole, Mapping) or "read" in p.batch.roles)
        if ids.min() < 0 and looked_up:
            return _wrong(ranges[-1], "-100 is for the labels of a loss; these ids are looked up in a table")
        counts = ids[(ids >= 0) & (ids != p.pad)].bincount()
        if counts.sum() > 20 and counts.max() > counts.sum() / 2:
            measured = f"{counts.max()} of {counts.sum()} words are id {counts.argmax()}"
            return _wrong(measured, "unknown words: these texts don't belong to this vocabulary")
    return _right(", ".join(ranges))


def _check_dev(p: Program) -> Finding:
    """No held-out source is among those of training."""
    if p.more["dev"] is None:
        raise Skipped("no dev batch was given")
    role = "src" if "src" in p.batch.roles else "labels"
    held = [row for batch in p.more["dev"] for row in without_padding(batch.ids(role), p.pad)]
    trained = set(without_padding(p.batch.ids(role), p.pad))
    if both := [row for row in held if row in trained]:
        measured = f"{len(both)} of {len(held)} dev sources are in training, the first: {listed(both[0])}"
        return _wrong(measured, "split after pairs were repeated or shuffled")
    return _right(f"none of {len(held)} dev sources is among {len(trained)} of training")


def _check_runs(p: Program) -> Finding:
    """The loss of the batch is a finite number, of logits."""
    value = loss_value(p.loss(copy.deepcopy(p.original).train(), p.few.given()))
    if not value.isfinite():
        cause = inverted_mask(lambda: p.loss(p.model, p.unpadded()))
        return _wrong(f"the loss is {value.item()}", cause or "a mask that hides every key, or the log of 0")
    first = p.each[0].logits
    if (first >= 0).all() and ((first.sum(dim=-1) - 1).abs() < 1e-4).all():
        return _wrong("the loss gets probabilities, not logits", "a softmax before a loss that has its own")
    return _right(f"the loss is {value.item():.3g}")


def _check_start(p: Program) -> Finding:
    """Every target begins with the start token, which is read and not predicted."""
    firsts = sorted(set(p.first))
    if "src" not in p.few.roles or not firsts:
        raise Skipped("a language model's text" if firsts else "what the decoder reads first can't be seen")
    if len(firsts) > 1:
        cause = "no start token, so the first word is read but never predicted"
        return _wrong(f"the decoder first reads {listed(firsts)}", cause)
    if p.bos is not None and firsts != [p.bos]:
        measured = f"the decoder first reads {firsts[0]}, not {p.bos}"
        return _wrong(measured, "a search from bos_id starts where training never did")
    return _right(f"every target begins with {firsts[0]}")


def _check_shift(p: Program) -> Finding:
    """Position t reads token t and predicts token t + 1."""
    read, targets = p.each[p.longest].read, p.each[p.longest].targets
    shift = None if read is None else shift_of(read[None], targets[None])
    if shift is None:
        raise Skipped("what the decoder reads of its targets can't be seen")
    if shift == 0:
        measured = "the decoder reads the very token that it must predict"
        return _wrong(measured, "no shift: read tgt[:, :-1], predict tgt[:, 1:]")
    if shift == 2:
        measured = "a token is predicted 2 positions before it is read, not 1"
        return _wrong(measured, "shifted twice: in the batch, and again in the model or the loss")
    return _right("each token is read one position after it is predicted")


def _check_end(p: Program) -> Finding:
    """Every target ends with the end token, and the loss asks for it."""
    if "src" not in p.few.roles:
        raise Skipped("a language model's text")
    given = {row[-1] for row in without_padding(p.few.ids("labels"), p.pad) if row}
    ends = {sentence[-1] for sentence in p.sentences if sentence}
    end = min(given) if p.eos is None and len(given) == 1 < len(p.sentences) else p.eos
    if ends == {end}:
        return _right(f"every target ends with {end}")
    if end is not None and end == p.pad:
        return _wrong(f"the loss never asks for {end}", "the end token is the padding, which is ignored")
    if end in ends:
        return _wrong(f"some targets don't end with {end}", "cut to a length after the end token was put on")
    if given == {end}:
        return _wrong(f"the loss never asks for {end}", "ignore_index is the end token, or it is cut off")
    if len({len(sentence) for sentence in p.sentences}) == 1:
        return _right("no end token, and all targets are equally long: the search needs max_length")
    return _wrong(f"targets end with {listed(sorted(ends))}", "no end token: a search never learns to stop")


def _check_padding(p: Program) -> Finding:
    """Padding stands behind the words, is ignored by the loss, and changes nothing."""
    counted = sum(max(0, sentence.count(p.pad) - (p.eos == p.pad)) for sentence in p.sentences)
    if counted:
        return _wrong(f"the loss counts {counted} padded positions", f"ignore_index isn't {p.pad}")
    for role in p.few.roles:
        if (p.few.ids(role)[:, :2] == p.pad).all(dim=1).any():
            cause = "a tokenizer with padding_side='left', but positions counted from the left"
            return _wrong(f"{role} is padded in front", cause)
    try:
        logits = p.read(p.few.put(src=F.pad(p.few.ids("src"), (0, 1), value=p.pad))).logits
    except Exception:  # no source, one longer than the model takes, or masks that would have to grow, too
        return _right("the loss ignores it")
    if differing(logits, p.read(p.few).logits).any():
        return _wrong("one more padding token after the source changes the logits", "no padding mask")
    return _right("the loss ignores it, and more of it changes nothing")


def _check_masks(p: Program) -> Finding:
    """Positions see the past and not the future, the source, and not the rest of the batch."""
    if inverted := inverted_mask(lambda: p.loss(p.model, p.unpadded())):
        return _wrong("what may be attended to is hidden", inverted)
    base, new = p.each[p.longest], p.reworded("labels")
    if base.read is not None and new.read is not None and (read := new.read != base.read).any():
        changed, place = differing(new.logits, base.logits), int(read.nonzero()[0])
        if changed[:place].any():
            measured = f"position {int(changed.nonzero()[0])} sees token {place}, which comes later"
            return _wrong(measured, "the causal mask is missing, or one place too far")
        if not changed.any():
            return _wrong("no target token changes any logit", "the decoder doesn't read its input, or masks")
    if "src" in p.few.roles and not differing(p.reworded("src").logits, base.logits).any():
        return _wrong("other source words change nothing", "no cross-attention, or masks that hide them")
    alone = [reading.logits.nan_to_num() for reading in p.each]
    for size in range(2, 9):
        index = [b % len(alone) for b in range(size)]
        wanted, whole = torch.cat([alone[b] for b in index]), p.read(p.few.rows(*index)).logits.nan_to_num()
        apart = torch.cdist(wanted, whole, p=torch.inf).amin(dim=1)  # from the nearest, in any order
        if not apart.max() <= 1e-5 * wanted.abs().max():
            measured = f"in a batch of {size}, a sentence's logits depend on the others"
            return _wrong(measured, "a mask of the wrong rank, which is broadcast; or a norm over the batch")
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
    if (uneven := float(weights.max() / weights[weights > 0].min())) > 1.02:
        measured = f"some tokens count {uneven:.2g} times as much as others"
        return _wrong(measured, "a mean of means: short sentences count more")
    share = float(p.each[short].weights.sum() / once)
    if share < 0.98 and once < 1.02:
        measured = f"tokens of a short sentence count {share:.2g} of a long one's"
        return _wrong(measured, "the mean runs over padded positions, too: more padding, lower loss")
    return _right("a mean over real tokens" if share > 0.98 else "a sum, a mean over sentences")


# What moves, what is learned by heart, and what a search writes


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
    if p.more["optimizer"] is None:
        raise Skipped("no optimizer was given")
    held = {id(q) for group in p.more["optimizer"].param_groups for q in group["params"]}
    trained = {name: id(q) for name, q in p.original.named_parameters() if q.requires_grad}
    if missing := [name for name in trained if trained[name] not in held]:
        return _wrong(f"doesn't hold {listed(missing)}", "built from another model, or before it was changed")
    optimizer, schedule = copy.deepcopy((p.more["optimizer"], p.more["schedule"]))
    rates = [float(optimizer.param_groups[0]["lr"])]
    with warnings.catch_warnings(action="ignore"):  # the optimizer takes no step in between
        while len(rates) < 20 and isinstance(schedule, torch.optim.lr_scheduler.LRScheduler):
            schedule.step()
            rates.append(float(optimizer.param_groups[0]["lr"]))
    if rates.count(0) > len(rates) / 2:
        return _wrong("the learning rate is 0", "an integer division, or a schedule that is over")
    return _right(f"holds all parameters; the rate goes from {rates[0]:.2g} to {rates[-1]:.2g}")


def _check_loop(p: Program) -> Finding:
    """A loop of the user's takes batches, clears gradients, moves all parameters, and learns."""
    if p.more["train"] is None:
        raise Skipped("no train(model, batches) was given")
    model = copy.deepcopy(p.original)
    model.zero_grad()
    before = loss_value(p.loss(model.eval(), p.few.given())).item()
    trained = {name: q for name, q in model.named_parameters() if q.requires_grad}
    start = {name: q.detach().clone() for name, q in trained.items()}
    versions, stale = dict.fromkeys(trained, math.inf), set()

    def watch(name: str, q: Tensor) -> None:
        # Called before a gradient is added to what is there: is that of before the last step?
        if q.grad is not None and q.grad.any() and q._version > versions[name]:
            stale.add(name)
        versions[name] = q._version

    for name, q in trained.items():
        q.register_hook(lambda _, name=name, q=q: watch(name, q))
    p.more["train"](model.train(), [p.few.given() for _ in range(48)])
    still = [name for name, q in trained.items() if torch.equal(q, start[name])]
    if len(still) == len(trained):
        return _wrong("48 batches move no parameter", "no optimizer.step(), or another model's parameters")
    if still:
        return _wrong(f"never moves {listed(still)}", "not in the optimizer, or no gradient reaches it")
    if stale:
        return _wrong("gradients of earlier batches are still there", "no zero_grad() between updates")
    after = loss_value(p.loss(model.eval(), p.few.given())).item()
    measured = f"48 times the same batch: the loss goes from {before:.3g} to {after:.3g}"
    return Finding(after < before + 0.1, measured, "the sign of the loss, or a rate that is too high")


def _check_modes(p: Program) -> Finding:
    """Evaluation is in evaluation mode, and training after it in training mode."""
    if p.more["train"] is None and p.more["evaluate"] is None:
        raise Skipped("neither train nor evaluate was given")
    model, modes = copy.deepcopy(p.original).train(), set()
    for module in model.modules():
        module.register_forward_pre_hook(lambda module, _: modes.add(module.training))
    for name, wrong, cause in (
        ("evaluate", True, "no model.eval(): dropout is on while you measure"),
        ("train", False, "no model.train() after an evaluation: dropout is off"),
    ):
        modes.clear()
        if p.more[name] is not None:
            p.more[name](model, [p.few.given() for _ in range(2)])
        if wrong in modes:
            return _wrong(f"{name} runs in the other mode", cause)
    return _right("each in its mode")


def _check_overfit(p: Program) -> Finding:
    """A few sentences can be learned by heart."""
    p.model = without_dropout(copy.deepcopy(p.original))
    # Without a source, texts that begin alike can't all be learned.
    few = p.few if "src" in p.few.roles else p.few.rows(p.longest)
    parameters = [q for q in p.model.parameters() if q.requires_grad]
    optimizer, start = torch.optim.Adam(parameters), time.monotonic()
    losses: list[float] = []
    right = 0.0
    while right < 1 and time.monotonic() - start < p.more["seconds"]:
        for _ in range(20):
            optimizer.param_groups[0]["lr"] = 3e-3 * min(1, (len(losses) + 1) / 30)
            optimizer.zero_grad()
            loss = loss_value(p.loss(p.model.train(), few.given()))
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            losses.append(loss.item())
        logits, targets = p.read(few)[:2]
        right = float((logits.argmax(dim=-1) == targets)[targets >= 0].double().mean())
    rows = len(few.ids("labels"))
    learned = f"{len(losses)} updates on {rows} sentence{'s' * (rows > 1)}: {right:.0%} of tokens right"
    if right == 1:
        return _right(f"{learned}, loss {losses[0]:.3g} to {losses[-1]:.3g}")
    p.more["search"] = None
    if len(losses) < 100:
        raise Skipped(f"{learned}; give it more seconds")
    return _wrong(learned, "the source doesn't reach the output, or the loss doesn't reach the model")


def _check_search(p: Program) -> Finding:
    """What was learned by heart is what the search writes."""
    if p.more["search"] is None or "src" not in p.few.roles:
        raise Skipped("no search was given, or nothing was learned")
    asked, wrong = p.sentences, []
    if len(set(p.first)) > 1:  # no start token: what is read first is a word of the sentence
        asked = [[first, *sentence] for first, sentence in zip(p.first, asked, strict=True)]
    written = p.more["search"](p.model.eval(), p.few.ids("src").clone(), max(map(len, asked)) + 1)
    for row, sentence in zip(written, asked, strict=True):
        words = [int(word) for word in row]
        if words[:1] != sentence[:1] and (not p.first or words[:1] in (p.first[:1], [p.bos])):
            words = words[1:]
        while words and words[-1] == p.pad != sentence[-1]:
            words.pop()
        if words[: len(sentence)] != sentence and words != sentence[:-1]:  # some leave the end token out
            wrong.append((words, sentence))
    if not wrong:
        return _right(f"all {len(asked)} sentences exactly")
    where, cause = _difference(*wrong[0])
    return _wrong(f"{len(wrong)} of {len(asked)} learned sentences are written wrong: {where}", cause)


def _difference(ours: list[int], theirs: list[int]) -> tuple[str, str]:
    # Where what was written leaves what was learned, and the usual reason.
    if ours[: len(theirs) - 1] == theirs[1:]:
        return "the first word is missing", "training never asks for it, or the search drops it"
    place = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), len(ours))
    if place == len(ours):
        return f"the last {len(theirs) - place} tokens are missing", "max_length, or another end token"
    if place == len(theirs) - 1:
        return "it goes on after the last word", "the search doesn't stop at the end token"
    where = f"token {place} is {ours[place]} instead of {theirs[place]}"
    if place == 0:
        return where, "the search starts from another token than training, or reads another source"
    return where, "cache, positions, masks or dropout of the search, or it doesn't take the best"


_CHECKS: dict[str, Callable[[Program], Finding]] = {
    "ids": _check_ids, "dev": _check_dev, "runs": _check_runs, "start": _check_start,
    "shift": _check_shift, "end": _check_end, "padding": _check_padding, "masks": _check_masks,
    "mean": _check_mean, "gradients": _check_gradients, "optimizer": _check_optimizer,
    "loop": _check_loop, "modes": _check_modes, "overfit": _check_overfit, "search": _check_search,
}  # fmt: skip


def check_training(
    model: nn.Module, batch: Any, loss: Callable[[Any, Any], Any] | None = None,
    search: Callable[[Any, Tensor, int], Any] | None = None, dev: Any = None,
    train: Callable[[Any, Any], Any] | None = None, evaluate: Callable[[Any, Any], Any] | None = None,
    optimizer: Any = None, schedule: Any = None, pad_id: int | None = None, bos_id: int | None = None,
    eos_id: int | None = None, seconds: float = 10.0,
) -> CheckReport:  # fmt: skip
    """Find why a loss is low and the output wrong: loop, batch, loss, masks and search, examined together.

    Everything runs on copies. The model, its mode, its gradients and torch's generators stay as they are.

    Args:
        model: any module that can be copied; our language model as
            `transformer.study.model_checks.decoder_only(model)`, if no `loss` is given.
        batch: `(src, tgt)`, `(src, decoder input, labels)`, ids alone for a language model, or a mapping
            such as Hugging Face's; ids are `[B, ·]`. A few rows run, all are compared with `dev`.
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
    parts = parse_batch("batch", batch)
    pad = config_value(model, pad_id, "pad_id", "pad_token_id") or 0
    bos = config_value(model, bos_id, "bos_id", "decoder_start_token_id")
    eos = config_value(model, eos_id, "eos_id", "eos_token_id")
    if dev is not None:
        alone = isinstance(dev, Tensor | Mapping) or any(isinstance(part, Tensor) for part in dev)
        dev = [parse_batch("dev", held) for held in ([dev] if alone else dev)]
    more = {"search": search, "dev": dev, "train": train, "evaluate": evaluate}
    more |= {"optimizer": optimizer, "schedule": schedule, "seconds": seconds}
    device = parts.ids("labels").device
    with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
        quiet = without_dropout(copy.deepcopy(model)).eval()
        program = Program(model, quiet, loss or plain_loss(pad), parts, parts.few(pad), pad, bos, eos, more)
        dtype = next((str(q.dtype).removeprefix("torch.") for q in model.parameters()), "float32")
        return CheckReport(dtype, examine(_CHECKS, program, needed=("ids", "runs")))
