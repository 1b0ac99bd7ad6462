"""Attention: equal to loops and to torch.nn in values and gradients, nothing where nothing may be."""

from __future__ import annotations

import itertools
import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from helpers import assert_same, refuses
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from transformer import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    MultiHeadAttention,
    Transformer,
    TransformerConfig,
    accelerate,
    causal_mask,
    padding_mask,
    scaled_dot_product_attention,
)
from transformer.attention import KeyValueCache, fused_attention
from transformer.modern.language_model import LanguageModel, LanguageModelConfig
from transformer.speed.kernels import fast_attention

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
ATTENTIONS = {"written out": lambda *args: scaled_dot_product_attention(*args)[0], "fused": fused_attention}
both_attentions = pytest.mark.parametrize("attend", ATTENTIONS.values(), ids=ATTENTIONS)
every_attention = pytest.mark.parametrize(
    "attend", [*ATTENTIONS.values(), fast_attention], ids=[*ATTENTIONS, "fast"]
)
CONFIG = TransformerConfig(9, 9, d_model=8, n_heads=2, n_layers=1, d_ff=8)
X = torch.ones(2, 2, 8)

# Six sizes, no two of them equal: an axis taken for another cannot pass unnoticed.
different_sizes = st.lists(st.integers(1, 7), min_size=6, max_size=6, unique=True)


def randn(*shape: int, grad: bool = False, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64).to(dtype).requires_grad_(grad)


def heads(B, H, T, S, d_k, d_v, grad=False, dtype=torch.float64) -> list[Tensor]:
    """Queries, keys and values as the heads have them."""
    shapes = (B, H, T, d_k), (B, H, S, d_k), (B, H, S, d_v)
    return [randn(*shape, grad=grad, dtype=dtype) for shape in shapes]


def gradients(output: Tensor, inputs) -> tuple[Tensor, ...]:
    """Gradients of a sum in which every entry of the output has a weight of its own."""
    weight = torch.linspace(-1, 2, output.numel(), dtype=output.dtype).view(output.shape)
    return torch.autograd.grad((output * weight).sum(), list(inputs), retain_graph=True)


# ---------- Masks


@pytest.mark.parametrize("pad_id", [0, 3])
def test_padding_mask_is_true_where_a_token_stands(pad_id):
    ids = torch.tensor([[3, 1, 0], [2, 3, 3]])
    mask = padding_mask(ids, pad_id)
    assert mask.dtype == torch.bool and mask.shape == (2, 1, 1, 3)
    assert mask[:, 0, 0].tolist() == [[token != pad_id for token in row] for row in ids.tolist()]


@pytest.mark.parametrize("length", [0, 1, 2, 5])
def test_causal_mask_is_true_up_to_the_position_itself(length):
    mask = causal_mask(length)
    assert mask.dtype == torch.bool and mask.shape == (1, 1, length, length)
    assert mask[0, 0].tolist() == [[s <= t for s in range(length)] for t in range(length)]
    assert causal_mask(length, device="meta").device.type == "meta"


SCORES = (2, 3, 4, 5)  # [B, H, T, S]


@pytest.mark.parametrize("shape", [*itertools.product(*((1, size) for size in SCORES))], ids=str)
@both_attentions
def test_every_mask_that_broadcasts_means_its_expansion(attend, shape):
    mask = torch.rand(shape) < 0.6
    inputs = heads(*SCORES, 6, 7)
    assert_same(attend(*inputs, mask), attend(*inputs, mask.expand(SCORES)))


NOT_BOOLEAN = [*DTYPES, torch.long, torch.int32, torch.uint8, torch.int8, torch.complex64]


@pytest.mark.parametrize(
    "mask", [*(torch.ones(SCORES).to(dtype) for dtype in NOT_BOOLEAN), [[True]], True], ids=type
)
@every_attention
def test_a_mask_that_is_not_boolean_is_refused(attend, mask):
    kind = getattr(mask, "dtype", type(mask).__name__)
    with refuses(TypeError, f"mask must be a torch.bool tensor, True where a query may attend, not {kind}"):
        attend(*heads(*SCORES, 6, 7), mask)


