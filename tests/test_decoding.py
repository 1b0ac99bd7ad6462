"""Decoding: searches against brute force, results in one form, batch-mates without influence."""

from __future__ import annotations

import itertools
import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from helpers import assert_same, greedy_by_hand, lively_model, refuses
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from transformer import Transformer, TransformerConfig, accelerate, beam_search, greedy_search
from transformer.decoding import (
    BeamResult,
    DecoderState,
    best_continuations,
    check_search,
    decoder_state,
    length_norm,
    merge_hypotheses,
)
from transformer.speed import fast

PAD, BOS, EOS = 0, 2, 3
INF = math.inf
make_model = partial(lively_model, vocab_size=9)


def make_sources(seed: int, vocab_size: int = 9, batch: int = 4, length: int = 5) -> Tensor:
    """Sources of different lengths, padded at the end, the longest of full length."""
    generator = torch.Generator().manual_seed(seed)
    src = torch.randint(1, vocab_size, (batch, length), generator=generator)
    lengths = torch.randint(1, length + 1, (batch, 1), generator=generator)
    lengths[0] = length
    return src.masked_fill(torch.arange(length) >= lengths, PAD)


def cut(tokens: list[int]) -> tuple[int, ...]:
    """A result up to its end token, that one included."""
    return tuple(tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens)


class ChainModel(nn.Module):
    """A model whose next token depends on the last alone, by a table of probabilities."""

    def __init__(self, rows: dict[int, dict[int, float]], vocab_size: int = 9):
        super().__init__()
        self.config = TransformerConfig(vocab_size, vocab_size, d_model=1, n_heads=1, max_length=20)
        self.table = torch.zeros(vocab_size, vocab_size, dtype=torch.float64)
        self.table[:, PAD] = 1.0
        for last, row in rows.items():
            self.table[last] = 0.0
            for token, probability in row.items():
                self.table[last, token] = probability

    def encode(self, src: Tensor) -> Tensor:
        return src[:, :, None].double()

    def src_mask(self, src: Tensor) -> Tensor:
        return torch.ones(len(src), 1, 1, src.size(1), dtype=torch.bool)

    def decode(self, tgt: Tensor, memory: Tensor, src_mask: Tensor, cache=None) -> Tensor:
        return tgt

    def project(self, hidden: Tensor) -> Tensor:
        return self.table.log()[hidden]


@torch.no_grad()
def log_probability(model: Transformer, src: Tensor, hypotheses: list[tuple]) -> list[float]:
    """Of hypotheses for one source `[1, S]`, in one teacher-forced pass without a cache."""
    model.eval()
    longest = max(map(len, hypotheses))
    tgt = torch.tensor([[BOS, *tokens, *[PAD] * (longest - len(tokens))] for tokens in hypotheses])
    log_probs = model(src.expand(len(tgt), -1), tgt[:, :-1]).log_softmax(-1)
    steps = log_probs.gather(2, tgt[:, 1:, None])[:, :, 0]
    return [row[: len(tokens)].sum().item() for row, tokens in zip(steps, hypotheses)]


def penalty(length: int, alpha: float) -> float:
    return (5 + length) ** alpha / 6**alpha


def every_hypothesis(model: Transformer, src: Tensor, max_length: int) -> dict[tuple, float]:
    """Everything that can be generated within `max_length`, with its log-probability."""
    sequences = itertools.product(range(model.config.tgt_vocab_size), repeat=max_length)
    hypotheses = list({cut(list(sequence)) for sequence in sequences})
    return dict(zip(hypotheses, log_probability(model, src, hypotheses)))


# ---------- Greedy search


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_greedy_search_equals_one_sentence_at_a_time_without_cache(seed, norm_first):
    model, src = make_model(seed, norm_first=norm_first), make_sources(seed)
    model.train()  # the search must switch dropout off by itself, and on again
    found = greedy_search(model, src, max_length=10)
    assert model.training and not found.requires_grad and found.dtype == torch.long
    for row, source in zip(found.tolist(), src):
        alone = greedy_by_hand(model, source[source != PAD].tolist(), max_length=10)
        assert list(cut(row)) == alone and set(row[len(alone) :]) <= {PAD}


