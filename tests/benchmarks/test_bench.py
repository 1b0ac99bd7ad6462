"""The harness of `make bench`: what it counts is counted right, and its engines compute the same."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import transformer.speed.chunked_loss  # noqa: E402
import transformer.speed.kernels  # noqa: E402
from benchmarks import (  # noqa: E402
    bench,
    corpus,
    decoding,
    kernels,
    levers,
    measure,
    peak,
    peers,
    roofline,
    training,
    workload,
)
from benchmarks.allocator import measure_allocator  # noqa: E402
from benchmarks.corpus import corpus_facts  # noqa: E402
from benchmarks.quality import measure_quality  # noqa: E402
from transformer import (  # noqa: E402
    FastTransformer,
    Transformer,
    TransformerConfig,
    Translator,
    Vocabulary,
    encode_pairs,
    load_corpus,
)
from transformer.language.batches import padding_waste  # noqa: E402
from transformer.language.corpora import Pair  # noqa: E402
from transformer.speed.fast import FastLinear, FastMultiHeadAttention  # noqa: E402

CPU = torch.device("cpu")
SMALL = workload.Size("small", TransformerConfig(50, 50, d_model=16, n_heads=2, n_layers=2, d_ff=24))


def batch_of(config: TransformerConfig, rows: int, src_length: int, tgt_length: int) -> workload.Batch:
    """A batch without padding."""
    src = torch.randint(4, config.src_vocab_size, (rows, src_length))
    tgt = torch.randint(4, config.tgt_vocab_size, (rows, tgt_length + 1))
    tgt[:, 0] = config.bos_id
    return src, tgt


def trainings(size: workload.Size = SMALL) -> dict[str, Callable[..., peers.Training]]:
    """How to build the engines in training, in float32 on the CPU."""
    return peers.peer_trainings(size, "float32", CPU)


def flops_by_torch(model: nn.Module, batch: workload.Batch) -> tuple[int, int]:
    """What torch counts: products with weights in training, attention in the forward pass alone.

    The backward pass of a fused kernel computes the scores anew, which is not useful work.
    """
    src, tgt = batch
    with FlopCounterMode(display=False) as forward, torch.no_grad():
        model(src, tgt[:, :-1])
    with FlopCounterMode(display=False) as both:
        model(src, tgt[:, :-1]).sum().backward()

    def split(counter: FlopCounterMode) -> tuple[int, int]:
        counts = counter.get_flop_counts()["Global"]
        attention = sum(n for op, n in counts.items() if "attention" in str(op) or "bmm" in str(op))
        return sum(counts.values()) - attention, attention

    return split(both)[0], split(forward)[1]


# Batches


def test_batches_have_the_lengths_and_the_tokens_that_they_claim():
    """Lengths from 5 to 40, about the budget, and never more than one position of padding in a row."""
    config = workload.SIZES["b"].config
    batches = workload.sentence_batches(config, 2000, 6)
    lengths = [src.size(1) for src, _ in batches]
    assert lengths == sorted(lengths)
    assert 5 <= lengths[0] < 10 and 35 < lengths[-1] <= 40
    for src, tgt in batches:
        assert tgt.size(1) == src.size(1) + 1
        assert 2000 - src.size(1) < tgt[:, 1:].numel() <= 2000
        assert (tgt[:, 0] == config.bos_id).all()
        assert (src[0] != config.pad_id).all() and (tgt[0] != config.pad_id).all()
        for ids in (src, tgt):
            padding = ids == config.pad_id
            assert not padding[:, :-1].any()
            assert ((ids >= 4) | padding)[:, 1:].all()
    assert 0.01 < padding_waste(batches) < 0.04


def test_token_counts_leave_padding_and_start_tokens_out():
    """Counted by hand: 3 source tokens; 2 to predict in one sentence and 1 in the other."""
    batch = torch.tensor([[5, 6], [7, 0]]), torch.tensor([[2, 8, 9], [2, 8, 0]])
    assert workload.token_counts([batch], pad_id=0) == {"source": 3, "target": 3}
    assert workload.token_counts([batch, batch], pad_id=0) == {"source": 6, "target": 6}


def test_batches_depend_on_the_seed_alone():
    """The same seed gives the same batches, another seed others."""
    config = workload.SIZES["b"].config
    first, again, other = (workload.sentence_batches(config, 200, 2, seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for one, two in zip(first, again) for a, b in zip(one, two))
    assert not torch.equal(first[0][0], other[0][0])


def test_sources_to_translate_are_sorted_and_between_16_and_24_tokens():
    """Longest first; what stands behind a sentence is padding."""
    src = workload.decoding_sources(workload.SIZES["b"].config, 64)
    lengths = (src != 0).sum(dim=1).tolist()
    assert src.shape == (64, 24) and lengths == sorted(lengths, reverse=True)
    assert lengths[0] == 24 and lengths[-1] == 17
    assert len(workload.decoding_sources(workload.SIZES["b"].config, 1)[0]) == 24


def test_toy_batches_are_the_recipe_s():
    """32 sequences of 10 digits; ids within the toy vocabulary."""
    config = workload.TOY.config
    for src, tgt in workload.toy_batches(2):
        assert src.shape == (32, 10) and tgt.shape == (32, 11)
        assert (tgt[:, 0] == config.bos_id).all() and int(tgt.max()) < config.tgt_vocab_size


def test_random_order_keeps_the_sentences_and_the_budget():
    """Each sentence once, in batches as large as the budget allows, with far more padding."""
    config = workload.SIZES["b"].config
    sorted_ones = workload.sentence_batches(config, 500, 3)
    shuffled = workload.shuffled_batches(config, sorted_ones, 500)

    def sentences(batches: list[workload.Batch]) -> list[tuple[tuple[int, ...], ...]]:
        pairs = (pair for batch in batches for pair in zip(*batch))
        return sorted(tuple(tuple(ids[ids != 0].tolist()) for ids in pair) for pair in pairs)

    assert sentences(shuffled) == sentences(sorted_ones)
    widths = [tgt.size(1) - 1 for _, tgt in shuffled]
    assert all(tgt[:, 1:].numel() <= 500 for _, tgt in shuffled)
    for (_, tgt), (_, following) in zip(shuffled, shuffled[1:]):  # one more would not have fitted
        one_more = max(tgt.size(1), int((following[0] != 0).sum())) - 1
        assert (len(tgt) + 1) * one_more > 500
    assert max(widths) == 34 and padding_waste(shuffled) > 0.3 > 0.05 > padding_waste(sorted_ones)
    again = workload.shuffled_batches(config, sorted_ones, 500)
    assert all(torch.equal(a, b) for one, two in zip(shuffled, again) for a, b in zip(one, two))


# Work by formula


@pytest.mark.parametrize("engine", ["ours", "torch.nn"])
def test_the_formula_is_what_torch_counts_without_padding(engine):
    """Products with weights to the operation; attention too, but that torch counts what causality forbids."""
    config, rows, S, T = SMALL.config, 3, 5, 7
    batch = batch_of(config, rows, S, T)
    flops = workload.forward_flops(config, S, T)
    linear, attention = flops_by_torch(trainings()[engine]().model, batch)
    assert linear == 3 * rows * flops["linear"]
    unseen = config.n_layers * 4 * config.d_model * (T * T - T * (T + 1) // 2)
    assert attention in (0, rows * (flops["attention"] + unseen))  # 0: a kernel that torch does not count
    assert workload.training_flops(config, [batch]) == 3 * rows * sum(flops.values())


def test_the_formula_by_hand():
    """One layer of width 1, one token on each side, a vocabulary of 5."""
    config = TransformerConfig(5, 5, d_model=1, n_heads=1, n_layers=1, d_ff=3)
    flops = workload.forward_flops(config, 1, 1)
    # Encoder 4 + 6, decoder 8 + 6, output 5 products; three attentions of one pair, two products each.
    assert flops == {"linear": 2 * 29, "attention": 2 * 6}


def test_padding_is_no_useful_work():
    """A batch with padding needs what its sentences need one by one."""
    config = SMALL.config
    (batch,) = workload.sentence_batches(config, 200, 1)
    src, tgt = batch
    alone = [
        (src[i : i + 1, : int((src[i] != 0).sum())], tgt[i : i + 1, : int((tgt[i] != 0).sum())])
        for i in range(len(src))
    ]
    assert (src == 0).any()
    assert workload.training_flops(config, [batch]) == workload.training_flops(config, alone)


def test_a_target_token_of_b_needs_about_56_million_operations():
    """The number that rates and shares of the peak rest on."""
    config = workload.SIZES["b"].config
    batches = workload.sentence_batches(config, 2000, 6)
    per_token = workload.training_flops(config, batches) / workload.token_counts(batches, 0)["target"]
    assert 55e6 < per_token < 60e6


# The engines compute the same


@pytest.mark.parametrize("norm_first", [False, True])
def test_torch_nn_computes_our_loss_with_our_weights(norm_first):
    """In float64, to the last digits, padding and all, with and without dropout's inner places."""
    config = TransformerConfig(50, 50, d_model=16, n_heads=2, n_layers=2, d_ff=24, norm_first=norm_first)
    size = workload.Size("small", config)
    (batch,) = workload.sentence_batches(config, 60, 1)
    losses = []
    for name in ("ours", "ours, F.linear", "ours, plain", "torch.nn", "torch.nn, no inner dropout"):
        step = trainings(size)[name]()
        model = step.model.double().eval()
        losses.append(step.mean_loss(batch).double())
        losses[-1].backward()
        if name == "torch.nn, no inner dropout":
            modules = list(model.transformer.modules())
            dropped = [m.dropout for m in modules if isinstance(m, nn.MultiheadAttention)]
            assert dropped == [0.0] * 6
    assert losses[0].item() > 1
    for loss in losses[1:]:
        torch.testing.assert_close(loss, losses[0], rtol=1e-6, atol=0)


