"""transformer.commands.serve, from book/I-server.ipynb, "Workshop I: The server".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = [
    "SHORTEST",
    "Refusal",
    "Batcher",
    "LONGEST_SENTENCE",
    "MOST_SENTENCES",
    "LARGEST_BODY",
    "ARRIVAL_SECONDS",
    "TranslateRequest",
    "TranslateResponse",
    "check_sentences",
    "read_body",
    "Metrics",
    "Service",
    "Gate",
    "make_app",
    "MOST_CONNECTIONS",
    "timed_protocol",
    "STOPPING_SECONDS",
    "run_server",
    "serve",
    "SERVE_HELP",
    "serve_options",
]


# %% book/I-server.ipynb · Requests share a batch · [batcher]
import argparse
import asyncio
import itertools
import socket
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

from transformer.commands.options import Add, engine_option, search_options, within
from transformer.exchange.ctranslate2 import load_translator
from transformer.exchange.marian import MarianTranslator
from transformer.language.translator import Translator
from transformer.validation import optional_import

SHORTEST = 32  # tokens that a sentence counts at least


class Refusal(Exception):
    """A request that is not answered, with the status that HTTP has for it and the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class _Asked(NamedTuple):
    """A sentence that waits, in the order of its turn."""

    finish: float  # when it would be done if all requests were worked on at once, in tokens of each
    number: int  # of two at the same time, the earlier goes first
    tokens: int
    sentence: str
    answer: asyncio.Future[str]


class Batcher:
    """Translates as one batch what several callers ask for, and gives each a fair share of the model.

    Sentences are ordered by fair queuing (Demers, Keshav and Shenker 1989): of R callers, one with n tokens
    has about R n tokens ahead of it at most, and the batch in work.

    Args:
        translate: gives the translations of some sentences; it runs in another thread.
        window: seconds that the first caller of a batch waits for others.
        size: tokens in a batch; a sentence that has more is a batch of its own.
        room: the most tokens that may wait, including those in work.
    """

    translate: Callable[[list[str]], list[str]]
    window: float
    size: int
    room: int
    waiting: int
    batches: int

    def __init__(
        self,
        translate: Callable[[list[str]], list[str]],
        window: float = 0.005,
        size: int = 64 * SHORTEST,
        room: int = 4096 * SHORTEST,
    ) -> None:
        self.translate, self.window, self.size, self.room = translate, window, size, room
        self.waiting = self.batches = self._callers = 0
        self._clock, self._numbers = 0.0, itertools.count()
        self._queue: list[_Asked] = []
        self._filled = asyncio.Event()

    async def submit(self, sentences: Sequence[str], n_tokens: Sequence[int]) -> list[str]:
        """The translations of `sentences`, which have `n_tokens` each, once it is their turn.

        Raises:
            Refusal: too many are waiting.
        """
        counted = [max(SHORTEST, tokens) for tokens in n_tokens]
        if self.waiting + sum(counted) > self.room:
            raise Refusal(503, f"{self.waiting} tokens are waiting: try again later")
        answers, finish = [], self._clock
        for sentence, tokens in zip(sentences, counted, strict=True):
            finish += tokens
            answer = asyncio.get_running_loop().create_future()
            heappush(self._queue, _Asked(finish, next(self._numbers), tokens, sentence, answer))
            answers.append(answer)
        self.waiting += sum(counted)
        self._callers += 1
        self._filled.set()
        try:
            return await asyncio.gather(*answers)
        except BaseException:  # the caller has left, or a sentence failed: nobody waits for the others
            for answer in answers:
                answer.cancel()
            self._queue = [asked for asked in self._queue if not asked.answer.done()]
            heapify(self._queue)
            raise
        finally:
            self._callers -= 1
            self.waiting -= sum(counted)

    async def run(self) -> None:
        """Answer, batch by batch, until canceled."""
        while True:
            await self._filled.wait()
            await asyncio.sleep(self.window)
            if batch := self._next_batch():
                await self._answer(batch)
            if not self._queue:
                self._filled.clear()

    def _next_batch(self) -> list[_Asked]:
        """The sentences whose turn it is, taken from the queue."""
        batch: list[_Asked] = []
        room = self.size
        while self._queue and (not batch or self._queue[0].tokens <= room):
            asked = heappop(self._queue)
            batch.append(asked)
            room -= asked.tokens
            self._clock += asked.tokens / self._callers
        return batch

    async def _answer(self, batch: list[_Asked]) -> None:
        self.batches += 1
        try:
            found = await asyncio.to_thread(self.translate, [asked.sentence for asked in batch])
            if len(found) != len(batch):
                raise RuntimeError(f"{len(batch)} sentences gave {len(found)} translations")
        except Exception as error:
            for asked in batch:
                if not asked.answer.done():
                    asked.answer.set_exception(error)
            return
        for asked, translation in zip(batch, found, strict=True):
            if not asked.answer.done():  # its caller left while it was translated
                asked.answer.set_result(translation)


