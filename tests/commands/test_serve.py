"""Translations over HTTP: batches, limits, and an end that loses nothing."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec

import pytest

from transformer import Translator
from transformer.__main__ import main
from transformer.commands import serve
from transformer.commands.serve import Batcher, make_app, make_server
from transformer.language.translator import Search

needs_server = pytest.mark.skipif(
    not all(map(find_spec, ("starlette", "uvicorn"))), reason="not installed: transformer-book[serve]"
)
SAID = {"A menina gosta do gato preto.": "the girl likes the black cat.", "Gosto disto.": "i like this."}
HEAD = b"POST /translate HTTP/1.1\r\nHost: x\r\n"
HALF_A_BODY = HEAD + b'Content-Length: 60\r\n\r\n{"sentences": ["Gosto'


def submitted(calls):
    """What callers get who submit at once, and the batches that were made."""
    batches = []

    def translate(texts):
        batches.append(texts)
        if "bad" in texts:
            raise ValueError("it is bad")
        return [text.upper() for text in texts]

    batcher = Batcher(translate)

    async def scene():
        asked = [asyncio.create_task(batcher.submit(call)) for call in calls]
        answers = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 30)
        assert batcher.waiting == 0 and await batcher.submit(["next"]) == ["NEXT"]
        return answers, batches[:-1]

    found, batches[:] = asyncio.run(scene()), []
    assert str(asyncio.run(scene())) == str(found)  # in a loop of its own
    return found


def test_callers_share_a_batch_and_each_gets_its_own():
    assert submitted([["a", "b"], [], ["c"]]) == ([["A", "B"], [], ["C"]], [["a", "b", "c"]])


def test_a_batch_has_a_size_and_a_failure_is_that_of_its_batch(monkeypatch):
    monkeypatch.setattr(serve, "BATCH_CHARACTERS", 18)
    answers, batches = submitted([["a"], ["bad"], ["c"], ["d"]])
    assert batches == [["a", "bad"], ["c", "d"]]
    assert [str(answer) for answer in answers[:2]] == ["it is bad"] * 2 and answers[2:] == [["C"], ["D"]]


@contextmanager
def running(app):
    """A server in a thread, and the port where it listens."""
    server = make_server(app)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield server, listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(60)


@pytest.fixture(scope="module")
def app():
    return make_app(Translator.load("phrases"), Search(beam_size=1))


@pytest.fixture(scope="module")
def port(app):
    with running(app) as (_, port):
        yield port


def ask(port, body, path="/translate", method="POST"):
    """The status of an answer, its headers and its JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    if not isinstance(body, bytes):
        body = json.dumps({"sentences": body}).encode()
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, answer.headers, json.loads(text) if text[:1] == b"{" else text
    finally:
        connection.close()


def until_closed(connection):
    """What a server sends until it closes the connection."""
    received = b""
    with suppress(ConnectionResetError):
        while part := connection.recv(65536):
            received += part
    return received


@needs_server
def test_sentences_are_translated_in_their_order_and_an_answer_says_what_is_doubtful(port):
    status, _, answer = ask(port, [*SAID, "", "O cão dorme. A gata come.", "😀", "xq " * 333])
    assert status == 200 and set(answer) == {"translations", "warnings"}
    assert answer["translations"][:3] == [*SAID.values(), ""] and answer["translations"][4] == "😀"
    assert answer["warnings"][:3] == [[], [], []] and "is 2 sentences" in answer["warnings"][3][0]
    assert answer["warnings"][4] == ["has no character of the vocabulary, and is copied"]
    assert "tokens" in answer["warnings"][5][0]
    assert ask(port, b"", "/health", "GET")[2] == {"status": "ok"}


@needs_server
@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{", 422, 'send JSON such as {"sentences": ["Gosto disto."]}: '),
        (b"{}", 422, "send JSON such as"),
        (b'{"sentences": "a"}', 422, "send JSON such as"),
        (b'{"sentences": [1]}', 422, "send JSON such as"),
        (b'{"sentences": ["n\xe3o"]}', 422, "send JSON such as"),
        (b"[" * 100_000, 422, "send JSON such as"),
        (b'{"sentences": [' + b"9" * 10_000 + b"]}", 422, "send JSON such as"),
        (rb'{"sentences": ["\ud83d\ude00", "\ud83d"]}', 422, "send JSON such as"),
        (["a"] * 65, 413, "65 sentences; a request may have 64"),
        (["a", "a" * 1001], 413, "sentence 2 has 1001 characters; 1000 are allowed"),
        (b" " * ((1 << 20) + 1), 413, "the body has more than the 1048576 bytes that are allowed"),
    ],
)
def test_what_is_too_much_or_misshapen_is_refused_with_a_reason(port, body, status, said):
    answer = ask(port, body)
    assert answer[0] == status and answer[2]["detail"].startswith(said)


@needs_server
def test_an_endless_body_is_not_read_whatever_length_it_announces(port):
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(HEAD + b"Content-Length: 10\r\nTransfer-Encoding: chunked\r\n\r\n")
        with pytest.raises(ConnectionError):
            for _ in range(1000):  # 64 MiB, the buffers of the system included
                connection.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")


@needs_server
def test_a_slow_body_is_waited_for_only_so_long(port, monkeypatch):
    monkeypatch.setattr(serve, "ARRIVAL_SECONDS", 0.5)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(HALF_A_BODY)
        received = until_closed(connection)
    assert b" 408 " in received and b"the body did not arrive within 0.5 seconds" in received


@needs_server
def test_with_too_many_waiting_it_asks_to_come_again(port, monkeypatch):
    monkeypatch.setattr(serve, "QUEUE_CHARACTERS", 1)
    status, headers, answer = ask(port, list(SAID))
    assert status == 503 and headers["retry-after"] == "1" and "try again later" in answer["detail"]


@needs_server
def test_a_port_that_is_taken_is_said_in_one_line(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", "--port", str(taken.getsockname()[1])]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1


@needs_server
def test_half_a_request_does_not_keep_a_server_that_is_to_stop(monkeypatch):
    monkeypatch.setattr(serve, "STOPPING_SECONDS", 1)
    with running(make_app(Translator.load("phrases"))) as (server, port):
        body, head = (socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(2))
        with body, head:
            body.sendall(HALF_A_BODY)
            head.sendall(HEAD)
            assert ask(port, ["Gosto disto."])[0] == 200
            server.should_exit = True
            assert b" 503 " in until_closed(body) and until_closed(head) == b""


@needs_server
@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM to ask a program to end")
def test_a_server_that_stops_while_busy_answers_everybody():
    command = [sys.executable, "-m", "transformer", "serve", "--port", "0", "--beam", "1", "--threads", "1"]
    pipe = subprocess.PIPE
    body = json.dumps({"sentences": ["a menina gosta do gato preto . " * 8] * 2}).encode()
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process, ExitStack() as stack:
        address = process.stdout.readline().strip()
        assert address.startswith("listening on http://127.0.0.1:")
        at = "127.0.0.1", int(address.rpartition(":")[2])
        busy = [stack.enter_context(socket.create_connection(at, timeout=60)) for _ in range(6)]
        for connection in busy:
            connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert ask(at[1], b"", "/health", "GET")[0] == 200
        process.terminate()
        statuses = [until_closed(connection)[9:12] for connection in busy]
        said, complained = process.communicate(timeout=60)
    assert process.returncode == 0 and said == complained == ""
    assert statuses == [b"200"] * 6
