"""Wording, scores, translators on disk, what they look at, recipes and records."""

import json
import math
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from helpers import PAIRS, contents, summed

import transformer.language.translator
from transformer import (
    Preparation,
    Transformer,
    TransformerConfig,
    Translator,
    Vocabulary,
    corpus_scores,
    greedy_search,
    load_corpus,
)
from transformer.files import CheckpointError, write_record
from transformer.language.corpora import AS_IT_IS, CORPORA, checked
from transformer.language.translator import (
    Alignment,
    Search,
    by_length,
    by_words,
    evaluate_translator,
    tune_search,
)
from transformer.speed.fast import FastTransformer


@pytest.fixture(scope="module")
def translator():
    torch.manual_seed(0)
    vocabulary = Vocabulary.train((text for pair in PAIRS for text in pair), 90, preparation=CORPORA)
    size = len(vocabulary)
    config = TransformerConfig(size, size, d_model=16, n_heads=2, n_layers=2, d_ff=24, max_length=30)
    return Translator(Transformer(config).eval(), vocabulary)


REFERENCES = ["the cat sees the old house .", "i like this very much .", "it is late ."] * 9
HYPOTHESES = ["the cat sees the house .", "i like this very much .", "is it late ?"] * 9


@pytest.mark.parametrize(
    ("tokenization", "reference", "hypothesis"),
    [
        ("zh", "今天天气很好，我们去公园散步吧。", "今天天气很好，我们去公园走走吧。"),
        ("zh", "我用 Python 写了一个程序。", "我用 Python 写了个程序。"),
        ("char", "今日は天気がいいので公園へ行きましょう。", "今日は天気がよいので公園へ行きましょう。"),
        ("char", "วันนี้อากาศดีมาก เราไปสวนสาธารณะกัน", "วันนี้อากาศดี เราไปสวนสาธารณะกัน"),
        ("char", "ມື້ນີ້ອາກາດດີຫຼາຍ ພວກເຮົາໄປສວນ", "ມື້ນີ້ອາກາດດີ ພວກເຮົາໄປສວນ"),
        ("char", "ថ្ងៃនេះអាកាសធាតុល្អណាស់ យើងទៅសួន", "ថ្ងៃនេះអាកាសធាតុល្អ យើងទៅសួន"),
        ("char", "ဒီနေ့ရာသီဥတုကောင်းတယ် ပန်းခြံသွားမယ်", "ဒီနေ့ရာသီဥတုကောင်း ပန်းခြံသွားမယ်"),
        ("13a", "오늘은 날씨가 매우 좋아서 공원에 갑니다 .", "오늘은 날씨가 아주 좋아서 공원에 갑니다 ."),
        ("13a", "आज मौसम बहुत अच्छा है और हम पार्क जाते हैं", "आज मौसम काफी अच्छा है और हम पार्क जाते हैं"),
        ("13a", "the cat 猫 sees the old house .", "the cat 猫 sees the house ."),
    ],
)
def test_bleu_cuts_where_the_script_of_the_references_does(tokenization, reference, hypothesis):
    from sacrebleu.metrics import BLEU

    for preparation in (AS_IT_IS, CORPORA):
        scores = corpus_scores([hypothesis], [reference], preparation=preparation)
        metric = BLEU(lowercase=preparation == CORPORA, tokenize=tokenization)
        found = metric.corpus_score([hypothesis], [[reference]])
        assert scores["BLEU-detok"]["line"] == found.format(signature=str(metric.get_signature()))
        assert f"tok:{tokenization}" in scores["BLEU-detok"]["signature"]
        assert ("BLEU-tok" in scores) == (preparation == CORPORA and tokenization == "13a")
        if tokenization != "13a":  # cut at spaces, all of them have 0
            assert scores["BLEU-detok"]["score"] > 50
            assert BLEU().corpus_score([hypothesis], [[reference]]).score == 0


