"""The engines: this package, torch.nn.Transformer and Hugging Face Marian, with the same weights and loss."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import transformer
from benchmarks.workload import Batch, Size
from transformer import (
    DecoderLayer,
    EncoderLayer,
    FastTransformer,
    MultiHeadAttention,
    Trainer,
    TrainingConfig,
    Transformer,
    TransformerConfig,
    accelerate,
    sinusoidal_encoding,
    teacher_forced_loss,
)
from transformer.decoding import DecoderState
from transformer.fast import FastDecoderState
from transformer.trainer import autocast

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


# The one place that knows how our weights are laid out: the peers take theirs from these two functions.


def projections(attention: MultiHeadAttention) -> dict[str, tuple[Tensor, Tensor]]:
    """Weight and bias of the products for queries, keys, values and output: `"q"`, `"k"`, `"v"`, `"o"`."""
    return {
        name: (layer.weight.detach(), layer.bias.detach())
        for name, layer in zip("qkvo", (attention.w_q, attention.w_k, attention.w_v, attention.w_o))
    }


def layer_parts(layer: EncoderLayer | DecoderLayer) -> dict[str, nn.Module]:
    """A layer's other parts: `"w_1"`, `"w_2"`, `"self norm"`, `"cross norm"` and `"feed norm"`."""
    parts = {
        "w_1": layer.feed_forward.w_1,
        "w_2": layer.feed_forward.w_2,
        "self norm": layer.self_residual.norm,
        "feed norm": layer.feed_residual.norm,
    }
    if isinstance(layer, DecoderLayer):
        parts["cross norm"] = layer.cross_residual.norm
    return parts


def _copy(target: nn.Module, weight: Tensor, bias: Tensor) -> None:
    with torch.no_grad():
        target.weight.copy_(weight)
        target.bias.copy_(bias)


def _copy_parts(layer: nn.Module, targets: dict[str, nn.Module]) -> None:
    parts = layer_parts(layer)
    for name, target in targets.items():
        _copy(target, parts[name].weight, parts[name].bias)


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
        sizes = (config.d_model, config.n_heads, config.n_layers, config.n_layers, config.d_ff)
        with warnings.catch_warnings():  # that pre-norm cannot use nested tensors
            warnings.simplefilter("ignore")
            self.transformer = nn.Transformer(
                *sizes, config.dropout, norm_first=config.norm_first, batch_first=True
            )
        self.transformer.encoder.use_nested_tensor = False  # of evaluation only, and announced to change
        if not config.has_final_norm:  # its constructor always adds them
            self.transformer.encoder.norm = self.transformer.decoder.norm = None
        if not inner_dropout:
            self._remove_inner_dropout()
        self._take(model)

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

    def _remove_inner_dropout(self) -> None:
        for layer in (*self.transformer.encoder.layers, *self.transformer.decoder.layers):
            layer.dropout.p = 0.0
        for module in self.transformer.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0

    def _take(self, model: Transformer) -> None:
        with torch.no_grad():
            self.embedding.weight.copy_(model.output.weight)
        for ours, layer in zip(model.encoder.layers, self.transformer.encoder.layers):
            self._take_attention(ours.self_attention, layer.self_attn)
            norms = {"self norm": layer.norm1, "feed norm": layer.norm2}
            _copy_parts(ours, {"w_1": layer.linear1, "w_2": layer.linear2, **norms})
        for ours, layer in zip(model.decoder.layers, self.transformer.decoder.layers):
            self._take_attention(ours.self_attention, layer.self_attn)
            self._take_attention(ours.cross_attention, layer.multihead_attn)
            norms = {"self norm": layer.norm1, "cross norm": layer.norm2, "feed norm": layer.norm3}
            _copy_parts(ours, {"w_1": layer.linear1, "w_2": layer.linear2, **norms})
        if model.config.has_final_norm:
            for ours, stack in zip(
                (model.encoder, model.decoder), (self.transformer.encoder, self.transformer.decoder)
            ):
                _copy(stack.norm, ours.norm.weight, ours.norm.bias)

    @staticmethod
    def _take_attention(ours: MultiHeadAttention, attention: nn.MultiheadAttention) -> None:
        parts = projections(ours)
        with torch.no_grad():
            attention.in_proj_weight.copy_(torch.cat([parts[name][0] for name in "qkv"]))
            attention.in_proj_bias.copy_(torch.cat([parts[name][1] for name in "qkv"]))
        _copy(attention.out_proj, *parts["o"])


