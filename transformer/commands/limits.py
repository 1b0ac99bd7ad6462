"""What a request may hold."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any
from transformer.language.translator import AnyTranslator

__all__ = [
    "LONGEST_SENTENCE",
    "MOST_SENTENCES",
    "LARGEST_BODY",
    "ARRIVAL_SECONDS",
    "Message",
    "Receive",
    "Send",
    "Refusal",
    "check_sentences",
    "read_body",
]


LONGEST_SENTENCE = 1000  # characters, and no more tokens than the model reads
MOST_SENTENCES = 64  # in a request
LARGEST_BODY = 1 << 20  # bytes
ARRIVAL_SECONDS = 20.0  # that a request's head may take to arrive, and then its body

Message = MutableMapping[str, Any]  # in ASGI, a request, and a part of its body or of the answer
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Refusal(Exception):
    """A request that is not answered, with the status that HTTP has for it and the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def check_sentences(sentences: Sequence[str], translator: AnyTranslator) -> list[int]:
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


async def read_body(receive: Receive) -> bytes:
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
