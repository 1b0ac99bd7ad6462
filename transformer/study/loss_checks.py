"""Checks of a loss against its batch, for `check_training`."""

import copy
from collections.abc import Callable, Iterable, Mapping
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformer.study.checks import first_line, inverted_mask, without_dropout
from transformer.study.model_checks import listed
from transformer.study.readings import differing, Program, loss_value

__all__ = ["LOSS_CHECKS", "Finding", "known_id", "several", "stripped"]


Finding = tuple[bool | None, str, str]  # passed (None: skipped), what was measured, the likely cause


def several(values: Iterable[object]) -> str:
    """The first four values, and whether there are more."""
    shown = [str(value) for value in values]
    return ", ".join(shown[:4]) + (", …" if len(shown) > 4 else "")


def known_id(model: nn.Module, given: int | None, *names: str) -> int | None:
    """A number as given, or as the model or its configuration says."""
    places = (model, getattr(model, "config", None))
    said = (getattr(place, name, None) for place in places for name in names)
    return given if given is not None else next((value for value in said if isinstance(value, int)), None)


def _check_ids(p: Program) -> Finding:
    """Ids lie in their tables, and most words are known ones."""
    tables = [m.num_embeddings for m in p.model.modules() if isinstance(m, nn.Embedding)]
    said = []
    for role in p.batch.roles:
        ids, name = p.batch.ids(role), "src_vocab_size" if role == "src" else "tgt_vocab_size"
        size = known_id(p.model, None, name, "vocab_size") or max(tables, default=2**62)
        said.append(f"{role} {int(ids.min())} to {int(ids.max())}")
        if ids.max() >= size:
            return False, f"{said[-1]}, but the table has {size} rows", "a vocabulary that isn't the model's"
        looked_up = role != "labels" or not (isinstance(p.batch.whole, Mapping) or "read" in p.batch.roles)
        if ids.min() < 0 and looked_up:
            return False, said[-1], "-100 is for the labels of a loss; these ids are looked up in a table"
    ids = p.batch.ids("src" if "src" in p.batch.roles else "labels")
    words, counts = ids[(ids >= 0) & (ids != p.pad)].unique(return_counts=True)
    if counts.sum() > 20 and counts.max() > 0.5 * counts.sum():
        often = f"{int(counts.max())} of {int(counts.sum())} words are id {int(words[counts.argmax()])}"
        return False, often, "unknown words: these texts don't belong to this vocabulary"
    return True, ", ".join(said), ""


def _check_runs(p: Program) -> Finding:
    """The loss of the batch is a finite number, and comes from the model that is given."""
    model, called = copy.deepcopy(p.original).train(), []
    for module in model.modules():
        module.register_forward_hook(lambda *_: called.append(1))
    try:
        value = loss_value(p.loss(model, p.few.given()))
    except Exception as error:
        if p.refused:
            return None, "the loss refuses targets without a start token", ""
        hundreds = (p.few.ids("labels") < 0).any()
        cause = "labels hold -100, but the loss has another ignore_index"
        return False, first_line(error), cause if hundreds else "raised by the loss or the model"
    if not called:
        return False, "the loss never calls the model that it's given", "it uses a model from outside"
    if not value.isfinite():
        cause = inverted_mask(lambda: p.loss(model.eval(), p.few.rows(_fullest(p)).given()))
        return False, f"the loss is {value.item()}", cause or "a mask that hides every key, or the log of 0"
    if not value.requires_grad:
        return (
            False,
            f"the loss {value.item():.3g} has no gradient",
            "no_grad, detach() or item() in the loss",
        )
    first = p.each[0].logits
    if p.each[0].by_name and (first >= 0).all() and ((first.sum(dim=-1) - 1).abs() < 1e-4).all():
        return False, "the loss gets probabilities, not logits", "a softmax before a loss that has its own"
    return True, f"the loss is {value.item():.3g}", ""


def _fullest(p: Program) -> int:
    # The row with the fewest padding tokens.
    role = "src" if "src" in p.few.roles else "labels"
    return int((p.few.ids(role) != p.pad).sum(dim=1).argmax())


