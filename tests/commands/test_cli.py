"""The command line: what it says, what it refuses, and what it leaves behind."""

import io
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from helpers import PAIRS

import transformer.commands.data
import transformer.commands.evaluate
import transformer.commands.train
from transformer import RECIPES, Translator, corpus_scores, load_corpus
from transformer.__main__ import COMMANDS, main
from transformer.commands.data import ParallelData
from transformer.commands.main import parser
from transformer.commands.recipes import changed, parsed, read_recipe, settings
from transformer.commands.train import check_same_run, requested
from transformer.files import write_record
from transformer.language.corpora import CORPORA, Pair, Translation
from transformer.language.translator import Search
from transformer.runs.folder import RunFolder
from transformer.runs.loop import load_checkpoint

TINY = changed(
    RECIPES["phrases"], corpus="ours", vocab_size=90, d_model=16, n_heads=2, n_layers=1, d_ff=24, dropout=0.1,
    max_tokens=2000, peak_rate=2e-3, cooldown=0.0, precision="float32", steps=4, evaluate_every=2,
)  # fmt: skip
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
    monkeypatch.setitem(RECIPES, "tiny", TINY)
    monkeypatch.setattr(transformer.commands.data, "load_corpus", ours)
    scores = {"tuned": {"BLEU-tok": {"line": "BLEU = 1.00"}}}
    monkeypatch.setattr(ParallelData, "record", lambda *given: {"scores": {"test": scores}})


# Help


def subparsers() -> dict:
    (commands,) = (action for action in parser(COMMANDS)._actions if isinstance(action.choices, dict))
    return commands.choices


def test_alone_it_explains_itself(capsys):
    assert main([]) == 2
    said = capsys.readouterr().err
    assert len(re.findall("^  python -m transformer ", said, re.MULTILINE)) == 4
    assert all(re.search(rf"^ +{name}\b", said, re.MULTILINE) for name in subparsers())


