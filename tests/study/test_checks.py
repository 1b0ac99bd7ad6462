"""The clinic: right models pass every check, each broken one fails the checks meant for it and no other."""

from __future__ import annotations

import copy
import dataclasses
import functools
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from foreign import OfTorch, V, future
from helpers import make_config, refuses
from torch import Tensor, nn

import transformer.attention
from transformer import LayerNorm, Transformer, accelerate, causal_mask, check_model, greedy_search
from transformer.__main__ import main
from transformer.attention import KeyValueCache
from transformer.modern.language_model import LanguageModel, LanguageModelConfig, generate
from transformer.modern.parts import RoutedFeedForward
from transformer.study.model_checks import (
    Adapted,
    CheckReport,
    CheckResult,
    decoder_only,
    find_logits,
    seq2seq,
)

ROOT = Path(__file__).resolve().parents[2]
NAMES = (
    "logits", "repeatable", "scores", "dropout", "future", "padding", "batch", "source reach",
    "target reach", "source positions", "target positions", "empty source", "one token", "gradients",
    "search",
)  # fmt: skip


config = functools.partial(make_config, V, n_layers=1, max_length=9, dropout=0.1)


def check(model: nn.Module, **options) -> CheckReport:
    return check_model(model, V, V, **options)


def result(report: CheckReport, name: str) -> CheckResult:
    (found,) = (found for found in report.results if found.name == name)
    return found


# Right models


CONFIGURATIONS = [
    {"norm_first": True, "tie_embeddings": False, "tgt_vocab_size": 19},
    {"dropout": 0.0, "n_layers": 2},
    {"dropout": 0.0, "attention_dropout": 0.1, "pad_id": 5, "bos_id": 0},
    {"bias": False, "final_norm": True, "activation": "gelu"},
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "changes"),
    [(lambda model: model, each) for each in CONFIGURATIONS] + [(accelerate, CONFIGURATIONS[0])],
    ids=[*map(str, CONFIGURATIONS), "accelerated"],
)
def test_right_models_pass_everything(made, changes):
    settings = config(**changes)
    model = made(Transformer(settings))
    report = check_model(
        model,
        V,
        settings.tgt_vocab_size,
        settings.pad_id,
        settings.bos_id,
        dropout=settings.dropout + settings.attention_dropout > 0,
        search=greedy_search,
        seed=CONFIGURATIONS.index(changes),
    )
    assert report.passed, report
    assert [found.name for found in report.results] == list(NAMES)
    assert {found.verdict for found in report.results} == {"pass"}
    assert report.arithmetic == "float64"


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_the_precision_of_the_model_plays_no_part(dtype):
    seen = []
    model = Broken({"logits": lambda m, s, t, z: seen.append(z.dtype) or z}).to(dtype)
    report = check(model, tolerance=1e-12)
    assert report.passed and report.arithmetic == "float64"
    assert set(seen) == {torch.float64, dtype}  # an empty source is tried in the model's own precision


class Recurrent(nn.Module):
    """No Transformer at all: an encoder and a decoder that read one token after the other."""

    def __init__(self):
        super().__init__()
        self.table, self.output = nn.Embedding(V, 12, padding_idx=0), nn.Linear(12, V)
        self.encoder, self.decoder = nn.GRUCell(12, 12), nn.GRUCell(12, 12)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        state, states = torch.zeros_like(self.table(src[:, 0])), []
        for ids in src.T:
            state = torch.where(ids[:, None] == 0, state, self.encoder(self.table(ids), state))
        for ids in tgt.T:
            state = self.decoder(self.table(ids), state)
            states.append(state)
        return self.output(torch.stack(states, dim=1))


def routed(model: nn.Module) -> nn.Module:
    """The model, each position-wise network one of eight experts, of which a token uses two."""
    for layer in (*model.encoder.layers, *model.decoder.layers):
        layer.feed_forward = RoutedFeedForward(12, 20)
    return model


@pytest.mark.slow
def test_experts_that_few_tokens_reach_are_alive():
    torch.manual_seed(0)
    model = routed(Transformer(config()))
    F.cross_entropy(model(*asked_first()).transpose(1, 2), asked_first()[1]).backward()
    assert any(p.grad is None or not p.grad.any() for p in model.parameters())  # one pass does not reach all
    report = check(model)
    assert report.passed, report


