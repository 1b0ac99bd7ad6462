"""The whole model: equal to torch's stacks, blind to future and padding, its tables shared."""

from __future__ import annotations

import copy
import io
import json
import math
import pickle
from dataclasses import asdict, replace
from functools import partial

import helpers
import pytest
import torch
import torch.nn.functional as F
from helpers import DROPPING, MODES, NORM_ORDERS, assert_close, close, refuses
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, grad, vmap

from transformer import (
    Decoder,
    Encoder,
    MultiHeadAttention,
    Transformer,
    TransformerConfig,
    attention_tap,
    causal_mask,
    label_smoothed_cross_entropy,
    r_drop_loss,
    teacher_forced_loss,
)
from transformer.attention import KeyValueCache

# No two sizes are equal, so that no axis can be taken for another: B 2, S 7, T 5, H 3, d_k 4.
SRC = torch.tensor([[4, 9, 6, 13, 5, 7, 3], [8, 5, 10, 3, 0, 0, 0]])
TGT = torch.tensor([[2, 11, 4, 15, 6], [2, 7, 12, 3, 0]])
pytestmark = pytest.mark.usefixtures("float64")


make_config = partial(helpers.make_config, 17, max_length=40)
make_model = partial(helpers.make_model, 17, max_length=40)


def weighted_sum(y: torch.Tensor) -> torch.Tensor:
    """A sum with random weights; without them, that of a norm's output would be a constant."""
    return (y * torch.randn_like(y)).sum()


# ---------- Equal to torch.nn


def entries_of(name: str, ours: nn.Module, get) -> dict[str, torch.Tensor]:
    """A module under torch's names; `get` takes from a parameter its value or its gradient."""
    if not isinstance(ours, MultiHeadAttention):
        return {f"{name}.{kind}": get(parameter) for kind, parameter in ours.named_parameters()}
    entries = entries_of(f"{name}.out_proj", ours.w_o, get)
    for kind, _ in ours.w_q.named_parameters():
        parts = [get(getattr(linear, kind)) for linear in (ours.w_q, ours.w_k, ours.w_v)]
        entries[f"{name}.in_proj_{kind}"] = torch.cat(parts)
    return entries


def stack_entries(ours: Encoder | Decoder, get) -> dict[str, torch.Tensor]:
    entries = entries_of("norm", ours.norm, get)
    for number, layer in enumerate(ours.layers):
        named = {
            "self_attn": layer.self_attention,
            "linear1": layer.feed_forward.w_1,
            "linear2": layer.feed_forward.w_2,
        }
        residuals = [layer.self_residual, layer.feed_residual]
        if isinstance(ours, Decoder):
            named["multihead_attn"] = layer.cross_attention
            residuals.insert(1, layer.cross_residual)
        named |= {f"norm{place}": residual.norm for place, residual in enumerate(residuals, 1)}
        for name, module in named.items():
            entries |= entries_of(f"layers.{number}.{name}", module, get)
    return entries


def torch_stacks(config: TransformerConfig) -> tuple[nn.TransformerEncoder, nn.TransformerDecoder]:
    shared = {"batch_first": True, "norm_first": config.norm_first, "bias": config.bias}
    sizes = (config.d_model, config.n_heads, config.d_ff, config.dropout, config.activation)

    def norm():
        return nn.LayerNorm(config.d_model, bias=config.bias) if config.has_final_norm else None

    encoder_layer = nn.TransformerEncoderLayer(*sizes, **shared)
    decoder_layer = nn.TransformerDecoderLayer(*sizes, **shared)
    reads, writes = config.depths
    encoder = nn.TransformerEncoder(encoder_layer, reads, norm(), enable_nested_tensor=False)
    return encoder, nn.TransformerDecoder(decoder_layer, writes, norm())