class RowCount:
    """Counts the rows that a model's decoder reads, step by step."""

    def __init__(self, model: Transformer):
        self.rows: list[int] = []
        model.decoder.register_forward_pre_hook(lambda _, given: self.rows.append(len(given[0])))


@pytest.mark.parametrize("seed", [2, 3, 8, 30])
def test_greedy_search_reads_every_token_once_and_none_after_an_end(seed):
    model, src = make_model(seed, vocab_size=5), make_sources(seed, vocab_size=5, batch=20)
    count = RowCount(model)
    found = greedy_search(model, src, max_length=12)
    lengths = [len(cut(row)) for row in found.tolist()]
    assert len(set(lengths)) > 2  # they end at different times
    assert count.rows == [sum(n > step for n in lengths) for step in range(max(lengths))]


@torch.no_grad()
def test_sentences_that_go_on_keep_keys_and_values_of_their_own():
    model, src = make_model(0).eval(), make_sources(0)
    project, seen = model.project, []

    def first_one_ends(hidden):
        logits = project(hidden).index_fill(-1, torch.tensor(EOS), -INF)
        if len(seen) == 3:
            logits[0, EOS] = INF
        seen.append(hidden)
        return logits

    model.project = first_one_ends
    found = greedy_search(model, src, 10)
    assert found[0, 3:].tolist() == [EOS, *[PAD] * 6]
    for b in (1, 2, 3):  # what their steps saw is what one pass without a cache sees
        one, tgt = src[b : b + 1], torch.tensor([[BOS, *found[b, :-1].tolist()]])
        whole = model.decode(tgt, model.encode(one), model.src_mask(one))[0]
        steps = torch.stack([hidden[b if t < 4 else b - 1] for t, hidden in enumerate(seen)])
        assert torch.allclose(steps, whole, rtol=0, atol=1e-10)


def test_greedy_search_stops_when_all_have_ended_and_at_the_greatest_length():
    ends = {word: {EOS: 1.0} for word in range(4, 9)}
    quick = ChainModel({BOS: {4: 1.0}} | ends)
    assert greedy_search(quick, torch.ones(3, 1, dtype=torch.long), 9).tolist() == [[4, EOS]] * 3
    endless = ChainModel({BOS: {4: 1.0}, 4: {4: 1.0}})
    assert greedy_search(endless, torch.ones(1, 2, dtype=torch.long), 7).tolist() == [[4] * 7]


# ---------- Beam search


@pytest.mark.parametrize("alpha", [0.0, 0.6])
@pytest.mark.parametrize("seed", range(3))
def test_a_beam_of_one_is_greedy_search(seed, alpha):
    model, src = make_model(seed), make_sources(seed)
    result = beam_search(model, src, beam_size=1, length_penalty=alpha, max_length=10)
    assert torch.equal(result.tokens[:, 0], greedy_search(model, src, max_length=10))


@settings(max_examples=12)
@given(
    seed=st.integers(0, 10**6), vocab_size=st.integers(4, 5), max_length=st.integers(1, 3),
    alpha=st.floats(0, 2), spare=st.integers(0, 15),
)  # fmt: skip
def test_a_beam_that_drops_nothing_is_exhaustive_search(seed, vocab_size, max_length, alpha, spare):
    model = make_model(seed, vocab_size=vocab_size, n_layers=1)
    src = make_sources(seed, vocab_size, batch=1, length=3)
    log_p = every_hypothesis(model, src, max_length)
    assert math.isclose(sum(map(math.exp, log_p.values())), 1)  # the reference forgets nothing

    beam_size = len(log_p) + spare  # far wider than the vocabulary
    tokens, scores = beam_search(model, src, beam_size, alpha, max_length)

    found = [cut(row) for row in tokens[0, : len(log_p)].tolist()]
    expected = [log_p[hypothesis] / penalty(len(hypothesis), alpha) for hypothesis in found]
    assert set(found) == set(log_p)
    assert torch.allclose(scores[0, : len(log_p)], torch.tensor(expected, dtype=torch.float64))
    assert (scores[0].diff()[: len(log_p) - 1] <= 0).all()
    assert (scores[0, len(log_p) :] == -INF).all() and (tokens[0, len(log_p) :] == PAD).all()