@pytest.mark.slow
def test_an_expert_that_no_token_can_reach_is_dead():
    class Avoided(nn.Linear):
        def forward(self, x):
            return super().forward(x).index_fill(-1, torch.tensor(7), -torch.inf)

    model = routed(Transformer(config()))
    model.encoder.layers[0].feed_forward.router = Avoided(12, 8, bias=False)
    report = check(model)
    assert report.failures == ("gradients",)
    said = result(report, "gradients").measured
    expert = r"encoder\.layers\.0\.feed_forward\.experts\.7\.\w+\.weight"
    assert re.fullmatch(f"none for {expert}, {expert} and 1 more", said)


class Gated(Transformer):
    """What lies behind the gate is alive, though the gate starts at zero."""

    def __init__(self):
        super().__init__(config())
        self.gate = nn.Parameter(torch.zeros(()))

    def encode(self, src):
        x = self.positions(self.src_embedding(src))
        return x + self.gate * self.encoder(x, self.src_mask(src))


class LogProbabilities(Transformer):
    def project(self, hidden):
        return super().project(hidden).log_softmax(-1)


def with_frozen_encoder():
    model = Transformer(config())
    model.encoder.requires_grad_(False)
    return model


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        OfTorch,
        lambda: OfTorch(norm_first=False),
        Recurrent,
        with_frozen_encoder,
        Gated,
        lambda: LogProbabilities(config()),
        lambda: Broken({"logits": lambda m, s, t, z: z - z.mean(-1, keepdim=True) + 1 / V}),  # sums to one
        lambda: Draws(),
    ],
    ids="torch|torch, pre-norm|recurrent|frozen|gated|log-probabilities|sum of one|drawing".split("|"),
)
def test_right_models_of_other_kinds_pass(make):
    report = check(make())
    assert report.passed, report


# Broken models: a name, the model, what must fail


class Broken(Transformer):
    """A Transformer of which single steps can be replaced by functions."""

    def __init__(self, steps: dict[str, Callable], **changes):
        super().__init__(config(**changes))
        self.steps = steps

    def forward(self, src, tgt):
        if "source" in self.steps:
            src = self.steps["source"](src)
        if "target" in self.steps:
            tgt = self.steps["target"](tgt)
        logits = super().forward(src, tgt)
        return self.steps["logits"](self, src, tgt, logits) if "logits" in self.steps else logits

    def encode(self, src):
        if "encode" in self.steps:
            return self.steps["encode"](self, src)
        return super().encode(src)

    def decode(self, tgt, memory, src_mask=None, cache=None):
        if "decode" in self.steps:
            return self.steps["decode"](self, tgt, memory, src_mask)
        return super().decode(tgt, memory, src_mask, cache)

    def project(self, hidden):
        if "hidden" in self.steps:
            hidden = self.steps["hidden"](self, hidden)
        return super().project(hidden)


def encoded(model, src, mask=None, positions=True):
    x = model.src_embedding(src)
    return model.encoder(model.positions(x) if positions else x, mask)


def decoded(model, tgt, memory, mask, memory_mask, positions=True):
    x = model.tgt_embedding(tgt)
    return model.decoder(model.positions(x) if positions else x, memory, mask, memory_mask)


def causal(model, tgt, memory, src_mask):
    return decoded(model, tgt, memory, causal_mask(tgt.size(1)), src_mask)


def causal_in(training: bool):
    def decode(model, tgt, memory, src_mask):
        mask = causal_mask(tgt.size(1)) if model.training == training else None
        return decoded(model, tgt, memory, mask, src_mask)

    return decode


def one_ahead(model, tgt, memory, src_mask):
    T = tgt.size(1)
    return decoded(model, tgt, memory, torch.ones(1, 1, T, T, dtype=torch.bool).tril(1), src_mask)


def only_itself(model, tgt, memory, src_mask):
    mask = torch.eye(tgt.size(1), dtype=torch.bool)[None, None]
    return decoded(model, tgt, memory, mask, src_mask)


def masked_in_evaluation(model, tgt, memory, src_mask):
    return causal(model, tgt, memory, None if model.training else src_mask)


def mask_of_one_row(model, tgt, memory, src_mask):
    return causal(model, tgt, memory, src_mask[:1])


def blind_to_the_first(model, tgt, memory, src_mask):
    beyond = torch.arange(memory.size(1)) > 0
    return causal(model, tgt, memory, src_mask & beyond)


def encode_blind_to_the_first(model, src):
    return encoded(model, src, model.src_mask(src) & (torch.arange(src.size(1)) > 0))


def last_call_remembered(model, src, tgt, logits):
    before = getattr(model, "before", 0.0)
    model.before = logits.detach().mean()
    return logits + before


def not_finite_backwards(model, hidden):
    return hidden + (hidden * 0).sum().abs().sqrt()


def unused_layer(model: Transformer) -> Transformer:
    model.spare = nn.Linear(3, 3)
    return model


