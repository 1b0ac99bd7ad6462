"""transformer.modern.generate, from book/15-since-2017.ipynb, "Since 2017".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = [
    "most_probable", "generate", "Draw", "random_draw", "accept", "RewindableCache", "probabilities",
    "speculative_decoding",
]


# %% book/15-since-2017.ipynb · The whole model · [generate]
from collections.abc import Callable

import torch
from torch import Tensor

from transformer.attention import KeyValueCache
from transformer.modern.language_model import LanguageModel
from transformer.training import evaluating
from transformer.validation import check_choice, check_ids, check_size


def most_probable(logits: Tensor) -> Tensor:
    """The token with the largest of the logits `[..., V]`."""
    return logits.argmax(-1)


@torch.no_grad()
def generate(
    model: LanguageModel,
    prompt: Tensor,
    n_tokens: int,
    choose: Callable[[Tensor], Tensor] = most_probable,
    eos_id: int | None = None,
) -> Tensor:
    """Continue sequences token by token, with a cache.

    Args:
        model: the model.
        prompt: token ids `[B, T]`, at least one each.
        n_tokens: how many tokens to add, at most.
        choose: which token follows, `[B]`, from logits `[B, V]`.
        eos_id: the token that ends a text, and then fills its row; `None`: no text ends.

    Returns:
        the new token ids `[B, L]`; L is `n_tokens`, or less where all texts have ended.

    Raises:
        TypeError, ValueError, IndexError: as in `LanguageModel.forward`; the prompt is empty.
    """
    check_ids("prompt", prompt, model.config.vocab_size, always=True)
    check_size(n_tokens=n_tokens, prompt_length=prompt.size(1))
    tokens, cache = prompt, KeyValueCache()
    ended = torch.zeros(len(prompt), dtype=torch.bool, device=prompt.device)
    with evaluating(model):
        for _ in range(n_tokens):
            logits = model(tokens[:, cache.length :], cache=cache)[:, -1]  # [B, V]
            chosen = choose(logits)
            if eos_id is not None:
                chosen = chosen.masked_fill(ended, eos_id)
                ended = chosen == eos_id
            tokens = torch.cat([tokens, chosen[:, None]], dim=1)
            if ended.all():
                break
    return tokens[:, prompt.size(1) :]


Draw = Callable[[Tensor], int]


def random_draw(probabilities: Tensor) -> int:
    """A random index, from probabilities `[V]`."""
    return int(torch.multinomial(probabilities, 1))


# %% book/15-since-2017.ipynb · Speculative decoding · [accept]
def accept(
    proposed: list[int],
    q: Tensor,
    p: Tensor,
    draw: Draw = random_draw,
) -> list[int]:
    """Keep guesses up to the first refusal; the distribution is the large model's.

    Args:
        proposed: n tokens, each drawn from its row of `q`.
        q: the small model's probabilities `[n, V]`.
        p: the large model's `[n + 1, V]`, those after the last proposed token included.
        draw: how an index is drawn.

    Returns:
        the tokens that are kept, and one more.

    Source: Leviathan et al. (2023), algorithm 1.
    """
    for t, token in enumerate(proposed):
        kept = min(1.0, float(p[t, token] / q[t, token]))
        if not draw(torch.tensor([1 - kept, kept], dtype=p.dtype)):
            # Through rounding alone, all could be 0.
            rest = (p[t] - q[t]).clamp(min=torch.finfo(p.dtype).tiny)
            return [*proposed[:t], draw(rest / rest.sum())]
    return [*proposed, draw(p[-1])]


# %% book/15-since-2017.ipynb · Speculative decoding · [speculative-decoding]
class RewindableCache(KeyValueCache):
    """A `KeyValueCache` that can forget the latest positions."""

    def rewind(self, length: int) -> None:
        """Keep only the first `length` positions, where there are more."""
        self.length = min(self.length, length)
        for attention, (room, _) in self._grown.items():
            self._grown[attention] = room, self.length


def probabilities(logits: Tensor) -> Tensor:
    """The probabilities `[..., V]` that a model's logits `[..., V]` stand for."""
    return logits.softmax(-1)


@torch.no_grad()
def speculative_decoding(
    model: LanguageModel,
    draft: LanguageModel,
    prompt: Tensor,
    n_tokens: int,
    n_ahead: int = 4,
    distribution: Callable[[Tensor], Tensor] = probabilities,
    draw: Draw = random_draw,
) -> Tensor:
    """Continue a sequence as `model` would, which only checks what a smaller model guesses.

    Args:
        model: the model whose distribution the result has.
        draft: the model that guesses, with the same vocabulary.
        prompt: token ids `[1, T]`, at least one.
        n_tokens: how many tokens to add.
        n_ahead: how many tokens are guessed before each check.
        distribution: the probabilities `[..., V]` to sample from, of logits `[..., V]`.
        draw: how an index is drawn from probabilities `[V]`.

    Returns:
        the new token ids `[1, n_tokens]`.

    Raises:
        TypeError, ValueError, IndexError: as in `generate`; the prompt has more than one row.

    Source: Leviathan et al. (2023); Chen et al. (2023).
    """
    check_ids("prompt", prompt, model.config.vocab_size, always=True)
    check_choice([1], rows_of_prompt=len(prompt))
    check_size(n_tokens=n_tokens, n_ahead=n_ahead, prompt_length=prompt.size(1))
    tokens, known, caches = prompt[0].tolist(), prompt.size(1), (RewindableCache(), RewindableCache())

    def read(reader: LanguageModel, cache: RewindableCache, tokens: list[int]) -> Tensor:
        unread = torch.tensor([tokens[cache.length :]], device=prompt.device)
        return distribution(reader(unread, cache=cache)[0])  # [T, V]

    with evaluating(model), evaluating(draft):
        while len(tokens) < known + n_tokens:
            guessed, q = list(tokens), []
            for _ in range(n_ahead):
                q.append(read(draft, caches[1], guessed)[-1])
                guessed.append(draw(q[-1]))
            p = read(model, caches[0], guessed)[-n_ahead - 1 :]  # [n_ahead + 1, V]
            tokens += accept(guessed[len(tokens) :], torch.stack(q), p, draw)
            for cache in caches:
                cache.rewind(len(tokens) - 1)
    return prompt.new_tensor([tokens[known : known + n_tokens]])
