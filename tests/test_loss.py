"""The loss: equal to torch's and to sums written out, one vote per token, always a number."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from helpers import close, refuses
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from transformer import (
    Transformer,
    TransformerConfig,
    accelerate,
    label_smoothed_cross_entropy,
    perplexity,
    r_drop_loss,
    teacher_forced_loss,
    token_accuracy,
)
from transformer.loss import symmetric_kl
from transformer.training import evaluate_loss, fit

TARGETS = torch.tensor([[5, 2, 9, 3, 0], [7, 3, 0, 0, 0], [4, 4, 10, 8, 3]])  # [B=3, T=5]
REAL = TARGETS != 0
SMOOTHINGS = pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])


def draw_logits(vocab_size: int = 11) -> torch.Tensor:
    return 3 * torch.randn(3, 5, vocab_size, dtype=torch.float64)


def written_out(logits: torch.Tensor, target: int, smoothing: float) -> float:
    """The loss of one token, by its definition, in Python's own floats."""
    z = logits.tolist()
    log_sum = math.log(sum(math.exp(score) for score in z))
    wanted = [smoothing / len(z) + (1 - smoothing) * (v == target) for v in range(len(z))]
    return sum(share * (log_sum - score) for share, score in zip(wanted, z))


# ---------- Label-smoothed cross-entropy


@SMOOTHINGS
def test_equals_the_definition_token_by_token(smoothing):
    logits = draw_logits()
    losses = [written_out(z, y, smoothing) for z, y in zip(logits[REAL], TARGETS[REAL].tolist())]
    assert close(label_smoothed_cross_entropy(logits, TARGETS, smoothing), sum(losses) / len(losses))
    total = label_smoothed_cross_entropy(logits, TARGETS, smoothing, reduction="sum")
    assert close(total, sum(losses))


@given(
    st.lists(st.integers(1, 6), max_size=3),
    st.integers(2, 9),
    st.floats(0, 0.99),
    st.integers(-2, 3),
    st.randoms(use_true_random=False),
)
def test_equals_torch_for_any_shape_with_gradients(shape, vocab_size, smoothing, pad_id, random):
    generator = torch.Generator().manual_seed(random.randrange(2**32))
    logits = torch.randn(*shape, vocab_size, dtype=torch.float64, generator=generator)
    logits.requires_grad_()
    targets = torch.randint(0, vocab_size, shape, generator=generator)
    ours = label_smoothed_cross_entropy(logits, targets, smoothing, pad_id)
    flat = logits.reshape(-1, vocab_size), targets.reshape(-1)
    theirs = F.cross_entropy(*flat, ignore_index=pad_id, label_smoothing=smoothing)
    if (targets == pad_id).all():
        theirs = logits.sum() * 0
    assert close(ours, theirs)
    (our_gradient,), (their_gradient,) = (torch.autograd.grad(x, logits) for x in (ours, theirs))
    assert close(our_gradient, their_gradient)


def test_another_padding_id_changes_nothing_else():
    logits = draw_logits()
    marked = TARGETS.masked_fill(~REAL, -100)
    expected = label_smoothed_cross_entropy(logits, TARGETS)
    assert close(label_smoothed_cross_entropy(logits, marked, pad_id=-100), expected)


def test_a_reduction_that_there_is_not_is_refused_by_name():
    with pytest.raises(ValueError, match=r"reduction must be one of \['mean', 'sum'\], not 'none'"):
        label_smoothed_cross_entropy(torch.zeros(1, 2, 8), torch.tensor([[5, 0]]), reduction="none")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@SMOOTHINGS
def test_nothing_to_count_is_zero(smoothing, reduction, dtype):
    logits = draw_logits().to(dtype).requires_grad_()
    padding = torch.zeros_like(TARGETS)
    loss = label_smoothed_cross_entropy(logits, padding, smoothing, reduction=reduction)
    loss.backward()
    assert loss == 0 and (logits.grad == 0).all()
    assert token_accuracy(logits, padding) == 0