def test_bootstrap_gives_the_interval_that_sacrebleu_gives():
    from sacrebleu.metrics import BLEU

    scores = corpus_scores(HYPOTHESES, REFERENCES, 200, CORPORA)
    for name, score in corpus_scores(HYPOTHESES, REFERENCES, preparation=CORPORA).items():
        assert scores[name]["score"] == score["score"]
        assert scores[name]["margin"] > 0
        assert abs(scores[name]["mean"] - score["score"]) < scores[name]["margin"]
    metric = BLEU(lowercase=True, tokenize="none", force=True)
    found = metric.corpus_score(HYPOTHESES, [REFERENCES], n_bootstrap=200)
    measured = scores["BLEU-tok"]
    assert f"(μ = {measured['mean']:.2f} ± {measured['margin']:.2f})" in found.format()
    assert "bs:200" in measured["signature"] and measured["signature"] in measured["line"]


def test_case_counts_where_the_preparation_keeps_it():
    for changes, score in (({}, 0), ({"preparation": CORPORA}, 100)):
        assert corpus_scores(["The Cat"], ["the cat"], **changes)["exact"]["score"] == score


def searches_of(grid):
    return [Search(entry["beam_size"], entry["length_penalty"]) for entry in grid]


@pytest.mark.slow
def test_the_search_is_tuned_by_bleu_and_ties_go_to_the_first(translator):
    searches = [Search(2, 1.0), Search(1, 0.0), Search(1, 0.6)]
    grid = tune_search(translator, PAIRS, searches)
    assert set(searches_of(grid)) == set(searches)
    for entry, search in zip(grid, searches_of(grid), strict=True):
        assert entry["scores"] == evaluate_translator(translator, PAIRS, search)
    scores = [entry["scores"]["BLEU-detok"]["score"] for entry in grid]
    assert scores == sorted(scores, reverse=True)
    same = tune_search(translator, PAIRS, searches[1:])  # greedy search has no length penalty
    assert searches_of(same) == searches[1:]


@pytest.mark.parametrize("max_tokens", [1, 7, 20, 1000])
def test_by_length_gives_every_sentence_once_within_the_budget(max_tokens):
    lengths = [3, 1, 9, 2, 2, 5, 9, 4]
    groups = list(by_length([[5] * length for length in lengths], max_tokens))
    assert sorted(row for rows in groups for row in rows) == [0, 2, 3, 4, 5, 6, 7]
    for rows in groups:
        assert len(rows) == 1 or len(rows) * max(lengths[row] for row in rows) <= max_tokens
    assert list(by_length([[5], []], max_tokens)) == []


@pytest.mark.slow
def test_batch_mates_and_order_change_nothing(translator):
    sources = [pair.source for pair in PAIRS] + ["", "gato", "日本"]
    together = translator.translate_tokenized(sources, max_length=12)
    assert together[4] == ""
    for search in (Search(1), Search(4)):
        together = translator.translate_tokenized(sources, search, max_length=12)
        alone = [translator.translate_tokenized([text], search, max_length=12)[0] for text in sources]
        assert together == alone
        assert translator.translate_tokenized(sources[::-1], search, max_length=12) == alone[::-1]


def test_a_batch_that_memory_cannot_hold_is_halved(translator, monkeypatch):
    def small_memory(model, src, *rest):
        sizes.append(len(src))
        if len(src) > most:
            raise torch.OutOfMemoryError
        return greedy_search(model, src, *rest)

    sizes, most, texts = [], 2, [pair.source for pair in PAIRS]
    together = translator.translate(texts, Search(1), max_length=12)
    monkeypatch.setattr("transformer.language.translator.greedy_search", small_memory)
    assert translator.translate(texts, Search(1), max_length=12) == together and max(sizes) > most
    most = 0
    with pytest.raises(torch.OutOfMemoryError):
        translator.translate(texts, Search(1), max_length=12)


@pytest.mark.parametrize("name", ["beam_size", "length_penalty", "max_length", "max_tokens"])
def test_a_search_refuses_a_value_by_its_name_when_it_is_made(name):
    low = -0.5 if name == "length_penalty" else 0
    with pytest.raises(ValueError, match=f"{name} must .*{low}"):
        Search(**{name: low})
    with pytest.raises(TypeError, match=name):
        Search(**{name: "4"})


@pytest.mark.parametrize(("search", "changes"), [(1, {}), (Search(), {"beem": 2})])
def test_a_search_takes_no_other_setting(translator, search, changes):
    with pytest.raises(TypeError, match=next(iter(changes), "search must be a Search, not int")):
        translator.translate(["o gato"], search, **changes)