WAYS = ": write mask[None, None] for [T, S], mask[:, None, None] for [B, S], mask[:, None] for [B, T, S]"


@pytest.mark.parametrize(
    "scores, shape",
    [
        *((SCORES, shape) for shape in [(), (5,), (4, 5), (1, 5), (3, 4, 5), (1, 1, 5), (1, *SCORES)]),
        ((4, 3, 4, 5), (4, 5)),  # [B, S] where B = T
        ((2, 2, 4, 5), (2, 1, 5)),  # [B, 1, S] where B = H
        *(
            (SCORES, shape)
            for shape in [(2, 3, 5, 4), (3, 1, 1, 5), (2, 2, 1, 5), (1, 1, 5, 5), (1, 1, 4, 4)]
        ),
        ((1, 3, 4, 5), (2, 1, 1, 5)),  # one sentence, and the mask of two
        ((2, 3, 1, 5), (1, 1, 5, 5)),  # one new position behind four, and the mask of all five
        ((2, 3, 4, 1), (2, 1, 1, 5)),
        ((4, 5), (1, 1, 4, 5)),
        ((2, 4, 5), (4, 5)),
        ((2, 4, 5), (2, 1, 4, 5)),
    ],
    ids=str,
)
@every_attention
def test_a_mask_of_another_rank_or_size_is_refused(attend, scores, shape):
    """Each of them is broadcast by torch, or refused without the mask being named."""
    *front, T, S = scores
    q, k = randn(*front, T, 6), randn(*front, S, 6)
    hint = WAYS if len(shape) < len(scores) == 4 else ""
    wanted = f"mask must have shape {list(scores)} (1 may stand for any size), not {list(shape)}{hint}"
    with refuses(ValueError, wanted):
        attend(q, k, k, torch.ones(shape, dtype=torch.bool))


ENTRIES = {
    "attention": lambda mask: MultiHeadAttention(8, 2)(X, X, X, mask),
    "its weights": lambda mask: MultiHeadAttention(8, 2)(X, X, X, mask, need_weights=True),
    "encoder layer": lambda mask: EncoderLayer(CONFIG)(X, mask),
    "decoder layer, own": lambda mask: DecoderLayer(CONFIG)(X, X, self_mask=mask),
    "decoder layer, memory": lambda mask: DecoderLayer(CONFIG)(X, X, memory_mask=mask),
    "encoder": lambda mask: Encoder(CONFIG)(X, mask),
    "decoder": lambda mask: Decoder(CONFIG)(X, X, mask),
    "decode": lambda mask: Transformer(CONFIG).decode(torch.full((2, 2), 2), X, mask),
    "decode, accelerated": lambda mask: accelerate(Transformer(CONFIG)).decode(
        torch.full((2, 2), 2), X, mask
    ),
    "language model": lambda mask: LanguageModel(
        LanguageModelConfig(9, d_model=8, n_heads=2, n_layers=1, d_ff=8)
    )(torch.ones(2, 2, dtype=torch.long), mask),
}


@pytest.mark.parametrize("mask", [torch.ones(2, 2, dtype=torch.bool), torch.ones(2, 1, 2, dtype=torch.bool)])
@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_a_mask_that_would_be_broadcast_is_refused_wherever_it_comes_in(entry, mask):
    """Here B, H, T and S are all 2."""
    entry(torch.ones(2, 1, 1, 2, dtype=torch.bool))
    with refuses(
        ValueError,
        f"mask must have shape [2, 2, 2, 2] (1 may stand for any size), not {list(mask.shape)}{WAYS}",
    ):
        entry(mask)
    with refuses(
        TypeError, "mask must be a torch.bool tensor, True where a query may attend, not torch.float32"
    ):
        entry(torch.ones(2, 1, 1, 2))


