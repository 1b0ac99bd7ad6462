"""The loss: equal to torch's and to sums written out, one vote per token, always a number."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import transformer.attention
import transformer.loss
from transformer import (
    Transformer,
    TransformerConfig,
    label_smoothed_cross_entropy,
    linear_cross_entropy,
    perplexity,
    r_drop_loss,
    symmetric_kl,
    teacher_forced_loss,
    token_accuracy,
)
from transformer.loss import _ChunkedLoss, _r_drop_and_slope

TARGETS = torch.tensor([[5, 2, 9, 3, 0], [7, 3, 0, 0, 0], [4, 4, 10, 8, 3]])  # [B=3, T=5]
REAL = TARGETS != 0
SMOOTHINGS = pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])


def draw_logits(vocab_size: int = 11) -> torch.Tensor:
    return 3 * torch.randn(3, 5, vocab_size, dtype=torch.float64)


def close(a: torch.Tensor, b: torch.Tensor | float, atol: float = 1e-10) -> bool:
    return torch.allclose(a, torch.as_tensor(b, dtype=a.dtype), rtol=0, atol=atol)


def written_out(logits: torch.Tensor, target: int, smoothing: float) -> float:
    """The loss of one token, by its definition, in Python's own floats."""
    z = logits.tolist()
    log_sum = math.log(sum(math.exp(score) for score in z))
    wanted = [smoothing / len(z) + (1 - smoothing) * (v == target) for v in range(len(z))]
    return sum(share * (log_sum - score) for share, score in zip(wanted, z))


# -------------------------------------------------------------------------------------------------
# Label-smoothed cross-entropy
# -------------------------------------------------------------------------------------------------


@SMOOTHINGS
def test_equals_the_definition_token_by_token(smoothing):
    logits = draw_logits()
    losses = [written_out(z, y, smoothing) for z, y in zip(logits[REAL], TARGETS[REAL].tolist())]
    assert close(label_smoothed_cross_entropy(logits, TARGETS, smoothing), sum(losses) / len(losses))
    total = label_smoothed_cross_entropy(logits, TARGETS, smoothing, reduction="sum")
    assert close(total, sum(losses))


@settings(max_examples=50)
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


@SMOOTHINGS
def test_gradient_is_predicted_minus_wanted(smoothing):
    logits = draw_logits().requires_grad_()
    label_smoothed_cross_entropy(logits, TARGETS, smoothing).backward()
    wanted = (1 - smoothing) * F.one_hot(TARGETS, 11).double() + smoothing / 11
    expected = (logits.softmax(-1) - wanted) * REAL[..., None] / REAL.sum()
    assert close(logits.grad, expected.detach())
    assert (logits.grad[~REAL] == 0).all()


@pytest.mark.parametrize("vocab_size, smoothing", [(4, 0.2), (50, 0.1), (37000, 0.1)])
def test_optimum_in_closed_form(vocab_size, smoothing):
    right, wrong = 1 - smoothing + smoothing / vocab_size, smoothing / vocab_size
    logits = torch.zeros(vocab_size, dtype=torch.float64)
    logits[1] = math.log((1 - smoothing) * vocab_size / smoothing + 1)
    logits.requires_grad_()
    loss = label_smoothed_cross_entropy(logits, torch.tensor(1), smoothing)
    entropy = -right * math.log(right) - (vocab_size - 1) * wrong * math.log(wrong)
    assert close(loss, entropy)
    assert torch.autograd.grad(loss, logits)[0].abs().max() < 1e-12


def test_sums_of_parts_add_up():
    logits = draw_logits()
    parts = [label_smoothed_cross_entropy(*pair, reduction="sum") for pair in zip(logits, TARGETS)]
    assert close(sum(parts) / REAL.sum(), label_smoothed_cross_entropy(logits, TARGETS))


def test_another_padding_id_changes_nothing_else():
    logits = draw_logits()
    marked = TARGETS.masked_fill(~REAL, -100)
    expected = label_smoothed_cross_entropy(logits, TARGETS)
    assert close(label_smoothed_cross_entropy(logits, marked, pad_id=-100), expected)


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


