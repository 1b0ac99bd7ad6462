"""The command line: what it says, what it refuses, and what it leaves behind."""

import io
import json
import re
import subprocess
import sys
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest

import transformer.__main__ as cli
from transformer import (
    RECIPES,
    Pair,
    Recipe,
    ToyRecipe,
    Translator,
    corpus_scores,
    load_corpus,
    load_record,
    record_path,
    train_translator,
    write_record,
)
from transformer.__main__ import (
    ALL_RECIPES,
    changed,
    claim_folder,
    main,
    parser,
    read_recipe,
)

TINY = Recipe("ours", vocab_size=90, d_model=16, n_heads=2, n_layers=1, d_ff=24, steps=4, evaluate_every=2)
PAIRS = [
    Pair("o gato vê a casa .", "the cat sees the house ."),
    Pair("a casa é velha .", "the house is old ."),
    Pair("gosto disto .", "i like this ."),
    Pair("o gato não gosta da casa .", "the cat does n't like the house ."),
]
TOY = ["--set", "steps=2", "--set", "evaluate_every=2", "--set", "batch_size=2", "--set", "length=3"]
CAT = "a menina gosta do gato preto ."


def ours(corpus, split):
    return {"train": PAIRS, "dev": PAIRS[:2], "test": [PAIRS[0], Pair("gosto da casa .", "i like it .")]}[
        split
    ]


def type_in(monkeypatch, text: bytes):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text), encoding="ascii"))


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def quick(monkeypatch):
    """Training and examining, small enough for a test; the recipe `tiny` runs through the real code."""
    monkeypatch.setitem(ALL_RECIPES, "tiny", TINY)
    monkeypatch.setattr(
        cli, "train_translator", lambda *given, **named: train_translator(*given, load=ours, **named)
    )
    scores = {"tuned": {"BLEU-tok": {"line": "BLEU = 1.00"}}}
    monkeypatch.setattr(
        cli,
        "translation_record",
        lambda translator, trainer, recipe: {"recipe": asdict(recipe), "scores": {"test": scores}},
    )


# Help


def subparsers() -> dict:
    (commands,) = (action for action in parser()._actions if action.choices)
    return commands.choices


def test_alone_it_explains_itself(capsys):
    assert main([]) == 2
    said = capsys.readouterr().err
    assert len(re.findall("^  python -m transformer ", said, re.MULTILINE)) == 3
    assert set(subparsers()) == {"train", "translate", "evaluate", "info"}
    assert all(re.search(rf"^ +{name}\b", said, re.MULTILINE) for name in subparsers())


