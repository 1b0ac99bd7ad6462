"""Set up, build and check the book on any system: `make NAME` stands for `python book/tasks.py NAME`.

    python book/tasks.py book        # build the HTML and print the address of its first page
    python book/tasks.py test        # check everything
    python book/tasks.py --help      # all commands

Needs nothing but Python. The first command that needs packages makes `.venv` in the repository and installs
what requirements.txt pins; every command after that uses it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
HTML = ROOT / "_build" / "html"
OLDEST_PYTHON = (3, 11)
CELL_TIMEOUT = "900"  # seconds that a cell of the book may take
# What `pip` wrote into an environment is known by the text of the files that it has read.
REQUIREMENTS = ("requirements.txt", "pyproject.toml")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# As many one-threaded test processes as there are workers, or they fight for the cores.
QUIET = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
# Nor does each of them, and each program that a test starts, compile the package anew.
QUIET["PYTHONDONTWRITEBYTECODE"] = ""
# A file is run by one worker. Files begin in the order given, chapters first: the longest is one of them.
BY_FILE = ("--dist", "loadfile", "--no-loadscope-reorder")
CORES = min(os.cpu_count() or 1, 7)
# One process more than cores: the tests of the browser, and of notebooks, wait for another program.
WORKERS = CORES + 1
# Warnings are errors with the packages of requirements.txt; newer ones have others to give.
ANY_VERSIONS = ("-W", "default")
# Seconds of each part of twelve minutes with a GPU. `ted` has the rest, and what is compiled comes last.
GPU_PARTS = {"facts": 25, "tests": 75, "ladder": 100, "searches": 60, "toy": 120, "ted": 0, "compiled": 60}
COMMANDS = {}


def command(function):
    """Make a function a command of this program: its name with hyphens, its first line as help."""
    COMMANDS[function.__name__.replace("_", "-")] = function
    return function


# ---------- the environment


def python_of(venv: Path) -> Path:
    """The interpreter of a virtual environment; Windows has it in another folder."""
    return venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def call(*words: str | Path, **more: str) -> None:
    """Run a program in the root of the repository, and end this one with its status if it fails."""
    line, environment = [str(word) for word in words], {**os.environ, **more}
    ran = subprocess.run(line, cwd=str(ROOT), env=environment, stdin=subprocess.DEVNULL, check=False)
    if ran.returncode:
        sys.exit(ran.returncode if ran.returncode > 0 else 1)


def digest(*names: str) -> str:
    """A text that changes when one of these files does."""
    return hashlib.sha256(b"\0".join((ROOT / name).read_bytes() for name in names)).hexdigest()


def remove(path: Path) -> None:
    """Remove a folder and what is in it, or a file or a link, and of a link not what it leads to."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def read(stamp: Path) -> str | None:
    """What a stamp says, however damaged; None if it is missing."""
    return stamp.read_text(errors="replace") if stamp.is_file() else None


def installed() -> Path:
    """The interpreter of `.venv`, which is made first and brought up to date where it is not."""
    python, stamp = python_of(VENV), VENV / ".installed"
    if read(stamp) == digest(*REQUIREMENTS) and python.exists():
        return python
    if not python.exists() or subprocess.run([str(python), "-c", ""], check=False).returncode:
        if sys.version_info < OLDEST_PYTHON:
            needs, has = "{}.{} or newer".format(*OLDEST_PYTHON), sys.version.split()[0]
            other = "Name another one: python3.12 book/tasks.py … or make PYTHON=python3.12 …"
            sys.exit(f"This book needs Python {needs}; {sys.executable} is {has}. {other}")
        call(sys.executable, "-m", "venv", "--clear", VENV)
    remove(stamp)
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    call(*pip, "--requirement", "requirements.txt")
    call(*pip, "--no-deps", "--no-build-isolation", "--editable", ".")
    stamp.write_text(digest(*REQUIREMENTS))
    return python


def sound(python: Path) -> None:
    """Check what takes no time: the package is what the book says, and both are in good style."""
    call(python, "book/tangle.py", "--check")
    call(python, "-m", "ruff", "check")


# ---------- what readers do


@command
def setup(options) -> None:
    """make .venv and install what requirements.txt pins"""
    installed()


@command
def book(options) -> None:
    """tangle, build the HTML with warnings as errors, say where it lies"""
    html(options)
    print("\nThe book:", (HTML / "index.html").as_uri())


@command
def test(options) -> None:
    """package = book, style, tests, every cell against its stored output"""
    python = installed()
    sound(python)
    call(
        *(python, "-m", "pytest", "--numprocesses", options.workers, *BY_FILE),
        *("-m", "not pages and not types", "--nbval", "--nbval-current-env"),
        *("--durations", "30", "--durations-min", "1"),
        *("--nbval-cell-timeout", CELL_TIMEOUT),
        *("--nbval-sanitize-with", "tests/sanitize.cfg", "book", "tests"),
        **QUIET,
    )