@pytest.mark.parametrize("shape", [(0,), (0, 5), (3, 0)])
def test_empty_batches(shape):
    logits = torch.zeros(*shape, 11, requires_grad=True)
    targets = torch.zeros(shape, dtype=torch.long)
    loss = label_smoothed_cross_entropy(logits, targets)
    loss.backward()
    assert loss == 0 and token_accuracy(logits, targets) == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(dtype):
    logits = torch.randn(4096, 100).to(dtype)
    targets = torch.randint(1, 100, (4096,))
    for reduction in ("mean", "sum"):
        loss = label_smoothed_cross_entropy(logits, targets, reduction=reduction)
        exact = label_smoothed_cross_entropy(logits.double(), targets, reduction=reduction)
        assert loss.dtype == torch.float32
        assert loss.item() == pytest.approx(exact.item(), rel=1e-5)


# ---------- Accuracy and perplexity


def test_accuracy_counts_first_places_of_real_tokens():
    guesses = torch.tensor([[5, 2, 8, 3, 0], [7, 4, 0, 0, 0], [4, 4, 10, 8, 2]])
    logits = F.one_hot(guesses, 11).double()
    pairs = zip(guesses.flatten().tolist(), TARGETS.flatten().tolist())
    hits = [guess == target for guess, target in pairs if target != 0]
    assert token_accuracy(logits, TARGETS).item() == pytest.approx(sum(hits) / len(hits))
    assert token_accuracy(logits, TARGETS, pad_id=-1).item() == pytest.approx(12 / 15)


def test_perplexity_counts_equally_likely_tokens():
    logits = torch.zeros(3, 5, 11, dtype=torch.float64)
    loss = label_smoothed_cross_entropy(logits, TARGETS, smoothing=0.0)
    assert perplexity(loss.item()) == pytest.approx(11)
    assert perplexity(math.log(2 * 4 * 8) / 3) == pytest.approx(4)


# ---------- The loss of a batch

SRC = torch.tensor([[4, 9, 6, 13, 5, 7, 3], [8, 5, 10, 3, 1, 1, 1]])
TGT = torch.tensor([[2, 11, 4, 15, 6, 3], [2, 7, 12, 3, 1, 1]])  # the padding id is 1


@pytest.fixture
def model() -> Transformer:
    sizes = {"d_model": 12, "n_heads": 3, "n_layers": 1, "d_ff": 20, "dropout": 0.0, "pad_id": 1}
    return Transformer(TransformerConfig(17, 17, **sizes)).double()


@SMOOTHINGS
def test_batch_loss_reads_and_predicts_one_apart(model, smoothing):
    total, count = teacher_forced_loss(model, (SRC, TGT), smoothing)
    expected = 0.0
    for row, length in enumerate((6, 4)):  # whole target without padding
        for t in range(1, length):
            logits = model(SRC[row : row + 1], TGT[row : row + 1, :t])[0, -1]
            expected += written_out(logits, TGT[row, t].item(), smoothing)
    assert count == 8 and close(total, expected)


def test_batch_loss_adds_up_over_rows_and_ignores_padding(model):
    total, count = teacher_forced_loss(model, (SRC, TGT))
    rows = [teacher_forced_loss(model, (SRC[i : i + 1], TGT[i : i + 1])) for i in (0, 1)]
    assert close(rows[0][0] + rows[1][0], total) and rows[0][1] + rows[1][1] == count
    more = F.pad(SRC, (0, 2), value=1), F.pad(TGT, (0, 3), value=1)
    padded, padded_count = teacher_forced_loss(model, more)
    assert close(padded, total) and padded_count == count


def test_batch_without_anything_to_predict(model):
    total, count = teacher_forced_loss(model, (SRC, TGT[:, :1]))
    assert total == 0 and count == 0


@pytest.mark.parametrize("loss", [teacher_forced_loss, r_drop_loss])
def test_batch_losses_go_through_the_model_as_it_is(model, loss):
    """A subclass's own projection counts, and hooks hear the call."""

    class Sharper(Transformer):
        def project(self, hidden):
            return 3 * super().project(hidden)

    other, heard = Sharper(model.config).double(), []
    other.load_state_dict(model.state_dict())
    for module in (other, other.output):
        module.register_forward_hook(lambda module, *given: heard.append(module))
    found, _ = loss(other, (SRC, TGT))
    logits = 3 * model(SRC, TGT[:, :-1])
    assert close(found, label_smoothed_cross_entropy(logits, TGT[:, 1:], 0.1, 1, reduction="sum"))
    assert heard == [other.output, other]