def embedded(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Rows times √d_model plus sinusoids, by the paper's formulas, entry by entry."""
    d_model = table.size(1)

    def wave(position: int, i: int) -> float:
        return (math.sin, math.cos)[i % 2](position / 10000 ** (2 * (i // 2) / d_model))

    waves = [[wave(position, i) for i in range(d_model)] for position in range(ids.size(1))]
    return table[ids] * math.sqrt(d_model) + torch.tensor(waves)


@pytest.mark.parametrize("activation, bias", [("relu", True), ("gelu", True), ("relu", False)])
@pytest.mark.parametrize("final_norm", [None, False, True])
@NORM_ORDERS
def test_logits_and_gradients_equal_torch(norm_first, final_norm, activation, bias):
    options = {"norm_first": norm_first, "final_norm": final_norm, "activation": activation, "bias": bias}
    ours = make_model(src_vocab_size=16, tgt_vocab_size=19, tie_embeddings=False, **options)
    for parameter in ours.parameters():  # nothing may agree because it is still 0 or 1
        nn.init.normal_(parameter, std=0.5)
    stacks = list(zip((ours.encoder, ours.decoder), torch_stacks(ours.config)))
    for our_stack, stack in stacks:
        stack.load_state_dict(stack_entries(our_stack, torch.clone))
    our_tables = [module.weight for module in (ours.src_embedding, ours.tgt_embedding, ours.output)]
    tables = [table.detach().clone().requires_grad_() for table in our_tables]

    (_, encoder), (_, decoder) = stacks
    padding, future = SRC == 0, ~causal_mask(5)[0, 0]
    memory = encoder(embedded(SRC, tables[0]), src_key_padding_mask=padding)
    x = embedded(TGT, tables[1])
    theirs = decoder(x, memory, tgt_mask=future, memory_key_padding_mask=padding) @ tables[2].T
    logits = ours(SRC, TGT)
    assert close(logits, theirs)

    weights = torch.randn_like(logits) * (TGT != 0)[..., None]
    (logits * weights).sum().backward()
    (theirs * weights).sum().backward()
    for our_stack, stack in stacks:
        gradients = stack_entries(our_stack, lambda parameter: parameter.grad)
        for name, parameter in stack.named_parameters():
            assert close(gradients[name], parameter.grad), name
    for our_table, table in zip(our_tables, tables):
        assert close(our_table.grad, table.grad)


# ---------- Stacks of unequal depth


@NORM_ORDERS
@pytest.mark.parametrize("depths", [(3, 1), (1, 3)], ids=str)
def test_stacks_of_unequal_depth_are_those_of_two_models(depths, norm_first):
    """Encoder and decoder of one model compute what they do in two models of equal stacks."""
    model = make_model(n_layers=depths, norm_first=norm_first)
    deep, shallow = (make_model(n_layers=depth, norm_first=norm_first) for depth in depths)
    mine = model.state_dict()
    for whole, part in ((deep, "encoder"), (shallow, "decoder")):
        own = whole.state_dict()
        kept = [name for name in own if name.startswith(part) or "layers" not in name]
        assert kept == [name for name in mine if name.startswith(part) or "layers" not in name]
        whole.load_state_dict(own | {name: mine[name] for name in kept})
    memory = deep.encode(SRC)
    assert_close(model.encode(SRC), memory)
    assert_close(model(SRC, TGT), shallow.project(shallow.decode(TGT, memory, model.src_mask(SRC))))
    maps = model.attention_maps(SRC, TGT)
    assert [len(each) for each in maps] == [depths[0], depths[1], depths[1]]


def test_equal_models_have_equal_configurations():
    """However their depths are written, in JSON for example, which has lists and no tuples."""
    for n_layers, depths in ((2, (2, 2)), ((2, 2), (2, 2)), ([3, 1], (3, 1)), ((1, 3), (1, 3))):
        config = make_config(n_layers=n_layers)
        assert config.depths == depths
        assert config == make_config(n_layers=depths) and hash(config) == hash(make_config(n_layers=depths))
        assert TransformerConfig(**json.loads(json.dumps(asdict(config)))) == config
        assert replace(config, n_layers=1).depths == (1, 1)
    assert make_config(n_layers=(2, 2)).n_layers == 2


# ---------- Where weights start, and how many there are


def test_linear_layers_start_xavier_uniform_and_biases_at_zero():
    model = make_model(d_model=60, d_ff=200, noise=0.0)
    for module in model.modules():
        if isinstance(module, nn.Linear) and module is not model.output:  # which shares a table
            bound = math.sqrt(6 / sum(module.weight.shape))
            assert 0.98 * bound < module.weight.abs().max() <= bound
            assert module.weight.var().item() == pytest.approx(bound**2 / 3, rel=0.1)
            assert (module.bias == 0).all()


def test_tables_start_with_rows_of_length_one():
    tied, untied = (make_model(d_model=60, tie_embeddings=tied, noise=0.0) for tied in (True, False))
    for table in (tied.src_embedding, untied.src_embedding, untied.tgt_embedding):
        assert table.weight.std().item() == pytest.approx(60**-0.5, rel=0.1)
        assert abs(table.weight.mean()) < 0.02


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@NORM_ORDERS
def test_untrained_loss_is_near_ln_v(norm_first, tied):
    vocabularies = {"src_vocab_size": 2000, "tgt_vocab_size": 2000, "tie_embeddings": tied}
    sizes = {"d_model": 64, "n_heads": 4, "n_layers": 4, "d_ff": 256}
    model = make_model(**vocabularies, **sizes, norm_first=norm_first, noise=0.0)
    src, tgt = torch.randint(4, 2000, (16, 11)), torch.randint(4, 2000, (16, 13))
    with torch.no_grad():
        loss = F.cross_entropy(model(src, tgt[:, :-1]).flatten(0, 1), tgt[:, 1:].flatten())
    assert abs(loss.item() - math.log(2000)) < 0.7


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({}, 63_082_496),
        ({"tie_embeddings": False}, 63_082_496 + 2 * 37000 * 512),
        ({"norm_first": True}, 63_082_496 + 2 * 2 * 512),
        ({"d_model": 1024, "d_ff": 4096, "n_heads": 16}, 214_245_376),
        ({"bias": False}, 37000 * 512 + 18 * 4 * 512**2 + 12 * 2 * 512 * 2048 + 30 * 512),
    ],
    ids=["base", "three tables", "pre-norm", "big", "no bias"],
)
def test_parameter_count(changes, expected):
    with torch.device("meta"):
        model = Transformer(TransformerConfig(37000, 37000, **changes))
    assert sum(parameter.numel() for parameter in model.parameters()) == expected


# ---------- Blind to the future and to padding


@st.composite
def shapes(draw) -> dict[str, int]:
    """Sizes that all differ: batch, source and target length, heads, d_k."""
    names = ("batch", "source", "target", "heads", "d_k")
    return dict(zip(names, draw(st.lists(st.integers(2, 9), min_size=5, max_size=5, unique=True))))


def drawn_model(sizes: dict[str, int], norm_first: bool, **options) -> Transformer:
    heads, d_model = sizes["heads"], sizes["heads"] * sizes["d_k"]
    return make_model(d_model=d_model, n_heads=heads, norm_first=norm_first, **options)


@pytest.mark.slow
@given(shapes(), st.booleans(), st.booleans(), st.data())
def test_later_tokens_change_nothing(sizes, norm_first, training, data):
    model = drawn_model(sizes, norm_first, **DROPPING).train(training)
    src = torch.randint(4, 17, (sizes["batch"], sizes["source"]))
    tgt = torch.randint(4, 17, (sizes["batch"], sizes["target"]))
    t = data.draw(st.integers(0, sizes["target"] - 1))
    changed = torch.cat([tgt[:, :t], 20 - tgt[:, t:]], dim=1)

    results = []
    for ids in (tgt, changed):
        torch.manual_seed(0)  # both passes drop the same entries
        results.append(model(src, ids))
    assert close(results[0][:, :t], results[1][:, :t])


@pytest.mark.slow
@given(shapes(), st.booleans(), st.booleans(), st.integers(1, 5), st.integers(1, 5))
def test_padding_changes_nothing(sizes, norm_first, training, more_source, more_target):
    model = drawn_model(sizes, norm_first).train(training)
    src = torch.randint(4, 17, (sizes["batch"], sizes["source"]))
    tgt = torch.randint(4, 17, (sizes["batch"], sizes["target"]))
    padded = model(F.pad(src, (0, more_source)), F.pad(tgt, (0, more_target)))
    assert close(padded[:, : sizes["target"]], model(src, tgt))


def test_padding_is_the_configured_token_and_0_may_be_a_word():
    model = make_model(pad_id=5)
    tgt = torch.tensor([[2, 6, 7]])
    whole = model(torch.tensor([[8, 0, 9]]), tgt)
    assert close(model(torch.tensor([[8, 0, 9, 5, 5]]), tgt), whole)
    assert not close(model(torch.tensor([[8, 6, 9]]), tgt), whole)


@pytest.mark.parametrize("tied", [True, False])
def test_the_padding_token_learns_nothing_from_being_looked_up(tied):
    model = make_model(tie_embeddings=tied)
    memory = model.encode(SRC)
    weighted_sum(memory).backward(retain_graph=True)  # of padded positions as well
    assert (model.src_embedding.weight.grad[0] == 0).all()
    model.zero_grad()
    weighted_sum(model.decode(TGT, memory.detach())).backward()
    assert (model.tgt_embedding.weight.grad[0] == 0).all()


# ---------- Attention maps and the cache


@MODES
@NORM_ORDERS
def test_attention_maps_are_the_weights_in_use(norm_first, training):
    model = make_model(norm_first=norm_first).train(training)
    calls = []
    hooks = [
        module.register_forward_hook(lambda module, args, result: calls.append((module, args, result[0])))
        for module in model.modules()
        if isinstance(module, MultiHeadAttention)
    ]
    model(SRC, TGT)
    for hook in hooks:
        hook.remove()

    maps = model.attention_maps(SRC, TGT)
    assert maps.encoder.shape == (2, 2, 3, 7, 7)
    assert maps.decoder.shape == (2, 2, 3, 5, 5)
    assert maps.cross.shape == (2, 2, 3, 5, 7)
    in_order = [*maps.encoder]
    for own, cross in zip(maps.decoder, maps.cross):
        in_order += [own, cross]
    assert len(calls) == len(in_order)
    for (module, (_, _, value, *_), output), weights in zip(calls, in_order):
        heads = module.w_v(value).view(*value.shape[:2], 3, 4)  # [B, S, H, d_k]
        context = torch.einsum("bhts,bshd->bthd", weights, heads).flatten(2)
        assert close(module.w_o(context), output)


def plain_weights(attention: MultiHeadAttention, query, key, mask) -> torch.Tensor:
    """The paper's equation 1, head by head, `mask` True where a query may attend."""
    d_k = attention.w_q.out_features // attention.n_heads
    q, k = attention.w_q(query).split(d_k, dim=-1), attention.w_k(key).split(d_k, dim=-1)
    scores = torch.stack([a @ b.mT / math.sqrt(d_k) for a, b in zip(q, k)], dim=1)
    return scores.masked_fill(~mask, -math.inf).softmax(-1)


@NORM_ORDERS
def test_a_tap_records_every_attention_and_changes_nothing(norm_first):
    model = make_model(norm_first=norm_first)
    inputs = {}
    hooks = [
        module.register_forward_pre_hook(lambda _, args, name=name: inputs.update({name: args}))
        for name, module in model.named_modules()
        if isinstance(module, MultiHeadAttention)
    ]
    with attention_tap(model) as maps:
        assert maps == {}
        assert close(model(SRC, TGT), make_model(norm_first=norm_first)(SRC, TGT))
    for hook in hooks:
        hook.remove()
    encoder = [f"encoder.layers.{n}.self_attention" for n in range(2)]
    decoder = [f"decoder.layers.{n}.{kind}_attention" for n in range(2) for kind in ("self", "cross")]
    assert [*maps] == encoder + decoder
    for name, weights in maps.items():
        query, key, _, mask = inputs[name]
        assert close(weights, plain_weights(model.get_submodule(name), query, key, mask))


def is_bare(model: nn.Module) -> bool:
    return not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_tap_is_removed_at_the_end_and_after_an_error():
    model = make_model()
    with attention_tap(model) as maps:
        model(SRC, TGT)
    before = dict(maps)
    model(SRC[:1], TGT[:1])
    assert is_bare(model) and all(maps[name] is before[name] for name in before)
    with pytest.raises(IndexError, match="src"), attention_tap(model):
        model(SRC + 4, TGT)
    assert is_bare(model)
    with pytest.raises(KeyboardInterrupt), attention_tap(model):
        raise KeyboardInterrupt
    assert is_bare(model)


@pytest.mark.slow
@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.booleans())
def test_cached_equals_uncached(pieces, norm_first):
    model = make_model(norm_first=norm_first)
    tgt = torch.randint(4, 17, (2, sum(pieces)))
    memory, mask = model.encode(SRC), model.src_mask(SRC)
    cache, hidden = KeyValueCache(), []
    for part in tgt.split(pieces, dim=1):
        hidden.append(model.decode(part, memory, mask, cache))
    assert close(torch.cat(hidden, dim=1), model.decode(tgt, memory, mask))
    assert cache.length == sum(pieces)


def test_reordered_cache_equals_reordered_rows():
    model = make_model()
    memory, mask = model.encode(SRC), model.src_mask(SRC)
    rows, cache = torch.tensor([1, 1, 0]), KeyValueCache()
    model.decode(TGT[:, :3], memory, mask, cache)
    cache.reorder(rows)
    continued = model.decode(TGT[rows, 3:], memory[rows], mask[rows], cache)
    assert close(continued, model.decode(TGT, memory, mask)[rows, 3:])


# ---------- Shared tables


def is_tied(model: Transformer) -> bool:
    return model.src_embedding.weight is model.tgt_embedding.weight is model.output.weight


def test_shared_gradient_is_the_sum_of_three():
    tied, untied = make_model(), make_model(tie_embeddings=False)
    untied.load_state_dict(tied.state_dict())
    assert is_tied(tied) and not is_tied(untied)
    for model in (tied, untied):
        weighted = model(SRC, TGT) * torch.linspace(-1, 1, 17)
        weighted.square().sum().backward()
    parts = [module.weight.grad for module in (untied.src_embedding, untied.tgt_embedding, untied.output)]
    assert close(tied.output.weight.grad, sum(parts))
    assert all(part.abs().max() > 0 for part in parts)


def test_tables_that_differ_are_no_state_of_a_tied_model():
    tied, untied = make_model(), make_model(seed=1, tie_embeddings=False)
    before, state = tied.output.weight.clone(), untied.state_dict()
    assert state.keys() == tied.state_dict().keys()  # the names alone cannot tell
    told = "src_embedding.weight and tgt_embedding.weight must be equal, being tied, but differ"
    for assign in (False, True):
        with refuses(ValueError, told):
            tied.load_state_dict(state, assign=assign)
    state["tgt_embedding.weight"] = state["src_embedding.weight"].clone()
    with refuses(ValueError, "src_embedding.weight and output.weight must be equal, being tied, but differ"):
        tied.load_state_dict(state, strict=False)
    around = {f"model.{name}": x for name, x in state.items()}
    told = "model.src_embedding.weight and model.output.weight must be equal, being tied, but differ"
    with refuses(ValueError, told):
        nn.ModuleDict({"model": tied}).load_state_dict(around)
    assert is_tied(tied) and tied.output.weight.equal(before)

    state["output.weight"] = state["src_embedding.weight"].clone()  # equal tables are one table
    tied.load_state_dict(state)
    untied.load_state_dict(tied.state_dict())
    assert close(tied(SRC, TGT), untied(SRC, TGT), 0)


def through_torch_save(model: Transformer) -> Transformer:
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    fresh = make_model()
    nn.init.zeros_(fresh.output.weight)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    return fresh


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)), through_torch_save],
    ids=["deepcopy", "pickle", "torch.save"],
)
def test_copies_stay_tied_and_equal(copied):
    model = make_model()
    twin = copied(model)
    assert is_tied(twin) and twin.output.weight is not model.output.weight
    assert twin.config == model.config
    assert torch.equal(twin(SRC, TGT), model(SRC, TGT))