@command
def test_pages(options) -> None:
    """the book without warnings, its links, and every page in Chromium: widths, themes, live figures"""
    python = installed()
    html(options)
    several = ("--numprocesses", options.workers, "--dist", "worksteal")
    call(python, "-m", "pytest", *several, "-m", "pages", "tests/book", **QUIET)


@command
def test_fast(options) -> None:
    """package = book, style, form of the notebooks, tests that are not slow"""
    python = installed()
    sound(python)
    call(
        *(python, "-m", "pytest", "--numprocesses", options.workers, "-m", "not slow and not pages"),
        "tests",
        **QUIET,
    )


@command
def test_here(options) -> None:
    """the tests and every cell with the Python and the packages that run this, whatever their versions

    Stored outputs are those of requirements.txt, so here cells must run, and what they print is not compared.
    """
    call(sys.executable, "book/tangle.py", "--check")
    call(
        *(sys.executable, "-m", "pytest", *ANY_VERSIONS, "--numprocesses", options.workers, *BY_FILE),
        *("--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout", CELL_TIMEOUT),
        *("--ignore=tests/book", "book", "tests"),  # what builds the pages needs the versions that are pinned
        **QUIET,
    )


# ---------- what authors do


@command
def tangle(options) -> None:
    """write transformer/*.py from the chapters"""
    call(installed(), "book/tangle.py")


@command
def back(options) -> None:
    """carry what was edited in transformer/*.py home into the chapters"""
    call(installed(), "book/tangle.py", "--back")


@command
def tidy(options) -> None:
    """bring what an editor has saved into the form of the book: tidy 03, or tidy alone for all"""
    call(installed(), "book/execute.py", "--tidy", *options.arguments)


@command
def style(options) -> None:
    """package = book, ruff, form of the notebooks"""
    python = installed()
    sound(python)
    call(python, "-m", "pytest", "--quiet", "tests/book/test_notebooks.py", **QUIET)


@command
def html(options) -> None:
    """tangle, and build the HTML with warnings as errors"""
    tangle(options)
    build = "import sys; from jupyter_book.cli.main import main; sys.exit(main())"
    flags = ("--warningiserror", "--nitpick", "--keep-going", "--quiet")
    try:
        call(installed(), "-c", build, "build", ".", *flags)
    except SystemExit:
        # Sphinx reports a warning only for a page that it reads, so a failed build must not count as one.
        shutil.rmtree(ROOT / "_build" / ".doctrees", ignore_errors=True)
        raise


@command
def pdf(options) -> None:
    """print the whole book for reading on paper, with Chromium, to _build/pdf"""
    html(options)
    call(installed(), "book/pdf.py")


@command
def workbook(options) -> None:
    """write the chapters with pieces to be written by the reader to workbook/, and as an archive to _build"""
    call(installed(), "book/workbook.py", "--zip")


@command
def test_workbook(options) -> None:
    """run every notebook of the workbook to its end, with nothing filled in, solved, and in other hands"""
    python, chosen = installed(), ("-m", "slow", "tests/book/test_workbook_pages.py")
    several = ("--numprocesses", options.workers, "--dist", "worksteal")
    call(python, "-m", "pytest", *several, *chosen, **QUIET, WORKBOOK="all")


@command
def run(options) -> None:
    """execute chapters in place, for the record: run 03 07, or run alone for all"""
    call(installed(), "book/execute.py", *options.arguments)


@command
def types(options) -> None:
    """check package, tests and experiments with mypy, a user's program with pyright as well"""
    call(installed(), "-m", "pytest", "--quiet", "tests/test_types.py")


@command
def bench(options) -> None:
    """measure speed beside peers: bench --only training"""
    python, stamp, needs = installed(), VENV / ".bench-installed", "benchmarks/requirements.txt"
    if read(stamp) != digest(*REQUIREMENTS, needs):
        call(python, "-m", "pip", "install", "--quiet", "--requirement", needs)
        stamp.write_text(digest(*REQUIREMENTS, needs))
    call(python, "-m", "benchmarks.bench", *options.arguments)