@pytest.mark.parametrize("name", ["train", "translate", "evaluate", "info"])
def test_every_option_says_what_it_does_and_what_it_is_without(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    for action in subparsers()[name]._actions:
        assert action.help, action.dest
        if action.dest in ("help", "set", "config", "recipe", "source", "reference", "record"):
            continue  # without them nothing is set, read or chosen
        assert "(default" in action.help, action.dest
        if not isinstance(action.default, None | list):
            assert str(action.default or "none") in action.help, action.dest
    assert "Traceback" not in said


def test_help_lists_the_recipes_and_info_their_settings(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    said = capsys.readouterr().out
    for name, recipe in ALL_RECIPES.items():
        assert re.search(rf"^  {name} +.*\b{recipe.steps:,} updates", said, re.MULTILINE)
        assert main(["info", "--recipe", name]) == 0
        shown = capsys.readouterr().out.splitlines()
        assert shown == [f"{key}: {value}" for key, value in asdict(recipe).items()]


# Settings


def test_changes_take_the_type_of_their_field():
    recipe = changed(RECIPES["phrases"], ["steps=12", "dropout=0.25", "norm_first=false", "corpus=ted"])
    assert (recipe.steps, recipe.dropout, recipe.norm_first, recipe.corpus) == (12, 0.25, False, "ted")


@pytest.mark.parametrize("name", ALL_RECIPES)
def test_a_recipe_comes_back_from_its_file(name, tmp_path):
    recipe = ALL_RECIPES[name]
    write_record(tmp_path / "config.json", asdict(recipe))
    assert read_recipe(tmp_path / "config.json") == recipe
    write_record(tmp_path / "record.json", {"date": "today", "recipe": asdict(recipe)})
    assert read_recipe(tmp_path / "record.json") == recipe


@pytest.mark.parametrize("name", ["phrases", "toy", "ted-tiny"])
def test_recorded_recipes_can_be_read(name):
    recipe = read_recipe(record_path(f"{name}.json"))
    assert load_record(name)["recipe"].items() <= asdict(recipe).items()


def test_settings_that_an_old_file_does_not_know_have_their_defaults(tmp_path):
    write_record(tmp_path / "old.json", {"corpus": "ted", "vocab_size": 300, "dropout": 1})
    assert read_recipe(tmp_path / "old.json") == Recipe("ted", vocab_size=300, dropout=1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"corpus": "ted", "vocab_size": 300, "warmth": 3}, "'warmth' is no setting"),
        ({"corpus": "ted", "vocab_size": "300"}, "vocab_size is '300', not of type int"),
        ({"corpus": "ted", "vocab_size": True}, "vocab_size is True, not of type int"),
        ({"corpus": "ted", "vocab_size": 300.0}, "vocab_size is 300.0, not of type int"),
        ({"corpus": "ted", "vocab_size": 300, "norm_first": 1}, "norm_first is 1, not of type bool"),
        ({"corpus": "ted"}, "vocab_size"),
        ({"recipe": [1]}, "'recipe' is no setting"),
        ({"src_vocab_size": 5}, "'src_vocab_size' is no setting"),
    ],
)
def test_what_is_no_recipe_is_refused_by_name(values, message, tmp_path):
    write_record(tmp_path / "some.json", values)
    with pytest.raises(ValueError, match=re.escape(message)) as refusal:
        read_recipe(tmp_path / "some.json")
    assert "some.json holds no recipe" in str(refusal.value)


# Training


def test_toy_trains_into_a_folder(tmp_path, capsys):
    assert main(["train", "toy", "--directory", str(tmp_path), *TOY]) == 0
    assert {"log.jsonl", "model.safetensors", "record.json", "config.json"} <= set(files_in(tmp_path))
    assert json.loads((tmp_path / "record.json").read_text())["recipe"]["steps"] == 2
    assert "exact match" in capsys.readouterr().out


def test_a_run_leaves_its_recipe_and_its_translator(quick, tmp_path, capsys):
    assert main(["train", "tiny", "--directory", str(tmp_path / "run"), "--set", "seed=5"]) == 0
    said = capsys.readouterr().out
    assert said.splitlines() == ["BLEU = 1.00", f"the run's folder: {tmp_path / 'run'}"]
    assert (tmp_path / "run" / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert read_recipe(tmp_path / "run" / "config.json") == replace(TINY, seed=5)
    assert read_recipe(tmp_path / "run" / "record.json") == replace(TINY, seed=5)
    assert main(["translate", "--model", str(tmp_path / "run" / "translator"), "gosto disto ."]) == 0


def test_a_run_has_a_folder_without_being_told(quick, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "tiny"]) == 0
    assert (tmp_path / "runs" / "tiny" / "record.json").exists()


def test_a_run_can_be_repeated_from_its_record(quick, tmp_path):
    assert main(["train", "tiny", "--directory", str(tmp_path / "one"), "--set", "seed=5"]) == 0
    for file in ("config.json", "record.json"):
        recorded = ["--config", str(tmp_path / "one" / file)]
        assert main(["train", *recorded, "--directory", str(tmp_path / file)]) == 0
        one, other = (Translator.load(tmp_path / run / "translator") for run in ("one", file))
        weights = one.model.state_dict()
        assert all(weights[name].equal(x) for name, x in other.model.state_dict().items())


