"""The command line: what it says, what it refuses, and what it leaves behind."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import tracemalloc
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

import pytest
import torch
from helpers import PAIRS

import transformer
import transformer.__main__ as cli
from transformer import RECIPES, Translator, corpus_scores, load_corpus, train_translator
from transformer.__main__ import check_folder, check_memory, claimed, main, parsed, parser
from transformer.corpora import CorpusError, Pair
from transformer.files import run_facts, write_record
from transformer.recipes import changed, read_recipe, settings

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
    monkeypatch.setattr(
        cli, "train_translator", lambda *given, **named: train_translator(*given, load=ours, **named)
    )
    scores = {"tuned": {"BLEU-tok": {"line": "BLEU = 1.00"}}}
    monkeypatch.setattr(
        cli,
        "translation_record",
        lambda translator, trainer, recipe: (
            run_facts("cpu") | {"recipe": asdict(recipe), "scores": {"test": scores}}
        ),
    )


# Help


def subparsers() -> dict:
    (commands,) = (action for action in parser()._actions if action.choices)
    return commands.choices


def test_alone_it_explains_itself(capsys):
    assert main([]) == 2
    said = capsys.readouterr().err
    assert len(re.findall("^  python -m transformer ", said, re.MULTILINE)) == 3
    assert set(subparsers()) == {"train", "translate", "evaluate", "info", "serve", "check"}
    assert all(re.search(rf"^ +{name}\b", said, re.MULTILINE) for name in subparsers())


@pytest.mark.parametrize("name", ["train", "translate", "evaluate", "info", "serve", "check"])
def test_every_option_says_what_it_does_and_what_it_is_without(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    for action in subparsers()[name]._actions:
        assert action.help, action.dest
        if action.dest in ("help", "debug", "set", "config", "recipe", "source", "reference"):
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
        assert shown == [f"{key}: {value}" for key, value in settings(recipe).items()]


# Settings


def test_changes_take_the_type_of_their_field():
    changes = parsed(RECIPES["phrases"], ["steps=12", "dropout=0.25", "norm_first=false", "corpus=ted"])
    assert changes == {"steps": 12, "dropout": 0.25, "norm_first": False, "corpus": "ted"}
    assert parsed(RECIPES["toy"], ["unknown=3"]) == {"unknown": "3"}  # which `changed` refuses


# Training


def test_toy_trains_into_a_folder(tmp_path, capsys):
    assert main(["train", "toy", "--directory", str(tmp_path), *TOY]) == 0
    assert {"log.jsonl", "model.safetensors", "record.json", "config.json"} <= set(files_in(tmp_path))
    assert json.loads((tmp_path / "record.json").read_text())["recipe"]["training"]["steps"] == 2
    assert "exact match" in capsys.readouterr().out


def test_the_toys_run_in_slices_ends_as_in_one(tmp_path, capsys):
    command = ["train", "toy", *TOY, "--directory"]
    assert main([*command, str(tmp_path / "slices"), "--max-minutes", "0"]) == 0
    weights = tmp_path / "slices" / "model.safetensors"
    assert capsys.readouterr().out.splitlines() == [
        "time is over at step 1; the same command goes on from there",
        f"what can be used already: {weights}",
    ]
    assert not (tmp_path / "slices" / "record.json").exists()
    assert main([*command, str(tmp_path / "slices")]) == main([*command, str(tmp_path / "whole")]) == 0
    assert weights.read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()


def test_a_run_leaves_its_recipe_and_its_translator(quick, tmp_path, capsys):
    assert main(["train", "tiny", "--directory", str(tmp_path / "run"), "--set", "seed=5"]) == 0
    said = capsys.readouterr().out
    assert said.splitlines() == ["BLEU = 1.00", f"the run's folder: {tmp_path / 'run'}"]
    assert (tmp_path / "run" / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert read_recipe(tmp_path / "run" / "config.json") == changed(TINY, seed=5)
    assert read_recipe(tmp_path / "run" / "record.json") == changed(TINY, seed=5)
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
    train_translator(changed(TINY, steps=2), tmp_path, load=ours)
    write_record(tmp_path / "config.json", asdict(TINY))
    assert main(["train", "tiny", *folder]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "going on from step 2 of 4"
    last = (tmp_path / "log.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["step"] == 4


def test_a_run_in_slices_says_how_far_it_is_and_can_be_used(quick, tmp_path, capsys):
    command = ["train", "tiny", "--directory", str(tmp_path / "slices")]
    assert main([*command, "--max-minutes", "0"]) == 0
    over, usable = capsys.readouterr().out.splitlines()
    step = re.fullmatch(r"time is over at step ([1-3]); the same command goes on from there", over)[1]
    assert usable == f"what can be used already: {tmp_path / 'slices' / 'translator'}"
    assert not (tmp_path / "slices" / "record.json").exists()
    assert Translator.load(tmp_path / "slices" / "translator").translate([""]) == [""]
    assert main([*command, "--max-minutes", "5"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"going on from step {step} of 4"
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


def another(name: str, value):
    """A value of a setting that is not the one of TINY; of steps fewer, since more may be asked for."""
    known = {"precision": "bfloat16", "activation": "gelu", "n_heads": 4, "steps": 2}
    if name in known or isinstance(value, str | bool):
        return known.get(name, not value if isinstance(value, bool) else f"{value}2")
    return value / 2 + 0.25 if isinstance(value, float) else 2 * value + 2


@pytest.mark.parametrize("name", list(settings(TINY)))
def test_a_run_of_another_recipe_is_left_alone(name, tmp_path):
    with claimed(tmp_path, TINY):
        (tmp_path / "checkpoint-00000002.pt").write_bytes(b"weights")
    before, value = files_in(tmp_path), settings(TINY)[name]
    other = another(name, value)
    with pytest.raises(ValueError, match=re.escape(f"a run with {name} = {value}, and {name} = {other}")):
        check_folder(tmp_path, changed(TINY, **{name: other}))
    assert files_in(tmp_path) == before


def test_steps_may_be_raised_and_that_is_said(quick, tmp_path, capsys):
    folder = ["--directory", str(tmp_path / "run")]
    assert main(["train", "tiny", *folder]) == 0
    assert main(["train", "tiny", *folder, "--set", "steps=6"]) == 0
    assert "going on from step 4 of 6, raised from 4\n" in capsys.readouterr().out
    assert read_recipe(tmp_path / "run" / "config.json").training.steps == 6
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert log[-1]["step"] == 6 and [entry["step"] for entry in log if "rate" in entry] == [2, 4, 6]
    assert main(["train", "tiny", *folder]) == 2
    assert "a run with steps = 6, and steps = 4 is asked for" in capsys.readouterr().err


def test_checkpoints_without_a_recipe_are_left_alone(quick, tmp_path, capsys):
    folder = ["--directory", str(tmp_path)]
    assert main(["train", "tiny", *folder]) == 0
    (tmp_path / "config.json").unlink()
    before = files_in(tmp_path)
    assert main(["train", "tiny", *folder, "--set", "dropout=0.5"]) == 2
    assert "holds checkpoints, but no config.json" in capsys.readouterr().err
    assert files_in(tmp_path) == before


@pytest.mark.parametrize("left", ["best.pt", "record.json", "translator"])
def test_nothing_begins_anew_over_results(left, quick, tmp_path, capsys):
    assert main(["train", "tiny", "--directory", str(tmp_path)]) == 0
    for path in tmp_path.iterdir():
        if path.name not in (left, "config.json") and path.is_file():
            path.unlink()
        elif path.is_dir() and left != path.name:
            path.rename(tmp_path.parent / f"{path.name} of {left}")
    (tmp_path / left).exists() or (tmp_path / left).touch()
    before = files_in(tmp_path)
    assert main(["train", "tiny", "--directory", str(tmp_path)]) == 2
    assert f"holds {left} of a run, but no checkpoint to go on from" in capsys.readouterr().err
    assert files_in(tmp_path) == before


@pytest.mark.parametrize("failure", ["corpus", "library", "setting", "interrupt"])
def test_a_run_that_fails_at_once_leaves_nothing_behind(failure, quick, tmp_path, capsys, monkeypatch):
    given = ["train", "tiny", "--directory", str(tmp_path / "run")]
    error = {"corpus": CorpusError("no corpus"), "interrupt": KeyboardInterrupt()}.get(failure)

    def fail(*given, **named):
        raise error

    if failure == "library":
        error = ImportError("no tqdm")
        monkeypatch.setattr(cli, "optional_import", fail)
    elif failure == "setting":
        given += ["--set", "n_heads=3"]
    else:
        monkeypatch.setattr(cli, "train_translator", fail)
    assert main(given) == (130 if failure == "interrupt" else 2)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_fails_leaves_what_was_there_before(quick, tmp_path, monkeypatch):
    write_record(tmp_path / "config.json", asdict(TINY))
    (tmp_path / "mine.txt").write_text("mine")
    monkeypatch.setattr(cli, "train_translator", lambda *given, **named: 1 / 0)
    before = files_in(tmp_path)
    assert main(["train", "tiny", "--directory", str(tmp_path)]) == 2
    assert files_in(tmp_path) == before


def test_a_run_that_meets_another_leaves_it_its_recipe(quick, tmp_path, monkeypatch):
    def refuse(*given, **named):
        raise BlockingIOError("another process is training there")

    write_record(tmp_path / "config.json", asdict(TINY))
    (tmp_path / "log.jsonl").write_text('{"step": 1}\n')
    before = files_in(tmp_path)
    monkeypatch.setattr(cli, "train_translator", refuse)
    assert main(["train", "tiny", "--directory", str(tmp_path), "--set", "seed=5"]) == 2
    assert files_in(tmp_path) == before


def test_a_run_that_has_begun_keeps_its_recipe(quick, tmp_path, monkeypatch):
    def fail(recipe, folder, *given, **named):
        (folder / "log.jsonl").write_text('{"step": 1}\n')
        raise FloatingPointError("the loss is nan at step 2")

    monkeypatch.setattr(cli, "train_translator", fail)
    assert main(["train", "tiny", "--directory", str(tmp_path / "run")]) == 2
    assert set(files_in(tmp_path / "run")) == {"config.json", "log.jsonl"}


def test_a_stopped_run_ends_with_the_trainers_sentence_and_its_signal(quick, tmp_path, capsys, monkeypatch):
    def stop(*given, **named):
        error = KeyboardInterrupt("stopped by SIGTERM at step 3; the same command goes on from there")
        error.signal = signal.SIGTERM
        raise error

    monkeypatch.setattr(cli, "train_translator", stop)
    assert main(["train", "tiny", "--directory", str(tmp_path / "run")]) == 143
    said = capsys.readouterr().err
    assert said == "stopped by SIGTERM at step 3; the same command goes on from there\n"


def test_memory_is_asked_for_before_it_is_taken():
    for recipe in RECIPES.values():
        check_memory(recipe)
    with pytest.raises(ValueError, match="parameters needs [0-9,]+ GB in training"):
        check_memory(changed(TINY, vocab_size=10**12))


def test_the_memory_that_counts_is_that_of_the_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 10**5))
    check_memory(TINY)
    with pytest.raises(ValueError, match=r"cuda:1 has 0 GB$"):
        check_memory(TINY, "cuda:1")


def test_a_moving_average_needs_memory_too(monkeypatch):
    d, d_ff, n_layers = TINY.model.d_model, TINY.model.d_ff, TINY.model.n_layers
    parameters = TINY.data.vocab_size * d + n_layers * (12 * d**2 + 4 * d * d_ff)
    monkeypatch.setattr(cli, "memory_of", lambda device: 18 * parameters + 500_000 * n_layers)
    check_memory(changed(TINY, average=0.0))
    with pytest.raises(ValueError, match="in training"):
        check_memory(changed(TINY, average=0.999))


def test_finished_training_says_that_scoring_takes_its_time(quick, tmp_path, capsys):
    assert main(["train", "tiny", "--directory", str(tmp_path)]) == 0
    assert "scoring dev and test takes some minutes" in capsys.readouterr().err


def test_a_toy_run_is_no_place_for_a_translator(quick, tmp_path, capsys):
    assert main(["train", "toy", "--directory", str(tmp_path), *TOY]) == 0
    before = files_in(tmp_path)
    assert main(["train", "tiny", "--directory", str(tmp_path)]) == 2
    assert "holds a run with batch_size = 2" in capsys.readouterr().err
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
    assert said.err.splitlines() == [
        "warning: standard input, line 2 is cut to its first 32,768 characters",
        "warning: standard input, line 2 is cut to its first 511 tokens",
    ]


def groups_of(monkeypatch) -> list[list[str]]:
    """Let sentences pass untranslated, and note the groups in which they came."""
    groups = []
    monkeypatch.setattr(
        Translator, "translate", lambda self, given, *search: groups.append(list(given)) or groups[-1]
    )
    return groups


def test_lines_are_translated_in_groups_and_answered_in_order(capsys, monkeypatch):
    groups = groups_of(monkeypatch)
    type_in(monkeypatch, b"".join(b"%d\n" % number for number in range(150)))
    assert main(["translate"]) == 0
    assert [len(group) for group in groups] == [64, 64, 22]
    assert capsys.readouterr().out.splitlines() == [str(number) for number in range(150)]


def test_a_terminal_is_answered_line_by_line(capsys, monkeypatch):
    groups = groups_of(monkeypatch)
    type_in(monkeypatch, b"um\n\ndois\n")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    assert main(["translate"]) == 0
    assert groups == [["um"], [""], ["dois"]]


def test_groups_translate_as_single_lines_do(capsys, monkeypatch):
    sources = [source for source, _ in load_corpus("phrases", "test")[:70]]
    type_in(monkeypatch, "\n".join(sources).encode())
    assert main(["translate", "--beam", "1"]) == 0
    alone = Translator.load("phrases")
    assert capsys.readouterr().out.splitlines() == [alone.translate([text], 1)[0] for text in sources]


class Endless(io.RawIOBase):
    """A stream of lines, made as they are read."""

    def __init__(self, n_lines: int, line: bytes = b"gosto disto .\n") -> None:
        self.left, self.line, self.given = n_lines, line, 0

    def readline(self, size: int = -1) -> bytes:
        self.given += self.given < self.left
        return self.line if self.given < self.left else b""


def test_more_lines_need_no_more_memory(monkeypatch):
    # If lines were kept, the 80,000 more of them would show at least their pointers, of 8 bytes.
    def translate(self, sentences, *search):
        behind.append(stream.given - sum(behind))
        return sentences

    monkeypatch.setattr(Translator, "translate", translate)
    Translator.load("phrases")
    peaks = []
    for count in (20_000, 100_000):
        stream, behind = Endless(count), []
        source = type("Input", (), {"buffer": stream, "isatty": lambda self: False})()
        monkeypatch.setattr("sys.stdin", source)
        with open(os.devnull, "w") as nowhere:
            monkeypatch.setattr("sys.stdout", nowhere)
            tracemalloc.start()
            assert main(["translate"]) == 0
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        assert max(behind) <= 64 and stream.given == count
        behind.clear()
    assert peaks[1] < peaks[0] + 300_000


def test_what_comes_before_a_line_that_is_no_utf_8_is_answered(capsys, monkeypatch):
    groups_of(monkeypatch)
    type_in(monkeypatch, b"ol\xc3\xa1\n" * 69 + b"n\xe3o\n" + b"never\n" * 9)
    assert main(["translate"]) == 2
    said = capsys.readouterr()
    assert said.out == "olá\n" * 69
    assert said.err == "error: standard input, line 70 is not UTF-8: byte 0xe3 at position 2\n"


def test_a_warning_names_the_line_in_whatever_group_it_came(capsys, monkeypatch):
    type_in(monkeypatch, b"\n" * 69 + b"gato " * 600 + b"\n\n")
    assert main(["translate", "--beam", "1"]) == 0
    said = capsys.readouterr()
    assert said.err == "warning: standard input, line 70 is cut to its first 511 tokens\n"
    assert [bool(line) for line in said.out.splitlines()] == [False] * 69 + [True, False]


@pytest.mark.parametrize("more", [0, 1, 65_536, 200_000])
def test_a_line_is_read_up_to_its_bound(more, capsys, monkeypatch):
    groups = groups_of(monkeypatch)
    type_in(monkeypatch, f"{'é' * 32_768}{'x' * more}\nfim\n".encode())
    assert main(["translate"]) == 0
    assert groups == [["é" * 32_768, "fim"]]
    said = capsys.readouterr().err
    warned = "warning: standard input, line 1 is cut to its first 65,536 bytes\n"
    assert said == (warned if more > 0 else "")


def test_a_character_at_the_bound_is_left_out_and_no_error(capsys, monkeypatch):
    groups = groups_of(monkeypatch)
    type_in(monkeypatch, ("x" + "é" * 40_000).encode())
    assert main(["translate"]) == 0
    assert groups == [["x" + "é" * 32_767]]


MEMORY = """
import resource, sys
from transformer.__main__ import main
for path in sys.argv[1:]:
    with open(path) as sys.stdin:
        assert main(["translate", "--beam", "1"]) == 0
    print("memory", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted in other units elsewhere")
def test_a_line_of_ten_megabytes_needs_no_more_memory_than_one_of_thousands(tmp_path):
    """The system's figure is the most that the process ever had: what the second line adds is its own."""
    paths = [tmp_path / str(size) for size in (3_000, 10_000_000)]
    for path in paths:
        path.write_bytes(b"gato " * (int(path.name) // 5) + b"\ngosto disto .\n")
    ran = subprocess.run([sys.executable, "-c", MEMORY, *paths], capture_output=True, timeout=300, check=True)
    assert ran.stdout.splitlines()[1::2] == [b"i like this."] * 2
    peaks = [int(peak) / 1000 for peak in re.findall(rb"memory (\d+)", ran.stderr)]  # MB
    assert peaks[1] < peaks[0] + 100


@pytest.mark.skipif(os.name == "nt", reason="signals are of another kind there")
def test_a_request_to_terminate_ends_it_with_a_word():
    with subprocess.Popen(
        [sys.executable, "-m", "transformer", "translate"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as program:  # fmt: skip
        program.stdin.write(b"gosto disto .\n" * 64)
        program.stdin.flush()
        assert program.stdout.readline() == b"i like this.\n"  # it is at work
        time.sleep(0.2)
        program.send_signal(signal.SIGTERM)
        _, said = program.communicate(timeout=60)
    assert (program.returncode, said) == (143, b"terminated\n")


def test_the_name_of_the_built_in_translator_means_no_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "phrases").mkdir()
    assert main(["translate", CAT]) == main(["translate", "--model", "phrases", CAT]) == 0
    assert capsys.readouterr().out == "the girl likes the black cat.\n" * 2
    assert main(["translate", "--model", "./phrases", CAT]) == 2
    assert "phrases is not a translator, as config.json is missing" in capsys.readouterr().err


def test_the_folder_of_a_run_leads_to_its_translator(quick, tmp_path, capsys):
    assert main(["train", "tiny", "--directory", str(tmp_path / "run")]) == 0
    assert main(["translate", "--model", str(tmp_path / "run"), "a"]) == 2
    hint = f"the translator of this run is {tmp_path / 'run' / 'translator'}"
    assert hint in capsys.readouterr().err


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


@pytest.mark.parametrize(
    "source",
    ["import sys\nsys.exit(0)", "def build():\n    raise SystemExit"],
    ids=["the module", "the function"],
)
def test_a_module_that_ends_the_program_has_passed_no_check(source, tmp_path):
    (tmp_path / "mine.py").write_text(source)
    command = [sys.executable, "-m", "transformer", "check", "mine:build"]
    environment = os.environ | {"PYTHONPATH": str(Path(transformer.__file__).parents[1])}
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    code = 0 if "exit(0)" in source else None
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == f"error: mine:build called exit({code}), and left no model\n"


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
        "15 pairs, without 5 that are in the training split as well",
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
        (["train", "phrases", "--max-minutes", "-1"], "--max-minutes: must lie in [0.0, inf], but is -1"),
        (["train", "phrases", "--device", "nowhere"], "device 'nowhere'"),
        (["train", "toy", "--set", "setps=3"], "'setps' is not a setting of this recipe"),
        (["train", "toy", "--set", "steps"], "steps must be an int, not ''"),
        (["train", "toy", "--set", "steps=2.5"], "steps must be an int, not '2.5'"),
        (["train", "toy", "--set", "dropout=much"], "dropout must be a float, not 'much'"),
        (["train", "toy", "--set", "norm_first=yes"], "norm_first must be true or false, not 'yes'"),
        (["translate", "--model", "nowhere", "a"], "nowhere"),
        (["translate", "--beam", "0", "o gato"], "--beam: must lie in [1, 100], but is 0"),
        (["translate", "--beam", "1000000", "o gato"], "--beam: must lie in [1, 100], but is 1000000"),
        (["translate", "--beam", "wide", "o gato"], "--beam: "),
        (["evaluate", "--beam", "101"], "--beam: must lie in [1, 100], but is 101"),
        (["translate", "--length-penalty", "-1", "o gato"], "--length-penalty: must lie in [0.0, 10.0]"),
        (["translate", "--length-penalty", "200", "o gato"], "--length-penalty: must lie in [0.0, 10.0]"),
        (["translate", "--length-penalty", "nan", "o gato"], "--length-penalty: must lie in [0.0, 10.0]"),
        (["evaluate", "--bootstrap", "-1"], "--bootstrap: must lie in [0, 100000], but is -1"),
        (["train", "phrases", "--max-minutes", "nan"], "--max-minutes: must lie in"),
        (["train", "toy", "--directory", ""], "--directory: must not be empty"),
        (["train", "phrases", "--set", "d_model=100000"], "240,324,800,000 parameters needs 3,845 GB"),
        (["train", "phrases", "--set", "n_layers=1000000"], "GB in training, but cpu has"),
        (["translate", "--model", "", "a"], "there is no translator ''"),
        (["translate", "--model", "missing/", "a"], "there is no translator 'missing/'"),
        (["translate", "--model", "\x1b[31mred\n\x9b", "a"], "no translator '\\x1b[31mred\\n\\x9b'"),
        (["fly"], "fly"),
        (["--fly\x1b"], "\\x1b"),
        (["evaluate", "--corpus", "klingon"], "klingon"),
        (["evaluate", "--split", "exam"], "exam"),
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
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", said)
    assert list(tmp_path.iterdir()) == []


def test_what_nobody_foresaw_is_one_line_too_and_debug_shows_where(capsys, monkeypatch):
    def fail(*given):
        raise RuntimeError("no memory\nException raised from alloc (most recent call first):\nframe #0: 0x7f")

    monkeypatch.setattr(Translator, "translate", fail)
    assert main(["translate", CAT]) == 2
    said = "error: RuntimeError: no memory (--debug shows where)\n"
    assert capsys.readouterr().err == said
    for arguments in (["--debug", "translate", CAT], ["translate", "--debug", CAT]):
        assert main(arguments) == 2
        shown = capsys.readouterr().err
        assert shown.startswith("Traceback") and "in fail" in shown and shown.endswith(said)


def test_an_error_without_words_is_named(capsys, monkeypatch):
    def fail(*given):
        raise MemoryError

    monkeypatch.setattr(Translator, "translate", fail)
    assert main(["translate", CAT]) == 2
    assert capsys.readouterr().err == "error: MemoryError (--debug shows where)\n"


def test_a_message_of_many_lines_is_put_on_one(capsys, monkeypatch):
    def fail(*given):
        raise CorpusError("not here:\n  a\n  b\nPut it there.")

    monkeypatch.setattr(cli, "load_corpus", fail)
    assert main(["evaluate"]) == 2
    assert capsys.readouterr().err == "error: not here: a b Put it there.\n"


def run(redirected: str, **given) -> subprocess.CompletedProcess:
    """The program as a shell starts it, with some of its streams closed or led elsewhere."""
    command = f'exec "$0" -m transformer {redirected}'
    return subprocess.run(
        ["sh", "-c", command, sys.executable], capture_output=True, timeout=300, check=False, **given
    )


@pytest.mark.skipif(os.name == "nt", reason="needs a shell that can close streams")
@pytest.mark.parametrize(
    ("redirected", "message"),
    [
        ("translate <&-", b"error: standard input is closed, and no sentence is given\n"),
        ("translate a >&-", b"error: standard output is closed\n"),
        ("translate a >&- 2>&-", b""),
    ],
)
def test_closed_streams_are_no_reason_for_a_traceback(redirected, message):
    ran = run(redirected)
    assert (ran.returncode, ran.stderr) == (2, message)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_said_once():
    ran = run("translate a >/dev/full")
    assert ran.returncode == 2 and ran.stderr.startswith(b"error: ") and ran.stderr.count(b"\n") == 1


def test_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"transformer-book {metadata.version('transformer-book')}\n"


def test_help_speaks_of_the_program_by_the_name_it_was_started_by(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/transformer-book"])
    assert main([]) == 2
    said = capsys.readouterr().err
    assert "usage: transformer-book " in said and "\n  transformer-book train phrases" in said
    assert "python -m transformer" not in said
