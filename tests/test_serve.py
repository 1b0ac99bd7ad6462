"""Translations over HTTP: batches, limits, measurements, and an end that loses nothing."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from transformer import Translator
from transformer.__main__ import main
from transformer.serve import (
    LARGEST_BODY,
    LONGEST_SENTENCE,
    MOST_SENTENCES,
    SHORTEST,
    Batcher,
    Metrics,
    Refusal,
    make_app,
)

needs_server = pytest.mark.skipif(
    not (find_spec("fastapi") and find_spec("uvicorn") and find_spec("httpx")),
    reason="fastapi, uvicorn or httpx is not installed: transformer-book[serve]",
)
SAID = {"A menina gosta do gato preto.": "the girl likes the black cat.", "Gosto disto.": "i like this."}


# Batches --------------------------------------------------------------------------------------------


def run(calls, **options):
    """What callers get who submit at once, and the batches that were made."""
    batches = []

    def translate(texts):
        batches.append(list(texts))
        if "bad" in texts:
            raise ValueError("it is bad")
        return [text.upper() for text in texts]

    async def scene():
        batcher = Batcher(translate, **options)
        worker = asyncio.create_task(batcher.run())
        asked = (batcher.submit(call, [SHORTEST] * len(call)) for call in calls)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert batcher.waiting == 0 and batcher.batches == len(batches)
        worker.cancel()
        return answers

    return asyncio.run(scene()), batches


def test_callers_share_a_batch_and_each_gets_its_own():
    answers, batches = run([["a", "b"], [], ["c"]])
    assert answers == [["A", "B"], [], ["C"]] and batches == [["a", "c", "b"]]


def test_a_batch_has_a_size():
    answers, batches = run([[f"{n}"] for n in range(10)], size=4 * SHORTEST)
    assert answers == [[f"{n}"] for n in range(10)] and [len(batch) for batch in batches] == [4, 4, 2]


def test_who_finds_no_room_is_refused_and_the_others_are_answered():
    answers, _ = run([["a"] * 3, ["b"] * 3, ["c"] * 2], room=5 * SHORTEST)
    assert answers[0] == ["A"] * 3 and answers[2] == ["C"] * 2
    assert isinstance(answers[1], Refusal) and answers[1].status == 503
    assert str(answers[1]) == "96 tokens are waiting: try again later"


def test_who_has_gone_is_not_translated_and_keeps_no_room():
    async def scene():
        batches = []
        batcher = Batcher(lambda texts: batches.append(texts) or texts, room=10 * SHORTEST)
        gone = [asyncio.create_task(batcher.submit(["x"] * 5, [1] * 5)) for _ in range(3)]
        await asyncio.sleep(0)
        assert batcher.waiting == 10 * SHORTEST
        for task in gone:
            task.cancel()
        refused = (await asyncio.gather(*gone, return_exceptions=True))[2]
        assert isinstance(refused, Refusal) and batcher.waiting == 0
        running = asyncio.create_task(batcher.run())
        assert await batcher.submit(["a", "b"], [1, 1]) == ["a", "b"]
        assert batches == [["a", "b"]] and batcher.waiting == 0
        running.cancel()

    asyncio.run(asyncio.wait_for(scene(), 30))


def order(calls, later=(), after=0, **options):
    """Who was translated, batch by batch. Each call is a name and its tokens; some come after a batch."""
    batches = []

    def translate(texts):
        batches.append(texts)
        return texts

    async def scene():
        batcher = Batcher(translate, window=0.0, **options)
        asked = [asyncio.create_task(batcher.submit([name] * len(tokens), tokens)) for name, tokens in calls]
        await asyncio.sleep(0)
        running = asyncio.create_task(batcher.run())
        while len(batches) < after:
            await asyncio.sleep(0)
        for name, tokens in later:
            asked.append(asyncio.create_task(batcher.submit([name] * len(tokens), tokens)))
        await asyncio.gather(*asked)
        running.cancel()

    asyncio.run(asyncio.wait_for(scene(), 30))
    return batches


@pytest.mark.parametrize("after", [1, 2, 5, 20, 40])
@pytest.mark.parametrize(
    "calls",
    [[(name, [500] * 64) for name in "ABC"], [(f"{n}", [500]) for n in range(260)]],
    ids=["three worst", "many long"],
)
def test_a_short_one_waits_for_no_more_than_the_batch_in_work_and_its_share(calls, after):
    batches = order(calls, [("short", [10])], after)
    assert len(batches) > 45
    n = next(n for n, batch in enumerate(batches) if "short" in batch)
    assert n <= after + 1  # the next one, or the one after if that was begun meanwhile


def test_many_short_ones_do_not_hold_up_a_long_one_for_ever():
    async def scene():
        batches = []
        batcher = Batcher(lambda texts: batches.append(texts) or texts, window=0.0)
        running = asyncio.create_task(batcher.run())
        long = asyncio.create_task(batcher.submit(["long"] * 64, [500] * 64))

        async def ask_again_and_again():
            while not long.done():
                await batcher.submit(["short"] * 16, [SHORTEST] * 16)

        await asyncio.gather(long, *(ask_again_and_again() for _ in range(9)))
        running.cancel()
        return batches

    batches = asyncio.run(asyncio.wait_for(scene(), 60))
    tokens = sum(500 if text == "long" else SHORTEST for batch in batches for text in batch)
    assert 2 * 64 * 500 < tokens < 1.2 * 10 * 64 * 500  # the others were served, and it had its share of ten


def test_a_batch_has_as_many_tokens_as_it_may():
    assert [len(batch) for batch in order([("A", [300, 300, 300, 900, 10])], size=700)] == [2, 1, 1, 1]


def test_a_failure_is_that_of_its_batch_and_the_next_one_is_answered():
    answers, batches = run([["a"], ["bad", "e", "f"], ["c"], ["d"]], size=2 * SHORTEST)
    assert not any("f" in batch for batch in batches)  # nobody waits for it
    assert [str(answer) for answer in answers[:2]] == ["it is bad"] * 2
    assert answers[2:] == [["C"], ["D"]]


@pytest.mark.parametrize("found", [[], ["A", "B"]], ids=["too few", "too many"])
def test_a_wrong_number_of_translations_is_an_error_and_the_next_batch_is_answered(found):
    async def main():
        batcher = Batcher(lambda texts: found if texts == ["a"] else texts)
        worker = asyncio.create_task(batcher.run())
        with pytest.raises(RuntimeError, match=f"1 sentences gave {len(found)} translations"):
            await asyncio.wait_for(batcher.submit(["a"], [1]), 30)
        assert await asyncio.wait_for(batcher.submit(["b"], [1]), 30) == ["b"]
        worker.cancel()

    asyncio.run(main())


def test_who_leaves_disturbs_nobody():
    async def scene():
        batcher = Batcher(lambda texts: [text.upper() for text in texts], window=0.05)
        worker = asyncio.create_task(batcher.run())
        calls = [asyncio.create_task(batcher.submit([text], [1])) for text in "abc"]
        await asyncio.sleep(0)
        calls[1].cancel()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        worker.cancel()
        return answers

    first, gone, last = asyncio.run(scene())
    assert (first, last) == (["A"], ["C"]) and isinstance(gone, asyncio.CancelledError)


def test_a_histogram_counts_up_to_each_bound():
    metrics = Metrics()
    for seconds in (0.01, 0.011, 7.0):
        metrics.note(200, seconds)
    metrics.note(503, 0.3)
    text = metrics.text(Batcher(lambda texts: texts))
    assert 'transformer_requests_total{status="503"} 1' in text
    counts = re.findall(r'_bucket\{le="(.+)"\} (\d+)', text)
    assert dict(counts) == {
        "0.01": "1", "0.02": "2", "0.05": "2", "0.1": "2", "0.2": "2",
        "0.5": "3", "1.0": "3", "2.0": "3", "5.0": "3", "+Inf": "4",
    }  # fmt: skip


# The application ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def translator():
    return Translator.load("phrases")


@pytest.fixture
def app(translator):
    return make_app(translator, beam_size=1)


@pytest.fixture
def client(app):
    from fastapi.testclient import TestClient

    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


@needs_server
def test_sentences_are_translated_in_their_order(client):
    answer = client.post("/translate", json={"sentences": [*SAID, ""]})
    assert answer.status_code == 200 and answer.json() == {"translations": [*SAID.values(), ""]}


@needs_server
@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{", 422, 'send JSON such as {"sentences": ["Gosto disto."]}: '),
        (b"{}", 422, 'send JSON such as {"sentences": ["Gosto disto."]}: '),
        (b'{"sentences": "a"}', 422, "send JSON such as"),
        (b'{"sentences": [1]}', 422, "send JSON such as"),
        (
            json.dumps({"sentences": ["a"] * (MOST_SENTENCES + 1)}).encode(),
            413,
            "65 sentences; a request may",
        ),
        (
            json.dumps({"sentences": ["a", "a" * (LONGEST_SENTENCE + 1)]}).encode(),
            413,
            "sentence 2 has 1001 characters; 1000 are allowed",
        ),
        (
            json.dumps({"sentences": ["xq " * 333]}).encode(),
            413,
            "sentence 1 has ",
        ),
        (b" " * (LARGEST_BODY + 1), 413, "the body has more than the 1048576 bytes that are allowed"),
        (rb'{"sentences": ["\ud83d\ude00", "\ud83d"]}', 422, "sentence 2 has half of a surrogate pair"),
        (b'{"sentences": ["n\xe3o"]}', 422, "send JSON such as"),
        (b"[" * 100_000, 422, "send JSON such as"),
        (b'{"sentences": [' + b"9" * 10_000 + b"]}", 422, "send JSON such as"),
    ],
)
def test_what_is_too_much_or_misshapen_is_refused_with_a_reason(client, body, status, said):
    answer = client.post("/translate", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status
    assert answer.json()["detail"].startswith(said)
    assert ("xq" in str(body)) == answer.json()["detail"].endswith(" tokens; the model reads 512")


@needs_server
def test_a_body_in_pieces_is_counted_while_it_is_read(client):
    json_type = {"Content-Type": "application/json"}
    pieces = iter([b'{"sentences"', b': ["Gosto disto."]}'])
    assert client.post("/translate", content=pieces, headers=json_type).json() == {
        "translations": ["i like this."]
    }
    endless = client.post("/translate", content=itertools.repeat(b" " * 65536, 64), headers=json_type)
    assert endless.status_code == 413


@needs_server
@given(
    st.one_of(
        st.binary(max_size=200),
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
            lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
        ).map(lambda value: json.dumps({"sentences": value}).encode()),
        st.lists(st.text(st.characters(), max_size=12), max_size=3).map(
            lambda texts: json.dumps({"sentences": texts}).encode()
        ),
    ),
    st.integers(0, 300),
)
@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_whatever_the_body_is_the_answer_is_json_and_no_failure(client, body, cut):
    answer = client.post("/translate", content=body[:cut], headers={"Content-Type": "application/json"})
    assert answer.status_code in (200, 422), (body, answer.text)
    assert set(answer.json()) == ({"translations"} if answer.status_code == 200 else {"detail"})


@needs_server
def test_with_too_many_waiting_it_asks_to_come_again(client, app, monkeypatch):
    monkeypatch.setattr(app.state.service.batcher, "room", 1)
    answer = client.post("/translate", json={"sentences": list(SAID)})
    assert answer.status_code == 503 and answer.headers["retry-after"] == "1"
    assert answer.json() == {"detail": "0 tokens are waiting: try again later"}


@needs_server
def test_a_failure_is_an_answer_too_and_the_server_goes_on(client, app, monkeypatch):
    def fail(texts):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(app.state.service.batcher, "translate", fail)
        assert client.post("/translate", json={"sentences": ["a"]}).status_code == 500
    assert client.post("/translate", json={"sentences": ["Gosto disto."]}).status_code == 200


@needs_server
def test_health_metrics_and_pages(client):
    assert client.get("/health").json() == {"status": "ok"}
    before = client.get("/metrics").text
    client.post("/translate", json={"sentences": list(SAID)})
    after = client.get("/metrics")
    assert after.headers["content-type"].startswith("text/plain")

    def value(text, name):
        return float(dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#").get(name, 0))

    for name, more in (
        ('transformer_requests_total{status="200"}', 1),
        ("transformer_sentences_total", 2),
        ("transformer_batches_total", 1),
        ('transformer_request_seconds_bucket{le="+Inf"}', 1),
        ("transformer_waiting_sentences", 0),
    ):
        assert value(after.text, name) - value(before, name) == more
    page = client.get("/").text
    assert page.startswith("<!DOCTYPE html>") and '<label for="text">' in page
    assert "/translate" in client.get("/openapi.json").json()["paths"]


# The process ----------------------------------------------------------------------------------------


def test_a_missing_library_is_named_with_its_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert main(["serve"]) == 2
    assert 'fastapi: pip install "transformer-book[serve]"' in capsys.readouterr().err


@needs_server
def test_a_port_that_is_taken_is_said_in_one_line(capsys):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", "--port", str(taken.getsockname()[1])]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1


def ask(address: str, sentence: str) -> str | None:
    """The server's translation; `None` where it has taken no request."""
    connection = http.client.HTTPConnection(address, timeout=120)
    try:
        connection.request("POST", "/translate", json.dumps({"sentences": [sentence]}),
                           {"Content-Type": "application/json"})  # fmt: skip
        answer = connection.getresponse()
        content = answer.read()
    except ConnectionError:
        return None
    finally:
        connection.close()
    assert answer.status == 200, content
    return json.loads(content)["translations"][0]


@needs_server
@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM to ask a program to end")
def test_many_at_once_get_their_answers_and_nothing_is_lost_at_the_end():
    command = [sys.executable, "-m", "transformer", "serve", "--port", "0", "--beam", "1"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    answers: list[tuple[str, str]] = []
    try:
        address = server.stdout.readline().strip().removeprefix("listening on http://")
        assert address.startswith("127.0.0.1:")

        def client(number: int) -> None:
            sentence = list(SAID)[number % 2]
            while (found := ask(address, sentence)) is not None:
                answers.append((sentence, found))

        clients = [threading.Thread(target=client, args=(number,)) for number in range(8)]
        for thread in clients:
            thread.start()
        deadline = time.monotonic() + 120
        while len(answers) < 40 and time.monotonic() < deadline:
            time.sleep(0.01)
        server.send_signal(signal.SIGTERM)
        for thread in clients:
            thread.join(120)
        said, complained = server.communicate(timeout=120)
    finally:
        server.kill()
    assert server.returncode == 0 and complained == ""
    assert len(answers) >= 40
    assert all(SAID[sentence] == found for sentence, found in answers)
    assert said == f"answered {len(answers)} requests\n"  # as many as were received
