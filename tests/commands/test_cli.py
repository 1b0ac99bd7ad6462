"""The command line: what it says, what it refuses, and what it leaves behind."""

import inspect
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, fields
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import PAIRS, refuses

import transformer
import transformer.commands.claim
import transformer.commands.evaluate
import transformer.commands.options
import transformer.commands.train
from transformer import RECIPES, Translator, corpus_scores, load_corpus, train_translator
from transformer.__main__ import main, parser
from transformer.commands.claim import check_folder, check_room, claimed
from transformer.commands.data import Lessons
from transformer.commands.recipes import changed, parsed, read_recipe, settings
from transformer.commands.training import train_recipe
from transformer.files import read_record, write_record
from transformer.language.corpora import CorpusError, Pair
from transformer.language.doubts import Translation
from transformer.language.translator import Search
from transformer.runs.checkpoints import load_checkpoint
from transformer.runs.folder import RunFolder, read_log
from transformer.runs.journal import Journal
from transformer.runs.trainer import StoppedRun

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


def train_on(load, recipe, *given, **named):
    """Train as the program does, on splits that `load` gives."""
    return train_recipe(recipe, *given, read=partial(recipe.data.read, load), **named)


@pytest.fixture
def quick(monkeypatch):
    """Training and examining, small enough for a test; the recipe `tiny` runs through the real code."""
    monkeypatch.setitem(RECIPES, "tiny", TINY)
    monkeypatch.setattr(transformer.commands.train, "train_recipe", partial(train_on, ours))
    scores = {"tuned": {"BLEU-tok": {"line": "BLEU = 1.00"}}}
    monkeypatch.setattr(Lessons, "record", lambda *given: {"scores": {"test": scores}})


# Help


def subparsers() -> dict:
    (commands,) = (action for action in parser()._actions if isinstance(action.choices, dict))
    return commands.choices


COMMANDS = ["train", "translate", "evaluate", "info", "serve", "check"]


def test_alone_it_explains_itself(capsys):
    assert main([]) == 2
    said = capsys.readouterr().err
    assert len(re.findall("^  python -m transformer ", said, re.MULTILINE)) == 4
    assert set(subparsers()) == set(COMMANDS)
    assert all(re.search(rf"^ +{name}\b", said, re.MULTILINE) for name in subparsers())


@pytest.mark.parametrize("name", COMMANDS)
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
        if not isinstance(action.default, None | list | Search):
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


