"""A user's program: what README and the chapters do with the package, checked by mypy --strict and pyright.

It also runs: `tests/test_types.py` calls `main`. Each annotation below is a promise of the package.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

import transformer
from transformer import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    LayerConfig,
    MultiHeadAttention,
    PositionalEncoding,
    TokenEmbedding,
    Trainer,
    TrainingConfig,
    Transformer,
    TransformerConfig,
    Translator,
    Vocabulary,
    accelerate,
    attention_tap,
    beam_search,
    causal_mask,
    check_model,
    evaluate_loss,
    from_torch,
    greedy_search,
    label_smoothed_cross_entropy,
    noam_rate,
    padding_mask,
    r_drop_loss,
    reversal_batch,
    scaled_dot_product_attention,
    sinusoidal_encoding,
    teacher_forced_loss,
    to_torch,
    token_accuracy,
    toy_config,
)
from transformer.attention import KeyValueCache
from transformer.decoding import BeamResult, DecoderState, decoder_state
from transformer.speed.fast import FastTransformer
from transformer.weights import load_weights, save_weights

Batch = tuple[Tensor, Tensor]


def pieces() -> None:
    """The parts of a model, by themselves."""
    ids: Tensor = torch.tensor([[5, 6, 7, 0]])
    x: Tensor = TokenEmbedding(20, 8)(ids) + sinusoidal_encoding(4, 8)
    x = PositionalEncoding(8, dropout=0.1, max_length=10)(x)
    mask: Tensor = padding_mask(ids) & causal_mask(4)
    context, weights = scaled_dot_product_attention(x, x, x, mask[:, 0])
    output, maps = MultiHeadAttention(8, n_heads=2)(x, x, x, mask, need_weights=True)
    assert context.shape == output.shape == (1, 4, 8) and weights.shape == (1, 4, 4)
    assert maps is not None and maps.shape == (1, 2, 4, 4)


def readme() -> Transformer:
    """The program of the README, shortened."""
    config = TransformerConfig(20, 20, d_model=32, n_heads=4, n_layers=2, d_ff=64)
    model = Transformer(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    src = torch.randint(4, 20, (8, 6))
    tgt = torch.cat([torch.full((8, 1), config.bos_id), src, torch.full((8, 1), config.eos_id)], dim=1)
    logits: Tensor = model(src, tgt[:, :-1])
    loss: Tensor = label_smoothed_cross_entropy(logits, tgt[:, 1:], smoothing=0.1, pad_id=config.pad_id)
    loss.backward()  # type: ignore[no-untyped-call]  # torch has not typed it
    optimizer.step()
    accuracy: float = token_accuracy(logits, tgt[:, 1:]).item()
    found: Tensor = greedy_search(model.eval(), src[:1], max_length=8)
    best: BeamResult = beam_search(model, src[:1], beam_size=4, length_penalty=0.6, max_length=8)
    tokens: Tensor = best.tokens
    scores: Tensor = best.scores
    memory: Tensor = model.encode(src)
    hidden: Tensor = model.decode(tgt, memory, model.src_mask(src))
    shape: torch.Size = model.project(hidden).shape
    print(src[0].tolist(), "->", found[0].tolist(), accuracy, tokens.shape, scores.shape, shape)
    print(model.attention_maps(src, tgt).cross.shape, model(src, tgt).shape)
    return model


def layers() -> None:
    """Layers from a configuration, a cache, and maps by a tap."""
    config = LayerConfig(d_model=8, n_heads=2, d_ff=16, dropout=0.0)
    x = torch.randn(1, 4, 8)
    memory: Tensor = EncoderLayer(config)(x)
    layer, cache = DecoderLayer(config), KeyValueCache()
    with torch.no_grad(), attention_tap(layer) as maps:
        y: Tensor = layer(x[:, :1], memory, cache=cache)
    length: int = cache.length
    weights: Tensor = maps["cross_attention"]
    print(y.shape, length, weights.shape)


def fast(model: Transformer) -> None:
    """The accelerated model is a model: it has a loss, and a state for searches of one's own."""
    other: FastTransformer = accelerate(model)
    src = torch.randint(4, 20, (2, 6))
    batch: Batch = src, torch.cat([torch.full((2, 1), 2), src], dim=1)
    total, count = teacher_forced_loss(other, batch, smoothing=0.1)
    loss: Tensor = total / count
    again: Tensor = r_drop_loss(other.train(), batch, alpha=5.0)[0]
    state: DecoderState = decoder_state(other.eval(), src, 2)
    logits: Tensor = state.step(torch.full((4,), 2))
    state.keep(torch.tensor([1, 0, 2, 3]))
    print(loss.item(), again.item(), logits.shape)


