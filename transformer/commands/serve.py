"""`serve`: a translator over HTTP."""

import argparse
import asyncio
import json
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import Any
from transformer.commands.main import Add, engine_option, named_translator, search_of, search_options, within
from transformer.language.translator import AnyTranslator, Search
from transformer.validation import optional_import

__all__ = ["HELP", "Refusal", "Batcher", "make_app", "make_server", "run", "add_options"]


# What a request may hold.
MOST_SENTENCES = 64
LONGEST_SENTENCE = 1000  # characters; what the model does not read of them, a warning tells
LARGEST_BODY = 1 << 20  # bytes
ARRIVAL_SECONDS = 20.0  # that a body may take
# What the server holds.
BATCH_CHARACTERS = 8000
QUEUE_CHARACTERS = 500_000  # that may wait, those in work included
MOST_CONNECTIONS = 512
STOPPING_SECONDS = 20  # for what was accepted before the end

HELP = """translate over HTTP

  curl --json '{"sentences": ["Gosto disto."]}' http://127.0.0.1:8000/translate

A request has up to 64 sentences of up to 1,000 characters; more is refused with status 413, a body of
another form with 422, and one that takes more than 20 seconds to arrive with 408. Requests that wait
are translated together; with 500,000 characters waiting, others are refused with status 503. GET /health
answers while the server does. Ctrl-C, or SIGTERM, ends the program once it has answered what it has
accepted; after 20 seconds it refuses the rest. It has no encryption, no passwords and no clock for the
head of a request: on an open network, put a web server that has them before it."""


class Refusal(Exception):
    """A request that is not answered: the status that HTTP has for it, and the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Batcher:
    """A queue in front of the model: requests that wait in it are translated together, by one thread.

    Args:
        translate: gives the translations of some sentences; it runs in another thread.
    """

    def __init__(self, translate: Callable[[list[str]], list[Any]]) -> None:
        self.translate = translate
        self.waiting = 0  # characters, those in work included
        self._loop: asyncio.AbstractEventLoop | None = None  # of the queue, and of who works on it
        self._queue: asyncio.Queue[tuple[list[str], int, asyncio.Future[Any]]]

    async def submit(self, sentences: list[str]) -> list[Any]:
        """The translations of a request's sentences, once it is their turn; a `Refusal` if too many wait."""
        size = sum(len(sentence) + 8 for sentence in sentences)  # even an empty sentence takes room
        if self.waiting + size > QUEUE_CHARACTERS:
            raise Refusal(503, f"{self.waiting} characters are waiting: try again later")
        if (loop := asyncio.get_running_loop()) is not self._loop:  # an earlier one has ended
            self._loop, self._queue = loop, asyncio.Queue()
            self._worker = loop.create_task(self._work())
        answer = loop.create_future()
        self.waiting += size
        self._queue.put_nowait((sentences, size, answer))
        try:
            return await answer
        finally:
            self.waiting -= size

    async def _work(self) -> None:
        while True:
            batch, size = list[tuple[list[str], asyncio.Future[Any]]](), 0
            while not batch or size < BATCH_CHARACTERS and not self._queue.empty():
                sentences, n_characters, answer = await self._queue.get()
                if not answer.done():  # its caller has not left
                    batch.append((sentences, answer))
                    size += n_characters
            together = [sentence for sentences, _ in batch for sentence in sentences]
            try:
                results = iter(await asyncio.to_thread(self.translate, together))
                for sentences, answer in batch:
                    translations = list(islice(results, len(sentences)))
                    if not answer.done():
                        answer.set_result(translations)
            except Exception as error:
                for _, answer in batch:
                    if not answer.done():
                        answer.set_exception(error)


