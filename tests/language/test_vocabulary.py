"""Vocabularies that lose nothing, batches that hold each pair once, cuts that can be repeated."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transformer import (
    TokenBatches,
    Trainer,
    TrainingConfig,
    Transformer,
    TransformerConfig,
    Vocabulary,
    bucket_lengths,
    encode_pairs,
    load_corpus,
    r_drop_loss,
)
from transformer.language.batches import BPEDropout
from transformer.language.corpora import Pair
from transformer.language.vocabulary import BOS_ID, EOS_ID, PAD_ID, UNK_ID, normalize

# ---------- Vocabulary

SENTENCES = [side for pair in load_corpus("phrases", "dev") for side in pair]
ALPHABET = sorted({character for sentence in SENTENCES for character in sentence} - {" "})


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.train(SENTENCES, size=300)


@pytest.mark.slow
@given(words=st.lists(st.text(st.sampled_from(ALPHABET), min_size=1, max_size=8), max_size=6))
def test_round_trip(vocabulary, words):
    sentence = " ".join(words)
    ids = vocabulary.encode(sentence)
    assert vocabulary.decode(ids) == normalize(sentence)
    assert min(ids, default=4) > EOS_ID and max(ids, default=4) < len(vocabulary)
    assert "".join(vocabulary.tokens(ids)) == "".join("▁" + word for word in words)


@pytest.mark.slow
@given(anything=st.text(max_size=30))
def test_any_text_survives_or_becomes_unknown(vocabulary, anything):
    ids = vocabulary.encode(anything)
    assert all(index == UNK_ID or EOS_ID < index < len(vocabulary) for index in ids)
    assert isinstance(vocabulary.decode(ids), str)
    known = all(character in ALPHABET or character.isspace() for character in normalize(anything))
    assert known <= (UNK_ID not in ids)


@pytest.mark.parametrize("special", ["<pad>", "<unk>", "<s>", "</s>"])
def test_a_text_cannot_spell_special_tokens(vocabulary, special):
    assert not {PAD_ID, BOS_ID, EOS_ID} & set(vocabulary.encode(f"o {special} gato{special}"))


def test_decode_stops_at_the_end_and_drops_what_is_no_text(vocabulary):
    ids = vocabulary.encode("o gato")
    for row in ([BOS_ID, *ids, EOS_ID, *ids], [*ids, EOS_ID, PAD_ID, PAD_ID], [*ids, PAD_ID]):
        assert vocabulary.decode(row) == vocabulary.decode(torch.tensor(row)) == "o gato"
    assert vocabulary.decode([]) == vocabulary.decode([EOS_ID]) == ""


def test_accents_written_in_two_ways_are_one(vocabulary):
    assert normalize("irma\u0303  e\u0301\n") == "irmã é"
    assert vocabulary.encode("irma\u0303") == vocabulary.encode("irmã")


def test_the_file_can_be_read_by_the_library_itself(vocabulary, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary.save(tmp_path / "v.json")
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "v.json"))
    texts = [normalize(sentence) for sentence in SENTENCES[:50]]
    assert [encoding.ids for encoding in theirs.encode_batch(texts)] == vocabulary.encode_batch(texts)
    again = tmp_path / "again.json"
    Vocabulary.load(tmp_path / "v.json").save(again)
    assert again.read_bytes() == (tmp_path / "v.json").read_bytes()


def _set(**changes):
    return lambda content: content.update(changes)


def _in_model(**changes):
    return lambda content: content["model"].update(changes)


def _entry(piece, index):
    return lambda content: content["model"]["vocab"].update({piece: index})


def _merge(*merge):
    return lambda content: content["model"]["merges"].append(list(merge))


REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaaaa"}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        *(
            (change, "it holds other rules")
            for change in (
                _in_model(dropout=0.5),
                _in_model(surprise=1),
                lambda content: content.pop("decoder"),
                _set(normalizer={"type": "Sequence", "normalizers": [REPLACE] * 12}),
                _set(added_tokens=[{"id": 9, "content": "gato"}]),
                _entry("new", 301),
            )
        ),
        (_set(model=[]), "TypeError|indices"),
        (_entry("\ud800", 300), "surrogates not allowed"),
        (
            _in_model(vocab={"<unk>": 0, "<pad>": 1, "<s>": 2, "</s>": 3, "a": 4}, merges=[]),
            "must begin with",
        ),
        (_merge("▁", "▁"), "merge \\d+ is"),
        (_merge("a", "b", "c"), "merge \\d+ is"),
        (_merge("a", 3), "expected str"),
    ],
)
def test_loading_takes_entries_and_merges_and_no_other_rule(damage, message, vocabulary, tmp_path):
    vocabulary.save(tmp_path / "v.json")
    content = json.loads((tmp_path / "v.json").read_text(encoding="utf8"))
    damage(content)
    (tmp_path / "v.json").write_text(json.dumps(content), encoding="utf8")
    with pytest.raises(ValueError, match=message) as refusal:
        Vocabulary.load(tmp_path / "v.json")
    assert "v.json cannot be used" in str(refusal.value) and len(str(refusal.value)) < 500


@pytest.mark.parametrize(
    ("pieces", "merges", "message"),
    [
        (["<pad>", "<unk>", "<s>", "</s>", "a", "a"], [], "and differ"),
        (["<pad>", "<unk>", "<s>", "</s>", "a"], [("a", "a")], "merge 0 is ('a', 'a')"),
        (["<pad>", "<unk>", "<s>", "</s>", ">", "<s>>"], [("<s>", ">")], "merge 0 is ('<s>', '>')"),
    ],
)
def test_a_vocabulary_refuses_what_is_not_learned(pieces, merges, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Vocabulary(pieces, merges)


def test_texts_that_spell_a_special_entry_are_learned_from():
    texts = ["one<s>", "two<s>", "<pad>three"]
    vocabulary = Vocabulary.train(texts * 100, 60)
    assert [vocabulary.decode(ids) for ids in vocabulary.encode_batch(texts)] == texts


# ---------- Pairs, tensors, batches

LENGTHS = st.lists(st.tuples(st.integers(1, 12), st.integers(2, 12)), min_size=1, max_size=60)


def pairs_of(lengths: list[tuple[int, int]]) -> list[tuple[list[int], list[int]]]:
    """Pairs of these lengths, each of its own number, so that it can be recognized in a batch."""
    return [
        ([index + 4] * source, [BOS_ID, *[index + 4] * (target - 1)])
        for index, (source, target) in enumerate(lengths)
    ]


def test_encoded_pairs_feed_teacher_forcing(vocabulary):
    source, target = encode_pairs([("o gato", "the cat")], vocabulary)[0]
    assert source == [*vocabulary.encode("o gato"), EOS_ID]
    assert target == [BOS_ID, *vocabulary.encode("the cat"), EOS_ID]


def test_long_pairs_are_left_out(vocabulary):
    pairs = load_corpus("phrases", "dev")
    every = encode_pairs(pairs, vocabulary)
    short = encode_pairs(pairs, vocabulary, max_tokens=12)
    assert short == [pair for pair in every if len(pair[0]) <= 12 and len(pair[1]) <= 12]
    assert 0 < len(short) < len(every) == len(pairs)


def test_empty_and_endless_sentences_are_kept_or_left_out_as_asked(vocabulary):
    """Nothing is lost without being asked for, and what does not fit a batch is named."""
    endless = " ".join(["gato"] * 10_000)
    pairs = [Pair("", ""), Pair(endless, "the cat ."), Pair("o gato", "")]
    encoded = encode_pairs(pairs, vocabulary)
    assert encoded[0] == ([EOS_ID], [BOS_ID, EOS_ID]) and len(encoded) == 3
    assert len(encoded[1][0]) > 10_000 and vocabulary.decode(encoded[1][0]) == endless
    assert encode_pairs(pairs, vocabulary, max_tokens=100) == [encoded[0], encoded[2]]
    with pytest.raises(ValueError, match=r"pairs\[1\] has \d+ tokens, more than max_tokens=4096"):
        TokenBatches(encoded, 4096)
    assert sum(len(source) for source, _ in TokenBatches(encoded, 40_000)(0)) == 3
    drawn = BPEDropout(pairs, vocabulary, 0.3)(0)
    assert drawn[0] == encoded[0] and vocabulary.decode(drawn[1][0]) == endless
    assert len(BPEDropout(pairs, vocabulary, 0.3, max_tokens=4096)(0)) == 2


@given(
    lengths=LENGTHS,
    max_tokens=st.integers(12, 60),
    seed=st.integers(0, 5),
    epoch=st.integers(0, 5),
    shuffle=st.booleans(),
)
def test_batches_hold_every_pair_once_within_the_budget(lengths, max_tokens, seed, epoch, shuffle):
    pairs = pairs_of(lengths)
    batches = TokenBatches(pairs, max_tokens, seed, shuffle)
    seen = []
    for source, target in batches(epoch):
        assert source.numel() <= max_tokens and target.numel() <= max_tokens and len(source) == len(target)
        for row, column in zip(source.tolist(), target.tolist(), strict=True):
            index = row[0] - 4
            assert [token for token in row if token] == pairs[index][0]
            assert [token for token in column if token] == pairs[index][1]
            seen.append(index)
    assert sorted(seen) == list(range(len(pairs)))
    assert len(batches) == len(batches.indices(epoch)) == len(batches.indices(epoch + 1))


@given(lengths=LENGTHS, max_tokens=st.integers(12, 60), n_buckets=st.integers(1, 4))
def test_batches_of_few_shapes_hold_the_same_sentences(lengths, max_tokens, n_buckets):
    """No lengths would take fewer positions; rows are as many as fit, of which some are padding."""
    pairs, sides = pairs_of(lengths), [max(pair) for pair in lengths]
    buckets = bucket_lengths(sides, n_buckets)
    choices = itertools.combinations(sorted(set(sides)), min(n_buckets, len(set(sides))))
    cost = lambda chosen: sum(min(n for n in chosen if n >= side) for side in sides)
    assert cost(buckets) == min(cost(chosen) for chosen in choices if max(chosen) == max(sides))
    batches = list(TokenBatches(pairs, max_tokens, lengths=iter(buckets))(0))
    for source, target in batches:
        assert source.shape == target.shape == (max_tokens // source.size(1), source.size(1))
    assert len(buckets) <= n_buckets and {source.size(1) for source, _ in batches} <= set(buckets)
    rows = [(s.tolist(), t.tolist()) for batch in batches for s, t in zip(*batch, strict=True)]
    held = [([x for x in s if x], [x for x in t if x]) for s, t in rows if any(s)]
    assert sorted(held) == sorted(pairs)


@pytest.mark.parametrize("lengths", [[], [5, 5], [6, 5], [3], [9], [0, 5], [4, "5"]])
def test_batches_refuse_lengths_that_fit_nothing(lengths):
    with pytest.raises((ValueError, TypeError), match="^lengths"):
        TokenBatches(pairs_of([(2, 2), (4, 3)]), max_tokens=8, lengths=lengths)


def test_order_depends_on_seed_and_epoch_alone(vocabulary):
    encoded = encode_pairs(load_corpus("phrases", "dev"), vocabulary)
    batches, twin, other = (TokenBatches(encoded, 200, seed) for seed in (1, 1, 2))
    torch.manual_seed(99)
    assert batches.indices(3) == twin.indices(3)
    assert len({str(b.indices(epoch)) for b in (batches, other) for epoch in range(3)}) == 6
    assert sorted(map(len, batches.indices(0))) == sorted(map(len, batches.indices(1)))
    before = torch.random.get_rng_state()
    list(batches(0))
    assert torch.equal(before, torch.random.get_rng_state())  # the dropout of a training run is not disturbed


@pytest.mark.parametrize(
    ("pairs", "error", "message"),
    [
        ([], ValueError, "pairs must hold at least one pair"),
        (pairs_of([(2, 2), (9, 3)]), ValueError, "pairs[1] has 9 tokens, more than max_tokens=8"),
        ([("a", "b")], TypeError, "pairs[0] is text: pairs must be ids, as encode_pairs"),
        ([([4], [])], ValueError, "pairs[0] must be ids, those of the target after the start token 2, not "),
        (
            [([4, 3], [2, 4, 3]), ([4, 3], [4, 3])],
            ValueError,
            "pairs[1] must be ids, those of the target after",
        ),
    ],
)
def test_batches_refuse(pairs, error, message):
    with pytest.raises(error, match=re.escape(message)):
        TokenBatches(pairs, max_tokens=8)


# ---------- BPE-dropout

PAIRS = load_corpus("phrases", "dev")
ODD = [
    Pair("", ""),
    Pair("o gato 猫猫 preto .", "the 猫"),
    Pair("a▁b ▁ ▁▁c d▁", "▁"),
    Pair("irma\u0303  e\u0301\n", "<s> </s> <pad>"),
    Pair("gato" * 40, "x" * 300),
]


def exact_chances(pieces: tuple[str, ...], merges: list[tuple[str, str]], p: float) -> dict:
    """The probability of every cut, as the paper's algorithm is printed: by all subsets that may remain."""
    possible = [
        (merges.index(pair), place) for place, pair in enumerate(zip(pieces, pieces[1:])) if pair in merges
    ]
    total: Counter = Counter()
    for kept in itertools.product((True, False), repeat=len(possible)):
        chance = (1 - p) ** sum(kept) * p ** (len(kept) - sum(kept))
        remaining = list(itertools.compress(possible, kept))
        if not remaining:
            total[pieces] += chance
            continue
        _, i = min(remaining)
        merged = (*pieces[:i], pieces[i] + pieces[i + 1], *pieces[i + 2 :])
        for cut, share in exact_chances(merged, merges, p).items():
            total[cut] += chance * share
    return dict(total)