COMPLETE = """\
source "$1"
COMP_WORDS=("${@:2}") COMP_CWORD=$(($# - 2))
_shtab_transformer_book
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def completion(tmp_path_factory):
    """Completes a line as bash does with what the command line prints for it."""
    pytest.importorskip("shtab", reason="shtab is not installed")
    if not shutil.which("bash"):
        pytest.skip("there is no bash")
    script = tmp_path_factory.mktemp("completion") / "script"
    with script.open("w") as out, redirect_stdout(out), pytest.raises(SystemExit) as ended:
        main(["--print-completion", "bash"])
    assert ended.value.code == 0

    def complete(*words: str) -> list[str]:
        line = ["bash", "-c", COMPLETE, "bash", script, "transformer-book", *words]
        ran = subprocess.run(line, cwd=script.parent, capture_output=True, text=True, check=True)
        return ran.stdout.split()

    return complete


def test_a_shell_completes_commands_options_recipes_and_files(completion):
    assert completion("tr") == ["train", "translate"]
    assert completion("translate", "--le") == ["--length-penalty"]
    assert completion("train", "ted-") == [name for name in RECIPES if name.startswith("ted-")]
    assert completion("info", "--recipe", "to") == ["toy"]
    assert completion("train", "--config", "scr") == ["script"]
    assert completion("translate", "--model", "scr") == []  # is no folder


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_completion_too(shell, capsys):
    pytest.importorskip("shtab", reason="shtab is not installed")
    with pytest.raises(SystemExit):
        main(["--print-completion", shell])
    said = capsys.readouterr().out
    assert "transformer-book" in said and "--length-penalty" in said.replace(" -l ", " --")


# Settings


def test_changes_take_the_type_of_their_field():
    changes = parsed(RECIPES["phrases"], ["steps=12", "dropout=0.25", "norm_first=false", "corpus=ted"])
    assert changes == {"steps": 12, "dropout": 0.25, "norm_first": False, "corpus": "ted"}
    assert parsed(RECIPES["phrases"], ["n_layers=6,2"]) == {"n_layers": (6, 2)}
    assert parsed(changed(RECIPES["toy"], n_layers=(6, 2)), ["n_layers=3"]) == {"n_layers": 3}
    with pytest.raises(ValueError, match="n_layers must be an int, or two with a comma between them"):
        parsed(RECIPES["toy"], ["n_layers=six"])
    assert parsed(RECIPES["toy"], ["unknown=3"]) == {"unknown": "3"}  # which `changed` refuses


# Training


@pytest.mark.slow
def test_toy_trains_into_a_folder(tmp_path, capsys):
    assert main(["train", "toy", "--directory", str(tmp_path), *TOY]) == 0
    assert {"log.jsonl", "model.safetensors", "record.json", "config.json"} <= set(files_in(tmp_path))
    assert json.loads((tmp_path / "record.json").read_text())["recipe"]["training"]["steps"] == 2
    assert "exact match" in capsys.readouterr().out


@pytest.mark.slow
def test_the_toys_run_in_slices_ends_as_in_one(tmp_path, capsys):
    command = ["train", "toy", *TOY, "--directory"]
    assert main([*command, str(tmp_path / "slices"), "--max-minutes", "0"]) == 0
    weights = tmp_path / "slices" / "model.safetensors"
    assert capsys.readouterr().out.splitlines() == [
        "2 updates with a warm-up of 1",
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


@pytest.mark.slow
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


@pytest.mark.slow
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
    known |= {"preparation": "as it is", "languages": "de en"}
    if name in known or isinstance(value, str | bool):
        return known.get(name, not value if isinstance(value, bool) else f"{value}2")
    return value / 2 + 0.25 if isinstance(value, float) else 2 * value + 2


@pytest.mark.parametrize("name", list(settings(TINY)))
def test_a_run_of_another_recipe_is_left_alone(name, tmp_path):
    with claimed(tmp_path, TINY) as run:
        run.note_config()
        (tmp_path / "checkpoint-00000002.pt").write_bytes(b"weights")
    before, value = files_in(tmp_path), settings(TINY)[name]
    other = another(name, value)
    with pytest.raises(ValueError, match=re.escape(f"a run with {name} = {value}, and {name} = {other}")):
        check_folder(tmp_path, changed(TINY, **{name: other}))
    assert files_in(tmp_path) == before


@pytest.mark.slow
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
    assert f"holds {left}, but no checkpoint of a run to go on from" in capsys.readouterr().err
    assert files_in(tmp_path) == before


@pytest.mark.parametrize("failure", ["corpus", "library", "setting", "interrupt"])
def test_a_run_that_fails_at_once_leaves_nothing_behind(failure, quick, tmp_path, capsys, monkeypatch):
    given = ["train", "tiny", "--directory", str(tmp_path / "run")]
    error = {"corpus": CorpusError("no corpus"), "interrupt": KeyboardInterrupt()}.get(failure)

    def fail(*given, **named):
        raise error

    if failure == "library":
        error = ImportError("no tqdm")
        monkeypatch.setattr(transformer.commands.train, "optional_import", fail)
    elif failure == "setting":
        given += ["--set", "n_heads=3"]
    else:
        monkeypatch.setattr(transformer.commands.train, "train_recipe", fail)
    assert main(given) == (130 if failure == "interrupt" else 2)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_fails_leaves_what_was_there_before(quick, tmp_path, monkeypatch):
    write_record(tmp_path / "config.json", asdict(TINY))
    (tmp_path / "mine.txt").write_text("mine")
    monkeypatch.setattr(transformer.commands.train, "train_recipe", lambda *given, **named: 1 / 0)
    before = files_in(tmp_path)
    assert main(["train", "tiny", "--directory", str(tmp_path)]) == 2
    assert files_in(tmp_path) == before


def test_a_run_that_meets_another_is_refused_before_it_reads_or_writes(quick, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        transformer.commands.train, "train_recipe", lambda *given, **named: pytest.fail("it has begun")
    )
    with RunFolder(tmp_path / "run").locked():
        assert main(["train", "tiny", "--directory", str(tmp_path / "run")]) == 2
        assert "is in use: another process is training there" in capsys.readouterr().err
        assert files_in(tmp_path) == {"run/run.lock": b""}
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_has_begun_keeps_its_recipe(quick, tmp_path, monkeypatch):
    def fail(*given):
        raise FloatingPointError("the loss is nan at step 2")

    monkeypatch.setattr(Journal, "write", fail)
    assert main(["train", "tiny", "--directory", str(tmp_path / "run")]) == 2
    assert read_recipe(tmp_path / "run" / "config.json") == TINY
    assert (tmp_path / "run" / "checkpoint-00000000.pt").exists()


COOLING = ["--set", "cooldown=0.6", "--set", "warmup_steps=2"]  # a schedule that depends on steps


def test_a_finished_run_that_is_made_longer_goes_on_by_the_longer_schedule_and_says_so(tmp_path, capsys):
    """Its rates of updates 1 and 10 were others; the rate that it ended with, too."""
    command = ["train", "toy", "--directory", str(tmp_path), *TOY, *COOLING]
    assert main([*command, "--set", "steps=12"]) == 0
    said = "schedule is now that of 24 updates and no longer of 12: update 12 had the rate .*, and would have"
    with pytest.warns(UserWarning, match=said):
        assert main([*command, "--set", "steps=24"]) == 0
    assert "going on from step 12 of 24, raised from 12\n" in capsys.readouterr().out
    recipe = read_recipe(tmp_path / "config.json")
    assert recipe.training.steps == 24 == read_record(tmp_path / "record.json")["curve"][-1]["step"]
    rates = {entry["step"]: entry["rate"] for entry in read_log(tmp_path) if "rate" in entry}
    assert rates[24] == recipe.rate(24) and rates[12] == changed(recipe, steps=12).rate(12) != recipe.rate(12)
    assert main([*command, "--set", "steps=24"]) == 0  # and goes on as ever


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
            patch.setattr(transformer.commands.train, "train_recipe", partial(train_on, other))
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
    assert "going on from step 4 of 4\n" in capsys.readouterr().out


STRANGERS = {
    "a stranger's": ({"config.json": b'{"model_type": "marian"}'}, "config.json holds no recipe: it has"),
    "not even JSON": ({"config.json": b"mine"}, "config.json is not a record"),
    "a translator's": (None, "holds model.safetensors, but no checkpoint of a run"),
    "half a translator's": ({"config.json": b"{}", "vocabulary.json": b"{}"}, "holds vocabulary.json, but"),
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
    assert said in error and "name another --directory, or move it away" in error and error.count("\n") == 1
    assert files_in(tmp_path) == before


def test_a_metric_that_nobody_measures_is_refused_before_the_first_update(quick, tmp_path, capsys):
    folder = ["--directory", str(tmp_path / "run")]
    assert main(["train", "tiny", *folder, "--set", "monitor=bleu"]) == 2
    assert "monitor is 'bleu', but evaluate returned ['accuracy', 'loss']" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert main(["train", "tiny", *folder]) == 0  # and the folder takes another recipe


MEETING = """
import os, sys, torch
from pathlib import Path
from transformer.__main__ import main

