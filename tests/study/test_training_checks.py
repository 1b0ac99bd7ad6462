"""`check_training`: right programs of other styles aren't accused, planted faults are found by their name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from foreign import OfTorch, V, future
from helpers import make_config
from torch import Tensor, nn

from transformer import (
    Transformer,
    accelerate,
    check_training,
    greedy_search,
    r_drop_loss,
    teacher_forced_loss,
)
from transformer.study.model_checks import CheckReport

PAD, BOS, EOS = 0, 2, 3
NAMES = (
    "ids", "dev", "runs", "start", "shift", "end", "padding", "masks", "mean", "gradients", "optimizer",
    "loop", "modes", "overfit", "search",
)  # fmt: skip


def padded(rows: list[list[int]], pad: int = PAD, length: int = 0) -> Tensor:
    length = max(length, *map(len, rows))
    return torch.tensor([row + [pad] * (length - len(row)) for row in rows])


WORDS = [[4, 5, 6, 7, 8], [9, 10, 11], [12, 6, 13, 5], [14, 15], [7, 4, 16, 9, 10], [5, 13, 8]]
ANSWERS = [[w, *reversed(row)] for w, row in zip([16, 12, 9, 4, 5, 11], WORDS, strict=True)]
SRC = padded([[*row, EOS] for row in WORDS])
TGT = padded([[BOS, *row, EOS] for row in ANSWERS])


# Programs of several styles


def attend(query: Tensor, memory: Tensor, visible: Tensor) -> Tensor:
    scores = query @ memory.transpose(1, 2) / query.size(-1) ** 0.5
    return scores.masked_fill(~visible, -1e9).softmax(dim=-1) @ memory


class ByHand(nn.Module):
    """In the manner of the Annotated Transformer: masks are made outside, the generator stands apart."""

    def __init__(self, d: int = 32, tied: bool = True):
        super().__init__()
        self.table, self.positions = nn.Embedding(V, d), nn.Parameter(torch.randn(24, d) / 5)
        self.maps = nn.ModuleList(nn.Linear(d, d) for _ in range(6))
        self.networks = nn.ModuleList(
            nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d)) for _ in range(2)
        )
        self.generator = nn.Linear(d, V)
        if tied:
            self.generator.weight = self.table.weight

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor, tgt_mask: Tensor) -> Tensor:
        x = self.table(src) + self.positions[: src.size(1)]
        y = self.table(tgt) + self.positions[: tgt.size(1)]
        q, k, q2, k2, q3, k3 = self.maps
        x = x + attend(q(x), k(x), src_mask)
        x = x + self.networks[0](x)
        y = y + attend(q2(y), k2(y), tgt_mask)
        y = y + attend(q3(y), k3(x), src_mask)
        return y + self.networks[1](y)


class Recurrent(nn.Module):
    """In the manner of bentrevett's tutorials: an LSTM with attention, time first, a loop over words."""

    def __init__(self, d: int = 32):
        super().__init__()
        self.src_table, self.tgt_table = nn.Embedding(V, d), nn.Embedding(V, d)
        self.encoder, self.cell = nn.LSTM(d, d, batch_first=True), nn.LSTMCell(2 * d, d)
        self.output = nn.Linear(2 * d, V)

    def forward(self, src: Tensor, trg: Tensor) -> Tensor:
        lengths = (src != PAD).sum(dim=1).clamp(min=1).cpu()
        packed = nn.utils.rnn.pack_padded_sequence(
            self.src_table(src), lengths, batch_first=True, enforce_sorted=False
        )
        memory, (h, c) = self.encoder(packed)
        memory, _ = nn.utils.rnn.pad_packed_sequence(memory, batch_first=True, total_length=src.size(1))
        h, c, steps = h[0], c[0], []
        for t in range(trg.size(1)):
            seen = attend(h[:, None], memory, (src != PAD)[:, None])[:, 0]
            h, c = self.cell(torch.cat([self.tgt_table(trg[:, t]), seen], dim=1), (h, c))
            steps.append(self.output(torch.cat([h, seen], dim=1)))
        return torch.stack(steps)  # [T, B, V]