class AlongBatch(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(9, 12))

    def forward(self, x, offset=0):
        return x + self.table[: x.size(0), None]


class NormOverWords(nn.Module):
    def forward(self, x):
        return F.layer_norm(x, x.shape[1:])


def with_positions(positions: nn.Module) -> Transformer:
    model = Transformer(config())
    model.positions = positions
    return model


def with_norms(make: Callable[[], nn.Module], stack: str) -> Transformer:
    model = Transformer(config())
    for module in list(getattr(model, stack).modules()):
        for name, part in module.named_children():
            if isinstance(part, LayerNorm):
                setattr(module, name, make())
    return model


def broken(**steps) -> Callable[[], Transformer]:
    return lambda: Broken(steps)


FAULTS: dict[str, tuple[Callable[[], nn.Module], set[str]]] = {
    "two results": (broken(logits=lambda m, s, t, z: (z, z)), {"logits"}),
    "no logits": (broken(logits=lambda m, s, t, z: {"loss": z.mean(), "hidden": z[..., :-1]}), {"logits"}),
    "integers": (broken(logits=lambda m, s, t, z: (1000 * z).long()), {"logits"}),
    "time first": (broken(logits=lambda m, s, t, z: z.transpose(0, 1)), {"logits"}),
    "a token too many": (broken(logits=lambda m, s, t, z: F.pad(z, (0, 1))), {"logits"}),
    "not finite for short sources": (
        broken(logits=lambda m, s, t, z: z / (s.size(1) >= t.size(1))),
        {"logits"},
    ),
    "one length for both": (broken(logits=lambda m, s, t, z: z + 0 * s[..., None]), {"logits"}),
    "dropout without the flag": (broken(hidden=lambda m, h: F.dropout(h, 0.1)), {"repeatable"}),
    "a state between calls": (broken(logits=last_call_remembered), {"repeatable"}),
    "probabilities": (broken(logits=lambda m, s, t, z: z.softmax(-1)), {"scores"}),
    "no causal mask": (
        broken(decode=lambda m, t, memory, mask: decoded(m, t, memory, None, mask)),
        {"future"},
    ),
    "causal in training only": (broken(decode=causal_in(training=True)), {"future"}),
    "causal in evaluation only": (broken(decode=causal_in(training=False)), {"future"}),
    "one token ahead": (broken(decode=one_ahead), {"future"}),
    "encoder without a mask": (broken(encode=encoded), {"padding"}),
    "memory without a mask": (
        broken(decode=lambda m, t, memory, mask: causal(m, t, memory, None)),
        {"padding"},
    ),
    "memory masked in evaluation only": (
        lambda: Broken({"decode": masked_in_evaluation}, dropout=0.0),
        {"padding"},
    ),
    "mean of the batch": (broken(hidden=lambda m, h: h + h.mean(0)), {"batch"}),
    "numbered rows": (
        broken(hidden=lambda m, h: h + torch.arange(1.0, len(h) + 1)[:, None, None] * h.sin()),
        {"batch"},
    ),
    "mask of one row for all": (broken(decode=mask_of_one_row), {"batch"}),
    "positions along the batch": (
        lambda: with_positions(AlongBatch()),
        {"batch", "source positions", "target positions"},
    ),
    "norm over words in the encoder": (lambda: with_norms(NormOverWords, "encoder"), {"padding"}),
    "norm over words in the decoder": (lambda: with_norms(NormOverWords, "decoder"), {"future"}),
    "source ignored": (
        broken(encode=lambda m, s: torch.zeros(*s.shape, 12, dtype=m.output.weight.dtype)),
        {"source reach", "source positions", "gradients"},
    ),
    "first source token unseen": (
        broken(decode=blind_to_the_first, encode=encode_blind_to_the_first),
        {"source reach"},
    ),
    "all logits equal": (
        broken(logits=lambda m, s, t, z: 0 * z),
        {"source reach", "target reach", "source positions", "target positions", "gradients"},
    ),
    "shift inside": (broken(target=lambda t: F.pad(t[:, :-1], (1, 0), value=2)), {"target reach"}),
    "no history": (broken(decode=only_itself), {"target reach", "target positions"}),
    "source without positions": (
        broken(encode=lambda m, s: encoded(m, s, m.src_mask(s), positions=False)),
        {"source positions"},
    ),
    "target without positions": (
        broken(
            decode=lambda m, t, memory, mask: decoded(
                m, t, memory, causal_mask(t.size(1)), mask, positions=False
            )
        ),
        {"target positions"},
    ),
    "squeeze": (broken(hidden=lambda m, h: h.squeeze()), {"one token"}),
    "memory detached": (broken(encode=lambda m, s: encoded(m, s, m.src_mask(s)).detach()), {"gradients"}),
    "an unused layer": (lambda: unused_layer(Transformer(config())), {"gradients"}),
    "gradients not finite": (broken(hidden=not_finite_backwards), {"empty source", "gradients"}),
}  # fmt: skip


