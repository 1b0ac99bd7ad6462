"""Chapters that train, on a device that is not the processor: what mixes the two is an error, as on a GPU.

What chapters do on a GPU alone, they do here too, with fewer updates.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
BOOK = ROOT / "book"
# Which cells of a chapter run, what makes them short, and what is asked of them in the end.
CELLS = {
    "07": """
        imports imports-here copy-task device first-loop adamw noam-rate cooldown evaluating evaluate-loss
        evaluate-loss-code what-fit-takes fit fit-parts copy-train copy-check
    """,
    "09": """
        imports reverse-and-mark reversal-batch toy-config reversal-batches exact-match model-size short-run
        solution-3 record-table full-run
    """,
    "11": """
        imports-here copy-task go-on checkpoint-imports random-state save-checkpoint load-checkpoint
        save-and-resume early-loop folder copy-train autocast precisions
        moving-average-class averages exercise-3-solution
    """,
    "13": """
        imports first-translation translator-imports translator-search any-translator the-translator
        alignment-by-words phrases-data train-phrases phrases-right phrases-examples
        translation-imports corpus-scores measured tuning-imports tune-search ted-here
    """,
}
FOLDER = "place = tempfile.TemporaryDirectory()"  # of Chapter 11, whose own cell starts programs
SHORT = {  # whatever the numbers of a chapter are
    "07": {
        r"updates=\d+": "updates=2",
        r"\bsteps=\d+": "steps=2",
        r"n_batches=10\)": "n_batches=1)",
        r"range\(3\)": "range(1)",
    },
    "09": {
        r"\bsteps=600": "steps=2",
        r"n_sequences=\d+": "n_sequences=20",
        r"\(200, 10,": "(20, 10,",
        r"device\.type == 'cuda'": "device == there",
        r"train\(100\)": "train(2)",
        r"train\(30000\)": "train(4)",
        r"exact_match\(trained\)": "exact_match(trained, 20)",
    },
    "11": {
        r"\bsteps=\d+": "steps=4",
        r"every=\d+": "every=2",
        r"done % \d+": "done % 2",
        r"\bn \+ \d+": "n + 2",
        r"range\(\d\)": "range(1)",
        r"n_batches=8": "n_batches=1",
    },
    "13": {
        r"load_corpus\('phrases', split\)": "load_corpus('phrases', split)[:100]",
        r"500, preparation": "100, preparation",
        r">= 150": ">= 1",
        r"\((\d+, \d+), 0\.007\)": "(2, 1, 0.004)",
        r"test\[:100\]": "test[:2]",
        r"device\.type == 'cuda'": "device == there",
        r"vocab_size=\d+": "corpus='phrases', vocab_size=300, d_model=16, n_layers=1",
        r"max_tokens=4000": "max_tokens=800",
        r"recipe\.data\.read\(\)": "replace(recipe.data.read(), train=train[:100], dev=dev[:10])",
        r"steps // \d+": "steps",
        r"\(\d+, \d+, 250\)": "(2, 2, 4)",
        r"\(many - few\)": "abs(many - few)",
        r"translate\(typed\)": "translate(typed, max_length=2)",
        r"max\(20, min\(16000, steps\)\)": "2",
        r"talks\.test\(\)": "talks.test()[:2]",
    },
}
ASKED = {
    "07": "on_it(copier)",
    "09": """
on_it(trained)
assert [entry["step"] for entry in history] == [1, 2, 3, 4, 4] and len(curves["your run"]) == 1
assert 0 < seconds and whole_rate(2000) == max(map(whole_rate, range(1, 4000))) and whole_rate(30_000) < 1e-7
""",
    "11": """
on_it(trainer.model)
run = until_the_break(0, n=1)
assert go_on(run) == go_on(run) != go_on(run, forget=everything)
whole, _ = run_in(Path(place.name) / "whole.pt", steps=4)
path = Path(place.name) / "run.pt"
run_in(path, steps=2)
resumed, _ = run_in(path, steps=4, seed=1)
on_it(whole, resumed)
assert all(map(torch.equal, whole.parameters(), resumed.parameters()))
""",
    "13": """