def begin(folder, seed, gate):
    os.close(gate[1])
    os.read(gate[0], 1)  # until the other is as far
    command = ["train", "toy", "--directory", folder, "--set", f"seed={seed}"]
    os._exit(main([*command, *sys.argv[2:]]))

torch.set_num_threads(1)
for number in range(12):
    folder, gate = str(Path(sys.argv[1]) / str(number)), os.pipe()
    children = []
    for seed in (1, 2):
        if (child := os.fork()) == 0:
            begin(folder, seed, gate)
        children.append(child)
    os.close(gate[1])
    os.close(gate[0])
    print(*(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children), file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="no process can be forked like this there")
def test_of_two_recipes_that_begin_at_once_one_is_refused_and_the_folder_is_the_others(tmp_path, capsys):
    command = [sys.executable, "-c", MEETING, str(tmp_path), *TOY]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    endings = re.findall(r"^(\d) (\d)$", ran.stderr, re.MULTILINE)
    assert len(endings) == 12
    for number, statuses in enumerate(endings):
        assert sorted(statuses) == ["0", "2"], ran.stderr
        folder, seed = tmp_path / str(number), 1 + statuses.index("0")
        assert read_recipe(folder / "config.json").training.seed == seed
        assert json.loads((folder / "record.json").read_text())["recipe"]["training"]["seed"] == seed
    again = ["train", "toy", "--directory", str(folder), *TOY, "--set", f"seed={seed}"]
    assert main(again) == 0 and "going on from step 2 of 2" in capsys.readouterr().out


def test_a_stopped_run_ends_with_the_trainers_sentence_and_its_signal(quick, tmp_path, capsys, monkeypatch):
    def stop(*given, **named):
        error: Any = KeyboardInterrupt("stopped by SIGTERM at step 3; the same command goes on from there")
        error.signal = signal.SIGTERM
        raise error

    monkeypatch.setattr(transformer.commands.train, "train_recipe", stop)
    assert main(["train", "tiny", "--directory", str(tmp_path / "run")]) == 143
    said = capsys.readouterr().err
    assert said == "stopped by SIGTERM at step 3; the same command goes on from there\n"


def test_memory_is_asked_for_before_it_is_taken():
    for recipe in RECIPES.values():
        check_room(recipe)
    with pytest.raises(ValueError, match="parameters needs [0-9,]+ GB in training"):
        check_room(changed(TINY, vocab_size=10**12))


def test_the_memory_that_counts_is_that_of_the_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 10**5))
    check_room(TINY)
    with pytest.raises(ValueError, match=r"cuda:1 has 0 GB$"):
        check_room(TINY, "cuda:1")


def test_the_memory_of_stacks_of_unequal_depth_lies_between_those_of_equal_ones(monkeypatch):
    memory = {}
    for depths in (1, (3, 1), (1, 3), 3):
        monkeypatch.setattr(transformer.commands.claim, "memory_of", lambda device: 0)
        with pytest.raises(ValueError) as refusal:
            check_room(changed(TINY, n_layers=depths))
        memory[depths] = int(str(refusal.value).split()[3].replace(",", ""))
    d, d_ff = TINY.model.d_model, TINY.model.d_ff
    assert memory[1, 3] - memory[1] == 2 * (8 * d**2 + 2 * d * d_ff)
    assert memory[3, 1] - memory[1] == 2 * (4 * d**2 + 2 * d * d_ff)
    assert memory[3] - memory[1] == memory[1, 3] + memory[3, 1] - 2 * memory[1]


def test_a_moving_average_needs_memory_too(monkeypatch):
    d, d_ff, n_layers = TINY.model.d_model, TINY.model.d_ff, TINY.model.n_layers
    parameters = TINY.data.vocab_size * d + n_layers * (12 * d**2 + 4 * d * d_ff)
    monkeypatch.setattr(
        transformer.commands.claim, "memory_of", lambda device: 18 * parameters + 500_000 * n_layers
    )
    check_room(changed(TINY, average=0.0))
    with pytest.raises(ValueError, match="in training"):
        check_room(changed(TINY, average=0.999))


def test_finished_training_says_that_scoring_takes_its_time(quick, tmp_path, capsys):
    assert main(["train", "tiny", "--directory", str(tmp_path)]) == 0
    assert "scoring it can take some minutes" in capsys.readouterr().err


@pytest.mark.slow
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


def test_own_files_end_in_a_translator_that_every_command_takes(texts, tmp_path, capsys):
    assert main([*texts, "--languages", "en", "zxx"]) == 0
    said = capsys.readouterr().out
    assert "80 pairs to train on, 20 to judge by, held out" in said
    assert "texts: as it is, en to zxx; a vocabulary of up to " in said
    shape = "1+1 layers of width 16, dropout 0.1"
    assert f"{shape}; 4 updates with a warm-up of 2 and batches of 1,000 tokens" in said
    record = json.loads((tmp_path / "run" / "record.json").read_text(encoding="utf8"))
    held = record["scores"]["held out"]
    assert held["pairs"] == 20 and set(held["beam 4"]) == {"BLEU-detok", "chrF2", "exact"}
    assert all(score["line"] in said for score in held["beam 4"].values())
    model = str(tmp_path / "run" / "translator")
    card = (tmp_path / "run" / "translator" / "README.md").read_text(encoding="utf8")
    assert 'language: ["en", "zxx"]' in card and "20 pairs that training did not show" in card
    translator = Translator.load(model)
    assert main(["translate", "--model", model, "1 Jan 1900"]) == 0
    assert capsys.readouterr().out == "".join(text + "\n" for text in translator.translate(["1 Jan 1900"]))
    files = ["--source", str(tmp_path / "train.words"), "--reference", str(tmp_path / "train.iso")]
    assert main(["evaluate", "--model", model, *files]) == 0
    assert capsys.readouterr().out.count("case:mixed") == 3
    assert main(["info", "--model", model]) == 0
    data = read_recipe(tmp_path / "run" / "config.json").data
    assert data.languages == "en zxx" and data.preparation == "as it is"