KINDS = pytest.mark.parametrize("kind", [lambda model: model, accelerate], ids=["plain", "fast"])
SEARCHES = [partial(greedy_search, max_length=6), partial(beam_search, max_length=6)]


@KINDS
@pytest.mark.parametrize("search", SEARCHES, ids=["greedy", "beam"])
@pytest.mark.parametrize("steps", [2, 8])
def test_looking_rarely_at_what_has_ended_changes_no_result(search, kind, steps, monkeypatch):
    """Sentences that have ended wait in the batch for the next look, and for those that go on."""
    for seed in range(2):
        model, src = kind(make_model(seed)), make_sources(seed)
        wanted = [search(model, src, max_length=length) for length in (1, 12)]
        with monkeypatch.context() as patch:
            patch.setattr(DecoderState, "look_every", steps)
            patch.setitem(fast._LOOK_EVERY, "cpu", steps)
            found = [search(model, src, max_length=length) for length in (1, 12)]
        assert_same(found, wanted)


@torch.no_grad()
@KINDS
@pytest.mark.parametrize("search", SEARCHES, ids=["greedy", "beam"])
def test_a_model_that_gives_nan_writes_no_empty_translation(search, kind):
    model = make_model(1, tie_embeddings=False).float().eval()
    network = model.decoder.layers[-1].feed_forward
    for large in (network.w_1.bias, network.w_2.weight):
        large.fill_(1e30)  # finite, and their products are not
    with refuses(ValueError, "model must give numbers for logits, but gives NaN"):
        search(kind(model), make_sources(0))


@torch.no_grad()
@KINDS
def test_a_bias_of_minus_infinity_forbids_a_token(kind):
    model = make_model(1, tie_embeddings=False).float().eval()
    wanted = greedy_search(model, make_sources(0), 1)[0, 0]
    model.output.bias = nn.Parameter(torch.zeros(len(model.output.weight)))
    model.output.bias[wanted] = -math.inf
    for search in SEARCHES:
        found = search(kind(model), make_sources(0))
        assert wanted not in (found if isinstance(found, torch.Tensor) else found.tokens[:, 0])


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), beam_size=st.integers(1, 12), alpha=st.floats(0, 2))
def test_results_have_one_form_and_scores_are_what_they_say(seed, beam_size, alpha):
    model, src = make_model(seed), make_sources(seed)
    tokens, scores = beam_search(model, src, beam_size, alpha, max_length=6)
    assert tokens.shape[:2] == scores.shape == (4, beam_size)
    assert tokens.dtype == torch.long and tokens.size(2) <= 6
    assert not scores.isnan().any() and (scores.diff(dim=1) <= 0).all()
    for b, rows in enumerate(tokens.tolist()):
        hypotheses = [cut(row) for row in rows]
        assert len(set(hypotheses)) == beam_size
        for row, hypothesis in zip(rows, hypotheses):
            assert set(row[len(hypothesis) :]) <= {PAD}  # nothing but padding after the end
        log_p = log_probability(model, src[b : b + 1], hypotheses)  # no start token in front
        expected = [p / penalty(len(tokens), alpha) for p, tokens in zip(log_p, hypotheses)]
        assert torch.allclose(scores[b], torch.tensor(expected, dtype=torch.float64))