def test_a_warning_names_the_line_of_the_call(translator):
    for search in (translator.translate, translator.translate_tokenized):
        with pytest.warns(UserWarning, match="is cut to its first") as caught:
            search(["gato " * 1000], beam_size=1)
        assert [warning.filename for warning in caught] == [__file__]


CAT = "A menina gosta do gato preto."
DOUBTS = {
    CAT: "",
    "": "",
    "  ": "",
    "\u200b": "",
    **dict.fromkeys(
        ("5", "!!!", "世界", "😀", "Привет", "١٢٣"), "has no character of the vocabulary, and is copied"
    ),
    "O gato 世界 5 世 come.": "has characters that the vocabulary lacks, 4 in all (世 界 5)",
    **dict.fromkeys((".", "...", "-", "? ?"), "has no letter or digit"),
    **dict.fromkeys(
        (
            "O cão dorme. A gata come.",
            "a menina lê o livro . o rapaz dorme .",
            "Onde está o gato? A gata come.",
        ),
        "is 2 sentences, and its translation 1",
    ),
    "O gato dorme. O gato dorme. O gato dorme.": "is 3 sentences, and its translation 1",
    "gato " * 600: "is cut to its first 511 tokens",
}


@pytest.mark.slow
@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_translation_that_cannot_be_trusted_says_why(beam_size):
    carried = Translator.load("phrases")
    found = carried.translate_checked(list(DOUBTS), beam_size=beam_size)
    for (sentence, said), (text, doubts) in zip(DOUBTS.items(), found, strict=True):
        assert any(doubt.startswith(said) for doubt in doubts) if said else doubts == (), (sentence, doubts)
        if "copied" in said:
            assert text == sentence and len(doubts) == 1
    assert found[0].text == "the girl likes the black cat."


@pytest.mark.slow
def test_a_translation_that_the_limit_cuts_says_so():
    carried = Translator.load("phrases")
    n_tokens = len(carried.vocabulary.encode("the girl likes the black cat ."))
    for longest in range(1, n_tokens + 2):
        for beam_size in (1, 4):
            ((_, doubts),) = carried.translate_checked([CAT], beam_size=beam_size, max_length=longest)
            assert ("has a translation that is cut at the length limit" in doubts) == (longest <= n_tokens)


@pytest.mark.slow
def test_one_warning_names_the_first_doubtful_sentence():
    carried = Translator.load("phrases")
    with pytest.warns(UserWarning) as caught:
        assert carried.translate([CAT, "5", CAT, "..."])[1] == "5"
    (warning,) = caught
    assert warning.filename == __file__
    assert str(warning.message) == (
        "sentence 2 has no character of the vocabulary, and is copied: '5' "
        "(1 more are doubtful: translate_checked tells of each)"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        carried.translate([pair.source for pair in load_corpus("phrases", "test")[:300]], beam_size=1)


@pytest.mark.parametrize(
    ("source", "translation", "doubtful"),
    [
        ("Dr. Silva chegou.", "Dr. Silva has arrived.", False),
        ("J. S. Bach nasceu em 1685.", "J. S. Bach was born in 1685.", False),
        ("Am 3. Mai kam er.", "He came on May 3.", False),
        ("Custa 1.250,50 €.", "It costs €1,250.50.", False),
        ("Bem... não sei.", "Well, I don't know.", False),
        ('"Sim." Ela riu.', '"Yes." She laughed.', False),
        ('"Sim." Ela riu.', "Yes she laughed.", True),
        ("Sim! Sim? Não.", "Yes! No.", True),
        ("他来了。她走了。", "He came.", True),
        ("他来了。她走了。", "He came. She left.", False),
        ("वह आया। वह गई।", "He came.", True),
        ("هل جاء؟ ذهبت.", "Did he come?", True),
        ("வந்தான். போனாள்.", "He came.", True),
    ],
)
def test_fewer_sentences_than_were_read_are_doubtful(source, translation, doubtful):
    doubts = checked(source, translation, (), "", True, True).doubts
    assert [doubt.startswith("is 2 sentences") or "is 3" in doubt for doubt in doubts] == [True] * doubtful


def test_model_and_vocabulary_must_agree(translator):
    other = Transformer(replace(translator.model.config, src_vocab_size=99, tgt_vocab_size=99))
    with pytest.raises(ValueError, match="the model has \\[99\\] tokens, the vocabulary"):
        Translator(other, translator.vocabulary)


@pytest.mark.slow
def test_saved_translator_says_the_same(translator, tmp_path):
    translator.save(tmp_path / "kept", dtype=torch.float32)
    again = Translator.load(tmp_path / "kept")
    assert not again.model.training
    assert asdict(again.model.config) == asdict(translator.model.config)
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [
        "SHA256SUMS",
        "config.json",
        "model.safetensors",
        "vocabulary.json",
    ]
    for name, weight in translator.model.state_dict().items():
        assert again.model.state_dict()[name].equal(weight)
    sources = [pair.source for pair in PAIRS]
    assert again.translate(sources) == translator.translate(sources)


def peak_memory() -> int:
    """The most kilobytes that this process ever had; 0 on systems that count otherwise."""
    if sys.platform != "linux":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", b"{"),
        ("model.safetensors", b"not weights"),
        ("model.safetensors", None),
        ("vocabulary.json", b"{}"),
    ],
)
@pytest.mark.parametrize("agreeing", [False, True])
def test_damaged_folder_is_refused_by_name(translator, tmp_path, file, content, agreeing):
    translator.save(tmp_path)
    path = tmp_path / file
    path.write_bytes(path.read_bytes()[:-100] if content is None else content)
    with pytest.raises(CheckpointError, match=file) as refusal:
        Translator.load(summed(tmp_path) if agreeing else tmp_path)
    assert agreeing or f"does not match {tmp_path / 'SHA256SUMS'}" in str(refusal.value)