@functools.cache
def report_on(fault: str) -> CheckReport:
    return check(FAULTS[fault][0]())


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_fails_its_checks_and_no_other(name):
    report, expected = report_on(name), FAULTS[name][1]
    assert set(report.failures) == expected, report
    assert not report.passed


# Broken attention


def scores_of(query: Tensor, key: Tensor) -> Tensor:
    return query @ key.transpose(-2, -1) / query.size(-1) ** 0.5


def hidden_by(value: float, mask: Tensor | None, scores: Tensor) -> Tensor:
    return scores if mask is None else scores.masked_fill(~mask, value)


def mask_after_softmax(query, key, value, mask=None, dropout=0.0):
    return hidden_by(0.0, mask, scores_of(query, key).softmax(-1)) @ value


def softmax_over_queries(query, key, value, mask=None, dropout=0.0):
    return hidden_by(-1e9, mask, scores_of(query, key)).softmax(-2) @ value


def softmax_over_batch(query, key, value, mask=None, dropout=0.0):
    weights = scores_of(query, key).softmax(0)
    return hidden_by(0.0, mask, weights) @ value


def nothing_is_nan(query, key, value, mask=None, dropout=0.0):
    return hidden_by(-torch.inf, mask, scores_of(query, key)).softmax(-1) @ value


def nan_replaced_late(query, key, value, mask=None, dropout=0.0):
    scores = scores_of(query, key)
    scores = scores + hidden_by(-torch.inf, mask, torch.zeros_like(scores))
    return scores.softmax(-1).nan_to_num(0.0) @ value


def finite_minus(query, key, value, mask=None, dropout=0.0):
    return hidden_by(-1e9, mask, scores_of(query, key)).softmax(-1) @ value


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attention", "expected"),
    [
        (finite_minus, set()),
        (mask_after_softmax, {"future", "padding"}),
        (softmax_over_queries, {"future", "padding"}),
        (softmax_over_batch, {"batch"}),
        (nothing_is_nan, {"empty source"}),
        (nan_replaced_late, {"empty source"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_faults_of_an_attention(monkeypatch, attention, expected):
    monkeypatch.setattr(transformer.attention, "fused_attention", attention)
    report = check(Transformer(config()))
    assert set(report.failures) == expected, report


# What only the owner knows: dropout and search


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "dropout", "verdict"),
    [
        ({"dropout": 0.0}, True, "FAIL"),
        ({"dropout": 0.0, "attention_dropout": 0.1}, False, "FAIL"),
        ({"dropout": 0.1}, None, "skipped"),
    ],
    ids=str,
)
def test_dropout_is_what_it_is_said_to_be(changes, dropout, verdict):  # right models: above
    report = check(Transformer(config(**changes)), dropout=dropout)
    assert result(report, "dropout").verdict == verdict
    assert report.failures == (("dropout",) if verdict == "FAIL" else ())


@pytest.fixture
def searched() -> Transformer:
    """A model in whose searches no token is repeated for ever."""
    torch.manual_seed(3)
    return Transformer(config(tie_embeddings=False)).eval()


def cached_search(start=2, first=0, masked=True, training=False):
    @torch.no_grad()
    def search(model, src, max_length):
        model.train(training)
        memory, mask, cache = model.encode(src), model.src_mask(src), KeyValueCache()
        tokens = [torch.full((len(src), 1), start)]
        for position in range(first, first + max_length - 1):
            x = model.positions(model.tgt_embedding(tokens[-1]), position)
            hidden = model.decoder(x, memory, None, mask if masked else None, cache)
            tokens.append(model.project(hidden).argmax(-1))
        return torch.cat(tokens[1:], dim=1)

    return search


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "verdict"),
    [
        ({}, "pass"),
        ({"start": 3}, "FAIL"),
        ({"first": 1}, "FAIL"),
        ({"masked": False}, "FAIL"),
        ({"training": True}, "FAIL"),
    ],
    ids=str,
)
def test_a_search_finds_what_the_model_says(searched, options, verdict):
    report = check(searched, search=cached_search(**options))
    assert result(report, "search").verdict == verdict
    assert report.failures == (("search",) if verdict == "FAIL" else ())


# What a model is asked