# %% book/I-server.ipynb · Limits · [service]
LONGEST_SENTENCE = 1000  # characters, and no more tokens than the model reads
MOST_SENTENCES = 64  # in a request
LARGEST_BODY = 1 << 20  # bytes
ARRIVAL_SECONDS = 20.0  # that a request's head may take to arrive, and then its body
_FORM = 'send JSON such as {"sentences": ["Gosto disto."]}'

_Message = MutableMapping[str, Any]  # in ASGI, a request, and a part of its body or of the answer
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]


@dataclass
class TranslateRequest:
    """What `POST /translate` reads."""

    sentences: list[str]


@dataclass
class TranslateResponse:
    """What `POST /translate` answers, in the order of the sentences."""

    translations: list[str]


def check_sentences(sentences: Sequence[str], translator: Translator | MarianTranslator) -> list[int]:
    """Refuse sentences of one request that are too many, or longer than the model reads.

    Returns:
        how many tokens each has.

    Raises:
        Refusal: they are, or one is not Unicode.
    """
    if len(sentences) > MOST_SENTENCES:
        raise Refusal(413, f"{len(sentences)} sentences; a request may have {MOST_SENTENCES}")
    longest, counts = translator.model.config.max_length, []
    for number, sentence in enumerate(sentences, start=1):
        if len(sentence) > LONGEST_SENTENCE:
            said = f"{len(sentence)} characters; {LONGEST_SENTENCE} are allowed"
            raise Refusal(413, f"sentence {number} has {said}")
        if any("\ud800" <= character <= "\udfff" for character in sentence):
            raise Refusal(422, f"sentence {number} has half of a surrogate pair, which is not a character")
        if (n_tokens := translator.n_tokens(sentence)) > longest:
            raise Refusal(413, f"sentence {number} has {n_tokens} tokens; the model reads {longest}")
        counts.append(n_tokens)
    return counts


async def read_body(receive: _Receive) -> bytes:
    """The body of a request, its bytes counted and its time measured while it arrives.

    Raises:
        Refusal: it is too large or too slow, or its sender has left.
    """
    body, more = bytearray(), True
    try:
        async with asyncio.timeout(ARRIVAL_SECONDS):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refusal(499, "the client has left")
                body += message.get("body", b"")
                if len(body) > LARGEST_BODY:
                    raise Refusal(413, f"the body has more than the {LARGEST_BODY} bytes that are allowed")
                more = message.get("more_body", False)
    except TimeoutError:
        raise Refusal(408, f"the body did not arrive within {ARRIVAL_SECONDS:g} seconds") from None
    return bytes(body)


# %% book/I-server.ipynb · What is measured · [metrics]
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


# %% book/I-server.ipynb · The application · [page]
_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Translate</title>
<link rel="icon" href="data:,">
<style>
  body { font: 1.1rem/1.5 system-ui, sans-serif; max-width: 40rem; margin: 2rem auto; padding: 0 1rem }
  textarea { font: inherit; width: 100%; box-sizing: border-box }
  button { font: inherit; padding: 0.3rem 1rem }
  output { display: block; white-space: pre-line; margin-top: 1rem }
</style>
<h1>Translate</h1>
<form>
  <p><label for="text">Sentences, one to a line</label></p>
  <textarea id="text" rows="5" lang="pt">A menina gosta do gato preto.</textarea>
  <p><button>Translate</button></p>
  <output for="text" lang="en"></output>
</form>
<script>
  const form = document.querySelector("form"), output = document.querySelector("output");
  form.addEventListener("submit", async event => {
    event.preventDefault();
    const body = JSON.stringify({ sentences: form.text.value.split("\\n") });
    const headers = { "Content-Type": "application/json" };
    const answer = await fetch("translate", { method: "POST", headers, body });
    const found = await answer.json();
    output.textContent = answer.ok ? found.translations.join("\\n") : found.detail;
  });
