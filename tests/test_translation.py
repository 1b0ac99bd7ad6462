"""Wording, scores, translators on disk, recipes and the command line."""

import json
import math
from collections import Counter
from dataclasses import asdict, replace

import pytest
import torch

import transformer.translation
from transformer import (
    LECTURE,
    RECIPES,
    CheckpointError,
    Pair,
    Recipe,
    TokenBatches,
    Transformer,
    TransformerConfig,
    Translator,
    Vocabulary,
    by_length,
    corpus_scores,
    detokenize,
    encode_pairs,
    evaluate_loss,
    evaluate_translator,
    load_corpus,
    load_record,
    teacher_forced_loss,
    tokenize,
    train_translator,
    unseen_pairs,
)
from transformer.__main__ import changed, main

PAIRS = [
    Pair("o gato vê a casa .", "the cat sees the house ."),
    Pair("a casa é velha .", "the house is old ."),
    Pair("gosto disto .", "i like this ."),
    Pair("o gato não gosta da casa .", "the cat does n't like the house ."),
]
TINY = Recipe("ours", vocab_size=90, d_model=16, n_heads=2, n_layers=1, d_ff=24, steps=6, evaluate_every=3)


def ours(corpus, split):
    return PAIRS if split == "train" else PAIRS[:2]


@pytest.fixture(scope="module")
def translator():
    torch.manual_seed(0)
    vocabulary = Vocabulary.train((text for pair in PAIRS for text in pair), 90)
    size = len(vocabulary)
    config = TransformerConfig(size, size, d_model=16, n_heads=2, n_layers=2, d_ff=24, max_length=30)
    return Translator(Transformer(config).eval(), vocabulary)


@pytest.mark.parametrize(
    ("raw", "written"),
    [
        ("Gosto disto.", "gosto disto ."),
        ('"Sim", disse ela.', "`` sim '' , disse ela ."),
        ("«Não!» … talvez", "`` não ! '' ... talvez"),
        ("Custa 1.250,50 € (hoje)", "custa 1.250,50 € ( hoje )"),
        ("guarda-chuva; d'água", "guarda-chuva ; d'água"),
        ("  ", ""),
        ("", ""),
    ],
)
def test_tokenize(raw, written):
    assert tokenize(raw) == written
    assert tokenize(written) == written


def test_tokenize_leaves_the_corpus_alone():
    assert all(tokenize(pair.source) == pair.source for pair in load_corpus("phrases", "test"))


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


def bleu(hypotheses, references):
    def ngrams(words, n):
        return Counter(zip(*(words[i:] for i in range(n)), strict=False))

    ours, theirs = ([text.split() for text in side] for side in (hypotheses, references))
    logs = 0.0
    for n in range(1, 5):
        counts = [(ngrams(a, n), ngrams(b, n)) for a, b in zip(ours, theirs, strict=True)]
        logs += math.log(sum((a & b).total() for a, b in counts) / sum(a.total() for a, _ in counts))
    c, r = (sum(map(len, side)) for side in (ours, theirs))
    return 100 * min(1, math.exp(1 - r / c)) * math.exp(logs / 4)


def test_bleu_is_the_one_of_the_definition():
    references = ["the cat sees the old house .", "i like this very much ."]
    hypotheses = ["the cat sees the house .", "i like this so much ."]
    scores = corpus_scores(hypotheses, references)
    assert scores["BLEU-tok"]["score"] == pytest.approx(bleu(hypotheses, references), abs=0.01)
    assert "tok:none" in scores["BLEU-tok"]["signature"]
    assert "tok:13a" in scores["BLEU-detok"]["signature"]
    assert scores["chrF2"]["signature"]


def test_a_copy_of_the_references_has_full_marks_however_it_is_written():
    references = ["`` i do n't know '' , he said .", "we 'll see ( perhaps ) ..."]
    assert {score["score"] for score in corpus_scores(references, references).values()} == {100.0}


@pytest.mark.parametrize(("ours", "theirs"), [(["a"], ["a", "b"]), ([], [])])
def test_scores_refuse_unequal_or_empty_lists(ours, theirs):
    with pytest.raises(ValueError, match=f"not {len(ours)} and {len(theirs)}"):
        corpus_scores(ours, theirs)


def test_unseen_pairs_need_both_sides_to_differ_from_training():
    test = [PAIRS[0], Pair(PAIRS[0].source, "another translation ."), PAIRS[2]]
    assert unseen_pairs(test, PAIRS[:2]) == test[1:]


@pytest.mark.parametrize("max_tokens", [1, 7, 20, 1000])
def test_by_length_gives_every_sentence_once_within_the_budget(max_tokens):
    lengths = [3, 1, 9, 2, 2, 5, 9, 4]
    groups = list(by_length([[5] * length for length in lengths], max_tokens))
    assert sorted(row for rows in groups for row in rows) == [0, 2, 3, 4, 5, 6, 7]
    for rows in groups:
        assert len(rows) == 1 or len(rows) * max(lengths[row] for row in rows) <= max_tokens