def test_a_run_on_own_files_goes_on_and_ends_as_in_one(texts, tmp_path, capsys):
    assert main([*texts, "--max-minutes", "0"]) == 0
    assert "the same command goes on from there" in capsys.readouterr().out
    assert Translator.load(tmp_path / "run" / "translator").translate([""]) == [""]
    assert main(texts) == 0
    assert "going on from step 1 of 4" in capsys.readouterr().out
    whole = [str(tmp_path / "whole") if word == str(tmp_path / "run") else word for word in texts]
    assert main(whole) == 0
    weights = [tmp_path / name / "translator" / "model.safetensors" for name in ("run", "whole")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    config = tmp_path / "run" / "config.json"
    more = ["train", "--config", str(config), "--directory", str(tmp_path / "run"), "--set", "steps=5"]
    with pytest.warns(UserWarning, match="schedule is now that of 5 updates"):
        assert main(more) == 0  # the recipe alone is enough to go on
    assert "going on from step 4 of 5, raised from 4" in capsys.readouterr().out


def test_a_file_that_has_changed_is_refused_by_its_name(texts, tmp_path, capsys):
    assert main([*texts, "--max-minutes", "0"]) == 0
    path = tmp_path / "train.iso"
    path.write_bytes(path.read_bytes().replace(b"1900", b"1901"))
    before = files_in(tmp_path / "run")
    assert main(texts) == 2
    assert f"error: {path} has changed: its sha256 was" in capsys.readouterr().err
    assert files_in(tmp_path / "run") == before


def test_texts_that_lie_elsewhere_are_the_same_texts(texts, tmp_path, capsys):
    assert main([*texts, "--max-minutes", "0"]) == 0
    (tmp_path / "moved").mkdir()
    for name in ("train.words", "train.iso"):
        (tmp_path / name).rename(tmp_path / "moved" / name)
    moved = [word.replace("/train.", "/moved/train.") for word in texts]
    assert main(moved) == 0
    assert "going on from step 1 of 4" in capsys.readouterr().out
    data = read_recipe(tmp_path / "run" / "config.json").data
    assert data.files == [str(tmp_path / "moved" / name) for name in ("train.words", "train.iso")]


def test_texts_that_lie_elsewhere_in_another_role_are_others(texts, tmp_path, capsys):
    assert main([*texts, "--max-minutes", "0"]) == 0
    swapped = texts.copy()
    swapped[2], swapped[4] = swapped[4], swapped[2]
    assert main(swapped) == 2
    assert "name another --directory" in capsys.readouterr().err
    moved = tmp_path / "moved.iso"
    moved.write_bytes((tmp_path / "train.iso").read_bytes().replace(b"1900", b"1901"))
    assert main([*texts[:4], str(moved), *texts[5:]]) == 2
    assert f"not on {tmp_path / 'train.words'}, {moved}: name another" in capsys.readouterr().err


NO_CHANGES = ["corpus", "sha256", "source", "target", "dev_source", "dev_target"]


@pytest.mark.parametrize("name", [*NO_CHANGES, "preparation", "languages"])
def test_what_follows_from_texts_cannot_be_set(name, texts, tmp_path, capsys):
    before = files_in(tmp_path)
    assert main([*texts, "--set", f"{name}="]) == 2
    said = "cannot be set: it follows from" if name in NO_CHANGES else f"is said by --{name}"
    assert said in capsys.readouterr().err
    assert files_in(tmp_path) == before


def test_a_recipe_of_texts_in_a_file_keeps_their_checksums_too(texts, tmp_path, capsys):
    assert main([*texts, "--max-minutes", "0"]) == 0
    config = ["--config", str(tmp_path / "run" / "config.json"), "--directory", str(tmp_path / "other")]
    assert main(["train", *config, "--set", "sha256="]) == 2
    assert "sha256 cannot be set" in capsys.readouterr().err
    assert main(["train", *config, "--set", "preparation=lower case", "--max-minutes", "0"]) == 0


LONG_TEXT = " ".join(f"w{number}" for number in range(3000))
SHORT_PAIRS = "".join(f"a{number} b\tc\n" for number in range(30))


@pytest.mark.parametrize(
    ("files", "more", "message"),
    [
        ({"pairs": ""}, [], "{pairs}: no lines, and no pairs"),
        ({"source": "", "target": ""}, [], "{source}, {target}: no lines, and no pairs"),
        ({"pairs": "", "dev-pairs": SHORT_PAIRS}, [], "{pairs}: no lines, and no pairs"),
        ({"pairs": SHORT_PAIRS, "dev-pairs": ""}, [], "{dev-pairs}: no lines, and no pairs"),
        ({"pairs": "a\tb\n"}, [], "{pairs}: pairs must hold two different pairs, .*, not 1 .of 1."),
        ({"source": "a\n" * 5, "target": "b\n" * 5}, [], "{source}, {target}: .*, not 1 .of 5."),
        ({"pairs": f"{LONG_TEXT}\ta\n{LONG_TEXT}\tb\nc\td\n", "dev-pairs": f"a\t{LONG_TEXT}\n"}, [],
         "{pairs}, {dev-pairs}: no pair to judge by, of 1, has at most 512 tokens on both sides"),
        ({"pairs": f"{LONG_TEXT}\ta\n{LONG_TEXT}\tb\n"}, [], "{pairs}: no pair, of 1, has at most 512"),
        ({"pairs": SHORT_PAIRS}, ["--set", "max_tokens=2"], "no pair to .*, has at most 2 tokens"),
        ({"pairs": SHORT_PAIRS}, ["--set", "max_tokens=2", "--set", "bpe_dropout=.1"], "at most 2 tokens"),
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


@pytest.mark.skipif(os.name == "nt", reason="has names of another kind")
@pytest.mark.parametrize("option", ["--pairs", "--dev-pairs"])
def test_a_file_whose_name_is_no_text_is_refused(option, tmp_path, capsys):
    strange, usual = tmp_path / os.fsdecode(b"n\xe3o.tsv"), tmp_path / "usual.tsv"
    for path in (strange, usual):
        path.write_text(SHORT_PAIRS, encoding="utf8")
    other = ["--pairs", str(usual)] if option != "--pairs" else []
    command = ["train", *other, option, str(strange), "--directory", str(tmp_path / "run")]
    assert main([*command, *QUICK]) == 2
    assert "a file's name must be UTF-8" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "warmup"),
    [
        (["steps=700"], 100),
        (["steps=1"], 1),
        (["steps=2800"], 200),
        (["steps=700", "warmup_steps=30"], 30),
        (["warmup_steps=30"], 30),
        (["peak_rate=.01"], 200),
    ],
)
def test_fewer_steps_have_a_shorter_warm_up_unless_it_is_said(changes, warmup, tmp_path):
    words = [word for change in changes for word in ("--set", change)]
    options = parser().parse_args(["train", "phrases", "--directory", str(tmp_path), *words])
    recipe, _ = transformer.commands.train.asked_for(options)
    assert recipe == changed(
        RECIPES["phrases"], **parsed(RECIPES["phrases"], changes) | {"warmup_steps": warmup}
    )


def test_a_run_that_was_shortened_keeps_its_warm_up_when_it_is_made_longer(quick, tmp_path, capsys):
    folder = ["--directory", str(tmp_path / "run")]
    assert main(["train", "tiny", *folder, "--set", "steps=2"]) == 0
    assert "2 updates with a warm-up of 100\n" in capsys.readouterr().out  # tiny has 4, and 200
    for steps in (2, 3, 6):
        assert main(["train", "tiny", *folder, "--set", f"steps={steps}"]) == 0
        assert f"{steps} updates with a warm-up of 100\n" in capsys.readouterr().out
    assert read_recipe(tmp_path / "run" / "config.json") == changed(TINY, steps=6, warmup_steps=100)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            ["--preparation", "lower case"],
            "preparation = as it is, and preparation = lower case is asked for",
        ),
        (["--languages", "en", "de"], "languages = , and languages = en de is asked for"),
        (["--source", "{}/train.iso"], "train.iso: name another --directory"),
    ],
)
def test_a_run_on_own_files_is_not_continued_otherwise(texts, more, message, tmp_path, capsys):
    assert main([*texts, "--max-minutes", "0"]) == 0
    before = files_in(tmp_path / "run")
    assert main([*texts, *(word.format(tmp_path) for word in more)]) == 2
    assert message in capsys.readouterr().err
    assert files_in(tmp_path / "run") == before