def asked_first(**options) -> tuple[Tensor, Tensor]:
    """The first sentences that a model is given."""
    asked = []

    class Asked(nn.Module):
        def forward(self, src, tgt):
            asked.append((src, tgt))  # and returns nothing, so that the rest is skipped

    check(Asked(), **options)
    return asked[0]


def test_a_model_that_writes_into_its_input_spoils_nothing():
    def step(model, src, tgt, logits):
        if not torch.is_grad_enabled():  # a backward pass would find it out by itself
            src.fill_(1), tgt.fill_(1)
        return logits

    report = check(Broken({"logits": step}))
    assert report.passed, report


# The report


def test_text_of_a_report():
    report = CheckReport(
        "float64",
        (
            CheckResult("logits", "pass", "shape [1]", ""),
            CheckResult("future", "FAIL", "change: 0.5", "the mask"),
            CheckResult("search", "skipped", "no search was given", ""),
        ),
    )
    assert str(report) == (
        "1 pass, 1 FAIL, 1 skipped; computed in float64\n"
        "pass     logits            shape [1]\n"
        "FAIL     future            change: 0.5\n"
        "         suspects:         the mask\n"
        "skipped  search            no search was given"
    )
    assert report.failures == ("future",) and not report.passed


@pytest.mark.slow
def test_parameters_without_a_gradient_are_named():
    report = check(unused_layer(Transformer(config())))
    assert result(report, "gradients").measured == "none for spare.weight, spare.bias"
    measured = result(report_on("memory detached"), "gradients").measured
    assert re.fullmatch(r"none for encoder\.\S+, encoder\.\S+ and \d+ more", measured)


@pytest.mark.parametrize(
    ("name", "needed"), [("time first", "logits"), ("a state between calls", "repeatable")]
)
def test_where_nothing_can_be_measured_the_rest_is_skipped(name, needed):
    report = report_on(name)
    later = report.results[NAMES.index(needed) + 1 :]
    assert {(found.verdict, found.measured) for found in later} == {("skipped", f"needs {needed!r} to pass")}


def test_a_check_that_raises_has_failed_and_the_others_go_on():
    def step(model, src, tgt, logits):
        if (src == 0).all(dim=1).any():
            raise KeyError("an empty sentence\nand more")
        return logits

    report = check(Broken({"logits": step}))
    assert report.failures == ("empty source",)
    assert result(report, "empty source").measured == "KeyError: 'an empty sentence\\nand more'"
    assert result(report, "gradients").verdict == "pass"


def test_a_model_that_cannot_be_copied_fails_instead_of_raising():
    model = Transformer(config())
    model.kept = model.output.weight * 2  # a tensor with a history
    report = check(model)
    assert report.failures == ("logits",) and "deepcopy" in result(report, "logits").measured


# Precision


class LayerInList(Transformer):
    """Has a layer that it has not registered."""

    def __init__(self):
        super().__init__(config())
        self.more = [nn.Linear(12, 12)]

    def project(self, hidden):
        return super().project(hidden + self.more[0](hidden))


def test_a_model_that_cannot_do_float64_is_checked_as_it_is():
    report = check(LayerInList())
    assert report.passed, report
    assert report.arithmetic.startswith("the model's own precision; in float64, ")


def test_a_softmax_in_float32_is_no_fault(monkeypatch):
    def attention(query, key, value, mask=None, dropout=0.0):
        scores = hidden_by(-1e9, mask, scores_of(query, key))
        return scores.softmax(-1, dtype=torch.float32).to(value.dtype) @ value

    monkeypatch.setattr(transformer.attention, "fused_attention", attention)
    report = check(Transformer(config(n_layers=3)))
    assert report.passed and report.arithmetic == "float64"


# What is known to be invisible from outside


class SampleNorm(nn.Module):
    def forward(self, x):
        return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6)


def strictly_causal(model, tgt, memory, src_mask):
    T = tgt.size(1)
    return decoded(model, tgt, memory, torch.ones(1, 1, T, T, dtype=torch.bool).tril(-1), src_mask)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda: with_norms(SampleNorm, "decoder"),
        broken(decode=strictly_causal),
        broken(encode=lambda m, s: encoded(m, s, m.src_mask(s) & causal_mask(s.size(1)))),
    ],
    ids=["deviation with n - 1", "mask without its diagonal", "causal encoder"],
)
def test_blind_spots_are_as_the_chapter_says(make):
    assert check(make()).passed