</script>
</html>
"""


# %% book/I-server.ipynb · The application · [service-app]
class Service:
    """Answers requests for translations.

    Args:
        translator: what translates.
        beam_size: width of the beam.
        length_penalty: as in `beam_search`.
    """

    translator: Translator | MarianTranslator
    measured: Metrics
    batcher: Batcher

    def __init__(
        self,
        translator: Translator | MarianTranslator,
        beam_size: int = 4,
        length_penalty: float = 0.6,
    ) -> None:
        self.translator, self.measured = translator, Metrics()
        self.batcher = Batcher(lambda texts: translator.translate(texts, beam_size, length_penalty))
        responses = optional_import("fastapi.responses")
        self._json, self._text = responses.JSONResponse, responses.PlainTextResponse

    async def translate(self, asked: TranslateRequest) -> TranslateResponse:
        """Translate up to 64 sentences, each of up to 1,000 characters."""
        n_tokens = check_sentences(asked.sentences, self.translator)
        found = await self.batcher.submit(asked.sentences, n_tokens)
        self.measured.sentences += len(found)
        return TranslateResponse(found)

    async def health(self) -> dict[str, str]:
        """Whether the server answers."""
        return {"status": "ok"}

    async def metrics(self) -> Any:
        """What the server has done since it started, in the text format of Prometheus."""
        return self._text(self.measured.text(self.batcher))

    async def page(self) -> str:
        """A form to try it."""
        return _PAGE

    async def refused(self, request: Any, refusal: Refusal) -> Any:
        """The response that says why a request is refused."""
        later = {"Retry-After": "1"} if refusal.status == 503 else None
        return self._json({"detail": str(refusal)}, refusal.status, later)

    async def misshapen(self, request: Any, error: Any) -> Any:
        """The response to a body of another form, or of none."""
        said = error.errors()[0]["msg"] if hasattr(error, "errors") else error.detail
        return self._json({"detail": f"{_FORM}: {said}"}, 422)

    @asynccontextmanager
    async def working(self, app: Any) -> AsyncIterator[None]:
        """Translate from the server's start to its end, which comes after the last answer."""
        worker = asyncio.create_task(self.batcher.run())
        yield
        worker.cancel()


# %% book/I-server.ipynb · The application · [gate]
async def _unless_left(answering: Awaitable[None], receive: _Receive, begun: Callable[[], bool]) -> None:
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


