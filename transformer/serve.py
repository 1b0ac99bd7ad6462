"""transformer.serve, from book/B-command-line.ipynb, "Appendix B: The command line".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = [
    "Refusal",
    "Batcher",
    "LONGEST_SENTENCE",
    "MOST_SENTENCES",
    "LARGEST_BODY",
    "TranslateRequest",
    "TranslateResponse",
    "check_sentences",
    "check_length",
    "Metrics",
    "Service",
    "make_app",
    "run_server",
]


# %% book/B-command-line.ipynb · Requests share a batch · [batcher]
import asyncio
import socket
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from transformer.interop import MarianTranslator
from transformer.translation import Translator
from transformer.validation import optional_import


class Refusal(Exception):
    """A request that is not answered, with the status that HTTP has for it and the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Batcher:
    """Translates as one batch what several callers ask for within a short time.

    Args:
        translate: gives the translations of some sentences; it runs in another thread.
        window: seconds that the first caller of a batch waits for others.
        size: sentences in a batch; the last caller's may exceed it.
        room: the most sentences that may wait, including those in work and those of callers that left.
    """

    def __init__(
        self,
        translate: Callable[[list[str]], list[str]],
        window: float = 0.005,
        size: int = 64,
        room: int = 1024,
    ) -> None:
        self.translate, self.window, self.size, self.room = translate, window, size, room
        self.waiting = self.batches = 0
        self._asked: asyncio.Queue[tuple[list[str], asyncio.Future[list[str]]]] = asyncio.Queue()

    async def submit(self, sentences: list[str]) -> list[str]:
        """The translations of `sentences`, once it is their turn.

        Raises:
            Refusal: too many are waiting.
        """
        if self.waiting + len(sentences) > self.room:
            raise Refusal(503, f"{self.waiting} sentences are waiting: try again later")
        answer: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self._asked.put_nowait((sentences, answer))
        self.waiting += len(sentences)
        return await answer

    async def run(self) -> None:
        """Answer, batch by batch, until canceled."""
        while True:
            asked = [await self._asked.get()]
            await asyncio.sleep(self.window)
            while not self._asked.empty() and sum(len(texts) for texts, _ in asked) < self.size:
                asked.append(self._asked.get_nowait())
            try:
                await self._answer([one for one in asked if not one[1].done()])  # some callers have left
            finally:
                self.waiting -= sum(len(texts) for texts, _ in asked)

    async def _answer(self, asked: list[tuple[list[str], asyncio.Future[list[str]]]]) -> None:
        if not asked:
            return
        self.batches += 1
        try:
            texts = [text for own, _ in asked for text in own]
            found = await asyncio.to_thread(self.translate, texts)
            if len(found) != len(texts):
                raise RuntimeError(f"{len(texts)} sentences gave {len(found)} translations")
            rest = iter(found)
            results = [[next(rest) for _ in own] for own, _ in asked]
        except Exception as error:
            for _, answer in asked:
                if not answer.done():
                    answer.set_exception(error)
            return
        for (_, answer), result in zip(asked, results, strict=True):
            if not answer.done():  # its caller left while it was translated
                answer.set_result(result)


# %% book/B-command-line.ipynb · Limits · [service]
LONGEST_SENTENCE = 1000  # characters, and no more tokens than the model reads
MOST_SENTENCES = 64  # in a request
LARGEST_BODY = 1 << 20  # bytes
_FORM = 'send JSON such as {"sentences": ["Gosto disto."]}'


@dataclass
class TranslateRequest:
    """What `POST /translate` reads."""

    sentences: list[str]


@dataclass
class TranslateResponse:
    """What `POST /translate` answers, in the order of the sentences."""

    translations: list[str]