def test_large_logits_do_not_overflow():
    logits = torch.tensor([[60000.0, -60000.0, 0.0]])
    loss = label_smoothed_cross_entropy(logits, torch.tensor([1]), smoothing=0.0)
    assert loss == 120000


# -------------------------------------------------------------------------------------------------
# Accuracy and perplexity
# -------------------------------------------------------------------------------------------------


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


def test_perplexity_of_a_model_that_went_astray():
    assert perplexity(1e4) == math.inf and perplexity(math.inf) == math.inf
    assert math.isnan(perplexity(math.nan))


# -------------------------------------------------------------------------------------------------
# The loss of a batch
# -------------------------------------------------------------------------------------------------

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


def test_one_step_against_the_gradient_lowers_the_loss(model):
    parameters = list(model.parameters())
    before, count = teacher_forced_loss(model, (SRC, TGT))
    gradients = torch.autograd.grad(before / count, parameters)
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients):
            parameter -= 1e-4 * gradient
        after, _ = teacher_forced_loss(model, (SRC, TGT))
    promised = -1e-4 * sum(gradient.square().sum() for gradient in gradients)
    assert ((after - before) / count).item() == pytest.approx(promised.item(), rel=0.05)


@pytest.mark.slow
def test_batch_loss_is_captured_by_compile(model):
    compiled = torch.compile(teacher_forced_loss, fullgraph=True, backend="aot_eager")
    total, count = compiled(model, (SRC, TGT))
    expected, expected_count = teacher_forced_loss(model, (SRC, TGT))
    assert close(total, expected) and count == expected_count


# -------------------------------------------------------------------------------------------------
# What is refused
# -------------------------------------------------------------------------------------------------

LOGITS = torch.zeros(3, 5, 11)
WRONG_PAIRS = [
    (LOGITS.long(), TARGETS, TypeError, "logits must be a floating-point tensor, not torch.int64"),
    (LOGITS, TARGETS.int(), TypeError, "targets must be torch.long, not torch.int32"),
    (
        LOGITS[:, :4],
        TARGETS,
        ValueError,
        r"logits must be \[..., V\] for targets \[3, 5\], not \[3, 4, 11\]",
    ),
    (
        torch.tensor(1.0),
        torch.tensor(1),
        ValueError,
        r"logits must have at least 1 axis, not shape \[\]",
    ),
    (LOGITS, TARGETS + 1, IndexError, r"targets must lie in \[0, 11\), but hold 11"),
    (LOGITS, TARGETS - 1, IndexError, r"targets must lie in \[0, 11\), but hold -1"),
]


@pytest.mark.parametrize("function", [label_smoothed_cross_entropy, token_accuracy])
@pytest.mark.parametrize("logits, targets, error, message", WRONG_PAIRS)
def test_pairs_that_do_not_belong_together(function, logits, targets, error, message):
    with pytest.raises(error, match=message):
        function(logits, targets)


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"smoothing": 1.0}, ValueError, r"smoothing must lie in \[0, 1\), but is 1.0"),
        ({"smoothing": -0.1}, ValueError, r"smoothing must lie in \[0, 1\), but is -0.1"),
        ({"smoothing": "0.1"}, TypeError, "smoothing must be a number, not str"),
        ({"reduction": "none"}, ValueError, r"reduction must be one of \['mean', 'sum'\], not 'none'"),
    ],
)
def test_options_that_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        label_smoothed_cross_entropy(LOGITS, TARGETS, **options)


# The loss without the logits --------------------------------------------------------------------------


@pytest.fixture
def chunks(monkeypatch):
    """However few the logits, they are made a few rows at a time: 256 for eleven tokens."""
    monkeypatch.setattr(transformer.loss, "_FEW_LOGITS", 0)
    monkeypatch.setattr(transformer.loss, "_AT_ONCE", {"cpu": 256 * 11})