STEPS = {"open", "os.rename", "os.remove", "os.mkdir"}
WATCHING: list[Callable] = []  # what Python calls before steps such as these; its hook cannot be taken away
sys.addaudithook(lambda *step: [watch(*step) for watch in WATCHING])


def left_by_a_kill(folder: Path, save: Callable[[Path], object]) -> list[Path]:
    """Save; return copies of the folder before its steps on files, as a process that is killed leaves it."""
    seen, left = [], []

    def watch(event, arguments):
        if event in STEPS and str(folder) in str(arguments[0]) and folder.exists():
            WATCHING.clear()  # a copy takes steps as well
            if (found := contents(folder)) not in seen:
                seen.append(found)
                left.append(shutil.copytree(folder, folder.with_name(f"{folder.name}-{len(left)}")))
            WATCHING.append(watch)

    WATCHING.append(watch)
    try:
        save(folder)
    finally:
        WATCHING.clear()
    return left


@pytest.mark.slow
def test_saving_that_is_killed_at_any_step_leaves_the_old_translator_or_the_new_one(tmp_path):
    made = []
    for seed, name in enumerate(("as it is", "lower case", "tokenized")):
        torch.manual_seed(seed)
        texts = ["o gato come", "a gata come"][seed % 2 :]
        vocabulary = Vocabulary.train(texts, 20 + seed, 1, Preparation(name))
        config = TransformerConfig(*2 * [len(vocabulary)], d_model=8, n_heads=2, d_ff=8, n_layers=1)
        made.append(Translator(Transformer(config).eval(), vocabulary))

    def found(folder: Path) -> int:
        loaded = Translator.load(folder)
        (number,) = [n for n, one in enumerate(made) if one.vocabulary.pieces == loaded.vocabulary.pieces]
        theirs = made[number]
        assert loaded.preparation == theirs.preparation and loaded.model.config == theirs.model.config
        for name, x in theirs.model.state_dict().items():
            assert torch.equal(loaded.model.state_dict()[name], x.half().float())
        return number

    made[0].save(tmp_path / "old")
    left = left_by_a_kill(tmp_path / "old", made[1].save)
    outcomes = list(map(found, left))
    assert len(left) > 5 and outcomes == sorted(outcomes) and set(outcomes) == {0, 1}
    for number, (folder, before) in enumerate(list(zip(left, outcomes))[::3]):
        again = left_by_a_kill(folder, made[2].save)  # and once more, over what the first has left
        assert found(again[5 * number % len(again)]) in (before, 2)
        made[0].save(folder)
        assert found(folder) == 0 and len(list(folder.iterdir())) == 4, list(folder.iterdir())
    for folder in left_by_a_kill(tmp_path / "fresh", made[1].save):  # here there is nothing, or the new one
        try:
            assert found(folder) == 1
        except FileNotFoundError:
            pass


