"""CTranslate2, in processes of its own: `convert` writes our weights in its format, `measure` times it.

Torch and CTranslate2 each bring a library of threads; in one process they slow each other down. So `measure`
imports neither torch nor this package.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def convert(request: dict[str, Any]) -> None:
    """Write the model that `request` describes to its folder; the vocabulary is the ids, as strings."""
    import numpy as np
    from ctranslate2.specs import TransformerSpec, common_spec

    from benchmarks.peers import layer_parts, our_model, projections
    from benchmarks.workload import SIZES
    from transformer import sinusoidal_encoding

    config = SIZES[request["size"]].config
    model = our_model(config, request["seed"])
    spec = TransformerSpec.from_config(
        config.n_layers, config.n_heads, pre_norm=False, activation=common_spec.Activation.RELU
    )

    def numbers(tensor) -> np.ndarray:
        return tensor.detach().numpy()

    def dense(target, *parts) -> None:
        target.weight = np.concatenate([numbers(weight) for weight, _ in parts])
        target.bias = np.concatenate([numbers(bias) for _, bias in parts])

    def norm(target, module) -> None:
        target.gamma, target.beta = numbers(module.weight), numbers(module.bias)

    def attention(target, ours, ours_norm, groups) -> None:
        parts = projections(ours)
        for linear, names in zip(target.linear, groups):
            dense(linear, *(parts[name] for name in names))
        norm(target.layer_norm, ours_norm)

    def feed_forward(target, parts) -> None:
        for linear, name in ((target.linear_0, "w_1"), (target.linear_1, "w_2")):
            dense(linear, (parts[name].weight, parts[name].bias))
        norm(target.layer_norm, parts["feed norm"])

    embedding, table = (
        numbers(model.output.weight),
        numbers(sinusoidal_encoding(config.max_length, config.d_model)),
    )
    spec.encoder.embeddings[0].weight = spec.decoder.embeddings.weight = embedding
    spec.decoder.projection.weight = embedding
    spec.encoder.position_encodings.encodings = spec.decoder.position_encodings.encodings = table
    for layer, ours in zip(spec.encoder.layer, model.encoder.layers):
        parts = layer_parts(ours)
        attention(layer.self_attention, ours.self_attention, parts["self norm"], ("qkv", "o"))
        feed_forward(layer.ffn, parts)
    for layer, ours in zip(spec.decoder.layer, model.decoder.layers):
        parts = layer_parts(ours)
        attention(layer.self_attention, ours.self_attention, parts["self norm"], ("qkv", "o"))
        attention(layer.attention, ours.cross_attention, parts["cross norm"], ("q", "kv", "o"))
        feed_forward(layer.ffn, parts)

    vocabulary = [str(token) for token in range(config.tgt_vocab_size)]
    spec.register_source_vocabulary(vocabulary)
    spec.register_target_vocabulary(vocabulary)
    spec.config.unk_token = vocabulary[1]
    spec.config.bos_token = spec.config.decoder_start_token = vocabulary[config.bos_id]
    spec.config.eos_token = vocabulary[config.eos_id]
    spec.config.add_source_bos = spec.config.add_source_eos = False
    spec.validate()
    spec.save(request["folder"])


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """Time the cases of `request`: on one thread, and many sentences also by two workers of one thread.

    Returns:
        `"rows"`, for each kind of numbers, number of workers and case: seconds by round, and the best
        hypotheses; `"log_probs"` of the request's targets, by kind of numbers.
    """
    import ctranslate2

    rows, log_probs = [], {}
    for compute_type in ("float32", "int8"):
        for workers in (1, 2) if request["device"] == "cpu" else (1,):
            translator = ctranslate2.Translator(
                request["folder"],
                device=request["device"],
                compute_type=compute_type,
                inter_threads=workers,
                intra_threads=1,
            )
            scored = translator.score_batch(request["sources"], request["targets"])
            log_probs[compute_type] = [result.log_probs for result in scored]
            for case in request["cases"]:
                if workers > 1 and len(case["sources"]) < workers:
                    continue
                row = time_case(translator, workers, case, request)
                row["engine"] = f"CTranslate2 {compute_type}, {workers} × 1 thread"
                rows.append(row)
    return {"rows": rows, "log_probs": log_probs}


def time_case(translator, workers: int, case: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """Time one search; the batch is shared out among the workers."""
    sources, length = case["sources"], request["length"]

    def search():
        return translator.translate_batch(
            sources,
            beam_size=case["beam size"],
            max_decoding_length=length,
            max_batch_size=-(-len(sources) // workers),
        )

    tokens = [[int(token) for token in result.hypotheses[0]] for result in search()]
    if any(len(row) != length for row in tokens):
        raise ValueError(f"CTranslate2 did not give {length} tokens for every sentence")
    seconds = []
    for _ in range(request["rounds"]):
        start = time.perf_counter()
        for _ in range(case["repeats"]):
            search()
        seconds.append((time.perf_counter() - start) / case["repeats"])
    return {"case": case["name"], "tokens": tokens, "seconds": seconds}


if __name__ == "__main__":
    task = {"convert": convert, "measure": measure}[sys.argv[1]]
    json.dump(task(json.load(sys.stdin)), sys.stdout)