@pytest.mark.usefixtures("chunks")
def test_a_row_of_logits_is_the_least_that_is_made_at_once(monkeypatch):
    monkeypatch.setattr(transformer.loss, "_AT_ONCE", {"cpu": 5})  # less than the vocabulary
    torch.manual_seed(0)
    hidden, table = torch.randn(3, 4), torch.randn(11, 4, requires_grad=True)
    targets = torch.tensor([1, 5, 9])
    plain = label_smoothed_cross_entropy(hidden @ table.T, targets, reduction="sum")
    torch.testing.assert_close(linear_cross_entropy(hidden, table, targets), plain)


def test_the_loss_of_few_logits_has_second_derivatives():
    hidden, table = (torch.randn(n, 3, dtype=torch.float64, requires_grad=True) for n in (4, 5))
    targets = torch.tensor([1, 4, 0, 2])
    loss = lambda h, w: linear_cross_entropy(h, w, targets, 0.2)  # noqa: E731
    assert torch.autograd.gradgradcheck(loss, (hidden, table))


def test_few_logits_are_computed_as_a_whole_and_many_are_not(monkeypatch):
    sizes, part = [], transformer.loss._loss_and_slope

    def spy(logits, *given, **options):
        sizes.append(list(logits.shape))
        return part(logits, *given, **options)

    monkeypatch.setattr(transformer.loss, "_loss_and_slope", spy)
    table = torch.randn(1024, 2, requires_grad=True)
    for rows in (1024, 1025):
        linear_cross_entropy(torch.randn(rows, 2), table, torch.ones(rows, dtype=torch.long))
    assert sizes == [[1024, 1024], [1, 1024]]


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_chunked_loss_is_the_same_by_either_library(smoothing, monkeypatch):
    torch.manual_seed(0)
    hidden, table = torch.randn(300, 16, requires_grad=True), torch.randn(4000, 16, requires_grad=True)
    targets = torch.randint(0, 4000, (300,))
    results = []
    for slow in (True, False):
        monkeypatch.setattr(transformer.attention, "_mkl_is_slow", lambda slow=slow: slow)
        loss = linear_cross_entropy(hidden, table, targets, smoothing)
        results.append([loss, *torch.autograd.grad(loss / 300, (hidden, table))])
    for ours, theirs in zip(*results):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("shape", [(1,), (3, 5), (257,), (6, 100)])
@pytest.mark.parametrize("pad_id", [0, 40, -1])
def test_chunked_loss_equals_the_loss_of_all_logits_with_both_gradients(shape, smoothing, pad_id):
    torch.manual_seed(0)
    hidden = torch.randn(*shape, 6, dtype=torch.float64, requires_grad=True)
    table = torch.randn(11, 6, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 11, shape)
    targets[torch.rand(shape) < 0.3] = pad_id
    plain = label_smoothed_cross_entropy(hidden @ table.T, targets, smoothing, pad_id, reduction="sum")
    chunked = linear_cross_entropy(hidden, table, targets, smoothing, pad_id)
    torch.testing.assert_close(chunked, plain, atol=1e-10, rtol=1e-12)
    with torch.no_grad():  # where there is no backward pass, there are no chunks
        unchunked = linear_cross_entropy(hidden, table, targets, smoothing, pad_id)
    torch.testing.assert_close(unchunked, plain, atol=1e-10, rtol=1e-12)
    for ours, theirs in zip(*(torch.autograd.grad(loss / 3, (hidden, table)) for loss in (chunked, plain))):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)


@pytest.mark.usefixtures("chunks")
def test_chunked_loss_passes_the_numerical_gradient_check():
    hidden, table = (torch.randn(n, 3, dtype=torch.float64, requires_grad=True) for n in (4, 5))
    targets = torch.tensor([1, 4, 0, 2])
    assert torch.autograd.gradcheck(lambda h, w: linear_cross_entropy(h, w, targets, 0.2), (hidden, table))