class WithLabels(nn.Module):
    """In the manner of T5, BART and Marian: takes labels, and shifts them itself behind `start`."""

    def __init__(self, start: int, shift: bool = True):
        super().__init__()
        self.model, self.start, self.shift = OfTorch(), start, shift

    def forward(self, input_ids, attention_mask=None, decoder_input_ids=None, labels=None) -> Any:
        if decoder_input_ids is None:
            decoder_input_ids = labels.masked_fill(labels == -100, PAD)
            if self.shift:
                decoder_input_ids = F.pad(decoder_input_ids[:, :-1], (1, 0), value=self.start)
        logits = self.model(input_ids, decoder_input_ids)
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}


class LanguageModel(nn.Module):
    def __init__(self, d: int = 32):
        super().__init__()
        self.table, self.positions = nn.Embedding(V, d), nn.Parameter(torch.randn(24, d) / 5)
        layer = nn.TransformerEncoderLayer(d, 4, 2 * d, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(d, V)

    def forward(self, ids: Tensor) -> Tensor:
        T = ids.size(1)
        x = self.table(ids) + self.positions[:T]
        return self.head(self.layers(x, torch.ones(T, T, dtype=torch.bool).triu(1)))


def ours(**changes: Any) -> Transformer:
    sizes = {"d_model": 32, "n_heads": 4, "n_layers": 1, "d_ff": 64, "norm_first": True, "max_length": 24}
    return Transformer(make_config(V, **sizes | {"dropout": 0.1} | changes))


def plain_loss(model, batch, **options):
    src, tgt = batch
    return F.cross_entropy(
        model(src, tgt[:, :-1]).flatten(0, 1), tgt[:, 1:].flatten(), **{"ignore_index": PAD} | options
    )


def loss_in_parts(model, batch, smoothing=0.1):
    src, tgt = batch
    logits, labels = model(src, tgt[:, :-1]), tgt[:, 1:]
    lost = F.nll_loss(logits.log_softmax(dim=-1).transpose(1, 2), labels, ignore_index=PAD, reduction="none")
    spread = -logits.log_softmax(dim=-1).mean(dim=-1) * (labels != PAD)
    return ((1 - smoothing) * lost + smoothing * spread).sum() / (labels != PAD).sum()


def labels_loss(model, batch):
    return model(**batch)["loss"]


def annotated_masks(src, tgt):
    T = tgt.size(1)
    return (src != PAD)[:, None], (tgt != PAD)[:, None] & torch.ones(T, T, dtype=torch.bool).tril()


def annotated_loss(model, batch, smoothing=0.1):
    src, tgt = batch
    read, labels = tgt[:, :-1], tgt[:, 1:]
    log_p = model.generator(model(src, read, *annotated_masks(src, read))).log_softmax(dim=-1)
    true = torch.full_like(log_p, smoothing / (V - 2)).scatter_(2, labels[..., None], 1 - smoothing)
    true[..., PAD] = 0
    true = true.masked_fill((labels == PAD)[..., None], 0)
    return F.kl_div(log_p.flatten(0, 1), true.flatten(0, 1), reduction="sum") / (labels != PAD).sum()


def recurrent_loss(model, batch):
    src, tgt = batch
    logits = model(src, tgt[:, :-1])  # time first
    return nn.CrossEntropyLoss(ignore_index=PAD)(logits.reshape(-1, V), tgt[:, 1:].T.reshape(-1))


def fairseq_loss(model, batch):
    logits = model(batch["src"], batch["prev_output_tokens"])
    log_p, target = logits.log_softmax(dim=-1), batch["target"]
    lost = -log_p.gather(2, target[..., None])[..., 0].masked_fill(target == PAD, 0)
    return lost.sum(), (target != PAD).sum()


def search_with(logits: Callable, start: int = BOS, end: int = EOS, keep_start: bool = True) -> Callable:
    """Greedy search by whole passes; `logits(model, src, tgt)` are batch first."""

    def search(model, src, max_length):
        with torch.no_grad():
            tgt = src.new_full((len(src), 1), start)
            ended = torch.zeros(len(src), dtype=torch.bool)
            for _ in range(max_length):
                word = logits(model, src, tgt)[:, -1].argmax(dim=-1).masked_fill(ended, PAD)
                tgt, ended = torch.cat([tgt, word[:, None]], dim=1), ended | (word == end)
        return tgt if keep_start else tgt[:, 1:]

    return search


called = search_with(lambda model, src, tgt: model(src, tgt))
LABELS = {
    "input_ids": SRC,
    "attention_mask": (SRC != PAD).long(),
    "labels": TGT[:, 1:].masked_fill(TGT[:, 1:] == PAD, -100),
}


@dataclass(frozen=True)
class Program:
    """The arguments of a call; `model` makes the model."""

    model: Callable[[], nn.Module]
    batch: Any = (SRC, TGT)
    loss: Any = plain_loss
    search: Any = called
    more: tuple[tuple[str, Any], ...] = ()

    def check(self, **options: Any) -> CheckReport:
        torch.manual_seed(0)
        model = self.model()
        more = {key: value(model) if key == "optimizer" else value for key, value in self.more}
        ids = {"pad_id": PAD, "eos_id": EOS}
        if hasattr(more.get("optimizer"), "last_epoch"):
            more["schedule"], more["optimizer"] = more["optimizer"], more["optimizer"].optimizer
        given = {"seconds": 60, "loss": self.loss, "search": self.search} | ids | more | options
        return check_training(model, self.batch, **given)


def loop(model, batches, rate=1e-3, clear=True, sign=1, mode=True, parameters=None, step=True):
    optimizer = torch.optim.Adam(parameters(model) if parameters else model.parameters(), lr=rate)
    if mode is not None:
        model.train(mode)
    for batch in batches:
        if clear:
            optimizer.zero_grad()
        (sign * plain_loss(model, batch)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if step:
            optimizer.step()


def evaluation(model, batches, mode=False):
    if mode is not None:
        model.train(mode)
    with torch.no_grad():
        return sum(float(plain_loss(model, batch)) for batch in batches)


TORCH = Program(OfTorch)
OURS = Program(ours, loss=teacher_forced_loss, search=greedy_search)
RIGHT = {
    "ours": OURS,
    "ours, with R-Drop": replace(OURS, loss=r_drop_loss),
    "ours, copying, starts and ends on both sides": replace(OURS, batch=(TGT, TGT)),
    "torch.nn": replace(
        TORCH,
        more=(("train", loop), ("evaluate", evaluation), ("bos_id", BOS), ("dev", (SRC + (SRC > 3), TGT))),
    ),
    "torch.nn, smoothed in two parts": replace(TORCH, loss=loss_in_parts),
    "Annotated Transformer": Program(
        ByHand,
        loss=annotated_loss,
        search=search_with(
            lambda model, src, tgt: model.generator(model(src, tgt, *annotated_masks(src, tgt)))
        ),
    ),
    "bentrevett's LSTM": Program(
        Recurrent, loss=recurrent_loss, search=search_with(lambda m, src, tgt: m(src, tgt).transpose(0, 1))
    ),
    "T5, padding starts": Program(
        lambda: WithLabels(PAD), LABELS, labels_loss,
        search_with(lambda m, s, t: m(s, None, t)["logits"], PAD),
    ),
    "BART, the end starts": Program(
        lambda: WithLabels(EOS), LABELS, labels_loss,
        search_with(lambda m, s, t: m(s, None, t)["logits"], EOS),
    ),
    "fairseq, eos first": Program(
        OfTorch,
        {"src": SRC, "target": TGT[:, 1:],
         "prev_output_tokens": TGT[:, :-1].masked_fill(TGT[:, :-1] == BOS, EOS)},
        fairseq_loss,
        search_with(lambda model, src, tgt: model(src, tgt), EOS, keep_start=False),
    ),
    "Marian, padding starts": Program(
        OfTorch,
        (SRC, TGT.masked_fill(TGT == BOS, PAD)),
        search=search_with(lambda model, src, tgt: model(src, tgt), PAD),
    ),
    "a language model": Program(
        LanguageModel,
        TGT,  # which all begin alike
        lambda model, ids: F.cross_entropy(
            model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), ignore_index=PAD
        ),
        None,
    ),
    "nanoGPT": Program(
        LanguageModel,
        (TGT[:, 1:5], TGT[:, 2:6]),
        lambda model, batch: F.cross_entropy(model(batch[0]).transpose(1, 2), batch[1], ignore_index=PAD),
        None,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.filterwarnings("ignore:.*nested tensors.*")
def test_right_programs_are_not_accused(name):
    report = RIGHT[name].check()
    print(report)
    assert report.passed, str(report)
    assert tuple(found.name for found in report.results) == NAMES
    skipped = {found.name for found in report.results if found.verdict == "skipped"}
    without = {"optimizer", "loop", "modes", "dev"} if name != "torch.nn" else {"optimizer"}
    if "source" not in name and RIGHT[name].search is None:
        without |= {"start", "end", "search", "mean"}
    if any(kind in name for kind in ("LSTM", "R-Drop", "two parts")):  # word after word, or two rows a word
        without |= {"start", "shift"}
    assert skipped <= without


# Planted faults


def shifted_loss(read: slice, labels: slice) -> Callable:
    def loss(model, batch):
        src, tgt = batch
        logits = model(src, tgt[:, read])
        return F.cross_entropy(logits.transpose(1, 2), tgt[:, labels], ignore_index=PAD)

    return loss


def mean_of_means(model, batch):
    src, tgt = batch
    each = [plain_loss(model, (src[b : b + 1], tgt[b : b + 1])) for b in range(len(src))]
    return torch.stack(each).mean()


def diluted(model, batch):
    return plain_loss(model, batch, reduction="none").mean()


def detached(model, batch):
    hidden = model.encode(batch[0]).detach()
    logits = model.project(model.decode(batch[1][:, :-1], hidden, model.src_mask(batch[0])))
    return F.cross_entropy(logits.transpose(1, 2), batch[1][:, 1:], ignore_index=PAD)


class ShiftsAgain(Transformer):
    def forward(self, src, tgt):
        return super().forward(src, F.pad(tgt[:, :-1], (1, 0), value=BOS))


class Softmaxed(OfTorch):
    def forward(self, src, tgt):
        return super().forward(src, tgt).softmax(dim=-1)


class Sourceless(OfTorch):
    def forward(self, src, tgt):
        return super().forward(torch.where(src == PAD, src, 1), tgt)


class WrongRank(ByHand):
    """A mask `[S, B, 1]`: of the wrong axes, where B = S is broadcast without an error."""

    def forward(self, src, tgt, src_mask, tgt_mask):
        if len(src) == src.size(1):
            src_mask = src_mask.transpose(0, 2)
        return super().forward(src, tgt, src_mask, tgt_mask)


class Unmasked(OfTorch):
    def forward(self, src, tgt):
        return super().forward(src.masked_fill(src == PAD, 1), tgt)


def frozen():
    model = OfTorch()
    model.tgt_table.requires_grad_(False)
    return model


def lost_optimizer(model):
    return torch.optim.Adam(copy.deepcopy(model).parameters())


def ended(model):
    return torch.optim.lr_scheduler.LambdaLR(torch.optim.Adam(model.parameters()), lambda step: step // 1000)


def goes_on(model, src, max_length):
    found = called(model, src, max_length + 2)
    found[found == EOS] = 4
    return found


left = torch.tensor([[PAD] * (6 - len(row)) + [*row, EOS] for row in WORDS])
left_tgt = torch.tensor([[PAD] * (7 - len(row)) + [BOS, *row, EOS] for row in ANSWERS])
headless, endless = TGT[:, 1:], padded([[BOS, *row] for row in ANSWERS])
one_word = padded([[1, 1, 1, 1, 1][: len(row)] + [EOS] for row in WORDS])
one_word[:, 0] = SRC[:, 0]
hundred = TGT.masked_fill(TGT == PAD, -100)


def of(program: Program, where: str, named: str, **changes: Any) -> tuple[Program, str, str]:
    return replace(program, **changes), where, named


def lost(where: str, named: str, **options: Any) -> tuple[Program, str, str]:
    """A loss with other options of `F.cross_entropy`."""
    return of(TORCH, where, named, loss=lambda model, batch: plain_loss(model, batch, **options))


def looped(named: str, **options: Any) -> tuple[Program, str, str]:
    """A loop with a fault."""
    return of(TORCH, "loop", named, more=(("train", lambda model, batches: loop(model, batches, **options)),))


def searched(named: str, logits: Callable = lambda m, src, tgt: m(src, tgt), **options: Any):
    """A search with a fault."""
    return of(TORCH, "search", named, search=search_with(logits, **options))


def ignores_the_end(model, batch):
    src, tgt = batch
    return plain_loss(model, (src, tgt.masked_fill(tgt == EOS, PAD)))


FAIRSEQ, ANNOTATED = RIGHT["fairseq, eos first"], RIGHT["Annotated Transformer"]
ended_twice = padded([[BOS, *row, EOS] for row in ANSWERS], EOS)
other_start, unshifted = TGT.masked_fill(TGT == BOS, 5), lambda: WithLabels(PAD, shift=False)
too_far = lambda: OfTorch(causal=lambda T: future(T, 2))
short = SRC[[1, 3, 5], :4], TGT[[1, 3, 5]]
wrong_rank = {"model": WrongRank, "batch": short}
untrained = (("train", lambda m, b: loop(m, b, mode=None)), ("evaluate", evaluation))
noisy = (("evaluate", lambda m, b: evaluation(m, b, None)),)
at_rest = (("optimizer", lambda m: torch.optim.SGD(m.parameters(), lr=0)),)
left_out = {"parameters": lambda m: m.core.parameters()}
ends_in_padding = {"batch": (SRC, ended_twice), "more": (("pad_id", EOS),)}
FAULTS: dict[str, tuple[Program, str, str]] = {
    # batch and ids
    "no start token": of(TORCH, "start", "no start token", batch=(SRC, headless)),
    "another start token": of(TORCH, "start", "not 2", batch=(SRC, other_start), more=(("bos_id", BOS),)),
    "no end token": of(TORCH, "end", "no end token", batch=(SRC, endless)),
    "cut to a length": of(TORCH, "end", "cut to a length", batch=(SRC, TGT[:, :6])),
    "targets padded in front": of(TORCH, "padding", "in front", batch=(SRC, left_tgt)),
    "sources padded in front": of(TORCH, "padding", "in front", batch=(left, TGT)),
    "ids beyond the table": of(TORCH, "ids", "the table has 17 rows", batch=(SRC + 4, TGT)),
    "-100 among read ids": of(TORCH, "ids", "-100", batch=(SRC, hundred)),
    "unknown words": of(TORCH, "ids", "unknown words", batch=(one_word, TGT)),
    "dev in training": of(TORCH, "dev", "2 of 2 dev sources", more=(("dev", (SRC[2:4], TGT[2:4])),)),
    # loss
    "no shift": of(TORCH, "shift", "no shift", loss=shifted_loss(slice(None), slice(None))),
    "no shift of labels": of(RIGHT["T5, padding starts"], "shift", "no shift", model=unshifted),
    "shifted by two": of(TORCH, "shift", "2 positions", loss=shifted_loss(slice(None, -2), slice(2, None))),
    "shifted inside, too": of(TORCH, "shift", "2 positions", model=lambda: ShiftsAgain(ours().config)),
    "padding counts": lost("padding", "counts", ignore_index=-100),
    "labels of -100": of(FAIRSEQ, "runs", "-100", batch={**FAIRSEQ.batch, "target": hundred[:, 1:]}),
    "the end is ignored": of(TORCH, "end", "ignore_index", loss=ignores_the_end),
    "padding is the end": (
        replace(lost("", "", ignore_index=EOS)[0], **ends_in_padding),
        "end",
        "the padding",
    ),
    "mean of means": of(TORCH, "mean", "short sentences count more", loss=mean_of_means),
    "a sum": lost("mean", "a sum over tokens", reduction="sum"),
    "a mean over padding": of(TORCH, "mean", "padded positions", loss=diluted),
    "not a scalar": lost("runs", "must return a scalar", reduction="none"),
    "an error": of(TORCH, "runs", "missing 1 required", loss=lambda model, batch: model(batch[1])),
    # model
    "padding mask inverted": of(TORCH, "masks", "inverted", model=lambda: OfTorch(padding=torch.logical_not)),
    "causal mask too far": of(TORCH, "masks", "sees token", model=too_far),
    "no padding mask": of(TORCH, "padding", "no padding mask", model=Unmasked),
    "mask of the wrong rank": of(ANNOTATED, "masks", "wrong rank", **wrong_rank),
    "source isn't read": of(TORCH, "masks", "change nothing", model=Sourceless),
    "softmax before the loss": of(TORCH, "runs", "softmax", model=Softmaxed),
    "a layer is frozen": of(TORCH, "gradients", "requires_grad is False", model=frozen),
    "memory detached": of(OURS, "gradients", "none for", loss=detached),
    # loop
    "another's optimizer": of(TORCH, "optimizer", "doesn't hold", more=(("optimizer", lost_optimizer),)),
    "a rate of zero": of(TORCH, "optimizer", "rate is 0", more=at_rest),
    "a schedule of zeros": of(TORCH, "optimizer", "rate is 0", more=(("optimizer", ended),)),
    "no zero_grad": looped("zero_grad", clear=False),
    "no step": looped("optimizer.step()", step=False),
    "a parameter left out": looped("never moves", **left_out),
    "uphill": looped("sign of the loss", sign=-1),
    "evaluates with dropout": of(TORCH, "modes", "model.eval()", more=noisy),
    "trains without dropout": of(TORCH, "modes", "after an evaluation", more=untrained),
    # search
    "starts elsewhere": searched("another token than training", start=7),
    "drops a word": of(TORCH, "search", "first word is missing", search=lambda *a: called(*a)[:, 2:]),
    "goes on": of(TORCH, "search", "goes on", search=goes_on),
    "takes the worst": searched("another token", lambda m, src, tgt: -m(src, tgt)),
    "reads one word": searched("cache, positions", lambda m, src, tgt: m(src, tgt[:, -1:])),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_found_by_their_name(name):
    program, where, named = FAULTS[name]
    report = program.check(seconds=60 if where == "search" else 0)  # most are found without learning
    print(report)
    (found,) = (result for result in report.results if result.name == where)
    assert found.verdict == "FAIL", str(report)
    assert named in f"{found.measured}; {found.suspects}"


# What it leaves alone, what it refuses, where it runs


def test_the_callers_own_things_are_left_alone():
    model = OfTorch()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    plain_loss(model, (SRC, TGT)).backward()
    model.core.encoder.eval()  # a mode of its own
    held = {name: (q.clone(), q.grad.clone()) for name, q in model.named_parameters()}
    modes = [module.training for module in model.modules()]
    src, tgt, state = SRC.clone(), TGT.clone(), torch.get_rng_state()

    def spoils(model, batch):
        loss = plain_loss(model, batch)
        batch[0].fill_(4)
        model.train()
        return loss

    pieces = {"train": loop, "evaluate": evaluation, "optimizer": optimizer, "schedule": schedule}
    report = check_training(model, (src, tgt), spoils, called, (SRC + 4 * (SRC > 3) - 3, TGT), **pieces)
    verdicts = {found.name: found.verdict for found in report.results}
    assert verdicts["optimizer"] == verdicts["loop"] == "pass" and "skipped" not in verdicts.values()
    assert torch.equal(src, SRC) and torch.equal(tgt, TGT) and torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == modes
    for name, q in model.named_parameters():
        assert torch.equal(q, held[name][0]) and torch.equal(q.grad, held[name][1])
    assert schedule.last_epoch == 0 and not optimizer.state
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "loss"),
    [(lambda model: model, r_drop_loss), (accelerate, teacher_forced_loss)],
    ids=["plain", "fast"],
)
@pytest.mark.parametrize("device", ["cpu", "cuda"][: 1 + torch.cuda.is_available()])
@pytest.mark.parametrize("start", [BOS, None])
def test_our_own_pieces_are_understood_on_every_device(made, loss, device, start):
    tgt = TGT if start else headless
    model, batch = made(ours()).to(device), (SRC.to(device), tgt.to(device))
    report = check_training(model, batch, loss, greedy_search, batch, seconds=0)
    assert report.failures == (("dev",) if start else ("dev", "runs"))
    assert start or "must begin with the start token" in str(report)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"model": plain_loss}, "model must be .*Module, not function"),
        ({"loss": 3}, "loss must be callable, not int"),
        ({"search": "greedy"}, "search must be callable, not str"),
        ({"seconds": -1}, "seconds must be finite and at least 0, but is -1"),
        ({"batch": SRC.double()}, r"batch must be \(src, tgt\)"),
        ({"batch": {"words": SRC}}, r"batch must be \(src, tgt\)"),
        ({"batch": (SRC, TGT[:2])}, "same number of rows, at least 1, but has {'src': 6, 'labels': 2}"),
        ({"dev": [3]}, "dev must be"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_arguments_of_another_form_are_refused(arguments, said):
    with pytest.raises((TypeError, ValueError), match=said):
        check_training(**{"model": OfTorch(), "batch": (SRC, TGT), "seconds": 0} | arguments)


def test_one_sentence_and_a_model_that_cannot_be_read_are_skipped_and_not_accused():
    loss = lambda model, batch: model(*batch).square().mean()
    report = check_training(OfTorch(), (SRC[:1], TGT[:1]), loss, seconds=0)
    assert report.passed and "can be watched" in str(report)


def tiny(name: str) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    sizes = {
        "t5": {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2},
        "marian": {"d_model": 16, "pad_token_id": PAD, "decoder_start_token_id": PAD, "eos_token_id": EOS},
        "bart": {"d_model": 16, "pad_token_id": PAD, "decoder_start_token_id": EOS, "eos_token_id": EOS},
    }[name]
    if name == "t5":
        sizes |= {"pad_token_id": PAD, "eos_token_id": EOS, "decoder_start_token_id": PAD}
        sizes["dropout_rate"] = 0.1
        return transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=V, **sizes))
    layers = {f"{side}_{part}": n for side in ("encoder", "decoder") for part, n in
              (("layers", 1), ("attention_heads", 2), ("ffn_dim", 32))}  # fmt: skip
    sizes |= layers | {"vocab_size": V, "max_position_embeddings": 32, "forced_eos_token_id": None}
    if name == "marian":
        return transformers.MarianMTModel(transformers.MarianConfig(**sizes))
    return transformers.BartForConditionalGeneration(transformers.BartConfig(**sizes))


@pytest.mark.parametrize("name", ["t5", "marian", "bart"])
def test_right_programs_of_hugging_face_are_not_accused(name):
    torch.manual_seed(0)

    def search(model, src, max_length):
        mask = (src != PAD).long()
        return model.generate(input_ids=src, attention_mask=mask, max_new_tokens=max_length, num_beams=1)

    report = check_training(tiny(name), LABELS, search=search, seconds=60)
    print(report)
    assert report.passed, str(report)
    skipped = [found.name for found in report.results if found.verdict == "skipped"]
    assert skipped == ["dev", "optimizer", "loop", "modes"]