def interchange(model: Transformer) -> None:
    """To torch.nn and back: whoever writes what comes out is believed."""
    encoder, decoder = from_torch(torch.nn.Transformer(8, 2, 1, 1, 16, batch_first=True))
    stacks: tuple[Encoder, Decoder] = encoder, decoder
    theirs: nn.Transformer = to_torch(stacks)
    stack: nn.TransformerEncoder = to_torch(model.encoder)
    back: Encoder = from_torch(stack)
    other: nn.TransformerDecoder = to_torch(model.decoder, batch_first=False)
    other_back: Decoder = from_torch(other)
    layer: EncoderLayer = from_torch(nn.TransformerEncoderLayer(8, 2, 16))
    layer_back: nn.TransformerEncoderLayer = to_torch(layer)
    decoding: DecoderLayer = from_torch(nn.TransformerDecoderLayer(8, 2, 16))
    decoding_back: nn.TransformerDecoderLayer = to_torch(decoding)
    attention: MultiHeadAttention = from_torch(nn.MultiheadAttention(8, 2))
    attention_back: nn.MultiheadAttention = to_torch(attention)
    d_model: int = theirs.d_model + attention_back.embed_dim
    print(d_model, type(back), type(other_back), type(layer_back), type(decoding_back))


def batches(epoch: int) -> Iterator[Batch]:
    """Three batches of the toy task."""
    draw = torch.Generator().manual_seed(epoch)
    return (reversal_batch(4, 5, generator=draw) for _ in range(3))


def training(folder: Path) -> None:
    """A run of two updates, its log, and its weights in a file."""
    config = toy_config(d_model=16, n_heads=2, d_ff=16, n_layers=1)
    trainer = Trainer(
        Transformer(config),
        teacher_forced_loss,
        batches,
        partial(noam_rate, d_model=config.d_model, warmup_steps=2),
        TrainingConfig(steps=2, evaluate_every=1),
        directory=folder / "run",
        evaluate=lambda model: evaluate_loss(model, batches(1)),
    ).fit()
    steps: int = trainer.step
    loss: float = trainer.history[-1]["loss"]
    save_weights(trainer.model, folder / "weights.safetensors")
    load_weights(trainer.model, folder / "weights.safetensors")
    print(steps, loss)


def translating(folder: Path) -> None:
    """The translator that comes with the package."""
    translator = Translator.load(Path(transformer.__file__).parent / "records" / "phrases")
    lines: list[str] = translator.translate(["a menina gosta do gato preto ."], beam_size=2)
    vocabulary: Vocabulary = translator.vocabulary
    ids: list[int] = vocabulary.encode("gato")
    text: str = vocabulary.decode(ids)
    weights: Tensor = translator.align("o gato .").weights
    translator.save(folder / "translator")
    print(lines, text, weights.shape, transformer.__version__)


def main(folder: Path) -> None:
    pieces()
    model = readme()
    layers()
    fast(model)
    interchange(model)
    report = check_model(model, src_vocab_size=20, tgt_vocab_size=20, dropout=True)
    passed: bool = report.passed
    failures: tuple[str, ...] = report.failures
    print(report, passed, failures)
    training(folder)
    translating(folder)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as path:
        main(Path(path))
