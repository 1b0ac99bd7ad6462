"""`check_training`: right programs of other styles are not accused, each planted fault is found by its name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import make_config
from torch import Tensor, nn

from transformer import Transformer, check_training, greedy_search, teacher_forced_loss
from transformer.study.checks import CheckReport, decoder_only, seq2seq

V, PAD, BOS, EOS = 17, 0, 2, 3
NAMES = (
    "ids", "runs", "start", "shift", "end", "padding", "masks", "mean", "gradients", "optimizer", "loop",
    "modes", "dev", "overfit", "search",
)  # fmt: skip


def padded(rows: list[list[int]], pad: int = PAD, length: int = 0) -> Tensor:
    length = max(length, *map(len, rows))
    return torch.tensor([row + [pad] * (length - len(row)) for row in rows])


WORDS = [[4, 5, 6, 7, 8], [9, 10, 11], [12, 6, 13, 5], [14, 15], [7, 4, 16, 9, 10], [5, 13, 8]]
ANSWERS = [[w, *reversed(row)] for w, row in zip([16, 12, 9, 4, 5, 11], WORDS, strict=True)]
SRC = padded([[*row, EOS] for row in WORDS])
TGT = padded([[BOS, *row, EOS] for row in ANSWERS])


# -------------------------------------------------------------------------------------------------
# Programs of several styles
# -------------------------------------------------------------------------------------------------


class OfTorch(nn.Module):
    """`torch.nn.Transformer` with what it leaves to its user; True in a mask means *ignore*."""

    def __init__(self, d: int = 32, polarity: bool = True, far: int = 1, dropout: float = 0.1):
        super().__init__()
        self.src_table, self.tgt_table = nn.Embedding(V, d), nn.Embedding(V, d)
        self.positions = nn.Parameter(torch.randn(24, d) / 5)
        options = {"batch_first": True, "norm_first": True, "dropout": dropout}
        layer = nn.TransformerEncoderLayer(d, 4, 2 * d, **options)
        encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.core = nn.Transformer(d, 4, 1, 1, 2 * d, custom_encoder=encoder, **options)
        self.output = nn.Linear(d, V)
        self.polarity, self.far = polarity, far

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        T, padding = tgt.size(1), (src == PAD) == self.polarity
        hidden = self.core(
            self.src_table(src) + self.positions[: src.size(1)],
            self.tgt_table(tgt) + self.positions[:T],
            tgt_mask=torch.ones(T, T, dtype=torch.bool).triu(self.far),
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        return self.output(hidden)


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
        more = {key: value(model) if key in ("optimizer", "schedule") else value for key, value in self.more}
        ids = {"pad_id": PAD, "eos_id": EOS}
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
    "torch.nn": replace(
        TORCH, more=(("train", loop), ("evaluate", evaluation), ("bos_id", BOS), ("dev", (SRC + (SRC > 3), TGT)))
    ),
    "Annotated Transformer": Program(
        ByHand,
        loss=annotated_loss,
        search=search_with(lambda model, src, tgt: model.generator(model(src, tgt, *annotated_masks(src, tgt)))),
    ),
    "bentrevett's LSTM": Program(
        Recurrent, loss=recurrent_loss, search=search_with(lambda m, src, tgt: m(src, tgt).transpose(0, 1))
    ),
    "T5, padding starts": Program(
        lambda: WithLabels(PAD), LABELS, labels_loss, search_with(lambda m, s, t: m(s, None, t)["logits"], PAD)
    ),
    "BART, the end starts": Program(
        lambda: WithLabels(EOS), LABELS, labels_loss, search_with(lambda m, s, t: m(s, None, t)["logits"], EOS)
    ),
    "fairseq, eos first": Program(
        OfTorch,
        {"src": SRC, "prev_output_tokens": TGT[:, :-1].masked_fill(TGT[:, :-1] == BOS, EOS), "target": TGT[:, 1:]},
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
        TGT[:, 1:6],
        lambda model, ids: F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), ignore_index=PAD),
        None,
    ),
    "nanoGPT": Program(
        LanguageModel,
        (TGT[:, 1:5], TGT[:, 2:6]),
        lambda model, batch: F.cross_entropy(model(batch[0]).transpose(1, 2), batch[1], ignore_index=PAD),
        None,
    ),
}  # fmt: skip


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
    assert skipped <= without


# -------------------------------------------------------------------------------------------------
# Planted faults
# -------------------------------------------------------------------------------------------------


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
    optimizer = torch.optim.Adam(model.parameters())
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step // 1000)


def goes_on(model, src, max_length):
    found = called(model, src, max_length + 2)
    found[found == EOS] = 4
    return found


left = torch.tensor([[PAD] * (6 - len(row)) + [*row, EOS] for row in WORDS])
left_tgt = torch.tensor([[PAD] * (7 - len(row)) + [BOS, *row, EOS] for row in ANSWERS])
headless, endless = TGT[:, 1:], padded([[BOS, *row] for row in ANSWERS])
one_word = padded([[1, 1, 1, 1, 1][: len(row)] + [EOS] for row in WORDS])
one_word[:, 0] = SRC[:, 0]
cut = TGT[:, :6]
hundred = TGT.masked_fill(TGT == PAD, -100)
AGAIN = {"bos_id": BOS}.items()

FAULTS: dict[str, tuple[Program, str, str]] = {
    # batch and ids
    "no start token": (replace(TORCH, batch=(SRC, headless)), "start", "no start token"),
    "another start token": (replace(TORCH, batch=(SRC, TGT.masked_fill(TGT == BOS, 5)), more=(*AGAIN,)), "start", "not 2"),
    "no end token": (replace(TORCH, batch=(SRC, endless)), "end", "no end token"),
    "cut at a limit": (replace(TORCH, batch=(SRC, cut)), "end", "cut at a limit"),
    "targets padded in front": (replace(TORCH, batch=(SRC, left_tgt)), "padding", "in front"),
    "sources padded in front": (replace(TORCH, batch=(left, TGT)), "padding", "in front"),
    "ids beyond the table": (replace(TORCH, batch=(SRC + 4, TGT)), "ids", "the table has 17 rows"),
    "-100 among read ids": (replace(TORCH, batch=(SRC, hundred)), "ids", "-100"),
    "unknown words": (replace(TORCH, batch=(one_word, TGT)), "ids", "unknown words"),
    "dev in training": (replace(TORCH, more=(("dev", (SRC[2:4], TGT[2:4])),)), "dev", "2 of 2 dev sources"),
    # loss
    "no shift": (replace(TORCH, loss=shifted_loss(slice(None), slice(None))), "shift", "no shift"),
    "no shift, labels": (replace(RIGHT["T5, padding starts"], model=lambda: WithLabels(PAD, False)), "shift", "no shift"),
    "shifted by two": (replace(TORCH, loss=shifted_loss(slice(None, -2), slice(2, None))), "shift", "2 positions"),
    "shifted inside as well": (Program(lambda: ShiftsAgain(ours().config)), "shift", "2 positions"),
    "padding counts": (replace(TORCH, loss=lambda m, b: plain_loss(m, b, ignore_index=-100)), "padding", "counts"),
    "labels of -100": (replace(RIGHT["fairseq, eos first"], batch={**RIGHT["fairseq, eos first"].batch, "target": hundred[:, 1:]}), "runs", "-100"),
    "the end is ignored": (replace(TORCH, loss=lambda m, b: plain_loss(m, (b[0], b[1].masked_fill(b[1] == EOS, PAD)))), "end", "ignore_index"),
    "padding is the end": (replace(TORCH, batch=(SRC, padded([[BOS, *row, EOS] for row in ANSWERS], EOS)), loss=lambda m, b: plain_loss(m, b, ignore_index=EOS), more=(("pad_id", EOS),)), "end", "also the padding"),
    "mean of means": (replace(TORCH, loss=mean_of_means), "mean", "short sentences count more"),
    "a sum": (replace(TORCH, loss=lambda m, b: plain_loss(m, b, reduction="sum")), "mean", "a sum over tokens"),
    "a mean over padding": (replace(TORCH, loss=diluted), "mean", "padded positions"),
    "not a scalar": (replace(TORCH, loss=lambda m, b: plain_loss(m, b, reduction="none")), "runs", "must return a scalar"),
    "an error": (replace(TORCH, loss=lambda m, b: m(b[1])), "runs", "missing 1 required positional argument"),
    # model
    "padding mask inverted": (Program(lambda: OfTorch(polarity=False)), "masks", "polarity is inverted"),
    "causal mask one too far": (Program(lambda: OfTorch(far=2)), "masks", "sees token"),
    "no padding mask": (Program(Unmasked), "padding", "no padding mask"),
    "a mask of the wrong rank": (replace(RIGHT["Annotated Transformer"], model=WrongRank, batch=(SRC[[1, 3, 5], :4], TGT[[1, 3, 5]])), "masks", "wrong rank"),
    "source is not read": (Program(Sourceless), "masks", "change nothing"),
    "softmax before the loss": (Program(Softmaxed), "runs", "softmax"),
    "a layer is frozen": (Program(frozen), "gradients", "requires_grad is False"),
    "memory detached": (replace(OURS, loss=detached), "gradients", "none for"),
    # loop
    "another model's optimizer": (replace(TORCH, more=(("optimizer", lost_optimizer),)), "optimizer", "doesn't hold"),
    "a rate of zero": (replace(TORCH, more=(("optimizer", lambda m: torch.optim.SGD(m.parameters(), lr=0)),)), "optimizer", "rate is 0"),
    "no zero_grad": (replace(TORCH, more=(("train", lambda m, b: loop(m, b, clear=False)),)), "loop", "zero_grad"),
    "no step": (replace(TORCH, more=(("train", lambda m, b: loop(m, b, step=False)),)), "loop", "optimizer.step()"),
    "a parameter left out": (replace(TORCH, more=(("train", lambda m, b: loop(m, b, parameters=lambda m: m.core.parameters())),)), "loop", "never moves"),
    "uphill": (replace(TORCH, more=(("train", lambda m, b: loop(m, b, sign=-1)),)), "loop", "sign of the loss"),
    "evaluates with dropout": (replace(TORCH, more=(("evaluate", lambda m, b: evaluation(m, b, None)),)), "modes", "model.eval()"),
    "trains without dropout": (replace(TORCH, more=(("train", lambda m, b: loop(m, b, mode=None)), ("evaluate", evaluation))), "modes", "after the first evaluation"),
    # search
    "search from another start": (replace(TORCH, search=search_with(lambda m, s, t: m(s, t), start=7)), "search", "another token than training"),
    "search drops a word": (replace(TORCH, search=lambda m, s, n: called(m, s, n)[:, 2:]), "search", "first word is missing"),
    "search goes on": (replace(TORCH, search=goes_on), "search", "goes on"),
    "search takes the second best": (replace(TORCH, search=search_with(lambda m, s, t: -m(s, t))), "search", "another token"),
    "search reads one word": (replace(TORCH, search=search_with(lambda m, s, t: m(s, t[:, -1:]))), "search", "cache, positions"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_found_by_their_name(name):
    program, where, named = FAULTS[name]
    report = program.check()
    print(report)
    (found,) = (result for result in report.results if result.name == where)
    assert found.verdict == "FAIL", str(report)
    assert named in f"{found.measured}; {found.suspects}"