def test_absent_hypotheses_are_padding_with_score_minus_infinity():
    # Two translations are all there is: "4 end" and "5 end".
    model = ChainModel({BOS: {4: 0.75, 5: 0.25}, 4: {EOS: 1.0}, 5: {EOS: 1.0}})
    src = torch.ones(2, 3, dtype=torch.long)
    tokens, scores = beam_search(model, src, beam_size=4, length_penalty=0.0, max_length=8)
    assert tokens[:, :2, :2].tolist() == [[[4, EOS], [5, EOS]]] * 2
    assert (tokens[:, :2, 2:] == PAD).all() and (tokens[:, 2:] == PAD).all()
    assert torch.allclose(scores[:, :2].exp(), torch.tensor([0.75, 0.25]).double())
    assert (scores[:, 2:] == -INF).all()


@pytest.mark.parametrize("beam_size", [1, 5])
def test_batch_mates_have_no_influence(beam_size):
    model, src = make_model(5), make_sources(5, batch=4, length=7)
    together = beam_search(model, src, beam_size, max_length=9)
    greedy = greedy_search(model, src, max_length=9)
    for b, source in enumerate(src):
        source = source[source != PAD][None]
        alone = beam_search(model, source, beam_size, max_length=9)
        length = alone.tokens.size(2)
        assert torch.equal(together.tokens[b, :, :length], alone.tokens[0])
        assert (together.tokens[b, :, length:] == PAD).all()
        assert torch.allclose(together.scores[b], alone.scores[0], rtol=0, atol=1e-10)
        assert cut(greedy[b].tolist()) == cut(greedy_search(model, source, 9)[0].tolist())


