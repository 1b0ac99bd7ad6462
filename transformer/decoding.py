"""transformer.decoding, from book/08-decoding.ipynb, "Decoding".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = [
    "Steps",
    "step_linear",
    "LeanSteps",
    "is_plain",
    "search_steps",
    "check_search",
    "greedy_search",
    "BeamResult",
    "keep_best",
    "best_continuations",
    "merge_hypotheses",
    "length_norm",
    "beam_search",
    "QuantizedLinear",
    "QuantizedTransformer",
    "quantize",
]


# %% book/08-decoding.ipynb · Nothing twice · [steps]
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer.attention import (
    Linear,
    MultiHeadAttention,
    fused_attention,
    is_untouched,
    linear_by_onednn,
    onednn_is_faster,
    scaled_dot_product_attention,
)
from transformer.embedding import Dropout, PositionalEncoding, TokenEmbedding
from transformer.layers import (
    ACTIVATIONS,
    DecoderLayer,
    FeedForward,
    LayerNorm,
    Residual,
)
from transformer.model import Decoder, DecoderCache, Transformer
from transformer.training import evaluating
from transformer.validation import check_ids, check_number, check_size, check_type


class Steps:
    """What a search asks of a model: after these tokens, which come next?

    Every sentence has `beam_size` rows in sequence, and every row continues a beginning of its own.

    Args:
        model: the model, in evaluation mode.
        src: source token ids `[B, S]`.
        beam_size: number K of rows for each sentence.
    """

    def __init__(self, model: Transformer, src: Tensor, beam_size: int = 1) -> None:
        self.model, self.beam_size = model, beam_size
        self.memory, mask = model.encode(src), model.src_mask(src)  # [B, S, d_model], [B, 1, 1, S]
        self.mask = None if mask.all() else mask  # a look now spares every step a mask that hides nothing
        self.cache = DecoderCache(model.config.n_layers)
        self.project = model.project

    def __call__(self, last: Tensor) -> Tensor:
        """Read one more token in every row, `[B·K]`; `project` makes logits of what is returned."""
        return self.model.decode(last[:, None], self.memory, self.mask, self.cache)[:, -1]

    def keep(self, rows: Tensor) -> None:
        """Go on with the rows `rows` in that order; a sentence none of whose rows is named, leaves.

        Args:
            rows: `torch.long` `[B'·K]`; K in sequence are rows of one sentence.
        """
        sentences = rows[:: self.beam_size] // self.beam_size
        if len(sentences) < len(self.memory):
            self.keep_sentences(sentences)
        self.cache.reorder(rows)

    def keep_sentences(self, sentences: Tensor) -> None:
        """Go on with the sentences `sentences`, `torch.long` `[B']`; the others have left."""
        self.memory = self.memory[sentences]
        self.mask = None if self.mask is None else self.mask[sentences]


# %% book/08-decoding.ipynb · Without ceremony · [step-linear]
_FEW_ROWS, _MANY_ROWS = 4, 32  # up to here and from here on, MKL is not the best there is
_NARROW, _SMALL = 1024, 2**19  # columns, and weights


def step_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute `torch.nn.functional.linear` for the few rows of a step, the fastest of several ways.

    Args:
        x: `[rows, d_in]`, which wants no gradient.
        weight: `[d_out, d_in]`.
        bias: `[d_out]`, or `None` for none.

    Returns:
        x Wᵀ + b, `[rows, d_out]`.
    """
    rows, d_in = x.shape
    if not onednn_is_faster(x):
        return F.linear(x, weight, bias)
    if rows == 1 and weight.numel() <= _SMALL:  # it writes all W ∘ x down before it sums them up
        product = torch.linalg.vecdot(weight, x)[None]  # [1, d_out]
        return product if bias is None else product + bias
    if rows == 1 or rows >= _MANY_ROWS:
        return linear_by_onednn(x, weight, bias)
    if rows <= _FEW_ROWS and d_in <= _NARROW:
        product = weight @ x.T  # [d_out, rows]
        return product.T if bias is None else product.T + bias
    return F.linear(x, weight, bias)