def test_batch_mates_and_order_change_nothing(translator):
    sources = [pair.source for pair in PAIRS] + ["", "gato", "日本"]
    together = translator.translate_tokenized(sources, max_length=12)
    assert together[4] == ""
    for beam_size in (1, 4):
        together = translator.translate_tokenized(sources, beam_size, max_length=12)
        alone = [translator.translate_tokenized([text], beam_size, max_length=12)[0] for text in sources]
        assert together == alone
        assert translator.translate_tokenized(sources[::-1], beam_size, max_length=12) == alone[::-1]


def test_long_sentence_is_cut_and_said_so(translator):
    with pytest.warns(UserWarning, match="sentence 2 is cut to 29 of"):
        translations = translator.translate_tokenized(["gato", "gato " * 100], 1, max_length=5)
    assert len(translations) == 2


def test_a_sentence_loses_no_token_without_a_warning(translator):
    width = len(translator.vocabulary.encode("gato"))
    full = " ".join(["gato"] * (30 // width))  # no room for the end token
    with pytest.warns(UserWarning, match="sentence 1 is cut to 29 of 30 tokens"):
        translator.translate_tokenized([full], 1, max_length=2)
    translator.translate_tokenized([full[: -len(" gato")]], 1, max_length=2)  # and no warning


def test_the_model_reads_sentences_as_training_showed_them(translator, monkeypatch):
    seen = []
    search = transformer.translation.beam_search
    monkeypatch.setattr(
        transformer.translation, "beam_search", lambda *given: seen.append(given[1]) or search(*given)
    )
    translator.translate_tokenized([PAIRS[0].source], beam_size=2, max_length=2)
    source, _ = encode_pairs(PAIRS, translator.vocabulary)[0]
    assert seen[0].tolist() == [source]


def test_a_single_string_is_no_list_of_sentences(translator):
    with pytest.raises(TypeError, match="list of strings, not one string"):
        translator.translate("gosto disto .")


def test_model_and_vocabulary_must_agree(translator):
    other = Transformer(replace(translator.model.config, src_vocab_size=99, tgt_vocab_size=99))
    with pytest.raises(ValueError, match="the model has \\[99\\] tokens, the vocabulary"):
        Translator(other, translator.vocabulary)


def test_saved_translator_says_the_same(translator, tmp_path):
    translator.save(tmp_path / "kept", dtype=torch.float32)
    again = Translator.load(tmp_path / "kept")
    assert not again.model.training
    assert asdict(again.model.config) == asdict(translator.model.config)
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [
        "config.json",
        "model.safetensors",
        "vocabulary.json",
    ]
    for name, weight in translator.model.state_dict().items():
        assert again.model.state_dict()[name].equal(weight)
    sources = [pair.source for pair in PAIRS]
    assert again.translate(sources) == translator.translate(sources)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", b"{"),
        ("config.json", b'{"src_vocab_size": 5, "nonsense": 1}'),
        ("model.safetensors", b"not weights"),
        ("model.safetensors", None),
    ],
)
def test_damaged_folder_is_refused_by_name(translator, tmp_path, file, content):
    translator.save(tmp_path)
    path = tmp_path / file
    path.write_bytes(path.read_bytes()[:-100] if content is None else content)
    with pytest.raises(CheckpointError, match=file):
        Translator.load(tmp_path)


def test_unknown_translator_names_the_known_ones():
    with pytest.raises(FileNotFoundError, match="phrases"):
        Translator.load("no-such-translator")


def test_align_returns_the_weights_of_the_pass_it_describes(translator):
    found = translator.align("o gato vê a casa .", beam_size=2)
    layers, heads, rows, columns = found.weights.shape
    assert (layers, heads) == (2, 2)
    assert (rows, columns) == (len(found.target), len(found.source))
    assert torch.allclose(found.weights.sum(-1), torch.ones(layers, heads, rows), atol=1e-5)


def test_align_ends_with_its_sentence_and_reads_the_target_shifted():
    translator = Translator.load("phrases")
    found = translator.align("a joana é mais rápida do que o joão .")  # its rivals are longer
    ids = [translator.vocabulary.tokenizer.token_to_id(name) for name in found.target]
    config = translator.model.config
    assert ids.index(config.eos_id) == len(ids) - 1
    src = [translator.vocabulary.tokenizer.token_to_id(name) for name in found.source]
    tgt = [config.bos_id, *ids[:-1]]
    maps = translator.model.attention_maps(torch.tensor([src]), torch.tensor([tgt])).cross[:, 0]
    assert torch.allclose(found.weights, maps, atol=1e-6)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_recipes_reach_their_peak_at_the_end_of_warm_up(recipe):
    rates = [recipe.schedule(step) for step in range(1, recipe.steps + 1)]
    assert max(rates) == pytest.approx(recipe.peak_rate)
    assert rates.index(max(rates)) + 1 == recipe.warmup_steps
    uncooled = replace(recipe, cooldown=0.0).schedule(recipe.steps)
    assert rates[-1] == pytest.approx(uncooled / (recipe.cooldown * recipe.steps))


def test_training_follows_its_recipe():
    dev = [Pair("a casa não é velha .", "the house is not old .")]
    recipe = replace(TINY, steps=1, seed=5, smoothing=0.3, max_tokens=20)
    translator, trainer = train_translator(
        recipe, load=lambda corpus, split: PAIRS if split == "train" else dev
    )
    model, vocabulary = translator.model, translator.vocabulary
    assert not model.training
    # Both languages are in the vocabulary, and nothing but the training split.
    learned = Vocabulary.train((text for pair in PAIRS for text in pair), recipe.vocab_size)
    assert vocabulary.tokenizer.to_str() == learned.tokenizer.to_str()
    batches = list(trainer.batches(0))
    wanted = list(TokenBatches(encode_pairs(PAIRS, vocabulary), 20, seed=5)(0))
    assert all(a.equal(b) for one, two in zip(batches, wanted, strict=True) for a, b in zip(one, two))
    smoothed, _ = teacher_forced_loss(model, batches[0], smoothing=0.3)
    assert trainer.loss(model, batches[0])[0].equal(smoothed)
    held_out = TokenBatches(encode_pairs(dev, vocabulary), 20)(0)
    assert trainer.evaluate(model) == evaluate_loss(model, held_out)


def test_interrupted_training_ends_where_the_whole_one_does(tmp_path):
    whole, _ = train_translator(TINY, load=ours)
    train_translator(replace(TINY, steps=3), tmp_path, load=ours)
    resumed, trainer = train_translator(TINY, tmp_path, load=ours)
    assert trainer.step == 6
    for name, weight in whole.model.state_dict().items():
        assert resumed.model.state_dict()[name].equal(weight), name


def test_built_in_translator_is_as_good_as_its_record():
    record = load_record("phrases")
    assert record["commit"] and record["command"] == "python -m transformer train phrases"
    assert record["parameters"] <= 1_400_000
    test = load_corpus("phrases", "test")[:200]
    scores = evaluate_translator(Translator.load("phrases"), test, beam_size=1)
    assert scores["BLEU-tok"]["score"] >= 85


def test_ted_record_has_all_that_the_chapter_shows():
    record = load_record("ted")
    assert record["commit"] and record["versions"]["torch"] and record["date"]
    assert set(record["scores"]) == {"dev", "test", "test, unseen"}
    assert record["scores"]["test"]["pairs"] == 1803
    assert all(len(found) == len(LECTURE) for found in record["lecture"].values())
    for split in record["scores"].values():
        for search in ("greedy", "beam 4"):
            assert set(split[search]) == {"BLEU-tok", "BLEU-detok", "chrF2"}


def test_command_line_translates_arguments_and_lines(capsys, monkeypatch):
    import io

    assert main(["translate", "a menina gosta do gato preto ."]) == 0
    assert capsys.readouterr().out == "the girl likes the black cat.\n"
    monkeypatch.setattr("sys.stdin", io.StringIO("gosto disto .\na menina gosta do gato preto .\n"))
    assert main(["translate", "--beam", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "the girl likes the black cat."


def test_command_line_shows_what_a_translator_is_made_of(capsys):
    assert main(["info"]) == 0
    said = capsys.readouterr().out
    config = Translator.load("phrases").model.config
    assert f"d_model: {config.d_model}" in said and "parameters" in said


def test_command_line_scores_with_signatures(capsys, monkeypatch):
    short = load_corpus("phrases", "dev")[:20]
    monkeypatch.setattr("transformer.__main__.load_corpus", lambda name, split: short)
    assert main(["evaluate", "--beam", "1", "--split", "dev"]) == 0
    said = capsys.readouterr().out
    assert "BLEU-tok" in said and "tok:none" in said and "chrF2" in said


def test_command_line_trains_into_a_folder(tmp_path, capsys):
    changes = ["--set", "steps=2", "--set", "evaluate_every=2", "--set", "batch_size=2", "--set", "length=3"]
    assert main(["train", "toy", "--directory", str(tmp_path), *changes]) == 0
    assert {"log.jsonl", "model.safetensors", "record.json"} <= {path.name for path in tmp_path.iterdir()}
    assert json.loads((tmp_path / "record.json").read_text())["recipe"]["steps"] == 2
    assert "exact match" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "toy", "--set", "setps=3"], "'setps' is no setting of this recipe"),
        (["train", "toy", "--set", "norm_first=yes"], "norm_first must be true or false, not 'yes'"),
        (["translate", "--model", "nowhere", "a"], "nowhere"),
        (["evaluate", "--corpus", "klingon"], "klingon"),
        (["translate", "--beam", "0", "o gato"], "beam_size must be at least 1, but is 0"),
    ],
)
def test_command_line_says_what_is_wrong_in_one_line(arguments, message, capsys):
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and message in said and "Traceback" not in said


def test_changes_take_the_type_of_their_field():
    recipe = changed(RECIPES["phrases"], ["steps=12", "dropout=0.25", "norm_first=false", "corpus=ted"])
    assert (recipe.steps, recipe.dropout, recipe.norm_first, recipe.corpus) == (12, 0.25, False, "ted")