def check_sentences(sentences: Sequence[str], translator: Translator | MarianTranslator) -> None:
    """Refuse sentences of one request that are too many, or longer than the model reads.

    Raises:
        Refusal: they are.
    """
    if len(sentences) > MOST_SENTENCES:
        raise Refusal(413, f"{len(sentences)} sentences; a request may have {MOST_SENTENCES}")
    longest = translator.model.config.max_length
    for number, sentence in enumerate(sentences, start=1):
        if len(sentence) > LONGEST_SENTENCE:
            said = f"{len(sentence)} characters; {LONGEST_SENTENCE} are allowed"
            raise Refusal(413, f"sentence {number} has {said}")
        if (n_tokens := translator.n_tokens(sentence)) > longest:
            raise Refusal(413, f"sentence {number} has {n_tokens} tokens; the model reads {longest}")


def check_length(method: str, announced: str | None) -> None:
    """Refuse a request whose body is too large, before it is read.

    Raises:
        Refusal: it is, or its length is not announced.
    """
    if method == "POST" and announced is None:
        raise Refusal(411, "the header Content-Length is missing")
    if int(announced or 0) > LARGEST_BODY:
        raise Refusal(413, f"the body has {announced} bytes; {LARGEST_BODY} are allowed")


# %% book/B-command-line.ipynb · What is measured · [metrics]
_BOUNDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # seconds


class Metrics:
    """What a server has done since it started."""

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
            ("waiting_sentences", "gauge", batcher.waiting),
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


# %% book/B-command-line.ipynb · The application · [page]
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


# %% book/B-command-line.ipynb · The application · [service-app]
class Service:
    """Answers requests for translations.

    Args:
        translator: what translates.
        beam_size: width of the beam.
        length_penalty: as in `beam_search`.
    """

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
        check_sentences(asked.sentences, self.translator)
        found = await self.batcher.submit(asked.sentences)
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

    async def watch(self, request: Any, answer: Callable[[Any], Awaitable[Any]]) -> Any:
        """Let a request through unless it is too large, and note how it ended and how long it took."""
        start, response = time.perf_counter(), None
        try:
            check_length(request.method, request.headers.get("content-length"))
            response = await answer(request)
        except Refusal as refusal:
            response = await self.refused(request, refusal)
        finally:
            if request.url.path == "/translate":
                status = 500 if response is None else response.status_code
                self.measured.note(status, time.perf_counter() - start)
        return response

    async def refused(self, request: Any, refusal: Refusal) -> Any:
        """The response that says why a request is refused."""
        later = {"Retry-After": "1"} if refusal.status == 503 else None
        return self._json({"detail": str(refusal)}, refusal.status, later)

    async def misshapen(self, request: Any, error: Any) -> Any:
        """The response to a body of another form."""
        return self._json({"detail": f"{_FORM}: {error.errors()[0]['msg']}"}, 422)

    @asynccontextmanager
    async def working(self, app: Any) -> AsyncIterator[None]:
        """Translate from the server's start to its end, which comes after the last answer."""
        worker = asyncio.create_task(self.batcher.run())
        yield
        worker.cancel()


# %% book/B-command-line.ipynb · The application · [make-app]
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
    misshapen = optional_import("fastapi.exceptions").RequestValidationError
    app.add_exception_handler(misshapen, service.misshapen)
    app.middleware("http")(service.watch)
    return app


# %% book/B-command-line.ipynb · Stopping · [run-server]
def run_server(app: Any, host: str = "127.0.0.1", port: int = 8000) -> None:
    """Serve until an interrupt; then answer what was accepted, and return.

    To return at SIGTERM as well, turn it into a `KeyboardInterrupt`, as the command line does.

    Args:
        app: what `make_app` returned.
        host: the address to listen on; `"0.0.0.0"` for all addresses of this machine.
        port: the port to listen on; 0 for any free one, which is printed.

    Raises:
        OSError: the port is taken, or not allowed.
        ImportError: uvicorn is not installed.
    """
    uvicorn = optional_import("uvicorn")
    with socket.create_server((host, port), backlog=1024) as listening:
        host, port = listening.getsockname()[:2]
        print(f"listening on http://{host}:{port}", flush=True)
        settings = uvicorn.Config(app, log_level="warning", access_log=False)
        with suppress(KeyboardInterrupt):  # uvicorn raises the signal once more at its end
            uvicorn.Server(settings).run(sockets=[listening])
    print(f"answered {app.state.service.measured.requests[200]} requests", flush=True)
