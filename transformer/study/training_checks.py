"""`check_training`: loop, batch, ids, loss and search, examined together."""

import copy
from collections.abc import Callable, Mapping
from typing import Any
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformer.study.checks import not_finite, without_dropout, without_gradient
from transformer.study.loop_checks import LOOP_CHECKS, stripped
from transformer.study.model_checks import adapted, find_logits, inverted_mask, said
from transformer.study.readings import Batch, Program, differing, loss_value, take_apart
from transformer.study.report import CheckReport, Finding, Skipped, examine, first_line, listed
from transformer.validation import check_number, check_type

__all__ = ["check_training"]


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
            return Finding(False, measured, "a vocabulary that isn't the model's")
        looked_up = role != "labels" or not (isinstance(p.batch.whole, Mapping) or "read" in p.batch.roles)
        if ids.min() < 0 and looked_up:
            cause = "-100 is for the labels of a loss; these ids are looked up in a table"
            return Finding(False, ranges[-1], cause)
        words, counts = ids[(ids >= 0) & (ids != p.pad)].unique(return_counts=True)
        if counts.sum() > 20 and counts.max() > 0.5 * counts.sum():
            measured = (
                f"{int(counts.max())} of {int(counts.sum())} words are id {int(words[counts.argmax()])}"
            )
            return Finding(False, measured, "unknown words: these texts don't belong to this vocabulary")
    return Finding(True, ", ".join(ranges))


def _rows(ids: Tensor, pad: int) -> list[tuple[int, ...]]:
    return [tuple(word for word in row if word != pad and word >= 0) for row in ids.tolist()]


def _check_dev(p: Program) -> Finding:
    """No held-out source is among those of training."""
    if p.dev is None:
        raise Skipped("no dev batch was given")
    role = "src" if "src" in p.batch.roles else "labels"
    held = [row for batch in p.dev for row in _rows(batch.ids(role), p.pad)]
    trained = set(_rows(p.batch.ids(role), p.pad))
    if both := [row for row in held if row in trained]:
        measured = f"{len(both)} of {len(held)} dev sources are in training, the first: {listed(both[0])}"
        return Finding(False, measured, "split after pairs were repeated or shuffled")
    return Finding(True, f"none of {len(held)} dev sources is among {len(trained)} of training")


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
        return Finding(False, first_line(error), cause if hundreds else "raised by the loss or the model")
    if not called:
        return Finding(False, "the loss never calls the model that it's given", "it uses one from outside")
    if not value.isfinite():
        cause = inverted_mask(lambda: p.loss(model.eval(), p.unpadded.given()))
        cause = cause or "a mask that hides every key, or the log of 0"
        return Finding(False, f"the loss is {value.item()}", cause)
    if not value.requires_grad:
        cause = "no_grad, detach() or item() in the loss"
        return Finding(False, f"the loss {value.item():.3g} has no gradient", cause)
    first = p.each[0].logits
    if p.each[0].by_name and (first >= 0).all() and ((first.sum(dim=-1) - 1).abs() < 1e-4).all():
        cause = "a softmax before a loss that has its own"
        return Finding(False, "the loss gets probabilities, not logits", cause)
    return Finding(True, f"the loss is {value.item():.3g}")


def _check_start(p: Program) -> Finding:
    """Every target begins with the start token, which is read and not predicted."""
    cause = "no start token, so the first word is read but never predicted"
    if p.refused:
        return Finding(False, p.refused, cause)
    firsts = sorted(set(p.first))
    if "src" not in p.few.roles or not firsts:
        raise Skipped("a language model's text" if firsts else "what the decoder reads first can't be seen")
    if len(firsts) > 1:
        return Finding(False, f"the decoder first reads {listed(firsts)}", cause)
    if p.bos is not None and firsts != [p.bos]:
        cause = "a search from bos_id starts where training never did"
        return Finding(False, f"the decoder first reads {firsts[0]}, not {p.bos}", cause)
    if p.bos is None and len(p.first) == 1:
        raise Skipped("one sentence alone doesn't say what the start token is")
    return Finding(True, f"every target begins with {firsts[0]}")


def _check_shift(p: Program) -> Finding:
    """Position t reads token t and predicts token t + 1."""
    steps = [t.f - t.r for t in p.traces if t.r is not None and t.f is not None]
    read, targets = p.reads[p.longest], p.each[p.longest].targets
    cause = "no shift: read tgt[:, :-1], predict tgt[:, 1:]"
    if read is not None and ((read == targets) | (targets < 0)).all():
        return Finding(False, "the decoder reads the very token that it must predict", cause)
    if not steps:
        raise Skipped("no target token has an influence that can be seen")
    if read is None and max(steps) <= 0:
        cause += "; or no causal mask"
        return Finding(False, "every position sees the very token that it must predict", cause)
    if min(steps) > 1:
        measured = f"a token is predicted {min(steps)} positions before it is read, not 1"
        return Finding(False, measured, "shifted twice: in the batch, and again in the model or the loss")
    return Finding(True, "each token is read one position after it is predicted")