# %% book/08-decoding.ipynb · Without ceremony · [lean-layer]
_MANY_SENTENCES = 32  # with one query each, the kernel for many queries is not the best


class _LayerStep:
    # A decoder layer for one new position in every row, from the layer's weights.
    def __init__(self, layer: DecoderLayer, memory: Tensor, beam_size: int) -> None:
        own, cross, feed = layer.self_attention, layer.cross_attention, layer.feed_forward
        self.n_heads, self.d_k = own.n_heads, own.d_model // own.n_heads
        self.beam_size = beam_size
        self.qkv, self.own_output = _together(own), _dense(own.w_o)
        self.query, self.cross_output = _dense(cross.w_q), _dense(cross.w_o)
        self.w_1, self.w_2 = _dense(feed.w_1), _dense(feed.w_2)
        self.activation = ACTIVATIONS[feed.activation]
        residuals = layer.self_residual, layer.cross_residual, layer.feed_residual
        self.norms = [_norm(residual.norm) for residual in residuals]
        self.norm_first = layer.self_residual.norm_first
        pair = torch.stack((cross.w_k(memory), cross.w_v(memory)))  # [2, B, S, d_model]
        self.memory = pair.unflatten(3, (self.n_heads, self.d_k)).transpose(2, 3).contiguous()

    # Of vectors x [N, d_model]; keys and values `kept` [2, N, H, t, d_k] end in the new place.
    def __call__(self, x: Tensor, kept: Tensor, mask: Tensor | None) -> Tensor:
        attend = partial(self.attend, kept=kept), partial(self.attend_memory, mask=mask)
        for norm, sublayer in zip(self.norms, (*attend, self.feed), strict=True):
            x = x + sublayer(norm(x)) if self.norm_first else norm(x + sublayer(x))
        return x

    def attend(self, x: Tensor, kept: Tensor) -> Tensor:
        qkv = self.qkv(x).view(len(x), 3, self.n_heads, 1, self.d_k)  # [N, 3, H, 1, d_k]
        kept[:, :, :, -1:] = qkv[:, 1:].transpose(0, 1)
        context = _context(qkv[:, 0], *kept)  # [N, H, 1, d_k]
        return self.own_output(context.flatten(1))

    def attend_memory(self, x: Tensor, mask: Tensor | None) -> Tensor:
        shape = len(x) // self.beam_size, self.beam_size, self.n_heads, self.d_k
        query = self.query(x).view(shape).transpose(1, 2)  # [B, H, K, d_k]
        context = _context(query, *self.memory, mask)
        return self.cross_output(context.transpose(1, 2).reshape(x.shape))

    def feed(self, x: Tensor) -> Tensor:
        return self.w_2(self.activation(self.w_1(x)))


