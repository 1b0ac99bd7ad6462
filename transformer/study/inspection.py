"""transformer.study.inspection, from book/14-looking-inside.ipynb, "Looking inside".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = [
    "ibm_alignment", "ibm_model_1", "Head", "all_heads", "share_on", "head_shares", "without_heads",
    "mean_contexts", "head_costs", "pruning_curve", "gradient_times_input", "ResidualStream",
    "residual_stream", "logit_lens", "linear_probe", "patched",
]


# %% book/14-looking-inside.ipynb · A yardstick: alignment by counting · [ibm-model-1]
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from transformer.attention import MultiHeadAttention
from transformer.model import Decoder, Encoder, Transformer, attention_tap
from transformer.training import evaluating


def ibm_alignment(table: Tensor, src: Tensor, tgt: Tensor, pad_id: int = 0) -> Tensor:
    """How probably a target token comes from a source token, by `ibm_model_1`.

    Args:
        table: `[V, V]`, as `ibm_model_1` returns it.
        src, tgt: token ids `[B, S]`, `[B, T]`.

    Returns:
        `[B, T, S]`; a row sums to 1, or to 0 for padding and what the table lacks.

    Source: Brown et al. (1993), section 4.1.
    """
    real = (src != pad_id)[:, None, :] & (tgt != pad_id)[:, :, None]  # [B, T, S]
    likely = table[src[:, None, :], tgt[:, :, None]] * real
    return (likely / likely.sum(dim=-1, keepdim=True)).nan_to_num()


def ibm_model_1(
    src: Tensor, tgt: Tensor, vocab_size: int, rounds: int = 5, pad_id: int = 0
) -> Tensor:
    """Estimate which target tokens a source token becomes, by expectation maximization.

    Args:
        src, tgt: token ids `[N, S]`, `[N, T]`, row by row translations.
        vocab_size: number of tokens V, of either language.
        rounds: how often the alignment and the table are computed from each other.

    Returns:
        `[V, V]`; row f is the distribution t(e | f), 0 if f does not occur.

    Source: Brown et al. (1993), section 4.1, without its empty word.
    """
    pair = (src[:, None, :] * vocab_size + tgt[:, :, None]).flatten()  # of (f, e)
    table = torch.full((vocab_size, vocab_size), 1 / vocab_size)
    for _ in range(rounds):
        expected = ibm_alignment(table, src, tgt, pad_id).flatten()
        counts = torch.zeros(vocab_size**2).index_add(0, pair, expected).view_as(table)
        table = (counts / counts.sum(dim=1, keepdim=True)).nan_to_num()
    return table


# %% book/14-looking-inside.ipynb · Where heads look · [head]
class Head(NamedTuple):
    """One head of a model: the name of its attention, and its number there, from 0."""

    attention: str
    number: int

    @property
    def kind(self) -> str:
        """`"encoder"` or `"decoder"` for self-attention, or `"cross"`."""
        return "cross" if "cross" in self.attention else self.attention.split(".")[0]

    def __str__(self) -> str:
        layer = int(self.attention.split(".")[2])
        return f"{self.kind} {layer + 1}.{self.number + 1}"


def all_heads(model: Transformer) -> list[Head]:
    """The heads of a model, in the order of its modules."""
    return [
        Head(name, number)
        for name, attention in _attentions(model).items()
        for number in range(attention.n_heads)
    ]


def _attentions(model: nn.Module) -> dict[str, MultiHeadAttention]:
    modules = model.named_modules()
    return {name: m for name, m in modules if isinstance(m, MultiHeadAttention)}


# %% book/14-looking-inside.ipynb · Where heads look · [places]
def _keys(ids: Tensor, pad_id: int, marks: Sequence[int]) -> dict[str, Tensor]:
    # What a key can be by itself: [B, 1, S] each.
    place = torch.arange(ids.size(1), device=ids.device)
    last = (ids != pad_id).sum(dim=1, keepdim=True) - 1  # [B, 1]
    mark = torch.isin(ids, torch.tensor(list(marks), dtype=torch.long, device=ids.device))
    roles = {"first": (place == 0).expand_as(ids), "last": place == last, "mark": mark}
    return {role: where[:, None] for role, where in roles.items()}


def _places(ids: Tensor, pad_id: int, marks: Sequence[int], causal: bool) -> dict[str, Tensor]:
    # What a key can be to a query of the same sequence: [B, S, S] each.
    place = torch.arange(ids.size(1), device=ids.device)
    step = place - place[:, None]  # [S, S], from the query to the key
    same = ids[:, :, None] == ids[:, None, :]
    may = (ids != pad_id)[:, :, None] & (ids != pad_id)[:, None, :]
    may = may.tril() if causal else may
    roles = {"previous": step == -1, "itself": step == 0, "next": step == 1}
    roles |= {"repeat": same & (step < 0)} | _keys(ids, pad_id, marks)
    ahead = ("next", "last") if causal else ()  # what comes later is not asked about
    return {role: where & may for role, where in roles.items() if role not in ahead}


def share_on(weights: Tensor, places: Tensor) -> Tensor:
    """The share of a head's attention `[B, T, S]` that lies on `places`, `torch.bool` `[B, T, S]`, over the
    queries that have such a place: a scalar from 0 to 1; NaN where none has.
    """
    return (weights * places).sum() / places.any(dim=-1).sum()


# %% book/14-looking-inside.ipynb · Where heads look · [head-shares]
def head_shares(
    model: Transformer,
    src: Tensor,
    tgt: Tensor,
    marks: Sequence[int] = (),
    aligned: Tensor | None = None,
) -> dict[Head, dict[str, float]]:
    """Where each head of a model looks, as shares of its weight.

    Args:
        src, tgt: token ids `[B, S]`, `[B, T]`; `tgt` begins with the start token.
        marks: the tokens that are punctuation.
        aligned: `torch.bool` `[B, T, S]`, the source places that belong to what is written at a
            target place; `None` if they are not known.

    Returns:
        for each head, the role of a key and the share of weight that it gets, as `share_on` has it:
        `"previous"`, `"itself"`, `"next"`, an earlier `"repeat"` of the token, `"first"`, `"last"`,
        `"mark"`; in the decoder without `"next"` and `"last"`; for cross-attention `"first"`,
        `"last"`, `"mark"` and `"aligned"`.
    """
    pad_id = model.config.pad_id
    asking = (tgt != pad_id)[:, :, None]
    cross = {role: where & asking for role, where in _keys(src, pad_id, marks).items()}
    places = {
        "encoder": _places(src, pad_id, marks, causal=False),
        "decoder": _places(tgt, pad_id, marks, causal=True),
        "cross": cross if aligned is None else cross | {"aligned": aligned & asking},
    }
    with evaluating(model), attention_tap(model) as maps:
        model(src, tgt)
    return {
        head: {
            role: share_on(maps[head.attention][:, head.number], where).item()
            for role, where in places[head.kind].items()
        }
        for head in all_heads(model)
    }


# %% book/14-looking-inside.ipynb · What a head is worth: ablation · [without-heads]
@contextmanager
def without_heads(
    model: Transformer,
    heads: Iterable[Head],
    instead: Mapping[Head, Tensor] | None = None,
) -> Iterator[None]:
    """Let some heads of a model contribute nothing, or the same everywhere.

    Args:
        model: the model, plain or accelerated.
        heads: which; none is fine.
        instead: what replaces a head's context, `[d_k]` or `[B, T, d_k]`, such as its
            mean (`mean_contexts`); `None`: zeros.

    Source: Michel et al. (2019), section 2.3.
    """

    def replace(
        n_heads: int, values: dict[int, Tensor | float]
    ) -> Callable[..., Tensor]:
        def hook(module: nn.Module, args: tuple[Tensor]) -> Tensor:
            context = args[0].unflatten(-1, (n_heads, -1)).clone()  # [B, T, H, d_k]
            for number, value in values.items():
                context[..., number, :] = value
            return context.flatten(-2)

        return hook

    chosen: dict[str, dict[int, Tensor | float]] = {}
    for head in heads:
        values = chosen.setdefault(head.attention, {})
        values[head.number] = instead[head] if instead else 0.0
    attentions = _attentions(model)
    with ExitStack() as hooks:
        for name, values in chosen.items():
            hook = replace(attentions[name].n_heads, values)
            hooks.callback(attentions[name].w_o.register_forward_pre_hook(hook).remove)
        yield


# %% book/14-looking-inside.ipynb · What a head is worth: ablation · [mean-contexts]
@torch.no_grad()
def mean_contexts(model: Transformer, src: Tensor, tgt: Tensor) -> dict[Head, Tensor]:
    """What each head of a plain model contributes on average: its mean context `[d_k]`, over the positions of
    `src` `[B, S]` and `tgt` `[B, T]` that are not padding.
    """
    contexts: dict[str, Tensor] = {}
    with evaluating(model), ExitStack() as hooks:
        for name, attention in _attentions(model).items():
            note = lambda module, args, name=name: contexts.update({name: args[0]})
            hooks.callback(attention.w_o.register_forward_pre_hook(note).remove)
        model(src, tgt)
    read, written = src != model.config.pad_id, tgt != model.config.pad_id
    means = {}
    for head in all_heads(model):
        asking = read if head.kind == "encoder" else written
        context = contexts[head.attention][asking]  # [positions, d_model]
        n_heads = _attentions(model)[head.attention].n_heads
        means[head] = context.unflatten(-1, (n_heads, -1))[:, head.number].mean(dim=0)
    return means


# %% book/14-looking-inside.ipynb · What a head is worth: ablation · [head-costs]
def head_costs(
    model: Transformer,
    score: Callable[[Transformer], float],
    instead: Mapping[Head, Tensor] | None = None,
) -> dict[Head, float]:
    """What each head of a plain model is worth: by how much `score(model)`, the more the better, falls
    without it, with `instead` in its place as in `without_heads`.

    Source: Michel et al. (2019), section 3.2.
    """
    whole, costs = score(model), {}
    for head in all_heads(model):
        with without_heads(model, [head], instead):
            costs[head] = whole - score(model)
    return costs


# %% book/14-looking-inside.ipynb · Pruning: one head after another · [pruning]
def pruning_curve(
    model: Transformer,
    score: Callable[[Transformer], float],
    order: Sequence[Head],
    instead: Mapping[Head, Tensor] | None = None,
) -> list[float]:
    """`score(model)` without the first 0, 1, …, `len(order)` heads of `order`, in whose
    places stands `instead`, as in `without_heads`."""
    scores = []
    for gone in range(len(order) + 1):
        with without_heads(model, order[:gone], instead):
            scores.append(score(model))
    return scores


# %% book/14-looking-inside.ipynb · Is attention explanation? · [gradient-times-input]
def gradient_times_input(
    model: Transformer, src: Tensor, tgt: Tensor, targets: Tensor
) -> Tensor:
    """How much each source token matters for what is written, by gradient times input.

    Args:
        model: a model in evaluation mode.
        src, tgt: token ids `[B, S]`, `[B, T]`; `tgt` begins with the start token.
        targets: the tokens to be explained, `[B, T]`.

    Returns:
        `[B, T, S]`, at least 0.

    Source: Shrikumar et al. (2016), section 2; Denil et al. (2014).
    """
    x, mask = model.src_embedding(src).detach().requires_grad_(), model.src_mask(src)
    memory = model.encoder(model.positions(x), mask)
    log_p = model.project(model.decode(tgt, memory, mask)).log_softmax(dim=-1)
    log_p = log_p.gather(-1, targets[..., None]).sum(dim=(0, 2))  # [T], summed
    slopes = [torch.autograd.grad(each, x, retain_graph=True)[0] for each in log_p]
    return (torch.stack(slopes, dim=1) * x[:, None]).sum(dim=-1).abs().detach()


# %% book/14-looking-inside.ipynb · The logit lens · [residual-stream]
class ResidualStream(NamedTuple):
    """The states between the layers of a model, before the first layer and after each."""

    encoder: list[Tensor]  # n_layers + 1 times [B, S, d_model]
    decoder: list[Tensor]  # n_layers + 1 times [B, T, d_model]


def residual_stream(model: Transformer, src: Tensor, tgt: Tensor) -> ResidualStream:
    """Record the states between the layers while a model reads a batch.

    Args:
        model: the model, plain or accelerated.
        src, tgt: token ids `[B, S]`, `[B, T]`; `tgt` begins with the start token.

    Returns:
        the states, before the norm on top of a stack where there is one; with gradients, unless they
        are switched off.
    """
    stream = ResidualStream([], [])
    stacks: tuple[Encoder | Decoder, ...] = (model.encoder, model.decoder)
    with ExitStack() as hooks:
        for states, stack in zip(stream, stacks, strict=True):
            note = lambda module, args, states=states: states.append(args[0])
            for module in _readers(stack):
                hooks.callback(module.register_forward_pre_hook(note).remove)
        model(src, tgt)
    return stream


def _readers(stack: Encoder | Decoder) -> list[nn.Module]:
    # The modules that read the stream between layers, in order; the last is the norm on top.
    return [*stack.layers, stack.norm]


# %% book/14-looking-inside.ipynb · The logit lens · [logit-lens]
@torch.no_grad()
def logit_lens(model: Transformer, src: Tensor, tgt: Tensor) -> Tensor:
    """The logits after each decoder layer, `[n_layers + 1, B, T, V]`,
    from `src` `[B, S]` and `tgt` `[B, T]`; the last ones are the model's own.

    Source: nostalgebraist (2020).
    """
    states = residual_stream(model, src, tgt).decoder
    return torch.stack([model.project(model.decoder.norm(state)) for state in states])


# %% book/14-looking-inside.ipynb · Probing a vector · [linear-probe]
def linear_probe(
    x: Tensor, labels: Tensor, ridge: float = 10.0
) -> tuple[Tensor, Tensor]:
    """Fit linear functions that each tell two classes apart, by ridge regression.

    Args:
        x: vectors `[N, d]`.
        labels: `torch.bool` `[N]`, or `[N, K]` for K functions at once.
        ridge: the penalty λ on the squared weights.

    Returns:
        weights `[d]` or `[d, K]`, and an offset or K of them:
        `x @ weights + offset > 0` where it seems true.

    Source: Hoerl and Kennard (1970), equation 2.1.
    """
    y = 2.0 * labels.to(x.dtype) - 1
    mean, middle = x.mean(dim=0), y.mean(dim=0)
    centered = x - mean
    penalty = ridge * torch.eye(x.size(1), dtype=x.dtype, device=x.device)
    products = centered.T @ centered + penalty
    weights = torch.linalg.solve(products, centered.T @ (y - middle))
    return weights, middle - mean @ weights


# %% book/14-looking-inside.ipynb · Activation patching · [patched]
@contextmanager
def patched(
    stack: Encoder | Decoder, depth: int, position: int, vectors: Tensor
) -> Iterator[None]:
    """Put another vector in the place of one state between the layers, for a while.

    Args:
        stack: the encoder or decoder of a plain model.
        depth: how many layers the state has passed, from 0 to n_layers.
        position: of the state in its sequence.
        vectors: what to put there, `[d_model]`, or `[B, d_model]` for each sentence.

    Source: Vig et al. (2020); Meng et al. (2022), section 2.1.
    """

    def put(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        x = args[0].clone()
        x[:, position] = vectors
        return x, *args[1:]

    handle = _readers(stack)[depth].register_forward_pre_hook(put)
    try:
        yield
    finally:
        handle.remove()