def _check_start(p: Program) -> Finding:
    """Every target begins with the start token, which is read and not predicted."""
    cause = "no start token, so the first word is read but never predicted"
    if p.refused:
        return False, p.refused, cause
    firsts = sorted(set(p.first))
    if "src" not in p.few.roles or not firsts:
        return None, "a language model's text" if firsts else "what the decoder reads first can't be seen", ""
    if len(firsts) > 1:
        return False, f"the decoder first reads {several(firsts)}", cause
    if p.bos is not None and firsts != [p.bos]:
        cause = "a search from bos_id starts where training never did"
        return False, f"the decoder first reads {firsts[0]}, not {p.bos}", cause
    if p.bos is None and len(p.first) == 1:
        return None, "one sentence alone doesn't say what the start token is", ""
    return True, f"every target begins with {firsts[0]}", ""


def _check_shift(p: Program) -> Finding:
    """Position t reads token t and predicts token t + 1."""
    steps = [t.f - t.r for t in p.traces if t.r is not None and t.f is not None]
    read, targets = p.reads[p.longest], p.each[p.longest].targets
    cause = "no shift: read tgt[:, :-1], predict tgt[:, 1:]"
    if read is not None and ((read == targets) | (targets < 0)).all():
        return False, "the decoder reads the very token that it must predict", cause
    if not steps:
        return None, "no target token has an influence that can be seen", ""
    if read is None and max(steps) <= 0:
        return False, "every position sees the very token that it must predict", cause + "; or no causal mask"
    if min(steps) > 1:
        cause = "shifted twice: in the batch, and again in the model or the loss"
        return False, f"a token is predicted {min(steps)} positions before it is read, not 1", cause
    return True, "each token is read one position after it is predicted", ""


def stripped(sentence: list[int], *padding: int | None) -> list[int]:
    """A sentence without the padding at its end."""
    end = len(sentence)
    while end and sentence[end - 1] in padding:
        end -= 1
    return sentence[:end]


def _check_end(p: Program) -> Finding:
    """Every target ends with the end token, and the loss asks for it."""
    if "src" not in p.few.roles:
        return None, "a language model's text", ""
    asked = [stripped(sentence, p.pad if p.pad != p.eos else None) for sentence in p.sentences]
    ends = {sentence[-1] for sentence in asked if sentence}
    rows = [stripped(row, p.pad, -100) for row in p.few.ids("labels").tolist()]
    stand = {row[-1] for row in rows if row}
    if ends == {p.eos} or (len(ends) == 1 < len(asked) and p.eos is None):
        return True, f"every target ends with {min(ends)}", ""
    if p.eos in ends:
        cause = "cut to a length after the end token was put on"
        return False, f"some targets end with {several(sorted(ends - {p.eos}))}, not with {p.eos}", cause
    if p.eos is not None and p.eos == p.pad:
        return (
            False,
            f"the loss never asks for {p.eos}",
            "the end token is also the padding, which is ignored",
        )
    if stand == {p.eos} or (len(stand) == 1 < len(asked) and p.eos is None):
        cause = "ignore_index is the end token, or the last position is cut off"
        return False, f"targets end with {min(stand)}, but the loss never asks for it", cause
    if len({len(sentence) for sentence in asked}) == 1:
        return True, "no end token, and all targets are equally long: the search needs max_length", ""
    return (
        False,
        f"targets end with {several(sorted(ends))}",
        "no end token, so a search never learns to stop",
    )


def _check_padding(p: Program) -> Finding:
    """Padding stands behind the words, is ignored by the loss, and changes nothing."""
    counted = sum(max(0, sentence.count(p.pad) - (p.eos == p.pad)) for sentence in p.sentences)
    if counted:
        of = sum(map(len, p.sentences))
        return False, f"the loss counts {counted} padded positions of {of}", f"ignore_index isn't {p.pad}"
    if (p.batch.ids("labels")[:, :2] == p.pad).all(dim=1).any():
        return False, "targets are padded in front", "a tokenizer with padding_side='left'"
    if "src" not in p.few.roles:
        return True, "the loss ignores it", ""
    src, mask = p.few.ids("src"), p.few.parts.get("attention_mask")
    order = (src == p.pad).long().sort(dim=1, stable=True).indices  # padding last
    if (src[:, 0] == p.pad).any() and not _same(p, order, src, mask):
        cause = "padding_side='left', but positions are counted from the left"
        return False, "sources are padded in front, and the logits change if they aren't", cause
    others = {key for key, part in p.few.parts.items() if isinstance(part, Tensor) and part.dim() > 1}
    if others - {*p.few.roles.values(), "attention_mask"}:
        return True, "the loss ignores it", ""  # masks of the batch would have to grow, too
    longer, whole = F.pad(src, (0, 1), value=p.pad), torch.arange(src.size(1) + 1, device=src.device)
    mask = F.pad(mask, (0, 1)) if mask is not None else None
    try:
        same = _same(p, whole.expand(len(src), -1), longer, mask)
    except Exception:  # longer than the model takes
        return True, "the loss ignores it", ""
    if not same:
        return False, "one more padding token after the source changes the logits", "no padding mask"
    return True, "the loss ignores it, and more of it changes nothing", ""