def assigned_whole(model: Transformer) -> Transformer:
    with torch.device("meta"):
        fresh = Transformer(model.config)
    fresh.load_state_dict(model.state_dict(), assign=True)
    return fresh


def assigned(model: Transformer) -> Transformer:
    with torch.device("meta"):
        fresh = Transformer(model.config)
    weights = model.state_dict()
    del weights["src_embedding.weight"], weights["output.weight"]  # a file may hold one name alone
    fresh.load_state_dict(weights, strict=False, assign=True)
    return fresh


@pytest.mark.parametrize(
    "changed",
    [assigned, assigned_whole, lambda model: copy.deepcopy(model).float().double()],
    ids=["assign one name", "assign all names", "dtype"],
)
def test_a_shared_table_stays_one_parameter(changed):
    model = make_model()
    twin = changed(model)
    assert is_tied(twin)
    assert len(list(twin.parameters())) == len(list(model.parameters()))
    assert torch.allclose(twin(SRC, TGT), model(SRC, TGT), atol=1e-4)


def test_tables_that_a_user_parted_stay_apart():
    model = make_model()
    model.output = nn.Linear(12, 17, bias=False)
    model.load_state_dict(model.state_dict(), assign=True)
    model.float()
    assert model.output.weight is not model.src_embedding.weight
    assert model.src_embedding.weight is model.tgt_embedding.weight