def test_own_pairs_of_one_file_with_dev_pairs_of_another(tmp_path, capsys):
    for name, pairs in (("train.tsv", dates(60)), ("dev.tsv", dates(70)[60:])):
        text = "".join("\t".join(pair) + "\n" for pair in pairs)
        (tmp_path / name).write_text(text, encoding="utf8")
    files = ["--pairs", str(tmp_path / "train.tsv"), "--dev-pairs", str(tmp_path / "dev.tsv")]
    form = ["--preparation", "tokenized", "--directory", str(tmp_path / "run"), *QUICK]
    assert main(["train", *files, *form]) == 0
    assert f"60 pairs to train on, 10 to judge by, from {tmp_path / 'dev.tsv'}" in capsys.readouterr().out
    assert Translator.load(tmp_path / "run" / "translator").preparation.name == "tokenized"
    record = json.loads((tmp_path / "run" / "record.json").read_text(encoding="utf8"))
    assert (
        record["scores"]["held out"]["pairs"] == 10 and "BLEU-tok" in record["scores"]["held out"]["beam 4"]
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train.iso", b"1900-01-01\n", "100 source lines but 1 target lines, so that line 2 is alone"),
        ("train.iso", b"\n" * 100, "train.iso: line 1 holds an empty sentence"),
        ("train.words", b"a\n" * 98 + b"\xff\na\n", "train.words is not UTF-8: byte 0xff in line 99"),
        ("train.words", b"a\n" + b"a" * 70_000, "train.words: line 2 has 70,000 bytes, more than 65,536"),
        ("train.words", b"", "0 source lines but 100 target lines"),
    ],
)
def test_own_files_that_are_no_corpus_are_refused_by_line(texts, name, content, message, tmp_path, capsys):
    (tmp_path / name).write_bytes(content)
    assert main(texts) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and message in said and said.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_corpus_of_the_book_is_for_translators_of_its_texts(texts, tmp_path, capsys):
    assert main([*texts, "--max-minutes", "0"]) == 0
    capsys.readouterr()
    model = ["--model", str(tmp_path / "run" / "translator")]
    for corpus in ([], ["--corpus", "ted"]):
        assert main(["evaluate", *model, *corpus]) == 2
        said = capsys.readouterr().err
        name = "ted" if corpus else "phrases"
        assert f"texts that are as it is cannot be scored on --corpus {name}" in said


@pytest.fixture
def threads(monkeypatch) -> list[int]:
    """The numbers of threads that are asked for, as they come."""
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return asked


def test_a_narrow_model_is_trained_by_one_thread_and_a_wide_one_by_all(texts, threads, tmp_path, capsys):
    assert main([*texts, "--max-minutes", "0"]) == 0
    assert threads == [1]
    wide = ["--directory", str(tmp_path / "wide"), "--set", "d_model=256", "--max-minutes", "0"]
    assert main([*texts, *wide]) == 0
    assert threads == [1]


