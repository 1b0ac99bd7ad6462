"""Engines: models written for CTranslate2 and for ONNX, and CTranslate2 as the engine of a translator."""

import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any
import torch
from torch import Tensor, nn
from transformer.attention import KeysAndValues, KeyValueCache, Projection
from transformer.decoding import length_norm
from transformer.embedding import sinusoidal_encoding
from transformer.exchange.foreign import exported, whole_folder
from transformer.language.translator import Search, Translator
from transformer.language.vocabulary import UNK_ID
from transformer.layers import DecoderLayer, LayerNorm
from transformer.model import Decoder, Encoder, Transformer
from transformer.training import evaluating
from transformer.validation import check_choice, optional_import

__all__ = ["to_ctranslate2", "CTranslate2Engine", "to_onnx"]


def _array(*parts: Tensor) -> Any:
    return torch.cat([part.detach() for part in parts]).to("cpu", torch.float32).numpy()


def _fill_linear(place: Any, *layers: nn.Linear) -> None:
    """Put linear layers that read the same vectors on top of one another."""
    place.weight = _array(*(layer.weight for layer in layers))
    if layers[0].bias is not None:
        place.bias = _array(*(layer.bias for layer in layers))


def _fill_norm(place: Any, norm: LayerNorm) -> None:
    place.gamma = _array(norm.weight)
    place.beta = _array(torch.zeros_like(norm.weight) if norm.bias is None else norm.bias)


def _fill_stack(place: Any, stack: Encoder | Decoder) -> None:
    """Fill the layers of a stack in the engine's specification, and the norm on top."""
    layers: Any = stack.layers
    for spot, layer in zip(place.layer, layers, strict=True):
        own = layer.self_attention
        _fill_linear(spot.self_attention.linear[0], own.w_q, own.w_k, own.w_v)
        _fill_linear(spot.self_attention.linear[1], own.w_o)
        _fill_norm(spot.self_attention.layer_norm, layer.self_residual.norm)
        if isinstance(layer, DecoderLayer):
            cross = layer.cross_attention
            _fill_linear(spot.attention.linear[0], cross.w_q)
            _fill_linear(spot.attention.linear[1], cross.w_k, cross.w_v)
            _fill_linear(spot.attention.linear[2], cross.w_o)
            _fill_norm(spot.attention.layer_norm, layer.cross_residual.norm)
        _fill_linear(spot.ffn.linear_0, layer.feed_forward.w_1)
        _fill_linear(spot.ffn.linear_1, layer.feed_forward.w_2)
        _fill_norm(spot.ffn.layer_norm, layer.feed_residual.norm)
    if isinstance(stack.norm, LayerNorm):
        _fill_norm(place.layer_norm, stack.norm)


_CTRANSLATE2_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "silu": "SWISH"}


def to_ctranslate2(
    model: Transformer | Translator, folder: str | Path, quantization: str | None = None
) -> None:
    """Write a folder from which `ctranslate2.Translator` translates with the weights of ours.

    Args:
        model: a `Translator`, whose subwords become the engine's tokens and which adds an end token
            to each source; or a `Transformer`, whose tokens are then their numbers as strings.
        folder: where `model.bin`, `config.json` and the vocabulary are written. The engine's
            `max_decoding_length` must not exceed our `max_length`, and its `min_decoding_length` has
            to be set to 0, or no translation is empty. A translator's `config.json` says how texts
            are to be prepared, which the engine leaves to whoever calls it.
        quantization: how weights are stored, such as `"int8"` or `"float16"`; `None` for float32.

    Raises:
        TypeError: `model`, or a part of it, is of another type; a subclass is another type.
        ValueError: it is not as its configuration says, or not finite; the engine knows no such
            `quantization`; or `folder` holds another model.
        OSError: a file cannot be written; the folder stays as it was.
        ImportError: ctranslate2 is not installed.
    """
    specs = optional_import("ctranslate2.specs")
    translates = isinstance(model, Translator)
    plain = exported(model.model if isinstance(model, Translator) else model, "to_ctranslate2")
    config = plain.config
    spec = specs.TransformerSpec.from_config(
        config.depths,
        config.n_heads,
        no_final_norm=not config.has_final_norm,
        activation=specs.Activation[_CTRANSLATE2_ACTIVATIONS[config.activation]],
    )
    spec.encoder.embeddings[0].weight = _array(plain.src_embedding.weight)
    spec.decoder.embeddings.weight = _array(plain.tgt_embedding.weight)
    _fill_linear(spec.decoder.projection, plain.output)
    table = sinusoidal_encoding(config.max_length, config.d_model, torch.float32).numpy()
    for place, stack in ((spec.encoder, plain.encoder), (spec.decoder, plain.decoder)):
        place.position_encodings.encodings = table
        place.pre_norm = config.norm_first  # only now, because with False it has no place for a final norm
        _fill_stack(place, stack)
    numbers = [str(token) for token in range(max(config.src_vocab_size, config.tgt_vocab_size))]
    words = model.vocabulary.pieces if isinstance(model, Translator) else numbers
    spec.register_source_vocabulary(words[: config.src_vocab_size])
    spec.register_target_vocabulary(words[: config.tgt_vocab_size])
    spec.config.unk_token = words[UNK_ID]
    spec.config.bos_token = spec.config.decoder_start_token = words[config.bos_id]
    spec.config.eos_token, spec.config.add_source_eos = words[config.eos_id], translates
    if isinstance(model, Translator):
        spec.config.add_attribute("preparation", vars(model.preparation))
    spec.validate()
    spec.optimize(quantization)
    with whole_folder(folder) as part:
        spec.save(str(part))


