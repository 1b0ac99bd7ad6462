"""How many connections a server holds, and how long one may take to send a request."""

import asyncio
from typing import Any
from transformer.commands.limits import ARRIVAL_SECONDS
from transformer.validation import optional_import

__all__ = ["MOST_CONNECTIONS", "most_connections", "timed_protocol"]


MOST_CONNECTIONS = 512  # that are open at once, and no more than half of the files that the process may open
_GRACE = 0.5  # seconds that a refused client has to read why, before its connection is closed


def most_connections() -> int:
    """How many connections the process can hold."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return MOST_CONNECTIONS
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if files == resource.RLIM_INFINITY else min(MOST_CONNECTIONS, files // 2)


def timed_protocol(most: int) -> Any:
    """uvicorn's protocol for HTTP, with limits on connections and on the time that their clients take.

    Args:
        most: open connections; beyond, the one that has waited longest for its client is closed.

    Raises:
        ImportError: uvicorn is not installed.
    """
    waiting: dict[Any, asyncio.TimerHandle] = {}  # connections whose client's turn it is, with their clocks

    class Timed(optional_import("uvicorn.protocols.http.h11_impl").H11Protocol):  # type: ignore[misc]
        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            if len(self.connections) > most and waiting:
                next(iter(waiting)).drop()
            elif len(self.connections) > most:
                self.limit_concurrency = 0  # uvicorn answers with status 503
            self.watch()

        def data_received(self, data: bytes) -> None:
            before = self.cycle
            super().data_received(data)
            if self.cycle is not before:  # a head has arrived: its body has a clock of its own
                self.stop_clock()
            self.watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.cycle.response_complete and self.cycle.more_body:  # a body that was refused
                self.flow.pause_reading()
                self.loop.call_later(_GRACE, self.drop)
            self.watch()

        def pause_writing(self) -> None:
            super().pause_writing()
            self.watch()

        def resume_writing(self) -> None:
            super().resume_writing()
            self.watch()

        def connection_lost(self, error: Exception | None) -> None:
            super().connection_lost(error)
            self.stop_clock()

        def watch(self) -> None:
            request = self.cycle  # the latest
            ours = request is not None and not request.more_body and not request.response_complete
            if ours and not self.flow.write_paused:
                self.stop_clock()
            elif self not in waiting:
                waiting[self] = self.loop.call_later(ARRIVAL_SECONDS + _GRACE, self.drop)

        def stop_clock(self) -> None:
            if clock := waiting.pop(self, None):
                clock.cancel()

        def drop(self) -> None:
            self.stop_clock()
            self.connections.discard(self)
            self.transport.abort()

    return Timed