@pytest.mark.usefixtures("chunks")
def test_chunked_loss_keeps_no_logits_for_the_backward_pass():
    hidden, table = torch.randn(600, 4, requires_grad=True), torch.randn(50, 4, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        linear_cross_entropy(hidden, table, torch.randint(1, 50, (600,)))
    assert sum(kept) == hidden.numel() + table.numel()


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("backward", [True, False])
def test_chunked_loss_under_autocast_is_near_and_its_gradients_have_the_parameters_dtype(backward):
    torch.manual_seed(0)
    hidden, table = torch.randn(300, 16, requires_grad=True), torch.randn(40, 16, requires_grad=True)
    targets = torch.randint(0, 40, (300,))
    exact = linear_cross_entropy(hidden, table, targets)
    with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(backward):
        half = linear_cross_entropy(hidden, table, targets)
    assert half.dtype == torch.float32 and abs(half / exact - 1) < 0.01
    if backward:
        for near, right in zip(*(torch.autograd.grad(loss, (hidden, table)) for loss in (half, exact))):
            assert near.dtype == torch.float32 and (near - right).norm() < 0.02 * right.norm()


def test_chunked_loss_of_nothing_is_zero():
    hidden, table = torch.randn(2, 0, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    for vectors, targets in ((hidden, torch.zeros(2, 0).long()), (torch.randn(3, 4), torch.zeros(3).long())):
        loss = linear_cross_entropy(vectors, table, targets)
        assert loss == 0
        (slope,) = torch.autograd.grad(loss, table)
        assert (slope == 0).all()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"hidden": torch.randn(3, 5)}, ValueError, "hidden must have .* last of size 4"),
        ({"hidden": torch.randn(2, 4)}, ValueError, r"hidden must be .* for targets \[3\]"),
        ({"hidden": [1.0]}, TypeError, "hidden must be a"),
        ({"weight": torch.randn(4)}, ValueError, "weight must have 2 axes"),
        ({"targets": torch.tensor([1, 2, 7])}, IndexError, r"targets must lie in \[0, 7\), but hold 7"),
        ({"targets": torch.randn(3)}, TypeError, "targets must be torch.long"),
        ({"smoothing": 1.0}, ValueError, r"smoothing must lie in \[0, 1\)"),
        ({"hidden": torch.randn(3, 4).double()}, TypeError, "hidden must be of torch.float32"),
    ],
)
def test_chunked_loss_refuses(changes, error, message):
    arguments = {"hidden": torch.randn(3, 4), "weight": torch.randn(7, 4), "targets": torch.tensor([1, 2, 3])}
    with pytest.raises(error, match=message):
        linear_cross_entropy(**(arguments | changes))


# Two passes that should agree ----------------------------------------------------------------------------


def divergences(p, q) -> tuple[float, float]:
    """Both Kullback–Leibler divergences of one token, by their definition, in Python's own floats."""
    p, q = (torch.softmax(z, -1).tolist() for z in (p, q))
    return tuple(sum(a * math.log(a / b) for a, b in zip(x, y)) for x, y in ((p, q), (q, p)))


def test_symmetric_kl_by_hand():
    p, q = torch.tensor([[1 / 2, 1 / 4, 1 / 4], [1 / 4, 1 / 2, 1 / 4]], dtype=torch.float64)
    assert close(symmetric_kl(p.log(), q.log(), torch.tensor(2)), math.log(2) / 4)


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
    with torch.no_grad():  # where there is no backward pass, there are no chunks
        assert close(r_drop_loss(dropping, (SRC, TGT), smoothing, alpha)[0], expected)


def test_r_drop_by_default_takes_the_papers_alpha_and_smoothing(dropping):
    torch.manual_seed(0)
    loss, _ = r_drop_loss(dropping, (SRC, TGT))
    torch.manual_seed(0)
    assert close(loss, written_r_drop(dropping, 0.1, 5.0)[0])


@SMOOTHINGS
def test_r_drop_without_dropout_is_the_plain_loss(dropping, smoothing):
    dropping.eval()
    loss, count = r_drop_loss(dropping, (SRC, TGT), smoothing, alpha=7.0)
    plain, plain_count = teacher_forced_loss(dropping, (SRC, TGT), smoothing)
    assert close(loss, plain) and count == plain_count == 8