_OPTIONS = ("beam_size", "length_penalty", "max_length", "max_tokens")  # of a search, that the engine has


class CTranslate2Engine:
    """The searches of a translator, run by CTranslate2: give it to `translator.engine`.

    Its beam ends by the engine's own rule, so that a rare translation differs from those of PyTorch.

    Args:
        translator: where weights and vocabulary come from; later changes to the weights have no effect.
        compute_type: what the engine computes with, such as `"int8"`; `None` for float32.

    Raises:
        TypeError, ValueError, ImportError: as in `to_ctranslate2`; or the model is on a device, or
            `compute_type` is one, that CTranslate2 does not know.
    """

    def __init__(self, translator: Translator, compute_type: str | None = None) -> None:
        engine = optional_import("ctranslate2").Translator
        device = next(translator.model.parameters()).device
        kind = "cpu" if device.type == "mps" else device.type  # Apple's GPUs are strange to the engine
        check_choice(("cpu", "cuda"), **{"device of the model": kind})
        self._words, self._longest = translator.vocabulary.tokens, translator.model.config.max_length
        self._end = translator.model.config.eos_id
        self._ids = {piece: number for number, piece in enumerate(translator.vocabulary.pieces)}
        options = {"compute_type": compute_type or "float32", "intra_threads": torch.get_num_threads()}
        with tempfile.TemporaryDirectory() as folder:
            to_ctranslate2(translator, folder)
            self._engine = engine(folder, device=kind, device_index=device.index or 0, **options)

    def __call__(self, sources: list[list[int]], search: Search) -> list[list[int]]:
        """As `translate_ids`.

        Raises:
            ValueError: the engine has not an option that `search` asks for.
        """
        for option in fields(search):
            if option.name not in _OPTIONS and (given := getattr(search, option.name)) != option.default:
                wanted = f"{option.default!r} for the engine ctranslate2"
                raise ValueError(f"{option.name} must be {wanted}, which has no other, but is {given!r}")
        longest = min(search.max_length, self._longest)
        found: list[list[int]] = [[] for _ in sources]
        rows = [row for row, ids in enumerate(sources) if len(ids) > 1]  # not the empty ones
        results = self._engine.translate_batch(
            [self._words(sources[row][:-1]) for row in rows],  # it adds the end itself
            beam_size=search.beam_size,
            num_hypotheses=search.beam_size,
            length_penalty=0,
            return_scores=True,
            min_decoding_length=0,  # a translation may be empty; the engine's default is 1
            max_decoding_length=longest,
            max_batch_size=search.max_tokens,
            batch_type="tokens",
        )
        for row, result in zip(rows, results, strict=True):
            lengths = [min(len(pieces) + 1, longest) for pieces in result.hypotheses]
            ranked = zip(result.scores, lengths, result.hypotheses, strict=True)
            best = max(ranked, key=lambda each: each[0] / length_norm(each[1], search.length_penalty))
            ends = [self._end] * (len(best[2]) < longest)  # of which the engine does not speak
            found[row] = [self._ids[piece] for piece in best[2]] + ends
        return found


