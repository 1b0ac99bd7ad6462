"""`accelerate`: the same model by other kernels."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformer.attention import KeysAndValues, MultiHeadAttention, Projection
from transformer.decoding import DecoderState, decoder_state
from transformer.layers import ACTIVATIONS, LayerNorm
from transformer.loss import teacher_forced_loss
from transformer.model import Transformer, TransformerConfig
from transformer.speed.chunked_loss import linear_cross_entropy
from transformer.speed.kernels import fast_attention, fast_linear
from transformer.validation import check_batch
from transformer.weights import configured, parts_of

__all__ = [
    "FastLinear", "FastMultiHeadAttention", "FastTransformer", "accelerate", "accelerated",
    "FastDecoderState",
]  # fmt: skip


class FastLinear(nn.Linear):
    """`torch.nn.Linear`, by the fastest kernel."""

    def forward(self, x: Tensor) -> Tensor:
        """Compute x Wᵀ + b for `x` `[..., d_in]`; the result is `[..., d_out]`."""
        return fast_linear(x, self.weight, self.bias)


class FastMultiHeadAttention(MultiHeadAttention):
    """`MultiHeadAttention`, by the fastest kernels."""

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None,
        need_weights: bool = False, cache: Callable[[nn.Module, Projection], KeysAndValues] | None = None,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """As in `MultiHeadAttention`."""
        if need_weights or cache is not None:
            return super().forward(query, key, value, mask, need_weights, cache)
        q, k, v = self.w_q(query), self.w_k(key), self.w_v(value)  # [B, T, d_model]
        q, k, v = self._split(q), self._split(k), self._split(v)  # [B, H, T, d_k]
        context = fast_attention(q, k, v, mask, self.dropout if self.training else 0.0)
        return self.w_o(context.transpose(1, 2).flatten(2)), None


_FASTER = {nn.Linear: FastLinear, MultiHeadAttention: FastMultiHeadAttention}
_SHARED = "_parameters", "_buffers", *(name for name in vars(nn.Module()) if name.startswith("_forward_"))


class FastTransformer(Transformer):
    """A `Transformer` by the fastest kernels, as `accelerate` makes it, with a training mode of its own.

    Both call the same forward hooks. Without any, its losses and searches do not call all modules.
    """

    def __init__(self, model: Transformer) -> None:
        plan = configured(model, "accelerate")
        if len({(parameter.device, parameter.dtype) for parameter in model.parameters()}) > 1:
            message = "its parameters have several devices or dtypes"
            raise TypeError(f"accelerate takes only what a configuration makes, but {message}")
        vars(self).update(vars(plan))
        given = parts_of(model)
        for name, part in self.named_modules():
            # One dictionary for both: a parameter moved, cast or replaced in one is in the other, too.
            vars(part).update((own, vars(given[name])[own]) for own in _SHARED)
            part.training = given[name].training
            part.__class__ = _FASTER.get(type(part), type(part))

    @property
    def has_hooks(self) -> bool:
        """Whether anything listens to a module before or after it computes."""
        return any(part._forward_hooks or part._forward_pre_hooks for part in self.modules())


def accelerate(model: Transformer) -> FastTransformer:
    """The same model by the fastest kernels that are known for this machine.

    It has the same parameters and gives the same results up to rounding, but a training mode of its own: call
    its own `eval`. A part of `model` that is replaced later stays as it was here.

    Args:
        model: a `Transformer` whose every part is as its configuration makes it, without hooks; the
            output may have a bias. Of one that `torch.compile` was given, the fast model is not compiled.

    Raises:
        TypeError: a part is of another kind, has other settings, or has hooks; the message names it.

    Example:
        >>> model = Transformer(TransformerConfig(20, 20, d_model=16, n_heads=2)).eval()
        >>> src, tgt = torch.tensor([[5, 7, 3]]), torch.tensor([[2, 9]])
        >>> torch.allclose(accelerate(model)(src, tgt), model(src, tgt), atol=1e-4)
        True
    """
    return model if isinstance(model, FastTransformer) else FastTransformer(model)


def accelerated(model: Any, stacklevel: int = 2) -> Any:
    """The accelerated model; where `accelerate` refuses, the model itself, and a warning says why, at the
    line of `stacklevel`. What is no `Transformer` is returned as it is."""
    if not isinstance(model, Transformer):
        return model
    try:
        return accelerate(model)
    except TypeError as error:
        warnings.warn(f"the model runs as it is, without faster kernels: {error}", stacklevel=stacklevel)
        return model


@teacher_forced_loss.register
def _teacher_forced_loss(
    model: FastTransformer, batch: tuple[Tensor, Tensor], smoothing: float = 0.1
) -> tuple[Tensor, Tensor]:
    if model.output.bias is not None or model.has_hooks:  # which the loss in chunks does not know
        return teacher_forced_loss.dispatch(Transformer)(model, batch, smoothing)
    src, tgt = check_batch(batch, model)
    targets, pad_id = tgt[:, 1:], model.config.pad_id
    hidden = model.decode(tgt[:, :-1], model.encode(src), model.src_mask(src))
    loss = linear_cross_entropy(hidden, model.output.weight, targets, smoothing, pad_id)
    return loss, (targets != pad_id).sum()


def _norm(norm: nn.Module) -> Callable[[Tensor], Tensor]:
    if not isinstance(norm, LayerNorm):
        return norm.forward  # of an identity
    shape, weight, bias, eps = (norm.d_model,), norm.weight, norm.bias, norm.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)


def _cast(weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    # A dense layer's parameters as autocast would cast them, once and not at every step.
    device = weight.device.type
    if weight.dtype != torch.float32 or not torch.amp.is_autocast_available(device):
        return weight, bias
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
    return weight.to(dtype), None if bias is None else bias.to(dtype)


class _LayerStep:
    # A fast model's decoder layer for one new position in every row, from the layer's weights.
    # `empty` [B, 1, 1, 1] marks sentences without a token, if there are any.
    def __init__(self, layer: Any, memory: Tensor, empty: Tensor | None, beam_size: int) -> None:
        own, cross, feed = layer.self_attention, layer.cross_attention, layer.feed_forward
        heads = own.n_heads, memory.size(2) // own.n_heads  # H, d_k
        self.qkv_shape, self.query_shape = (-1, 3, heads[0], 1, heads[1]), (-1, beam_size, *heads)
        parts = own.w_q, own.w_k, own.w_v
        bias = None if own.w_q.bias is None else torch.cat([part.bias for part in parts])
        self.w_qkv = _cast(torch.cat([part.weight for part in parts]), bias)
        dense = own.w_o, cross.w_q, cross.w_o, feed.w_1, feed.w_2  # a weight and a bias each
        pairs = [_cast(part.weight, part.bias) for part in dense]
        self.own_output, self.query, self.cross_output, self.w_1, self.w_2 = pairs
        self.activation = ACTIVATIONS[feed.activation]
        residuals = layer.self_residual, layer.cross_residual, layer.feed_residual
        self.norms = [_norm(residual.norm) for residual in residuals]
        self.norm_first = layer.self_residual.norm_first
        pair = torch.stack((cross.w_k(memory), cross.w_v(memory))).unflatten(3, heads)
        self.keys, self.values = pair.transpose(2, 3).contiguous().unbind()  # [B, H, S, d_k]
        if empty is not None:
            self.values.masked_fill_(empty, 0.0)  # whoever may attend to nothing gets zeros

    # Of vectors x [N, d_model], with the mask of the memory; `past` is what `attend` takes.
    def __call__(self, x: Tensor, mask: Tensor | None, past: tuple[Tensor, ...]) -> Tensor:
        own_norm, cross_norm, feed_norm = self.norms
        if self.norm_first:
            x = x + self.attend(own_norm(x), *past)
            x = x + self.attend_memory(cross_norm(x), mask)
            return x + self.feed(feed_norm(x))
        x = own_norm(x + self.attend(x, *past))
        x = cross_norm(x + self.attend_memory(x, mask))
        return feed_norm(x + self.feed(x))

    # The new keys and values go to `new` [N, 2, H, 1, d_k], the place in which `keys` and `values`
    # [N, H, t, d_k] end; or to one place [1] of many in `new`, of which those that are `seen` count.
    def attend(
        self, x: Tensor, new: Tensor, keys: Tensor, values: Tensor, place: Tensor | None = None,
        seen: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        qkv = fast_linear(x, *self.w_qkv).view(self.qkv_shape)  # [N, 3, H, 1, d_k]
        pair = qkv.narrow(1, 1, 2)
        new.copy_(pair) if place is None else new.index_copy_(3, place, pair)
        context = F.scaled_dot_product_attention(qkv.select(1, 0), keys, values, seen)  # [N, H, 1, d_k]
        return fast_linear(context.reshape(x.shape), *self.own_output)

    def attend_memory(self, x: Tensor, mask: Tensor | None) -> Tensor:
        query = fast_linear(x, *self.query).view(self.query_shape).transpose(1, 2)  # [B, H, K, d_k]
        context = F.scaled_dot_product_attention(query, self.keys, self.values, mask)
        return fast_linear(context.transpose(1, 2).reshape(x.shape), *self.cross_output)

    def feed(self, x: Tensor) -> Tensor:
        return fast_linear(self.activation(fast_linear(x, *self.w_1)), *self.w_2)


_ROOM = 16  # for that many tokens at first
_LOOK_EVERY = {"cpu": 1}  # steps between two looks at what has ended; elsewhere, where a look is a wait, 8


class _StepCache:
    # Keys and values of the decoder's layers [2, n_layers, N, H, room, d_k], twice, for another order.
    # In the dtype of `keys`, which are the memory's.
    def __init__(self, config: TransformerConfig, keys: Tensor, rows: int) -> None:
        heads = config.n_heads, _ROOM, config.d_model // config.n_heads
        self.buffer, self.length = keys.new_empty(2, config.depths[1], rows, *heads), 0
        self.scratch = self.buffer[:, :, :0]

    def lengthen(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        # Makes room for one more position; gives each layer its place, and keys and values up to it.
        if self.length == self.buffer.size(4):
            self.buffer = torch.cat((self.buffer, torch.empty_like(self.buffer)), 4)  # doubled
        new = self.buffer.narrow(4, self.length, 1).permute(1, 2, 0, 3, 4, 5)  # [n_layers, N, 2, H, 1, d_k]
        self.length += 1
        keys, values = self.buffer.narrow(4, 0, self.length).unbind()  # [n_layers, N, H, t, d_k]
        return zip(new.unbind(), keys.unbind(), values.unbind(), strict=True)

    def reorder(self, rows: Tensor) -> None:
        if self.scratch.shape[2:] != self.buffer[:, :, : len(rows)].shape[2:]:
            self.scratch = torch.empty_like(self.buffer[:, :, : len(rows)])
        ordered = torch.index_select(self.buffer, 2, rows, out=self.scratch)
        self.buffer, self.scratch = ordered, self.buffer


class FastDecoderState(DecoderState):
    """The numbers of `DecoderState`, from the decoder's weights, without calling its modules."""

    @torch.inference_mode()
    def __init__(self, model: FastTransformer, src: Tensor, beam_size: int = 1) -> None:
        self.beam_size, self.look_every = beam_size, _LOOK_EVERY.get(src.device.type, 8)
        self.memory, mask = model.encode(src), model.src_mask(src)  # [B, S, d_model], [B, 1, 1, S]
        self.memory_mask, empty = None, None
        if not mask.all():  # checked once here, and not at every step
            nothing = ~mask.any(3, keepdim=True)  # [B, 1, 1, 1]
            empty = nothing if nothing.any() else None
            seen = self.memory.new_zeros(mask.shape)
            self.memory_mask = seen.masked_fill_(~(mask | nothing), -torch.inf)  # is added to scores
        self.layers = [_LayerStep(one, self.memory, empty, beam_size) for one in model.decoder.layers]
        self.norm, self.output = _norm(model.decoder.norm), _cast(model.output.weight, model.output.bias)
        self.table, self.scale = model.tgt_embedding.weight, model.config.d_model**0.5
        self.positions = model.positions.table
        self.past = _StepCache(model.config, self.layers[0].keys, len(src) * beam_size)

    @torch.inference_mode()
    def step(self, last: Tensor) -> Tensor:
        """As in `DecoderState`."""
        return self._logits(last, self.positions[self.past.length], self.past.lengthen())

    def _logits(self, last: Tensor, position: Tensor, past: Iterable[tuple[Tensor, ...]]) -> Tensor:
        # Of tokens [N] at a position [d_model], with what each layer's `attend` takes.
        x = torch.add(position, torch.embedding(self.table, last), alpha=self.scale)  # [N, d_model]
        for layer, keys_and_values in zip(self.layers, past, strict=True):
            x = layer(x, self.memory_mask, keys_and_values)
        return fast_linear(self.norm(x), *self.output)

    @torch.inference_mode()
    def keep(self, rows: Tensor) -> None:
        """As in `DecoderState`; rows come in groups of K, one for each sentence, in the sentences' order."""
        sentences = rows[:: self.beam_size] // self.beam_size
        if len(sentences) < len(self.memory):
            self.memory = self.memory[sentences]
            self.memory_mask = None if self.memory_mask is None else self.memory_mask[sentences]
            for layer in self.layers:
                layer.keys, layer.values = layer.keys[sentences], layer.values[sentences]
        elif rows.device.type == "cpu" and torch.equal(rows, torch.arange(len(rows))):
            return
        self.past.reorder(rows)


@decoder_state.register
def _decoder_state(model: FastTransformer, src: Tensor, beam_size: int = 1) -> DecoderState:
    return (DecoderState if model.has_hooks else FastDecoderState)(model, src, beam_size)