@pytest.mark.parametrize("loss", [teacher_forced_loss, r_drop_loss])
def test_batch_losses_take_any_model_that_has_a_padding_id(model, loss):
    class Bigrams(nn.Module):
        def __init__(self):
            super().__init__()
            self.config, self.table = model.config, nn.Parameter(torch.randn(17, 17).double())

        def forward(self, src, tgt):
            return self.table[tgt]

    bigrams = Bigrams()
    total, count = loss(bigrams, (SRC, TGT), 0.2)
    pairs = zip(TGT[:, :-1].flatten().tolist(), TGT[:, 1:].flatten().tolist())
    expected = [written_out(bigrams.table[a], b, 0.2) for a, b in pairs if b != 1]
    assert count == len(expected) and close(total, sum(expected))
    total.backward()
    assert bigrams.table.grad.any()


# ---------- What is refused


@pytest.mark.parametrize("shape", [(5, 3), (3, 4), (15,), (3, 5, 1), (1, 5)], ids=str)
@pytest.mark.parametrize("measure", [label_smoothed_cross_entropy, token_accuracy])
def test_logits_and_targets_of_other_shapes(measure, shape):
    """Some of them would give a number: the same tokens in another order, or one that is broadcast."""
    with pytest.raises(ValueError, match=r"logits and targets must be \[..., V\] and \[...\]"):
        measure(torch.zeros(3, 5, 11), torch.ones(shape, dtype=torch.long))


@pytest.mark.parametrize("place", [0, 1])
def test_symmetric_kl_of_other_shapes(place):
    logits = [torch.zeros(3, 5, 11), torch.zeros(3, 5, 11)]
    logits[place] = torch.zeros(1, 5, 11)
    with pytest.raises(ValueError, match="logits and targets must be"):
        symmetric_kl(logits[0], logits[1], TARGETS)


@pytest.mark.parametrize("target", [11, -1])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_target_outside_the_vocabulary(target, smoothing):
    with pytest.raises(IndexError):
        label_smoothed_cross_entropy(torch.zeros(2, 11), torch.tensor([4, target]), smoothing)


def step(model, batch):
    return fit(model, teacher_forced_loss, [batch], lambda step: 1e-3, steps=1)


SHIFTING = {  # whatever reads a target and predicts it one token apart
    "loss": teacher_forced_loss,
    "loss of the accelerated": lambda model, batch: teacher_forced_loss(accelerate(model), batch),
    "r-drop": r_drop_loss,
    "r-drop of the accelerated": lambda model, batch: r_drop_loss(accelerate(model), batch),
    "evaluation": lambda model, batch: evaluate_loss(model, [batch]),
    "fit": step,
}
every_shift = pytest.mark.parametrize("shift", SHIFTING.values(), ids=SHIFTING)


@pytest.mark.parametrize(
    "tgt",
    [
        TGT[:, 1:],  # no start token at all
        torch.stack([TGT[0], TGT[1].roll(-1)]),  # in one row
        TGT.flip(1),
        torch.stack([TGT[0], TGT[1].roll(2)]),  # padded on the left
        TGT.where(TGT != 2, 3),  # another start token, as M2M-100's
        TGT[:, 1:2],
    ],
    ids=str,
)
@every_shift
def test_targets_without_a_start_token_are_refused(model, shift, tgt):
    """Trained on such, a model reads a first word that it's never asked for and never given by a search."""
    with refuses(ValueError, "tgt must begin with the start token, bos_id = 2, in every row"):
        shift(model, (SRC, tgt))


@pytest.mark.parametrize(
    ("tgt", "error", "told"),
    [
        (TGT.int(), TypeError, "tgt must be a torch.long tensor, not torch.int32"),
        (TGT.float(), TypeError, "tgt must be a torch.long tensor, not torch.float32"),
        (TGT[0], ValueError, "tgt must have shape [batch, length], not [6]"),
        (TGT[None], ValueError, "tgt must have shape [batch, length], not [1, 2, 6]"),
        (TGT.where(TGT != 3, 17), IndexError, "tgt must lie in [0, 17), but holds 17"),
        (TGT.where(TGT != 1, -100), IndexError, "tgt must lie in [0, 17), but holds -100"),
    ],
    ids=str,
)
@every_shift
def test_targets_that_are_no_ids_are_refused_as_a_whole(model, shift, tgt, error, told):
    """The last token, too, which the model itself does not read."""
    with refuses(error, told):
        shift(model, (SRC, tgt))


