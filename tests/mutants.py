"""Do the tests notice a mistake? Put known faults into a copy of the package, one at a time.

    python tests/mutants.py                    all of tests/faults; writes _build/reports/mutants.json
    python tests/mutants.py --only attention/  some, by a part of their names

Every fault is tried by the fast tests of its own module, in a process of its own, up to the first
test that fails. Before that, the same tests must pass on the copy as it is; and whenever tests run,
it is checked that they have imported the copy and not the package that is installed.
"""

from __future__ import annotations

import argparse
import ast
import json
import multiprocessing
import os
import queue
import shutil
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from faults import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[1]
REPORT = ROOT / "_build" / "reports" / "mutants.json"
TIME_LIMIT = 600.0  # seconds for tests without a fault
PATIENCE = 30.0, 4.0  # with a fault they may take this many seconds, and so many times as long
GOOD = ("caught", "timeout", "equivalent")  # a test that no longer ends has noticed as well

# A module's tests are tests/<folder>/test_<module>.py, but for these.
TEST_FILES = {
    "attention": ("test_attention.py", "test_model.py"),
    "loss": ("test_loss.py", "test_model.py"),
    "validation": ("test_validation.py", "test_model.py"),
}

# Test processes are forked from one that has imported these already, which saves half the time.
PRELOAD = ["pytest", "hypothesis.strategies", "torch._dynamo", "matplotlib.pyplot"]
PRELOAD += ["sacrebleu", "safetensors.torch", "tokenizers"]


def files_for(module: str) -> tuple[str, ...]:
    """The files whose tests have to notice a fault in `module`."""
    folder, _, name = module.rpartition("/")
    return TEST_FILES.get(module, ((f"{folder}/" if folder else "") + f"test_{name}.py",))


# ---------- In the copy


class Witness:
    """A pytest plugin that notes which test failed first, and whose package the tests have seen."""

    def __init__(self) -> None:
        self.passed, self.failed, self.broken, self.package = 0, "", "", ""

    def pytest_configure(self) -> None:
        from hypothesis import Phase, settings

        # That there is an example that fails is enough: nobody reads the smallest one.
        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", settings.get_profile("book"), phases=phases)
        settings.load_profile("mutants")

    def pytest_collectreport(self, report) -> None:
        if report.failed:
            self.broken = self.broken or report.nodeid

    def pytest_runtest_logreport(self, report) -> None:
        self.passed += report.when == "call" and report.passed
        if report.failed:
            self.failed = self.failed or report.nodeid.removeprefix("tests/")

    def pytest_sessionfinish(self) -> None:
        self.package = getattr(sys.modules.get("transformer"), "__file__", "")