def test_r_drop_of_nothing_and_of_padding(dropping):
    loss, count = r_drop_loss(dropping, (SRC, TGT[:, :1]))
    assert loss == 0 and count == 0
    padding = torch.cat((TGT[:, :1], torch.ones(2, 4).long()), 1)
    loss, count = r_drop_loss(dropping, (SRC, padding))
    loss.backward()
    assert loss == 0 and count == 0
    assert all(p.grad is None or (p.grad == 0).all() for p in dropping.parameters())


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("n", [1, 127, 128, 129, 300])
def test_r_drop_in_chunks_equals_whole_logits(n):
    """Across the borders of the chunks, with padding beyond the vocabulary, and by finite differences."""
    torch.manual_seed(n)
    rows = torch.randn(2, n, 6, dtype=torch.float64, requires_grad=True)
    table = torch.randn(11, 6, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 11, (n,)).masked_fill(torch.rand(n) < 0.2, 40)
    part = partial(_r_drop_and_slope, smoothing=0.2, pad_id=40, alpha=3.0)
    chunked = _ChunkedLoss.apply(rows, table, targets, part)
    p, q = rows @ table.T
    whole = sum(label_smoothed_cross_entropy(z, targets, 0.2, 40, "sum") for z in (p, q)) / 2
    whole = whole + 1.5 * symmetric_kl(p, q, targets, 40)
    assert close(chunked, whole, 1e-9)
    for ours, theirs in zip(*(torch.autograd.grad(x / 7, (rows, table)) for x in (chunked, whole))):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)
    if n == 1:
        assert torch.autograd.gradcheck(lambda r, t: _ChunkedLoss.apply(r, t, targets, part), (rows, table))


def test_r_drop_keeps_no_logits_for_the_backward_pass(dropping):
    config = TransformerConfig(600, 600, d_model=12, n_heads=3, n_layers=1, d_ff=20)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.size(-1)) or x, lambda x: x):
        r_drop_loss(Transformer(config), (SRC, TGT))
    assert kept and 600 not in kept


def test_r_drop_under_autocast_is_near_and_in_float32(dropping):
    model = dropping.float()
    torch.manual_seed(0)
    exact, _ = r_drop_loss(model, (SRC, TGT))
    for gradients in (True, False):
        torch.manual_seed(0)
        with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(gradients):
            half, _ = r_drop_loss(model, (SRC, TGT))
        assert half.dtype == torch.float32 and abs(half / exact - 1) < 0.02


@pytest.mark.slow
def test_r_drop_is_captured_by_compile(dropping):
    dropping.eval()
    compiled = torch.compile(r_drop_loss, fullgraph=True, backend="aot_eager")
    total, count = compiled(dropping, (SRC, TGT))
    assert close(total, teacher_forced_loss(dropping, (SRC, TGT))[0]) and count == 8


@pytest.mark.parametrize(
    ("batch", "options", "error", "message"),
    [
        ((SRC, TGT[:1]), {}, ValueError, "src and tgt must have the same batch size, not 2 and 1"),
        ((SRC.float(), TGT), {}, TypeError, "src must be a torch.long tensor, not torch.float32"),
        ((SRC, TGT), {"alpha": -1.0}, ValueError, "alpha must be finite and at least 0, but is -1.0"),
        ((SRC, TGT), {"alpha": math.inf}, ValueError, "alpha must be finite and at least 0, but is inf"),
        ((SRC, TGT), {"alpha": "5"}, TypeError, "alpha must be a number, not str"),
        ((SRC, TGT), {"smoothing": 1.0}, ValueError, r"smoothing must lie in \[0, 1\), but is 1.0"),
        ((SRC, TGT + 9), {}, IndexError, r"tgt must lie in \[0, 17\)"),
        ((SRC + 9, TGT), {}, IndexError, r"src must lie in \[0, 17\)"),
    ],
)
def test_r_drop_refuses(dropping, batch, options, error, message):
    with pytest.raises(error, match=message):
        r_drop_loss(dropping, batch, **options)


@pytest.mark.parametrize("logits, targets, error, message", WRONG_PAIRS)
def test_symmetric_kl_refuses_in_either_place(logits, targets, error, message):
    fitting = torch.zeros(*targets.shape, 11)
    for pair in ((logits, fitting), (fitting, logits)):
        with pytest.raises(error, match=message):
            symmetric_kl(*pair, targets)