def _same(p: Program, order: Tensor, src: Tensor, mask: Tensor | None) -> bool:
    # Whether the logits stay with these sources, put into this order.
    parts = {"src": src.gather(1, order)} | (
        {} if mask is None else {"attention_mask": mask.gather(1, order)}
    )
    return not differing(p.read(p.few.put(**parts)).logits, p.read(p.few).logits).any()


def _check_masks(p: Program) -> Finding:
    """Positions see the past and not the future, the source, and not the rest of the batch."""
    inverted = inverted_mask(lambda: p.loss(p.model, p.unpadded.given()))
    if inverted:
        return False, "what may be attended to is hidden", inverted
    early = [t for t in p.traces if t.r is not None and t.f is not None and t.f <= t.r]
    if early and _check_shift(p)[0]:
        cause = "the causal mask is missing, or one place too far"
        return False, f"position {early[0].f} sees token {early[0].u}, which comes later", cause
    if p.traces and all(t.f is None for t in p.traces):
        return (
            False,
            "no target token changes any logit",
            "the decoder doesn't read its input, or masks hide it",
        )
    if unread := _unread(p):
        return (
            False,
            f"source words {several(unread)} change nothing",
            "no cross-attention, or masks that hide them",
        )
    if mixed := _mixed(p):
        return False, mixed, "a mask of the wrong rank, which is broadcast along the batch; or a norm over it"
    return True, "past and source are seen, future and other sentences are not", ""


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
        return False, f"twice the batch has {float(twice / once):.2g} times the loss", cause
    if lengths[short] == lengths[long]:
        return None, "all targets are equally long, so all means are the same", ""
    weights = p.read(p.few.rows(short, long)).weights
    uneven = float(weights.max() / weights[weights > 0].min())
    if uneven > 1.02:
        cause = "a mean of means: short sentences count more"
        return False, f"some tokens count {uneven:.2g} times as much as others", cause
    share = float(p.each[short].weights.sum() / once)
    if share < 0.98 and once < 1.02:
        cause = "the mean runs over padded positions, too: more padding, lower loss"
        return False, f"tokens of a short sentence count {share:.2g} of a long one's", cause
    return True, "a mean over real tokens" if share > 0.98 else "a sum over tokens, a mean over sentences", ""


def _check_gradients(p: Program) -> Finding:
    """Every parameter is to be trained, and gets a gradient."""
    model = without_dropout(copy.deepcopy(p.original)).train()
    model.zero_grad()
    loss_value(p.loss(model, p.few.given())).backward()
    named = dict(model.named_parameters())
    frozen = [name for name, q in named.items() if not q.requires_grad and "pos" not in name.lower()]
    if frozen:
        return (
            False,
            f"requires_grad is False: {listed(frozen)}",
            "frozen on purpose, or left from fine-tuning",
        )
    grads = {name: q.grad for name, q in named.items() if q.requires_grad}
    wrong = [name for name, grad in grads.items() if grad is not None and not grad.isfinite().all()]
    if wrong:
        return False, f"not finite: {listed(wrong)}", "masks of -inf, the log of 0, or an overflow"
    dead = [name for name, grad in grads.items() if grad is None or not grad.any()]
    if dead:
        return False, f"none for {listed(dead)}", "detach or no_grad, or a layer that is built and not used"
    return True, f"all of {len(grads)} parameters have one", ""


LOSS_CHECKS: dict[str, Callable[[Program], Finding]] = {
    "ids": _check_ids,
    "runs": _check_runs,
    "start": _check_start,
    "shift": _check_shift,
    "end": _check_end,
    "padding": _check_padding,
    "masks": _check_masks,
    "mean": _check_mean,
    "gradients": _check_gradients,
}