@pytest.mark.skipif(not peers.HAS_MARIAN, reason="transformers is not installed")
@pytest.mark.filterwarnings("default")
def test_marian_computes_our_loss_and_finds_our_translations():
    """With our weights and our positions in it."""
    (batch,) = workload.sentence_batches(SMALL.config, 60, 1)
    steps = {name: trainings()[name]() for name in ("ours", "Marian")}
    assert peers.described(steps["Marian"])["model"].startswith("MarianMTModel, ")
    assert training.agreement(steps, batch)["Marian"] < 1e-5
    found = peers.searches(SMALL, CPU)
    src = workload.decoding_sources(SMALL.config, 3)
    for beam_size in (1, 3):
        assert torch.equal(found["Marian"](src, beam_size, 6), found["ours"](src, beam_size, 6))


def test_an_engine_that_computes_something_else_is_refused():
    """The check that stands before every timing can fail."""
    (batch,) = workload.sentence_batches(SMALL.config, 60, 1)
    steps = {name: trainings()[name]() for name in ("ours", "torch.nn")}
    with torch.no_grad():
        steps["torch.nn"].model.transformer.decoder.layers[0].linear1.weight.neg_()
    with pytest.raises(ValueError, match="the loss of torch.nn is"):
        training.agreement(steps, batch)


