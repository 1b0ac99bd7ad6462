"""`serve`: a translator over HTTP."""

import argparse
import asyncio
import json
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from transformer.commands.main import Add, engine_option, named_translator, search_of, search_options, within
from transformer.language.translator import AnyTranslator, Search
from transformer.validation import optional_import

__all__ = ["HELP", "Refusal", "Batcher", "make_app", "make_server", "run", "add_options"]


# What a request may hold.
MOST_SENTENCES = 64
LONGEST_SENTENCE = 1000  # characters, and no more tokens than the model reads
LARGEST_BODY = 1 << 20  # bytes
ARRIVAL_SECONDS = 20.0  # that a body may take
# What the server holds.
BATCH_TOKENS = 2048
QUEUE_TOKENS = 1 << 17  # that may wait, those in work included
MOST_CONNECTIONS = 512
STOPPING_SECONDS = 20  # for what was accepted before the end

HELP = """translate over HTTP

  curl --json '{"sentences": ["Gosto disto."]}' http://127.0.0.1:8000/translate

A request has up to 64 sentences of up to 1,000 characters; more is refused with status 413, a body of
another form with 422, and one that takes more than 20 seconds to arrive with 408. Requests that wait
are translated together. With 131,072 tokens waiting, others are refused with status 503. GET /health
answers while the server does. Ctrl-C, or SIGTERM, ends the program once it has answered what it has
accepted; after 20 seconds, or at Ctrl-C again, it refuses the rest. It has no encryption, no passwords
and no clock for the head of a request: on an open network, put a web server that has them before it."""


class Refusal(Exception):
    """A request that is not answered: the status that HTTP has for it, and the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Batcher:
    """A queue in front of the model: what waits in it is translated together, by one thread.

    Args:
        translate: gives the translations of some sentences; it runs in another thread.
    """

    translate: Callable[[list[str]], list[Any]]
    waiting: int  # tokens, those in work included

    def __init__(self, translate: Callable[[list[str]], list[Any]]) -> None:
        self.translate = translate
        self.waiting = 0
        self._queue: asyncio.Queue[tuple[str, int, asyncio.Future[Any]]] = asyncio.Queue()
        self._worker: asyncio.Task[None] | None = None

    async def submit(self, sentences: Sequence[str], n_tokens: Sequence[int]) -> list[Any]:
        """The translations of `sentences`, which have `n_tokens` each, once it is their turn.

        Raises:
            Refusal: too many are waiting.
        """
        counted = [n + 8 for n in n_tokens]  # even an empty sentence takes room
        if self.waiting + sum(counted) > QUEUE_TOKENS:
            raise Refusal(503, f"{self.waiting} tokens are waiting: try again later")
        answers = [asyncio.get_running_loop().create_future() for _ in sentences]
        self.waiting += sum(counted)
        self._worker = self._worker or asyncio.create_task(self._work())
        for waiting in zip(sentences, counted, answers, strict=True):
            self._queue.put_nowait(waiting)
        try:
            return await asyncio.gather(*answers)
        finally:
            self.waiting -= sum(counted)
            for answer in answers:  # the caller has left, or a sentence failed: nobody waits for the others
                answer.cancel()

    async def _work(self) -> None:
        while True:
            batch, size = list[tuple[str, asyncio.Future[Any]]](), 0
            while not batch or size < BATCH_TOKENS and not self._queue.empty():
                sentence, tokens, answer = await self._queue.get()
                if not answer.done():  # its caller has not left
                    batch.append((sentence, answer))
                    size += tokens
            try:
                found = await asyncio.to_thread(self.translate, [sentence for sentence, _ in batch])
                for (_, answer), translation in zip(batch, found, strict=True):
                    if not answer.done():
                        answer.set_result(translation)
            except Exception as error:
                for _, answer in batch:
                    if not answer.done():
                        answer.set_exception(error)


async def _read_body(request: Any) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(ARRIVAL_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > LARGEST_BODY:
                    raise Refusal(413, f"the body has more than the {LARGEST_BODY} bytes that are allowed")
    except TimeoutError:
        raise Refusal(408, f"the body did not arrive within {ARRIVAL_SECONDS:g} seconds") from None
    return bytes(body)


def _sentences(body: bytes) -> list[str]:
    form = 'send JSON such as {"sentences": ["Gosto disto."]}'
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refusal(422, f"{form}: {error}") from None
    sentences = asked.get("sentences") if isinstance(asked, dict) else None
    if not isinstance(sentences, list) or not all(isinstance(sentence, str) for sentence in sentences):
        raise Refusal(422, f"{form}: sentences is no list of strings")
    return sentences


def _n_tokens(sentences: list[str], translator: AnyTranslator) -> list[int]:
    # The tokens of each sentence, if none is longer than the model reads.
    if len(sentences) > MOST_SENTENCES:
        raise Refusal(413, f"{len(sentences)} sentences; a request may have {MOST_SENTENCES}")
    longest, counts = translator.model.config.max_length, []
    for number, sentence in enumerate(sentences, start=1):
        if len(sentence) > LONGEST_SENTENCE:
            reason = f"{len(sentence)} characters; {LONGEST_SENTENCE} are allowed"
            raise Refusal(413, f"sentence {number} has {reason}")
        if any("\ud800" <= character <= "\udfff" for character in sentence):
            raise Refusal(422, f"sentence {number} has half of a surrogate pair, which is not a character")
        if (count := translator.n_tokens(sentence)) > longest:
            raise Refusal(413, f"sentence {number} has {count} tokens; the model reads {longest}")
        counts.append(count)
    return counts


def make_app(translator: AnyTranslator, search: Search = Search()) -> Any:
    """A `starlette.applications.Starlette` that translates: what `serve` runs, for use in your own server.

    Its `state` holds the `batcher`, and how many requests were `answered`.

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
            sentences = _sentences(await _read_body(request))
            found = await batcher.submit(sentences, _n_tokens(sentences, translator))
        except Refusal as refusal:
            return refuse(refusal.status, str(refusal))
        except requests.ClientDisconnect:
            return refuse(499, "the client has left")
        except asyncio.CancelledError:
            return refuse(503, "the server is stopping")
        app.state.answered += 1
        texts, warnings = [each.text for each in found], [list(each.doubts) for each in found]
        return responses.JSONResponse({"translations": texts, "warnings": warnings})

    async def health(request: Any) -> Any:
        return responses.JSONResponse({"status": "ok"})

    routes = [routing.Route("/translate", translate, methods=["POST"]), routing.Route("/health", health)]
    app = optional_import("starlette.applications").Starlette(routes=routes)
    app.state.batcher, app.state.answered = batcher, 0
    return app


