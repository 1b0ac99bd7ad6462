"""What a server counts."""

from collections.abc import Iterator
from typing import Any
from transformer.commands.batching import Batcher
from transformer.validation import optional_import

__all__ = ["Metrics"]


_BOUNDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # seconds


class Metrics:
    """What a server has done since it started, as Prometheus wants to be told.

    Args:
        batcher: whose queue is shown.

    Raises:
        ImportError: prometheus_client is not installed.
    """

    batcher: Batcher

    def __init__(self, batcher: Batcher) -> None:
        self.batcher, self._client = batcher, optional_import("prometheus_client")
        self._registry = self._client.CollectorRegistry()
        kept = {"namespace": "transformer", "registry": self._registry}
        counter, histogram = self._client.Counter, self._client.Histogram
        self._requests = counter("requests", "Requests for translations.", ["status"], **kept)
        self._sentences = counter("sentences", "Sentences translated.", **kept)
        self._seconds = histogram("request_seconds", "Until the answer.", buckets=_BOUNDS, **kept)
        self._registry.register(self)

    def collect(self) -> Iterator[Any]:
        """What is the batcher's and read when it is asked for; the registry calls this."""
        core = optional_import("prometheus_client.core")
        yield core.CounterMetricFamily("transformer_batches", "Batches made.", self.batcher.batches)
        yield core.GaugeMetricFamily("transformer_waiting_tokens", "In the queue.", self.batcher.waiting)

    def note(self, status: int, seconds: float) -> None:
        """Count a request for translations."""
        self._requests.labels(status).inc()
        self._seconds.observe(seconds)

    def note_sentences(self, number: int) -> None:
        """Count sentences that were translated."""
        self._sentences.inc(number)

    def answered(self) -> int:
        """How many requests were answered with translations."""
        return int(self._registry.get_sample_value("transformer_requests_total", {"status": "200"}) or 0)

    def text(self) -> str:
        """All numbers in the text format of Prometheus."""
        return str(self._client.generate_latest(self._registry).decode())
