"""Quality: what int8 weights cost, in scores of translations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.measure import table
from transformer import Translator, quantize
from transformer.language.corpora import Pair
from transformer.language.translator import Search, evaluate_translator

SEARCHES = {"greedy": Search(1), "beam 4": Search(4)}


def measure_quality(name: str, translator: Translator, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Score a translator in float32 and in int8 on the same pairs, by either search.

    Args:
        name: of the translator, for the table.
        translator: in float32, on the CPU.
        pairs: source and reference, written as the corpora are.

    Returns:
        the number of pairs, and for each search the `corpus_scores` of either precision.
    """
    light = Translator(quantize(translator.model), translator.vocabulary)
    results: dict[str, Any] = {}
    for label, search in SEARCHES.items():
        results[label] = {
            "float32": evaluate_translator(translator, pairs, search),
            "int8": evaluate_translator(light, pairs, search),
        }
    rows = [
        [f"{search}, {precision}", *(f"{score['score']:.2f}" for score in scores.values())]
        for search, result in results.items()
        for precision, scores in result.items()
    ]
    metrics = next(iter(results.values()))["float32"]
    title = f"int8, {name}, {len(pairs)} pairs"
    print(table(title, ["search", *metrics], rows), end="\n\n", flush=True)
    return {"pairs": len(pairs), "searches": results}