@command
def gpu(options) -> None:
    """where there is a GPU: its tests, speed, the toy, a translator, in runs/gpu: gpu --minutes 12

    With this Python. A part is cut at its limit; the translator, or the last of --only, has what is left.
    """
    parser = argparse.ArgumentParser(prog="python book/tasks.py gpu")
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", nargs="+", choices=GPU_PARTS, default=list(GPU_PARTS), metavar="PART")
    given = parser.parse_args(options.arguments)
    folder, end, lines = ROOT / "runs" / "gpu", time.monotonic() + 60 * given.minutes, []
    (earlier := folder / "earlier").mkdir(parents=True, exist_ok=True)
    # Seconds of twelve minutes, of which the translator has the rest; without it, all go to those named.
    shared = 720 if "ted" in given.only else sum(GPU_PARTS[name] for name in given.only)
    for name in given.only:
        left, share = end - time.monotonic(), 60 * given.minutes / shared
        limit = left - GPU_PARTS["compiled"] * share if name == "ted" else max(25.0, GPU_PARTS[name] * share)
        limit = left if name == given.only[-1] else min(left, limit)
        path, start, how = folder / f"{name}.json", time.monotonic(), ""
        left_by = {"tests": ["tests.xml"], "ted": ["record.json", "translator"]}.get(name, [])
        for old in filter(Path.exists, (path, *(folder / each for each in left_by))):
            remove(earlier / old.name)
            old.replace(earlier / old.name)
        command = ["-m", "benchmarks.gpu", name, given.device, str(start + 0.8 * limit), str(folder)]
        if name == "tests":
            command = ["-m", "pytest", *ANY_VERSIONS, "-q", "tests/test_cuda.py", "-k", f"[{given.device}"]
            command.append(f"--junitxml={folder / 'tests.xml'}")
        process = subprocess.Popen([sys.executable, *command], cwd=ROOT)
        try:
            if code := process.wait(max(0.0, limit - 10 * (name == "tests"))):
                how = f", status {code}"
        except subprocess.TimeoutExpired:
            how = ", cut"
            if name == "tests":
                process.send_signal(signal.SIGINT)  # pytest then tells what it has found
                with suppress(subprocess.TimeoutExpired):
                    process.wait(10)
        finally:
            process.kill()
            process.wait()
        lines.append(f"{name}: {time.monotonic() - start:.0f} s{how}")
        lines += shown(json.loads(path.read_text())) if path.exists() else []
        (folder / "table.txt").write_text("\n".join(lines) + "\n")  # whatever happens to the next part
    print(*lines, sep="\n")


def shown(record):
    """Lines for the rows of a part's record, in one line those whose names begin alike: of each a number."""
    alike = {}
    for row, values in ((row, values) for row, values in record.items() if isinstance(values, dict)):
        numbers = [f"{key} {x:,.4g}" for key, x in values.items() if isinstance(x, int | float)]
        alike.setdefault(" ".join(row.split()[:2]), []).append((row, numbers))
        yield from (f"  {row}: {note:.90}" for key, note in values.items() if "warning" in key)
    for size, rows in alike.items():
        each = [f"{row.removeprefix(size)} {', '.join(x[:1] if rows[1:] else x)}".strip() for row, x in rows]
        yield textwrap.fill(f"  {size}  {' | '.join(each)}", 110, subsequent_indent="    ")


@command
def anywhere(options) -> None:
    """run every cell under other instruction sets, threads and seeds: about an hour"""
    call(installed(), "tests/anywhere.py", "--workers", options.workers, *options.arguments)


@command
def mutants(options) -> None:
    """put known faults into a copy of the package, one at a time: the tests must notice"""
    call(installed(), "tests/mutants.py", "--workers", options.workers, *options.arguments, **QUIET)


@command
def colab(options) -> None:
    """run every notebook alone, in an environment with Colab's versions; writes _build/reports/colab.json"""
    call(installed(), "tests/colab.py", *options.arguments)


@command
def browser(options) -> None:
    """install what the browser tests need, Chromium, or say how"""
    for name in BROWSERS:
        if shutil.which(name):
            print("Chromium is here:", shutil.which(name))
            return
    if shutil.which("apt-get") and os.geteuid() == 0:
        call("apt-get", "update", "-qq")
        install = ("apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium")
        call(*install, DEBIAN_FRONTEND="noninteractive")
    else:
        print(
            f"The browser tests need Chromium on the PATH, as {', '.join(BROWSERS[:-1])} or {BROWSERS[-1]}."
        )
        print("On Debian and its relatives: sudo apt-get install chromium. Without it they are skipped.")


@command
def release(options) -> None:
    """commit and tag a version, with its cells and its changelog: release 0.3.0"""
    call(installed(), "book/repository.py", "--release", *options.arguments)


@command
def clean(options) -> None:
    """remove what was built; .venv stays"""
    for name in ("_build", "build", "dist", ".pytest_cache", ".ruff_cache", ".mypy_cache", ".hypothesis"):
        remove(ROOT / name)
    for path in ROOT.glob("*.egg-info"):
        remove(path)
    for top in ("book", "tests", "transformer", "benchmarks", "experiments"):
        for path in list((ROOT / top).rglob("__pycache__")):
            remove(path)


def main(arguments: list[str]) -> None:
    lines = "\n".join(
        f"  {name:<11} {function.__doc__.splitlines()[0]}" for name, function in COMMANDS.items()
    )
    parser = argparse.ArgumentParser(
        prog="python book/tasks.py", description=__doc__.partition("\n")[0], epilog=f"commands:\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter, add_help=False, allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("command", choices=COMMANDS, metavar="command")
    parser.add_argument(
        "--workers", metavar="N", help=f"test processes at a time ({WORKERS}; of test-fast {CORES})"
    )
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        parser.print_help()
        return
    options, options.arguments = parser.parse_known_args(arguments)
    options.workers = options.workers or str(CORES if options.command == "test-fast" else WORKERS)
    try:
        COMMANDS[options.command](options)
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        sys.exit(f"{error.filename or options.command}: {error.strerror or error}")


if __name__ == "__main__":
    main(sys.argv[1:])