# What is timed is what its row says


def refused(*args, **kwargs):
    raise AssertionError("this is not to be called")


@pytest.fixture
def onednn(monkeypatch):
    """Every product large enough for oneDNN, on any processor; attention and losses as usual."""
    monkeypatch.setattr(transformer.speed.kernels, "_least_work", lambda: 0)
    monkeypatch.setattr(
        transformer.speed.chunked_loss, "_FEW_LOGITS", 0
    )  # even a small loss is computed in chunks
    monkeypatch.setattr(transformer.speed.chunked_loss, "_AT_ONCE", {"cpu": 200})


def forbid(monkeypatch, *names: str) -> None:
    """Whoever takes one of these kernels from the table of choices, or from its module, fails."""
    gone = {getattr(transformer.speed.kernels, name) for name in names}
    for task, rows in transformer.speed.kernels.CHOICES.items():
        found = [(condition, refused if kernel in gone else kernel) for condition, kernel in rows]
        monkeypatch.setitem(transformer.speed.kernels.CHOICES, task, found)
    for name in names:
        monkeypatch.setattr(transformer.speed.kernels, name, refused)


WIDE = workload.Size("wide", TransformerConfig(50, 50, d_model=128, n_heads=2, n_layers=1, d_ff=256))


@pytest.mark.usefixtures("onednn")
def test_the_plain_row_trains_the_plain_model(monkeypatch):
    """By its plain loop, without one kernel of the chapter on speed: a trainer would have accelerated it."""
    plain, fast = (trainings(WIDE)[name]() for name in ("ours, plain", "ours"))
    assert type(plain.model) is Transformer and type(fast.model) is FastTransformer
    assert peers.described(plain) == {"model": "Transformer", "loop": "plain"}
    assert peers.described(fast) == {"model": "FastTransformer", "loop": "Trainer"}
    batch = batch_of(WIDE.config, 32, 16, 16)
    forbid(monkeypatch, "dropout_by_bytes")
    plain.step(batch)
    with pytest.raises(AssertionError, match="not to be called"):
        fast.step(batch)
    with pytest.raises(TypeError, match="trained is a"):
        peers.TrainerTraining(peers.our_model(WIDE.config), WIDE, "float32", CPU)


@pytest.mark.usefixtures("onednn")
def test_the_control_multiplies_by_f_linear_alone(monkeypatch):
    """In the layers and in the loss, where the fast model calls oneDNN for each of its chunks."""
    forbid(monkeypatch, "linear_by_onednn")
    batch = batch_of(WIDE.config, 32, 16, 16)
    control, fast = (trainings(WIDE)[engine]() for engine in ("ours, F.linear", "ours"))
    control.step(batch)
    control.mean_loss(batch).backward()
    with pytest.raises(AssertionError, match="not to be called"):
        fast.step(batch)


