"""Does every cell hold on other machines? Run the chapters with other kernels, threads and seeds.

    python tests/anywhere.py                            everything
    python tests/anywhere.py 06 07                      two chapters
    python tests/anywhere.py --conditions "shift 3"     some of the conditions

A cell fails if it raises an error that it is not meant to raise. Under the chapters' own seeds it also fails
if it shows another text than the stored one. After an error the chapter goes on, so that no failure hides
another. Failures are printed, and stand in _build/reports/anywhere.json.
"""

from __future__ import annotations

import argparse
import configparser
import json
import os
import re
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError, DeadKernelError

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "book"))

import execute  # noqa: E402

REPORT = ROOT / "_build" / "reports" / "anywhere.json"
# What nbval leaves out of the texts that it compares, and so do we.
SANITIZE = configparser.ConfigParser()
SANITIZE.read(ROOT / "tests" / "sanitize.cfg", encoding="utf8")
ROUNDING = SANITIZE["rounding"]

# Runs before the first cell and adds to every seed that is set. `torch.Generator` itself cannot be changed,
# so a subclass takes its name; wherever a type is checked, each passes for the other.
START_UP = """\
def add_shift(shift):
    import torch

    class Kind(type(torch.Generator)):
        def __instancecheck__(self, value):
            return isinstance(value, own)

    class Generator(torch.Generator, metaclass=Kind):
        def manual_seed(self, seed):
            return super().manual_seed(seed + shift)

    own, seed_everything = torch.Generator, torch.manual_seed
    torch.Generator, torch.manual_seed = Generator, lambda seed: seed_everything(seed + shift)

add_shift({shift})
del add_shift
"""
# Runs after it, so that the Python programs that a chapter starts add the same.
CHILDREN = """\
import atexit, os, pathlib, shutil, tempfile
place = pathlib.Path(tempfile.mkdtemp())
atexit.register(shutil.rmtree, place, ignore_errors=True)
(place / "sitecustomize.py").write_text({start_up!r})
os.environ["PYTHONPATH"] = os.pathsep.join((str(place), os.environ["PYTHONPATH"]))
del atexit, os, pathlib, place, shutil, tempfile
"""


@dataclass(frozen=True)
class Condition:
    """What is different from the run whose outputs are stored.

    Args:
        name: for people.
        capability: the instruction set that PyTorch's kernels may use; empty for the processor's best.
        threads: of PyTorch.
        shift: what is added to every seed.
    """

    name: str
    capability: str = ""
    threads: int = 1
    shift: int = 0

    def environment(self) -> dict[str, str]:
        """The environment of a kernel under this condition."""
        found = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTHONHASHSEED": "0",
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
            "OMP_NUM_THREADS": str(self.threads),
            "OMP_WAIT_POLICY": "passive",  # a thread that waits would take a core from the other worker
        }
        found.pop("ATEN_CPU_CAPABILITY", None)
        if self.capability:
            found["ATEN_CPU_CAPABILITY"] = self.capability
        return found


CONDITIONS = [
    Condition("own"),
    Condition("default", capability="default"),
    Condition("avx2", capability="avx2"),
    Condition("two threads", threads=2),
    *(Condition(f"shift {n}", shift=n) for n in range(1, 11)),
]


def failures(chapter: Path, condition: Condition, timeout: int) -> dict[str, str]:
    """Run a chapter under a condition; return its failed cells, each with what went wrong."""
    notebook = nbformat.read(chapter, as_version=4)
    stored = {cell.id: shown(cell) for cell in notebook.cells if cell.cell_type == "code"}
    if condition.shift:
        start_up = START_UP.format(shift=condition.shift)
        source = start_up + CHILDREN.format(start_up=start_up)
        notebook.cells.insert(0, nbformat.v4.new_code_cell(source, id="start-up"))
    client = NotebookClient(
        notebook,
        timeout=timeout,
        kernel_name="python3",
        allow_errors=True,
        record_timing=False,
        skip_cells_with_tag=execute.SKIP_TAG,
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(chapter.parent)}},
    )
    try:
        client.execute(env=condition.environment())
    except (CellTimeoutError, DeadKernelError) as error:
        return {"": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    found = {}
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        if cell.cell_type != "code" or execute.SKIP_TAG in tags:
            continue
        cell.outputs = execute.join_streams(cell.outputs)
        errors = [output for output in cell.outputs if output.output_type == "error"]
        if errors and "raises-exception" not in tags:
            found[cell.id] = f"{errors[0].ename}: {errors[0].evalue}"[:200]
        elif not condition.shift and "nbval-ignore-output" not in tags and shown(cell) != stored[cell.id]:
            found[cell.id] = "shows another text than the stored one"
    return found


def shown(cell: nbformat.NotebookNode) -> list[str]:
    """The texts that stand under a cell, as nbval compares them.

    Those of errors are left out, for they hold places on a disk.
    """
    texts = []
    for output in cell.outputs:
        if output.output_type == "stream":
            texts.append(output.text)
        elif output.output_type != "error" and not any(kind.startswith("image/") for kind in output.data):
            texts.append(output.data.get("text/plain", ""))
    return [re.sub(ROUNDING["regex"], ROUNDING["replace"], text) for text in texts]


def main(arguments: list[str] | None = None) -> int:
    """Run what is asked for, print what fails, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("chapters", nargs="*", help="numbers or paths; all if none is given")
    names = [condition.name for condition in CONDITIONS]
    parser.add_argument("--conditions", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="chapters at a time")
    parser.add_argument("--timeout", type=int, default=1800, help="seconds that one cell may take (1800)")
    options = parser.parse_args(arguments)
    chapters = execute.find_notebooks(options.chapters)
    chosen = [condition for condition in CONDITIONS if condition.name in (options.conditions or names)]
    started, found = time.monotonic(), []
    with ThreadPoolExecutor(options.workers) as pool:
        # Long chapters first, so that no worker is left with one at the end.
        jobs = [
            (chapter, condition, pool.submit(failures, chapter, condition, options.timeout))
            for chapter in sorted(chapters, key=lambda chapter: -chapter.stat().st_size)
            for condition in chosen
        ]
        for chapter, condition, job in jobs:
            for cell, error in job.result().items():
                found.append(
                    {"chapter": chapter.stem, "cell": cell, "condition": condition.name, "error": error}
                )
                print(f"{chapter.stem} · {cell} · {condition.name}: {error}", flush=True)
    seconds = round(time.monotonic() - started)
    n_runs = len(chapters) * len(chosen)
    print(table(found), end="")
    print(f"{n_runs} runs of {len(chapters)} chapters, {len(found)} failures, {seconds / 60:.0f} minutes")
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf8")
    return 1 if found else 0


def table(found: list[dict[str, str]]) -> str:
    """The failures, a cell to a line, with the conditions under which it fails."""
    cells = defaultdict(list)
    for entry in found:
        cells[entry["chapter"], entry["cell"]].append(entry["condition"])
    lines = []
    for chapter, group in groupby(sorted(cells), key=lambda place: place[0]):
        lines.append(f"\n{chapter}\n")
        lines += [f"  {cell or 'the kernel'}: {', '.join(cells[chapter, cell])}\n" for _, cell in group]
    return "".join(lines)


if __name__ == "__main__":
    sys.exit(main())