def _check_end(p: Program) -> Finding:
    """Every target ends with the end token, and the loss asks for it."""
    if "src" not in p.few.roles:
        raise Skipped("a language model's text")
    asked = [stripped(sentence, p.pad if p.pad != p.eos else None) for sentence in p.sentences]
    ends = {sentence[-1] for sentence in asked if sentence}
    stand = {row[-1] for row in (stripped(row, p.pad, -100) for row in p.few.ids("labels").tolist()) if row}
    one_of_many = lambda ends: len(ends) == 1 < len(asked) and p.eos is None
    if ends == {p.eos} or one_of_many(ends):
        return Finding(True, f"every target ends with {min(ends)}")
    if p.eos in ends:
        cause = "cut to a length after the end token was put on"
        others = listed(sorted(ends - {p.eos}))
        return Finding(False, f"some targets end with {others}, not with {p.eos}", cause)
    if p.eos is not None and p.eos == p.pad:
        cause = "the end token is also the padding, which is ignored"
        return Finding(False, f"the loss never asks for {p.eos}", cause)
    if stand == {p.eos} or one_of_many(stand):
        cause = "ignore_index is the end token, or the last position is cut off"
        return Finding(False, f"targets end with {min(stand)}, but the loss never asks for it", cause)
    if len({len(sentence) for sentence in asked}) == 1:
        return Finding(True, "no end token, and all targets are equally long: the search needs max_length")
    cause = "no end token, so a search never learns to stop"
    return Finding(False, f"targets end with {listed(sorted(ends))}", cause)


def _check_padding(p: Program) -> Finding:
    """Padding stands behind the words, is ignored by the loss, and changes nothing."""
    counted = sum(max(0, sentence.count(p.pad) - (p.eos == p.pad)) for sentence in p.sentences)
    if counted:
        of = sum(map(len, p.sentences))
        measured = f"the loss counts {counted} padded positions of {of}"
        return Finding(False, measured, f"ignore_index isn't {p.pad}")
    for role in p.few.roles:
        if (p.few.ids(role)[:, :2] == p.pad).all(dim=1).any():
            cause = "a tokenizer with padding_side='left', but positions counted from the left"
            return Finding(False, f"{role} is padded in front", cause)
    parts = {key for key, part in p.few.parts.items() if isinstance(part, Tensor) and part.dim() > 1}
    if "src" not in p.few.roles or parts - {*p.few.roles.values(), "attention_mask"}:
        return Finding(True, "the loss ignores it")  # masks of the batch would have to grow, too
    longer = {"src": F.pad(p.few.ids("src"), (0, 1), value=p.pad)}
    if (mask := p.few.parts.get("attention_mask")) is not None:
        longer["attention_mask"] = F.pad(mask, (0, 1))
    try:
        logits = p.read(p.few.put(**longer)).logits
    except Exception:  # longer than the model takes
        return Finding(True, "the loss ignores it")
    if differing(logits, p.read(p.few).logits).any():
        measured = "one more padding token after the source changes the logits"
        return Finding(False, measured, "no padding mask")
    return Finding(True, "the loss ignores it, and more of it changes nothing")


def _check_masks(p: Program) -> Finding:
    """Positions see the past and not the future, the source, and not the rest of the batch."""
    if inverted := inverted_mask(lambda: p.loss(p.model, p.unpadded.given())):
        return Finding(False, "what may be attended to is hidden", inverted)
    early = [t for t in p.traces if t.r is not None and t.f is not None and t.f <= t.r]
    if early and _check_shift(p).passed:
        measured = f"position {early[0].f} sees token {early[0].u}, which comes later"
        return Finding(False, measured, "the causal mask is missing, or one place too far")
    if p.traces and all(t.f is None for t in p.traces):
        cause = "the decoder doesn't read its input, or masks hide it"
        return Finding(False, "no target token changes any logit", cause)
    if unread := _unread(p):
        cause = "no cross-attention, or masks that hide them"
        return Finding(False, f"source words {listed(unread)} change nothing", cause)
    if mixed := _mixed(p):
        cause = "a mask of the wrong rank, which is broadcast along the batch; or a norm over it"
        return Finding(False, mixed, cause)
    return Finding(True, "past and source are seen, future and other sentences are not")


def _unread(p: Program) -> list[int]:
    if "src" not in p.few.roles:
        return []
    batch, unread = p.few.rows(p.longest), []
    ids = batch.ids("src")
    words = sorted(set(p.few.ids("src").flatten().tolist()) - {p.pad, p.bos, p.eos})
    for s in range(min(ids.size(1), 8)):
        word = next((word for word in words if word != ids[0, s]), None)
        if ids[0, s] != p.pad and word is not None:
            changed = ids.clone()
            changed[0, s] = word
            if not differing(p.read(batch.put(src=changed)).logits, p.each[p.longest].logits).any():
                unread.append(s)
    return unread