# ---------- The projection belongs to the model

TIES = pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])


class Cooler(Transformer):
    """A model with a projection of its own."""

    def project(self, hidden: torch.Tensor) -> torch.Tensor:
        return super().project(hidden) / 2 + torch.arange(17.0)


@TIES
def test_forward_and_losses_use_the_projection_of_a_subclass(tied):
    model = make_model(tie_embeddings=tied)
    cooler = Cooler(model.config)
    cooler.load_state_dict(model.state_dict())
    logits = model(SRC, TGT) / 2 + torch.arange(17.0)
    assert close(cooler(SRC, TGT), logits)
    read, targets = TGT[:, :-1], TGT[:, 1:]
    expected = label_smoothed_cross_entropy(cooler(SRC, read), targets, reduction="sum")
    for loss in (teacher_forced_loss, r_drop_loss):  # without dropout, two passes agree
        assert close(loss(cooler, (SRC, TGT))[0], expected)
        assert not close(loss(model, (SRC, TGT))[0], expected, atol=1e-2)


@TIES
def test_a_hook_on_the_projection_sees_all_logits_and_may_change_them(tied):
    model, seen = make_model(tie_embeddings=tied), []
    before = model(SRC, TGT)
    model.output.register_forward_hook(lambda module, args, y: seen.append(y) or y + torch.arange(17.0))
    assert close(model(SRC, TGT), before + torch.arange(17.0))
    assert len(seen) == 1 and close(seen[0], before)
    loss, _ = teacher_forced_loss(model, (SRC, TGT))
    assert len(seen) == 2 and close(seen[1], before[:, :-1])
    changed = before[:, :-1] + torch.arange(17.0)
    assert close(loss, label_smoothed_cross_entropy(changed, TGT[:, 1:], reduction="sum"))