@pytest.mark.parametrize(
    "family", ["products", "steps", "searches", "attention of a step", "projections", "masks"]
)
def test_what_is_timed_beside_a_kernel_computes_what_it_does(family, monkeypatch):
    """For the smallest shapes of each; steps take the same matrices in turn."""
    monkeypatch.setattr(kernels, "WEIGHTS", 2**21)
    for case in list(kernels.FAMILIES[family]())[:6]:
        for _ in range(3):
            theirs, ours = case.theirs(), case.ours()
            pairs = [(theirs, ours)] if isinstance(theirs, torch.Tensor) else zip(theirs, ours, strict=True)
            for one, other in pairs:
                torch.testing.assert_close(one, other, atol=2e-3, rtol=1e-3)


def test_kernels_are_timed_shape_by_shape(monkeypatch, capsys):
    """A kernel that takes half the time is twice as fast."""

    def busy(seconds):
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass

    def family():
        yield kernels.Case("half", "1 × 1", partial(busy, 0.004), partial(busy, 0.002), True)

    monkeypatch.setattr(kernels, "FAMILIES", {"made up": family})
    (row,) = kernels.measure_kernels(3, seed=0)["made up"]
    assert row["kernel"] == "half" and row["chosen"]
    assert 1.7 < row["gain"] < 2.3 and row["quartiles"][0] <= row["quartiles"][1]
    assert row["theirs"] / row["ours"] == row["gain"] and "half" in capsys.readouterr().out


def test_levers_are_switched_on_one_by_one():
    """Each setup differs from the one before in one thing; the first has nothing, the last everything."""
    found = [vars(setup) for setup in levers.setups().values()]
    assert set(found[0].values()) == {False, "float32"} and set(found[-1].values()) == {True, "bfloat16"}
    for before, after in zip(found, found[1:]):
        assert sum(before[key] != after[key] for key in before) == 1


def test_levers_lead_from_the_plain_model_to_the_fast_one():
    """The first has no fast part, each lever exchanges one kind, the last has all and is the fast one."""
    models = {name: levers.model_of(SMALL, setup, 0) for name, setup in levers.setups().items()}
    assert {name for name, model in models.items() if type(model) is not Transformer} == {
        "loss in chunks",
        "bfloat16",
    }
    kinds = {name: {type(module) for module in model.modules()} for name, model in models.items()}
    fast = {faster for _, faster in levers.FAST_PARTS.values()}
    assert not kinds["plain"] & fast and not kinds["batches by length"] & fast
    assert kinds["dense layers"] & fast == {FastLinear}
    assert kinds["attention"] & fast == {FastLinear, FastMultiHeadAttention}
    assert kinds["dropout"] & fast == fast == kinds["loss in chunks"] & fast
    assert nn.Linear not in kinds["dense layers"] and nn.Dropout not in kinds["dropout"]


def test_every_lever_computes_the_same_loss_and_gradient():
    """Dropout off: what differs is how, not what."""
    batch = batch_of(SMALL.config, 16, 16, 16)
    results = {}
    for name, setup in levers.setups().items():
        step = peers.Training(levers.model_of(SMALL, setup, 0), SMALL, setup.precision, CPU)
        step.model.eval()
        loss = step.mean_loss(batch)
        loss.backward()
        results[name] = loss, torch.cat([p.grad.flatten() for p in step.model.parameters()])
    for name, (loss, gradient) in results.items():
        rtol = 0.02 if name == "bfloat16" else 1e-5
        torch.testing.assert_close(loss.float(), results["plain"][0], rtol=rtol, atol=0)
        distance = (gradient - results["plain"][1]).norm() / gradient.norm()
        assert distance < (0.1 if name == "bfloat16" else 1e-5)


def test_the_compiled_row_is_compiled(monkeypatch, capsys):
    """The plain model's loss passes through `torch.compile`, that of the other two does not."""
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda loss: compiled.append(loss) or loss)
    batch = batch_of(SMALL.config, 8, 8, 8)
    found = training.measure_compiled(SMALL, batch, CPU, rounds=1, seed=0)
    assert compiled == [peers.teacher_forced_loss] and found["first step"] > 0
    assert [row["model"] for row in found["engines"].values()] == [
        "Transformer",
        "Transformer",
        "FastTransformer",
    ]
    assert "the first compiled one" in capsys.readouterr().out


