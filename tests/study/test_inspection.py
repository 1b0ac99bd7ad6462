"""Looking inside: by hand on small cases, by property on random models, and on the stored toy."""

import copy

import pytest
import torch
from helpers import NORM_ORDERS, assert_close, make_model
from hypothesis import given
from hypothesis import strategies as st

from transformer import load_toy_model, reversal_batch
from transformer.study.inspection import (
    Head,
    all_heads,
    gradient_times_input,
    head_costs,
    head_shares,
    ibm_alignment,
    ibm_model_1,
    linear_probe,
    logit_lens,
    mean_contexts,
    patched,
    pruning_curve,
    residual_stream,
    share_on,
    without_heads,
)

SRC = torch.tensor([[5, 7, 5, 9, 3], [8, 4, 3, 0, 0]])
TGT = torch.tensor([[2, 8, 6, 8], [2, 8, 0, 0]])
TARGETS = torch.tensor([[8, 6, 8, 3], [8, 3, 0, 0]])


@pytest.fixture
def model():
    return make_model(noise=0.3).eval()


# Alignment by counting -----------------------------------------------------------------------------


def em_by_loop(pairs, rounds):
    """The table of model 1 as a dictionary, from equal probabilities."""
    found = {}
    for _ in range(rounds):
        counts = {}
        for source, target in pairs:
            for e in target:
                total = sum(found.get((f, e), 0.0) if found else 1.0 for f in source)
                for f in source:
                    share = (found.get((f, e), 0.0) if found else 1.0) / total
                    counts[f, e] = counts.get((f, e), 0.0) + share
        totals = {}
        for (f, _), count in counts.items():
            totals[f] = totals.get(f, 0.0) + count
        found = {(f, e): count / totals[f] for (f, e), count in counts.items()}
    return found


@given(
    st.lists(st.tuples(*[st.lists(st.integers(1, 5), min_size=1, max_size=4)] * 2), min_size=1, max_size=5)
)
def test_table_is_that_of_the_loop(pairs):
    src, tgt = (torch.tensor([(row + [0] * 4)[:4] for row in side]) for side in zip(*pairs, strict=True))
    table, wanted = ibm_model_1(src, tgt, vocab_size=6, rounds=3), torch.zeros(6, 6)
    for (f, e), probability in em_by_loop(pairs, 3).items():
        wanted[f, e] = probability
    assert_close(table, wanted, 1e-5)