@pytest.mark.slow
@pytest.mark.parametrize(
    "word, p", [("gato", 0.5), ("do", 0.1), ("menina", 0.1), ("posso", 0.5), ("ana", 0.5), ("z", 0.5)]
)
def test_frequencies_are_those_of_the_algorithm(vocabulary, word, p):
    """5 standard deviations for every cut; one word occurs twice, so that its two draws must differ too."""
    exact = exact_chances(tuple("▁" + word), vocabulary.merges, p)
    assert sum(exact.values()) == pytest.approx(1)
    n = 2000
    drawn = BPEDropout([Pair(f"{word} {word}", "")] * n, vocabulary, p, seed=7)(2)
    halves = [[], []]
    for source, _ in drawn:
        tokens = vocabulary.tokens(source[:-1])
        second = tokens.index(next(token for token in tokens[1:] if token.startswith("▁")), 1)
        halves[0].append(tuple(tokens[:second]))
        halves[1].append(tuple(tokens[second:]))
    found = Counter(halves[0] + halves[1])
    assert set(found) <= set(exact)
    for cut, chance in exact.items():
        assert abs(found[cut] / (2 * n) - chance) < 5 * (chance * (1 - chance) / (2 * n)) ** 0.5 + 1e-9
    likeliest = max(exact.values())
    both = sum(a == b for a, b in zip(*halves)) / n  # of two independent draws
    expected = sum(chance**2 for chance in exact.values())
    assert abs(both - expected) < 5 * (expected * (1 - expected) / n) ** 0.5 + 1e-9, likeliest