def test_levers_are_measured_on_the_same_sentences(capsys):
    """Random batches are more, and padded; every setup is timed and its saved bytes are counted."""
    found = levers.measure_levers(SMALL, 200, 2, CPU, rounds=1, seed=0)
    assert list(found["levers"]) == list(levers.LEVERS) and found["tokens"]["target"] > 300
    plain, fast = found["levers"]["plain"], found["levers"]["loss in chunks"]
    assert plain["batches"] > fast["batches"] == 2 and plain["padding waste"] > fast["padding waste"]
    assert plain["gain"]["median"] == plain["beside plain"]["median"] == 1
    assert all(
        lever["saved bytes"] > 0 and lever["seconds"]["median"] > 0 for lever in found["levers"].values()
    )
    assert "From plain to fast" in capsys.readouterr().out


def test_levers_are_measured_on_real_sentences_too(capsys):
    """Of the corpus, after what the predictions need; sentences in random order have more padding."""
    size = replace(SMALL, config=replace(SMALL.config, src_vocab_size=1000, tgt_vocab_size=1000))
    found = levers.measure_on_text("phrases", size, 300, 2, CPU, rounds=1, seed=0)
    assert list(found["levers"]) == list(levers.LEVERS) and found["corpus"] == "phrases"
    assert found["levers"]["plain"]["padding waste"] > 2 * found["levers"]["dropout"]["padding waste"]
    before = found["before"]
    assert set(before["best products"]) == {"float32", "bfloat16"} and before["bandwidth"]["memory"] > 0
    assert all(sum(shares.values()) == pytest.approx(1) for shares in before["shares"].values())
    assert "From plain to fast" in capsys.readouterr().out


def test_one_thread_is_timed_by_what_it_spends(monkeypatch):
    """Sleep is no work of one thread; two threads are timed by the wall clock."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert measure.seconds(lambda: time.sleep(0.05), CPU) < 0.04
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert measure.seconds(lambda: time.sleep(0.05), CPU) >= 0.05


def test_parts_by_formula_are_what_torch_counts():
    """Operations of the products, on the tensors that the parts really get."""
    parts = roofline.parts_of(SMALL, CPU, seed=0)
    formula = roofline.work_by_formula(SMALL.config, roofline.SENTENCES * roofline.LENGTH, roofline.LENGTH)
    assert parts.keys() == formula.keys()
    for name, part in parts.items():
        assert (part.flops, part.bytes) == formula[name]
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            part.work()
        if "dense" in name or "logits" in name:
            assert counter.get_total_flops() == part.flops
        else:
            assert counter.get_total_flops() in (0, part.flops)


def test_bytes_of_a_part_by_hand():
    """Two tokens, width 1, hidden width 3, vocabulary 5: a dense layer reads 2 + 3 and writes 6 numbers."""
    config = TransformerConfig(5, 5, d_model=1, n_heads=1, n_layers=1, d_ff=3)
    formula = roofline.work_by_formula(config, 2, 2)
    assert formula["dense layer"] == (2 * 2 * 3, 4 * (2 + 3 + 6))
    assert formula["logits, one row"] == (2 * 5, 4 * (1 + 5 + 5))
    assert formula["attention"] == (4 * 2 * 2, 4 * 4 * 2)


@pytest.mark.parametrize("engine", ["ours", "ours, F.linear", "ours, plain", "torch.nn"])
def test_a_step_changes_the_weights(engine):
    """A step that trained nothing would be fast."""
    step = trainings()[engine]()
    before = [parameter.detach().clone() for parameter in step.model.parameters()]
    step.step(batch_of(SMALL.config, 2, 4, 4))
    assert all(not torch.equal(a, b) for a, b in zip(before, step.model.parameters()))


def test_no_search_ends_early():
    """The end token's logit is zero, and never the highest: 32 tokens come out, none of them an end."""
    size = workload.Size("wide", TransformerConfig(500, 500, d_model=32, n_heads=2, n_layers=1, d_ff=32))
    found = peers.searches(size, CPU)
    src = workload.decoding_sources(size.config, 4)
    ours = decoding.checked(found["ours"], src, 1)
    for name in ("ours, plain", "torch.nn, no cache"):
        assert torch.equal(decoding.checked(found[name], src, 1), ours)
    assert decoding.checked(found["ours"], src, 4).shape == (4, 32)
    assert decoding.same(ours, ours) == 1.0
    with torch.no_grad():
        table = found["ours"].args[0].output.weight
        table[size.config.eos_id] = 10 * table[ours[0, 0]]
    with pytest.raises(ValueError, match="ended before 32"):
        decoding.checked(found["ours"], src, 1)


# Counting and reporting