def test_alignment_by_hand_ignores_padding():
    table = torch.tensor([[9.0, 9.0, 9.0], [0.0, 0.6, 0.4], [0.0, 0.2, 0.0]])
    found = ibm_alignment(table, torch.tensor([[1, 2, 0]]), torch.tensor([[1, 2, 0]]))
    assert_close(found, torch.tensor([[[0.75, 0.25, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]]), 1e-6)


# Heads ---------------------------------------------------------------------------------------------


def test_heads_have_names_and_kinds(model):
    heads = all_heads(model)
    assert len(set(heads)) == len(heads) == 2 * 3 * 3
    assert {head.kind for head in heads} == {"encoder", "decoder", "cross"}
    assert str(Head("decoder.layers.1.cross_attention", 2)) == "cross 2.3"
    assert str(heads[0]) == "encoder 1.1"


def test_share_by_hand():
    weights = torch.tensor([[[0.7, 0.3], [0.4, 0.6]], [[0.1, 0.9], [0.5, 0.5]]])
    places = torch.tensor([[[True, False], [False, False]], [[False, False], [True, True]]])
    assert share_on(weights, places) == pytest.approx((0.7 + 1.0) / 2)
    assert share_on(weights, torch.zeros_like(places)).isnan()


def test_even_heads_have_the_shares_that_can_be_counted(model):
    for name, parameter in model.named_parameters():
        if ".w_q." in name:
            parameter.data.zero_()
    aligned = torch.zeros(2, 4, 5, dtype=torch.bool)
    aligned[:, 0, 1] = True
    found = {str(head): shares for head, shares in head_shares(model, SRC, TGT, [4, 6], aligned).items()}
    encoder = {
        "previous": (4 / 5 + 2 / 3) / 6,
        "itself": (5 / 5 + 3 / 3) / 8,
        "next": (4 / 5 + 2 / 3) / 6,
        "repeat": 1 / 5,
        "first": 2 / 8,
        "last": 2 / 8,
        "mark": 1 / 3,
    }
    decoder = {
        "previous": (1 / 2 + 1 / 3 + 1 / 4 + 1 / 2) / 4,
        "itself": (1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 + 1 / 2) / 6,
        "repeat": 1 / 4,
        "first": (1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 + 1 / 2) / 6,
        "mark": (1 / 3 + 1 / 4) / 2,  # no query before it may see it
    }
    cross = {"first": (4 / 5 + 2 / 3) / 6, "last": (4 / 5 + 2 / 3) / 6, "mark": 1 / 3}
    cross["aligned"] = (1 / 5 + 1 / 3) / 2
    for name, wanted in (("encoder 2.1", encoder), ("decoder 1.3", decoder), ("cross 2.2", cross)):
        shares = {role: share for role, share in found[name].items() if share == share}
        assert shares == pytest.approx(wanted, abs=1e-6)


def test_shares_leave_the_mode_as_it_was(model):
    model.train()
    head_shares(model, SRC, TGT)
    assert all(module.training for module in model.modules())


@torch.no_grad()
@NORM_ORDERS
def test_a_head_without_its_columns_is_a_head_taken_away(norm_first):
    model = make_model(noise=0.3, norm_first=norm_first).eval()
    gone = [head for head in all_heads(model) if head.number in (0, 2) and head.kind == "cross"]
    cut = copy.deepcopy(model)
    for attention, number in gone:
        cut.get_submodule(attention).w_o.weight[:, 4 * number : 4 * number + 4] = 0.0
    before = model(SRC, TGT)
    with without_heads(model, gone):
        assert_close(model(SRC, TGT), cut(SRC, TGT))
    assert (cut(SRC, TGT) - before).abs().max() > 1e-3
    assert torch.equal(model(SRC, TGT), before)
    with without_heads(model, []):
        assert torch.equal(model(SRC, TGT), before)


def test_heads_come_back_after_an_error(model):
    before = model.encode(SRC)
    with pytest.raises(RuntimeError), without_heads(model, all_heads(model)):
        raise RuntimeError
    assert torch.equal(model.encode(SRC), before)


def test_a_head_that_is_not_there_is_no_head(model):
    with pytest.raises(KeyError), without_heads(model, [Head("encoder", 0)]):
        pass
    with pytest.raises(IndexError), without_heads(model, [Head("encoder.layers.0.self_attention", 3)]):
        model.encode(SRC)


@torch.no_grad()
def test_a_mean_over_one_position_changes_nothing(model):
    src, tgt = SRC[:1, :1], TGT[:1, :1]
    before, means = model(src, tgt), mean_contexts(model, src, tgt)
    with without_heads(model, all_heads(model), means):
        assert_close(model(src, tgt), before)
    with without_heads(model, all_heads(model)):
        assert (model(src, tgt) - before).abs().max() > 1e-3


def test_means_leave_padding_out_and_the_mode_as_it_was(model):
    model.train()
    whole = mean_contexts(model, SRC, TGT)
    assert all(module.training for module in model.modules())
    one, other = (mean_contexts(model, *ids) for ids in ((SRC[:1], TGT[:1]), (SRC[1:, :3], TGT[1:, :2])))
    for head in all_heads(model):
        n, m = (5, 3) if head.kind == "encoder" else (4, 2)
        assert_close(whole[head], (n * one[head] + m * other[head]) / (n + m))


@torch.no_grad()
def test_what_stands_in_place_of_a_head_may_differ_by_sentence(model):
    head, contexts = Head("encoder.layers.0.self_attention", 1), []
    w_o = model.get_submodule(head.attention).w_o
    with w_o.register_forward_pre_hook(lambda module, args: contexts.append(args[0])):
        before = model.encode(SRC)
        with without_heads(model, [head], {head: contexts[0][..., 4:8]}):
            assert_close(model.encode(SRC), before)
        with without_heads(model, [head], {head: contexts[0][..., 4:8].flip(0)}):
            assert (model.encode(SRC) - before).abs().amax(dim=(1, 2)).min() > 1e-3


@torch.no_grad()
def test_costs_and_curve_are_scores_without_heads(model):
    score = lambda model: model(SRC, TGT).sum().item()
    heads = all_heads(model)
    costs = head_costs(model, score)
    with without_heads(model, heads[3:4]):
        without = score(model)
    assert list(costs) == heads and costs[heads[3]] == pytest.approx(score(model) - without)
    curve = pruning_curve(model, score, heads[3:6])
    assert len(curve) == 4 and curve[0] == score(model) and curve[1] == without
    with without_heads(model, heads[3:6]):
        assert curve[3] == score(model)
    means = mean_contexts(model, SRC, TGT)
    assert head_costs(model, score, means)[heads[3]] != pytest.approx(costs[heads[3]])
    with without_heads(model, heads[3:6], means):
        assert pruning_curve(model, score, heads[3:6], means)[3] == score(model)


# The states between layers -------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("changes", [{}, {"norm_first": True}, {"final_norm": True}], ids=str)
def test_states_are_what_the_layers_pass_on(changes):
    model = make_model(noise=0.3, **changes).eval()
    encoder, decoder = residual_stream(model, SRC, TGT)
    mask = model.src_mask(SRC)
    assert len(encoder) == len(decoder) == 3
    assert torch.equal(encoder[0], model.positions(model.src_embedding(SRC)))
    for layer, before, after in zip(model.encoder.layers, encoder, encoder[1:], strict=False):
        assert torch.equal(layer(before, mask), after)
    assert torch.equal(decoder[0], model.positions(model.tgt_embedding(TGT)))
    lens = logit_lens(model, SRC, TGT)
    assert lens.shape == (3, 2, 4, 11) and torch.equal(lens[-1], model(SRC, TGT))
    assert torch.equal(lens[1], model.project(model.decoder.norm(decoder[1])))


def test_gradients_reach_every_state(model):
    states = [state for stack in residual_stream(model, SRC, TGT) for state in stack]
    with pytest.raises(RuntimeError):  # another pass: these states are not its
        torch.autograd.grad(model(SRC, TGT).sum(), states)
    logits = model.project(model.decoder.norm(states[-1]))
    slopes = torch.autograd.grad(logits.square().sum(), states)
    assert all(slope.abs().max() > 0 for slope in slopes)


@torch.no_grad()
@pytest.mark.parametrize("depth", range(3))
def test_a_patch_of_all_positions_is_the_other_sentence(model, depth):
    one, other = torch.tensor([[5, 7, 9]]), torch.tensor([[8, 4, 6]])
    before = model.encode(one)
    state = residual_stream(model, other, TGT[:1]).encoder[depth]
    kept = state.clone()
    with patched(model.encoder, depth, 0, state[:, 0]), patched(model.encoder, depth, 1, state[:, 1]):
        partly = model.encode(one)
        with patched(model.encoder, depth, 2, state[0, 2]):
            assert torch.equal(model.encode(one), model.encode(other))
    assert (partly - model.encode(other)).abs().max() > 1e-3
    assert (partly - before).abs().max() > 1e-3
    assert torch.equal(state, kept) and torch.equal(model.encode(one), before)


@torch.no_grad()
def test_a_patch_changes_one_position_and_no_tensor_of_its_giver(model):
    x, vector = torch.randn(2, 3, 12, dtype=torch.float64), torch.zeros(12, dtype=torch.float64)
    given_ = x.clone()
    seen = []
    layer = model.encoder.layers[1]
    with patched(model.encoder, 1, 2, vector):
        handle = layer.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
        layer(x)
        handle.remove()
    assert torch.equal(x, given_)
    assert torch.equal(seen[0][:, :2], x[:, :2]) and (seen[0][:, 2] == 0).all()


# Gradients and probes ------------------------------------------------------------------------------


def test_gradient_times_input_is_the_slope_of_a_shrinking_embedding(model):
    found = gradient_times_input(model, SRC, TGT, TARGETS)
    assert found.shape == (2, 4, 5) and not found.requires_grad
    assert (found[1, :, 3:] == 0).all()  # padding matters to nobody

    def said(factor):
        def shrink(module, args, x):
            x = x.clone()
            x[:, 1] *= factor
            return x

        handle = model.src_embedding.register_forward_hook(shrink)
        logits = model(SRC, TGT)
        handle.remove()
        return logits.log_softmax(-1).gather(-1, TARGETS[..., None])[..., 0].detach()

    slope = (said(1 + 1e-6) - said(1 - 1e-6)) / 2e-6
    assert_close(found[:, :, 1], slope.abs(), 1e-6)


def test_probe_solves_its_equation_and_tells_unequal_classes_apart():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 5, generator=generator, dtype=torch.float64) + 3.0
    labels = x[:, 1] > 4.0  # about one in six
    weights, offset = linear_probe(x, labels, ridge=1.0)
    augmented = torch.cat([x, torch.ones(200, 1, dtype=torch.float64)], dim=1)
    penalty = torch.diag(torch.tensor([1.0] * 5 + [0.0], dtype=torch.float64))
    solution = torch.linalg.solve(
        augmented.T @ augmented + penalty, augmented.T @ (2.0 * labels.double() - 1)
    )
    assert_close(torch.cat([weights, offset[None]]), solution)


# The stored toy ------------------------------------------------------------------------------------


def test_the_toys_counting_head_counts_and_is_needed():
    toy, head = load_toy_model(), Head("encoder.layers.1.self_attention", 1)
    inputs, outputs = reversal_batch(100, 10, generator=torch.Generator().manual_seed(3))
    asked = inputs, outputs[:, :-1]
    assert head_shares(toy, *asked)[head]["repeat"] > 0.95

    @torch.no_grad()
    def right():
        return (toy(*asked).argmax(-1) == outputs[:, 1:]).double().mean().item()

    assert right() > 0.99
    with without_heads(toy, [head]):
        assert right() < 0.95