async def _ended(receive: _Receive) -> _Message:
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

    def __init__(self, app: Callable[[_Message, _Receive, _Send], Awaitable[None]], service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        """Answer a request, whatever becomes of it."""
        if scope["type"] != "http":  # the server's start and its end
            return await self.app(scope, lambda: _ended(receive), send)
        start, status = time.perf_counter(), 0
        parts: list[_Message] = []

        async def whole() -> _Message:
            return parts.pop() if parts else await asyncio.get_running_loop().create_future()

        async def noted(message: _Message) -> None:
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


# %% book/I-server.ipynb · The application · [make-app]
def make_app(
    translator: Translator | MarianTranslator, beam_size: int = 4, length_penalty: float = 0.6
) -> Any:
    """A `fastapi.FastAPI` that translates: what `serve` runs, for use in your own server.

    Arguments are those of `Service`.

    Raises:
        ImportError: fastapi is not installed.
    """
    fastapi, service = optional_import("fastapi"), Service(translator, beam_size, length_penalty)
    app = fastapi.FastAPI(title="Translator", lifespan=service.working)
    app.state.service = service
    app.add_api_route("/translate", service.translate, methods=["POST"])
    app.add_api_route("/health", service.health)
    app.add_api_route("/metrics", service.metrics)
    html = optional_import("fastapi.responses").HTMLResponse
    app.add_api_route("/", service.page, response_class=html, include_in_schema=False)
    app.add_exception_handler(Refusal, service.refused)
    app.add_exception_handler(400, service.misshapen)  # what FastAPI says of a body that it cannot decode
    misshapen = optional_import("fastapi.exceptions").RequestValidationError
    app.add_exception_handler(misshapen, service.misshapen)
    app.add_middleware(Gate, service=service)
    return app


# %% book/I-server.ipynb · Connections · [arrival]
MOST_CONNECTIONS = 512  # that are open at once, and no more than half of the files that the process may open
_GRACE = 0.5  # seconds that a refused client has to read why, before its connection is closed


def _most_connections() -> int:
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


# %% book/I-server.ipynb · Stopping · [run-server]
STOPPING_SECONDS = 20.0  # that a server which stops has for what it has accepted
_BACKLOG = 1024  # connections that the system holds until the server accepts them


def _listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections, of IPv6 if the address has a colon.

    Raises:
        ValueError: `host` is empty.
        OSError: the port is taken, or not allowed, or the address is not this machine's.
    """
    if not host:
        raise ValueError("host is empty; 0.0.0.0 stands for every address of this machine")
    if ":" not in host:
        return socket.create_server((host, port), backlog=_BACKLOG)
    both = host == "::" and socket.has_dualstack_ipv6()  # every address, that of IPv4 as well
    ipv6 = socket.AF_INET6
    return socket.create_server((host, port), family=ipv6, backlog=_BACKLOG, dualstack_ipv6=both)


def run_server(app: Any, host: str = "127.0.0.1", port: int = 8000) -> None:
    """Serve until an interrupt; then answer what was accepted, and return.

    To return at SIGTERM as well, turn it into a `KeyboardInterrupt`, as the command line does.

    Args:
        app: what `make_app` returned.
        host: the address to listen on; `"0.0.0.0"` for all addresses of this machine, `"::"` for those of
            IPv6 as well.
        port: the port to listen on; 0 for any free one, which is printed.

    Raises:
        ValueError: `host` is empty.
        OSError: the port is taken, or not allowed.
        ImportError: uvicorn is not installed.
    """
    uvicorn, most = optional_import("uvicorn"), _most_connections()
    with _listen(host, port) as listening:

        async def lengthen() -> None:  # the system's queue, which asyncio makes as short as the other
            listening.listen(_BACKLOG)

        settings = uvicorn.Config(
            app,
            http=timed_protocol(most),
            ws="none",
            log_level="error",
            access_log=False,
            backlog=most // 4,  # that asyncio accepts at once, before any of them is counted
            callback_notify=lengthen,
            timeout_graceful_shutdown=STOPPING_SECONDS,
        )
        host, port = listening.getsockname()[:2]
        print(f"listening on http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)
        with suppress(KeyboardInterrupt):  # uvicorn raises the signal once more at its end
            uvicorn.Server(settings).run(sockets=[listening])
    print(f"answered {app.state.service.measured.requests[200]} requests", flush=True)


# %% book/I-server.ipynb · Stopping · [serve-code]
def serve(options: argparse.Namespace) -> None:
    """Translate over HTTP until a signal to stop."""
    for library in ("fastapi", "uvicorn"):
        optional_import(library)  # better to find out now than after loading that it is missing
    translator = load_translator(options.model, options.device, options.engine)
    run_server(make_app(translator, options.beam, options.length_penalty), options.host, options.port)


# %% book/I-server.ipynb · Stopping · [help-code-serve]
SERVE_HELP = """\
  curl --json '{"sentences": ["Gosto disto."]}' http://127.0.0.1:8000/translate

A request has up to 64 sentences of up to 1,000 characters; more is refused with status 413, a body of
another form with 422, and one that takes more than 20 seconds to arrive with 408. Requests that arrive
together are translated together, and short ones need not wait for long ones. With 131,072 tokens
waiting, others are refused with status 503. There is a page to try it at /, documentation at /docs,
the state at /health, and numbers for Prometheus at /metrics. Ctrl-C, or SIGTERM, ends the program
once it has answered what it has accepted; after 20 seconds, or at Ctrl-C again, it refuses the rest.
It has no encryption and no passwords: on an open network, put a web server that has them before it."""


# %% book/I-server.ipynb · Stopping · [options-code-serve]
def serve_options(add: Add) -> None:
    """The options of `serve`."""
    address = "the address to listen on; 0.0.0.0 for every one of this machine, :: for those of IPv6 as well "
    address += "(default: 127.0.0.1)"
    add("--host", default="127.0.0.1", help=address)
    port = "the port to listen on; 0 for any free one (default: 8000)"
    add("--port", type=within(int, 0, 65535), default=8000, help=port)
    engine_option(add)
    search_options(add)