def test_saved_bytes_of_a_chain_counted_by_hand():
    """A product keeps its input, a sine its own; a view is the same storage, and a weight does not count."""
    layer = nn.Linear(4, 8, bias=False)
    x = torch.randn(2, 4)

    def loss():
        y = layer(x)  # keeps x, 2·4 numbers, and the weight
        return y.view(16).sin().sum()  # keeps the view of y, 16 numbers

    assert measure.saved_bytes(layer, loss) == 4 * (8 + 16)
    assert measure.saved_bytes(layer, lambda: layer(x).exp().exp().sum()) == 4 * (8 + 16 + 16)


def test_saved_bytes_grow_with_the_batch():
    """Twice the sentences keep twice the bytes, up to the causal mask."""
    step = trainings()["ours"]()
    small, large = (
        measure.saved_bytes(step.model, partial(step.mean_loss, batch_of(SMALL.config, rows, 6, 6)))
        for rows in (4, 8)
    )
    assert 1.9 < large / small <= 2.0


def test_operations_are_counted_without_views():
    """A product, an addition and a sine; transposing moves nothing."""
    x = torch.randn(3, 3)
    with measure.OperationCounter() as counter:
        ((x.t() @ x).view(9) + 1).sin()
    assert counter.count == 3


def test_a_ratio_is_the_median_of_those_within_the_rounds():
    """Which need not be the ratio of the medians, here 20."""
    assert measure.spread([7.0]) == {"median": 7.0, "min": 7.0, "max": 7.0, "rounds": [7.0]}
    ratios = measure.ratios_to_ours({"ours": [1.0, 10.0, 1.0], "other": [1.0, 20.0, 30.0]})
    assert ratios["other"] == {"median": 2.0, "min": 1.0, "max": 30.0, "rounds": [1.0, 2.0, 30.0]}
    assert measure.ratio_text(ratios["other"]) == "2.00 (1.00–30.00)"
    assert measure.milliseconds_text(measure.spread([0.001, 0.002])) == "1.5 (1.0–2.0)"
    with pytest.raises(ValueError):
        measure.ratio([1.0, 2.0], [1.0])


def test_rounds_are_interleaved_and_the_warm_up_does_not_count():
    """One run of each in turn, in every second round in reversed order."""
    order: list[str] = []
    works = {name: lambda name=name: order.append(name) for name in "ab"}
    times = measure.interleaved(works, rounds=2, device=CPU)
    assert "".join(order) == "abbaab"
    assert {name: len(values) for name, values in times.items()} == {"a": 2, "b": 2}


def test_a_table_is_aligned():
    """Text to the left, numbers to the right, a dash for what there is not."""
    assert measure.table("Title", ["engine", "ms"], [["ours", 5], ["torch.nn", None]]).splitlines() == [
        "Title",
        "",
        "engine    ms",
        "--------  --",
        "ours       5",
        "torch.nn   –",
    ]


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        ("aten::addmm", "matrix products"),
        ("aten::convolution_backward", "matrix products"),
        ("aten::logsumexp", "softmax and loss"),
        ("aten::exp_", "softmax and loss"),
        ("aten::expand", "other"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "attention"),
        ("aten::_log_softmax", "softmax and loss"),
        ("aten::bernoulli_", "dropout"),
        ("aten::native_layer_norm_backward", "norms"),
        ("aten::_fused_adam_", "optimiser"),
        ("aten::linalg_vector_norm", "optimiser"),
        ("aten::copy_", "copies"),
        ("aten::add", "other"),
    ],
)
def test_operations_are_sorted_by_kind(operation, kind):
    """By name; what fits nowhere is other."""
    assert training.kind_of(operation) == kind


def test_a_profile_accounts_for_the_whole_step():
    """Shares sum to one, and a Transformer's step has products, norms and an optimizer in it."""
    step = trainings()["ours"]()
    found = training.profile_step(step, batch_of(SMALL.config, 4, 6, 6))
    assert abs(sum(found["shares"].values()) - 1) < 1e-9
    assert min(found["shares"][kind] for kind in ("matrix products", "norms", "optimiser")) > 0
    assert found["operations"] > 100


def test_the_peak_of_a_product_is_that_of_the_best():
    """Every product's rate is recorded, the best ones by name."""
    found = measure.product_peak("float32", CPU, shapes=[(64, 32, 48), (32, 64, 16)], repeats=1)
    assert found["flops"] == max(product["flops"] for product in found["products"])
    assert {"F.linear", "ours"} <= {product["kernel"] for product in found["products"]}
    x, weight = torch.randn(200, 5), torch.randn(7, 5)
    torch.testing.assert_close(measure._our_layer(weight)(x), F.linear(x, weight))
    assert (
        any(product["kernel"] == "oneDNN" for product in found["products"])
        == transformer.speed.kernels.HAS_ONEDNN
    )


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have other rules")
def test_freed_memory_is_returned_in_one_process_and_kept_in_the_other(capsys):
    batches = [batch_of(WIDE.config, 256, 16, 16)]
    found = measure_allocator([(WIDE, batches)], rounds=7, seed=0)["wide"]
    assert found["kept"]["faults"]["median"] < found["returned"]["faults"]["median"] / 2
    returned, kept = (found[name]["seconds"]["rounds"] for name in ("returned", "kept"))
    assert found["gain"]["rounds"] == [one / other for one, other in zip(returned, kept, strict=True)]
    assert len(kept) == 7 and "page faults" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell")