# ---------- A model as a function of its parameters


@TIES
def test_functional_call_uses_other_weights_and_leaves_the_model_alone(tied):
    model, other = make_model(tie_embeddings=tied), make_model(tie_embeddings=tied)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    before = copy.deepcopy(model.state_dict())
    weights = dict(other.named_parameters())

    def loss(weights: dict[str, torch.Tensor]) -> torch.Tensor:
        return functional_call(model, weights, (SRC, TGT)).square().mean()

    assert close(functional_call(model, weights, (SRC, TGT)), other(SRC, TGT))
    found = grad(loss)(weights)
    other(SRC, TGT).square().mean().backward()
    assert all(close(found[name], parameter.grad) for name, parameter in weights.items())
    assert is_tied(model) == tied
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


class Loss(nn.Module):
    """A loss as a module, for `functional_call`: of one sentence at a time."""

    def __init__(self, model: Transformer, loss) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, src: torch.Tensor, tgt: torch.Tensor) -> torch.Tensor:
        return self.loss(self.model, (src[None], tgt[None]))


def plain_loss(model, batch):
    src, tgt = batch
    return label_smoothed_cross_entropy(model(src, tgt[:, :-1]), tgt[:, 1:])


@pytest.mark.filterwarnings("ignore::UserWarning")  # vmap is slow where a kernel has no rule for it
@TIES
@pytest.mark.parametrize(
    "loss",
    [
        plain_loss,
        lambda model, batch: teacher_forced_loss(model, batch)[0],
        lambda model, batch: r_drop_loss(model, batch)[0],
    ],
    ids=["plain", "teacher-forced", "r-drop"],
)
def test_gradients_of_every_sentence_by_vmap_are_those_of_a_loop(loss, tied):
    module = Loss(make_model(tie_embeddings=tied), loss)
    weights = dict(module.named_parameters())
    each = vmap(grad(partial(functional_call, module)), (None, 0))(weights, (SRC, TGT))
    for i in range(2):
        module.zero_grad()
        module(SRC[i], TGT[i]).backward()
        assert all(close(each[name][i], parameter.grad) for name, parameter in weights.items())


