"""Translations over HTTP: batches, limits, measurements, and an end that loses nothing."""

from __future__ import annotations

import asyncio
import http.client
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

from transformer import Translator
from transformer.__main__ import main
from transformer.serve import (
    LARGEST_BODY,
    LONGEST_SENTENCE,
    MOST_SENTENCES,
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
        answers = await asyncio.gather(*map(batcher.submit, calls), return_exceptions=True)
        assert batcher.waiting == 0 and batcher.batches == len(batches)
        worker.cancel()
        return answers

    return asyncio.run(scene()), batches


def test_callers_share_a_batch_and_each_gets_its_own():
    answers, batches = run([["a", "b"], [], ["c"]])
    assert answers == [["A", "B"], [], ["C"]] and batches == [["a", "b", "c"]]


def test_a_batch_has_a_size():
    answers, batches = run([[f"{n}"] for n in range(10)], size=4)
    assert answers == [[f"{n}"] for n in range(10)] and [len(batch) for batch in batches] == [4, 4, 2]


def test_who_finds_no_room_is_refused_and_the_others_are_answered():
    answers, _ = run([["a"] * 3, ["b"] * 3, ["c"] * 2], room=5)
    assert answers[0] == ["A"] * 3 and answers[2] == ["C"] * 2
    assert isinstance(answers[1], Refusal) and answers[1].status == 503
    assert str(answers[1]) == "3 sentences are waiting: try again later"


def test_who_has_gone_is_not_translated_and_keeps_no_room():
    async def scene():
        batches = []
        batcher = Batcher(lambda texts: batches.append(texts) or texts, room=10, size=4)
        gone = [asyncio.create_task(batcher.submit(["x"] * 5)) for _ in range(3)]
        await asyncio.sleep(0)
        for task in gone:
            task.cancel()
        refused = (await asyncio.gather(*gone, return_exceptions=True))[2]
        assert isinstance(refused, Refusal) and batcher.waiting == 10  # until their turn comes
        running = asyncio.create_task(batcher.run())
        while batcher.waiting:
            await asyncio.sleep(0.01)
        assert await batcher.submit(["a", "b"]) == ["a", "b"]
        assert batches == [["a", "b"]] and batcher.waiting == 0
        running.cancel()

    asyncio.run(asyncio.wait_for(scene(), 30))


def test_a_failure_is_that_of_its_batch_and_the_next_one_is_answered():
    answers, _ = run([["a"], ["bad"], ["c"], ["d"]], size=2)
    assert [str(answer) for answer in answers[:2]] == ["it is bad"] * 2
    assert answers[2:] == [["C"], ["D"]]


@pytest.mark.parametrize("found", [[], ["A", "B"]], ids=["too few", "too many"])
def test_a_wrong_number_of_translations_is_an_error_and_the_next_batch_is_answered(found):
    async def main():
        batcher = Batcher(lambda texts: found if texts == ["a"] else texts)
        worker = asyncio.create_task(batcher.run())
        with pytest.raises(RuntimeError, match=f"1 sentences gave {len(found)} translations"):
            await asyncio.wait_for(batcher.submit(["a"]), 30)
        assert await asyncio.wait_for(batcher.submit(["b"]), 30) == ["b"]
        worker.cancel()

    asyncio.run(main())


def test_who_leaves_disturbs_nobody():
    async def scene():
        batcher = Batcher(lambda texts: [text.upper() for text in texts], window=0.05)
        worker = asyncio.create_task(batcher.run())
        calls = [asyncio.create_task(batcher.submit([text])) for text in "abc"]
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
        (b" " * (LARGEST_BODY + 1), 413, "the body has 1048577 bytes; 1048576 are allowed"),
    ],
)
def test_what_is_too_much_or_misshapen_is_refused_with_a_reason(client, body, status, said):
    answer = client.post("/translate", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status
    assert answer.json()["detail"].startswith(said)
    assert ("xq" in str(body)) == answer.json()["detail"].endswith(" tokens; the model reads 512")


@needs_server
def test_a_body_of_unknown_length_is_refused(client):
    answer = client.post("/translate", content=iter([b'{"sentences": []}']))
    assert answer.status_code == 411
    assert answer.json() == {"detail": "the header Content-Length is missing"}


@needs_server
def test_with_too_many_waiting_it_asks_to_come_again(client, app, monkeypatch):
    monkeypatch.setattr(app.state.service.batcher, "room", 1)
    answer = client.post("/translate", json={"sentences": list(SAID)})
    assert answer.status_code == 503 and answer.headers["retry-after"] == "1"
    assert answer.json() == {"detail": "0 sentences are waiting: try again later"}


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


@pytest.mark.slow
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
