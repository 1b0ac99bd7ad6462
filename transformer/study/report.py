"""What the checks of the clinic report, and how one is made after the other."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
import torch

__all__ = ["CheckResult", "CheckReport", "Finding", "Skipped", "first_line", "listed", "examine"]


class CheckResult(NamedTuple):
    """What one check found."""

    name: str
    verdict: str  # "pass", "FAIL" or "skipped"
    measured: str  # what was measured, what was raised, or why the check was skipped
    suspects: str  # where to look first; empty unless the check failed


@dataclass(frozen=True)
class CheckReport:
    """What the checks found; `print` shows it as a table.

    Args:
        arithmetic: the precision that the checks computed in.
        results: one for each check.
    """

    arithmetic: str
    results: tuple[CheckResult, ...]

    @property
    def failures(self) -> tuple[str, ...]:
        """The names of the checks that failed."""
        return tuple(result.name for result in self.results if result.verdict == "FAIL")

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self.failures

    def __str__(self) -> str:
        verdicts = [result.verdict for result in self.results]
        counts = ", ".join(f"{verdicts.count(name)} {name}" for name in ("pass", "FAIL", "skipped"))
        lines = [f"{counts}; computed in {self.arithmetic}"]
        for result in self.results:
            lines.append(f"{result.verdict:8} {result.name:17} {result.measured}")
            lines += [f"{'':8} {'suspects:':17} {result.suspects}"] if result.suspects else []
        return "\n".join(lines)


class Finding(NamedTuple):
    """What a check returns."""

    passed: bool
    measured: str
    suspects: str = ""


class Skipped(Exception):
    """A check that cannot be made, and why."""


def first_line(error: Exception) -> str:
    """An exception's type and the beginning of its message."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:80]}"


def listed(names: Iterable[object]) -> str:
    """The first two names, and how many more there are."""
    shown = [str(name) for name in names]
    more = f" and {len(shown) - 2} more" if len(shown) > 2 else ""
    return ", ".join(shown[:2]) + more


def examine(
    checks: Mapping[str, Callable[[Any], Finding]], asked: Any, needed: tuple[str, ...]
) -> tuple[CheckResult, ...]:
    """Make one check after the other; one that raises has failed, and the others go on.

    Args:
        checks: by name; each is called with `asked`.
        needed: where one of these fails, later ones would measure nothing, and are skipped.
    """
    results: list[CheckResult] = []
    for name, check in checks.items():
        failed = [result.name for result in results if result.verdict == "FAIL" and result.name in needed]
        torch.manual_seed(0)
        try:
            if failed:
                raise Skipped(f"needs {failed[0]!r} to pass")
            passed, measured, suspects = check(asked)
            verdict = "pass" if passed else "FAIL"
        except Skipped as reason:
            verdict, measured, suspects = "skipped", str(reason), ""
        except Exception as error:
            verdict, measured, suspects = "FAIL", first_line(error), "raised by what is examined"
        results.append(CheckResult(name, verdict, measured, suspects if verdict == "FAIL" else ""))
    return tuple(results)