on_it(model, built_in.model, learned.model)
assert steps == 2 and each * steps < 600 and 0 <= bleu <= 100 and len(typed) == 8
""",
}
PROGRAM = f"""
import contextlib, io, json, sys
import matplotlib
matplotlib.use("agg")
sys.path.insert(0, {str(ROOT / "tests")!r})
import elsewhere

def on_it(*models):
    assert {{x.device for model in models for x in model.parameters()}} == {{there}}

there = elsewhere.enter()
for chapter, cells in json.load(sys.stdin).items():
    names = {{"__name__": "chapter", "on_it": on_it, "there": there}}
    for name, source in cells:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(source, f"Chapter {{chapter}}, {{name}}", "exec"), names)
"""


def run(chapters: dict[str, list[tuple[str, str]]], place: Path) -> str:
    """Run cells of chapters where the best device is another one; return what went wrong."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(chapters),
        capture_output=True,
        text=True,
        cwd=place,
        timeout=600,
    )
    lines = [f"exit status {ran.returncode}", *ran.stderr.splitlines()[-60:]] if ran.returncode else []
    return "\n".join(line for line in lines if "registered at" not in line)  # how torch was built


def without_asserts(source: str) -> str:
    """What a cell does; its claims hold for a run that is long enough."""
    tree = ast.parse(source.replace("%matplotlib inline", ""))
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            body[:] = [each for each in body if not isinstance(each, ast.Assert)] or [ast.Pass()]
    return ast.unparse(tree)


def code_of(chapter: Path) -> dict[str, str]:
    cells = nbformat.read(chapter, as_version=4).cells
    return {cell.id: cell.source for cell in cells if cell.cell_type == "code"}


def cells_of(chapter: str) -> list[tuple[str, str]]:
    """The cells that run, made short, and what is asked of them."""
    (path,) = BOOK.glob(f"{chapter}-*.ipynb")
    sources = code_of(path) | {"folder": FOLDER}
    text = json.dumps([(name, without_asserts(sources[name])) for name in CELLS[chapter].split()])
    for long, short in SHORT[chapter].items():
        text, times = re.subn(long, short, text)
        assert times, long
    text = text.replace("device = best_device()", "device = there")  # Chapter 7's own knows no such device
    return [*json.loads(text), ("afterwards", ASKED[chapter])]


UPDATES = """
import itertools, torch
from transformer import *
from transformer.runs.loop import Updater, autocast

config = TransformerConfig(11, 11, d_model=16, n_heads=2, n_layers=1, d_ff=32, dropout=0.0)
losses = teacher_forced_loss, r_drop_loss
formats = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
for kind, loss, precision in itertools.product((lambda model: model, accelerate), losses, formats):
    first = []
    for device in ("cpu", there):
        torch.manual_seed(0)
        model = kind(Transformer(config)).to(device)
        batch = torch.full((3, 5), 7), torch.tensor([[2, 7, 5, 9, 4]] * 3)
        format = precision if device == there else "float32"
        updater = Updater(model, loss, lambda step: 1e-3, 1.0, format, weight_decay=0.1, average=0.9)
        for _ in range(2):  # the second one has the optimizer's averages
            numbers = updater([batch, batch])
        first.append([number.item() for number in numbers])
    torch.testing.assert_close(*map(torch.tensor, first), rtol=0.05, atol=0)
    assert {x.device for x in numbers} == {there}
    on_it(model)
    with autocast(there, precision):
        assert model(*(ids.to(there) for ids in batch)).dtype == formats[precision]
"""


@pytest.mark.slow
def test_updates_in_every_precision_stay_on_another_device(tmp_path):
    assert not run({"": [("updates", UPDATES)]}, tmp_path)


@pytest.mark.slow
def test_chapters_train_on_another_device(tmp_path):
    assert not run({chapter: cells_of(chapter) for chapter in CELLS}, tmp_path)