def test_peak_memory_asks_every_engine_for_what_it_can(monkeypatch, capsys):
    """Each process that the parent begins finds the engine that it is told to measure."""
    monkeypatch.setitem(workload.SIZES, SMALL.name, SMALL)

    def in_this_process(command, **kwargs):
        monkeypatch.setattr(sys, "argv", command[2:])
        peak.main()
        return subprocess.CompletedProcess(command, 0, capsys.readouterr().out)

    monkeypatch.setattr(peak.subprocess, "run", in_this_process)
    found = peak.measure_peak(SMALL, CPU, 0)["bytes"]
    assert found.keys() == set(peak.WORKS) and all("ours" in engines for engines in found.values())
    assert "ours, F.linear" in found["training step"] and "ours int8" in found["beam search"]
    assert all(isinstance(held, int) for engines in found.values() for held in engines.values())


@pytest.mark.slow
def test_the_peak_of_a_process_is_its_own():
    """A parent that holds much memory, or held it, leaves its child's peak alone."""
    held = torch.zeros(1000 * measure.MIB // 4).add_(1)
    assert peak.resident_peak() > 1000 * measure.MIB
    command = [sys.executable, "-c", "from benchmarks.peak import resident_peak; print(resident_peak())"]
    done = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, check=True)
    assert int(done.stdout) < 900 * measure.MIB and held[-1] == 1


# The command


@pytest.mark.filterwarnings("ignore:this PyTorch has no product of bytes")
def test_quality_is_scored_in_both_precisions(capsys):
    translator, pairs = Translator.load("phrases"), load_corpus("phrases", "test")[:20]
    found = measure_quality("some", translator, pairs)
    assert found["pairs"] == 20 and list(found["searches"]) == ["greedy", "beam 4"]
    for scores in found["searches"].values():
        float32, int8 = (scores[precision]["BLEU-tok"]["score"] for precision in ("float32", "int8"))
        assert float32 > 90 and abs(float32 - int8) < 10
    assert "beam 4, int8" in capsys.readouterr().out


@pytest.fixture
def here(monkeypatch):
    """Sections run in this process, so that they can be exchanged."""
    monkeypatch.setattr(bench, "in_new_process", bench.measure)


@pytest.mark.slow
def test_a_section_runs_in_a_process_of_its_own(monkeypatch):
    monkeypatch.delenv("TRANSFORMER_DATA", raising=False)
    found = bench.in_new_process("padding", bench.read_arguments(["--threads", "1"]))
    assert list(found) == ["phrases"] and all(row["waste"] < 0.05 for row in found["phrases"])


@pytest.mark.parametrize(
    ("arguments", "precisions"), [([], ["float32", "bfloat16"]), (["--precision", "float32"], ["float32"])]
)
def test_training_is_measured_in_the_precision_asked_for(monkeypatch, arguments, precisions):
    seen = []
    monkeypatch.setattr(bench, "measure_training", lambda sizes, *_: seen.extend(sizes))
    bench.training(bench.read_arguments(arguments))
    assert [size[-1] for size in seen] == [precisions]


def test_a_machine_that_is_held_to_a_part_of_its_instructions_says_so(monkeypatch):
    for name in measure.LIMITS:
        monkeypatch.delenv(name, raising=False)
    assert "limits" not in measure.machine_facts(CPU)["machine"]
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    assert measure.machine_facts(CPU)["machine"]["limits"] == {"ATEN_CPU_CAPABILITY": "avx2"}


def test_two_threads_are_two_whatever_was_asked_for(monkeypatch):
    """The section says so itself, because the record's machine has the threads of the other sections."""
    before = torch.get_num_threads()
    monkeypatch.setattr(bench, "measure_training", lambda *_: {"inside": torch.get_num_threads()})
    try:
        assert bench.two_threads(bench.read_arguments(["--threads", "1"])) == {"threads": 2, "inside": 2}
    finally:
        torch.set_num_threads(before)