# ---------- The scaled dot product, written out and fused


def spelled_out(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Equation 1 of the paper, for one head, in loops over Python's numbers."""
    T, S, d_v = len(q), len(k), v.size(1)
    context, weights = torch.zeros(T, d_v).double(), torch.zeros(T, S).double()
    for t in range(T):
        allowed = [s for s in range(S) if mask[t, s]]
        scores = {s: sum(a * b for a, b in zip(q[t].tolist(), k[s].tolist())) for s in allowed}
        powers = {s: math.exp(score / math.sqrt(q.size(1))) for s, score in scores.items()}
        for s in allowed:
            weights[t, s] = powers[s] / sum(powers.values())
            context[t] += weights[t, s] * v[s]
    return context, weights


@settings(max_examples=12)
@given(different_sizes, st.floats(0, 1), st.integers(0, 2**32))
def test_attention_equals_loops(sizes, share, seed):
    torch.manual_seed(seed)
    B, H, T, S, d_k, d_v = sizes
    q, k, v = heads(*sizes)
    mask = torch.rand(B, H, T, S) < share  # with a small share, whole rows have nothing
    context, weights = scaled_dot_product_attention(q, k, v, mask)
    assert context.shape == (B, H, T, d_v) and weights.shape == (B, H, T, S)
    for b in range(B):
        for h in range(H):
            wanted = spelled_out(q[b, h], k[b, h], v[b, h], mask[b, h])
            assert_same((context[b, h], weights[b, h]), wanted)
    assert_same(fused_attention(q, k, v, mask), context)


@settings(max_examples=12)
@given(different_sizes, st.integers(0, 3), st.integers(0, 2**32))
def test_attention_equals_torchs_in_values_and_gradients(sizes, axes, seed):
    """With no, one, two or three axes in front; every row has something to attend."""
    torch.manual_seed(seed)
    T, S, d_k, d_v, *front = [*sizes, 1][: 4 + axes]
    q, k, v = (randn(*front, *end, grad=True) for end in ((T, d_k), (S, d_k), (S, d_v)))
    mask = torch.rand(*[1] * axes, T, S) < 0.5
    mask[..., 0] = True
    for allowed in (None, mask):
        wanted = F.scaled_dot_product_attention(q, k, v, allowed)
        for attend in ATTENTIONS.values():
            found = attend(q, k, v, allowed)
            assert_same(found, wanted)
            assert_same(gradients(found, (q, k, v)), gradients(wanted, (q, k, v)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("everything", [False, True], ids=["some rows", "all rows"])
@both_attentions
def test_a_row_with_nothing_gets_zeros_and_no_gradient(attend, everything, dtype):
    inputs = heads(2, 3, 4, 6, 5, 7, grad=True, dtype=dtype)
    mask = torch.ones(2, 1, 4, 6, dtype=torch.bool)
    mask[0, 0, 1] = False
    mask[1] = False  # an empty sentence
    if everything:
        mask[:] = False

    context = attend(*inputs, mask)
    nothing = ~mask.any(dim=-1).expand(2, 3, 4)
    assert context.dtype == dtype
    assert (context[nothing] == 0).all()

    _, weights = scaled_dot_product_attention(*inputs, mask)
    assert weights.dtype == dtype and (weights[nothing] == 0).all()
    found = gradients(context, inputs)
    assert all(x.isfinite().all() for x in found)
    assert (found[0][nothing] == 0).all()  # of the queries
    assert all((x[1] == 0).all() for x in found)  # of the empty sentence
    assert everything or (found[0][~nothing] != 0).any()

    exact = [x.detach().double().requires_grad_() for x in inputs]
    wanted = ATTENTIONS["written out"](*exact, mask)
    tolerance = 20 * torch.finfo(dtype).eps
    assert_same([context.double()], [wanted], tolerance)
    assert_same([x.double() for x in found], list(gradients(wanted, exact)), tolerance)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    "dtype, size",
    [
        (torch.float16, 300.0),  # scores of 360,000 and more, which float16 does not have
        (torch.float16, 65504.0),
        (torch.bfloat16, 1e15),  # scores of 1e30 and more
        (torch.float32, 1e15),
        (torch.float64, 1e15),
    ],
    ids=str,
)
def test_large_scores_are_finite_wherever_the_fused_kernel_is(dtype, size, masked):
    mask = causal_mask(5) if masked else None
    if masked:
        mask[:, :, 2] = False  # nothing to attend to
    found = []
    for attend in ATTENTIONS.values():
        torch.manual_seed(0)
        drawn = ((s * randn(2, 3, 5, 16)).clamp(-s, s) for s in (size, size, 1.0))
        q, k, v = (x.to(dtype).requires_grad_() for x in drawn)
        context = attend(q, k, v, mask)
        found.append([context, *torch.autograd.grad(context.float().square().sum(), (q, k, v))])
        assert all(x.isfinite().all() for x in found[-1])
    (ours, _, _, slope), (fused, _, _, wanted) = found
    assert_same(ours.double(), fused.double(), 4 * torch.finfo(dtype).eps)
    assert_same(slope.double(), wanted.double(), 8 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@both_attentions
def test_what_is_forbidden_gets_no_weight_however_bad_what_is_allowed(attend, dtype):
    q, k = torch.full((1, 4), 100, dtype=dtype), torch.tensor([[-100], [100], [1]]).expand(3, 4)
    allowed = torch.tensor([[True, False, False]])  # scores −20,000 (allowed), 20,000 and 200
    assert attend(q, k.to(dtype), torch.eye(3, dtype=dtype), allowed).tolist() == [[1, 0, 0]]


def test_softmax_of_half_precision_is_computed_in_float32():
    q, k, v = (x.to(torch.bfloat16) for x in (randn(1, 4), randn(4096, 4), randn(4096, 3)))
    _, weights = scaled_dot_product_attention(q, k, v)
    assert abs(weights.double().sum() - 1) < 1e-3  # a running sum in bfloat16 would stop near 0.5


@pytest.mark.parametrize(("B", "T", "S"), [(0, 4, 6), (2, 0, 6), (2, 4, 0), (0, 0, 0)])
@pytest.mark.parametrize("masked", [False, True])
@both_attentions
def test_empty_inputs_give_empty_results_and_no_keys_give_zeros(attend, masked, B, T, S):
    inputs = heads(B, 3, T, S, 5, 7, grad=True)
    mask = torch.ones(B, 1, T, S, dtype=torch.bool) if masked else None
    context = attend(*inputs, mask)
    assert_same(context, torch.zeros(B, 3, T, 7).double())
    assert_same(gradients(context, inputs), tuple(torch.zeros_like(x) for x in inputs))


def test_dropout_falls_on_the_weights_that_are_returned():
    q, k = randn(50, 4), randn(40, 4)
    v = randn(40, 3)
    _, kept = scaled_dot_product_attention(q, k, v)
    context, weights = scaled_dot_product_attention(q, k, v, dropout=0.25)
    assert_same(context, weights @ v)
    alive = weights != 0
    assert_same(weights[alive], kept[alive] / 0.75)
    assert abs(alive.double().mean() - 0.75) < 0.04  # four standard deviations of 2,000 draws


@both_attentions
@pytest.mark.parametrize("rows", ["no mask", "all see something", "one sees nothing"])
def test_dropout_acts_whatever_the_mask(attend, rows):
    q, k, v = randn(4, 5), randn(6, 5), randn(6, 3)
    mask = None if rows == "no mask" else torch.ones(4, 6, dtype=torch.bool).tril(2)
    if rows == "one sees nothing":
        mask[1] = False
    assert not torch.equal(attend(q, k, v, mask, 0.5), attend(q, k, v, mask, 0.5))


# ---------- Keys and values kept for later


def parts(keys: Tensor, values: Tensor, pieces: list[int]) -> list:
    """What an attention would project in each step, as functions."""
    pairs = zip(keys.split(pieces, dim=2), values.split(pieces, dim=2))
    return [lambda pair=pair: pair for pair in pairs]


@settings(max_examples=12)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.integers(0, 2**32))
def test_a_cache_holds_what_was_appended_to_each_of_its_attentions(pieces, seed):
    torch.manual_seed(seed)
    attentions = nn.Identity(), nn.Identity(), nn.Identity()
    shapes = (2, 3, sum(pieces), 4), (2, 1, sum(pieces), 6), (2, 3, sum(pieces), 4)
    wanted = [(randn(*shape), randn(*shape)) for shape in shapes]
    projections = [parts(*both, pieces) for both in wanted]
    cache = KeyValueCache()
    for step in range(len(pieces)):
        length = sum(pieces[: step + 1])
        for attention, projected, (key, value) in zip(attentions, projections, wanted):
            found = cache.append(attention, projected[step])
            assert cache.length == length
            assert torch.equal(found[0], key[:, :, :length])
            assert torch.equal(found[1], value[:, :, :length])


def test_a_cache_copies_at_most_two_rows_for_each_one_appended():
    cache, own, copied, place = KeyValueCache(), nn.Identity(), 0, None
    for t in range(300):
        key, _ = cache.append(own, lambda: (randn(1, 1, 1, 2), randn(1, 1, 1, 2)))
        if key.data_ptr() != place:
            copied, place = copied + t, key.data_ptr()
        room = key.untyped_storage().nbytes() // (2 * key[:, :, :1].nbytes)  # of keys and values
        assert t < room <= max(1, 2 * t)
    assert 0 < copied < 2 * 300


def test_what_is_held_is_projected_once_for_each_attention():
    cache, calls = KeyValueCache(), []
    attentions = nn.Identity(), nn.Identity()
    wanted = {attention: (randn(2, 3, 5, 4), randn(2, 3, 5, 4)) for attention in attentions}
    for _ in range(3):
        for attention in attentions:
            found = cache.hold(attention, lambda own=attention: calls.append(own) or wanted[own])
            assert all(torch.equal(x, y) for x, y in zip(found, wanted[attention]))
    assert calls == list(attentions)
    assert cache.length == 0  # of what grows


@pytest.mark.parametrize("rows", [[2, 0, 0, 1], [0, 1, 2], [1], [2, 2, 2, 2, 2, 2], []], ids=str)
def test_reorder_picks_rows_of_everything_and_the_cache_goes_on_from_there(rows):
    rows, cache = torch.tensor(rows, dtype=torch.long), KeyValueCache()
    cache.reorder(rows)  # of nothing: allowed, and without effect
    one, two, cross = nn.Identity(), nn.Identity(), nn.Identity()
    key, value, memory = randn(3, 2, 4, 5), randn(3, 2, 4, 5), randn(3, 2, 6, 5)
    more = randn(len(rows), 2, 1, 5)
    cache.append(one, lambda: (key, value))
    cache.append(two, lambda: (value, key))
    cache.hold(cross, lambda: (memory, -memory))
    cache.reorder(rows)
    grown, other = torch.cat([key[rows], more], dim=2), torch.cat([value[rows], -more], dim=2)
    assert_same(cache.append(one, lambda: (more, -more)), (grown, other), 0)
    assert_same(cache.append(two, lambda: (-more, more)), (other, grown), 0)
    assert_same(cache.hold(cross, None), (memory[rows], -memory[rows]), 0)
    assert cache.length == 5


def test_orders_that_follow_each_other_act_in_turn():
    cache, own, key = KeyValueCache(), nn.Identity(), randn(3, 2, 1, 5)
    cache.append(own, lambda: (key, -key))
    for rows in ([2, 0, 1], [1, 1, 0], [0, 2], [1, 0, 1]):
        new = randn(len(rows), 2, 1, 5)
        cache.reorder(torch.tensor(rows))
        key = torch.cat([key[rows], new], dim=2)
        assert_same(cache.append(own, lambda new=new: (new, -new)), (key, -key), 0)


# ---------- Many heads


def in_torch(module: MultiHeadAttention) -> nn.MultiheadAttention:
    """torch's module with the same weights."""
    bias = module.w_q.bias is not None
    d_model, kdim, vdim = (w.in_features for w in (module.w_q, module.w_k, module.w_v))
    theirs = nn.MultiheadAttention(
        d_model, module.n_heads, bias=bias, kdim=kdim, vdim=vdim, batch_first=True
    ).double()
    projections = module.w_q, module.w_k, module.w_v
    with torch.no_grad():
        if theirs.in_proj_weight is not None:
            theirs.in_proj_weight.copy_(torch.cat([w.weight for w in projections]))
        else:
            parts = theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight
            for part, w in zip(parts, projections):
                part.copy_(w.weight)
        theirs.out_proj.weight.copy_(module.w_o.weight)
        if bias:
            theirs.in_proj_bias.copy_(torch.cat([w.bias for w in projections]))
            theirs.out_proj.bias.copy_(module.w_o.bias)
    return theirs


def torchs_gradients(output: Tensor, theirs: nn.MultiheadAttention) -> list[Tensor]:
    """Gradients of the four matrices, in the order of ours."""
    joint = theirs.in_proj_weight
    parts = theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight
    found = gradients(output, [*(parts if joint is None else [joint]), theirs.out_proj.weight])
    return [*(found[:-1] if joint is None else found[0].chunk(3)), found[-1]]


@settings(max_examples=12)
@given(different_sizes, st.booleans(), st.booleans(), st.integers(0, 2**32))
def test_module_equals_torchs_in_values_and_gradients(sizes, bias, own_widths, seed):
    torch.manual_seed(seed)
    B, H, T, S, d_k, kdim = sizes
    widths = {"kdim": kdim, "vdim": kdim + 7} if own_widths else {}
    ours = MultiHeadAttention(H * d_k, H, bias=bias, **widths).double()
    theirs = in_torch(ours)

    inputs = [
        randn(B, length, width, grad=True)
        for length, width in ((T, H * d_k), (S, ours.w_k.in_features), (S, ours.w_v.in_features))
    ]
    mask = torch.rand(B, H, T, S) < 0.5
    mask[..., 0] = True
    their_mask = ~mask.flatten(0, 1)  # [B·H, T, S], True = must not
    wanted, maps = theirs(*inputs, attn_mask=their_mask, average_attn_weights=False)

    for need_weights in (False, True):
        output, weights = ours(*inputs, mask, need_weights)
        assert_same(output, wanted)
        if need_weights:
            assert_same(weights, maps)
        assert_same(gradients(output, inputs), gradients(wanted, inputs))
        matrices = [w.weight for w in (ours.w_q, ours.w_k, ours.w_v, ours.w_o)]
        assert_same(list(gradients(output, matrices)), torchs_gradients(wanted, theirs))


@pytest.mark.parametrize("need_weights", [False, True])
def test_module_gives_its_bias_where_there_is_nothing_to_attend(need_weights):
    module = MultiHeadAttention(12, 3).double()
    x = randn(2, 4, 12, grad=True)
    mask = padding_mask(torch.tensor([[5, 6, 0, 0], [0, 0, 0, 0]]))  # the second sentence is empty
    output, _ = module(x, x, x, mask, need_weights)
    assert_same(output[1], module.w_o.bias.expand(4, 12))
    found = gradients(output, [x, *module.parameters()])
    assert all(g.isfinite().all() for g in found)
    assert (found[0][1] == 0).all()


@pytest.mark.parametrize("need_weights", [False, True])
def test_dropout_acts_in_training_only(need_weights):
    module, x = MultiHeadAttention(8, 2, dropout=0.5).double(), randn(2, 5, 8)

    def run() -> Tensor:
        return module(x, x, x, None, need_weights)[0]

    module.eval()
    without = run()
    assert torch.equal(run(), without)
    module.train()
    torch.manual_seed(1)
    first = run()
    assert not torch.allclose(first, without) and not torch.allclose(run(), first)
    torch.manual_seed(1)
    assert torch.equal(run(), first)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("need_weights", [False, True])
def test_module_runs_in_half_precision(need_weights, dtype):
    module, x = MultiHeadAttention(8, 2), torch.randn(2, 5, 8)
    wanted = module(x, x, x, causal_mask(5))[0]
    with torch.autocast("cpu", dtype=dtype):
        mixed, _ = module(x, x, x, causal_mask(5), need_weights)
    short = x.to(dtype)
    pure, _ = module.to(dtype)(short, short, short, causal_mask(5), need_weights)
    assert mixed.dtype == pure.dtype == dtype
    assert_same(mixed.float(), wanted, 0.03)
    assert_same(pure.float(), wanted, 0.03)


class Layers(nn.Module):
    """Several times causal self-attention and attention to a memory, with one cache for all of them."""

    def __init__(self, n_layers: int) -> None:
        super().__init__()
        self.own = nn.ModuleList(MultiHeadAttention(6, 2) for _ in range(n_layers))
        self.cross = nn.ModuleList(MultiHeadAttention(6, 2, kdim=4, vdim=5) for _ in range(n_layers))

    def forward(self, x, mask, memory, memory_mask, cache=None, need_weights=False):
        append, hold, maps = (cache.append, cache.hold) if cache else (None, None), [], []
        append, hold = append
        for own, cross in zip(self.own, self.cross):
            y, looked_back = own(x, x, x, mask, need_weights, append)
            x = x + y
            y, looked_over = cross(x, *memory, memory_mask, need_weights, hold)
            x = x + y
            maps += [looked_back, looked_over]
        return x, maps


@settings(max_examples=15)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.booleans(), st.integers(0, 2**32))
def test_a_cached_sequence_equals_the_uncached_one(pieces, need_weights, seed):
    torch.manual_seed(seed)
    length, layers = sum(pieces), Layers(3).double()
    x, memory = randn(3, length, 6), (randn(3, 5, 4), randn(3, 5, 5))
    mask, memory_mask = causal_mask(length), torch.arange(5) < torch.tensor([5, 2, 0]).view(3, 1, 1, 1)
    with torch.no_grad():
        wanted, maps = layers(x, mask, memory, memory_mask, need_weights=need_weights)
        cache, end = KeyValueCache(), 0
        for new in x.split(pieces, dim=1):
            start, end = end, end + new.size(1)
            seen = mask[:, :, start:end, :end]
            output, looked = layers(new, seen, memory, memory_mask, cache, need_weights)
            assert_same(output, wanted[:, start:end])
            assert cache.length == end
            for found, whole in zip(looked, maps):
                if need_weights:
                    assert_same(found, whole[:, :, start:end, : found.size(-1)])
                else:
                    assert found is whole is None


@pytest.mark.parametrize("n", [1, 2, 4])
def test_a_cache_of_another_batch_is_refused(n):
    module, cache = MultiHeadAttention(6, 2).double(), KeyValueCache()
    x, other = randn(3, 4, 6), randn(n, 4, 6)
    with torch.no_grad():
        module(x, x, x, cache=cache.append)
        with pytest.raises(ValueError, match=f"the cache holds 3 rows, not {n}"):
            module(other, other, other, cache=cache.append)


@pytest.mark.parametrize("d_model, n_heads", [(10, 3), (8, 0), (8, -2), (4, 8)])
def test_a_number_of_heads_that_does_not_divide_the_width_is_refused_when_the_layer_is_made(d_model, n_heads):
    told = f"n_heads must divide d_model, but {n_heads} does not divide {d_model}"
    with refuses(ValueError, told):
        MultiHeadAttention(d_model, n_heads)


# ---------- Captured whole


class Decoding(nn.Module):
    """Causal self-attention with its weights, then attention to a padded memory, as a decoder layer does."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.cross = MultiHeadAttention(8, 2), MultiHeadAttention(8, 2)

    def forward(self, x: Tensor, memory: Tensor, ids: Tensor) -> Tensor:
        x, _ = self.own(x, x, x, causal_mask(x.size(1)), need_weights=True)
        return self.cross(x, memory, memory, padding_mask(ids))[0]


@pytest.mark.slow
def test_module_is_captured_by_compile_and_by_export():
    def example(B: int, T: int, S: int) -> tuple[Tensor, Tensor, Tensor]:
        ids = torch.randint(1, 9, (B, S))
        ids[0, 1:] = 0
        return torch.randn(B, T, 8), torch.randn(B, S, 8), ids

    module = Decoding().eval()
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    B, T, S = (torch.export.Dim(name) for name in "BTS")
    shapes = ({0: B, 1: T}, {0: B, 1: S}, {0: B, 1: S})
    exported = torch.export.export(module, example(3, 4, 5), dynamic_shapes=shapes).module()
    for sizes in ((3, 4, 5), (2, 7, 6)):
        inputs = example(*sizes)
        wanted = module(*inputs)
        assert_same(compiled(*inputs), wanted, 1e-5)
        assert_same(exported(*inputs), wanted, 1e-5)


# ---------- Hooks, other forwards, torch.func


@pytest.mark.parametrize("hook", ["forward", "forward_pre", "full_backward", "full_backward_pre"])
def test_whoever_listens_to_a_projection_hears_it(hook):
    module, heard, x = MultiHeadAttention(6, 2), [], torch.randn(4, 32, 6, requires_grad=True)
    getattr(module.w_k, f"register_{hook}_hook")(lambda *given: heard.append(1))
    module(x, x, x)[0].sum().backward()
    assert heard == [1]


@pytest.mark.parametrize("need_weights", [False, True])
def test_a_hook_on_the_module_gets_the_weights_where_they_are_wanted(need_weights):
    module, heard, x = MultiHeadAttention(6, 2).double(), [], randn(2, 4, 6)
    module.register_forward_hook(lambda module, inputs, output: heard.append(output))
    output, weights = module(x, x, x, causal_mask(4), need_weights)
    assert heard[0][0] is output and heard[0][1] is weights
    if need_weights:
        assert_same(weights.sum(-1), torch.ones(2, 2, 4).double())
        assert torch.equal(weights > 0, causal_mask(4).expand(2, 2, 4, 4))
    else:
        assert weights is None


@pytest.mark.parametrize("need_weights", [False, True])
def test_gradients_of_every_sentence_by_vmap_are_those_of_a_loop(need_weights):
    module, x = MultiHeadAttention(6, 2).double(), randn(4, 3, 6)
    mask = torch.arange(3) < torch.tensor([3, 2, 1, 0]).view(4, 1, 1, 1)  # the last sentence is empty
    weights = dict(module.named_parameters())

    def loss(weights, x, mask):
        return functional_call(module, weights, (x, x, x, mask, need_weights))[0].square().sum()

    with warnings.catch_warnings():  # torch calls the fused kernel once for each sentence, and says so
        warnings.simplefilter("ignore")
        found = vmap(grad(loss), (None, 0, 0))(weights, x[:, None], mask[:, None])
    for row in range(4):
        wanted = grad(loss)(weights, x[row : row + 1], mask[row : row + 1])
        assert_same({name: each[row] for name, each in found.items()}, wanted)
