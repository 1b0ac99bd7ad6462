"""transformer.decoding, from book/08-decoding.ipynb, "Decoding".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = [
    "DecoderState", "decoder_state", "greedy_search", "check_search", "check_numbers", "length_norm",
    "BeamResult", "keep_best", "best_continuations", "merge_hypotheses", "extend_beam", "check_beam",
    "beam_search",
]


# %% book/08-decoding.ipynb · The KV cache · [decoding-imports]
from functools import singledispatch
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from transformer.attention import KeyValueCache
from transformer.model import Transformer, TransformerConfig
from transformer.training import evaluating
from transformer.validation import check_ids, check_number, check_positions, check_searched, check_size


# %% book/08-decoding.ipynb · The KV cache · [decoder-state]
class DecoderState:
    """What a search asks of a model: which tokens may follow those it has read.

    Every sentence has `beam_size` rows, and every row a beginning of its own.

    Args:
        model: the model, in evaluation mode.
        src: source token ids `[B, S]`.
        beam_size: number K of rows for each sentence.

    Attributes:
        look_every: steps between two looks at which sentences have ended.
    """

    look_every: int = 1  # on a GPU, looking is waiting

    def __init__(self, model: Transformer, src: Tensor, beam_size: int = 1) -> None:
        self.model = model
        self.cache = KeyValueCache()
        memory, mask = model.encode(src), model.src_mask(src)
        self.memory = memory.repeat_interleave(beam_size, dim=0)
        self.mask = mask.repeat_interleave(beam_size, dim=0)

    def step(self, last: Tensor) -> Tensor:
        """Read `last` `[N]`, a token in every row; return the next logits `[N, V]`."""
        hidden = self.model.decode(last[:, None], self.memory, self.mask, self.cache)
        return self.model.project(hidden[:, -1])

    def keep(self, rows: Tensor) -> None:
        """Go on with the rows `rows` `[N]`, in that order, each as often as named."""
        self.memory, self.mask = self.memory[rows], self.mask[rows]
        self.cache.reorder(rows)


@singledispatch
def decoder_state(model: Transformer, src: Tensor, beam_size: int = 1) -> DecoderState:
    """The `DecoderState` of `src`, `beam_size` rows each, of the kind `model` has."""
    return DecoderState(model, src, beam_size)


# %% book/08-decoding.ipynb · The KV cache · [greedy-search]
@torch.no_grad()
def greedy_search(model: Transformer, src: Tensor, max_length: int) -> Tensor:
    """Take the most probable token at every step.

    Args:
        model: the model; dropout is off while it searches.
        src: source token ids `[B, S]`.
        max_length: the most tokens to generate, the end token included.

    Returns:
        token ids `[B, L]`, L ≤ max_length: no start token, only padding after the end.

    Raises:
        TypeError, ValueError, IndexError: `model` lacks what a search needs, or gives
            NaN; `src` is not `torch.long` `[B, S]`, has unknown tokens, or is too long.

    Example:
        >>> from transformer import load_toy_model  # reverses digits
        >>> greedy_search(load_toy_model(), torch.arange(10)[None], max_length=10)
        tensor([[9, 8, 7, 6, 5, 4, 3, 2, 1, 0]])
    """
    check_search(model, src, max_length)
    config, rows = model.config, torch.arange(len(src), device=src.device)
    tokens = src.new_full((len(src), max_length), config.pad_id)
    last = src.new_full((len(src),), config.bos_id)
    active = torch.ones_like(last, dtype=torch.bool)
    length, broken = rows.new_ones(()), active.new_zeros(())
    with evaluating(model):
        state = decoder_state(model, src)
        for step in range(1, max_length + 1):
            logits = state.step(last)
            last = logits.argmax(-1)  # of a NaN, where there is one
            broken |= (logits.gather(1, last[:, None]).isnan()[:, 0] & active).any()
            last = last.masked_fill(~active, config.pad_id)
            tokens[rows, step - 1] = last
            active = active & (last != config.eos_id)
            length = length + active.any()
            left = active.nonzero()[:, 0] if step % state.look_every == 0 else rows
            if len(left) == 0:
                break
            if len(left) < len(rows):
                rows, last, active = rows[left], last[left], active[left]
                state.keep(left)
    check_numbers(broken)
    return tokens[:, :length]


# %% book/08-decoding.ipynb · The KV cache · [check-search]
def check_search(model: Transformer, src: Tensor, max_length: int) -> None:
    """Check the arguments of a search before it begins, as `greedy_search` says."""
    check_searched(model)
    check_ids("src", src, model.config.src_vocab_size, always=True)
    check_size(max_length=max_length)
    longest = model.config.max_length
    check_positions("src", src.size(1), longest)
    if max_length > longest:
        raise ValueError(f"max_length must be at most the model's {longest}, but is {max_length}")


def check_numbers(broken: Tensor) -> None:
    """Refuse a model with a NaN among its logits, which `broken` tells (`ValueError`)."""
    if broken:
        raise ValueError("model must give numbers for logits, but gives NaN")


# %% book/08-decoding.ipynb · The length penalty · [length-norm]
def length_norm(length: int, alpha: float) -> float:
    """The length penalty ((5 + length) / 6)^alpha, which divides log-probabilities.

    The length counts the end token; the larger alpha, the longer the translations.

    Source: Wu et al. (2016), equation 14.
    """
    return ((5 + length) / 6) ** alpha


# %% book/08-decoding.ipynb · With tensors · [beam-parts]
class BeamResult(NamedTuple):
    """K hypotheses for each of B sentences; those of `beam_search` come best first."""

    tokens: Tensor  # [B, K, L], torch.long: no start token, only padding after the end token
    scores: Tensor  # [B, K]: log-probability over length penalty; -inf for an absent hypothesis


def keep_best(scores: Tensor, tokens: Tensor, beam_size: int) -> BeamResult:
    """The `beam_size` best of scored hypotheses, `scores` `[B, N]`, `tokens` `[B, N, L]`, sorted."""
    scores, index = scores.topk(beam_size, dim=1)
    return BeamResult(_rows(tokens, index), scores)


def _rows(tokens: Tensor, index: Tensor) -> Tensor:
    # Row index[b, n] of tokens[b], for all b and n: [B, K, L], [B, N] -> [B, N, L].
    return tokens.gather(1, index[:, :, None].expand(-1, -1, tokens.size(2)))


# %% book/08-decoding.ipynb · With tensors · [beam-continuations]
def best_continuations(alive: BeamResult, log_probs: Tensor) -> tuple[BeamResult, Tensor]:
    """The 2K best ways to add one token to K beginnings `[B, K, t]`, whose scores are log-probabilities.

    Args:
        log_probs: of every next token after every beginning, `[B, K, V]`.

    Returns:
        the longer beginnings `[B, 2K, t + 1]`, best first (fewer where there are not as many), and
        which of the K each of them continues `[B, 2K]`.
    """
    beam_size, vocab_size = log_probs.shape[1:]
    candidates = (alive.scores[:, :, None] + log_probs).flatten(1)  # [B, K·V]
    scores, index = candidates.topk(min(2 * beam_size, candidates.size(1)), dim=1)
    origin, token = index // vocab_size, index % vocab_size
    tokens = torch.cat([_rows(alive.tokens, origin), token[:, :, None]], dim=2)
    return BeamResult(tokens, scores), origin


def merge_hypotheses(best: BeamResult, new: BeamResult, pad_id: int) -> BeamResult:
    """The best K of K hypotheses `[B, K, L]` and some new ones `[B, N, M]`, M ≥ L: `[B, K, M]`, sorted."""
    padded = F.pad(best.tokens, (0, new.tokens.size(2) - best.tokens.size(2)), value=pad_id)
    scores = torch.cat([best.scores, new.scores], dim=1)  # [B, K + N]
    return keep_best(scores, torch.cat([padded, new.tokens], dim=1), best.scores.size(1))


# %% book/08-decoding.ipynb · With tensors · [extend-beam]
def extend_beam(state: DecoderState, last: Tensor, alive: BeamResult) -> tuple[BeamResult, Tensor]:
    """Read `last` `[B·K]`, the last token of every beginning; return their `best_continuations`."""
    log_probs = state.step(last).log_softmax(-1, dtype=alive.scores.dtype)  # [B·K, V]
    return best_continuations(alive, log_probs.unflatten(0, alive.scores.shape))


# %% book/08-decoding.ipynb · With tensors · [beam-finished]
def _finalize(
    ended: BeamResult, candidates: BeamResult, origin: Tensor, norm: float, config: TransformerConfig
) -> tuple[BeamResult, BeamResult, Tensor]:
    # Move what ends among the best K of 2K candidates to the finished; of the others, the best K go on.
    beam_size = ended.scores.size(1)
    ends = candidates.tokens[:, :, -1] == config.eos_id  # [B, 2K]
    scores = candidates.scores.masked_fill(~ends, -torch.inf)[:, :beam_size] / norm
    new = BeamResult(candidates.tokens[:, :beam_size], scores)
    ended = merge_hypotheses(ended, new, config.pad_id)
    scores, order = candidates.scores.masked_fill(ends, -torch.inf).topk(beam_size, dim=1)
    return ended, BeamResult(_rows(candidates.tokens, order), scores), origin.gather(1, order)


# %% book/08-decoding.ipynb · With tensors · [beam-start]
def _start(
    state: DecoderState, src: Tensor, beam_size: int, max_length: int, pad_id: int
) -> tuple[BeamResult, BeamResult, BeamResult]:
    # No result, nothing finished, and one empty beginning; K equal ones would stay equal.
    tokens = src.new_full((len(src), beam_size, max_length), pad_id)
    dtype = torch.promote_types(state.memory.dtype, torch.float32)
    scores = torch.full(tokens.shape[:2], -torch.inf, dtype=dtype, device=src.device)
    ended, alive = (BeamResult(tokens[:, :, :0], scores.clone()) for _ in range(2))
    alive.scores[:, 0] = 0.0
    return BeamResult(tokens, scores), ended, alive


# %% book/08-decoding.ipynb · With tensors · [write-result]
def _write(result: BeamResult, sentences: Tensor, hypotheses: BeamResult) -> None:
    result.tokens[sentences, :, : hypotheses.tokens.size(2)] = hypotheses.tokens
    result.scores[sentences] = hypotheses.scores


# %% book/08-decoding.ipynb · With tensors · [beam-loop]
def _search(
    state: DecoderState, src: Tensor, beam_size: int, alpha: float, max_length: int,
    config: TransformerConfig,
) -> BeamResult:
    result, ended, alive = _start(state, src, beam_size, max_length, config.pad_id)
    last = src.new_full((len(src) * beam_size,), config.bos_id)
    sentences = torch.arange(len(src), device=src.device)  # in the batch
    first_row = sentences[:, None] * beam_size  # [B, 1]
    written = sentences.new_ones(())  # tokens
    for length in range(1, max_length + 1):
        candidates, origin = extend_beam(state, last, alive)  # [B, 2K, length], [B, 2K]
        norm = length_norm(length, alpha)
        ended, alive, origin = _finalize(ended, candidates, origin, norm, config)
        rows = first_row[: len(origin)] + origin  # of the state
        active = (ended.scores == -torch.inf).any(dim=1)
        active = active & (alive.scores != -torch.inf).any(dim=1)
        written = written + active.any()
        alive.scores.masked_fill_(~active[:, None], -torch.inf)  # what is done stays
        look = length % state.look_every == 0 or length == max_length
        left = active.nonzero()[:, 0] if look else rows
        if len(left) < len(rows):
            _write(result, sentences, ended)
            sentences, rows = sentences[left], rows[left]
            ended = BeamResult(*(x[left] for x in ended))
            alive = BeamResult(*(x[left] for x in alive))
        if len(sentences) == 0:
            break
        state.keep(rows.flatten())
        last = alive.tokens[:, :, -1].flatten()
    alive = BeamResult(alive.tokens, alive.scores / norm)
    _write(result, sentences, merge_hypotheses(ended, alive, config.pad_id))
    return BeamResult(result.tokens[:, :, :written], result.scores)


# %% book/08-decoding.ipynb · With tensors · [check-beam]
def check_beam(beam_size: int, length_penalty: float) -> None:
    """Check the settings of a beam search, as `beam_search` says."""
    check_size(beam_size=beam_size)
    check_number(length_penalty=length_penalty)
    if beam_size > 100:
        raise ValueError(f"beam_size must be at most 100, but is {beam_size}")
    if length_penalty > 10:
        raise ValueError(f"length_penalty must be at most 10, but is {length_penalty}")


# %% book/08-decoding.ipynb · With tensors · [beam-search]
@torch.no_grad()
def beam_search(
    model: Transformer, src: Tensor, beam_size: int = 4, length_penalty: float = 0.6,
    max_length: int | None = None,
) -> BeamResult:
    """Follow the `beam_size` most probable beginnings, and rank the hypotheses that they lead to.

    Args:
        model: the model; dropout is off while it searches.
        src: source token ids `[B, S]`; apart from rounding, the rest of the batch plays no part.
        beam_size: number K of beginnings followed, from 1 to 100; 1 is greedy search.
        length_penalty: the exponent of `length_norm`, from 0 to 10.
        max_length: the most tokens to generate, the end token included; `None` for 128, or for the
            model's own bound where that is less.

    Returns:
        the K best hypotheses of every sentence with their scores, unfinished ones among them.

    Raises:
        TypeError, ValueError, IndexError: as in `greedy_search`, or a setting is out of its range.

    Source: Wu et al. (2016), section 7.
    """
    check_search(model, src, 1 if max_length is None else max_length)
    check_beam(beam_size, length_penalty)
    max_length = min(128, model.config.max_length) if max_length is None else max_length
    with evaluating(model):
        state = decoder_state(model, src, beam_size)
        best = _search(state, src, beam_size, length_penalty, max_length, model.config)
    check_numbers(best.scores.isnan().any())
    absent = (best.scores == -torch.inf)[:, :, None]
    return BeamResult(best.tokens.masked_fill(absent, model.config.pad_id), best.scores)