class Marian(nn.Module):
    """Hugging Face's MarianMTModel, which is post-norm, with our weights and positions.

    Args:
        model: ours; its configuration and weights are taken.

    Raises:
        ImportError: transformers is not installed.
        ValueError: `model` is not post-norm.
    """

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        from transformers import MarianConfig, MarianMTModel

        self.config = config = model.config
        if config.has_final_norm or config.norm_first:
            raise ValueError("Marian is post-norm: the model must have norm_first=False and final_norm=False")
        self.marian = MarianMTModel(
            MarianConfig(
                vocab_size=config.tgt_vocab_size,
                d_model=config.d_model,
                encoder_layers=config.n_layers,
                decoder_layers=config.n_layers,
                encoder_attention_heads=config.n_heads,
                decoder_attention_heads=config.n_heads,
                encoder_ffn_dim=config.d_ff,
                decoder_ffn_dim=config.d_ff,
                max_position_embeddings=config.max_length,
                dropout=config.dropout,
                activation_function="relu",
                scale_embedding=True,
                pad_token_id=config.pad_id,
                decoder_start_token_id=config.bos_id,
                eos_token_id=None,  # as in `our_model`, nothing ends before the last step
                forced_eos_token_id=None,
            )
        )
        self._take(model)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        """Logits `[B, T, V]` for sources `[B, S]` and targets `[B, T]`."""
        mask = (src != self.config.pad_id).long()
        return self.marian(input_ids=src, attention_mask=mask, decoder_input_ids=tgt, use_cache=False).logits

    def _take(self, model: Transformer) -> None:
        encoder, decoder = self.marian.model.encoder, self.marian.model.decoder
        table = sinusoidal_encoding(model.config.max_length, model.config.d_model)
        with torch.no_grad():
            self.marian.get_input_embeddings().weight.copy_(model.output.weight)
            for stack in (encoder, decoder):
                stack.embed_positions.weight.copy_(table)
        for ours, layer in zip(model.encoder.layers, encoder.layers):
            self._take_attention(ours.self_attention, layer.self_attn)
            norms = {"self norm": layer.self_attn_layer_norm, "feed norm": layer.final_layer_norm}
            _copy_parts(ours, {"w_1": layer.fc1, "w_2": layer.fc2, **norms})
        for ours, layer in zip(model.decoder.layers, decoder.layers):
            self._take_attention(ours.self_attention, layer.self_attn)
            self._take_attention(ours.cross_attention, layer.encoder_attn)
            norms = {"self norm": layer.self_attn_layer_norm, "feed norm": layer.final_layer_norm}
            norms["cross norm"] = layer.encoder_attn_layer_norm
            _copy_parts(ours, {"w_1": layer.fc1, "w_2": layer.fc2, **norms})

    @staticmethod
    def _take_attention(ours: MultiHeadAttention, attention: nn.Module) -> None:
        targets = {
            "q": attention.q_proj,
            "k": attention.k_proj,
            "v": attention.v_proj,
            "o": attention.out_proj,
        }
        for name, (weight, bias) in projections(ours).items():
            _copy(targets[name], weight, bias)