def run_tests(folder: Path, files: tuple[str, ...], report: Path) -> None:
    """Run the fast tests in `files` of the copy in `folder` up to the first that fails.

    This is the whole life of a process: what was seen goes to `report`, what was printed to
    output.txt in the folder.
    """
    os.chdir(folder)
    printed = os.open("output.txt", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    # The copy comes before the package that is installed, for this process and those it starts.
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = str(folder)
    # Bytecode is matched by second and length of its source: two faults could be mixed up.
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"

    import pytest

    witness = Witness()
    options = ["-x", "-q", "-m", "not slow and not pages", "-p", "no:cacheprovider"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # hypothesis is imported already
    status = pytest.main([*options, *(f"tests/{name}" for name in files)], plugins=[witness])
    seen = json.dumps(vars(witness) | {"status": int(status)})
    report.write_text(seen, encoding="utf8")


# ---------- Around the copy


def server():
    """What starts a test process: forked from one that has the large libraries, not the package."""
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context


@dataclass
class Outcome:
    """What came of one run: caught, timeout, survived, broken or killed, and by which test."""

    verdict: str
    test: str = ""
    passed: int = 0
    seconds: float = 0.0
    output: str = ""

    @property
    def said(self) -> str:
        """The verdict, and the test that noticed without its parameters."""
        return f"{self.verdict} by {self.test.partition('[')[0]}" if self.test else self.verdict


class Copy:
    """A copy of package, benchmarks, experiments and tests in which faults are tried, one at a time.

    Args:
        folder: a folder that does not exist yet.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.attempts = folder.resolve(), 0
        left_out = shutil.ignore_patterns("__pycache__")
        for name in ("transformer", "benchmarks", "experiments", "tests"):
            shutil.copytree(ROOT / name, self.folder / name, ignore=left_out)
        shutil.copy(ROOT / "pyproject.toml", self.folder)

    def run(self, files: tuple[str, ...], limit: float = TIME_LIMIT) -> Outcome:
        """Run the fast tests in `files` on the package as it stands, for `limit` seconds at most.

        Raises:
            RuntimeError: the tests have imported another package than the copy.
        """
        outcome = self._attempt(files, limit)
        # Who leaves no report was killed, for want of memory perhaps: that tells nothing.
        return outcome if outcome.verdict != "killed" else self._attempt(files, limit)

    def _attempt(self, files: tuple[str, ...], limit: float) -> Outcome:
        self.attempts += 1
        report = self.folder / f"report{self.attempts}.json"
        start = time.perf_counter()
        process = server().Process(target=run_tests, args=(self.folder, files, report))
        process.start()
        process.join(limit)
        seconds = time.perf_counter() - start
        if process.is_alive():
            process.kill()
            process.join()
            return Outcome("timeout", seconds=seconds)
        output = (self.folder / "output.txt").read_text(encoding="utf8", errors="replace")
        if not report.exists():
            return Outcome("killed", seconds=seconds, output=output)
        seen = json.loads(report.read_text(encoding="utf8"))
        if seen["broken"] or seen["status"] not in (0, 1):
            return Outcome("broken", seen["broken"], seen["passed"], seconds, output)
        if not Path(seen["package"]).is_relative_to(self.folder):
            raise RuntimeError(f"the tests import {seen['package']} and not the copy")
        verdict = "caught" if seen["failed"] else "survived"
        return Outcome(verdict, seen["failed"], seen["passed"], seconds, output)

    def try_fault(self, fault: Fault, limit: float = TIME_LIMIT) -> Outcome:
        """Put a fault in, run the tests of its module, take the fault out again."""
        path = self.folder / "transformer" / f"{fault.module}.py"
        sound = path.read_text(encoding="utf8")
        faulty = fault.applied(sound)
        path.write_text(faulty, encoding="utf8")
        try:
            outcome = self.run(files_for(fault.module), limit)
        finally:
            path.write_text(sound, encoding="utf8")
        if outcome.verdict == "broken" and is_python(faulty):  # a package that is not imported is noticed
            outcome.verdict, outcome.test = "caught", Path(outcome.test).name
        if fault.equivalent:
            outcome.verdict = {"survived": "equivalent"}.get(outcome.verdict, "misjudged")
        return outcome


def is_python(source: str) -> bool:
    """Whether a source can be read at all."""
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


class Copies:
    """Copies of the package, as many as there are workers; each job has one to itself."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.free: queue.Queue[Copy] = queue.Queue()
        for number in range(workers):
            self.free.put(Copy(folder / f"copy{number}"))

    def run(self, method, *arguments) -> Outcome:
        """`method(copy, *arguments)` with the next copy that is free."""
        copy = self.free.get()
        try:
            return method(copy, *arguments)
        finally:
            self.free.put(copy)


def run_sound(copies: Copies, files: tuple[str, ...]) -> Outcome:
    """Make sure that the tests pass where there is no fault."""
    outcome, names = copies.run(Copy.run, files), " ".join(files)
    if outcome.verdict != "survived" or outcome.passed == 0:
        sys.exit(f"{outcome.output}\nwithout a fault, the tests in {names} do not pass")
    print(f"{outcome.seconds:5.1f} s  {names}: {outcome.passed} tests pass without a fault", flush=True)
    return outcome


def run_faults(faults: list[Fault], workers: int) -> dict[str, Outcome]:
    """Try every fault; return the outcomes by the faults' ids."""
    outcomes: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(workers) as pool:
        copies = Copies(Path(folder), workers)
        wanted = sorted({files_for(fault.module) for fault in faults})
        sound = dict(zip(wanted, pool.map(lambda files: run_sound(copies, files), wanted), strict=True))
        tries = {}
        for fault in faults:
            limit = PATIENCE[0] + PATIENCE[1] * sound[files_for(fault.module)].seconds
            tries[pool.submit(copies.run, Copy.try_fault, fault, limit)] = fault
        try:
            for done in as_completed(tries):
                fault, outcome = tries[done], done.result()
                outcomes[fault.id] = outcome
                said = f"{outcome.seconds:5.1f} s  {outcome.verdict}: {fault.id}  {outcome.test}"
                print(f"{len(outcomes):4d}/{len(faults)} {said}", flush=True)
                if outcome.verdict in ("broken", "killed"):
                    print(outcome.output[-2000:])
        finally:
            pool.shutdown(cancel_futures=True)  # whoever presses Ctrl-C waits for no others
    return outcomes


def main() -> int:
    """Run what the command line asks for; return 0 where every fault is caught or explained."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=2, help="tests at a time (default: 2)")
    parser.add_argument("--only", nargs="+", metavar="PART", help="faults by a part of their names")
    options = parser.parse_args()
    chosen = [f for f in FAULTS if not options.only or any(part in f.id for part in options.only)]
    if not chosen:
        parser.error(f"no fault's name has any of {options.only} in it")

    start = time.perf_counter()
    outcomes = run_faults(chosen, options.workers)
    seconds = time.perf_counter() - start
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    verdicts = {fault.id: outcomes[fault.id].said for fault in chosen}
    REPORT.write_text(json.dumps(verdicts, indent=1) + "\n", encoding="utf8")

    counts = Counter(outcome.verdict for outcome in outcomes.values())
    counted = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    print(f"{len(chosen)} faults: {counted}, in {seconds / 60:.1f} minutes")
    wrong = [fault for fault in chosen if outcomes[fault.id].verdict not in GOOD]
    for fault in wrong:
        print(f"{outcomes[fault.id].verdict}: {fault.id} ({fault.mistake})")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