@torch.no_grad()
def plain_beam_search(model, src, beam_size, alpha, max_length) -> BeamResult:
    """Every sentence to the end of the batch, memory repeated, no cache, all of [K, V] sorted."""
    model.eval()
    V, B, K = model.config.tgt_vocab_size, len(src), beam_size
    repeated = src.repeat_interleave(K, 0)
    tokens = src.new_full((B, K, 1), BOS)
    scores = torch.full((B, K), -INF, dtype=torch.float64)
    scores[:, 0] = 0
    kept = [[] for _ in range(B)]
    for length in range(1, max_length + 1):
        log_probs = model(repeated, tokens.flatten(0, 1))[:, -1].log_softmax(-1).view(B, K, V)
        sums, index = (scores[:, :, None] + log_probs).flatten(1).sort(1, descending=True)
        sums, index = sums[:, : 2 * K], index[:, : 2 * K]
        longer = torch.stack([tokens[b, row // V] for b, row in enumerate(index)])
        longer = torch.cat([longer, (index % V)[:, :, None]], 2)
        ends = index % V == EOS
        for b, k in (ends[:, :K] & (sums[:, :K] > -INF)).nonzero().tolist():
            if len(kept[b]) < K or scores[b].max() > -INF:
                kept[b].append((sums[b, k].item() / penalty(length, alpha), longer[b, k, 1:].tolist()))
        scores, order = sums.masked_fill(ends, -INF).sort(1, descending=True)
        scores, order = scores[:, :K].clone(), order[:, :K]
        tokens = longer.gather(1, order[:, :, None].expand(-1, -1, length + 1))
        for b in range(B):
            if len(kept[b]) >= K:
                scores[b] = -INF
        if (scores == -INF).all():
            break
    result = BeamResult(torch.full((B, K, length), PAD), torch.full((B, K), -INF).double())
    for b in range(B):
        alive = zip((scores[b] / penalty(length, alpha)).tolist(), tokens[b, :, 1:].tolist())
        every = kept[b] + [pair for pair in alive if pair[0] > -INF]
        for k, (score, row) in enumerate(sorted(every, reverse=True)[:K]):
            result.scores[b, k], result.tokens[b, k, : len(row)] = score, torch.tensor(row)
    return result


@settings(max_examples=12)
@given(
    seed=st.integers(0, 10**6), vocab_size=st.integers(4, 9), beam_size=st.integers(1, 12),
    batch=st.integers(1, 6), max_length=st.integers(1, 9), ragged=st.booleans(),
)  # fmt: skip
def test_beam_search_equals_the_plain_one(seed, vocab_size, beam_size, batch, max_length, ragged):
    model = make_model(seed, vocab_size=vocab_size)
    src = make_sources(seed, vocab_size, batch) if ragged else make_sources(seed, vocab_size, 1)
    src = src if ragged else src.expand(batch, -1)
    found = beam_search(model, src, beam_size, 0.6, max_length)
    plain = plain_beam_search(model, src, beam_size, 0.6, max_length)
    assert torch.equal(found.tokens, plain.tokens)
    assert torch.allclose(found.scores, plain.scores, rtol=0, atol=1e-9)


def test_beam_search_reads_the_rows_of_sentences_that_are_not_done():
    model, src = make_model(3, vocab_size=5), make_sources(3, vocab_size=5, batch=8)
    alone = []
    for source in src:
        steps = RowCount(model)
        beam_search(model, source[source != PAD][None], beam_size=3, max_length=12)
        alone.append(len(steps.rows))
    assert len(set(alone)) > 2
    count = RowCount(model)
    beam_search(model, src, beam_size=3, max_length=12)
    assert count.rows == [3 * sum(n > step for n in alone) for step in range(max(alone))]


@pytest.mark.parametrize("search", [greedy_search, partial(beam_search, beam_size=2)])
def test_source_and_result_may_be_as_long_as_the_model_allows(search):
    model = ChainModel({BOS: {4: 1.0}, 4: {4: 1.0}})
    found = search(model, torch.ones(1, 20, dtype=torch.long), max_length=20)
    tokens = found if isinstance(found, Tensor) else found.tokens[:, 0]
    assert tokens.tolist() == [[4] * 20]


def test_log_probabilities_of_half_precision_logits_are_not_rounded():
    model = ChainModel({BOS: {4: 0.7, 5: 0.3}, 4: {EOS: 1.0}, 5: {EOS: 1.0}})
    model.table = model.table.bfloat16()
    src = torch.ones(1, 1, dtype=torch.long)
    scores = beam_search(model, src, beam_size=2, length_penalty=0.0, max_length=3).scores
    exact = model.table.log()[BOS, [4, 5]].double().log_softmax(-1)
    assert torch.allclose(scores[0], exact, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_are_summed_in_float32_at_least(dtype):
    model = make_model(1).to(dtype)
    result = beam_search(model, make_sources(1), beam_size=3, max_length=6)
    assert result.scores.dtype == torch.float32 and result.scores.isfinite().all()


# ---------- The state of a search


def last_logits(model: Transformer, src: Tensor, beginnings: list[list[int]]) -> Tensor:
    """What comes after each of some beginnings, all anew and without a cache: `[N, V]`."""
    tgt = torch.tensor(beginnings)
    return model.project(model.decode(tgt, model.encode(src), model.src_mask(src)))[:, -1]


@torch.no_grad()
@KINDS
@pytest.mark.parametrize("norm_first", [True, False])
def test_kept_rows_go_on_as_if_they_had_read_their_tokens_from_the_start(norm_first, kind, beam_size=3):
    """Dropped, doubled and reordered rows, sentences that leave, and lengths at which a store grows."""
    model = make_model(3, max_length=40, norm_first=norm_first).eval()
    src = torch.cat([make_sources(3), torch.zeros(1, 5, dtype=torch.long)])  # one is padding alone
    generator = torch.Generator().manual_seed(0)
    state, sentences = decoder_state(kind(model), src, beam_size), torch.arange(len(src))
    beginnings = [[] for _ in range(len(src) * beam_size)]
    for step in range(20):
        read = torch.randint(9, (len(beginnings),), generator=generator)
        beginnings = [[*old, token] for old, token in zip(beginnings, read.tolist())]
        expected = last_logits(model, src[sentences.repeat_interleave(beam_size)], beginnings)
        torch.testing.assert_close(state.step(read), expected, atol=1e-10, rtol=0)
        stay = torch.arange(len(sentences))
        if step in (2, 4, 11):
            stay = stay[torch.arange(len(stay)) != step % len(stay)]  # one leaves
        places = torch.randint(beam_size, (len(stay), beam_size), generator=generator)  # dropped, doubled
        rows = (stay[:, None] * beam_size + places).flatten()
        state.keep(rows)
        sentences, beginnings = sentences[stay], [beginnings[row] for row in rows.tolist()]
    assert len(sentences) == 2


# ---------- Other models: no Transformer, a Transformer of one's own


def test_a_model_that_is_no_transformer_can_be_searched():
    """It has a configuration, `encode`, `src_mask`, `decode` and `project`: more is not asked of it."""
    rows = {BOS: {4: 0.6, 5: 0.4}, 4: {EOS: 1.0}, 5: {6: 0.7, EOS: 0.3}, 6: {EOS: 1.0}}
    model, src = ChainModel(rows), torch.zeros(3, 0, dtype=torch.long)
    assert greedy_search(model, src, 5).tolist() == [[4, EOS]] * 3
    tokens, scores = beam_search(model, src, beam_size=20, length_penalty=0.0, max_length=5)
    assert tokens[:, :3].tolist() == [[[4, EOS, PAD], [5, 6, EOS], [5, EOS, PAD]]] * 3
    assert torch.allclose(scores[:, :3].exp(), torch.tensor([0.6, 0.28, 0.12]).double())
    assert (scores[:, 3:] == -INF).all() and (tokens[:, 3:] == PAD).all()


@pytest.mark.parametrize("seed", range(3))
def test_searches_respect_what_a_subclass_computes(seed):
    class Shifted(Transformer):
        def decode(self, tgt, memory, src_mask=None, cache=None):
            return super().decode((tgt + 1) % 9, memory, src_mask, cache)

        def project(self, hidden):
            return super().project(hidden).roll(1, dims=-1)

    model, src = make_model(seed), make_sources(seed)
    other = Shifted(model.config).double()
    other.load_state_dict(model.state_dict())
    found = greedy_search(other, src, max_length=10)
    for row, source in zip(found.tolist(), src):
        alone = greedy_by_hand(other, source[source != PAD].tolist(), max_length=10)
        assert list(cut(row)) == alone
    assert torch.equal(beam_search(other, src, 1, max_length=10).tokens[:, 0], found)


# ---------- The parts


@given(st.integers(1, 200), st.floats(0, 3))
def test_length_norm_is_the_formula_of_wu_et_al(length, alpha):
    assert math.isclose(length_norm(length, alpha), penalty(length, alpha), rel_tol=1e-12)
    assert length_norm(1, alpha) == 1 and length_norm(length, 0.0) == 1


@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 6), st.integers(0, 10**6))
def test_best_continuations_are_the_first_of_all_sorted(batch, beam_size, vocab_size, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(9, (batch, beam_size, 2), generator=generator)
    scores = -torch.rand(batch, beam_size, generator=generator, dtype=torch.float64)
    log_probs = -torch.rand(batch, beam_size, vocab_size, generator=generator, dtype=torch.float64)

    found, origin = best_continuations(BeamResult(tokens, scores), log_probs)
    for b in range(batch):
        pairs = itertools.product(range(beam_size), range(vocab_size))
        every = [(float(scores[b, k] + log_probs[b, k, v]), k, v) for k, v in pairs]
        best = sorted(every, reverse=True)[: 2 * beam_size]
        assert found.scores[b].tolist() == [score for score, _, _ in best]
        assert origin[b].tolist() == [k for _, k, _ in best]
        assert found.tokens[b].tolist() == [[*tokens[b, k].tolist(), v] for _, k, v in best]


@given(st.integers(1, 3), st.integers(1, 4), st.integers(0, 4), st.integers(0, 10**6))
def test_merging_keeps_the_best_of_both_and_pads_the_shorter(batch, kept, new, seed):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda n: -torch.rand(batch, n, generator=generator)
    ids = lambda n, length: torch.randint(1, 9, (batch, n, length), generator=generator)
    one, two = BeamResult(ids(kept, 2), draw(kept)), BeamResult(ids(new, 5), draw(new))

    merged = merge_hypotheses(one, two, pad_id=0)
    for b in range(batch):
        ours = list(zip(one.scores[b].tolist(), [[*r, 0, 0, 0] for r in one.tokens[b].tolist()]))
        every = sorted(ours + list(zip(two.scores[b].tolist(), two.tokens[b].tolist())))
        expected = every[::-1][:kept]
        assert merged.scores[b].tolist() == [score for score, _ in expected]
        assert merged.tokens[b].tolist() == [row for _, row in expected]


# ---------- Bad input


@pytest.mark.parametrize("search", [check_search, greedy_search, beam_search])
@pytest.mark.parametrize(
    "src, max_length, error, message",
    [
        (torch.ones(2, 3), 5, TypeError, "src must be a torch.long tensor, not torch.float32"),
        ([[1, 2]], 5, TypeError, "src must be a torch.long tensor, not list"),
        (torch.tensor([1, 2]), 5, ValueError, r"src must have shape \[batch, length\], not \[2\]"),
        (torch.tensor([[1, 9]]), 5, IndexError, r"src must lie in \[0, 9\), but holds 9"),
        (torch.tensor([[-1, 2]]), 5, IndexError, r"src must lie in \[0, 9\), but holds -1"),
        (torch.tensor([[1]]), 0, ValueError, "max_length must be at least 1, but is 0"),
        (torch.tensor([[1]]), 2.0, TypeError, "max_length must be an int, not float"),
        (torch.tensor([[1]]), 13, ValueError, "max_length must be at most the model's 12, but is 13"),
    ],
)
def test_bad_input_is_refused_by_name(search, src, max_length, error, message):
    with pytest.raises(error, match=message):
        search(make_model(0), src, max_length=max_length)


class Wrapped(nn.Module):
    """A module around a model, with as much of it as it is told to have."""

    def __init__(self, *names: str, **settings):
        super().__init__()
        self.model = make_model(0)
        for name in names:
            setattr(self, name, getattr(self.model, name))
        if settings:
            self.config = SimpleNamespace(**settings)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.model(src, tgt)


@pytest.mark.parametrize(
    "search", [partial(greedy_search, max_length=3), beam_search], ids=["greedy", "beam"]
)
@pytest.mark.parametrize(
    "model, missing",
    [
        (Wrapped(), "config.src_vocab_size"),
        (Wrapped(vocab_size=9), "config.src_vocab_size"),  # as another library's configuration
    ],
    ids=["forward", "theirs"],
)
def test_a_wrapper_is_told_what_a_search_needs_of_it(model, missing, search):
    with pytest.raises(TypeError, match=rf"^model must be a Transformer, but Wrapped has no {missing}$"):
        search(model, torch.tensor([[5, 7, 3]]))


@pytest.mark.parametrize(
    "settings, error, message",
    [
        (dict(beam_size=0), ValueError, "beam_size must be at least 1, but is 0"),
        (dict(beam_size=2.0), TypeError, "beam_size must be an int, not float"),
        (dict(length_penalty=-0.1), ValueError, "length_penalty must be finite and at least 0, but is -0.1"),
        (
            dict(length_penalty=math.nan),
            ValueError,
            "length_penalty must be finite and at least 0, but is nan",
        ),
    ],
)
def test_bad_settings_are_refused_by_name(settings, error, message):
    with pytest.raises(error, match=message):
        beam_search(make_model(0), torch.tensor([[1]]), max_length=5, **settings)