def peer_models(size: Size, seed: int = 0) -> dict[str, Callable[[], nn.Module]]:
    """How to build each engine's model: ours, fast and plain, and the peers that are installed and fit."""
    ours = partial(our_model, size.config, seed)
    builders: dict[str, Callable[[], nn.Module]] = {"ours": lambda: accelerate(ours()), "ours, plain": ours}
    builders["torch.nn"] = lambda: TorchTransformer(ours())
    if size.config.dropout > 0:
        builders["torch.nn, no inner dropout"] = lambda: TorchTransformer(ours(), inner_dropout=False)
    if HAS_MARIAN and not size.config.has_final_norm:
        builders["Marian"] = lambda: Marian(ours())
    return builders


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
    return loss, (targets != pad_id).sum()


class Training:
    """One engine in training: `step(batch)` makes an update.

    Ours is trained by the package's own `Trainer`, a peer by the plain loop of its users, with the same
    optimiser (Adam, fused), precision and clipping.

    Args:
        model: what a builder of `peer_models` returned.
        size: its size.
        precision: `"float32"` or `"bfloat16"`.
        device: to train on.
        compiled: whether `torch.compile` gets model and loss.
    """

    def __init__(
        self, model: nn.Module, size: Size, precision: str, device: torch.device, compiled: bool = False
    ) -> None:
        self.model, self.size, self.precision, self.device = model.to(device).train(), size, precision, device
        ours = isinstance(model, Transformer)
        loss = teacher_forced_loss if ours else summed_loss
        self.loss = partial(torch.compile(loss) if compiled else loss, smoothing=size.smoothing)
        if ours:
            settings = TrainingConfig(steps=1, clip_norm=size.clip_norm, precision=precision)
            trainer = Trainer(model, self.loss, lambda epoch: [], lambda step: LEARNING_RATE, settings)
            self.step = lambda batch: trainer.update([batch])
        else:
            self.optimizer = torch.optim.Adam(
                model.parameters(), LEARNING_RATE, betas=(0.9, 0.98), eps=1e-9, fused=True
            )
            self.step = self._step

    def mean_loss(self, batch: Batch) -> Tensor:
        """The loss of a batch per target token, ready for a backward pass."""
        with autocast(self.device, self.precision):
            loss, tokens = self.loss(self.model, batch)
        return loss / tokens

    def _step(self, batch: Batch) -> None:
        self.optimizer.zero_grad()
        self.mean_loss(batch).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.size.clip_norm)
        self.optimizer.step()


# Decoding: `search(src, beam_size, length)` returns the best hypothesis of every sentence, `[B, length]`.

Search = Callable[[Tensor, int, int], Tensor]


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


def searches(size: Size, device: torch.device, seed: int = 0) -> dict[str, Search]:
    """The engines that decode in this process."""
    model = our_model(size.config, seed).to(device).eval()
    ours = {"ours": accelerate(model), "ours, plain": model}
    found: dict[str, Search] = {name: partial(our_search, one) for name, one in ours.items()}
    if device.type == "cpu":
        found["ours int8"] = partial(our_search, transformer.quantize(model))
    found["torch.nn, no cache"] = partial(torch_search, TorchTransformer(model).to(device).eval())
    if HAS_MARIAN:
        found["Marian"] = partial(marian_search, Marian(model).to(device).eval())
    return found


@contextmanager
def step_clock(search: Search, synchronize: Callable[[], None]):
    """Note the time at which each decoding step of our or Marian's search begins.

    Yields:
        a list that grows by one time in seconds at every step.
    """
    model = search.args[0]
    times: list[float] = []

    def note(*_) -> None:
        synchronize()
        times.append(time.perf_counter())

    kind = FastDecoderState if isinstance(model, FastTransformer) else DecoderState
    step = kind.step

    def noted(state: DecoderState, last: Tensor) -> Tensor:
        note()
        return step(state, last)

    if isinstance(model, Marian):
        listening = model.marian.model.decoder.register_forward_pre_hook(note)
    else:  # the fast state calls no module that could be listened to
        listening = mock.patch.object(kind, "step", noted)
    with listening:
        yield times