@pytest.mark.parametrize("name", subparsers())
def test_every_option_says_what_it_does_and_what_it_is_without(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    for action in subparsers()[name]._actions:
        assert action.help, action.dest
        if action.dest in ("help", "debug", "set", "recipe", "source", "reference"):
            continue  # without them nothing is set, read or chosen
        if action.required:
            continue  # there is nothing without it
        assert "(default" in action.help, action.dest
        if not isinstance(action.default, None | list):
            assert str(action.default or "none") in action.help, action.dest
    assert "Traceback" not in said


def test_help_lists_the_recipes_and_info_their_settings(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    said = capsys.readouterr().out
    for name, recipe in RECIPES.items():
        assert re.search(rf"^  {name} +.*\b{recipe.training.steps:,} updates", said, re.MULTILINE)
        assert main(["info", "--recipe", name]) == 0
        shown = capsys.readouterr().out.splitlines()
        assert shown == [f"{key}: {value}" for key, value in settings(recipe).items() if value != ""]
    assert main(["info", "--recipe", "toy", "--model", "phrases"]) == 2
    assert "info shows --recipe toy or --model phrases, not both" in capsys.readouterr().err


# Settings


def test_a_setting_is_written_as_one_writes_its_value():
    given = "steps=12 rate=.25 norm_first=false corpus=ted n_layers=6,2 clip=inf monitor=-loss".split()
    wanted = {"steps": 12, "rate": 0.25, "norm_first": False, "corpus": "ted", "n_layers": (6, 2)}
    assert parsed(given) == wanted | {"clip": math.inf, "monitor": "-loss"}


# Training


@pytest.mark.slow
def test_a_run_leaves_its_recipe_and_its_translator(quick, tmp_path, capsys):
    assert main(["train", "tiny", "--directory", str(tmp_path / "run"), "--set", "seed=5"]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[1:] == ["BLEU = 1.00", f"the run's folder: {tmp_path / 'run'}"]
    assert (tmp_path / "run" / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert read_recipe(tmp_path / "run" / "config.json") == changed(TINY, seed=5)
    assert read_recipe(tmp_path / "run" / "record.json") == changed(TINY, seed=5)
    assert main(["translate", "--model", str(tmp_path / "run" / "translator"), "gosto disto ."]) == 0


@pytest.mark.parametrize(
    ("name", "other"), [("steps", 2), ("corpus", "theirs"), ("cooldown", 0.5), ("sha256", "1")]
)
def test_a_run_of_another_recipe_is_left_alone(name, other, tmp_path):
    write_record(tmp_path / "config.json", asdict(TINY))
    (tmp_path / "checkpoint-00000002.pt").write_bytes(b"weights")
    run, value = RunFolder(tmp_path), settings(TINY)[name]
    check_same_run(run, TINY)
    check_same_run(run, changed(TINY, steps=9))
    with pytest.raises(ValueError, match=f"a run with {name} = {value}, and {name} = {other} is asked for"):
        check_same_run(run, changed(TINY, **{name: other}))


def test_a_run_that_meets_another_is_refused_before_it_reads_or_writes(quick, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        transformer.commands.train, "train_recipe", lambda *given, **named: pytest.fail("it has begun")
    )
    with RunFolder(tmp_path / "run").locked():
        assert main(["train", "tiny", "--directory", str(tmp_path / "run")]) == 2
        assert "is in use: another process is training there" in capsys.readouterr().err
        assert files_in(tmp_path) == {"run/run.lock": b""}
    monkeypatch.setitem(sys.modules, "sacrebleu", None)  # which only scoring needs
    assert main(["train", "tiny", "--directory", str(tmp_path / "run")]) == 2
    assert "pip install sacrebleu, or the extra 'text'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["data", "checkpoint"])
def test_a_refused_change_leaves_every_byte_and_the_first_command_goes_on(
    damage, quick, tmp_path, capsys, monkeypatch
):
    """Though the recipe is accepted: here the data are others, or the checkpoint cannot be read."""
    folder = ["--directory", str(tmp_path / "run")]
    assert main(["train", "tiny", *folder]) == 0
    checkpoint = tmp_path / "run" / "checkpoint-00000004.pt"
    if damage == "data":
        with monkeypatch.context() as patch:
            other = lambda corpus, split: [Pair(*pair[::-1]) for pair in ours(corpus, split)]
            patch.setattr(transformer.commands.data, "load_corpus", other)
            before = files_in(tmp_path)
            assert main(["train", "tiny", *folder, "--set", "steps=9"]) == 2
        assert "belongs to a run with" in capsys.readouterr().err
    else:
        whole = checkpoint.read_bytes()
        (tmp_path / "run" / "checkpoint-00000002.pt").unlink()
        checkpoint.write_bytes(whole[:-1])
        before = files_in(tmp_path)
        assert main(["train", "tiny", *folder, "--set", "steps=9"]) == 2
        assert "no checkpoint of it is whole" in capsys.readouterr().err
        assert files_in(tmp_path) == before
        checkpoint.write_bytes(whole)
        before = files_in(tmp_path)
    assert files_in(tmp_path) == before
    assert main(["train", "tiny", *folder]) == 0
    assert "going on from step 4 of 4\n" in capsys.readouterr().err


STRANGERS = {
    "a stranger's": ({"config.json": b'{"model_type": "marian"}'}, "config.json holds no recipe: "),
    "not even JSON": ({"config.json": b"mine"}, "config.json cannot be used"),
    "a translator's": (None, "holds model.safetensors, but no checkpoint of a run to go on from"),
    "a run's": ({"checkpoint-00000001.pt": b"x", "run.lock": b""}, "holds a run that no recipe began"),
    "a picture": ({"curves.png": b"mine"}, "holds curves.png, but no checkpoint of a run"),
}


@pytest.mark.parametrize(("files", "said"), STRANGERS.values(), ids=STRANGERS)
def test_a_folder_of_something_else_is_left_as_it_is(files, said, quick, tmp_path, capsys):
    if files is None:
        Translator.load("phrases").save(tmp_path)
    for name, content in (files or {}).items():
        (tmp_path / name).write_bytes(content)
    before = files_in(tmp_path)
    assert main(["train", "tiny", "--directory", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert files_in(tmp_path) == before


# Texts of one's own


def dates(n: int) -> list[Pair]:
    """Days in two spellings, each different."""
    months = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
    days = [(1900 + 7 * number % 200, number % 12 + 1, number % 28 + 1) for number in range(n)]
    return [
        Pair(f"{day} {months[month - 1]} {year}", f"{year}-{month:02}-{day:02}") for year, month, day in days
    ]


QUICK = ["steps=4", "evaluate_every=2", "warmup_steps=2", "d_model=16", "n_heads=2", "n_layers=1", "d_ff=24"]
QUICK = [word for setting in (*QUICK, "precision=float32") for word in ("--set", setting)]


@pytest.fixture
def texts(tmp_path) -> list[str]:
    """The options for two files of a hundred dates, and how little is trained on them."""
    for side, name in enumerate(("train.words", "train.iso")):
        lines = "".join(pair[side] + "\n" for pair in dates(100))
        (tmp_path / name).write_text(lines, encoding="utf8")
    files = ["--source", str(tmp_path / "train.words"), "--target", str(tmp_path / "train.iso")]
    return ["train", *files, "--directory", str(tmp_path / "run"), *QUICK]


@pytest.mark.slow
def test_own_files_end_in_a_translator_that_every_command_takes(texts, tmp_path, capsys):
    assert main([*texts, "--languages", "en", "zxx"]) == 0
    said = capsys.readouterr().out
    assert "80 pairs to train on, 20 to judge by, none of which is trained on" in said
    assert "texts: as it is, en to zxx; a vocabulary of up to " in said
    assert "n_layers 1, d_model 16, dropout 0.1; batches of 1,000 tokens" in said
    assert "4 updates with a warm-up of 2" in said
    record = json.loads((tmp_path / "run" / "record.json").read_text(encoding="utf8"))
    held = record["scores"]["held out"]
    assert held["pairs"] == 20 and set(held["beam 4"]) == {"BLEU-detok", "chrF2", "exact"}
    assert all(score["line"] in said for score in held["beam 4"].values())
    model = str(tmp_path / "run" / "translator")
    translator = Translator.load(model)
    assert main(["translate", "--model", model, "1 Jan 1900"]) == 0
    assert capsys.readouterr().out == "".join(text + "\n" for text in translator.translate(["1 Jan 1900"]))
    files = ["--source", str(tmp_path / "train.words"), "--reference", str(tmp_path / "train.iso")]
    assert main(["evaluate", "--model", model, *files]) == 0
    assert capsys.readouterr().out.count("case:mixed") == 3
    assert main(["info", "--model", model]) == 0
    assert main(["translate", "--model", str(tmp_path / "run"), "1 Jan 1900"]) == 2
    assert capsys.readouterr().err.endswith(f"; {model} is one\n")
    same = ["--dev-source", files[1], "--dev-target", files[3], "--max-minutes", "0"]
    assert main([*texts, *same, "--directory", str(tmp_path / "same")]) == 0
    assert "100 to judge by, 100 of them trained on as well" in capsys.readouterr().out
    for name in files[1::2]:
        open(name, "w").close()
    assert main(["evaluate", *files]) == 2 and "holds no sentence to score" in capsys.readouterr().err
    data = read_recipe(tmp_path / "run" / "config.json").data
    assert data.languages == "en zxx" and data.preparation == "as it is"


@pytest.mark.slow
def test_a_run_on_own_files_goes_on_and_ends_as_in_one(texts, tmp_path, capsys):
    assert main([*texts, "--max-minutes", "0"]) == 0
    assert "the same command goes on from there" in capsys.readouterr().out
    assert Translator.load(tmp_path / "run" / "translator").translate([""]) == [""]
    assert main([*texts, "--max-minutes", "inf"]) == 0
    assert "going on from step 1 of 4" in capsys.readouterr().err
    whole = [str(tmp_path / "whole") if word == str(tmp_path / "run") else word for word in texts]
    assert main(whole) == 0
    weights = [tmp_path / name / "translator" / "model.safetensors" for name in ("run", "whole")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    place = texts.index("warmup_steps=2")  # which the run keeps, also where it isn't said again
    assert main([*texts[: place - 1], *texts[place + 1 :], "--set", "steps=5"]) == 0
    out, err = capsys.readouterr()
    assert "going on from step 4 of 5" in err and "5 updates with a warm-up of 2" in out


@pytest.mark.slow
def test_texts_that_have_changed_are_refused(texts, tmp_path, capsys):
    assert main([*texts, "--max-minutes", "0"]) == 0
    path = tmp_path / "train.iso"
    path.write_bytes(path.read_bytes().replace(b"1900", b"1901"))
    before = files_in(tmp_path / "run")
    assert main(texts) == 2
    assert "run holds a run with sha256 = " in capsys.readouterr().err
    assert files_in(tmp_path / "run") == before


@pytest.mark.slow
def test_texts_that_lie_elsewhere_are_the_same_texts(texts, tmp_path, capsys):
    assert main([*texts, "--max-minutes", "0"]) == 0
    (tmp_path / "moved").mkdir()
    for name in ("train.words", "train.iso"):
        (tmp_path / name).rename(tmp_path / "moved" / name)
    moved = [word.replace("/train.", "/moved/train.") for word in texts]
    assert main(moved) == 0
    assert "going on from step 1 of 4" in capsys.readouterr().err
    data = read_recipe(tmp_path / "run" / "config.json").data
    assert data.files == [str(tmp_path / "moved" / name) for name in ("train.words", "train.iso")]


@pytest.mark.parametrize("name", ["sha256", "source", "corpus"])
def test_what_follows_from_texts_cannot_be_set(name, texts, tmp_path, capsys):
    assert main([*texts, "--set", f"{name}="]) == 2
    assert f"{name} cannot be set: it follows from the texts" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


LONG_TEXT = " ".join(f"w{number}" for number in range(3000))
SHORT_PAIRS = "".join(f"a{number} b\tc\n" for number in range(30))


@pytest.mark.parametrize(
    ("files", "more", "message"),
    [
        ({"source": ""}, [], "{source}: no lines, and no pairs"),
        ({"source": SHORT_PAIRS, "dev-source": ""}, [], "{dev-source}: no lines, and no pairs"),
        ({"source": "a\tb\n"}, [], "{source}: pairs must hold two different pairs, .*, not 1 .of 1."),
        ({"source": f"{LONG_TEXT}\ta\n{LONG_TEXT}\tb\nc\td\n", "dev-source": f"a\t{LONG_TEXT}\n"}, [],
         "{source}, {dev-source}: no pair to judge by, of 1, has at most 512 tokens on both sides"),
        ({"source": SHORT_PAIRS}, ["--set", "max_tokens=2"], "no pair to .*, has at most 2 tokens"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*are left out")
def test_texts_without_a_pair_to_learn_from_are_named(files, more, message, tmp_path, capsys):
    options, paths = [], {name: str(tmp_path / name) for name in files}
    for name, text in files.items():
        Path(paths[name]).write_text(text, encoding="utf8")
        options += [f"--{name}", paths[name]]
    assert main(["train", *options, "--directory", str(tmp_path / "run"), *QUICK, *more]) == 2
    assert re.search(message.format(**paths), capsys.readouterr().err)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "warmup"),
    [
        ("steps=700", 100),
        ("steps=1", 1),
        ("steps=700 warmup_steps=30", 30),
        ("steps=9000 peak_rate=.01", 200),
    ],
)
def test_fewer_steps_have_a_shorter_warm_up_unless_it_is_said(changes, warmup):
    words = [word for change in changes.split() for word in ("--set", change)]
    recipe = requested(parser(COMMANDS).parse_args(["train", "phrases", "--directory", "none", *words]))
    assert recipe == changed(RECIPES["phrases"], **parsed(changes.split()) | {"warmup_steps": warmup})


@pytest.mark.parametrize(
    ("words", "n_shapes"), [("phrases", 16), ("phrases --set n_shapes=5", 5), ("toy", None)]
)
def test_updates_as_graphs_get_batches_of_few_shapes(words, n_shapes):
    recipe = requested(parser(COMMANDS).parse_args(["train", *words.split(), "--graphs", "--directory", "x"]))
    assert settings(recipe).get("n_shapes") == n_shapes


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train.iso", b"1900-01-01\n", "100 source lines but 1 target lines, so that line 2 is alone"),
        ("train.iso", b"\n" * 100, "train.iso: line 1 holds an empty sentence"),
        ("train.words", b"a\n" * 98 + b"\xff\na\n", "train.words is not UTF-8: byte 0xff in line 99"),
        ("train.words", b"", "0 source lines but 100 target lines"),
    ],
)
def test_own_files_that_are_no_corpus_are_refused_by_line(texts, name, content, message, tmp_path, capsys):
    (tmp_path / name).write_bytes(content)
    assert main(texts) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and message in said and said.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.fixture
def threads(monkeypatch) -> list[int]:
    """The numbers of threads that are asked for, as they come."""
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return asked


@pytest.mark.slow
def test_a_narrow_model_is_trained_by_one_thread_and_a_wide_one_by_all(texts, threads, tmp_path, capsys):
    assert main([*texts, "--max-minutes", "0"]) == 0
    assert threads == [1]
    wide = ["--directory", str(tmp_path / "wide"), "--set", "d_model=256", "--max-minutes", "0"]
    assert main([*texts, *wide]) == 0
    assert threads == [1]


# Runs whose terminal, or whose reader, goes away


LONG = ["train", "toy", "--set", "steps=100000", "--set", "evaluate_every=100000", "--set", "batch_size=2"]
LONG += ["--set", "log_every=1"]


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="has no terminals of this kind")
def test_a_run_under_nohup_goes_on_without_its_terminal(tmp_path):
    import pty

    process, terminal = pty.fork()
    if process == 0:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        command = [sys.executable, "-m", "transformer", *LONG, "--directory", str(tmp_path)]
        os.execv(command[0], command)
    shown = b""
    while not re.search(rb"step [1-9]\d* of 100,000: loss", shown):
        shown += os.read(terminal, 1000)
    os.close(terminal)
    time.sleep(1)
    assert os.waitpid(process, os.WNOHANG) == (0, 0)  # it goes on, and says no more
    os.kill(process, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 128 + signal.SIGTERM
    _, newest = RunFolder(tmp_path).checkpoints()
    assert load_checkpoint(newest)["updater"]["step"] > 0


# Interrupts


@contextmanager
def long_run(folder: Path, *program: str):
    """A process that trains a translator into `folder / "run"` and has made updates; and its options."""
    for name in ("train", "dev"):
        (folder / f"{name}.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS))
    sizes = "vocab_size=90 d_model=16 n_heads=2 n_layers=1 d_ff=24 log_every=1".split()
    sizes += ["steps=100000", "evaluate_every=100000"]
    options = ["train", "--source", str(folder / "train.tsv"), "--dev-source", str(folder / "dev.tsv")]
    options += ["--directory", str(folder / "run"), *(x for size in sizes for x in ("--set", size))]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, *program, *options], **pipes) as process:
        try:
            while not ((log := folder / "run" / "log.jsonl").exists() and log.stat().st_size):
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.05)
            yield process, options
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals are of another kind there")
def test_a_run_that_is_stopped_leaves_a_translator_and_says_how_to_go_on(tmp_path, capsys):
    with long_run(tmp_path, "-m", "transformer") as (process, options):
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGINT
    usable, again = tmp_path / "run" / "translator", shlex.join(["python", "-m", "transformer", *options])
    stopped = re.search(r"^stopped at step ([\d,]+) of 100,000 with a checkpoint.*; what (.*)$", said, re.M)
    assert stopped[2] == f"can be used already: {usable}; to go on: {again}"
    assert len(Translator.load(usable).translate(["gosto disto .", "a casa é velha ."])) == 2
    assert main([*shlex.split(again)[3:], "--max-minutes", "0"]) == 0
    step, (out, err) = int(stopped[1].replace(",", "")), capsys.readouterr()
    assert f"going on from step {step:,} of 100,000\n" in err
    assert f"time is over at step {step + 1:,}; the same command" in out


# Translating


@pytest.mark.slow
def test_arguments_and_lines_are_translated(capsys, monkeypatch):
    assert main(["translate", CAT, ""]) == 0
    assert capsys.readouterr().out == "the girl likes the black cat.\n\n"
    type_in(monkeypatch, f"\ufeffGosto disto.\r\n\n{CAT}".encode())
    assert main(["translate", "--beam", "1"]) == 0
    first, *others = capsys.readouterr().out.splitlines()
    assert first == Translator.load("phrases").translate(["Gosto disto."], beam_size=1)[0]
    assert others == ["", "the girl likes the black cat."]


def test_search_is_the_one_that_was_asked_for(capsys, monkeypatch):
    seen = []
    monkeypatch.setattr(
        Translator,
        "translate_checked",
        lambda self, sentences, search: seen.append(search) or [Translation(text, ()) for text in sentences],
    )
    assert main(["translate", CAT]) == 0
    assert main(["translate", "--beam", "7", "--length-penalty", "1.5", CAT]) == 0
    assert main(["translate", "--beam-size", "7", "--max-length", "9", "--max-tokens", "99", CAT]) == 0
    assert seen == [Search(), Search(7, 1.5), Search(7, max_length=9, max_tokens=99)]


def test_line_that_is_no_utf_8_is_named(capsys, monkeypatch):
    type_in(monkeypatch, CAT.encode() + b"\nn\xe3o\n")
    assert main(["translate", "--beam", "1"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "error: standard input, line 2 is not UTF-8: byte 0xe3 at position 2\n"


def test_a_doubtful_line_is_named_and_the_others_are_not(capsys, monkeypatch):
    type_in(monkeypatch, "Gosto disto.\nO cão dorme. A gata come.\n世界\n".encode())
    assert main(["translate", "--beam", "1"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[::2] == ["i like this.", "世界"]
    assert said.err.splitlines() == [
        "warning: standard input, line 2 is 2 sentences, and its translation 1: give each a line of its own",
        "warning: standard input, line 3 has no character of the vocabulary, and is copied",
    ]


# Scores


@pytest.fixture
def short(monkeypatch):
    pairs = {split: load_corpus("phrases", split)[:20] for split in ("train", "dev", "test")}
    monkeypatch.setattr(transformer.commands.evaluate, "load_corpus", lambda name, split: pairs[split])
    return pairs


def lines(pairs, search=Search(1), n_bootstrap=0):
    written = Translator.load("phrases").translate_tokenized([pair.source for pair in pairs], search)
    scores = corpus_scores(written, [pair.target for pair in pairs], n_bootstrap, CORPORA)
    return [score["line"] for score in scores.values()]


@pytest.mark.slow
def test_pairs_that_training_showed_are_left_out_in_a_second_count(short, capsys):
    short["test"][:5] = short["train"][:5]
    assert main(["evaluate", "--beam", "1"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[5:] == [
        "15 pairs, without 5 that are in the training split as well",
        *lines(short["test"][5:]),
    ]
    assert main(["evaluate", "--beam", "1", "--split", "train"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5


# What is wrong


@pytest.mark.slow
def test_info_shows_what_a_translator_is_made_of(capsys):
    assert main(["info"]) == 0
    said = capsys.readouterr().out
    model = Translator.load("phrases", "cpu").model
    size = sum(parameter.numel() for parameter in model.parameters())
    shown = {"parameters": size} | asdict(model.config)
    assert said.splitlines() == [f"{key}: {value}" for key, value in shown.items()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "train needs one of two: the name of a recipe, or texts of your own (--source)"),
        (["train", "toy", "--dev-source", "a"], "--dev-source needs --source: it is for texts of your own"),
        (["train", "--source", "a", "--dev-target", "b"], "--dev-target needs --dev-source"),
        (["train", "--source", "a", "--languages", "German", "en"], "must be two codes such as 'pt'"),
        (["train", "phrases", "--max-minutes", "-1"], "--max-minutes: must lie in [0.0, inf], but is -1"),
        (["train", "phrases", "--device", "nowhere"], "device 'nowhere'"),
        (["train", "toy", "--set", "setps=3"], "'setps' is not a setting of this recipe"),
        (["train", "toy", "--set", "steps=2.5"], "steps must be an int, not float (2.5)"),
        (["train", "toy", "--set", "norm_first=yes"], "norm_first must be a bool, not str ('yes')"),
        (["translate", "--model", "nowhere", "a"], "nowhere"),
        (["translate", "--beam", "0", "o gato"], "error: beam_size must be at least 1, but is 0"),
        (["serve", "--max-tokens", "0"], "error: max_tokens must be at least 1, but is 0"),
        (["translate", "--model", "", "a"], "there is no translator ''"),
        (["translate", "--model", "\x1b[31mred\n\x9b", "a"], "no translator '\\x1b[31mred\\n\\x9b'"),
        (["fly"], "fly"),
        (["train", "--epochs", "3"], "unrecognized arguments: --epochs"),  # whatever follows it
        (["--epochs", "3", "train"], "--epochs stands before the command"),
        (["train", "nothing"], "recipe must be one of ['toy', 'phrases', "),
        (["evaluate", "--corpus", "klingon"], "klingon"),
        (["train", "toy", "--set", "steps"], "--set must have the form NAME=VALUE, not 'steps'"),
        (["evaluate", "--source", "a"], "--source and --reference belong together"),
        (["evaluate", *"--source a --reference b --split dev".split()], "--split are of a corpus"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and message in said and said.count("\n") == 1
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", said)
    assert list(tmp_path.iterdir()) == []


def test_what_nobody_foresaw_is_one_line_too_and_debug_shows_where(capsys, monkeypatch):
    def fail(*given):
        raise RuntimeError("no memory\nException raised from alloc (most recent call first):\nframe #0: 0x7f")

    monkeypatch.setattr(Translator, "translate_checked", fail)
    assert main(["translate", CAT]) == 2
    said = "error: RuntimeError: no memory (--debug shows where)\n"
    assert capsys.readouterr().err == said
    assert main(["translate", "--debug", CAT]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback") and "in fail" in shown and shown.endswith(said)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_said_once():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "transformer", "info"]
        ran = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=300, check=False)
    assert ran.returncode == 2 and ran.stderr.startswith(b"error: ") and ran.stderr.count(b"\n") == 1