def _context(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    if len(key) >= _MANY_SENTENCES and key.device.type == "cpu":
        return scaled_dot_product_attention(query, key, value, mask)[0]
    if mask is None:
        return F.scaled_dot_product_attention(query, key, value)
    return fused_attention(query, key, value, mask)


def _dense(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    if type(layer) in (Linear, nn.Linear):
        return partial(step_linear, weight=layer.weight, bias=layer.bias)
    return getattr(layer, "product", layer)  # int8 layers have one that does not look at its input


def _together(attention: MultiHeadAttention) -> Callable[[Tensor], Tensor]:
    # Query, key and value in one vector; int8 layers come with one product for all three.
    if hasattr(attention, "w_qkv"):
        return attention.w_qkv.product
    products = [_dense(layer) for layer in (attention.w_q, attention.w_k, attention.w_v)]
    return lambda x: torch.cat([product(x) for product in products], dim=1)


def _norm(norm: nn.Module) -> Callable[[Tensor], Tensor]:
    if type(norm) is not LayerNorm:
        return norm
    shape, weight, bias = (norm.d_model,), norm.weight, norm.bias
    return partial(torch.layer_norm, normalized_shape=shape, weight=weight, bias=bias, eps=norm.eps)


# %% book/08-decoding.ipynb · Without ceremony · [lean-steps]
_ROOM = 16  # for that many tokens at first


class LeanSteps(Steps):
    """The numbers of `Steps`, from the decoder's weights and without the calls of its modules.

    Args:
        model, src, beam_size: as in `Steps`; the model must be one that `is_plain` accepts.
    """

    def __init__(self, model: Transformer, src: Tensor, beam_size: int = 1) -> None:
        super().__init__(model, src, beam_size)
        self.layers = [_LayerStep(layer, self.memory, beam_size) for layer in model.decoder.layers]
        self.norm = _norm(model.decoder.norm)
        if _is_own(model, "project"):
            self.project = partial(step_linear, weight=model.output.weight)
        self.table, self.scale = model.tgt_embedding.weight, model.config.d_model**0.5
        config, rows = model.config, len(src) * beam_size
        shape = (config.n_layers, 2, rows, config.n_heads, _ROOM, config.d_model // config.n_heads)
        self.cache = self.layers[0].memory.new_empty(shape)  # keys and values of all layers
        self.spare, self.length = self.cache[:, :, :0], 0

    def __call__(self, last: Tensor) -> Tensor:
        """Read one more token in every row, `[B·K]`; `project` makes logits of what is returned."""
        position = self.model.positions.table[self.length]  # [d_model]
        x = F.embedding(last, self.table) * self.scale + position  # [B·K, d_model]
        if self.length == self.cache.size(4):
            self.cache = torch.cat((self.cache, torch.empty_like(self.cache)), 4)  # doubled
        self.length += 1
        for layer, kept in zip(self.layers, self.cache[..., : self.length, :], strict=True):
            x = layer(x, kept, self.mask)
        return self.norm(x)

    def keep(self, rows: Tensor) -> None:
        """As in `Steps`, by one copy for all layers, and none where every row stays in its place."""
        sentences = rows[:: self.beam_size] // self.beam_size
        if len(sentences) < len(self.memory):
            self.keep_sentences(sentences)
        elif rows.device.type == "cpu" and torch.equal(rows, torch.arange(len(rows))):
            return
        if self.spare.shape[2:] != self.cache[:, :, : len(rows)].shape[2:]:
            self.spare = torch.empty_like(self.cache[:, :, : len(rows)])
        ordered = torch.index_select(self.cache, 2, rows, out=self.spare)
        self.cache, self.spare = ordered, self.cache

    def keep_sentences(self, sentences: Tensor) -> None:
        """As in `Steps`."""
        super().keep_sentences(sentences)
        for layer in self.layers:
            layer.memory = layer.memory[:, sentences]


_DROPOUTS = {Dropout, nn.Dropout}  # which do nothing in a search; one of another kind might
_PARTS = {Decoder, nn.ModuleList, DecoderLayer, MultiHeadAttention, Residual, FeedForward} | _DROPOUTS
_LEAVES = {"w_q", "w_k", "w_v", "w_qkv", "w_o", "w_1", "w_2", "norm"}  # called, whatever they are


def _is_own(model: nn.Module, method: str) -> bool:
    return getattr(getattr(model, method), "__func__", None) is getattr(Transformer, method)


def is_plain(model: nn.Module) -> bool:
    """Whether a model's decoder is this book's in every part, and nobody listens to its modules."""
    if not isinstance(model, Transformer) or not _is_own(model, "decode"):
        return False
    ends = type(model.positions), type(model.tgt_embedding)
    if ends != (PositionalEncoding, TokenEmbedding):
        return False
    parts = [("", model.positions.dropout), *model.decoder.named_modules()]
    if any(type(part) not in _PARTS and name.split(".")[-1] not in _LEAVES for name, part in parts):
        return False
    wanted = {name: getattr(model.config, name) for name in ("n_heads", "norm_first")}
    if any(getattr(part, name, wanted[name]) != wanted[name] for _, part in parts for name in wanted):
        return False  # a part of the book's kind, but not as the configuration has it
    return all(is_untouched(part) for part in model.modules())


@contextmanager
def search_steps(model: Transformer, src: Tensor, beam_size: int = 1) -> Iterator[Steps]:
    """Whatever a search needs: the model in evaluation mode, no gradients, and its `Steps`.

    Where nobody listens, PyTorch need not even note which tensor is a view of which: a plain model
    takes its steps in inference mode.

    Args:
        model, src, beam_size: as in `Steps`.

    Yields:
        the faster kind of `Steps` that computes what the model does.
    """
    plain = is_plain(model)
    with evaluating(model), torch.inference_mode() if plain else nullcontext():
        yield LeanSteps(model, src, beam_size) if plain else Steps(model, src, beam_size)


# %% book/08-decoding.ipynb · Without ceremony · [greedy-search]
def check_search(model: Transformer, src: Tensor, max_length: int) -> None:
    """Refuse a search that cannot end well, before it begins.

    Args:
        model: the model that is to search.
        src: source token ids `[B, S]`.
        max_length: the most tokens to generate.

    Raises:
        TypeError: `model` is no module, `src` not `torch.long`, or `max_length` not an int.
        ValueError: `src` is not `[B, S]` or longer than the model's `max_length`, or `max_length` is
            not from 1 to that.
        IndexError: a source id is not in the vocabulary.
    """
    check_type(nn.Module, model=model)
    check_ids("src", src, model.config.src_vocab_size, always=True)
    check_size(max_length=max_length)
    longest = model.config.max_length
    if src.size(1) > longest:
        raise ValueError(f"src must have at most {longest} tokens, but has {src.size(1)}")
    if max_length > longest:
        raise ValueError(f"max_length must be at most the model's {longest}, but is {max_length}")


def greedy_search(model: Transformer, src: Tensor, max_length: int) -> Tensor:
    """Take the most probable token at every step.

    Args:
        model: the model; dropout is off while it searches.
        src: source token ids `[B, S]`.
        max_length: the most tokens to generate, the end token included.

    Returns:
        token ids `[B, L]`, L ≤ max_length: no start token, and only padding after an end token.

    Raises:
        TypeError, ValueError, IndexError: as in `check_search`.
    """
    check_search(model, src, max_length)
    config = model.config
    tokens = src.new_full((src.size(0), max_length), config.pad_id)  # [B, max_length]
    with search_steps(model, src) as steps:
        sentences = torch.arange(src.size(0), device=src.device)  # that have not ended
        last = src.new_full(sentences.shape, config.bos_id)
        for step in range(max_length):
            last = steps.project(steps(last)).argmax(-1)  # [sentences]
            tokens[sentences, step] = last
            going = (last != config.eos_id).nonzero()[:, 0]
            if len(going) == 0:
                break
            if len(going) < len(sentences):
                sentences, last = sentences[going], last[going]
                steps.keep(going)
    return tokens[:, : step + 1]


# %% book/08-decoding.ipynb · The same with tensors · [beam-parts]
class BeamResult(NamedTuple):
    """K hypotheses for each of B sentences; those of `beam_search` come best first."""

    tokens: Tensor  # [B, K, L], torch.long: no start token, only padding after the end token
    scores: Tensor  # [B, K]: log-probability over length penalty; -inf for an absent hypothesis


def _check_hypotheses(name: str, tokens: Tensor, scores: Tensor) -> None:
    check_type(Tensor, **{f"the tokens of {name}": tokens, f"the scores of {name}": scores})
    if tokens.dim() != 3 or scores.shape != tokens.shape[:2]:
        given = f"{list(tokens.shape)} and {list(scores.shape)}"
        raise ValueError(f"{name} must have tokens [B, N, L] and scores [B, N], not {given}")


def keep_best(scores: Tensor, tokens: Tensor, beam_size: int) -> tuple[Tensor, Tensor]:
    """The `beam_size` best of scored hypotheses, sorted.

    Args:
        scores: `[B, N]`, N ≥ beam_size.
        tokens: `[B, N, L]`.
        beam_size: number K of hypotheses to keep.

    Returns:
        scores `[B, K]` and tokens `[B, K, L]`.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: the shapes do not belong together, or there are fewer than `beam_size`.
    """
    _check_hypotheses("the hypotheses", tokens, scores)
    check_size(beam_size=beam_size)
    if beam_size > scores.size(1):
        raise ValueError(f"beam_size must be at most {scores.size(1)} of them, but is {beam_size}")
    scores, index = scores.topk(beam_size, dim=1)
    return scores, _rows(tokens, index)


def _rows(tokens: Tensor, index: Tensor) -> Tensor:
    # Row index[b, n] of tokens[b], for all b and n: [B, K, L], [B, N] -> [B, N, L].
    return tokens.gather(1, index[:, :, None].expand(-1, -1, tokens.size(2)))


# %% book/08-decoding.ipynb · The same with tensors · [beam-continuations]
def best_continuations(alive: BeamResult, log_probs: Tensor) -> tuple[BeamResult, Tensor]:
    """The 2K best ways to add one token to K beginnings.

    Args:
        alive: the beginnings, `[B, K, t]`, with log-probabilities for scores.
        log_probs: of every next token after every beginning, `[B, K, V]`.

    Returns:
        the longer beginnings `[B, 2K, t + 1]`, best first (fewer where there are not as many), and
        which of the K each of them continues `[B, 2K]`.

    Raises:
        TypeError: `alive` is no `BeamResult` of tensors, or `log_probs` no tensor.
        ValueError: the shapes do not belong together.
    """
    check_type(BeamResult, alive=alive)
    check_type(Tensor, log_probs=log_probs)
    _check_hypotheses("alive", *alive)
    if log_probs.dim() != 3 or log_probs.shape[:2] != alive.scores.shape:
        wanted, given = list(alive.scores.shape), list(log_probs.shape)
        raise ValueError(f"log_probs must have shape {wanted} and a vocabulary, not {given}")
    beam_size, vocab_size = log_probs.shape[1:]
    candidates = (alive.scores[:, :, None] + log_probs).flatten(1)  # [B, K·V]
    scores, index = candidates.topk(min(2 * beam_size, candidates.size(1)), dim=1)
    origin, token = index // vocab_size, index % vocab_size
    tokens = torch.cat([_rows(alive.tokens, origin), token[:, :, None]], dim=2)
    return BeamResult(tokens, scores), origin


def merge_hypotheses(kept: BeamResult, new: BeamResult, pad_id: int) -> BeamResult:
    """The best K of K hypotheses and some new ones, which are at least as long.

    Args:
        kept: `[B, K, L]`.
        new: `[B, N, M]`, M ≥ L.
        pad_id: fills up the shorter ones.

    Returns:
        `[B, K, M]`, sorted.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: the shapes do not belong together.
    """
    check_type(BeamResult, kept=kept, new=new)
    check_type(int, pad_id=pad_id)
    _check_hypotheses("kept", *kept)
    _check_hypotheses("new", *new)
    if kept.tokens.size(0) != new.tokens.size(0) or kept.tokens.size(2) > new.tokens.size(2):
        given = f"{list(kept.tokens.shape)} and {list(new.tokens.shape)}"
        raise ValueError(f"kept and new must share B, and new be no shorter, not {given}")
    padded = F.pad(kept.tokens, (0, new.tokens.size(2) - kept.tokens.size(2)), value=pad_id)
    scores = torch.cat([kept.scores, new.scores], dim=1)  # [B, K + N]
    tokens = torch.cat([padded, new.tokens], dim=1)  # [B, K + N, M]
    scores, tokens = keep_best(scores, tokens, kept.scores.size(1))
    return BeamResult(tokens, scores)


# %% book/08-decoding.ipynb · The length of a translation · [length-norm]
def length_norm(length: int, alpha: float) -> float:
    """The length penalty ((5 + length) / 6)^alpha, which divides a hypothesis' log-probability.

    Args:
        length: number of tokens, the end token included.
        alpha: 0 for no penalty; the larger, the longer the translations.

    Raises:
        TypeError: `length` is not an int, or `alpha` no number.
        ValueError: `length` is negative, `alpha` is negative or not finite, or the result too large.

    Source: Wu et al. (2016), equation 14.
    """
    check_size(minimum=0, length=length)
    check_number(alpha=alpha)
    try:
        return ((5 + length) / 6) ** alpha
    except OverflowError as error:
        raise ValueError(f"alpha {alpha} is too large for a length of {length}") from error


# %% book/08-decoding.ipynb · The search · [beam-search]
def beam_search(
    model: Transformer,
    src: Tensor,
    beam_size: int = 4,
    length_penalty: float = 0.6,
    max_length: int | None = None,
) -> BeamResult:
    """Follow the `beam_size` most probable beginnings, and rank what they end as.

    A hypothesis that ends among the K best candidates of a step is finished. A sentence's search
    stops when K are, or at `max_length`, where the unfinished ones are ranked with the finished.
    What else is in the batch plays no part, rounding apart.

    Args:
        model: the model; dropout is off while it searches.
        src: source token ids `[B, S]`.
        beam_size: number K of beginnings followed; 1 is greedy search.
        length_penalty: the exponent of `length_norm`, at least 0.
        max_length: the most tokens to generate, the end token included; `None` for 128, or for the
            model's own bound where that is less.

    Returns:
        the K best hypotheses of every sentence with their scores.

    Raises:
        TypeError, ValueError, IndexError: as in `check_search`; `beam_size` is below 1, or
            `length_penalty` negative or not finite.

    Source: Wu et al. (2016), section 7.
    """
    check_type(nn.Module, model=model)
    max_length = min(128, model.config.max_length) if max_length is None else max_length
    check_search(model, src, max_length)
    check_size(beam_size=beam_size)
    check_number(length_penalty=length_penalty)
    config, batch, absent = model.config, src.size(0), -torch.inf
    with search_steps(model, src, beam_size) as steps:
        memory = steps.memory  # [B, S, d_model]
        dtype = torch.promote_types(memory.dtype, torch.float32)
        tokens = src.new_full((batch, beam_size, max_length), config.pad_id)
        result = BeamResult(tokens, memory.new_full((batch, beam_size), absent, dtype=dtype))
        ended = BeamResult(tokens[:, :, :0], result.scores)
        alive = BeamResult(tokens[:, :, :0], result.scores.clone())
        alive.scores[:, 0] = 0.0  # one empty beginning; K equal ones would stay equal for ever
        last = src.new_full((batch * beam_size,), config.bos_id)
        sentences = torch.arange(batch, device=src.device)  # that are not done
        first_row = sentences[:, None] * beam_size  # [B, 1]
        for length in range(1, max_length + 1):
            found, origin = _continue(alive, steps(last), steps.project)  # [B, 2K, length], [B, 2K]
            norm = length_norm(length, length_penalty)
            ends = found.tokens[:, :, -1] == config.eos_id  # [B, 2K]
            if ends.any():  # of the 2K, at most K: so K are left to go on with
                ending = found.scores.masked_fill(~ends, absent)[:, :beam_size] / norm
                new = BeamResult(found.tokens[:, :beam_size], ending)
                ended = merge_hypotheses(ended, new, config.pad_id)
                scores, order = found.scores.masked_fill(ends, absent).topk(beam_size, dim=1)
                alive = BeamResult(_rows(found.tokens, order), scores)
                origin = origin.gather(1, order)
            else:  # the best K go on as they are
                alive = BeamResult(*(x[:, :beam_size] for x in found))
                origin = origin[:, :beam_size]
            rows = first_row[: len(origin)] + origin  # [B, K] of the cache
            going = (ended.scores == absent).any(dim=1) & (alive.scores > absent).any(dim=1)  # [B]
            if not going.all():
                _write(result, sentences, ended)
                sentences, rows = sentences[going], rows[going]
                ended, alive = (BeamResult(*(x[going] for x in pair)) for pair in (ended, alive))
            if len(sentences) == 0:
                break
            steps.keep(rows.flatten())
            last = alive.tokens[:, :, -1].flatten()
        alive = BeamResult(alive.tokens, alive.scores / norm)
        _write(result, sentences, merge_hypotheses(ended, alive, config.pad_id))
        tokens = result.tokens[:, :, :length]
    nothing = (result.scores == absent)[:, :, None]  # out here new tensors are ordinary ones again
    return BeamResult(tokens.masked_fill(nothing, config.pad_id), result.scores.clone())


def _write(result: BeamResult, sentences: Tensor, hypotheses: BeamResult) -> None:
    result.tokens[sentences, :, : hypotheses.tokens.size(2)] = hypotheses.tokens
    result.scores[sentences] = hypotheses.scores


_ROWS = 64  # whose logits stay in the cache of a processor, from the product to the ranking


def _continue(
    alive: BeamResult, hidden: Tensor, project: Callable[[Tensor], Tensor]
) -> tuple[BeamResult, Tensor]:
    # The best continuations of all beginnings, a few sentences at a time.
    batch, beam_size = alive.scores.shape
    n = max(1, _ROWS // beam_size) if hidden.device.type == "cpu" else batch
    parts = []
    for tokens, scores, vectors in zip(
        alive.tokens.split(n), alive.scores.split(n), hidden.split(n * beam_size), strict=True
    ):
        log_probs = project(vectors).log_softmax(-1, dtype=scores.dtype).unflatten(0, (-1, beam_size))
        parts.append(best_continuations(BeamResult(tokens, scores), log_probs))
    if len(parts) == 1:
        return parts[0]
    found, origins = zip(*parts, strict=True)
    tokens, scores = (torch.cat(part) for part in zip(*found, strict=True))
    return BeamResult(tokens, scores), torch.cat(origins)


# %% book/08-decoding.ipynb · Whole numbers and a scale · [quantized-linear]
import copy
import warnings

from transformer.validation import check_features, check_place

_FLOAT = torch.empty(0, dtype=torch.float32, device="cpu")  # what int8 layers take and return
_LEAST = 1e-30  # weights that are all zero need a scale, too


def _product_of_bytes(x: Tensor, packed: torch.ScriptObject) -> Tensor:
    # Inputs from -1 to 1 are rounded to 63rds, and moved by 64 to be positive.
    multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default.op
    return multiply(x, 1 / 63, 64, packed)


def _packed(rounded: Tensor) -> torch.ScriptObject | None:
    # Weights in the order of x86's product of bytes; None where this PyTorch has no such product.
    try:
        packed = torch.ops.quantized.linear_prepack(rounded, None)
        _product_of_bytes(torch.zeros(1, rounded.size(1)), packed)
    except (RuntimeError, AttributeError):
        return None
    return packed


class QuantizedLinear(nn.Module):
    """A dense layer for inference on the CPU: int8 weights, inputs rounded row by row.

    PyTorch has the product of bytes for x86 processors. Elsewhere the same rounded numbers are
    multiplied in float32: the result is the same, memory and time are those of a float layer.
    The weights are no parameters, and not in the `state_dict`.

    Args:
        weight: `[d_out, d_in]`; every output gets a scale of its own.
        bias: `[d_out]`, or `None` for none.

    Raises:
        TypeError: `weight` is no float32 tensor.
        ValueError: `weight` does not have two axes, or does not lie on the CPU.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        check_features("weight", weight, None, rank=2)
        check_place("weight", weight, _FLOAT, "int8 layers")
        scale = weight.detach().abs().amax(dim=1).clamp_min(_LEAST) / 127  # [d_out]
        zero = torch.zeros(len(weight), dtype=torch.long)
        with warnings.catch_warnings():  # PyTorch wants to replace this constructor one day
            warnings.simplefilter("ignore")
            rounded = torch.quantize_per_channel(weight.detach(), scale, zero, 0, torch.qint8)
        self.packed = _packed(rounded)
        self.whole = (rounded.int_repr().float(), scale) if self.packed is None else None
        self.bias = None if bias is None else bias.detach().clone()

    def weight(self) -> Tensor:
        """The rounded weights `[d_out, d_in]`, as floating-point numbers."""
        if self.whole is None:
            return torch.ops.quantized.linear_unpack(self.packed)[0].dequantize()
        whole, scale = self.whole
        return whole * scale[:, None]

    def forward(self, x: Tensor) -> Tensor:
        """Compute x Wᵀ + b for `x` `[..., d_in]`; the result is `[..., d_out]`.

        Raises:
            TypeError: `x` is not float32.
            ValueError: the layer is in training mode, or `x` wants a gradient or is not on the CPU.
        """
        if self.training or (x.requires_grad and torch.is_grad_enabled()):
            raise ValueError("int8 layers have no gradient: call eval(), and train the float model")
        check_place("x", x, _FLOAT, "int8 layers")
        return self.product(x)

    def product(self, x: Tensor) -> Tensor:
        """What `forward` returns, for an `x` that has been checked."""
        scaled = x.abs()  # at first: fresh memory is dear, so the same is used again
        largest = scaled.amax(dim=-1, keepdim=True)  # [..., 1]; 0 makes 0, whatever 0 / 0 becomes
        x = torch.div(x, largest, out=scaled)
        if self.whole is None:
            y = _product_of_bytes(x, self.packed)  # [..., d_out]
        else:  # sums of whole numbers below 2**24 are exact in float32
            whole, scale = self.whole
            y = F.linear(x.nan_to_num_().mul_(63).round_(), whole) * (scale / 63)
        return y.mul_(largest) if self.bias is None else torch.addcmul(self.bias, y, largest, out=y)


# %% book/08-decoding.ipynb · A whole model · [quantize]
class QuantizedTransformer(Transformer):
    """A Transformer for inference on the CPU, whose dense layers hold int8, as `quantize` makes it."""

    def project(self, hidden: Tensor) -> Tensor:
        """Turn hidden vectors `[..., d_model]` into logits `[..., V]`."""
        return self.output(hidden)


def quantize(model: Transformer) -> QuantizedTransformer:
    """Copy a model for faster inference on the CPU, with int8 weights in its dense layers.

    To keep it, keep the model it was made of: its `state_dict` holds no dense layers. Where
    PyTorch has no product of bytes for the processor, a warning says so: the copy rounds as it
    does elsewhere, but is no faster than the model.

    Args:
        model: a model in float32 on the CPU; it stays as it is.

    Returns:
        the copy, in evaluation mode and without gradients. The rounding of a row depends on that
        row alone, so that the rest of a batch still plays no part.

    Raises:
        TypeError: `model` is no `Transformer`, or not in float32.
        ValueError: `model` is not on the CPU.
    """
    check_type(Transformer, model=model)
    quantized = copy.deepcopy(model).requires_grad_(False)
    quantized.__class__ = QuantizedTransformer  # all is kept, but for the way to the logits
    quantized.output = QuantizedLinear(model.output.weight)
    for module in list(quantized.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, QuantizedLinear(child.weight, child.bias))
    for layer in quantized.decoder.layers:
        attention = layer.self_attention
        parts = attention.w_q, attention.w_k, attention.w_v
        biases = None if attention.w_q.bias is None else torch.cat([part.bias for part in parts])
        attention.w_qkv = QuantizedLinear(torch.cat([part.weight() for part in parts]), biases)
    if quantized.output.packed is None:
        why = "this PyTorch has no product of bytes for this processor (it has one for x86)"
        warnings.warn(f"{why}: int8 layers compute in float32, and save nothing", stacklevel=2)
    return quantized.eval()
