"""What every engine is given: model sizes, batches of random tokens, and the work they need by formula."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from transformer import TransformerConfig, pad
from transformer.language.batches import batch_cuts

SHORTEST, LONGEST = 5, 40  # target tokens of a sentence, the start token not counted

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Size:
    """A model size, and how it is trained."""

    name: str
    config: TransformerConfig
    smoothing: float = 0.1
    clip_norm: float = 1.0


SIZES = {
    "b": Size("b", TransformerConfig(8000, 8000, d_model=256, n_heads=4, n_layers=4, d_ff=1024)),
    "base": Size("base", TransformerConfig(8000, 8000)),
}


def _sentence(config: TransformerConfig, length: int, generator: torch.Generator) -> list[int]:
    """Random tokens, none of them special."""
    first = 1 + max(config.pad_id, config.bos_id, config.eos_id)
    vocab_size = min(config.src_vocab_size, config.tgt_vocab_size)
    return torch.randint(first, vocab_size, (length,), generator=generator).tolist()


def sentence_batches(
    config: TransformerConfig, target_tokens: int, n_batches: int, seed: int = 0
) -> list[Batch]:
    """Batches as a loader that sorts by length makes them.

    Their lengths are spread evenly over `SHORTEST` to `LONGEST`; within a batch a sentence has L or L − 1
    tokens, on each side, and the first one L on both. A batch has about `target_tokens`, padding included:
    pairs of sources `[B, L]` and targets `[B, L + 1]`, which begin with the start token.
    """
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for number in range(n_batches):
        longest = SHORTEST + round((LONGEST - SHORTEST) * (number + 0.5) / n_batches)
        rows = max(1, target_tokens // longest)
        shorter = torch.randint(2, (2, rows), generator=generator)
        shorter[:, 0] = 0
        lengths = (longest - shorter).tolist()
        sources = [_sentence(config, length, generator) for length in lengths[0]]
        targets = [[config.bos_id, *_sentence(config, length, generator)] for length in lengths[1]]
        batches.append((pad(sources, config.pad_id), pad(targets, config.pad_id)))
    return batches


def shuffled_batches(
    config: TransformerConfig, batches: list[Batch], target_tokens: int, seed: int = 0
) -> list[Batch]:
    """The same sentences in random order, as a loader that looks at no length cuts them into batches of at
    most `target_tokens`, padding included."""
    pairs = [
        tuple(ids[ids != config.pad_id].tolist() for ids in pair) for batch in batches for pair in zip(*batch)
    ]
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(seed))
    pairs = [pairs[place] for place in order.tolist()]
    cuts = batch_cuts([len(tgt) - 1 for _, tgt in pairs], target_tokens)  # the start token is not counted
    return [
        (pad([src for src, _ in group], config.pad_id), pad([tgt for _, tgt in group], config.pad_id))
        for group in (pairs[cut] for cut in cuts)
    ]


def decoding_sources(config: TransformerConfig, n_sentences: int, seed: int = 0) -> Tensor:
    """Sources of 16 to 24 tokens to translate, longest first `[n_sentences, 24]`."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [24 - 8 * row // n_sentences for row in range(n_sentences)]
    return pad([_sentence(config, length, generator) for length in lengths], config.pad_id)


def token_counts(batches: list[Batch], pad_id: int) -> dict[str, int]:
    """Real tokens, padding not counted: `"source"`, and `"target"`, the ones to be predicted."""
    source = sum(int((src != pad_id).sum()) for src, _ in batches)
    target = sum(int((tgt[:, 1:] != pad_id).sum()) for _, tgt in batches)
    return {"source": source, "target": target}


def forward_flops(config: TransformerConfig, src_length: int, tgt_length: int) -> dict[str, int]:
    """The useful floating-point operations of reading one sentence pair and predicting its target.

    A multiplication and an addition are two. Only matrix products count, only real tokens, and of the
    decoder's attention to itself only what causality leaves.

    Args:
        config: of the model.
        src_length: source tokens S.
        tgt_length: target tokens T to be predicted.

    Returns:
        `"linear"`: of products with weights; `"attention"`: of scores and weighted sums.
    """
    d_model, S, T = config.d_model, src_length, tgt_length
    square, feed_forward = d_model**2, 2 * d_model * config.d_ff
    encoder = S * (4 * square + feed_forward)
    # The attention to the source makes queries and output from the target, keys and values from the source.
    decoder = T * (6 * square + feed_forward) + S * 2 * square
    reads, writes = config.depths
    linear = reads * encoder + writes * decoder + T * d_model * config.tgt_vocab_size
    # Pairs of a query and a key that it may attend to.
    pairs = reads * S * S + writes * (T * (T + 1) // 2 + T * S)
    return {"linear": 2 * linear, "attention": 2 * 2 * d_model * pairs}


def training_flops(config: TransformerConfig, batches: list[Batch]) -> int:
    """The useful operations of a training step on each batch.

    The backward pass needs two products for each of the forward pass: for the inputs and for the weights.
    """
    total = 0
    for src, tgt in batches:
        for source, target in zip(src, tgt[:, 1:]):
            lengths = int((source != config.pad_id).sum()), int((target != config.pad_id).sum())
            total += 3 * sum(forward_flops(config, *lengths).values())
    return total
