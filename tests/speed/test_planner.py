"""The planner's arithmetic, held against what is allocated, sent and published."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import distributed

from transformer import TrainingConfig, Transformer, TransformerConfig, accelerate, teacher_forced_loss
from transformer.modern.language_model import LanguageModel, LanguageModelConfig
from transformer.runs.update import Updater
from transformer.speed.costs import (
    PROGRAMS,
    Cluster,
    ModelShape,
    Split,
    Work,
    ring_bytes,
    step_memory,
    step_time,
    training_flops,
)
from transformer.speed.planner import allocated_peak, plan, predict, splits

A100 = Cluster(devices=32, memory=80e9, flops=312e12, bandwidth=2.04e12, link=300e9, network=25e9)
GPT = ModelShape(layers=24, d_model=2304, d_ff=4 * 2304, vocab_size=51_200, n_heads=24)  # 1.7B


def allocated(config: TransformerConfig, work: Work) -> int:
    """What the trainer's second update holds at most, in bytes, with weights and averages."""
    torch.manual_seed(0)
    model = Transformer(config) if "plain" in work.program else accelerate(Transformer(config))
    src = torch.randint(4, config.tgt_vocab_size, (work.batch, work.length))
    tgt = torch.randint(4, config.tgt_vocab_size, (work.batch, work.length + 1))
    src[0, -1] = tgt[0, -1] = 0
    tgt[:, 0] = config.bos_id
    settings = TrainingConfig(2, precision=work.program.split()[0])
    update = Updater(model, teacher_forced_loss, lambda step: 1e-3, settings)
    update([(src, tgt)])
    update.optimizer.zero_grad()
    return 12 * sum(p.numel() for p in model.parameters()) + allocated_peak(lambda: update([(src, tgt)]))


@pytest.mark.filterwarnings("ignore:this processor has no units")
@pytest.mark.parametrize("program", [name for name in PROGRAMS if name != "mixed"])
@pytest.mark.parametrize(
    ("d_model", "depth", "vocab_size", "batch", "length", "norm_first"),
    [(64, 2, 500, 16, 16, True), (128, 1, 6000, 12, 16, False), (256, (1, 2), 500, 4, 40, True)],
    ids=["activations", "logits", "weights"],
)
def test_a_step_takes_the_memory_that_is_predicted(
    program, d_model, depth, vocab_size, batch, length, norm_first
):
    sizes = dict(n_heads=4, n_layers=depth, d_ff=4 * d_model, norm_first=norm_first)
    config = TransformerConfig(vocab_size, vocab_size, d_model=d_model, **sizes)
    shape, work = ModelShape.of(config), Work(batch, length, program)
    predicted = step_memory(shape, work, Split(micro=batch))
    assert sum(predicted.values()) == pytest.approx(allocated(config, work), rel=0.1)


@pytest.mark.parametrize(
    "changes", [{}, {"bias": False}, {"n_layers": (1, 3)}, {"tie_embeddings": False}], ids=str
)
def test_the_number_of_parameters_is_the_models(changes):
    sizes = dict(d_model=12, n_heads=3, n_layers=2, d_ff=20)  # post-norm, without norms on top
    model = Transformer(TransformerConfig(30, 30, **sizes | changes))
    assert ModelShape.of(model.config).parameters == sum(p.numel() for p in model.parameters())


def test_the_peak_of_a_call_is_what_it_holds_at_once():
    def work() -> None:
        first = torch.ones(2**18)  # 1 MiB
        second = first + 1
        del first
        second + 1

    assert allocated_peak(work) == pytest.approx(2 * 2**20, abs=100)  # numbers as tensors, too
    assert allocated_peak(lambda: None) == 0