@pytest.mark.slow
@given(anything=st.text(max_size=30))
def test_words_are_cut_where_the_library_cuts_them(vocabulary, anything):
    pairs = [(anything, normalize(anything))]
    assert BPEDropout(pairs, vocabulary, 1e-12)(0) == encode_pairs(pairs, vocabulary)


@pytest.mark.slow
@pytest.mark.parametrize("p", [0.1, 0.5, 0.95])
def test_any_cut_spells_the_same_text(vocabulary, p):
    pairs = PAIRS + ODD
    for epoch in range(2):
        drawn = BPEDropout(pairs, vocabulary, p)(epoch)
        for (source, target), pair in zip(drawn, pairs, strict=True):
            assert source[-1] == target[-1] == EOS_ID and target[0] == BOS_ID
            for ids, side in ((source[:-1], pair.source), (target[1:-1], pair.target)):
                usual = vocabulary.encode(side)
                assert "".join(vocabulary.tokens(ids)) == "".join(vocabulary.tokens(usual))
                assert not {PAD_ID, BOS_ID, EOS_ID} & set(ids)


@pytest.mark.slow
def test_cuts_depend_on_seed_and_epoch_alone(vocabulary):
    sampler, twin = (BPEDropout(PAIRS, vocabulary, 0.2, seed=3) for _ in range(2))
    later = sampler(4)
    before = torch.random.get_rng_state()
    torch.manual_seed(99)
    state = torch.random.get_rng_state()
    assert twin(4) == later == sampler(4)
    assert torch.equal(torch.random.get_rng_state(), state)  # the dropout of a training run is not disturbed
    torch.random.set_rng_state(before)
    torch.set_default_dtype(torch.float64)
    try:
        assert sampler(4) == later
    finally:
        torch.set_default_dtype(torch.float32)
    others = [later, sampler(5), BPEDropout(PAIRS, vocabulary, 0.2, seed=4)(4)]
    assert len({str(drawn) for drawn in others}) == 3