def make_server(app: Any) -> Any:
    """A `uvicorn.Server` of an application, which bounds its connections and the time that stopping takes."""
    uvicorn = optional_import("uvicorn")
    bounds = {"limit_concurrency": MOST_CONNECTIONS, "timeout_graceful_shutdown": STOPPING_SECONDS}
    quiet = {"log_level": "error", "access_log": False, "lifespan": "off", "ws": "none"}
    return uvicorn.Server(uvicorn.Config(app, http="h11", **quiet, **bounds))


def run(options: argparse.Namespace) -> None:
    """Translate over HTTP until a signal to stop."""
    search = search_of(options)
    for library in ("starlette", "uvicorn"):
        optional_import(library)  # better to find out now than after loading that it is missing
    host = options.host
    if not host:
        raise ValueError("host is empty; 0.0.0.0 stands for every address of this machine")
    app = make_app(named_translator(options), search)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = host == "::" and socket.has_dualstack_ipv6()  # every address, that of IPv4 as well
    with socket.create_server((host, options.port), family=family, dualstack_ipv6=both) as listening:
        host, port = listening.getsockname()[:2]
        print(f"listening on http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)
        with suppress(KeyboardInterrupt):  # uvicorn raises the signal once more at its end
            make_server(app).run(sockets=[listening])
    print(f"answered {app.state.answered} requests", flush=True)


def add_options(add: Add) -> None:
    """The options of `serve`."""
    address = "the address to listen on; 0.0.0.0 for every one of this machine, :: for those of IPv6 as well "
    add("--host", default="127.0.0.1", help=f"{address}(default: 127.0.0.1)")
    port = "the port to listen on; 0 for any free one (default: 8000)"
    add("--port", type=within(int, 0, 65535), default=8000, help=port)
    engine_option(add)
    search_options(add)