def test_a_stopped_run_says_where_it_goes_on(quick, tmp_path, capsys):
    folder = ["--directory", str(tmp_path)]
    train_translator(replace(TINY, steps=2), tmp_path, load=ours)
    write_record(tmp_path / "config.json", asdict(TINY))
    assert main(["train", "tiny", *folder]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "going on from step 2 of 4"
    last = (tmp_path / "log.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["step"] == 4


def test_a_run_in_slices_says_how_far_it_is_and_can_be_used(quick, tmp_path, capsys):
    command = ["train", "tiny", "--directory", str(tmp_path / "slices")]
    assert main([*command, "--max-minutes", "0"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "time is over at step 2; the same command goes on from there",
        f"what can be used already: {tmp_path / 'slices' / 'translator'}",
    ]
    assert not (tmp_path / "slices" / "record.json").exists()
    assert Translator.load(tmp_path / "slices" / "translator").translate([""]) == [""]
    assert main([*command, "--max-minutes", "5"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "going on from step 2 of 4"
    assert main(["train", "tiny", "--directory", str(tmp_path / "whole")]) == 0
    one, other = (Translator.load(tmp_path / run / "translator") for run in ("slices", "whole"))
    weights = one.model.state_dict()
    assert all(weights[name].equal(x) for name, x in other.model.state_dict().items())


@pytest.mark.slow
def test_torchrun_starts_a_run_of_several_processes(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        + ["-m", "transformer", "train", "toy", "--device", "cpu", "--directory", str(tmp_path), *TOY],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("exact match") == 1
    assert {"log.jsonl", "model.safetensors", "record.json", "config.json"} <= set(files_in(tmp_path))
    first = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[0])
    assert first["tokens"] == 2 * 2 * 2 * 3  # processes, updates, sequences, digits


@pytest.mark.parametrize("field", [field.name for field in fields(Recipe)])
def test_a_run_of_another_recipe_is_left_alone(field, tmp_path):
    recipe = Recipe("ours", vocab_size=90)
    claim_folder(tmp_path, recipe)
    (tmp_path / "checkpoint-00000002.pt").write_bytes(b"weights")
    before = files_in(tmp_path)
    value = getattr(recipe, field)
    other = f"{value}2" if isinstance(value, str) else not value if value is True else value * 2 + 1
    with pytest.raises(ValueError, match=re.escape(f"a run with {field} = {value}, and {field} = {other}")):
        claim_folder(tmp_path, replace(recipe, **{field: other}))
    assert files_in(tmp_path) == before


def test_a_toy_run_is_no_place_for_a_translator(quick, tmp_path, capsys):
    assert main(["train", "toy", "--directory", str(tmp_path), *TOY]) == 0
    before = files_in(tmp_path)
    assert main(["train", "tiny", "--directory", str(tmp_path)]) == 2
    assert "holds a run with steps = 2" in capsys.readouterr().err
    assert files_in(tmp_path) == before


def test_what_failed_before_its_first_checkpoint_may_be_put_right(quick, tmp_path, capsys):
    folder = ["--directory", str(tmp_path)]
    assert main(["train", "tiny", *folder, "--set", "n_heads=3"]) == 2
    assert "d_model" in capsys.readouterr().err
    assert main(["train", "tiny", *folder]) == 0
    assert read_recipe(tmp_path / "config.json") == TINY


# Translating


def test_arguments_and_lines_are_translated(capsys, monkeypatch):
    assert main(["translate", CAT, ""]) == 0
    assert capsys.readouterr().out == "the girl likes the black cat.\n\n"
    type_in(monkeypatch, f"\ufeffGosto disto.\r\n\n{CAT}".encode())
    assert main(["translate", "--beam", "1"]) == 0
    first, *others = capsys.readouterr().out.splitlines()
    assert first == Translator.load("phrases").translate(["Gosto disto."], 1)[0]
    assert others == ["", "the girl likes the black cat."]


def test_search_is_the_one_that_was_asked_for(capsys, monkeypatch):
    seen = []
    monkeypatch.setattr(
        Translator, "translate", lambda self, sentences, *search: seen.append(search) or sentences
    )
    assert main(["translate", CAT]) == 0
    assert main(["translate", "--beam", "7", "--length-penalty", "1.5", CAT]) == 0
    assert seen == [(4, 0.6), (7, 1.5)]


def test_line_that_is_no_utf_8_is_named(capsys, monkeypatch):
    type_in(monkeypatch, CAT.encode() + b"\nn\xe3o\n")
    assert main(["translate", "--beam", "1"]) == 2
    said = capsys.readouterr()
    assert said.out == "the girl likes the black cat.\n"
    assert said.err == "error: standard input, line 2 is not UTF-8: byte 0xe3 at position 2\n"


def test_argument_that_is_no_utf_8_is_named(capsys):
    assert main(["translate", "--beam", "1", "n\udce3o"]) == 2
    assert capsys.readouterr().err == "error: sentence 1 is not UTF-8: byte 0xe3 at position 2\n"


def test_a_line_of_ten_thousand_tokens_is_cut_and_said_so(capsys, monkeypatch):
    type_in(monkeypatch, b"gosto disto .\n" + b"gato " * 10_000 + b"\ngosto disto .\n")
    assert main(["translate", "--beam", "1"]) == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 3
    cut = r"warning: standard input, line 2: sentence 1 is cut to 511 of \d{5} tokens\n"
    assert re.fullmatch(cut, said.err)


def test_someone_who_sits_before_it_is_told_what_to_do(capsys, monkeypatch):
    type_in(monkeypatch, b"")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    assert main(["translate"]) == 0
    assert "One sentence a line" in capsys.readouterr().err


def test_interrupted_it_ends_with_the_status_of_the_shell(capsys, monkeypatch):
    def interrupt(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(Translator, "translate", interrupt)
    assert main(["translate", CAT]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_as_a_program_it_reads_and_writes_pipes():
    ran = subprocess.run(
        [sys.executable, "-m", "transformer", "translate"],
        input=f"{CAT}\n\n".encode(),
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert ran.stdout.decode().splitlines() == ["the girl likes the black cat.", ""]


# Scores


@pytest.fixture
def short(monkeypatch):
    pairs = {split: load_corpus("phrases", split)[:20] for split in ("train", "dev", "test")}
    monkeypatch.setattr(cli, "load_corpus", lambda name, split: pairs[split])
    return pairs


def lines(pairs, beam_size=1, length_penalty=0.6, n_bootstrap=0):
    written = Translator.load("phrases").translate_tokenized(
        [pair.source for pair in pairs], beam_size, length_penalty
    )
    scores = corpus_scores(written, [pair.target for pair in pairs], n_bootstrap)
    return [score["line"] for score in scores.values()]


def test_scores_are_the_lines_of_sacrebleu(short, capsys):
    assert main(["evaluate", "--beam", "1", "--split", "dev"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said == ["20 pairs, beam 1, length penalty 0.6", *lines(short["dev"])]
    assert re.match(r"BLEU\|nrefs:1\|.*\|tok:none\|.* = \d+\.\d\d \d+\.\d/.* \(BP = ", said[1])
    assert "tok:13a" in said[2] and said[3].startswith("chrF2|")


def test_evaluation_searches_as_asked_and_gives_intervals(short, capsys, monkeypatch):
    seen, search = [], Translator.translate_tokenized
    monkeypatch.setattr(
        Translator, "translate_tokenized", lambda *given: seen.append(given[2:]) or search(*given)
    )
    assert main(["evaluate", "--beam", "3", "--length-penalty", "0", "--bootstrap", "50"]) == 0
    assert seen == [(3, 0.0)]
    said = capsys.readouterr().out.splitlines()
    assert said == ["20 pairs, beam 3, length penalty 0.0", *lines(short["test"], 3, 0.0, 50)]
    assert all("(μ = " in line and "bs:50" in line for line in said[1:])
    assert main(["evaluate", "--beam", "1", "--bootstrap"]) == 0
    assert "bs:1000" in capsys.readouterr().out


def test_pairs_that_training_showed_are_left_out_in_a_second_count(short, capsys):
    short["test"][:5] = short["train"][:5]
    assert main(["evaluate", "--beam", "1"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[4:] == [
        "15 pairs, without 5 that training showed as well",
        *lines(short["test"][5:]),
    ]
    assert main(["evaluate", "--beam", "1", "--split", "train"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_files_of_ones_own_are_scored(tmp_path, capsys):
    source, reference = tmp_path / "mine.pt", tmp_path / "mine.en"
    source.write_bytes("A menina gosta do gato preto.\nNão os conheço.\n".encode())
    reference.write_bytes(b"The girl likes the black cat.\r\nI don't know them.")
    files = ["--source", str(source), "--reference", str(reference)]
    assert main(["evaluate", "--beam", "1", *files]) == 0
    said = capsys.readouterr().out.splitlines()
    pairs = [
        Pair("a menina gosta do gato preto .", "the girl likes the black cat ."),
        Pair("não os conheço .", "i do n't know them ."),
    ]
    assert said == ["2 pairs, beam 1, length penalty 0.6", *lines(pairs)]


def test_a_record_takes_up_what_is_found(tmp_path, monkeypatch, capsys):
    seen = []

    def examine(translator, corpus):
        seen.append((len(translator.vocabulary), corpus))
        return {"scores": {"test": 2}, "grid": []}

    monkeypatch.setattr(cli, "examine_translator", examine)
    old = {"date": "then", "recipe": {"corpus": "ted", "vocab_size": 9}, "scores": {"dev": 1}}
    write_record(tmp_path / "record.json", old)
    assert main(["evaluate", "--record", str(tmp_path / "record.json")]) == 0
    assert json.loads((tmp_path / "record.json").read_text()) == old | {"scores": {"test": 2}, "grid": []}
    assert seen[0] == (1200, "ted") and capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("source", "reference", "message"),
    [
        (b"um\ndois\n", b"one\n", "2 source lines but 1 target lines"),
        (b"um\nn\xe3o\n", b"one\nno\n", "mine.pt is not"),
        (b"um\n", None, "mine.en"),
    ],
)
def test_files_that_do_not_fit_are_refused(source, reference, message, tmp_path, capsys):
    (tmp_path / "mine.pt").write_bytes(source)
    if reference is not None:
        (tmp_path / "mine.en").write_bytes(reference)
    files = ["--source", str(tmp_path / "mine.pt"), "--reference", str(tmp_path / "mine.en")]
    assert main(["evaluate", *files]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and message in said and said.count("\n") == 1


def test_lines_end_where_a_line_feed_is_and_nowhere_else(capsys, monkeypatch):
    type_in(monkeypatch, "\r\x0b\x85\u2028gosto disto .\n\n".encode())
    assert main(["translate", "--beam", "1"]) == 0
    assert capsys.readouterr().out == "i like this.\n\n"


# What is wrong


def test_info_shows_what_a_translator_is_made_of(capsys):
    assert main(["info"]) == 0
    said = capsys.readouterr().out
    model = Translator.load("phrases").model
    assert f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters" in said
    assert f"\nd_model: {model.config.d_model}\n" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "train needs either the name of a recipe or --config"),
        (["train", "toy", "--config", "a.json"], "train needs either the name of a recipe or --config"),
        (["train", "--config", "a.json"], "--config needs --directory as well"),
        (["train", "--config", "a.json", "--directory", "b"], "a.json"),
        (["train", "phrases", "--max-minutes", "-1", "--device", "nowhere"], "device 'nowhere'"),
        (["train", "toy", "--set", "setps=3"], "'setps' is no setting of this recipe"),
        (["train", "toy", "--set", "steps"], "steps must be an int, not ''"),
        (["train", "toy", "--set", "steps=2.5"], "steps must be an int, not '2.5'"),
        (["train", "toy", "--set", "dropout=much"], "dropout must be a float, not 'much'"),
        (["train", "toy", "--set", "norm_first=yes"], "norm_first must be true or false, not 'yes'"),
        (["translate", "--model", "nowhere", "a"], "nowhere"),
        (["translate", "--beam", "0", "o gato"], "beam_size must be at least 1, but is 0"),
        (["translate", "--length-penalty", "-1", "o gato"], "length_penalty must be finite and at least 0"),
        (["evaluate", "--corpus", "klingon"], "klingon"),
        (["evaluate", "--split", "exam"], "exam"),
        (["evaluate", "--record", str(record_path("toy.json"))], "toy.json is the record of a toy"),
        (["evaluate", "--source", "a"], "--source and --reference belong together"),
        (["evaluate", "--reference", "a"], "--source and --reference belong together"),
        (
            ["evaluate", "--corpus", "ted", "--source", "a", "--reference", "b"],
            "--corpus and --split are for",
        ),
        (["evaluate", "--split", "dev", "--source", "a", "--reference", "b"], "--corpus and --split are for"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and message in said and said.count("\n") == 1
    assert files_in(tmp_path) == {}


def test_every_recipe_is_of_one_kind():
    assert isinstance(ALL_RECIPES["toy"], ToyRecipe)
    assert {name: recipe for name, recipe in ALL_RECIPES.items() if name != "toy"} == RECIPES
