"""transformer.decoding, from book/08-decoding.ipynb, "Decoding".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = [
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


# %% book/08-decoding.ipynb · Nothing twice · [greedy-search]
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer.model import DecoderCache, Transformer
from transformer.training import evaluating
from transformer.validation import check_ids, check_number, check_size, check_type


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
    with evaluating(model):
        memory, mask = _read_source(model, src)
        cache = DecoderCache(config.n_layers)
        tokens = src.new_full((src.size(0), max_length), config.pad_id)  # [B, max_length]
        sentences = torch.arange(src.size(0), device=src.device)  # that have not ended
        last = src.new_full(sentences.shape, config.bos_id)
        for step in range(max_length):
            hidden = model.decode(last[:, None], memory, mask, cache)  # [sentences, 1, d_model]
            last = model.project(hidden[:, -1]).argmax(-1)
            tokens[sentences, step] = last
            going = (last != config.eos_id).nonzero()[:, 0]
            if len(going) == 0:
                break
            if len(going) < len(sentences):
                sentences, last, memory, mask = _take(going, sentences, last, memory, mask)
                cache.reorder(going)
    return tokens[:, : step + 1]


def _read_source(model: Transformer, src: Tensor) -> tuple[Tensor, Tensor | None]:
    # The memory and its mask, or None for a mask that hides nothing: a look now saves work later.
    mask = model.src_mask(src)
    return model.encode(src), None if mask.all() else mask


def _take(rows: Tensor, *tensors: Tensor | None) -> list[Tensor | None]:
    return [None if tensor is None else tensor[rows] for tensor in tensors]


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
    max_length: int = 128,
) -> BeamResult:
    """Follow the `beam_size` most probable beginnings, and rank what they end as.

    A hypothesis that ends among the K best candidates of a step is finished. A sentence's search
    stops when K are, or at `max_length`, where the unfinished ones are ranked with the finished.
    What else is in the batch plays no part.

    Args:
        model: the model; dropout is off while it searches.
        src: source token ids `[B, S]`.
        beam_size: number K of beginnings followed; 1 is greedy search.
        length_penalty: the exponent of `length_norm`, at least 0.
        max_length: the most tokens to generate, the end token included.

    Returns:
        the K best hypotheses of every sentence with their scores.

    Raises:
        TypeError, ValueError, IndexError: as in `check_search`; `beam_size` is below 1, or
            `length_penalty` negative or not finite.

    Source: Wu et al. (2016), section 7.
    """
    check_search(model, src, max_length)
    check_size(beam_size=beam_size)
    check_number(length_penalty=length_penalty)
    config, batch, absent = model.config, src.size(0), -torch.inf
    with evaluating(model):
        memory, mask = _read_source(model, src)  # [B, S, d_model], [B, 1, 1, S]
        cache = DecoderCache(config.n_layers)
        dtype = torch.promote_types(memory.dtype, torch.float32)
        tokens = src.new_full((batch, beam_size, max_length), config.pad_id)
        result = BeamResult(tokens, memory.new_full((batch, beam_size), absent, dtype=dtype))
        ended = BeamResult(tokens[:, :, :0], result.scores)
        alive = BeamResult(tokens[:, :, :0], result.scores.clone())
        alive.scores[:, 0] = 0.0  # one empty beginning; K equal ones would stay equal for ever
        last = src.new_full((batch * beam_size, 1), config.bos_id)
        sentences = torch.arange(batch, device=src.device)  # that are not done
        first_row = sentences[:, None] * beam_size  # [B, 1]
        for length in range(1, max_length + 1):
            logits = model.project(model.decode(last, memory, mask, cache)[:, -1])  # [B·K, V]
            log_probs = logits.log_softmax(-1, dtype=dtype).unflatten(0, (-1, beam_size))
            found, origin = best_continuations(alive, log_probs)  # [B, 2K, length], [B, 2K]
            norm = length_norm(length, length_penalty)
            # Of the 2K, at most K end: so K are left to go on with.
            ends = found.tokens[:, :, -1] == config.eos_id  # [B, 2K]
            ending = found.scores.masked_fill(~ends, absent)[:, :beam_size] / norm
            new = BeamResult(found.tokens[:, :beam_size], ending)
            ended = merge_hypotheses(ended, new, config.pad_id)
            scores, order = found.scores.masked_fill(ends, absent).topk(beam_size, dim=1)
            alive = BeamResult(_rows(found.tokens, order), scores)
            rows = first_row[: len(order)] + origin.gather(1, order)  # [B, K] of the cache
            going = (ended.scores == absent).any(dim=1) & (scores > absent).any(dim=1)  # [B]
            if not going.all():
                _write(result, sentences, ended)
                sentences, rows, memory, mask = _take(going, sentences, rows, memory, mask)
                ended, alive = (BeamResult(*_take(going, *pair)) for pair in (ended, alive))
            if len(sentences) == 0:
                break
            cache.reorder(rows.flatten())
            last = alive.tokens[:, :, -1].reshape(-1, 1)
        alive = BeamResult(alive.tokens, alive.scores / norm)
        _write(result, sentences, merge_hypotheses(ended, alive, config.pad_id))
        tokens = result.tokens[:, :, :length]
    nothing = (result.scores == absent)[:, :, None]
    return BeamResult(tokens.masked_fill(nothing, config.pad_id), result.scores)


def _write(result: BeamResult, sentences: Tensor, hypotheses: BeamResult) -> None:
    result.tokens[sentences, :, : hypotheses.tokens.size(2)] = hypotheses.tokens
    result.scores[sentences] = hypotheses.scores


# %% book/08-decoding.ipynb · Whole numbers and a scale · [quantized-linear]
import copy
import warnings

from transformer.validation import check_features, check_place

_FLOAT = torch.empty(0, dtype=torch.float32, device="cpu")  # what int8 layers take and return
_LEAST = 1e-30  # weights that are all zero need a scale, too


class QuantizedLinear(nn.Module):
    """A dense layer for inference on the CPU: int8 weights, inputs rounded row by row.

    Its packed weights are no parameters, and not in the `state_dict`.

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
        self.packed = torch.ops.quantized.linear_prepack(rounded, None)
        self.bias = None if bias is None else bias.detach().clone()

    def weight(self) -> Tensor:
        """The rounded weights `[d_out, d_in]`, as floating-point numbers."""
        return torch.ops.quantized.linear_unpack(self.packed)[0].dequantize()

    def forward(self, x: Tensor) -> Tensor:
        """Compute x Wᵀ + b for `x` `[..., d_in]`; the result is `[..., d_out]`.

        Raises:
            TypeError: `x` is not float32.
            ValueError: the layer is in training mode, or `x` wants a gradient or is not on the CPU.
        """
        if self.training or (x.requires_grad and torch.is_grad_enabled()):
            raise ValueError("int8 layers have no gradient: call eval(), and train the float model")
        check_place("x", x, _FLOAT, "int8 layers")
        largest = x.abs().amax(dim=-1, keepdim=True)  # [..., 1]; 0 makes 0, whatever 0 / 0 becomes
        product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
        y = product(x / largest, 1 / 63, 64, self.packed).mul_(largest)  # [..., d_out]
        return y if self.bias is None else y.add_(self.bias)


# %% book/08-decoding.ipynb · A whole model · [quantize]
class QuantizedTransformer(Transformer):
    """A Transformer for inference on the CPU, whose dense layers hold int8, as `quantize` makes it."""

    def project(self, hidden: Tensor) -> Tensor:
        """Turn hidden vectors `[..., d_model]` into logits `[..., V]`."""
        return self.output(hidden)


def quantize(model: Transformer) -> QuantizedTransformer:
    """Copy a model for faster inference on the CPU, with int8 weights in its dense layers.

    To keep it, keep the model it was made of: its `state_dict` holds no dense layers.

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
    return quantized.eval()