@pytest.mark.parametrize(
    ("batch", "given"),
    [
        (SRC, "Tensor"),
        ((SRC, TGT, TGT), "(Tensor, Tensor, Tensor)"),
        ({}, "dict"),
        ([SRC, "a"], "(Tensor, str)"),
    ],
    ids=["tensor", "three", "dict", "no tensor"],
)
@every_shift
def test_what_is_no_pair_is_refused_as_a_batch(model, shift, batch, given):
    """As when one batch is given for a list of batches."""
    with refuses(TypeError, f"batch must be a pair of tensors, source and target, not {given}"):
        shift(model, batch)


@pytest.mark.parametrize(
    ("config", "missing"),
    [(None, "config.src_vocab_size"), (SimpleNamespace(src_vocab_size=17), "config.tgt_vocab_size")],
    ids=["wrapped", "of another library"],
)
@pytest.mark.parametrize("shift", [teacher_forced_loss, r_drop_loss, SHIFTING["evaluation"]])
def test_a_model_is_told_what_its_losses_need_of_it(model, shift, config, missing):
    other = nn.Sequential(model)
    if config:
        other.config = config
    with pytest.raises(TypeError, match=rf"^model must be .* but Sequential has no {missing}$"):
        shift(other, (SRC, TGT))


@every_shift
def test_a_row_of_padding_needs_no_start_token(model, shift):
    shift(model, (SRC, TGT.where(torch.tensor([[True], [False]]), 1)))


def test_the_start_token_is_the_configured_one_even_if_it_is_the_padding():
    sizes = {"d_model": 12, "n_heads": 3, "n_layers": 1, "d_ff": 20, "pad_id": 9, "bos_id": 9, "eos_id": 0}
    teacher_forced_loss(Transformer(TransformerConfig(17, 17, **sizes)), (SRC, TGT.where(TGT != 2, 9)))


def test_the_start_token_is_not_looked_for_where_looking_means_waiting(model):
    batch = SRC.to("meta"), TGT[:, 1:].to("meta")
    teacher_forced_loss(model.to("meta"), batch)


WRONG_RATES = [
    *((x, ValueError, f"smoothing must lie in [0, 1), but is {x}") for x in (-0.1, 1.0, 1.5, math.nan)),
    ("0.1", TypeError, "smoothing must be a number, not str ('0.1')"),
]


@pytest.mark.parametrize("smoothing, error, told", WRONG_RATES, ids=lambda value: str(value)[:4])
@pytest.mark.parametrize("kind", [lambda model: model, accelerate], ids=["plain", "accelerated"])
def test_smoothing_is_checked_where_it_enters(model, kind, smoothing, error, told):
    with refuses(error, told):
        label_smoothed_cross_entropy(draw_logits(), TARGETS, smoothing)
    for loss in (teacher_forced_loss, r_drop_loss):
        with refuses(error, told):
            loss(kind(model), (SRC, TGT), smoothing)


# Two passes that should agree ----------------------------------------------------------------------------


def divergences(p, q) -> tuple[float, float]:
    """Both Kullback–Leibler divergences of one token, by their definition, in Python's own floats."""
    p, q = (torch.softmax(z, -1).tolist() for z in (p, q))
    return tuple(sum(a * math.log(a / b) for a, b in zip(x, y)) for x, y in ((p, q), (q, p)))


def test_symmetric_kl_is_the_mean_of_both_divergences_over_real_tokens():
    p, q = draw_logits(), draw_logits()
    expected = sum(sum(divergences(a, b)) / 2 for a, b in zip(p[REAL], q[REAL]))
    assert close(symmetric_kl(p, q, TARGETS), expected)
    assert close(symmetric_kl(q, p, TARGETS), expected)
    marked = TARGETS.masked_fill(~REAL, -100)
    assert close(symmetric_kl(p, q, marked, pad_id=-100), expected)
    assert symmetric_kl(p, q, torch.zeros_like(TARGETS)) == 0 and close(symmetric_kl(p, p + 3, TARGETS), 0.0)


def test_symmetric_kl_has_the_slope_of_finite_differences_and_none_at_padding():
    p, q = draw_logits().requires_grad_(), draw_logits().requires_grad_()
    assert torch.autograd.gradcheck(lambda p, q: symmetric_kl(p, q, TARGETS), (p, q))
    for slope in torch.autograd.grad(symmetric_kl(p, q, TARGETS), (p, q)):
        assert (slope[~REAL] == 0).all() and (slope[REAL] != 0).all()