def test_threads_are_those_that_were_asked_for(texts, threads, monkeypatch, capsys):
    assert main([*texts, "--max-minutes", "0", "--threads", "3"]) == 0
    assert set(threads) == {3}
    assert main(["translate", "--threads", "2", "Gosto disto."]) == 0
    assert threads[-1] == 2
    before = list(threads)
    assert main(["translate", "Gosto disto."]) == 0  # as PyTorch has it
    monkeypatch.setenv("OMP_NUM_THREADS", "4")  # asked for in another way
    assert main([*texts, "--max-minutes", "0"]) == 0
    assert threads == before
    assert main(["translate", "--threads", "0", "Gosto disto."]) == 2
    assert "--threads: must lie in [1, 1024], but is 0" in capsys.readouterr().err


# Runs whose terminal, or whose reader, goes away


LONG = ["train", "toy", "--set", "steps=100000", "--set", "evaluate_every=100000", "--set", "batch_size=2"]


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="has no terminals of this kind")
@pytest.mark.parametrize("asked", ["closed", "ignored"])
def test_a_run_whose_terminal_is_closed_leaves_a_checkpoint_and_one_under_nohup_goes_on(asked, tmp_path):
    import pty

    process, terminal = pty.fork()
    if process == 0:
        if asked == "ignored":
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        command = [sys.executable, "-m", "transformer", *LONG, "--directory", str(tmp_path)]
        os.execv(command[0], command)
    shown = b""
    while not re.search(rb" [1-9]\d*/100000", shown):
        shown += os.read(terminal, 1000)
    os.close(terminal)
    if asked == "ignored":
        time.sleep(2)
        assert os.waitpid(process, os.WNOHANG) == (0, 0)  # it goes on, without its bar
        os.kill(process, signal.SIGTERM)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    assert status == 128 + (signal.SIGHUP if asked == "closed" else signal.SIGTERM)
    _, newest = RunFolder(tmp_path).checkpoints()
    assert load_checkpoint(newest)["updater"]["step"] > 0


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="its pipes break in another way")
def test_a_run_whose_readers_are_gone_ends_as_ever(tmp_path):
    """Those of standard output and of standard error, before the first update."""
    options = ["--set", "steps=40", "--set", "evaluate_every=20", "--set", "batch_size=2"]
    train = ["train", "toy", "--directory", str(tmp_path), *options]
    command = [sys.executable, "-u", "-m", "transformer", *train]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        process.stderr.close()
        process.stdout = process.stderr = None
        assert process.wait(timeout=300) == 0
    assert read_record(tmp_path / "record.json")["curve"][-1]["step"] == 40
    assert len(read_log(tmp_path)) == 4


# Interrupts


STUCK = """
import sys, time
import transformer.language.folder as folder
from transformer.__main__ import main

save = folder.save_weights

def saves_and_waits(*given):
    save(*given)
    print("saving", flush=True)
    time.sleep(600)

folder.save_weights = saves_and_waits
sys.exit(main(sys.argv[1:]))
"""


@contextmanager
def long_run(folder: Path, *program: str):
    """A process that trains a translator into `folder / "run"` and has made updates; and its options."""
    for name in ("train", "dev"):
        (folder / f"{name}.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS))
    sizes = "vocab_size=90 d_model=16 n_heads=2 n_layers=1 d_ff=24 log_every=1".split()
    sizes += ["steps=100000", "evaluate_every=100000"]
    options = ["train", "--pairs", str(folder / "train.tsv"), "--dev-pairs", str(folder / "dev.tsv")]
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
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_run_that_is_stopped_leaves_a_translator_and_says_how_to_go_on(name, tmp_path, capsys):
    number = getattr(signal, name)
    with long_run(tmp_path, "-m", "transformer") as (process, options):
        process.send_signal(number)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    usable, again = tmp_path / "run" / "translator", shlex.join(["python", "-m", "transformer", *options])
    stopped = re.search(r"^stopped at step ([\d,]+) of 100,000 with a checkpoint; (.*)$", said, re.MULTILINE)
    assert stopped[2] == f"what can be used already: {usable}; to go on: {again}"
    assert len(Translator.load(usable).translate(["gosto disto .", "a casa é velha ."])) == 2
    assert main([*shlex.split(again)[3:], "--max-minutes", "0"]) == 0
    step = int(stopped[1].replace(",", ""))
    assert f"going on from step {step:,} of 100,000\n" in (out := capsys.readouterr().out)
    assert f"time is over at step {step + 1:,}; the same command" in out


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals are of another kind there")
def test_a_second_interrupt_while_the_translator_is_written_ends_at_once_and_leaves_nothing_half(tmp_path):
    with long_run(tmp_path, "-c", STUCK) as (process, _):
        process.send_signal(signal.SIGINT)
        while process.stdout.readline() != "saving\n":
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said.splitlines()[-1]) == (130, "interrupted")
    assert list((tmp_path / "run" / "translator").iterdir()) == []
    newest = RunFolder(tmp_path / "run").checkpoints()[-1]
    assert load_checkpoint(newest)["updater"]["step"] > 0


def test_a_training_that_is_interrupted_leaves_what_it_has_learned(tmp_path, monkeypatch):
    evaluate, calls = Lessons.evaluate, []

    def interrupted(lessons, model):
        calls.append(model)
        if len(calls) == 2:  # the first is a trial
            signal.raise_signal(signal.SIGINT)
        return evaluate(lessons, model)

    monkeypatch.setattr(Lessons, "evaluate", interrupted)
    how = (
        "stopped at step 3 of 4 with a checkpoint; the same call goes on from there; what can be used already"
    )
    with refuses(StoppedRun, f"{how}: {tmp_path / 'translator'}") as stop:
        train_translator(TINY, tmp_path, load=ours)
    assert (stop.value.signal, stop.value.step) == (signal.SIGINT, 3)
    assert Translator.load(tmp_path / "translator").translate(["gosto disto ."])
    translator, trainer = train_translator(TINY, tmp_path, load=ours)
    assert trainer.finished and trainer.history[-1]["step"] == 4
    calls.clear()
    with refuses(StoppedRun, "stopped at step 3 of 4"):  # without a folder, nothing is left
        train_translator(TINY, load=ours)


