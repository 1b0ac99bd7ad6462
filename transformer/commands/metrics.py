"""transformer.commands.metrics, from book/I-server.ipynb, "Workshop I: The server".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = ["Metrics"]


# %% book/I-server.ipynb · What is measured · [metrics]
from bisect import bisect_left
from collections import Counter

from transformer.commands.batching import Batcher

_BOUNDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # seconds


class Metrics:
    """What a server has done since it started."""

    sentences: int
    seconds: float

    def __init__(self) -> None:
        self.requests: Counter[int] = Counter()  # of /translate, by status
        self.sentences, self.seconds, self._counts = 0, 0.0, [0] * (len(_BOUNDS) + 1)

    def note(self, status: int, seconds: float) -> None:
        """Count a request for translations."""
        self.requests[status] += 1
        self.seconds += seconds
        self._counts[bisect_left(_BOUNDS, seconds)] += 1

    def text(self, batcher: Batcher) -> str:
        """All numbers in the text format of Prometheus."""
        lines = ["# TYPE transformer_requests_total counter"]
        for status, count in sorted(self.requests.items()):
            lines.append(f'transformer_requests_total{{status="{status}"}} {count}')
        for name, kind, value in (
            ("sentences_total", "counter", self.sentences),
            ("batches_total", "counter", batcher.batches),
            ("waiting_tokens", "gauge", batcher.waiting),
        ):
            lines += [f"# TYPE transformer_{name} {kind}", f"transformer_{name} {value}"]
        lines.append("# TYPE transformer_request_seconds histogram")
        total = 0
        for bound, count in zip((*_BOUNDS, "+Inf"), self._counts, strict=True):
            total += count
            lines.append(f'transformer_request_seconds_bucket{{le="{bound}"}} {total}')
        lines.append(f"transformer_request_seconds_sum {self.seconds}")
        lines.append(f"transformer_request_seconds_count {total}")
        return "\n".join(lines) + "\n"