def _mixed(p: Program) -> str:
    # In batches of which size a sentence gets logits that it doesn't get alone, if in any.
    alone = [reading.logits.masked_fill(~reading.logits.isfinite(), 0.0) for reading in p.each]
    for size in range(2, 9):
        index = [b % len(alone) for b in range(size)]
        try:
            whole = p.read(p.few.rows(*index)).logits
        except Exception as error:
            return f"a batch of {size} raises {first_line(error)}"
        wanted = torch.cat([alone[b] for b in index])
        apart = torch.cdist(wanted, whole.masked_fill(~whole.isfinite(), 0.0), p=torch.inf)  # in any order
        if not apart.amin(dim=1).max() <= 1e-5 * wanted.abs().max():
            return f"in a batch of {size}, a sentence's logits depend on the others"
    return ""


def _check_mean(p: Program) -> Finding:
    """Every real token counts the same, whatever it shares a batch with."""
    lengths = [len(sentence) for sentence in p.sentences]
    short, long = lengths.index(min(lengths)), lengths.index(max(lengths))
    once, twice = p.each[long].weights.sum(), p.read(p.few.rows(long, long)).weights.sum()
    if twice > 1.5 * once:
        cause = "a sum over tokens: divide it by their number, or return both"
        return Finding(False, f"twice the batch has {float(twice / once):.2g} times the loss", cause)
    if lengths[short] == lengths[long]:
        raise Skipped("all targets are equally long, so all means are the same")
    weights = p.read(p.few.rows(short, long)).weights
    uneven = float(weights.max() / weights[weights > 0].min())
    if uneven > 1.02:
        measured = f"some tokens count {uneven:.2g} times as much as others"
        return Finding(False, measured, "a mean of means: short sentences count more")
    share = float(p.each[short].weights.sum() / once)
    if share < 0.98 and once < 1.02:
        cause = "the mean runs over padded positions, too: more padding, lower loss"
        return Finding(False, f"tokens of a short sentence count {share:.2g} of a long one's", cause)
    return Finding(True, "a mean over real tokens" if share > 0.98 else "a sum, a mean over sentences")


def _check_gradients(p: Program) -> Finding:
    """Every parameter that is to be trained gets a gradient."""
    model = without_dropout(copy.deepcopy(p.original)).train()
    model.zero_grad()
    loss_value(p.loss(model, p.few.given())).backward()
    named = dict(model.named_parameters())
    if frozen := [name for name, q in named.items() if not q.requires_grad and "pos" not in name.lower()]:
        cause = "frozen on purpose, or left from fine-tuning"
        return Finding(False, f"requires_grad is False: {listed(frozen)}", cause)
    gradients = {name: q.grad for name, q in named.items() if q.requires_grad}
    if wrong := not_finite(gradients):
        return Finding(False, f"not finite: {listed(wrong)}", "masks of -inf, the log of 0, or an overflow")
    if dead := without_gradient(gradients):
        cause = "detach or no_grad, or a layer that is built and not used"
        return Finding(False, f"none for {listed(dead)}", cause)
    return Finding(True, f"all of {len(gradients)} parameters have one")


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
    **LOOP_CHECKS,
}


def _few(batch: Batch, pad: int) -> Batch:
    # At most four rows with different sources, the longest and the shortest target among them.
    rows = _rows(batch.ids("src" if "src" in batch.roles else "labels"), pad)
    firsts = [b for b, row in enumerate(rows) if row not in rows[:b]] if len(rows) <= 64 else [*range(64)]
    lengths = [len(row) for row in _rows(batch.ids("labels"), pad)]
    order = sorted(firsts, key=lambda b: lengths[b])
    return batch.rows(*sorted({order[0], order[-1], *firsts[:2]}))


def _plain_loss(pad: int) -> Callable[[Any, Any], Tensor]:
    # Teacher forcing as it is meant, with the model's own loss where it has one.
    def loss(model: Any, batch: Any) -> Tensor:
        if isinstance(batch, Mapping):
            result: Tensor = model(**batch)["loss"]
            return result
        parts = (batch,) if isinstance(batch, Tensor) else tuple(batch)
        src, read, labels = parts if len(parts) == 3 else (parts[0], parts[-1][:, :-1], parts[-1][:, 1:])
        logits = find_logits(adapted(model, pad)(src, read))
        return F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=pad)

    return loss


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
        few, plain = _few(parts, pad), loss or _plain_loss(pad)
        pieces = search, dev, train, evaluate, optimizer, schedule
        program = Program(model, quiet, plain, parts, few, pad, bos, eos, seconds, *pieces)
        dtype = next((str(q.dtype).removeprefix("torch.") for q in model.parameters()), "float32")
        needed = ("ids", "runs", "start") if program.refused else ("ids", "runs")
        return CheckReport(dtype, examine(_CHECKS, program, needed))