@pytest.mark.parametrize("seconds", [0.0, 0.2], ids=["fast machine", "slow machine"])
def test_an_interrupt_that_a_callback_swallows_comes_once_more(seconds, capsys, monkeypatch):
    """Python ignores what is raised where an object is thrown away, and in the hook that hears of it."""
    begin, delays = threading.Timer.start, iter([seconds])
    monkeypatch.setattr(threading.Timer, "start", lambda timer: begin(timer) or time.sleep(next(delays, 0.0)))

    class Swallows:
        def __del__(self):
            signal.raise_signal(number)
            (lambda: None)()  # here at the latest the signal is handled

    def never_ends(*given):
        Swallows()
        time.sleep(60)

    monkeypatch.setattr(Translator, "translate_checked", never_ends)
    names = ("SIGINT", "SIGTERM", *(["SIGHUP"] if hasattr(signal, "SIGHUP") else []))
    for name in names:
        number, said = getattr(signal, name), "interrupted\n" if name == "SIGINT" else "terminated\n"
        assert main(["translate", CAT]) == 128 + number
        assert capsys.readouterr().err == said


# Translating


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


@pytest.mark.parametrize("name", ["translate", "evaluate", "serve"])
def test_every_setting_of_a_search_is_an_option_and_its_help_is_the_docstring(name):
    options = {action.const: action for action in subparsers()[name]._actions if action.dest == "search"}
    assert list(options) == [setting.name for setting in fields(Search)]
    for setting in fields(Search):
        said, _, default = options[setting.name].help.rpartition(" (default: ")
        assert f"    {setting.name}: {said}.\n" in inspect.getdoc(Search) and default == f"{setting.default})"
    assert "--beam" in options["beam_size"].option_strings


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
    cut = "is cut to its first 32,768 characters and is cut to its first 511 tokens"
    assert said.err.startswith(f"warning: standard input, line 2 {cut}") and said.err.count("\n") == 1