# ---------- Edges


@pytest.mark.parametrize("batch, source, target", [(0, 7, 5), (2, 1, 1), (2, 7, 0), (1, 40, 40)])
def test_small_and_empty_batches(batch, source, target):
    model = make_model()
    src, tgt = (torch.ones(batch, source, dtype=torch.long), torch.ones(batch, target, dtype=torch.long))
    assert model(src, tgt).shape == (batch, target, 17)
    assert model.attention_maps(src, tgt).cross.shape == (2, batch, 3, target, source)


def test_dropout_falls_on_what_both_stacks_are_given():
    model, dropped = make_model(dropout=0.5).train(), []
    for stack in (model.encoder, model.decoder):
        stack.register_forward_pre_hook(lambda _, given: dropped.append((given[0] == 0).double()))
    model(SRC, TGT)
    assert all(0.3 < zeros.mean() < 0.7 for zeros in dropped) and len(dropped) == 2


def test_dropout_only_in_training_and_only_by_torchs_generator():
    model = make_model(**DROPPING)
    torch.manual_seed(1)
    first, second = model(SRC, TGT), model(SRC, TGT)
    torch.manual_seed(1)
    assert torch.equal(model(SRC, TGT), first) and not torch.equal(first, second)
    model.eval()
    assert torch.equal(model(SRC, TGT), model(SRC, TGT))