@pytest.mark.slow
def test_a_folder_of_an_earlier_version_reads_as_what_it_was(translator, tmp_path):
    translator.save(tmp_path)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text(encoding="utf8"))
    assert values.pop("preparation") == {"name": "tokenized", "languages": ["pt", "en"]}
    assert values.pop("sha256")
    path.write_text(json.dumps(values), encoding="utf8")
    assert Translator.load(summed(tmp_path)).preparation == CORPORA
    assert Translator.load("phrases").preparation == CORPORA


def rewritten(path: Path, **changes) -> None:
    """Weights with some tensors changed, added, or (`None`) left out, in a file as it should be."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(path)
    tensors.update({name: x for name, x in changes.items() if x is not None})
    save_file({name: x for name, x in tensors.items() if changes.get(name, x) is not None}, path)


@pytest.mark.slow
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_weights_that_are_not_finite_are_refused(translator, tmp_path, value):
    translator.save(tmp_path)
    name = next(name for name, x in translator.model.named_parameters() if x.dim() == 1)
    rewritten(tmp_path / "model.safetensors", **{name: torch.full((16,), value).half()})
    with pytest.raises(CheckpointError, match=f"model.safetensors .*{name}"):
        Translator.load(summed(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"src_vocab_size": 200_000_000, "tgt_vocab_size": 200_000_000}, "must have shape"),
        ({"d_ff": 10**15}, "must have shape"),
        ({"d_ff": 10**30}, "config.json cannot be used: 1000.* does not fit into 64 bits"),
        ({"d_model": 2 * 10**12}, "numbers of positions"),
        ({"n_layers": [1, 10**12]}, "have more than the 47 tensors"),
        ({"max_length": 10**13}, "numbers of positions, more than 16,777,216"),
    ],
)
def test_a_configuration_takes_no_memory_that_its_weights_do_not_fill(changes, message, tmp_path):
    translator = Translator.load("phrases")
    config = replace(translator.model.config, n_layers=1)
    Translator(Transformer(config).eval(), translator.vocabulary).save(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text(encoding="utf8"))
    write_record(tmp_path / "config.json", written | changes)
    before, start = peak_memory(), time.monotonic()
    with pytest.raises(CheckpointError, match=message):
        Translator.load(summed(tmp_path))
    assert peak_memory() < before + 100_000
    assert time.monotonic() - start < 30


@pytest.mark.slow
def test_what_float16_turns_into_infinity_is_not_saved(translator, tmp_path):
    model = Transformer(translator.model.config).eval()
    name, weight = next((name, x) for name, x in model.named_parameters() if x.dim() == 1)
    big = Translator(model, translator.vocabulary)
    big.save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with torch.no_grad():
        weight[3] = 1e5
    with pytest.raises(ValueError, match=f"{name} holds a number that is too large for torch.float16"):
        big.save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    for dtype in (torch.float32, torch.bfloat16):
        big.save(tmp_path, dtype)
        assert Translator.load(tmp_path).model.state_dict()[name][3] == torch.tensor(1e5).to(dtype)
    with pytest.raises(ValueError, match="dtype must be one of"):
        big.save(tmp_path, torch.float8_e4m3fn)


@pytest.mark.parametrize("theirs", ['{"model_type": "marian"}', "no JSON"])
def test_another_model_and_a_run_are_not_written_over(translator, tmp_path, theirs):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text(theirs)
    with pytest.raises(ValueError, match="config.json is not a translator's, and stays: choose another"):
        translator.save(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "config.json": theirs,
        "model.safetensors": theirs,
    }


@pytest.fixture
def searched(monkeypatch):
    """The models that searches run on, as they come."""
    models = []
    for name in ("greedy_search", "beam_search"):
        search = getattr(transformer.language.translator, name)

        def noting(model, *rest, search=search):
            models.append(model)
            return search(model, *rest)

        monkeypatch.setattr(transformer.language.translator, name, noting)
    return models


def every_search(translator):
    """What all ways to translate say."""
    sentences = ["O gato vê a casa.", "Gosto disto."]
    said = [translator.translate(sentences, beam_size=size) for size in (1, 3)]
    written = translator.translate_tokenized(sentences, beam_size=2)
    return said, written, translator.align("o gato vê a casa .", beam_size=2)[:2]


def test_searches_run_on_the_accelerated_model(translator, searched):
    every_search(translator)
    assert {type(model) for model in searched} == {FastTransformer}
    assert type(translator.model) is Transformer
    searched.clear()
    every_search(translator)
    assert len(set(searched)) == 1  # accelerated once


def loaded(model, trained):
    model.load_state_dict(trained.state_dict())


def written(model, trained):
    with torch.no_grad():
        for own, other in zip(model.parameters(), trained.parameters(), strict=True):
            own.copy_(other)


@pytest.mark.slow
@pytest.mark.parametrize("change", [loaded, written])
def test_new_weights_count_at_once(translator, searched, change):
    torch.manual_seed(1)
    model = Transformer(translator.model.config).eval()
    late = Translator(model, translator.vocabulary)
    wanted = every_search(translator)
    assert every_search(late) != wanted
    change(model, translator.model)
    assert every_search(late) == wanted
    assert {type(model) for model in searched} == {FastTransformer}


class Own(Transformer):
    """Not what `accelerate` knows."""


@pytest.mark.slow
def test_a_model_that_cannot_be_accelerated_translates_and_says_so_once(translator, searched):
    model = Own(translator.model.config).eval()
    model.load_state_dict(translator.model.state_dict())
    with pytest.warns(UserWarning, match="as it is, .* of Own, not of Transformer") as caught:
        own = Translator(model, translator.vocabulary)
    assert len(caught) == 1 and caught[0].filename == __file__
    said = every_search(own)  # without another word
    assert set(searched) == {model}
    assert said == every_search(translator)


def test_the_name_of_a_carried_translator_is_no_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("phrases").mkdir()
    assert len(Translator.load("phrases").vocabulary) == 1200
    for own in ("./phrases", Path("phrases"), Path("phrases").absolute()):
        with pytest.raises(FileNotFoundError, match="phrases is not a translator, as config.json is missing"):
            Translator.load(own)


def test_a_sentence_of_ten_megabytes_is_cut_before_it_costs_memory(translator):
    before = peak_memory()
    found = translator.translate_checked(["gato", "gato " * 2_000_000], beam_size=1)
    said = found[1].doubts[:2]
    assert said == tuple(f"is cut to its first {what}" for what in ("1,920 characters", "29 tokens"))
    assert peak_memory() < before + 100_000


def test_align_returns_the_weights_of_the_pass_it_describes(translator):
    found = translator.align("o gato vê a casa .", beam_size=2)
    layers, heads, rows, columns = found.weights.shape
    assert (layers, heads) == (2, 2)
    assert (rows, columns) == (len(found.target), len(found.source))
    assert torch.allclose(found.weights.sum(-1), torch.ones(layers, heads, rows), atol=1e-5)


def alignment(source, target, *heads):
    return Alignment(source, target, torch.tensor([heads]))


def test_weights_between_words_add_up_what_is_received_and_average_what_is_paid():
    found = alignment(
        ["▁gat", "o", "▁preto", "</s>"],
        ["▁black", "▁c", "at", "</s>"],
        [[0.0, 0.2, 0.7, 0.1], [0.5, 0.3, 0.1, 0.1], [0.1, 0.1, 0.5, 0.3], [0.0, 0.0, 0.0, 1.0]],
        [[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]],
    )
    words = by_words(found)
    assert (words.source, words.target) == (["gato", "preto", "</s>"], ["black", "cat", "</s>"])
    wanted = [
        [[0.2, 0.7, 0.1], [0.5, 0.3, 0.2], [0.0, 0.0, 1.0]],
        [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]],
    ]
    torch.testing.assert_close(words.weights, torch.tensor([wanted]))


@pytest.mark.slow
def test_built_in_translator_translates_what_it_has_not_seen():
    translator, test = Translator.load("phrases"), load_corpus("phrases", "test")[:200]
    assert sum(parameter.numel() for parameter in translator.model.parameters()) <= 1_400_000
    scores = evaluate_translator(translator, test, Search(1))
    assert scores["BLEU-tok"]["score"] >= 85
