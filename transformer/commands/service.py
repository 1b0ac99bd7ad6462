"""What the server answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from transformer.commands.batching import Batcher
from transformer.commands.limits import Refusal, check_sentences
from transformer.commands.metrics import Metrics
from transformer.language.translator import AnyTranslator, Search
from transformer.validation import optional_import

__all__ = ["TranslateRequest", "TranslateResponse", "Service"]


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


_FORM = 'send JSON such as {"sentences": ["Gosto disto."]}'


@dataclass
class TranslateRequest:
    """What `POST /translate` reads."""

    sentences: list[str]


@dataclass
class TranslateResponse:
    """What `POST /translate` answers, in the order of the sentences: translations, and what makes each
    doubtful."""

    translations: list[str]
    warnings: list[list[str]]


class Service:
    """Answers requests for translations.

    Args:
        translator: what translates.
        search: how it searches.
    """

    translator: AnyTranslator
    measured: Metrics
    batcher: Batcher

    def __init__(self, translator: AnyTranslator, search: Search = Search()) -> None:
        self.translator = translator
        self.batcher = Batcher(lambda texts: translator.translate_checked(texts, search))
        self.measured = Metrics(self.batcher)
        responses = optional_import("fastapi.responses")
        self._json, self._text = responses.JSONResponse, responses.PlainTextResponse

    async def translate(self, asked: TranslateRequest) -> TranslateResponse:
        """Translate up to 64 sentences, each of up to 1,000 characters."""
        n_tokens = check_sentences(asked.sentences, self.translator)
        found = await self.batcher.submit(asked.sentences, n_tokens)
        self.measured.note_sentences(len(found))
        return TranslateResponse([each.text for each in found], [list(each.doubts) for each in found])

    async def health(self) -> dict[str, str]:
        """Whether the server answers."""
        return {"status": "ok"}

    async def metrics(self) -> Any:
        """What the server has done since it started, in the text format of Prometheus."""
        return self._text(self.measured.text())

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
