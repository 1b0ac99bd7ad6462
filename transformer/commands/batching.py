"""Requests share a batch: a queue in front of the model."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple
from transformer.commands.limits import Refusal

__all__ = ["SHORTEST", "Batcher"]


SHORTEST = 32  # tokens that a sentence counts at least


class _Asked(NamedTuple):
    """A sentence that waits, in the order of its turn."""

    finish: float  # when it would be done if all requests were worked on at once, in tokens of each
    number: int  # of two at the same time, the earlier goes first
    tokens: int
    sentence: str
    answer: asyncio.Future[Any]


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

    translate: Callable[[list[str]], list[Any]]
    window: float
    size: int
    room: int
    waiting: int
    batches: int

    def __init__(
        self,
        translate: Callable[[list[str]], list[Any]],
        window: float = 0.005,
        size: int = 64 * SHORTEST,
        room: int = 4096 * SHORTEST,
    ) -> None:
        self.translate, self.window, self.size, self.room = translate, window, size, room
        self.waiting = self.batches = self._callers = 0
        self._clock, self._numbers = 0.0, itertools.count()
        self._queue: list[_Asked] = []
        self._filled = asyncio.Event()

    async def submit(self, sentences: Sequence[str], n_tokens: Sequence[int]) -> list[Any]:
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
