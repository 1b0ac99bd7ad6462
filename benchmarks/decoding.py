"""Decoding: tokens a second, and whether a step costs more the longer the sentence."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import interleaved, ratios_to_ours, spread
from benchmarks.peers import Search, our_model, searches
from benchmarks.workload import Batch, Size, decoding_sources, sentence_batches
from transformer import Transformer
from transformer.training import evaluating

LENGTH = 32  # tokens that are generated for every sentence
# Name, beam size, sentences, and how often a round repeats the search.
CASES = [("greedy 64", 1, 64, 1), ("beam 4, 64", 4, 64, 1), ("greedy 1", 1, 1, 4), ("beam 4, 1", 4, 1, 4)]


def checked(search: Search, src: Tensor, beam_size: int) -> Tensor:
    """Search, and refuse a result that is not `LENGTH` tokens for every sentence, none of them an end."""
    tokens = search(src, beam_size, LENGTH)
    config = search.args[0].config
    ended = ((tokens == config.eos_id) | (tokens == config.pad_id)).any()
    if tokens.shape != (src.size(0), LENGTH) or ended:
        raise ValueError(f"a search gave {list(tokens.shape)} tokens, or ended before {LENGTH}")
    return tokens


def able(name: str, beam_size: int) -> bool:
    """Whether an engine offers a search."""
    return beam_size == 1 or not name.startswith("torch.nn")


def measure_decoding(size: Size, rounds: int, seed: int) -> dict[str, Any]:
    """Time greedy and beam search of all engines; CTranslate2 afterwards, in a process of its own."""
    engines = searches(size, seed)
    cases: dict[str, Any] = {}
    for name, beam_size, sentences, repeats in CASES:
        src = decoding_sources(size.config, sentences, seed)
        used = {engine: search for engine, search in engines.items() if able(engine, beam_size)}
        found = {engine: checked(search, src, beam_size) for engine, search in used.items()}
        works = {engine: repeated(search, src, beam_size, repeats) for engine, search in used.items()}
        times = interleaved(works, rounds)
        times = {engine: [value / repeats for value in values] for engine, values in times.items()}
        cases[name] = {
            "beam size": beam_size,
            "sentences": sentences,
            "ours": found["ours"].tolist(),
            "seconds": times,
            "agreement": {engine: same(tokens, found["ours"]) for engine, tokens in found.items()},
        }
    differences = {}
    if find_spec("ctranslate2") is not None:
        differences = add_ctranslate(cases, size, rounds, seed)
    for case in cases.values():
        del case["ours"]
        times, tokens = case.pop("seconds"), case["sentences"] * LENGTH
        ours = ratios_to_ours(times)
        case["engines"] = {
            engine: {"seconds": (step := spread(values)), "tokens per second": tokens / step["median"]}
            | {"ours": ours[engine]}
            for engine, values in times.items()
        }
    return {
        "size": size.name,
        "tokens per sentence": LENGTH,
        "CTranslate2 differences": differences,
        "cases": cases,
    }


def repeated(search: Search, src: Tensor, beam_size: int, repeats: int) -> Callable[[], None]:
    """A round's work: the same search several times, where one is too short to be timed well."""

    def work() -> None:
        for _ in range(repeats):
            search(src, beam_size, LENGTH)

    return work


def same(tokens: Tensor, ours: Tensor) -> float:
    """The share of sentences that are the same, token for token."""
    return (tokens == ours).all(dim=1).double().mean().item()


def add_ctranslate(cases: dict[str, Any], size: Size, rounds: int, seed: int) -> dict[str, float]:
    """Convert our weights for CTranslate2, check that it computes the same, and time it.

    Raises:
        ValueError: in float32, its probabilities or its greedy results are not ours.
    """
    (scored,) = sentence_batches(size.config, 200, 1, seed)
    with tempfile.TemporaryDirectory() as folder:
        request = {
            "size": size.name,
            "seed": seed,
            "rounds": rounds,
            "length": LENGTH,
            "folder": folder,
            "sources": as_strings(scored[0], size.config.pad_id),
            "targets": as_strings(scored[1][:, 1:], size.config.pad_id),
            "cases": [
                {
                    "name": name,
                    "beam size": beam_size,
                    "repeats": repeats,
                    "sources": as_strings(decoding_sources(size.config, sentences, seed), size.config.pad_id),
                }
                for name, beam_size, sentences, repeats in CASES
            ],
        }
        for task in ("convert", "measure"):
            command = [sys.executable, "-m", "benchmarks.ctranslate", task]
            done = subprocess.run(
                command, input=json.dumps(request), text=True, stdout=subprocess.PIPE, check=True
            )
    answer = json.loads(done.stdout)
    ours = target_log_probs(our_model(size.config, seed), scored)
    differences = {
        kind: max(abs(a - b) for row, own in zip(rows, ours) for a, b in zip(row, own))
        for kind, rows in answer["log_probs"].items()
    }
    if not differences["float32"] <= 1e-3:
        raise ValueError(f"CTranslate2's log-probabilities are off by {differences['float32']}")
    for row in answer["rows"]:
        case = cases[row["case"]]
        tokens = torch.tensor(row["tokens"])
        share = same(tokens, torch.tensor(case["ours"]))
        if row["engine"].startswith("CTranslate2 float32") and case["beam size"] == 1 and share < 0.95:
            raise ValueError(f"in {row['case']}, CTranslate2 agrees with us on {share:.0%} only")
        case["seconds"][row["engine"]] = row["seconds"]
        case["agreement"][row["engine"]] = share
    return differences


def as_strings(ids: Tensor, pad_id: int) -> list[list[str]]:
    """Sentences as CTranslate2 takes them: each token's number as a string, padding left out."""
    return [[str(token) for token in row if token != pad_id] for row in ids.tolist()]


def target_log_probs(model: Transformer, batch: Batch) -> list[list[float]]:
    """The log-probability that our model gives each real target token."""
    src, tgt = batch
    targets = tgt[:, 1:]
    with evaluating(model):
        log_probs = model(src, tgt[:, :-1]).log_softmax(-1).gather(2, targets[:, :, None])[:, :, 0]
    return [row[real].tolist() for row, real in zip(log_probs, targets != model.config.pad_id)]