def test_symmetric_kl_of_a_forbidden_token_and_of_large_logits():
    p = torch.tensor([[0.5, -math.inf, 1.0]], requires_grad=True)
    q = torch.tensor([[0.5, -math.inf, 2.0]])
    value = symmetric_kl(p, q, torch.tensor([2]))
    assert close(value, symmetric_kl(p[:, ::2], q[:, ::2], torch.tensor([1])), 1e-6) and value > 0
    assert torch.autograd.grad(value, p)[0].isfinite().all()
    assert symmetric_kl(p, torch.zeros(1, 3), torch.tensor([2])) == math.inf
    far = torch.tensor([[60000.0, -60000.0]])
    assert symmetric_kl(far, -far, torch.tensor([1])) == 120000
    half = symmetric_kl(draw_logits().half(), draw_logits().half(), TARGETS)
    assert half.dtype == torch.float32


@pytest.fixture
def dropping() -> Transformer:
    torch.manual_seed(3)
    sizes = {"d_model": 12, "n_heads": 3, "n_layers": 1, "d_ff": 20, "dropout": 0.4, "pad_id": 1}
    return Transformer(TransformerConfig(17, 17, **sizes)).double()


def written_r_drop(model, smoothing, alpha):
    """The same loss on whole logits, from the definitions of its parts."""
    src, tgt = torch.cat((SRC, SRC)), torch.cat((TGT, TGT))
    p, q = model(src, tgt[:, :-1]).chunk(2)
    y = TGT[:, 1:]
    entropies = [label_smoothed_cross_entropy(z, y, smoothing, 1, reduction="sum") for z in (p, q)]
    log_p, log_q = p.log_softmax(-1), q.log_softmax(-1)
    both = [F.kl_div(a, b, log_target=True, reduction="none") for a, b in ((log_p, log_q), (log_q, log_p))]
    return sum(entropies) / 2 + alpha / 4 * sum(both).sum(-1)[y != 1].sum(), p, q


@pytest.mark.parametrize(("smoothing", "alpha"), [(0.0, 5.0), (0.1, 0.0), (0.3, 2.5)])
def test_r_drop_is_the_mean_cross_entropy_and_half_of_alpha_times_the_divergence(dropping, smoothing, alpha):
    torch.manual_seed(0)
    loss, count = r_drop_loss(dropping, (SRC, TGT), smoothing, alpha)
    torch.manual_seed(0)
    expected, p, q = written_r_drop(dropping, smoothing, alpha)
    assert (p - q).abs().max() > 0.1  # the two passes draw masks of their own
    assert close(loss, expected) and count == 8
    parameters = list(dropping.parameters())
    for ours, theirs in zip(*(torch.autograd.grad(x / 8, parameters) for x in (loss, expected))):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)
    torch.manual_seed(0)
    with torch.no_grad():
        assert close(r_drop_loss(dropping, (SRC, TGT), smoothing, alpha)[0], expected)


def test_r_drop_by_default_takes_the_papers_alpha_and_smoothing(dropping):
    torch.manual_seed(0)
    loss, _ = r_drop_loss(dropping, (SRC, TGT))
    torch.manual_seed(0)
    assert close(loss, written_r_drop(dropping, 0.1, 5.0)[0])


def test_r_drop_of_nothing_and_of_padding(dropping):
    loss, count = r_drop_loss(dropping, (SRC, TGT[:, :1]))
    assert loss == 0 and count == 0
    padding = torch.cat((TGT[:, :1], torch.ones(2, 4).long()), 1)
    loss, count = r_drop_loss(dropping, (SRC, padding))
    loss.backward()
    assert loss == 0 and count == 0
    assert all(p.grad is None or (p.grad == 0).all() for p in dropping.parameters())


def test_r_drop_under_autocast_is_near_and_in_float32(dropping):
    model = dropping.float()
    torch.manual_seed(0)
    exact, _ = r_drop_loss(model, (SRC, TGT))
    for gradients in (True, False):
        torch.manual_seed(0)
        with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(gradients):
            half, _ = r_drop_loss(model, (SRC, TGT))
        assert half.dtype == torch.float32 and abs(half / exact - 1) < 0.02
