"""The engines: this package, torch.nn.Transformer and Hugging Face Marian, with the same weights and loss."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import transformer
from benchmarks.measure import CPU
from benchmarks.workload import Batch, Size
from transformer import (
    Trainer,
    TrainingConfig,
    Transformer,
    TransformerConfig,
    accelerate,
    sinusoidal_encoding,
    teacher_forced_loss,
    to_torch,
)  # fmt: skip
from transformer.exchange.hugging_face import to_marian
from transformer.runs.loop import autocast

LEARNING_RATE = 1e-4
HAS_MARIAN = find_spec("transformers") is not None


def our_model(config: TransformerConfig, seed: int = 0) -> Transformer:
    """An untrained model of this package, whose weights the peers get as well.

    The end token's row in the table of embeddings is zero. So is its logit, always, while the highest of
    thousands of other logits is well above: no search ever ends before its last step.
    """
    torch.manual_seed(seed)
    model = Transformer(config)
    with torch.no_grad():
        model.output.weight[config.eos_id] = 0.0
    return model


class TorchTransformer(nn.Module):
    """torch.nn.Transformer with embeddings, positions and a tied output, as its users write them.

    Args:
        model: ours; its configuration and weights are taken.
        inner_dropout: whether dropout stays on attention weights and inside the position-wise network, where
            torch.nn's constructor puts it and the paper has none.
    """

    def __init__(self, model: Transformer, inner_dropout: bool = True) -> None:
        super().__init__()
        self.config = config = model.config
        self.embedding = nn.Embedding(config.src_vocab_size, config.d_model, config.pad_id)
        table = sinusoidal_encoding(config.max_length, config.d_model)
        self.register_buffer("table", table, persistent=False)
        self.dropout = nn.Dropout(config.dropout)
        self.transformer = to_torch((model.encoder, model.decoder))
        if inner_dropout:
            self._add_inner_dropout()
        with torch.no_grad():
            self.embedding.weight.copy_(model.output.weight)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        """Logits `[B, T, V]` for sources `[B, S]` and targets `[B, T]`."""
        return self.project(self.decode(tgt, self.encode(src), src))

    def encode(self, src: Tensor) -> Tensor:
        """Memory `[B, S, d_model]`."""
        return self.transformer.encoder(self._embed(src), src_key_padding_mask=src == self.config.pad_id)

    def decode(self, tgt: Tensor, memory: Tensor, src: Tensor) -> Tensor:
        """Hidden vectors `[B, T, d_model]`."""
        ahead = torch.ones(tgt.size(1), tgt.size(1), dtype=torch.bool, device=tgt.device).triu(1)
        return self.transformer.decoder(
            self._embed(tgt),
            memory,
            tgt_mask=ahead,
            tgt_is_causal=True,
            memory_key_padding_mask=src == self.config.pad_id,
        )

    def project(self, hidden: Tensor) -> Tensor:
        """Logits `[..., V]` of hidden vectors `[..., d_model]`."""
        return F.linear(hidden, self.embedding.weight)

    def _embed(self, ids: Tensor) -> Tensor:
        return self.dropout(self.embedding(ids) * self.config.d_model**0.5 + self.table[: ids.size(1)])

    def _add_inner_dropout(self) -> None:
        for layer in (*self.transformer.encoder.layers, *self.transformer.decoder.layers):
            layer.dropout.p = self.config.dropout
        for module in self.transformer.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = self.config.dropout


class Marian(nn.Module):
    """Hugging Face's MarianMTModel, which is post-norm, with our weights.

    Args:
        model: ours; its configuration and weights are taken.

    Raises:
        ImportError: transformers is not installed.
        ValueError: `model` is not post-norm.
    """

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        from transformers import MarianMTModel

        self.config = model.config
        with TemporaryDirectory() as folder:
            to_marian(model, folder)
            self.marian = MarianMTModel.from_pretrained(folder)
        self.marian.config.eos_token_id = self.marian.generation_config.eos_token_id = None  # see `our_model`

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        """Logits `[B, T, V]` for sources `[B, S]` and targets `[B, T]`."""
        mask = (src != self.config.pad_id).long()
        return self.marian(input_ids=src, attention_mask=mask, decoder_input_ids=tgt, use_cache=False).logits


def missing_peers() -> list[str]:
    """What is not installed, as lines to print."""
    absent = [name for name in ("transformers", "ctranslate2") if find_spec(name) is None]
    remedy = "its rows are left out (see benchmarks/requirements.txt)"
    return [f"{name} is not installed: {remedy}" for name in absent]


def summed_loss(model: nn.Module, batch: Batch, smoothing: float) -> tuple[Tensor, Tensor]:
    """For a peer what `transformer.teacher_forced_loss` is for our model: loss in float32, and its tokens."""
    src, tgt = batch
    logits, targets, pad_id = model(src, tgt[:, :-1]), tgt[:, 1:], model.config.pad_id
    loss = F.cross_entropy(
        logits.float().flatten(0, 1),
        targets.flatten(),
        ignore_index=pad_id,
        label_smoothing=smoothing,
        reduction="sum",
    )
    return loss, targets.ne(pad_id).sum()


class Training:
    """One engine in training by the plain loop of its users: `step(batch)` makes an update with fused Adam.

    Args:
        model: ours, plain or fast, or a peer's.
        size: its size.
        precision: `"float32"` or `"bfloat16"`.
        compiled: whether `torch.compile` gets model and loss.
        kernels: makes the circumstances in which losses are computed and steps are made.
    """

    def __init__(
        self, model: nn.Module, size: Size, precision: str, compiled: bool = False,
        kernels: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:  # fmt: skip
        self.model, self.size, self.precision = model.train(), size, precision
        loss = teacher_forced_loss if isinstance(model, Transformer) else summed_loss
        if compiled and loss is teacher_forced_loss:
            loss.dispatch(type(model))  # into its cache, whose change after a call would compile all again
        self.loss = partial(torch.compile(loss) if compiled else loss, smoothing=size.smoothing)
        self.kernels = kernels
        self.update = self.updater()

    def updater(self) -> Callable[[Batch], object]:
        """What makes an update."""
        self.optimizer = torch.optim.Adam(
            self.model.parameters(), LEARNING_RATE, betas=(0.9, 0.98), eps=1e-9, fused=True
        )
        return self.plain_update

    def mean_loss(self, batch: Batch) -> Tensor:
        """The loss of a batch per target token, ready for a backward pass."""
        with self.kernels(), autocast(CPU, self.precision):
            loss, tokens = self.loss(self.model, batch)
        return loss / tokens

    def step(self, batch: Batch) -> None:
        """Make one update."""
        with self.kernels():
            self.update(batch)

    def plain_update(self, batch: Batch) -> None:
        """Make one update, as `transformer.fit` does."""
        self.optimizer.zero_grad()
        self.mean_loss(batch).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.size.clip_norm)
        self.optimizer.step()


class TrainerTraining(Training):
    """Our fast model, trained by the package's own `Trainer`, with the same optimizer and clipping.

    Raises:
        TypeError: the model is not fast: a trainer would accelerate it, and another one would be timed.
    """

    def updater(self) -> Callable[[Batch], object]:
        """What makes an update."""
        settings = TrainingConfig(steps=1, clip_norm=self.size.clip_norm, precision=self.precision)
        trainer = Trainer(self.model, self.loss, lambda epoch: [], lambda step: LEARNING_RATE, settings)
        if trainer.model is not self.model:
            raise TypeError(f"to be timed is a {type(self.model)}, but trained is a {type(trainer.model)}")
        return lambda batch: trainer.updater([batch])


def only_f_linear() -> AbstractContextManager[object]:
    """Circumstances in which all dense products are left to `F.linear`, those of the loss as well."""
    return mock.patch("transformer.speed.kernels._MKL_IS_SLOW", False)


def peer_trainings(size: Size, precision: str, seed: int = 0) -> dict[str, Callable[..., Training]]:
    """How to build each engine in training: ours in three forms, and the peers that are installed and fit.

    *ours* is the fast model under the package's `Trainer`, *ours, F.linear* the same but for the library
    that multiplies (a control), *ours, plain* the plain model in a plain loop.
    """
    ours = partial(our_model, size.config, seed)
    circumstances = size, precision
    builders: dict[str, Callable[..., Training]] = {
        "ours": lambda **options: TrainerTraining(accelerate(ours()), *circumstances, **options),
        "ours, F.linear": lambda: TrainerTraining(accelerate(ours()), *circumstances, kernels=only_f_linear),
        "ours, plain": lambda **options: Training(ours(), *circumstances, **options),
        "torch.nn": lambda **options: Training(TorchTransformer(ours()), *circumstances, **options),
    }
    if size.config.dropout > 0:
        builders["torch.nn, no inner dropout"] = lambda: Training(
            TorchTransformer(ours(), inner_dropout=False), *circumstances
        )
    if HAS_MARIAN and not size.config.has_final_norm:
        builders["Marian"] = lambda: Training(Marian(ours()), *circumstances)
    return builders


def described(training: Training) -> dict[str, str]:
    """What is trained, and how: for the record."""
    model = training.model
    kind = type(model).__name__
    if isinstance(model, Marian):
        kind = f"{type(model.marian).__name__}, {model.marian.config._attn_implementation}"
    return {"model": kind, "loop": "Trainer" if isinstance(training, TrainerTraining) else "plain"}


# Decoding: `search(src, beam_size, length)` returns the best hypothesis of every sentence, `[B, length]`.

Search = partial[Tensor]


def our_search(model: Transformer, src: Tensor, beam_size: int, length: int) -> Tensor:
    """Greedy search for a beam of one, else beam search."""
    if beam_size == 1:
        return transformer.greedy_search(model, src, length)
    return transformer.beam_search(model, src, beam_size, max_length=length).tokens[:, 0]


@torch.no_grad()
def torch_search(model: TorchTransformer, src: Tensor, beam_size: int, length: int) -> Tensor:
    """Greedy search by reading the whole beginning again at every step: torch.nn has no cache."""
    if beam_size != 1:
        raise ValueError("torch.nn has no beam search")
    memory = model.encode(src)
    tokens = src.new_full((src.size(0), 1), model.config.bos_id)
    for _ in range(length):
        best = model.project(model.decode(tokens, memory, src)[:, -1]).argmax(-1)
        tokens = torch.cat([tokens, best[:, None]], dim=1)
    return tokens[:, 1:]


def marian_search(model: Marian, src: Tensor, beam_size: int, length: int) -> Tensor:
    """Marian's own `generate`, with its cache; the start token is taken off."""
    tokens = model.marian.generate(
        input_ids=src,
        attention_mask=(src != model.config.pad_id).long(),
        num_beams=beam_size,
        do_sample=False,
        max_new_tokens=length,
        use_cache=True,
    )
    return tokens[:, 1:]


def searches(size: Size, seed: int = 0) -> dict[str, Search]:
    """The engines that decode in this process."""
    model = our_model(size.config, seed).eval()
    ours = {"ours": accelerate(model), "ours, plain": model}
    found: dict[str, Search] = {name: partial(our_search, one) for name, one in ours.items()}
    found["torch.nn, no cache"] = partial(torch_search, TorchTransformer(model).eval())
    if HAS_MARIAN:
        found["Marian"] = partial(marian_search, Marian(model).eval())
    return found