def groups_of(monkeypatch) -> list[list[str]]:
    """Let sentences pass untranslated, and note the groups in which they came."""
    groups = []
    monkeypatch.setattr(
        Translator,
        "translate_checked",
        lambda self, given, *search: groups.append(list(given)) or [Translation(text, ()) for text in given],
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


def test_a_doubtful_line_is_named_and_the_others_are_not(capsys, monkeypatch):
    type_in(monkeypatch, "Gosto disto.\nO cão dorme. A gata come.\n世界\n".encode())
    assert main(["translate", "--beam", "1"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[::2] == ["i like this.", "世界"]
    assert said.err.splitlines() == [
        "warning: standard input, line 2 is 2 sentences, and its translation 1: give each a line of its own",
        "warning: standard input, line 3 has no character of the vocabulary, and is copied",
    ]


def test_groups_translate_as_single_lines_do(capsys, monkeypatch):
    sources = [source for source, _ in load_corpus("phrases", "test")[:70]]
    type_in(monkeypatch, "\n".join(sources).encode())
    assert main(["translate", "--beam", "1"]) == 0
    alone = Translator.load("phrases")
    assert capsys.readouterr().out.splitlines() == [
        alone.translate([text], beam_size=1)[0] for text in sources
    ]


class Endless(io.RawIOBase):
    """A stream of lines, made as they are read."""

    def __init__(self, n_lines: int, line: bytes = b"gosto disto .\n") -> None:
        self.left, self.line, self.given = n_lines, line, 0

    def readline(self, size: int = -1) -> bytes:
        self.given += self.given < self.left
        return self.line if self.given < self.left else b""


@pytest.mark.slow
def test_more_lines_need_no_more_memory(monkeypatch):
    # If lines were kept, the 80,000 more of them would show at least their pointers, of 8 bytes.
    def translate(self, sentences, *search):
        behind.append(stream.given - sum(behind))
        return [Translation(text, ()) for text in sentences]

    monkeypatch.setattr(Translator, "translate_checked", translate)
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
    assert said.err.startswith("warning: standard input, line 70 is cut to its first 511 tokens")
    assert said.err.count("\n") == 1
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


@pytest.mark.slow
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


@pytest.mark.slow
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

    monkeypatch.setattr(Translator, "translate_checked", interrupt)
    assert main(["translate", CAT]) == 130
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.slow
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


@pytest.mark.slow
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
    monkeypatch.setattr(transformer.commands.evaluate, "load_corpus", lambda name, split: pairs[split])
    return pairs


def lines(pairs, search=Search(1), n_bootstrap=0):
    written = Translator.load("phrases").translate_tokenized([pair.source for pair in pairs], search)
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
    assert seen == [(Search(3, 0.0),)]
    said = capsys.readouterr().out.splitlines()
    assert said == ["20 pairs, beam 3, length penalty 0.0", *lines(short["test"], Search(3, 0.0), 50)]
    assert all("(μ = " in line and "bs:50" in line for line in said[1:4])
    assert re.fullmatch(r"exact\|nrefs:1\|case:lc = \d+\.\d \(\d+ of 20\) ± \d+\.\d", said[4])
    assert main(["evaluate", "--beam", "1", "--bootstrap"]) == 0
    assert "bs:1000" in capsys.readouterr().out


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
    model = Translator.load("phrases", "cpu").model
    size = sum(parameter.numel() for parameter in model.parameters())
    shown = {"parameters": size} | asdict(model.config)
    assert said.splitlines() == [f"{key}: {value}" for key, value in shown.items()]
    assert main(["info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == shown


def test_info_is_read_by_other_programs_for_every_recipe(capsys):
    for name, recipe in RECIPES.items():
        assert main(["info", "--recipe", name, "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == settings(recipe)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "train needs one of three: the name of a recipe, --config, or texts of your own"),
        (["train", "toy", "--config", "a.json"], "train needs one of three: the name of a recipe"),
        (["train", "toy", "--pairs", "a.tsv"], "train needs one of three: the name of a recipe"),
        (["train", "--source", "a"], "--source and --target belong together"),
        (["train", "--source", "a", "--target", "b", "--pairs", "c"], "--pairs takes the place of --source"),
        (["train", "--pairs", "a", "--dev-target", "b"], "--dev-source and --dev-target belong together"),
        (["train", "toy", "--dev-pairs", "a"], "--dev-source is for texts of your own"),
        (["train", "toy", "--languages", "de", "en"], "--languages is for texts of your own"),
        (["train", "toy", "--preparation", "as it is"], "--preparation is for texts of your own"),
        (["train", "--pairs", "nowhere.tsv"], "nowhere.tsv"),
        (["train", "--pairs", "a", "--languages", "German", "en"], "must be a code such as 'pt'"),
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
        (["translate", "--beam", "0", "o gato"], "--beam-size: beam_size must be at least 1, but is 0"),
        (["translate", "--beam", "1000000", "o gato"], "beam_size must be at most 100, but is 1000000"),
        (["translate", "--beam", "wide", "o gato"], "--beam-size: invalid int value: 'wide'"),
        (["evaluate", "--beam", "101"], "beam_size must be at most 100, but is 101"),
        (
            ["translate", "--length-penalty", "-1", "o gato"],
            "length_penalty must be finite and at least 0, but is -1",
        ),
        (
            ["translate", "--length-penalty", "200", "o gato"],
            "--length-penalty: length_penalty must be at most 10, but",
        ),
        (
            ["translate", "--length-penalty", "nan", "o gato"],
            "length_penalty must be finite and at least 0, but is nan",
        ),
        (
            ["translate", "--max-length", "0", "o gato"],
            "--max-length: max_length must be at least 1, but is 0",
        ),
        (["serve", "--max-tokens", "0"], "--max-tokens: max_tokens must be at least 1, but is 0"),
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


@pytest.mark.parametrize(
    ("line", "option", "meant"),
    [
        ("train phrases --epochs 3", "--epochs", "--set steps=VALUE"),
        ("train --epochs 3 phrases", "--epochs", "--set steps=VALUE"),
        ("train --batch-size=32 phrases", "--batch-size", "--set max_tokens=VALUE"),
        ("train toy --batch-size 32", "--batch-size", "--set batch_size=VALUE"),
        ("train --source a --target b --lr 1e-3", "--lr", "--set peak_rate=VALUE"),
        ("train phrases --set steps=2 --d-model 8", "--d-model", "--set d_model=VALUE"),
        ("train phrases --direcotry a", "--direcotry", "--directory"),
        ("train -b 3", "-b", None),
        ("translate --num-beams 5 a", "--num-beams", "--beam-size"),
        ("evaluate --epochs 3", "--epochs", None),
        ("serve --prot 3", "--prot", "--port"),
        ("info --device cpu", "--device", None),
        ("check a:b --pad-di 3", "--pad-di", "--pad-id"),
        ("--epochs 3 train phrases", "--epochs", None),
    ],
)
def test_an_unknown_option_is_named_itself_whatever_follows_it(line, option, meant, capsys):
    assert main(line.split()) == 2
    question = f"; did you mean {meant}?" if meant else ""
    assert capsys.readouterr().err.startswith(f"error: unknown option {option}{question} (see ")


def test_every_name_that_other_programs_have_is_one_of_ours():
    options = {name for command in subparsers().values() for name in command._option_string_actions}
    known = set(settings(TINY)) | {name.lstrip("-").replace("-", "_") for name in options}
    assert set(transformer.commands.options._OTHER_NAMES.values()) <= known


def test_a_sentence_may_begin_with_a_dash_and_a_value_may_be_negative(capsys):
    assert main(["translate", "--beam", "1", "- Gosto disto."]) == 0
    assert main(["translate", "--beam", "1", "--", "--epochs"]) == 0
    assert main(["train", "phrases", "--max-minutes", "-.5"]) == 2
    assert "--max-minutes: must lie in [0.0, inf], but is -.5" in capsys.readouterr().err


def test_what_nobody_foresaw_is_one_line_too_and_debug_shows_where(capsys, monkeypatch):
    def fail(*given):
        raise RuntimeError("no memory\nException raised from alloc (most recent call first):\nframe #0: 0x7f")

    monkeypatch.setattr(Translator, "translate_checked", fail)
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

    monkeypatch.setattr(Translator, "translate_checked", fail)
    assert main(["translate", CAT]) == 2
    assert capsys.readouterr().err == "error: MemoryError (--debug shows where)\n"


def test_a_message_of_many_lines_is_put_on_one(capsys, monkeypatch):
    def fail(*given):
        raise CorpusError("not here:\n  a\n  b\nPut it there.")

    monkeypatch.setattr(transformer.commands.evaluate, "load_corpus", fail)
    assert main(["evaluate"]) == 2
    assert capsys.readouterr().err == "error: not here: a b Put it there.\n"


def run(redirected: str, **given) -> subprocess.CompletedProcess:
    """The program as a shell starts it, with some of its streams closed or led elsewhere."""
    command = f'exec "$0" -m transformer {redirected}'
    return subprocess.run(
        ["sh", "-c", command, sys.executable], capture_output=True, timeout=300, check=False, **given
    )


@pytest.mark.slow
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


@pytest.mark.slow
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