@pytest.mark.slow
def test_forward_is_captured_by_compile():
    model = make_model(n_layers=1)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert close(compiled(SRC, TGT), model(SRC, TGT))
    compiled(SRC, TGT).sum().backward()


@pytest.mark.slow
def test_forward_is_captured_by_export_for_any_lengths():
    model = make_model(n_layers=1, norm_first=True).eval()
    batch, source, target = (torch.export.Dim(name, min=2, max=30) for name in ("batch", "source", "target"))
    dynamic = ({0: batch, 1: source}, {0: batch, 1: target})
    program = torch.export.export(model, (SRC, TGT), dynamic_shapes=dynamic)
    src, tgt = torch.randint(1, 17, (3, 9)), torch.randint(1, 17, (3, 4))
    assert close(program.module()(src, tgt), model(src, tgt))


# ---------- What is refused


@pytest.mark.parametrize(
    "changes, error, message",
    [
        ({"d_model": 0}, ValueError, "d_model must be at least 1, but is 0"),
        ({"n_layers": -1}, ValueError, "n_layers must be at least 1, but is -1"),
        ({"n_layers": (2, 0)}, ValueError, "n_layers must be at least 1, but is 0"),
        ({"n_layers": (2, 2.0)}, TypeError, "n_layers must be an int, not float"),
        ({"n_layers": [6, 2, 1]}, ValueError, r"a number or a pair, encoder and decoder, not \[6, 2, 1\]"),
        ({"n_layers": "6"}, TypeError, r"n_layers must be an int, not str \('6'\)"),
        ({"d_ff": 2.5}, TypeError, r"d_ff must be an int, not float \(2.5\)"),
        ({"max_length": True}, TypeError, "max_length must be an int, not bool"),
        ({"src_vocab_size": "17"}, TypeError, "src_vocab_size must be an int, not str"),
        ({"n_heads": 5}, ValueError, "n_heads must divide d_model, but 5 does not divide 12"),
        ({"dropout": 1.0}, ValueError, r"dropout must lie in \[0, 1\), but is 1.0"),
        ({"attention_dropout": -0.1}, ValueError, r"attention_dropout must lie in \[0, 1\), but is -0.1"),
        ({"activation_dropout": None}, TypeError, "activation_dropout must be a number, not NoneType"),
        (
            {"activation": "tanh"},
            ValueError,
            r"activation must be one of \['gelu', 'relu', 'silu'\], not 'tanh'",
        ),
        ({"tgt_vocab_size": 19}, ValueError, "src_vocab_size = tgt_vocab_size, but 17 is not 19"),
        ({"pad_id": 17}, ValueError, r"pad_id must lie in \[0, 17\), but is 17"),
        ({"pad_id": -1}, ValueError, r"pad_id must lie in \[0, 17\), but is -1"),
        ({"bos_id": 20}, ValueError, r"bos_id must lie in \[0, 17\), but is 20"),
        ({"eos_id": 3.0}, TypeError, "eos_id must be an int, not float"),
    ],
)
def test_config_refuses(changes, error, message):
    with pytest.raises(error, match=message):
        make_config(**changes)


