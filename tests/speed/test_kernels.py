"""The kernels of the fast model: every one is its plain form in values and gradients, and has its place."""

from __future__ import annotations

import platform
import warnings
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from helpers import assert_same, refuses
from torch import Tensor

import transformer.speed.chunked_loss
import transformer.speed.kernels
from transformer import Translator, causal_mask, label_smoothed_cross_entropy, scaled_dot_product_attention
from transformer.__main__ import main
from transformer.speed.chunked_loss import linear_cross_entropy
from transformer.speed.kernels import HAS_ONEDNN, fast_attention, fastest, linear_by_onednn

ONEDNN = pytest.mark.skipif(not HAS_ONEDNN, reason="this PyTorch has no oneDNN")


def randn(*shape: int, grad: bool = True, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, requires_grad=grad)


def with_gradients(outputs, inputs) -> list[Tensor]:
    """The outputs and the gradients of all inputs that want one, every output with another weight."""
    outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    loss = sum((place + 1) * y.square().sum() for place, y in enumerate(outputs))
    return [*outputs, *torch.autograd.grad(loss, [x for x in inputs if x is not None])]


# The table of choices ------------------------------------------------------------------------------------


@pytest.fixture
def slow_mkl(monkeypatch):
    """As on a machine where oneDNN is the faster library."""
    if not HAS_ONEDNN:
        pytest.skip("this PyTorch has no oneDNN")
    monkeypatch.setattr(transformer.speed.kernels, "_MKL_IS_SLOW", True)
    monkeypatch.setattr(transformer.speed.kernels, "_LEAST_WORK", 24)


@pytest.mark.usefixtures("slow_mkl")
def test_onednn_multiplies_large_matrices_in_float32_on_the_cpu_alone(monkeypatch):
    x, weight = torch.randn(2, 3), torch.randn(4, 3)  # 24 multiplications
    assert fastest(x, weight) is linear_by_onednn
    for other in (x[:1], x.double(), x.bfloat16(), x.to("meta")):
        assert fastest(other, weight) is F.linear
    with torch.autocast("cpu", torch.bfloat16):
        assert fastest(x, weight) is F.linear
    with warnings.catch_warnings():  # the switch may warn of GPUs that are not there
        warnings.simplefilter("ignore")
        with torch.backends.mkldnn.flags(enabled=False):
            assert fastest(x, weight) is F.linear
    seen = []
    torch.func.vmap(lambda row: seen.append(fastest(row, weight)) or row)(x)
    torch.compile(lambda x: seen.append(fastest(x, weight)) or x, backend="eager")(x)
    assert seen == [F.linear, F.linear]
    for name, value in (("HAS_ONEDNN", False), ("_MKL_IS_SLOW", False)):
        with monkeypatch.context() as without:
            without.setattr(transformer.speed.kernels, name, value)
            assert fastest(x, weight) is F.linear


# Dense layers --------------------------------------------------------------------------------------------


