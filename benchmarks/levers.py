"""From the plain model to the fast one: training steps with one part after another exchanged."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.corpus import in_turn
from benchmarks.measure import CPU, interleaved, memory_bandwidth, product_peak, ratio, saved_bytes, spread
from benchmarks.peers import Training, described, our_model
from benchmarks.training import SMALL, agreement, go_through, profile_step
from benchmarks.workload import Batch, Size, sentence_batches, shuffled_batches, token_counts, training_flops
from transformer import MultiHeadAttention, Transformer, Vocabulary, accelerate, load_corpus
from transformer.language.batches import TokenBatches, encode_pairs, padding_waste
from transformer.speed.fast import FastLinear, FastMultiHeadAttention

N_BATCHES = 3  # by length; at random the same sentences make about twice as many
TEXT_BATCHES = (0.25, 0.75)  # where those on text stand among all, from the shortest to the longest
FAST_PARTS: dict[str, tuple[type[nn.Module], type[nn.Module]]] = {
    "dense": (nn.Linear, FastLinear),
    "attention": (MultiHeadAttention, FastMultiHeadAttention),
}


@dataclass(frozen=True)
class Setup:
    """In what a training step differs from that of the plain model in a plain loop.

    Args:
        by_length: batches of sentences of about one length, else of random sentences.
        dense, attention: whether these parts are those of the fast model.
        chunks: the fast model as a whole, whose loss is computed in chunks; it has all fast parts.
        precision: `"float32"` or `"bfloat16"`.
    """

    by_length: bool = False
    dense: bool = False
    attention: bool = False
    chunks: bool = False
    precision: str = "float32"


# Each adds to the ones before it.
LEVERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "batches by length": {"by_length": True},
    "dense layers": {"dense": True},
    "attention": {"attention": True},
    "loss in chunks": {"chunks": True},
    "bfloat16": {"precision": "bfloat16"},
}


def setups() -> dict[str, Setup]:
    """The setup that each lever leads to, from the plain one on."""
    found, setup = {}, Setup()
    for name, change in LEVERS.items():
        found[name] = setup = replace(setup, **change)
    return found


def model_of(size: Size, setup: Setup, seed: int) -> Transformer:
    """The plain model, with the parts of the fast one that `setup` has, or the fast one."""
    model = our_model(size.config, seed)
    if setup.chunks:
        return accelerate(model)
    faster = dict(kinds for part, kinds in FAST_PARTS.items() if getattr(setup, part))
    for module in model.modules():
        module.__class__ = faster.get(type(module), type(module))
    return model


def measure_levers(size: Size, rounds: int, seed: int) -> dict[str, Any]:
    """Time training on the same sentences with each setup, and count what a forward pass keeps.

    Args:
        size: of the model.
        rounds: how many rounds are timed.
        seed: of weights, sentences and their order.
    """
    by_length = sentence_batches(size.config, SMALL, N_BATCHES, seed)
    return time_levers(size, by_length, shuffled_batches(size.config, by_length, SMALL, seed), rounds, seed)


def measure_on_text(corpus: str, size: Size, rounds: int, seed: int) -> dict[str, Any]:
    """The same on sentences of a corpus, after what the predictions need.

    Some batches are taken from all those of the training split, the short and the long ones alike; the same
    sentences in random order are cut as they come.

    Args:
        corpus: as in `load_corpus`.
        size, rounds, seed: as in `measure_levers`.
    """
    train = load_corpus(corpus, "train")
    vocabulary = Vocabulary.train((text for pair in train for text in pair), size.config.tgt_vocab_size)
    batches = [*TokenBatches(encode_pairs(train, vocabulary), SMALL, shuffle=False)(0)]
    by_length = [batches[int(len(batches) * part)] for part in TEXT_BATCHES]
    pairs = [
        tuple(ids[ids != size.config.pad_id].tolist() for ids in pair)
        for batch in by_length
        for pair in zip(*batch)
    ]
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(seed)).tolist()
    at_random = [*in_turn([pairs[place] for place in order], SMALL)]
    before = before_levers(size, by_length[-1], seed)
    return {"corpus": corpus, "before": before} | time_levers(size, by_length, at_random, rounds, seed)


def before_levers(size: Size, batch: Batch, seed: int) -> dict[str, Any]:
    """What the levers are predicted from: the best products, a copy's rate, shares of two profiles."""
    models = {"plain": Setup(by_length=True), "fast": setups()["loss in chunks"]}
    shares = {
        name: profile_step(Training(model_of(size, setup, seed), size, "float32"), batch)["shares"]
        for name, setup in models.items()
    }
    best: dict[str, dict[str, float]] = {}
    for precision in ("float32", "bfloat16"):
        kernels = best.setdefault(precision, {})
        for product in product_peak(precision, CPU)["products"]:
            kernels[product["kernel"]] = max(kernels.get(product["kernel"], 0.0), product["flops"])
    return {"best products": best, "bandwidth": memory_bandwidth(CPU), "shares": shares}


def time_levers(
    size: Size, by_length: list[Batch], at_random: list[Batch], rounds: int, seed: int
) -> dict[str, Any]:
    """Time training on batches of the same sentences, in two orders, with each setup."""
    middle = by_length[len(by_length) // 2]
    trainings = {
        name: Training(model_of(size, setup, seed), size, setup.precision) for name, setup in setups().items()
    }
    agreement({"ours": trainings["plain"], **trainings}, middle)
    used = {name: by_length if setup.by_length else at_random for name, setup in setups().items()}
    works = {name: partial(go_through, training, used[name]) for name, training in trainings.items()}
    times = interleaved(works, rounds)
    tokens = token_counts(by_length, size.config.pad_id)
    levers, before = {}, "plain"
    for name, training in trainings.items():
        levers[name] = {
            **described(training),
            "seconds": spread(times[name]),
            "target tokens per second": tokens["target"] / spread(times[name])["median"],
            "gain": ratio(times[before], times[name]),
            "beside plain": ratio(times["plain"], times[name]),
            "batches": len(used[name]),
            "padding waste": padding_waste(used[name]),
            "saved bytes": saved_bytes(training.model, partial(training.mean_loss, middle)),
        }
        before = name
    return {
        "size": size.name,
        "tokens": tokens,
        "useful flops": training_flops(size.config, by_length),
        "levers": levers,
    }