# Nothing is left behind


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "training"), [(None, True), (None, False), ("memory detached", True), ("layer in a list", True)]
)
def test_model_and_generators_are_left_as_they_were(name, training):
    model = FAULTS[name][0]() if name in FAULTS else LayerInList() if name else Transformer(config())
    model.train(training).encoder.train(not training)
    model.spare = nn.BatchNorm1d(3)
    model.output.weight.grad = torch.ones_like(model.output.weight)
    before = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    attributes = set(vars(model))
    state = torch.get_rng_state()
    check(model, dropout=True)
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == modes
    assert set(vars(model)) == attributes
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]) and value.dtype == before[key].dtype
    gradients = {key: parameter.grad for key, parameter in model.named_parameters()}
    assert [key for key, gradient in gradients.items() if gradient is not None] == ["src_embedding.weight"]
    assert (model.output.weight.grad == 1).all()


def test_gradients_kept_from_before_do_not_count():
    model = unused_layer(Transformer(config()))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    assert check(model).failures == ("gradients",)


def test_generators_are_left_alone_even_where_a_check_is_interrupted():
    def interrupt(model, src, tgt, logits):
        raise KeyboardInterrupt

    model, state = Broken({"logits": interrupt}), torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        check(model)
    assert torch.equal(torch.get_rng_state(), state) and model.training


# At the door


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"model": 3}, TypeError, "model must be a Module, not int (3)"),
        ({"tgt_vocab_size": 0}, ValueError, "tgt_vocab_size must be at least 4, but is 0"),
        ({"src_vocab_size": 3}, ValueError,
         "src_vocab_size must be at least 4, but is 3"),
        ({"pad_id": 18, "src_vocab_size": 20}, ValueError, "pad_id must lie in [0, 17), but is 18"),
        ({"dropout": 0.1}, ValueError, "dropout must be one of [True, False, None], not 0.1"),
        ({"search": "greedy"}, TypeError, "search must be callable, not str"),
    ],
    ids=str,
)  # fmt: skip
def test_bad_arguments_are_refused(changes, error, said):
    arguments = {"model": Transformer(config()), "src_vocab_size": V, "tgt_vocab_size": V}
    with refuses(error, said):
        check_model(**(arguments | changes))


class Named(NamedTuple):
    """What models of Hugging Face return."""

    logits: Tensor


class Theirs(nn.Module):
    """Takes a mask of the source, 1 for words, and makes none, as models of Hugging Face do."""

    def __init__(self):
        super().__init__()
        self.ours = Transformer(config(bos_id=5))
        self.config = SimpleNamespace(
            vocab_size=V, pad_token_id=0, bos_token_id=None, decoder_start_token_id=5
        )

    def forward(self, input_ids, attention_mask=None, decoder_input_ids=None):
        ours, mask = self.ours, None if attention_mask is None else attention_mask[:, None, None] == 1
        memory = ours.encoder(ours.positions(ours.src_embedding(input_ids)), mask)
        return Named(ours.project(ours.decode(decoder_input_ids, memory, mask)))


@pytest.mark.slow
def test_an_encoder_decoder_of_hugging_face_gets_its_mask_and_its_tokens():
    model = Theirs()
    report = check_model(seq2seq(model))
    assert report.passed, report
    assert {found.verdict for found in report.results} == {"pass", "skipped"}
    starts = set()

    def spy(model, src, tgt):
        starts.add(tgt[0, 0].item())
        return model(src, (src != 0).long(), tgt)

    assert check_model(Adapted(model, spy)).passed and 5 in starts  # as the configuration says
    without = Adapted(model, lambda model, src, tgt: model(src, None, tgt))
    assert check_model(without).failures == ("padding",)


def language_model(positions: str, n_layers: int = 2) -> nn.Module:
    sizes = {"d_model": 12, "n_heads": 3, "n_layers": n_layers, "d_ff": 20}
    return decoder_only(LanguageModel(LanguageModelConfig(V, positions=positions, **sizes)))


@pytest.mark.slow
@pytest.mark.parametrize("positions", ["rotary", "none"])
def test_a_decoder_alone_passes_whatever_its_positions(positions):
    model = language_model(positions)
    report = check_model(model, dropout=False)
    assert report.passed, report
    skipped = {found.name for found in report.results if found.verdict == "skipped"}
    assert skipped == {
        "padding", "source reach", "source positions", "empty source", "search", "target positions"
    }  # fmt: skip
    assert "decoder-only" in result(report, "source reach").measured
    said = "none" if positions == "none" else "relative"
    report = check_model(model, positions=said)
    assert report.passed
    verdict = result(report, "target positions").verdict
    assert verdict == ("skipped" if said == "none" else "pass")
    assert check_model(model, positions="absolute").failures == ("target positions",)


