"""The server's gate: how many requests may wait."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from transformer.commands.limits import Message, Receive, Refusal, Send, read_body
from transformer.commands.service import Service

__all__ = ["Gate"]


async def _unless_left(answering: Awaitable[None], receive: Receive, begun: Callable[[], bool]) -> None:
    """Await an answer, but cancel it if its client leaves before it has begun.

    Raises:
        Refusal: the client has left.
    """

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        if not begun():
            task.cancel()

    task, watching = asyncio.ensure_future(answering), asyncio.create_task(watch())
    try:
        await task
    except asyncio.CancelledError:
        if watching.done() and not watching.cancelled():
            raise Refusal(499, "the client has left") from None
        raise
    finally:
        watching.cancel()


async def _ended(receive: Receive) -> Message:
    """The next event in the server's life, which an interrupt ends as a shutdown does."""
    try:
        return await receive()
    except asyncio.CancelledError:
        return {"type": "lifespan.shutdown"}


class Gate:
    """What an ASGI server calls: it reads a request's body, lets the application answer, and notes the end.

    Args:
        app: the application.
        service: whose numbers it keeps.
    """

    def __init__(self, app: Callable[[Message, Receive, Send], Awaitable[None]], service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request, whatever becomes of it."""
        if scope["type"] != "http":  # the server's start and its end
            return await self.app(scope, lambda: _ended(receive), send)
        start, status = time.perf_counter(), 0
        parts: list[Message] = []

        async def whole() -> Message:
            return parts.pop() if parts else await asyncio.get_running_loop().create_future()

        async def noted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            parts.append({"type": "http.request", "body": await read_body(receive)})
            await _unless_left(self.app(scope, whole, noted), receive, lambda: status > 0)
        except (Refusal, asyncio.CancelledError) as error:
            if not status:  # the answer has not begun
                stopping = Refusal(503, "the server is stopping")
                refusal = error if isinstance(error, Refusal) else stopping
                response = await self.service.refused(scope, refusal)
                await response(scope, receive, noted)
        finally:
            if scope["path"] == "/translate":
                self.service.measured.note(status or 500, time.perf_counter() - start)