def test_a_pair_that_chance_makes_too_long_is_cut_as_usual(vocabulary):
    usual = encode_pairs(PAIRS, vocabulary, max_tokens=14)
    drawn = BPEDropout(PAIRS, vocabulary, 0.3, max_tokens=14)(0)
    free = BPEDropout(PAIRS, vocabulary, 0.3)(0)
    assert 0 < len(drawn) == len(usual) < len(free) == len(PAIRS)
    assert max(len(side) for pair in drawn for side in pair) == 14
    kept = sum(new == old for new, old in zip(drawn, usual))
    assert 0 < kept < len(usual)
    assert max(len(side) for pair in free for side in pair) > 14


@pytest.mark.slow
def test_a_run_with_drawn_cuts_and_two_passes_resumes_to_the_same_bits(vocabulary, tmp_path):
    """Stopped in the middle of its second epoch, with another number of batches than the first."""
    cut = BPEDropout(PAIRS[:60], vocabulary, 0.3, max_tokens=80)

    def sampled(epoch):
        return TokenBatches(cut(epoch), 80)(epoch)

    first, second = (sum(1 for _ in sampled(epoch)) for epoch in (0, 1))
    assert first != second
    ends = []
    for stops in ([first + second], [first + 2, first + second]):
        for steps in stops:
            torch.manual_seed(0)
            sizes = dict(d_model=8, n_heads=2, n_layers=1, d_ff=16, dropout=0.3)
            trainer = Trainer(
                Transformer(TransformerConfig(len(vocabulary), len(vocabulary), **sizes)),
                loss=partial(r_drop_loss, alpha=5),
                batches=sampled,
                schedule=lambda step: 1e-3,
                config=TrainingConfig(steps, evaluate_every=1000, log_every=1000),
                directory=tmp_path / str(len(stops)),
            ).fit()
        assert trainer.step == first + second
        ends.append(list(trainer.model.parameters()))
    assert all(torch.equal(one, two) for one, two in zip(*ends, strict=True))
