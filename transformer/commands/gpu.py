"""`gpu`: what an hour with a GPU is for."""

import argparse
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple
import torch
from transformer.commands.options import Add, place, within
from transformer.commands.recipes import RECIPES
from transformer.commands.terminal import tell
from transformer.files import write_record
from transformer.runs.folder import run_facts

__all__ = ["GPU_SECTIONS", "Step", "gpu_steps", "gpu", "run_step", "gpu_options", "GPU_HELP"]


GPU_SECTIONS = "roofline", "training", "compiled", "levers", "memory", "profile", "decoding", "peak"


class Step(NamedTuple):
    """Something to run on a GPU: its name, and the arguments of `python`."""

    name: str
    arguments: list[str]


def gpu_steps(folder: Path, recipe: str, minutes: float) -> list[Step]:
    """What waits for a GPU: tests, sections of the benchmark, and a recipe for half of the `minutes`."""
    bench = ["-m", "benchmarks.bench", "--device", "cuda", "--output", str(folder / "bench-cuda.json")]
    train = ["-m", "transformer", "train", recipe, "--device", "cuda", "--directory", str(folder / recipe)]
    return [
        Step("tests", ["-m", "pytest", "-q", "tests/test_cuda.py"]),
        *(Step(f"bench {name}", [*bench, "--only", name]) for name in GPU_SECTIONS),
        Step(f"train {recipe}", [*train, "--max-minutes", f"{minutes / 2:g}"]),
    ]


def gpu(options: argparse.Namespace) -> int:
    """Run what waits for a GPU; the status is 1 if a step fails."""
    steps = gpu_steps(options.directory, options.recipe, options.max_minutes)
    if options.dry_run:
        for step in steps:
            tell(f"{step.name}: {shlex.join(['python', *step.arguments])}")
        return 0
    if not Path("benchmarks/bench.py").exists():
        raise ValueError("gpu must be called in the folder of the book, but here is no benchmarks/bench.py")
    if not torch.cuda.is_available():
        here = run_facts("cpu")["device"]
        raise ValueError(f"gpu needs a GPU, and torch finds only {here}; --dry-run shows what would be run")
    options.directory.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = run_facts("cuda") | {"steps": []}
    tell(record["device"])
    end = time.monotonic() + 30 * options.max_minutes
    for step in steps:  # the last trains, and stops by itself
        left = 60 * options.max_minutes if step is steps[-1] else end - time.monotonic()
        record["steps"].append(run_step(step, left))
        write_record(options.directory / "gpu.json", record)
    failed = [step["name"] for step in record["steps"] if step["status"] != 0]
    tell(f"failed: {', '.join(failed)}" if failed else f"all {len(steps)} steps are done")
    return int(bool(failed))


def run_step(step: Step, seconds: float) -> dict[str, Any]:
    """Run a step for at most so many seconds; its status is that of its process, `None` if it was stopped."""
    tell(f"== {step.name}")
    start, status = time.monotonic(), None
    try:
        status = subprocess.run([sys.executable, *step.arguments], timeout=max(0.0, seconds)).returncode
    except (subprocess.TimeoutExpired, OSError) as error:
        tell(f"{step.name}: {error}")
    command, taken = shlex.join(["python", *step.arguments]), round(time.monotonic() - start, 1)
    return {"name": step.name, "command": command, "status": status, "seconds": taken}


def gpu_options(add: Add) -> None:
    """The options of `gpu`."""
    folder = "where records and the run go (default: runs/gpu)"
    add("--directory", type=place, default=Path("runs/gpu"), help=folder)
    add("--recipe", choices=list(RECIPES), default="ted-small", help="what is trained (default: ted-small)")
    time_for_all = "for all steps, of which the recipe gets half (default: 60.0)"
    add("--max-minutes", type=within(float, 1, 10_000), default=60.0, metavar="M", help=time_for_all)
    add("--dry-run", action="store_true", help="only list the commands (default: none, run them)")


GPU_HELP = """\
  python -m transformer gpu --dry-run
  python -m transformer gpu --max-minutes 60

runs, in the folder of the book, the tests that need a GPU, the benchmark, and a training, however each of
them ends. In --directory it leaves gpu.json (device, commands, their ends), bench-cuda.json and the run."""