@pytest.mark.parametrize(
    "norm_first, final_norm, expected",
    [(False, None, False), (True, None, True), (False, True, True), (True, False, False)],
)
def test_final_norm_follows_norm_first(norm_first, final_norm, expected):
    config = make_config(norm_first=norm_first, final_norm=final_norm)
    assert config.has_final_norm == expected
    for stack in (Encoder(config), Decoder(config)):
        assert isinstance(stack.norm, nn.Identity) != expected


LONG = torch.ones(2, 41, dtype=torch.long)


@pytest.mark.parametrize(
    "src, tgt, error, message",
    [
        (SRC + 4, TGT, IndexError, r"src must lie in \[0, 17\), but holds 17"),
        (SRC, TGT - 1, IndexError, r"tgt must lie in \[0, 17\), but holds -1"),
        (SRC.int(), TGT, TypeError, "src must be a torch.long tensor, not torch.int32"),
        (SRC, TGT.double(), TypeError, "tgt must be a torch.long tensor, not torch.float64"),
        (SRC.tolist(), TGT, TypeError, "src must be a torch.long tensor, not list"),
        (SRC[0], TGT, ValueError, r"src must have shape \[batch, length\], not \[7\]"),
        (SRC, TGT[None], ValueError, r"tgt must have shape \[batch, length\], not \[1, 2, 5\]"),
        (SRC, TGT[:1], ValueError, "with the batch of tgt, 1, not "),
        (LONG, TGT, ValueError, "^src must have at most max_length = 40 tokens, but has 41$"),
        (SRC, LONG, ValueError, "^tgt must have at most max_length = 40 tokens, but has 41$"),
    ],
)
def test_forward_refuses(src, tgt, error, message):
    with pytest.raises(error, match=message):
        make_model()(src, tgt)


@pytest.mark.parametrize(
    "memory, error, message",
    [
        (
            torch.zeros(2, 7, 11),
            ValueError,
            r"memory must have shape \[batch, length, 12\] .* not \[2, 7, 11\]",
        ),
        (SRC, TypeError, "memory must be a floating-point tensor, not torch.int64"),
    ],
)
def test_decode_refuses(memory, error, message):
    with pytest.raises(error, match=message):
        make_model().decode(TGT, memory, None)


def test_cache_refuses_to_outgrow_the_positions():
    model = make_model(max_length=6)
    memory, cache = model.encode(SRC[:, :6]), KeyValueCache()
    model.decode(TGT, memory, None, cache)
    with pytest.raises(ValueError, match="^tgt must have at most max_length = 6 tokens, but has 7$"):
        model.decode(TGT[:, :2], memory, None, cache)