async def _read_sentences(request: Any) -> list[str]:
    body = bytearray()
    try:
        async with asyncio.timeout(ARRIVAL_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > LARGEST_BODY:
                    raise Refusal(413, f"the body has more than the {LARGEST_BODY} bytes that are allowed")
    except TimeoutError:
        raise Refusal(408, f"the body did not arrive within {ARRIVAL_SECONDS:g} seconds") from None
    try:
        sentences = json.loads(body)["sentences"]
        if not isinstance(sentences, list):
            raise TypeError("sentences is no list")
        "".join(sentences).encode()  # texts, and no half of a surrogate pair among their characters
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise Refusal(422, f'send JSON such as {{"sentences": ["Gosto disto."]}}: {error}') from None
    if len(sentences) > MOST_SENTENCES:
        raise Refusal(413, f"{len(sentences)} sentences; a request may have {MOST_SENTENCES}")
    for number, sentence in enumerate(sentences, start=1):
        if len(sentence) > LONGEST_SENTENCE:
            message = f"{len(sentence)} characters; {LONGEST_SENTENCE} are allowed"
            raise Refusal(413, f"sentence {number} has {message}")
    return sentences


def make_app(translator: AnyTranslator, search: Search = Search()) -> Any:
    """A `starlette.applications.Starlette` that translates: what `serve` runs, for use in your own server.

    Args:
        translator: what translates.
        search: how it searches.

    Raises:
        ImportError: starlette is not installed.
    """
    requests, responses = optional_import("starlette.requests"), optional_import("starlette.responses")
    routing = optional_import("starlette.routing")
    batcher = Batcher(lambda texts: translator.translate_checked(texts, search))

    def refuse(status: int, reason: str) -> Any:
        headers = {"Retry-After": "1"} if status == 503 else {}
        # What else its client sends, such as an endless body, is not read.
        return responses.JSONResponse({"detail": reason}, status, headers | {"Connection": "close"})

    async def translate(request: Any) -> Any:
        try:
            answers = await batcher.submit(await _read_sentences(request))
        except Refusal as refusal:
            return refuse(refusal.status, str(refusal))
        except requests.ClientDisconnect:
            return refuse(499, "the client has left")
        except asyncio.CancelledError:
            return refuse(503, "the server is stopping")
        texts, warnings = [each.text for each in answers], [list(each.doubts) for each in answers]
        return responses.JSONResponse({"translations": texts, "warnings": warnings})

    async def health(request: Any) -> Any:
        return responses.JSONResponse({"status": "ok"})

    routes = [routing.Route("/translate", translate, methods=["POST"]), routing.Route("/health", health)]
    return optional_import("starlette.applications").Starlette(routes=routes)


def make_server(app: Any) -> Any:
    """A `uvicorn.Server` of an application, which bounds its connections and the time that stopping takes."""
    uvicorn = optional_import("uvicorn")
    bounds = {"limit_concurrency": MOST_CONNECTIONS, "timeout_graceful_shutdown": STOPPING_SECONDS}
    quiet = {"log_level": "error", "access_log": False, "lifespan": "off", "ws": "none"}
    return uvicorn.Server(uvicorn.Config(app, http="h11", **quiet, **bounds))


def run(options: argparse.Namespace) -> None:
    """Translate over HTTP until a signal to stop."""
    search = search_of(options)
    app = make_app(named_translator(options), search)
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    with socket.create_server((options.host, options.port), family=family) as listening:
        host, port = listening.getsockname()[:2]
        print(f"listening on http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)
        # At its end uvicorn raises the signal once more, which Python would let end the process.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with suppress(KeyboardInterrupt):
            make_server(app).run(sockets=[listening])


def add_options(add: Add) -> None:
    """The options of `serve`."""
    address = "the address to listen on, such as 0.0.0.0 for every one of this machine (default: 127.0.0.1)"
    add("--host", default="127.0.0.1", help=address)
    port = "the port to listen on; 0 for any free one (default: 8000)"
    add("--port", type=within(int, 0, 65535), default=8000, help=port)
    engine_option(add)
    search_options(add)