@pytest.mark.slow
def test_a_decoder_that_cannot_tell_the_order_of_its_words_fails():
    """One layer without positions takes the words before a position as a set."""
    for said in (None, "relative", "absolute"):
        assert check_model(language_model("none", 1), positions=said).failures == ("target positions",)
    assert check_model(language_model("rotary", 1), positions="relative").passed
    assert check_model(language_model("none", 1), positions="none").passed


def test_a_search_of_a_decoder_alone_is_checked():
    model = language_model("rotary")
    search = lambda model, src, max_length: generate(model.model, torch.full((len(src), 1), 2), max_length)
    report = check_model(model, search=search)
    assert result(report, "search").verdict == "pass", report
    wrong = lambda *given: (search(*given) + 1) % V
    assert check_model(model, search=wrong).failures == ("search",)


EITHER = "decoder_only(model)"


@pytest.mark.parametrize(
    ("forward", "taken", "adapter"),
    [
        (lambda self, ids: None, "ids", EITHER),
        (lambda self, input_ids, use_cache=True: None, "input_ids, use_cache", EITHER),
        (LanguageModel.forward, "ids, mask, cache", EITHER),
        (lambda self, x, mask, y, z: None, "x, mask, y, …", "Adapted(model, lambda model, src, tgt: …)"),
    ],
)
def test_a_model_with_other_arguments_is_told_its_adapter(forward, taken, adapter):
    other = type("Other", (nn.Module,), {"forward": forward})
    said = (
        f"model takes ({taken}), not (src, tgt): pass {adapter} instead, from transformer.study.model_checks"
    )
    with refuses(ValueError, said):
        check_model(other(), V)


@pytest.mark.slow
def test_what_is_not_said_is_read_from_the_configuration():
    settings = config(pad_id=5, bos_id=0, tie_embeddings=False, tgt_vocab_size=19)
    model = Transformer(settings)
    assert check_model(model) == check_model(model, V, 19, 5, 0)
    with refuses(ValueError, "src_vocab_size must be given: the model has no configuration that says it"):
        check_model(Recurrent())
    assert check_model(Recurrent(), V).passed  # the target has as many tokens as the source


@pytest.mark.slow
def test_small_weights_are_no_blindness():
    """What matters must be seen whatever the scale of the weights, and blindness stays blindness."""
    model = Transformer(config(n_layers=2, norm_first=True))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1e-3)
    assert check(model, positions="absolute").passed
    blind = Broken({"encode": lambda m, s: encoded(m, s, m.src_mask(s), positions=False)})
    with torch.no_grad():
        for parameter in blind.parameters():
            parameter.mul_(1e-3)
    assert check(blind).failures == ("source positions",)


def test_a_table_that_stays_zero_is_blindness():
    class Nowhere(nn.Module):
        def __init__(self, learns):
            super().__init__()
            self.table = nn.Parameter(torch.zeros(9, 12), requires_grad=learns)

        def forward(self, x, offset=0):
            return x + self.table[: x.size(1)]

    assert check(with_positions(Nowhere(learns=True)), positions="absolute").passed
    found = check(with_positions(Nowhere(learns=False)), positions="absolute").failures
    assert found == ("source positions", "target positions")


# More kinds of models


@dataclasses.dataclass
class Scores:
    scores: Tensor
    loss: Tensor | None = None


@pytest.mark.parametrize(
    "wrap",
    [
        lambda z, h: z,
        lambda z, h: (z, None),
        lambda z, h: [h, z, (h, h)],
        lambda z, h: (z.mean(), z.detach().argmax(-1), z),
        lambda z, h: {"logits": z, "aux": z},
        lambda z, h: {"hidden": h, "scores": z},
        lambda z, h: Named(z),
        lambda z, h: SimpleNamespace(logits=z, aux=z),
        lambda z, h: Scores(z),
    ],
    ids=range(9),
)
def test_logits_are_found_in_what_a_model_returns(wrap):
    logits, hidden = torch.randn(3, 5, V), torch.randn(3, 5, 12)
    assert find_logits(wrap(logits, hidden), V) is logits