@pytest.mark.usefixtures("here")
def test_the_command_writes_one_record(monkeypatch, tmp_path, capsys):
    """Facts of the run, the sections asked for, and nothing else in the folder."""
    monkeypatch.setitem(bench.SECTIONS, "decoding", lambda options: {"answer": 42})
    path = tmp_path / "deep" / "bench.json"
    bench.main(["--only", "decoding", "--rounds", "2", "--output", str(path)])
    record = json.loads(path.read_text(encoding="utf8"))
    assert record["decoding"]["answer"] == 42 and record["seed"] == 0 and record["rounds"] == 2
    facts = {"command", "commit", "date", "device", "versions", "machine", "peers"}
    assert facts <= record.keys() and "training" not in record
    assert record["machine"]["threads"] == torch.get_num_threads() and record["peers"]["torch"]
    assert [entry.name for entry in path.parent.iterdir()] == ["bench.json"]
    assert "written:" in capsys.readouterr().out


@pytest.mark.usefixtures("here")
def test_sections_measured_before_stay_if_nothing_else_has_changed(monkeypatch, tmp_path):
    for name in ("decoding", "peak"):
        monkeypatch.setitem(bench.SECTIONS, name, lambda options, name=name: {"answer": name})
    path = tmp_path / "bench.json"
    arguments = ["--rounds", "2", "--output", str(path)]
    bench.main(["--only", "decoding", *arguments])
    bench.main(["--only", "peak", *arguments])
    record = json.loads(path.read_text(encoding="utf8"))
    assert [record[name]["answer"] for name in ("decoding", "peak")] == ["decoding", "peak"]
    assert record["decoding"]["commit"] == record["commit"] and "date" in record["peak"]
    others = ["--rounds", "3", "--output", str(path)]
    with pytest.raises(ValueError, match=r"bench.json has .* with other rounds: decoding; choose"):
        bench.main(["--only", "peak", *others])
    assert json.loads(path.read_text(encoding="utf8")) == record
    bench.main(["--only", "peak", "--only", "decoding", *others])  # nothing would be lost
    assert json.loads(path.read_text(encoding="utf8"))["rounds"] == 3


@pytest.mark.usefixtures("here")
def test_a_run_that_breaks_off_leaves_the_old_record(monkeypatch, tmp_path):
    """Whole or not at all."""

    def stop(options):
        raise KeyboardInterrupt

    monkeypatch.setitem(bench.SECTIONS, "decoding", stop)
    path = tmp_path / "bench.json"
    path.write_text("{}")
    with pytest.raises(KeyboardInterrupt):
        bench.main(["--only", "decoding", "--output", str(path)])
    assert path.read_text() == "{}" and [entry.name for entry in tmp_path.iterdir()] == ["bench.json"]


def test_missing_peers_are_named(monkeypatch):
    """A line for each that is not installed."""
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    lines = peers.missing_peers()
    assert len(lines) == 2 and lines[0].startswith("transformers is not installed")


@pytest.mark.parametrize("arguments", [["--rounds", "0"], ["--threads", "0"], ["--only", "nothing"]])
def test_arguments_out_of_range_are_refused(arguments, capsys):
    """By argparse, with its exit status."""
    with pytest.raises(SystemExit):
        bench.read_arguments(arguments)
    assert "usage" in capsys.readouterr().err


# What the chapter on text reports of a corpus


def test_facts_by_hand(monkeypatch):
    splits = {
        "train": [Pair("a b", "x"), Pair("a b", "x"), Pair("c", "c")],
        "dev": [Pair("a d", "x")],
        "test": [Pair("c", "c"), Pair("d", "y z")],
    }
    monkeypatch.setattr(corpus, "load_corpus", lambda name, split: splits[split])
    every = corpus_facts("ours", sizes=(20,), budgets=(8,), dropouts=(0.0, 0.9))
    facts = every["splits"]
    (usual, most), ((_, *pieces),) = every["dropout"], every["vocabularies"]
    assert usual == [0.0, *pieces] and most[0] == 0.9 and most[1] > pieces[0]
    assert facts["train"] == {
        "pairs": 3, "tokens": [5, 3], "types": [3, 2], "lengths": [[(1, 1), (2, 2)], [(1, 3)]],
        "repeated": 1, "equal sides": 1, "in train": 3, "unknown": [0.0, 0.0],
    }  # fmt: skip
    assert facts["dev"]["unknown"] == [0.5, 0.0] and facts["test"]["unknown"] == [0.5, 2 / 3]
    assert facts["test"]["in train"] == 1


@pytest.mark.slow
def test_batches_in_turn_waste_much():
    train = load_corpus("phrases", "train")
    encoded = encode_pairs(train, Vocabulary.train((side for pair in train for side in pair), 800))
    assert padding_waste(corpus.in_turn(encoded, 4096)) > 0.3
