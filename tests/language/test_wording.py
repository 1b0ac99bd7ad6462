"""Texts are prepared in one way, in training and through every door by which they come in later."""

import random
import time
import unicodedata
from typing import Any

import pytest

from transformer import Preparation, Translator, Vocabulary, encode_pairs
from transformer.commands.data import ParallelData
from transformer.commands.recipes import RECIPES, changed, train_recipe
from transformer.language.batches import BPEDropout
from transformer.language.corpora import AS_IT_IS, CORPORA, PREPARATIONS, Pair, detokenize, tokenize
from transformer.language.translator import evaluate_translator
from transformer.language.vocabulary import BOS_ID, EOS_ID, normalize

# Each is a sentence for some preparation and none for another; two have accents in pieces or two spaces.
OWN = [
    Pair("3rd of May 1999", "1999-05-03"),
    Pair("Der Hund  SCHLÄFT.", "The dog is ASLEEP."),
    Pair('Ela disse: "Não!"', 'She said: "No!"'),
    Pair(unicodedata.normalize("NFD", "Não os conheço, João."), "I don't know them, João."),
    Pair("«Já!» … disse o Sr. Silva", "“Now!” … said Mr. Silva"),
    Pair("`` sim '' , disse", "`` yes '' , she 'd said"),
]


@pytest.mark.parametrize(
    ("raw", "written"),
    [
        ("Gosto disto.", "gosto disto ."),
        ('"Sim", disse ela.', "`` sim '' , disse ela ."),
        ("«Não!» … talvez", "`` não ! '' ... talvez"),
        ("Custa 1.250,50 € (hoje)", "custa 1.250,50 € ( hoje )"),
        ("guarda-chuva; d'água", "guarda-chuva ; d'água"),
        ("Don't! We’re late, she'd said.", "do n't ! we 're late , she 'd said ."),
        ("o McDonald’s d’agora", "o mcdonald 's d'agora"),
        (unicodedata.normalize("NFD", "Não os conheço, João."), "não os conheço , joão ."),
        ("  ", ""),
        ("", ""),
    ],
)
def test_tokenize(raw, written):
    assert tokenize(raw) == written
    assert tokenize(written) == written


@pytest.mark.parametrize(
    ("written", "typed"),
    [
        ("i do n't know .", "i don't know."),
        ("we 'll see , she 's here : yes !", "we'll see, she's here: yes!"),
        ("`` yes '' , he said", '"yes", he said'),
        ("`` `` '' groups '' '' . ''", '"groups"."'),
        ("( twice ) [ once ] 50 %", "(twice) [once] 50%"),
        ("so ...", "so..."),
    ],
)
def test_detokenize(written, typed):
    assert detokenize(written) == typed


def scripts():
    """Letters and marks of every block of 256 characters that has letters."""
    blocks = {}
    for character in map(chr, range(0x00C0, 0x20000)):
        kind = unicodedata.category(character)[0]
        if kind in "LM" and unicodedata.normalize("NFC", character.lower()) == character:
            blocks.setdefault(ord(character) >> 8, {"L": [], "M": []})[kind].append(character)
    return {f"U+{block << 8:04X}": found for block, found in blocks.items() if found["L"]}


SCRIPTS = scripts()


@pytest.mark.parametrize("block", SCRIPTS)
def test_a_letter_keeps_its_marks_in_every_script_and_all_comes_back(block):
    dice, letters, marks = random.Random(block), SCRIPTS[block]["L"], SCRIPTS[block]["M"]
    marks = marks or list("\u0301\u0323\u0331")
    for _ in range(10):
        words = [
            "".join(
                dice.choice(letters) + "".join(dice.choices(marks, k=dice.randrange(3)))
                for _ in range(dice.randrange(1, 6))
            )
            for _ in range(dice.randrange(1, 5))
        ]
        typed = unicodedata.normalize("NFC", f"({words[0]}, {' '.join(words)})!").lower()
        for name in PREPARATIONS:
            preparation = Preparation(name)
            prepared = preparation.prepare(typed)
            assert preparation.restore(prepared) == typed
            assert preparation.prepare(prepared) == prepared
        assert (
            tokenize(" ".join(words)).split() == unicodedata.normalize("NFC", " ".join(words).lower()).split()
        )