class AsNanoGPT(nn.Module):
    """Only the last position's logits, where no targets are given."""

    def __init__(self, cut: bool = True, leaks: bool = False):
        super().__init__()
        sizes = {"d_model": 12, "n_heads": 3, "n_layers": 1, "d_ff": 20}
        self.model = LanguageModel(LanguageModelConfig(V, **sizes))
        self.cut, self.leaks = cut, leaks

    def forward(self, idx, targets=None):
        logits = self.model(idx)
        if targets is None:
            return logits[:, [-1], :] if self.cut else logits, None
        if self.leaks:
            logits = logits + logits.mean(1, keepdim=True)
        if not self.cut:
            logits = logits.flatten(0, 1)  # as some do, for the loss
        return logits, F.cross_entropy(logits.view(-1, V), targets.reshape(-1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "failures"), [({"cut": False}, ()), ({"leaks": True}, ("future",))], ids=str
)
def test_a_model_in_the_manner_of_nanogpt_is_checked_with_its_targets_and_without(options, failures):
    torch.manual_seed(0)
    model = AsNanoGPT(**options)
    report = check_model(model, V, positions="relative")
    assert report.failures == failures, report
    assert check_model(decoder_only(model), V, positions="relative") == report


class Draws(Transformer):
    """Its dropout draws by the number of its tokens, as an expert's does, which is no leak."""

    def __init__(self):
        super().__init__(config())
        self.drawn = nn.Dropout(0.5)

    def decode(self, tgt, memory, src_mask=None, cache=None):
        self.drawn(torch.ones(int((tgt == 4).sum()) + 1))
        return self.drawn(super().decode(tgt, memory, src_mask, cache))


# From the command line

MINE = """
import torch
from torch import nn
from transformer import Transformer, TransformerConfig

def right():
    return Transformer(TransformerConfig(20, 20, d_model=12, n_heads=3, n_layers=1, d_ff=20))

def wrong():
    return nn.Sequential(nn.Embedding(20, 20))

def told():
    return {"model": right(), "positions": "relative", "pad_id": 3}

def nothing():
    return 3

def training(start=2):
    batch = torch.tensor([[5, 6, 3], [7, 3, 0]]), torch.tensor([[start, 8, 3], [2, 3, 0]])
    return {"model": right(), "batch": batch, "seconds": 0}

def headless():
    return training(9)

def breaks():
    raise ValueError("no such weights")

def leaves():
    raise SystemExit(0)

number = 3
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "mine_to_check.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    yield "mine_to_check"
    sys.modules.pop("mine_to_check", None)


def test_the_command_prints_the_report_and_says_by_its_status_whether_all_is_well(mine, capsys):
    assert main(["check", f"{mine}:right"]) == 0
    said = capsys.readouterr().out
    assert ", 0 FAIL, " in said and "least change" in said
    assert main(["check", f"{mine}:told"]) == 1  # the model takes 0 for padding
    assert "FAIL     padding" in capsys.readouterr().out


def test_the_command_examines_a_training(mine, capsys):
    assert main(["check", f"{mine}:headless"]) == 1
    said = capsys.readouterr().out
    assert "FAIL     start" in said and "no start token" in said
    assert main(["check", f"{mine}:training"]) == 0
    assert "skipped  overfit           0 updates" in capsys.readouterr().out  # it has no time to learn


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("{}:nowhere", "module mine_to_check has no function nowhere"),
        ("no_module_of_this_name:right", "No module named 'no_module_of_this_name'"),
        ("{}:nothing", "model must be a Module, not int"),
        ("{}:breaks", "breaks raised ValueError: no such weights (--debug shows where)"),
        ("{}:leaves", "mine_to_check:leaves called exit(0), and left no model"),
    ],
)
def test_what_cannot_be_checked_is_said_in_one_line(mine, factory, said, capsys):
    assert main(["check", factory.format(mine)]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and said in printed.err
    assert printed.err.startswith("error: ") and printed.err.count("\n") == 1


# Inverted masks have a name


def added(hides: Tensor) -> Tensor:
    return torch.zeros(hides.shape).masked_fill(hides, -torch.inf)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("padding", "causal", "named"),
    [
        (lambda pad: pad, lambda T: added(future(T)), ""),
        (lambda pad: ~pad, future, "padding"),
        (lambda pad: pad, lambda T: ~future(T), "causal"),
        (lambda pad: pad, lambda T: added(~future(T)), "causal"),
        (lambda pad: pad, lambda T: future(T).T, "causal"),
        (lambda pad: ~pad, lambda T: ~future(T), "padding"),
    ],
    ids=["right, added", "padding", "causal", "causal, added", "but the diagonal", "both"],
)
@pytest.mark.filterwarnings("ignore:.*nested tensors.*")
def test_inverted_masks_of_torch_are_named(padding, causal, named):
    model = OfTorch(padding=padding, causal=causal)
    report = check(model.double())
    suspects = {found.suspects for found in report.results if found.verdict == "FAIL"}
    assert report.passed == (not named)
    assert all(said.startswith(f"the {named} mask's polarity is inverted") for said in suspects)
    assert len(suspects) == bool(named)
