"""The decoder-only model: parts against references, the whole against Hugging Face's, searches exactly.

What needs transformers is skipped by name where it is missing; the record of a Llama is compared everywhere.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from helpers import assert_close, close, llama_folder, scrambled
from torch import nn

from transformer import (
    MultiHeadAttention,
    causal_mask,
    scaled_dot_product_attention,
)
from transformer.attention import KeyValueCache
from transformer.exchange.hugging_face import from_llama
from transformer.modern.language_model import (
    GroupedQueryAttention,
    LanguageModel,
    LanguageModelConfig,
    RewindableCache,
    accept,
    cache_bytes,
    generate,
    speculative_decoding,
)
from transformer.modern.parts import (
    RMSNorm,
    RotaryStretch,
    RoutedFeedForward,
    alibi,
    balance_loss,
    orthogonalize,
    rotary_table,
    rotate,
    route,
    sliding_mask,
    wsd_rate,
)
from transformer.training import load_record

pytestmark = pytest.mark.usefixtures("float64")
# No two sizes are equal, so that no axis can be taken for another.
CONFIG = LanguageModelConfig(13, d_model=24, n_heads=6, n_kv_heads=3, d_head=8, n_layers=2, d_ff=20)
POSITIONS = pytest.mark.parametrize("positions", ["rotary", "alibi", "none"])


def lively(seed: int = 0, **changes) -> LanguageModel:
    """A model whose next token depends on what came before."""
    torch.manual_seed(seed)
    return scrambled(LanguageModel(replace(CONFIG, **changes)))


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(CONFIG.vocab_size, shape)


# ---------- Parts


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rms_norm_is_torchs(dtype):
    ours, theirs = scrambled(RMSNorm(12, eps=1e-3)).to(dtype), nn.RMSNorm(12, eps=1e-3).to(dtype)
    theirs.load_state_dict(ours.state_dict())
    x = (3 * torch.randn(2, 5, 12)).to(dtype).requires_grad_()
    rounding = 4 * torch.finfo(dtype).eps
    assert ours(x).dtype == dtype
    assert_close(ours(x), theirs(x), rounding, rounding)
    found, wanted = (torch.autograd.grad(norm(x).square().sum(), (x, norm.weight)) for norm in (ours, theirs))
    assert_close(found, wanted, 40 * rounding, 40 * rounding)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotation_multiplies_pairs_by_complex_numbers(interleaved):
    x, d_k = torch.randn(2, 3, 7, 8), 8
    speeds = 100.0 ** (-torch.arange(0, d_k, 2) / d_k)
    turns = torch.polar(torch.ones(7, 4), torch.outer(torch.arange(5, 12).double(), speeds))
    pairs = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., :4], x[..., 4:])
    turned = rotate(x, rotary_table(7, d_k, base=100.0, offset=5), interleaved)
    found = (turned[..., 0::2], turned[..., 1::2]) if interleaved else (turned[..., :4], turned[..., 4:])
    assert close(torch.complex(*found), torch.complex(*pairs) * turns)


@pytest.mark.parametrize("interleaved", [False, True])
def test_scores_of_turned_vectors_depend_on_distances_only(interleaved):
    q, k = torch.randn(2, 9, 8)
    tables = [rotary_table(9, 8, offset=offset) for offset in (0, 17)]
    scores = [rotate(q, table, interleaved) @ rotate(k, table, interleaved).T for table in tables]
    assert close(*scores) and not torch.allclose(scores[0], q @ k.T, atol=0.1)


@pytest.mark.parametrize("n_heads", [1, 3, 8])
def test_alibi_lowers_scores_by_distance_times_slope(n_heads):
    q, k, v = torch.randn(3, 2, n_heads, 5, 4)
    slopes = torch.tensor([2 ** (-8 * h / n_heads) for h in range(1, n_heads + 1)])
    distance = torch.arange(5)[:, None] - torch.arange(5)
    bias = (-slopes[:, None, None] * distance).masked_fill(distance < 0, -torch.inf)
    expected = F.scaled_dot_product_attention(q, k, v, bias)
    assert close(scaled_dot_product_attention(*alibi(q, k), v, causal_mask(5))[0], expected)


def test_routed_networks_by_their_definition():
    torch.manual_seed(0)
    network, x = scrambled(RoutedFeedForward(6, 10, n_experts=5, n_chosen=2)), torch.randn(2, 7, 6)
    found = network(x)
    for b, t in product(range(2), range(7)):
        scores = network.router.weight @ x[b, t]
        best = scores.argsort(descending=True)[:2]
        total = scores[best].exp().sum()
        parts = [scores[e].exp() / total * network.experts[int(e)](x[b, t]) for e in best]
        assert close(found[b, t], parts[0] + parts[1])
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(network.float()(x.float()), found.float(), rtol=0.05, atol=0.1)
    with pytest.raises(ValueError, match=r"activation must be one of \['relu', .*, not 'tanh'"):
        RoutedFeedForward(6, 10, activation="tanh")


def test_balance_loss_by_its_definition():
    torch.manual_seed(0)
    scores = torch.randn(3, 4, 5, requires_grad=True)
    chosen, _ = route(scores, 2)
    share = torch.tensor([(chosen == e).sum() / 24 for e in range(5)])
    assert close(balance_loss(scores, 2), 5 * (share * scores.softmax(-1).mean((0, 1))).sum())
    even, one = 99 * torch.eye(4), 99 * torch.eye(4)[:1].expand(4, -1)
    assert close(balance_loss(even, 1), torch.tensor(1.0))
    assert close(balance_loss(one, 1), torch.tensor(4.0))


@pytest.mark.parametrize("n_kv_heads", [1, 2, 6, None])
def test_shared_heads_are_repeated_heads(n_kv_heads):
    config = replace(CONFIG, n_kv_heads=n_kv_heads, d_head=None, positions="none")
    ours, full = GroupedQueryAttention(config), MultiHeadAttention(24, 6, bias=False)
    weights = ours.state_dict()
    for name in ("w_k.weight", "w_v.weight"):
        heads = weights[name].unflatten(0, (-1, config.d_k))
        weights[name] = heads.repeat_interleave(6 // len(heads), dim=0).flatten(0, 1)
    full.load_state_dict(weights)
    x = torch.randn(2, 7, 24)
    assert close(ours(x, causal_mask(7)), full(x, x, x, causal_mask(7))[0])


def test_normalized_queries_and_keys_bound_the_scores():
    x = torch.randn(2, 7, 24)
    attention = GroupedQueryAttention(replace(CONFIG, qk_norm=True))
    before = attention(x, causal_mask(7))
    with torch.no_grad():
        attention.w_q.weight *= 1000
        attention.w_k.weight *= 1000
    assert close(attention(x, causal_mask(7)), before, atol=1e-4)  # epsilon


@pytest.mark.parametrize("window", [None, 1, 2, 4, 99])
@pytest.mark.parametrize("offset", [0, 3])
def test_sliding_mask_by_its_definition(window, offset):
    mask = sliding_mask(5, offset, window)
    assert mask.shape == (1, 1, 5, offset + 5)
    for t, s in product(range(5), range(offset + 5)):
        assert mask[0, 0, t, s] == (0 <= offset + t - s < (window or 1000))


def test_wsd_rate_rises_stays_and_falls():
    rates = [wsd_rate(step, 20, 3.0, warmup_steps=5, decay=0.25) for step in range(1, 21)]
    assert_close(rates, [0.6, 1.2, 1.8, 2.4, *[3.0] * 12, 2.4, 1.8, 1.2, 0.6])
    with pytest.raises(ValueError, match="warmup_steps"):
        wsd_rate(1, 20, 3.0, warmup_steps=0)


@pytest.mark.parametrize("shape", [(6, 6), (4, 30), (30, 4)])
def test_orthogonalize_keeps_singular_vectors_and_evens_out_values(shape):
    torch.manual_seed(0)
    u, _, vh = torch.linalg.svd(torch.randn(shape), full_matrices=False)
    values = torch.linspace(0.05, 1, len(vh)) if shape[0] > shape[1] else torch.linspace(0.05, 1, u.size(1))
    result = orthogonalize(u * values @ vh)
    inside = u.T @ result @ vh.T
    assert close(inside, torch.diag(inside.diagonal()))
    assert inside.diagonal().min() > 0.6 and inside.diagonal().max() < 1.3
    expected = values / values.norm()
    for _ in range(5):
        expected = 3.4445 * expected - 4.7750 * expected**3 + 2.0315 * expected**5
    assert close(inside.diagonal(), expected)


# ---------- The whole


@POSITIONS
@pytest.mark.parametrize("changes", [{}, {"window": 3}, {"qk_norm": True, "scale_embedding": True}], ids=str)
def test_with_a_cache_as_without_and_no_look_ahead(positions, changes):
    model, ids = lively(positions=positions, **changes), tokens(2, 9)
    with torch.no_grad():
        logits, cache = model(ids), KeyValueCache()
        parts = [model(part, cache=cache) for part in ids.split([3, 1, 4, 1], dim=1)]
        assert close(torch.cat(parts, dim=1), logits)
        changed = ids.clone()
        changed[:, 5] = (ids[:, 5] + 1) % CONFIG.vocab_size
        moved = (model(changed) - logits).abs().amax((0, 2))
    assert moved[:5].max() == 0 and moved[5] > 1e-6


def test_the_cache_holds_as_many_bytes_as_it_should():
    model, cache = lively(), KeyValueCache()
    model(tokens(2, 9), cache=cache)
    nothing = torch.zeros(2, 3, 0, 8)
    attentions = [layer.attention for layer in model.layers]
    kept = [part for each in attentions for part in cache.append(each, lambda: (nothing, nothing))]
    assert sum(part.nbytes for part in kept) == cache_bytes(CONFIG, 9, batch=2, dtype=torch.float64)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"n_kv_heads": 4}, "n_kv_heads must divide n_heads, but 4 does not divide 6"),
        ({"d_head": None, "d_model": 25}, "n_heads must divide d_model where d_head is None"),
        ({"d_head": 7}, "d_head must be even for rotary positions, but is 7"),
        ({"positions": "learned"}, "positions must be one of"),
        ({"activation": "tanh"}, "activation must be one of"),
        ({"window": 0}, "window must be at least 1, but is 0"),
        ({"norm_eps": -1.0}, "norm_eps must be finite and at least 0"),
    ],
    ids=str,
)
def test_a_configuration_that_cannot_be_built_is_refused(changes, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        replace(CONFIG, **changes)


def test_bad_input_is_refused_by_name():
    model = lively()
    with pytest.raises(IndexError, match="prompt"):
        generate(model, torch.tensor([[13]]), 3)
    with pytest.raises(ValueError, match="prompt_length"):
        generate(model, tokens(1, 0), 3)
    with pytest.raises(TypeError, match="ids"):
        model(torch.zeros(1, 3))
    with pytest.raises(ValueError, match="rows_of_prompt"):
        speculative_decoding(model, model, tokens(2, 3), 3)
    with pytest.raises(ValueError, match="n_ahead"):
        speculative_decoding(model, model, tokens(1, 3), 3, n_ahead=0)
    model.embedding.weight.detach().fill_(math.nan)
    with pytest.raises(ValueError, match="gives NaN"):
        generate(model, tokens(1, 3), 3)


def test_texts_end_where_each_has_written_its_end():
    model, ids = lively(), tokens(3, 4)
    free = generate(model, ids, 12)
    end = int(free[0, 2])
    ended = generate(model, ids, 12, eos_id=end)
    for row, text in zip(ended.tolist(), free.tolist(), strict=True):
        place = text.index(end) + 1 if end in text else 12
        assert row == (text[:place] + [end] * 12)[: len(row)]
    lengths = [text.index(end) + 1 if end in text else 12 for text in free.tolist()]
    assert ended.size(1) == max(lengths) and min(lengths) <= 3


# ---------- Hugging Face's models


def test_a_recorded_llama_is_met_to_the_last_digits(tmp_path):
    pytest.importorskip("safetensors")
    record = load_record("llama")
    model, ids = from_llama(llama_folder(tmp_path)), torch.tensor(record["ids"])
    with torch.no_grad():
        logits = model(ids)
    assert_close(logits, torch.tensor(record["logits"]), 1e-4)
    assert_close(logits, torch.tensor(record["logits in float64"]), 1e-12)
    assert generate(model, ids, 20).tolist() == record["continued"]


LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
}  # fmt: skip


def test_stretched_rotations_by_cases():
    speeds = 500_000.0 ** (-torch.arange(0, 128, 2) / 128)
    for before, after in zip(speeds, RotaryStretch(8.0, 1.0, 4.0, 8192)(speeds), strict=True):
        length = 2 * math.pi / before  # of a wave
        if length < 8192 / 4:
            assert after == before
        elif length > 8192:
            assert close(after, before / 8)
        else:
            share = (8192 / length - 1) / 3
            assert close(after, (1 - share) * before / 8 + share * before)


@pytest.mark.parametrize(
    "family, changes",
    [
        ("Llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
        ("Llama", {"tie_word_embeddings": True}),
        ("Llama", {"rope_parameters": LLAMA3}),
        ("Llama", {"hidden_act": "gelu"}),
        ("Mistral", {"sliding_window": 3}),
        ("Qwen3", {}),
    ],
    ids=["Llama", "Llama, tied", "Llama, stretched", "Llama, exact gelu", "Mistral", "Qwen3"],
)
def test_logits_and_greedy_continuations_are_theirs(family, changes, tmp_path):
    transformers = pytest.importorskip("transformers")
    from experiments.llama import in_double, random_model

    torch.manual_seed(0)
    kinds = getattr(transformers, f"{family}ForCausalLM"), getattr(transformers, f"{family}Config")
    theirs, ids = random_model(*kinds, **changes), torch.randint(32, (2, 9))
    theirs.save_pretrained(tmp_path)
    ours = from_llama(tmp_path)
    with torch.no_grad():
        assert_close(ours(ids), theirs(ids).logits, 1e-4)
        exact = in_double(theirs)
        assert_close(ours(ids), exact(ids).logits, 1e-11)
        assert exact(ids).logits.abs().max() > 1
        mask = torch.ones_like(ids)
        continued = exact.generate(ids, attention_mask=mask, max_new_tokens=15, do_sample=False)
    assert torch.equal(generate(ours, ids, 15), continued[:, 9:])


# ---------- Speculative decoding


class Choice(Exception):
    """More is drawn than the script says; how many choices there are."""


def all_outcomes(program, script=()):
    """Every result of a program that draws, with its probability."""
    weights = []

    def draw(probabilities):
        if len(weights) == len(script):
            raise Choice(len(probabilities))
        weights.append(float(probabilities[script[len(weights)]]))
        return script[len(weights) - 1]

    try:
        yield program(draw), math.prod(weights)
    except Choice as choice:
        for index in range(choice.args[0]):
            yield from all_outcomes(program, (*script, index))


def distribution_of(program) -> dict:
    found: dict = {}
    for result, weight in all_outcomes(program):
        found[result] = found.get(result, 0.0) + weight
    return found


@pytest.mark.parametrize("seed", range(4))
def test_one_guess_leaves_the_distribution_as_it_is(seed):
    torch.manual_seed(seed)
    p, after, q = torch.randn(3, 5).softmax(-1)
    first = lambda draw: accept([draw(q)], q[None], torch.stack([p, after]), draw)[0]
    found = distribution_of(first)
    assert_close(torch.tensor([found[i] for i in range(5)]), p)


@pytest.mark.slow
def test_the_whole_search_writes_as_the_large_model_alone():
    large, small = lively(0, vocab_size=3, n_layers=1), lively(1, vocab_size=3, n_layers=1)
    prompt = torch.tensor([[1]])
    search = lambda draw: tuple(speculative_decoding(large, small, prompt, 2, 1, draw=draw)[0].tolist())
    found = distribution_of(search)
    for text in product(range(3), repeat=2):
        with torch.no_grad():
            probs = large(torch.tensor([[1, *text[:1]]]))[0].softmax(-1)
        expected = float(torch.tensor([probs[t, token] for t, token in enumerate(text)]).prod())
        assert abs(found[text] - expected) < 1e-10


@pytest.mark.slow
@POSITIONS
@pytest.mark.parametrize("n_ahead", [1, 3, 6])
def test_greedy_speculation_is_greedy(positions, n_ahead):
    large, small = lively(0, positions=positions), lively(1, positions=positions, n_layers=1)
    greedily = lambda logits: F.one_hot(logits.argmax(-1), logits.size(-1)).double()
    prompt = tokens(1, 4)
    alone = generate(large, prompt, 17)
    for draft in (small, large):
        calls = []
        handle = large.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        found = speculative_decoding(large, draft, prompt, 17, n_ahead, greedily)
        handle.remove()
        assert torch.equal(found, alone)
    assert len(calls) == -(-17 // (n_ahead + 1)) * (n_ahead + 1)  # each guess of its own is kept


def test_a_rewound_cache_has_forgotten():
    model, ids, cache = lively(), tokens(2, 8), RewindableCache()
    with torch.no_grad():
        model(ids, cache=cache)
        cache.rewind(5)
        assert cache.length == 5
        assert close(model(ids[:, 5:], cache=cache), model(ids)[:, 5:])
        cache.rewind(100)
    assert cache.length == 8