class _GivenCache(KeyValueCache):
    """Keys and values from tensors `[n_layers, 2, B, H, length, d_k]`; what has grown is in `grown`."""

    def __init__(self, own: Tensor, cross: Tensor) -> None:
        super().__init__()
        self.length, self._own, self._cross = own.size(-2), iter(own), iter(cross)
        self.grown: list[Tensor] = []

    def append(self, attention: nn.Module, project: Projection) -> KeysAndValues:
        self.grown.append(torch.cat([next(self._own), torch.stack(project())], dim=-2))
        return self.grown[-1][0], self.grown[-1][1]

    def hold(self, attention: nn.Module, project: Projection) -> KeysAndValues:
        key, value = next(self._cross)
        return key, value


class _Graph(nn.Module):
    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model


class _EncoderGraph(_Graph):
    def forward(self, src: Tensor) -> tuple[Tensor, Tensor]:
        memory, layers = self.model.encode(src), self.model.decoder.layers
        readers: list[Any] = [layer.cross_attention for layer in layers]
        pairs = [(each._split(each.w_k(memory)), each._split(each.w_v(memory))) for each in readers]
        return self.model.src_mask(src), torch.stack([torch.stack(pair) for pair in pairs])


class _DecoderGraph(_Graph):
    def forward(self, last: Tensor, mask: Tensor, cross: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        cache = _GivenCache(own, cross)
        x = self.model.positions(self.model.tgt_embedding(last[:, None]), cache.length)
        hidden = self.model.decoder(x, x, None, mask, cache)  # reads no memory, as the cache holds it
        return self.model.project(hidden[:, -1]), torch.stack(cache.grown)


def to_onnx(model: Transformer, folder: str | Path) -> None:
    """Write a model as two graphs, `encoder.onnx` and `decoder.onnx`, that a runtime for ONNX can run.

    The encoder's graph reads `src` `[B, S]` and returns `mask` and `cross`. The decoder's reads
    `last` `[B]`, the last token of every sentence, with `mask`, `cross` and `own`, the cache of t
    positions; it returns the next token's `logits` `[B, V]` and `grown`, the cache of t + 1. No
    graph checks its input: S is at most the model's `max_length`, and t is below it.

    Args:
        model: a plain `Transformer`.
        folder: where the files are written; the weights lie beside the graphs.

    Raises:
        TypeError: `model`, or a part of it, is of another type; a subclass is another type.
        ValueError: it is not as its configuration says, or not finite; or `folder` holds another model.
        OSError, ImportError: a file cannot be written, and the folder stays as it was; no onnxscript.
    """
    optional_import("onnxscript")  # which torch needs
    model = exported(model, "to_onnx")
    longest, device = model.config.max_length, next(model.parameters()).device
    batch, source = torch.export.Dim("batch"), torch.export.Dim("source", max=longest)
    past = torch.export.Dim("past", max=longest - 1)
    src = torch.zeros(2, 3, dtype=torch.long, device=device)  # any values will do
    with evaluating(model):
        mask, cross = _EncoderGraph(model)(src)
        changing = {"mask": {0: batch, 3: source}, "cross": {2: batch, 4: source}}
        given = {"last": src[:, 0], "mask": mask, "cross": cross, "own": cross[..., :2, :]}
        grows = {"last": {0: batch}, **changing, "own": {2: batch, 4: past}}
        graphs = {
            "encoder": (_EncoderGraph, {"src": src}, {"src": {0: batch, 1: source}}, ["mask", "cross"]),
            "decoder": (_DecoderGraph, given, grows, ["logits", "grown"]),
        }
        with whole_folder(folder) as part:
            for name, (graph, inputs, dynamic, outputs) in graphs.items():
                torch.onnx.export(
                    graph(model),
                    tuple(inputs.values()),
                    part / f"{name}.onnx",
                    input_names=list(inputs),
                    output_names=outputs,
                    dynamic_shapes=tuple(dynamic.values()),
                    dynamo=True,
                    verbose=False,
                )
