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
    from benchmarks.peers import our_model
    from benchmarks.workload import SIZES
    from transformer.exchange.translators import to_ctranslate2

    to_ctranslate2(our_model(SIZES[request["size"]].config, request["seed"]), request["folder"])


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """Time the cases of `request`: on one thread, and many sentences also by two workers of one thread.

    Returns:
        `"rows"`, for each kind of numbers, number of workers and case: seconds by round, and the best
        hypotheses; `"log_probs"` of the request's targets, by kind of numbers.
    """
    import ctranslate2

    rows, log_probs = [], {}
    for compute_type in ("float32", "int8"):
        for workers in (1, 2):
            translator = ctranslate2.Translator(
                request["folder"],
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
