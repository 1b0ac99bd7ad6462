"""The folder of a run, its lock, and the facts of a record."""

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from importlib import metadata, resources
from pathlib import Path
from typing import Any
import torch
from transformer.files import CheckpointError, write_record
from transformer.runs.distributed import from_first, rank_and_world_size
from transformer.runs.precision import processor
from transformer.validation import check_device, optional_import

__all__ = ["run_facts", "RunFolder", "locked_by_first"]


def run_facts(device: torch.device | str) -> dict[str, Any]:
    """What it takes to repeat a run.

    Args:
        device: that the run used.

    Returns:
        command, commit (with a `+` where the package differs from it), device, processor (model,
        architecture, the instruction sets that decide how fast products are, and the one that
        torch's own kernels use), versions, and the date in UTC. What cannot be found out is an empty
        string.

    Raises:
        ValueError: there is no such device.
    """
    device = check_device(device)
    model, instructions = processor()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else model
    versions = {"python": platform.python_version()}
    for library in ("torch", "tokenizers", "sacrebleu"):
        with suppress(metadata.PackageNotFoundError):
            versions[library] = metadata.version(library)
    return {
        "command": _command(),
        "commit": _commit(),
        "device": f"{device.type}: {name}, {torch.get_num_threads()} threads",
        "processor": {
            "model": model,
            "architecture": platform.machine(),
            "instructions": sorted(instructions),
            "kernels": torch.backends.cpu.get_cpu_capability(),
        },
        "versions": versions,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _command() -> str:
    # As it was typed, except for the path of the interpreter.
    arguments = sys.orig_argv[1:]
    if any("ipykernel_launcher" in argument for argument in arguments):
        return "a cell of a notebook"
    return shlex.join(["python", *arguments])


def _commit() -> str:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(resources.files("transformer")), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        if not git("ls-files", "*.py"):  # installed inside a repository that is not ours
            return ""
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "*.py") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


class RunFolder:
    """The folder of a run, made when it is first locked: its checkpoints, best weights and log.

    Args:
        path: of the folder.
        config: what its `config.json` is to say of the run; `None` for no such file.
    """

    path: Path
    config: dict[str, Any] | None
    best: Path

    def __init__(self, path: os.PathLike[str] | str, config: dict[str, Any] | None = None) -> None:
        self.path, self.config = Path(path), config
        self.best = self.path / "best.pt"
        filelock = optional_import("filelock")  # here, because it takes long to import
        self._lock, self._timeout = filelock.FileLock(self.path / "run.lock"), filelock.Timeout

    def __fspath__(self) -> str:
        return str(self.path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out; this one may lock again. What is made for the lock goes with
        it, unless a run has begun.

        Raises:
            BlockingIOError: another process is training there.
            OSError: the folder cannot be made, or its file system knows no locks.
        """
        places = [self.path / "run.lock", self.path, *self.path.parents]
        new = [place for place in places if not place.exists()]
        try:
            self._acquire()
            yield
        except BlockingIOError:
            new = []  # they are the other process's
            raise
        finally:
            for place in () if self.checkpoints() else new:
                with suppress(OSError):  # there is something else in it
                    place.rmdir() if place.is_dir() else place.unlink()
            self._lock.release()

    def _acquire(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(timeout=0)
        except self._timeout:
            raise BlockingIOError(f"{self.path} is in use: another process is training there") from None
        except (OSError, NotImplementedError) as error:
            raise OSError(
                f"{self.path} cannot be locked ({getattr(error, 'strerror', error)}), and without a "
                "lock two runs could meet there: choose another folder"
            ) from error

    def write_config(self) -> None:
        """Write `config.json`, now that the run has begun or gone on."""
        if self.config is not None:
            write_record(self.path / "config.json", self.config)

    def checkpoint(self, step: int) -> Path:
        """Where the checkpoint of an update is."""
        return self.path / f"checkpoint-{step:08d}.pt"

    def checkpoints(self) -> list[Path]:
        """All checkpoints, oldest first."""
        digits = 8 * "[0-9]"  # a copy of one under another name is not one of them
        return sorted(self.path.glob(f"checkpoint-{digits}.pt"))

    def check_unused(self) -> None:
        """Refuse a folder without checkpoints that holds other parts of a run."""
        for path in (self.best, self.path / "log.jsonl"):
            if path.exists() and path.stat().st_size:
                gone = f"{path} is of a run whose checkpoints are gone"
                raise CheckpointError(f"{gone}: put one back, or begin in another folder")

    def prune(self, step: int, keep: int) -> None:
        """Remove all but the newest checkpoints up to an update, and what was never finished."""
        for path in [path for path in self.checkpoints() if path <= self.checkpoint(step)][:-keep]:
            path.unlink()
        own = ("checkpoint-*.pt", "best.pt", "log.jsonl")
        for name in own if self.config is None else (*own, "config.json"):
            for path in self.path.glob(f".{name}.*.part"):
                path.unlink()


@contextmanager
def locked_by_first(folder: RunFolder | None) -> Iterator[None]:
    """Keep other runs out of a folder, if there is one. The first process holds the lock; the others are
    told if it is taken.

    Raises:
        BlockingIOError, OSError: as in `RunFolder.locked`.
    """
    with ExitStack() as stack:
        fault = ""
        if folder is not None and rank_and_world_size()[0] == 0:
            try:
                stack.enter_context(folder.locked())
            except BlockingIOError as error:
                fault = str(error)
        if fault := from_first(fault):
            raise BlockingIOError(fault)
        yield