def written() -> int:
    """Bytes that this process has written, to sockets as well."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["wchar"])


def main() -> None:
    """As one of two processes: print what each collective of a megabyte of floats sends."""
    rank, folder = int(sys.argv[1]), sys.argv[2]
    store = f"file://{folder}/store"
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    whole, part = torch.ones(2**20), torch.ones(2**19)
    works = {
        "all-reduce": lambda: distributed.all_reduce(whole),
        "all-gather": lambda: distributed.all_gather_into_tensor(whole, part),
        "reduce-scatter": lambda: distributed.reduce_scatter_tensor(part, whole),
    }
    found = {}
    for name, work in works.items():
        work()  # the first one makes connections
        before = written()
        for _ in range(4):
            work()
        distributed.barrier()
        found[name] = (written() - before) / 4
    print(json.dumps(found), flush=True)
    distributed.destroy_process_group()


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the system does not count what is written")
def test_processes_send_the_bytes_that_are_predicted(tmp_path):
    commands = [[sys.executable, __file__, str(rank), str(tmp_path)] for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        run = partial(subprocess.run, stdout=subprocess.PIPE, text=True, timeout=120, check=True)
        found = [json.loads(done.stdout.splitlines()[-1]) for done in pool.map(run, commands)]
    once = ring_bytes(4 * 2**20, 2)
    for sent in found:
        assert sent["all-reduce"] == pytest.approx(2 * once, rel=0.02)
        assert sent["all-gather"] == pytest.approx(once, rel=0.02)
        assert 0.98 * once < sent["reduce-scatter"] < 2.04 * once  # gloo may sum everything everywhere


@pytest.mark.parametrize(
    ("shape", "devices", "batch", "split", "published"),
    [
        (GPT, 32, 512, Split(data=32, recompute=True), 137e12),
        (
            replace(GPT, layers=128, d_model=25_600, d_ff=102_400, n_heads=160),
            3072,
            3072,
            Split(data=6, tensor=8, pipeline=64, chunks=2, recompute=True),
            163e12,
        ),
        (
            replace(GPT, layers=96, d_model=12_288, d_ff=49_152, n_heads=96),
            1536,
            1536,
            Split(data=16, tensor=8, pipeline=12, recompute=True),
            141e12,
        ),
    ],
    ids=["1.7B", "1T", "175B"],
)
def test_published_runs_are_met_within_a_tenth(shape, devices, batch, split, published):
    # Narayanan et al. (2021), tables 1 and 2; their operations count what is computed again.
    found = predict(shape, Work(batch, 2048, fused=False), split, replace(A100, devices=devices))
    assert found.rate == pytest.approx(published, rel=0.1)
    assert found.limit == "arithmetic" and found.bytes < 80e9


def test_the_operations_are_those_of_the_paper():
    # Narayanan et al. (2021), equation 3, with activations computed again.
    B, s, l, h, V = 512, 2048, 24, 2304, 51_200
    wanted = 96 * B * s * l * h**2 * (1 + s / (6 * h) + V / (16 * l * h))
    assert training_flops(GPT, Work(B, s), recompute=True) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
def test_heads_that_share_keys_are_counted_as_their_model_has_them(n_kv_heads):
    sizes = dict(d_model=32, n_heads=4, n_kv_heads=n_kv_heads, d_ff=48)
    model = LanguageModel(LanguageModelConfig(100, n_layers=2, **sizes))
    matrices = sum(p.numel() for name, p in model.named_parameters() if p.ndim > 1 and "embed" not in name)
    assert ModelShape(layers=2, vocab_size=100, gated=True, **sizes).matrices == matrices


def test_utilization_counts_only_what_the_model_needs():
    work, cluster = Work(64, 2048), replace(A100, devices=8)
    splits = [Split(data=8, micro=8, recompute=again) for again in (False, True)]
    kept, again = (predict(GPT, work, split, cluster) for split in splits)
    needed, done = (training_flops(GPT, work, recompute) for recompute in (False, True))
    assert kept.utilization * kept.seconds == pytest.approx(again.utilization * again.seconds)
    assert again.rate * again.seconds / (kept.rate * kept.seconds) == pytest.approx(done / needed)


def test_gradients_travel_while_devices_compute():
    work, split = Work(64, 2048), Split(data=8, micro=8)
    fast, slow = (replace(A100, devices=8, link=link) for link in (300e9, 1e9))
    seconds = [step_time(GPT, work, split, cluster) for cluster in (fast, slow)]
    sent = 2 * ring_bytes(2 * GPT.parameters, 8) + 3 * ring_bytes(2 * GPT.parameters, 1)
    busy = sum(seconds[1][name] for name in ("arithmetic", "bandwidth", "launches"))
    assert seconds[0]["data"] == 0 and sent / 1e9 > busy
    assert seconds[1]["data"] == pytest.approx(sent / 1e9 - busy, rel=1e-3)


def test_a_ring_is_as_fast_as_its_slowest_link():
    # Eight devices to a machine: four that lie side by side stay within it, and four of every fourth do not.
    assert [A100.rate(4), A100.rate(4, 2), A100.rate(4, 4), A100.rate(16)] == [300e9, 300e9, 25e9, 25e9]


def test_a_division_divides():
    # Each degree leaves 1/n of what it divides, and costs what it sends.
    work, one = Work(64, 2048), Split(micro=8)
    whole, cluster = step_memory(GPT, work, one), replace(A100, devices=8)
    halves = step_memory(GPT, work, replace(one, tensor=2))
    assert (
        halves["parameters"] == whole["parameters"] / 2 and whole["activations"] / 2 < halves["activations"]
    )
    assert (
        step_memory(GPT, work, replace(one, tensor=2, sequence=True))["activations"] < halves["activations"]
    )
    shards = step_memory(GPT, work, replace(one, data=8, shard=8))
    assert [shards[name] * 8 for name in ("parameters", "averages")] == [
        whole[name] for name in ("parameters", "averages")
    ]
    again = replace(one, recompute=True)
    assert step_memory(GPT, work, again)["activations"] < whole["activations"] / 4
    times = {
        name: step_time(GPT, work, split, cluster)
        for name, split in {
            "data": Split(data=8),
            "tensor": Split(tensor=8),
            "pipeline": Split(pipeline=8),
        }.items()
    }
    assert [name for name, time in times.items() if time["tensor"]] == ["tensor"]
    assert times["pipeline"]["bubble"] > 0 == times["data"]["bubble"] == times["tensor"]["bubble"]
    assert times["pipeline"]["bubble"] == pytest.approx(
        7 / 64 * (times["pipeline"]["arithmetic"] + times["pipeline"]["bandwidth"])
    )


def test_the_plan_is_the_fastest_split_that_fits():
    cluster, work = replace(A100, devices=16, memory=30e9), Work(64, 2048)
    best = plan(GPT, work, cluster)
    plans = [predict(GPT, work, split, cluster) for split in splits(GPT, work, cluster)]
    fitting = [one for one in plans if one.bytes <= cluster.memory]
    assert 0 < len(fitting) < len(plans)
    assert best in fitting and best.seconds == min(one.seconds for one in fitting)
    assert best.seconds == pytest.approx(sum(best.time.values()))
    assert best.bytes == pytest.approx(sum(best.memory.values()))
    assert best.utilization < cluster.efficiency


def test_where_nothing_fits_the_plan_says_memory():
    cluster = replace(A100, devices=2, memory=1e9)
    best, work = plan(GPT, Work(2, 2048), cluster), Work(2, 2048)
    assert best.limit == "memory"
    assert best.bytes == min(predict(GPT, work, split, cluster).bytes for split in splits(GPT, work, cluster))


def test_a_small_model_waits_for_its_program():
    config = TransformerConfig(4000, 4000, d_model=128, n_heads=4, n_layers=4, d_ff=512)
    assert plan(config, Work(64, 32, "bfloat16"), replace(A100, devices=1)).limit == "launches"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": 16}, "data · tensor · pipeline must be 32"),
        ({"shard": 5}, "shard must divide data, which is 32"),
        ({"micro": 3}, "data · micro must divide batch, which is 512"),
        ({"data": 1, "tensor": 32}, "tensor must divide the heads, of which there are 24"),
        ({"data": 1, "pipeline": 32}, "pipeline must be at most 24"),
        ({"data": 4, "pipeline": 8, "chunks": 4}, "chunks must be at most 3"),
        ({"data": 0}, "data must be at least 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_is_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        predict(GPT, Work(512, 2048), replace(Split(data=32), **changes), A100)


def test_other_nonsense_is_refused():
    config = TransformerConfig(40, 40, d_model=16, n_heads=2)
    with pytest.raises(ValueError, match="pipeline must be 1 with an encoder"):
        predict(ModelShape.of(config), Work(8, 8), Split(pipeline=2), replace(A100, devices=2))
    with pytest.raises(ValueError, match="batch must divide among 32 devices, but 3 does not"):
        plan(GPT, Work(3, 2048), replace(A100, network=25e9, per_node=1))
    with pytest.raises(TypeError, match="config must be"):
        plan("base", Work(8, 8), A100)
    with pytest.raises(ValueError, match="program must be"):
        predict(GPT, Work(512, 2048, "float8"), Split(data=32), A100)


if __name__ == "__main__":
    main()