@pytest.mark.parametrize(
    "typed",
    [
        "हिन्दी में।", "தமிழ் நாடு", "ภาษาไทย", "ọjọ́ dára", "שָׁלוֹם עוֹלָם", 'צה"ל', "می\u200cخواهم", "क्\u200dष",
        "col·lecció", "བོད་ཡིག", "ինչո՞ւ", "他说「你好」。", "i\u0307stanbul", "a.b@c-d.com.", "(https://a.b/c?d=1#e)!",
        "www.a.org, sim", "👩\u200d❤\ufe0f\u200d👨 sim 👍🏽 🇵🇹", "#\ufe0f\u20e3 ❤\ufe0f\u200d🔥",
        "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    ],
)  # fmt: skip
def test_what_people_type_comes_back(typed):
    assert detokenize(tokenize(typed)) == typed
    assert tokenize(tokenize(typed)) == tokenize(typed)


DRAWN = {
    *range(0x0600, 0x0606),
    0x06DD,
    0x070F,
    0x0890,
    0x0891,
    0x08E2,
    0x110BD,
    0x110CD,
    *range(0x13430, 0x13440),
}


def test_what_nobody_sees_is_dropped_and_what_a_script_needs_is_kept():
    unseen = [chr(n) for n in range(0x110000) if unicodedata.category(chr(n)) == "Cf" and n not in DRAWN]
    assert len(unseen) > 140
    for name in PREPARATIONS:
        assert Preparation(name).prepare("o ga" + "".join(unseen) + "to" + unseen[0]) == "o gato"
        kept = "می\u200cخواهم ക്\u200d 👩\u200d🔬"
        assert Preparation(name).prepare(kept) == kept
        drawn = "".join(map(chr, sorted(DRAWN)))
        assert Preparation(name).prepare(drawn) == drawn


def test_preparing_takes_a_time_that_grows_with_the_text():
    for part in ("-", "a.", "a@", "www.", "https://!", "n't", "1,", "!\u0301", "a\u200d", "\u0e01\u0e48"):
        start = time.process_time()
        tokenize(part * (60_000 // len(part)))
        assert time.process_time() - start < 20, part


def test_each_preparation_does_what_its_name_says():
    typed, found = "Ela disse: NÃO!", {}
    for name in PREPARATIONS:
        choice = Preparation(name)
        prepared = choice.prepare(typed)
        assert choice.prepare(prepared) == prepared
        found[name] = prepared, choice.restore(prepared)
    assert found == {
        "as it is": (typed, typed),
        "lower case": ("ela disse: não!", "ela disse: não!"),
        "tokenized": ("ela disse : não !", "ela disse: não!"),
    }
    assert Preparation() == AS_IT_IS and Preparation("tokenized", ["pt", "en"]) == CORPORA
    assert str(CORPORA) == "tokenized, pt to en" and str(AS_IT_IS) == "as it is"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("upper case",), ValueError, "name must be one of .*not 'upper case'"),
        (("as it is", ("pt",)), ValueError, "languages must be two codes"),
        (("as it is", "pt"), TypeError, "languages must be"),
        (("as it is", ("pt", 3)), ValueError, "languages must be two codes"),
        (("as it is", ("pt", "en]\nx: y")), ValueError, "languages must be two codes such as"),
        (("as it is", ("Portuguese", "en")), ValueError, "not \\('Portuguese', 'en'\\)"),
    ],
)
def test_what_is_no_preparation_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        Preparation(*arguments)


TINY = changed(
    RECIPES["phrases"], corpus="own", vocab_size=130, d_model=16, n_heads=2, n_layers=1, d_ff=24, steps=1,
    evaluate_every=1, warmup_steps=1, precision="float32", languages="",
)  # fmt: skip


@pytest.fixture(scope="module", params=PREPARATIONS)
def run(request, tmp_path_factory):
    """A translator, the folder that it is in, and the sources that training showed, in the order of `OWN`."""
    folder = tmp_path_factory.mktemp("run")
    recipe = changed(TINY, preparation=request.param)
    translator, trainer = train_recipe(recipe, folder, data=ParallelData(recipe.data, OWN, OWN))
    batches: Any = trainer.stream.batches
    return translator, folder / "translator", [source for source, _ in batches.pairs]


@pytest.fixture
def read(monkeypatch):
    """The sources that any search is given from now on."""
    seen = []
    own = Translator.read

    def watched(self, sentences):
        sources = own(self, sentences)
        seen.extend(source.ids for source in sources)
        return sources

    monkeypatch.setattr(Translator, "read", watched)
    return seen


def test_training_sees_prepared_texts(run):
    translator, _, shown = run
    prepare = translator.preparation.prepare
    vocabulary = translator.vocabulary
    assert [vocabulary.decode(ids) for ids in shown] == [normalize(prepare(pair.source)) for pair in OWN]
    encoded = encode_pairs(OWN, vocabulary)
    assert [source for source, _ in encoded] == shown
    for source, target in encoded:
        assert source[-1] == EOS_ID and (target[0], target[-1]) == (BOS_ID, EOS_ID)
    learned = [normalize(prepare(text)) for pair in OWN for text in pair]
    assert Vocabulary.train(learned, TINY.data.vocab_size).pieces == vocabulary.pieces
    assert BPEDropout(OWN, vocabulary, 0.0)(0) == encoded
    drawn = BPEDropout(OWN, vocabulary, 0.5)(0)
    assert [[vocabulary.decode(ids) for ids in pair] for pair in drawn] == [
        [vocabulary.decode(ids) for ids in pair] for pair in encoded
    ]
    assert drawn != encoded


@pytest.mark.slow
@pytest.mark.parametrize("door", ["translate", "translate_tokenized", "evaluate_translator", "align"])
def test_a_translator_reads_what_training_showed(run, read, door):
    _, folder, shown = run
    translator, sources = Translator.load(folder), [pair.source for pair in OWN]
    if door == "evaluate_translator":
        evaluate_translator(translator, OWN)
    elif door == "align":
        sources, shown = sources[::4], shown[::4]
        for source in sources:
            translator.align(source)
    else:
        getattr(translator, door)(sources)
    assert read == shown


def test_translations_are_restored_and_scored_as_they_are_prepared(run):
    """A translator that is always right: what it writes is what a person types, and its score is full."""
    translator, folder, _ = run
    answers = [ids[1:-1] for _, ids in encode_pairs(OWN, translator.vocabulary)]
    loaded = Translator.load(folder)
    loaded.engine = lambda *given: answers
    prepared = [translator.vocabulary.prepare(pair.target) for pair in OWN]
    sources = [pair.source for pair in OWN]
    assert loaded.translate_tokenized(sources) == prepared
    assert loaded.translate(sources) == list(map(translator.preparation.restore, prepared))
    scores = evaluate_translator(loaded, OWN)
    assert ("BLEU-tok" in scores) == (translator.preparation.name == "tokenized")
    assert {score["score"] for score in scores.values()} == {100.0}
    case = "mixed" if translator.preparation.name == "as it is" else "lc"
    assert all(f"case:{case}" in score["signature"] for score in scores.values())
