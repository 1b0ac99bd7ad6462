"""What every test has: one thread, one seed, and properties that are tried on the same examples each time."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter

# Before torch is imported: several test processes with several threads each would fight for the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings

settings.register_profile(
    "book", max_examples=20, deadline=None, derandomize=True, database=None, print_blob=True
)
settings.load_profile("book")

# A shell lets programs in the background ignore Ctrl-C, nohup lets them ignore a closed terminal, and the
# programs that tests start would do the same.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def float64():
    """New tensors are in float64."""
    import torch

    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def pytest_collection_modifyitems(items) -> None:
    """Chapters first, then files with many slow tests: no worker begins as the last what takes long."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: (item.path.suffix != ".ipynb", -slow[item.path]))


def pytest_runtest_setup(item) -> None:
    """Seed torch, where a test has imported it."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Where `NO_SKIPS` is set, as in the job that has every program, a test that is skipped fails."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("NO_SKIPS"):
        report.outcome, report.longrepr = "failed", f"skipped, though NO_SKIPS is set: {report.longrepr[2]}"
    return report


def pytest_collectreport(report) -> None:
    """And so does a module that is skipped."""
    if report.skipped and os.environ.get("NO_SKIPS"):
        report.outcome, report.longrepr = "failed", f"skipped, though NO_SKIPS is set: {report.longrepr[2]}"
