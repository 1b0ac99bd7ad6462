"""The phrases grammar: forms against tables written by hand, one translation each, an honest split."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import re
from collections import Counter

import pytest

from experiments.small_portuguese import (
    _SENTENCES,
    _Dice,
    accepts,
    attach_clitic,
    conjugate,
    contract,
    phrase_stream,
    split_of,
    write_phrases,
)
from transformer import load_corpus
from transformer.training import record_path

PERSONS = range(5)
CLITIC = re.compile(r"-(?:[ln]?[oa]s?|me|te|nos)$")


@pytest.fixture(scope="module")
def stream() -> list[tuple[str, str, str]]:
    return list(itertools.islice(phrase_stream(seed=3), 130_000))


@pytest.fixture(scope="module")
def corpus() -> dict[str, list[tuple[str, str]]]:
    return {split: load_corpus("phrases", split) for split in ("train", "dev", "test")}


# -------------------------------------------------------------------------------------------------
# Forms
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("infinitive", "tense", "forms"),
    [
        ("falar", "present", "falo falas fala falamos falam"),
        ("falar", "perfect", "falei falaste falou falámos falaram"),
        ("falar", "imperfect", "falava falavas falava falávamos falavam"),
        ("beber", "present", "bebo bebes bebe bebemos bebem"),
        ("beber", "perfect", "bebi bebeste bebeu bebemos beberam"),
        ("abrir", "present", "abro abres abre abrimos abrem"),
        ("abrir", "perfect", "abri abriste abriu abrimos abriram"),
        ("abrir", "imperfect", "abria abrias abria abríamos abriam"),
        ("viver", "future", "viverei viverás viverá viveremos viverão"),
        ("fazer", "future", "farei farás fará faremos farão"),
        ("ser", "present", "sou és é somos são"),
        ("ter", "imperfect", "tinha tinhas tinha tínhamos tinham"),
        ("pôr", "perfect", "pus puseste pôs pusemos puseram"),
        ("pôr", "future", "porei porás porá poremos porão"),
        ("ver", "imperfect", "via vias via víamos viam"),
        ("ir", "imperfect", "ia ias ia íamos iam"),
        ("ler", "perfect", "li leste leu lemos leram"),
        ("brincar", "perfect", "brinquei brincaste brincou brincámos brincaram"),
        ("chegar", "perfect", "cheguei chegaste chegou chegámos chegaram"),
        ("começar", "perfect", "comecei começaste começou começámos começaram"),
        ("conhecer", "present", "conheço conheces conhece conhecemos conhecem"),
        ("perder", "perfect", "perdi perdeste perdeu perdemos perderam"),
    ],
)
def test_conjugation(infinitive, tense, forms):
    assert [conjugate(infinitive, tense, person) for person in PERSONS] == forms.split()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("comer", "present", 5), "person must be 0, 1, 2, 3 or 4, got 5"),
        (("comer", "present", "eu"), "person must be 0, 1, 2, 3 or 4, got 'eu'"),
        (("comer", "gerund", 0), "no endings for the 'gerund' of 'comer'"),
        (("eat", "present", 0), "no endings for the 'present' of 'eat'"),
    ],
)
def test_conjugation_refuses(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        conjugate(*arguments)


@pytest.mark.parametrize(
    ("preposition", "phrase", "melted"),
    [
        ("de", "o gato", "do gato"), ("de", "as vacas", "das vacas"), ("de", "ela", "dela"),
        ("de", "isto", "disto"),
        ("em", "a mesa", "na mesa"), ("em", "um jardim", "num jardim"), ("em", "esta casa", "nesta casa"),
        ("a", "o mercado", "ao mercado"), ("a", "a praia", "à praia"),
        ("a", "aquelas meninas", "àquelas meninas"),
        ("por", "o autocarro", "pelo autocarro"), ("com", "mim", "comigo"), ("com", "nós", "connosco"),
        ("com", "o pedro", "com o pedro"), ("em", "lisboa", "em lisboa"), ("de", "um amigo", "de um amigo"),
        ("", "o gato", "o gato"),
    ],
)  # fmt: skip
def test_contraction(preposition, phrase, melted):
    assert contract(preposition, phrase) == melted


@pytest.mark.parametrize(
    ("form", "clitic", "whole"),
    [
        ("vejo", "o", "vejo-o"), ("compra", "as", "compra-as"), ("comprar", "o", "comprá-lo"),
        ("comer", "a", "comê-la"), ("abrir", "os", "abri-los"), ("pôr", "o", "pô-lo"),
        ("compras", "o", "compra-lo"),
        ("vês", "o", "vê-lo"), ("vemos", "a", "vemo-la"), ("faz", "o", "fá-lo"), ("fez", "a", "fê-la"),
        ("fiz", "o", "fi-lo"), ("traz", "o", "trá-lo"), ("comem", "o", "comem-no"), ("dão", "as", "dão-nas"),
        ("põe", "o", "põe-no"), ("dá", "me", "dá-me"), ("dar", "te", "dar-te"), ("dão", "nos", "dão-nos"),
        ("tens", "o", "tem-lo"), ("tem", "o", "tem-no"), ("têm", "as", "têm-nas"), ("vens", "a", "vem-la"),
        ("quer", "o", "quere-o"), ("queres", "o", "quere-lo"), ("quis", "a", "qui-la"), ("pus", "o", "pu-lo"),
        ("pões", "os", "põe-los"), ("damos", "nos", "damo-nos"), ("tens", "nos", "tens-nos"),
    ],
)  # fmt: skip
def test_clitic(form, clitic, whole):
    assert attach_clitic(form, clitic) == whole


# -------------------------------------------------------------------------------------------------
# Sentences
# -------------------------------------------------------------------------------------------------


def test_each_portuguese_sentence_has_one_english_one(stream):
    translations: dict[str, str] = {}
    for _, portuguese, english in stream:
        assert translations.setdefault(portuguese, english) == english, portuguese


def test_there_are_more_than_a_hundred_thousand(stream):
    assert len({portuguese for _, portuguese, _ in stream}) >= 100_000


def test_sentences_are_written_as_the_corpus_writes(stream):
    for _, *sides in stream[:30_000]:
        for text in sides:
            assert text == " ".join(text.lower().split())
            assert text.endswith((" .", " ?")) and not re.search(
                r"\w[.,?]|n't\w|(?<! )'", text.replace(" n't", "")
            )
            assert "_" not in text and "None" not in text
        assert sides[0][-1] == sides[1][-1]  # a question stays one


def test_clitics_and_prepositions_are_never_left_apart(stream):
    apart = re.compile(
        r"\b(?:de|em) (?:o|a|os|as|este|esta|isto|ele|ela)\b|\bpor (?:o|a|os|as)\b"
        r"|\bem um\b|\ba (?:o|os) |\bcom mim\b"
    )
    for _, portuguese, _ in stream:
        assert not apart.search(portuguese.replace("começaram a ", "").replace("tem de ", "")), portuguese


def test_attracted_clitics_stand_before_the_verb(stream, corpus):
    """After negation, question words and indefinite pronouns; only an infinitive keeps its pronoun."""
    attracted = re.compile(
        r"\b(?:não|nunca|ninguém|alguém|quem|toda a gente|(?:porque|quando|o que) é que (?:\w+ )*?)"
        r" ?\w*[^\Wr]-n?(?:[oa]s?|me|te|nos)\b"
    )
    sentences = [portuguese for _, portuguese, _ in stream]
    for portuguese in sentences + [source for pairs in corpus.values() for source, _ in pairs]:
        assert not attracted.search(portuguese), portuguese
    assert any(re.search(r"alguém (?:o|a|os|as|me|te|nos) \w", portuguese) for portuguese in sentences)
    assert not any(re.search(r"n-l[oa]|quê-l", portuguese) for portuguese in sentences)


@pytest.mark.parametrize(
    ("article", "feminine", "plural"),
    [("o", False, False), ("a", True, False), ("os", False, True), ("as", True, True)],
)
def test_adjectives_agree_with_articles(stream, article, feminine, plural):
    """Between an article and the end of its phrase, words that have four forms show the right one."""
    endings = {(False, False): "o", (True, False): "a", (False, True): "os", (True, True): "as"}
    stems = "pret branc vermelh pequen bonit simpátic famos car barat velh nov".split()
    phrase = re.compile(rf"(?:^|[ ,]){article} \w+ ({'|'.join(stems)})(o|a|os|as)\b")
    found = Counter(match[2] for _, text, _ in stream for match in phrase.finditer(text))
    assert set(found) == {endings[feminine, plural]} and found.total() > 50


def test_english_verbs_agree(stream):
    wrong = re.compile(
        r"^(?:he|she|it) (?:are|were|have|do|eat|go|am)\b|^(?:we|they|you) (?:is|was|has|does|eats|goes)\b"
        r"|^i (?:is|are|has|does|eats)\b|\ba [aeio]\w|\ban [^aeiou ]"
        r"|\b(?:two|three|many) \w+[^sn ] (?:is|are)\b"
    )
    for _, _, english in stream:
        assert not wrong.search(english), english


def test_silent_subjects_are_told_by_the_verb(stream):
    """Where English says "i" and Portuguese no "eu", the verb form belongs to the first person alone."""
    ambiguous = {conjugate(verb, "imperfect", 0) for verb in ("comer", "falar", "abrir", "ter", "ser")} | {
        "trouxe"
    }
    for _, portuguese, english in stream:
        if english.startswith(("i ", "he ", "she ")) and portuguese.split()[0] in ambiguous:
            pytest.fail(portuguese)


def test_a_past_that_looks_like_a_present_has_a_date(stream):
    times = "ontem", "hoje de manhã", "na semana passada"
    for _, portuguese, english in stream:
        if english.startswith("we ate ") or english.startswith("we did n't eat "):
            assert any(time in portuguese for time in times), portuguese


@pytest.mark.parametrize(
    ("portuguese", "english"),
    [
        ("gosto disto .", "i like this ."),
        ("o que é isto ?", "what 's this ?"),
        ("temos fome .", "we 're hungry ."),
        ("onde é que vives ?", "where do you live ?"),
        ("ela tem sede .", "she 's thirsty ."),
    ],
)
def test_everyday_sentences_are_among_them(stream, corpus, portuguese, english):
    known = {source: target for _, source, target in stream} | {
        s: t for pairs in corpus.values() for s, t in pairs
    }
    assert known[portuguese] == english


# -------------------------------------------------------------------------------------------------
# Splits
# -------------------------------------------------------------------------------------------------


def test_sizes_and_order(corpus):
    assert {split: len(pairs) for split, pairs in corpus.items()} == {
        "train": 30_000,
        "dev": 500,
        "test": 1_000,
    }
    assert all(len({source for source, _ in pairs}) == len(pairs) for pairs in corpus.values())


@pytest.mark.slow
def test_the_grammar_writes_the_file_that_the_package_carries(tmp_path):
    """The text byte for byte; how it is compressed may differ between versions of the compressor."""
    path, carried = tmp_path / "phrases.tsv.gz", record_path("phrases.tsv.gz")
    write_phrases(path)
    first = path.read_bytes()
    assert gzip.decompress(first) == gzip.decompress(carried.read_bytes())
    assert first[:8] == carried.read_bytes()[:8] == b"\x1f\x8b\x08\0\0\0\0\0"  # no name, no date
    assert carried.stat().st_size < 2_000_000
    write_phrases(path)
    assert path.read_bytes() == first


def test_combinations_of_the_splits_are_disjoint(stream, corpus):
    split_of_sentence: dict[str, str] = {}
    for about, portuguese, _ in stream:
        assert split_of_sentence.setdefault(portuguese, split_of(about)) == split_of(about), portuguese
    for split, pairs in corpus.items():
        assert all(split_of_sentence.get(source, split) == split for source, _ in pairs)


def test_every_word_of_the_test_is_known_from_training(corpus):
    """English words as they stand; Portuguese ones but for endings and pronouns hung onto verbs."""

    def stems(split: str) -> set[str]:
        return {CLITIC.sub("", word)[:3] for source, _ in corpus[split] for word in source.split()}

    english = {
        split: {word for _, target in pairs for word in target.split()} for split, pairs in corpus.items()
    }
    assert english["test"] | english["dev"] <= english["train"]
    assert stems("test") | stems("dev") <= stems("train")


def test_the_corpus_is_the_same_everywhere(corpus):
    """A change of these sums is a change of the corpus: trained models and recorded scores go with it."""
    text = {split: "\n".join("\t".join(pair) for pair in pairs) for split, pairs in corpus.items()}
    sums = {split: hashlib.sha256(lines.encode()).hexdigest()[:16] for split, lines in text.items()}
    assert sums == {"train": "c9bfebd7f4f7afb8", "dev": "e03dee40b23cecc5", "test": "690caadc5c9aa85d"}


# -------------------------------------------------------------------------------------------------
# The grammar read backwards
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", dict.fromkeys(_SENTENCES), ids=lambda kind: kind.__name__)
def test_what_is_drawn_is_accepted(kind):
    for seed in (1, 2):
        assert accepts(kind(_Dice(seed))[1])


@pytest.mark.parametrize(
    "sentence",
    [
        "havia algumas galinhas no mercado .",
        "estou a brincar com o primo da minha mãe .",
        "elas perderam-na .",
        "tenho vinte anos .",
        "comemos uma maçã .",
        "o livro é novo , mas a ana não o lê .",
    ],
)
def test_choices_that_are_not_said_do_not_hide_a_sentence(sentence):
    assert accepts(sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "",
        ".",
        "xyz .",
        "a menina gosta do gato preto",  # without its mark
        "a menina  gosta do gato preto .",
        "a menina gosto do gato preto .",
        "a menina gosta do gato preta .",
        "a menina gosta de o gato preto .",
        "o gato lê a menina .",
        "eu não razão .",
        "aquele gato está sujo , e a joana bebeu-o .",
        "the girl likes the black cat .",
    ],
)
def test_what_the_grammar_cannot_draw_is_refused(sentence):
    assert not accepts(sentence)


def test_a_sentence_is_a_string():
    with pytest.raises(TypeError, match="sentence must be"):
        accepts(3)
