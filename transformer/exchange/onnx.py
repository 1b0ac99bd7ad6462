"""ONNX: encoder and decoding step as two graphs."""

from pathlib import Path
from typing import Any
import torch
from torch import Tensor, nn
from transformer.attention import KeysAndValues, KeyValueCache, Projection
from transformer.exchange.foreign import check_as_configured, whole_folder
from transformer.exchange.torch import check_exact_type
from transformer.model import Transformer
from transformer.training import evaluating
from transformer.validation import optional_import

__all__ = ["to_onnx"]


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
    check_exact_type("model", model, Transformer)
    check_as_configured(model)
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
        with whole_folder(folder, [f"{name}.onnx*" for name in graphs], lambda found: False) as part:
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