@ONEDNN
@pytest.mark.parametrize("rows", [(1,), (15, 1), (16, 8), (5, 26), (131, 3), (2, 3, 4)])
@pytest.mark.parametrize("widths", [(6, 9), (9, 6), (7, 7)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_by_onednn_is_linear_in_values_and_gradients(rows, widths, bias):
    d_in, d_out = widths
    inputs = [randn(*shape, dtype=torch.float32) for shape in ((*rows, d_in), (d_out, d_in), (d_out,))]
    inputs = inputs if bias else [*inputs[:2], None]
    found, wanted = (with_gradients(dense(*inputs), inputs) for dense in (linear_by_onednn, F.linear))
    assert found[0].is_contiguous() and found[0].layout == torch.strided
    assert_same(found, wanted, 1e-4)
    with torch.no_grad():
        assert_same([linear_by_onednn(*inputs)], [F.linear(*inputs)], 1e-4)


@ONEDNN
@pytest.mark.parametrize("make", [lambda x: x.T, lambda x: x[:, ::2], lambda x: x[:1].expand(12, 12)])
def test_linear_by_onednn_takes_tensors_that_lie_anyhow_in_memory(make):
    """Also slopes: that of a sum is one number, expanded."""
    x, weight = (make(torch.randn(12, 12)).detach().requires_grad_() for _ in range(2))
    found, wanted = (
        [y := dense(x, weight), *torch.autograd.grad(y.sum(), (x, weight))]
        for dense in (linear_by_onednn, F.linear)
    )
    assert_same(found, wanted, 1e-4)


@ONEDNN
def test_linear_by_onednn_can_be_differentiated_again():
    inputs = [randn(*shape, dtype=torch.float32) for shape in ((8, 6), (9, 6), (9,))]
    found = []
    for dense in (linear_by_onednn, F.linear):
        slopes = torch.autograd.grad(dense(*inputs).square().sum(), inputs, create_graph=True)
        found.append(torch.autograd.grad(sum(slope.square().sum() for slope in slopes), inputs))
    assert_same(*found, 1e-3)


# Attention -----------------------------------------------------------------------------------------------


MASKS = {  # and whether the kernel gets a mask, and whether it is told of causality
    "none": (None, (False, False)),
    "all": (torch.ones(1, 1, 1, 5, dtype=torch.bool), (False, False)),
    "all, in full": (torch.ones(2, 3, 5, 5, dtype=torch.bool), (False, False)),
    "causal": (causal_mask(5), (False, True)),
    "nearly causal": (causal_mask(5).index_fill(-2, torch.tensor([4]), False), (True, False)),
    "causal, and padding": (causal_mask(5) & (torch.arange(5) < 4), (True, False)),
    "padding": ((torch.arange(5) < 3)[None, None, None], (True, False)),
    "one for each head": (torch.arange(150).view(2, 3, 5, 5) % 7 > 2, (True, False)),
    "nothing in one sentence": ((torch.arange(5) < torch.tensor([[5], [0]]))[:, None, None], (True, False)),
    "nothing": (torch.zeros(1, 1, 1, 5, dtype=torch.bool), (True, False)),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_that_say_little_reach_the_kernel_as_less(name, monkeypatch):
    mask, expected = MASKS[name]
    asked, kernel = [], F.scaled_dot_product_attention

    def spy(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False):
        asked.append((attn_mask is not None, is_causal))
        return kernel(query, key, value, attn_mask, dropout_p, is_causal)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    inputs = [randn(2, 3, 5, 4) for _ in range(3)]
    found = with_gradients(fast_attention(*inputs, mask), inputs)
    assert_same(found, with_gradients(scaled_dot_product_attention(*inputs, mask)[0], inputs))
    assert asked == [expected]


def test_a_causal_square_for_a_longer_past_is_no_causal_mask():
    query, key = randn(1, 1, 3, 4), randn(1, 1, 5, 4)
    mask = F.pad(causal_mask(3), (2, 0), value=True)
    wanted = scaled_dot_product_attention(query, key, key, mask)[0]
    assert_same([fast_attention(query, key, key, mask)], [wanted])


@pytest.mark.parametrize("mask", [None, causal_mask(5), torch.arange(5) < 3], ids=["none", "causal", "some"])
def test_dropout_of_attention_weights_acts_whatever_the_mask(mask):
    query, key, value = (torch.randn(200, 2, 5, 4) for _ in range(3))
    mask = mask if mask is None else mask.expand(1, 1, 5, 5)
    exact = scaled_dot_product_attention(query, key, value, mask)[0]
    found = fast_attention(query, key, value, mask, 0.5)
    assert (found - exact).abs().max() > 0.1  # and on average nothing has changed
    total = sum(fast_attention(query, key, value, mask, 0.5) for _ in range(200)) / 200
    assert (total - exact).abs().mean() < 0.1


# The loss without the logits -----------------------------------------------------------------------------


@pytest.fixture
def chunks(monkeypatch):
    """However few the logits, they are made a few rows at a time: 256 for eleven tokens."""
    monkeypatch.setattr(transformer.speed.chunked_loss, "_FEW_LOGITS", 0)
    monkeypatch.setattr(transformer.speed.chunked_loss, "_AT_ONCE", {"cpu": 256 * 11})


def test_chunks_of_half_precision_are_summed_in_float32(monkeypatch):
    """So that the table's gradient is no further from the exact one than that of whole logits."""
    monkeypatch.setattr(transformer.speed.chunked_loss, "_AT_ONCE", {"cpu": 2**14})
    monkeypatch.setattr(transformer.speed.chunked_loss, "_FEW_LOGITS", 0)
    torch.manual_seed(0)
    hidden, table = torch.randn(2048, 16, dtype=torch.float64), torch.randn(256, 16, dtype=torch.float64)
    targets = torch.randint(1, 256, (2048,))

    def gradient(loss, dtype):
        weight = table.to(dtype, copy=True).requires_grad_()
        loss(hidden.to(dtype), weight).backward()
        return weight.grad.double()

    chunked = lambda x, weight: linear_cross_entropy(x, weight, targets)
    whole = lambda x, w: label_smoothed_cross_entropy(F.linear(x, w), targets, reduction="sum")
    exact = gradient(whole, torch.float64)
    errors = [(gradient(loss, torch.bfloat16) - exact).norm() / exact.norm() for loss in (chunked, whole)]
    assert errors[0] < 1.1 * errors[1]


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("shape", [(1,), (3, 5), (257,), (6, 100)])
@pytest.mark.parametrize("pad_id", [0, 40, -1])
def test_chunked_loss_equals_the_loss_of_all_logits_with_both_gradients(shape, smoothing, pad_id):
    hidden, table, targets = randn(*shape, 6), randn(11, 6), torch.randint(0, 11, shape)
    targets[torch.rand(shape) < 0.3] = pad_id
    plain = label_smoothed_cross_entropy(hidden @ table.T, targets, smoothing, pad_id, reduction="sum")
    chunked = linear_cross_entropy(hidden, table, targets, smoothing, pad_id)
    with torch.no_grad():  # where there is no backward pass, there are no chunks
        unchunked = linear_cross_entropy(hidden, table, targets, smoothing, pad_id)
    assert_same([chunked, unchunked], [plain, plain])
    assert_same(*(torch.autograd.grad(loss / 3, (hidden, table)) for loss in (chunked, plain)))


@pytest.mark.usefixtures("chunks")
def test_chunked_loss_keeps_no_logits_for_the_backward_pass():
    hidden, table = torch.randn(600, 4, requires_grad=True), torch.randn(50, 4, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        linear_cross_entropy(hidden, table, torch.randint(1, 50, (600,)))
    assert sum(kept) == hidden.numel() + table.numel() + len(hidden)  # and which rows are padding


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("backward", [True, False])
def test_chunked_loss_under_autocast_is_near_and_its_gradients_have_the_parameters_dtype(backward):
    hidden, table = torch.randn(300, 16, requires_grad=True), torch.randn(40, 16, requires_grad=True)
    targets = torch.randint(0, 40, (300,))
    exact = linear_cross_entropy(hidden, table, targets)
    with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(backward):
        half = linear_cross_entropy(hidden, table, targets)
    assert half.dtype == torch.float32 and abs(half / exact - 1) < 0.01
    if backward:
        for near, right in zip(*(torch.autograd.grad(loss, (hidden, table)) for loss in (half, exact))):
            assert near.dtype == torch.float32 and (near - right).norm() < 0.02 * right.norm()


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("shape", [(2,), (2, 3), (6,)])
def test_rows_without_targets_of_their_own_are_refused(shape):
    with pytest.raises(ValueError, match=r"must be \[..., d\] and \[...\]"):
        linear_cross_entropy(torch.randn(3, 2, 4), torch.randn(7, 4), torch.ones(shape, dtype=torch.long))


@pytest.mark.parametrize("target", [40, -1])
@pytest.mark.parametrize("few", [2**21, 0], ids=["whole", "in chunks"])
def test_a_target_outside_the_vocabulary_is_refused_by_name(target, few, monkeypatch):
    monkeypatch.setattr(transformer.speed.chunked_loss, "_FEW_LOGITS", few)
    rows, table = torch.randn(2, 5, 4, requires_grad=True), torch.randn(40, 4, requires_grad=True)
    targets = torch.tensor([3, 39, target, 99, 0])  # the padding may be any number
    told = f"targets must lie in [0, 40), but holds {target}"
    with refuses(IndexError, told):
        linear_cross_entropy(rows[0], table, targets, 0.1, 99)
    targets[2] = 7
    assert linear_cross_entropy(rows[0], table, targets, 0.1, 99).isfinite()


# ---------- Inside torch.func's transforms, where no piece of a loss may stand


def test_gradients_of_many_logits_by_transforms_are_autograds():
    n, d, size = 1200, 3, 1000  # more logits than are computed as a whole
    targets = torch.randint(0, size, (n,))
    hidden, weight = torch.randn(n, d, dtype=torch.float64), torch.randn(size, d, dtype=torch.float64)
    found = torch.func.grad(linear_cross_entropy, argnums=(0, 1))(hidden, weight, targets)
    leaves = [x.clone().requires_grad_() for x in (hidden, weight)]
    wanted = torch.autograd.grad(linear_cross_entropy(*leaves, targets), leaves)
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(x, y)


# Memory --------------------------------------------------------------------------------------------------


def test_only_a_program_retunes_its_memory(monkeypatch, capsys):
    """Whatever the package is used for, malloc stays as it is; the command line sets it, once."""
    found = []
    library = SimpleNamespace(mallopt=lambda *setting: found.append(setting))
    monkeypatch.setattr("transformer.speed.kernels.ctypes", SimpleNamespace(CDLL=lambda name: library))
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", ""))
    Translator.load("phrases").translate(["Gosto disto."])
    assert found == []
    assert main(["info"]) == 0 and "parameters" in capsys.readouterr().out
    assert found == [(-3, 2**25), (-1, 2**30)]
