"""Translations over HTTP: batches, limits, measurements, and an end that loses nothing."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks import serving as benchmark
from transformer import Translator
from transformer.__main__ import main
from transformer.commands.app import make_app
from transformer.commands.batching import SHORTEST, Batcher
from transformer.commands.limits import LARGEST_BODY, LONGEST_SENTENCE, MOST_SENTENCES, Refusal
from transformer.commands.metrics import Metrics
from transformer.language.translator import Search

needs_server = pytest.mark.skipif(
    not all(map(find_spec, ("fastapi", "uvicorn", "httpx", "prometheus_client"))),
    reason="fastapi, uvicorn, httpx or prometheus_client is not installed: transformer-book[serve]",
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


@needs_server
def test_a_histogram_counts_up_to_each_bound():
    metrics = Metrics(Batcher(lambda texts: texts))
    for seconds in (0.01, 0.011, 7.0):
        metrics.note(200, seconds)
    metrics.note(503, 0.3)
    assert metrics.answered() == 3
    text = metrics.text()
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
    return make_app(translator, Search(beam_size=1))


@pytest.fixture
def client(app):
    from fastapi.testclient import TestClient

    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


@needs_server
def test_sentences_are_translated_in_their_order(client):
    answer = client.post("/translate", json={"sentences": [*SAID, ""]})
    assert answer.status_code == 200 and answer.json() == {
        "translations": [*SAID.values(), ""],
        "warnings": [[], [], []],
    }


@needs_server
def test_an_answer_says_what_is_doubtful(client):
    answer = client.post(
        "/translate", json={"sentences": ["Gosto disto.", "O cão dorme. A gata come.", "😀"]}
    )
    assert answer.json()["translations"][2] == "😀"
    none, several, unknown = answer.json()["warnings"]
    assert none == [] and several == ["is 2 sentences, and its translation 1: give each a line of its own"]
    assert unknown == ["has no character of the vocabulary, and is copied"]


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
        "translations": ["i like this."],
        "warnings": [[]],
    }
    endless = client.post("/translate", content=itertools.repeat(b" " * 65536, 64), headers=json_type)
    assert endless.status_code == 413


@needs_server
@given(
    st.one_of(
        st.binary(max_size=200),
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
            lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
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
    assert set(answer.json()) == ({"translations", "warnings"} if answer.status_code == 200 else {"detail"})


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


def values(text: str) -> Counter[str]:
    """The numbers of a server's metrics, by their names."""
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
    return Counter({name: float(value) for name, value in lines})


@needs_server
def test_health_metrics_and_pages(client):
    assert client.get("/health").json() == {"status": "ok"}
    before = client.get("/metrics").text
    client.post("/translate", json={"sentences": list(SAID)})
    after = client.get("/metrics")
    assert after.headers["content-type"].startswith("text/plain")

    for name, more in (
        ('transformer_requests_total{status="200"}', 1),
        ("transformer_sentences_total", 2),
        ("transformer_batches_total", 1),
        ('transformer_request_seconds_bucket{le="+Inf"}', 1),
        ("transformer_waiting_tokens", 0),
    ):
        assert values(after.text)[name] - values(before)[name] == more
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
@pytest.mark.parametrize(
    ("host", "shown"), [("127.0.0.1", r"127\.0\.0\.1"), ("::1", r"\[::1\]"), ("::", r"\[::\]")]
)
def test_it_listens_where_it_is_told_and_says_where(host, shown):
    if ":" in host and not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    with serving("--host", host) as server:
        assert re.fullmatch(rf"{shown}:\d+", server.address)
        for at in {"::": ["127.0.0.1", "::1"]}.get(host, [host]):
            with socket.create_connection((at, server.port), timeout=60) as connection:
                connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                assert connection.recv(1000).startswith(b"HTTP/1.1 200 OK")


@needs_server
def test_an_empty_host_is_refused_by_name(capsys):
    assert main(["serve", "--host", "", "--port", "0"]) == 2
    assert capsys.readouterr().err.startswith("error: host is empty; ")


class Served(NamedTuple):
    process: subprocess.Popen[str]
    address: str
    connections: ExitStack

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        return self.connections.enter_context(connection)

    def metrics(self) -> Counter[str]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as answer:
            return values(answer.read().decode())


@contextmanager
def serving(*options: str, **limits: float) -> Iterator[Served]:
    """A server in a process of its own, with some of its limits changed wherever they are read."""
    program = f"""
import sys
from transformer.commands import app, connections, limits
from transformer.__main__ import main
for module in (app, connections, limits):
    vars(module).update({{name: value for name, value in {limits}.items() if name in vars(module)}})
sys.exit(main())"""
    command = [sys.executable, "-c", program, "serve", "--port", "0", "--beam", "1"]
    pipe = subprocess.PIPE
    process = subprocess.Popen([*command, *options], stdout=pipe, stderr=pipe, text=True)
    address = process.stdout.readline().strip().removeprefix("listening on http://")
    with ExitStack() as connections:
        connections.callback(process.communicate)
        connections.callback(process.kill)
        yield Served(process, address, connections)


HEAD = b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
HALF_A_HEAD = HEAD[:-20]
HALF_A_BODY = HEAD + b'Content-Length: 60\r\n\r\n{"sentences": ["Gosto'
WHOLE = HEAD + b'Content-Length: 31\r\n\r\n{"sentences": ["Gosto disto."]}'


def until_closed(connection: socket.socket) -> tuple[bytes, float]:
    """What a server sends until it closes the connection, and after how many seconds it does."""
    start, received = time.monotonic(), b""
    with suppress(ConnectionResetError):
        while part := connection.recv(65536):
            received += part
    return received, time.monotonic() - start


@needs_server
def test_what_does_not_arrive_is_waited_for_only_so_long():
    with serving(ARRIVAL_SECONDS=1.0) as server:
        connections = [server.connect() for _ in range(4)]
        silent, head, body, dripping = connections
        head.sendall(HALF_A_HEAD)
        body.sendall(HALF_A_BODY)
        dripping.sendall(HEAD + b"Content-Length: 60\r\n\r\n")

        def drip() -> None:
            with suppress(OSError):
                while True:
                    dripping.sendall(b" ")
                    time.sleep(0.1)

        threading.Thread(target=drip, daemon=True).start()
        for connection, said in zip(connections, (b"", b"", b" 408 ", b" 408 "), strict=True):
            received, seconds = until_closed(connection)
            assert said in received and bool(said) == bool(received) and seconds < 20
            assert not said or b"the body did not arrive within 1 seconds" in received
        assert server.metrics()['transformer_requests_total{status="408"}'] == 2
        assert ask(server.address, "Gosto disto.") == "i like this."


@needs_server
def test_an_answer_that_nobody_takes_is_not_kept():
    with serving(ARRIVAL_SECONDS=1.0) as server, socket.socket() as greedy:
        greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        greedy.settimeout(0.5)
        greedy.connect(("127.0.0.1", server.port))
        asked = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 100
        start = time.monotonic()
        with pytest.raises(ConnectionError):  # closed, after it took no more requests
            while time.monotonic() < start + 60:
                with suppress(TimeoutError):
                    greedy.send(asked)


@needs_server
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads the memory from /proc")
def test_an_endless_body_is_not_read_whatever_length_it_announces():
    with serving() as server:
        connection = server.connect()
        status = Path(f"/proc/{server.process.pid}/status")
        memory = lambda: int(re.search(r"VmHWM:\s+(\d+)", status.read_text())[1]) // 1024  # MiB
        ask(server.address, "Gosto disto.")
        before, sent = memory(), 0
        connection.sendall(HEAD + b"Content-Length: 10\r\nTransfer-Encoding: chunked\r\n\r\n")
        with pytest.raises(ConnectionError):
            while sent < 300 << 20:
                connection.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
                sent += 65536
        assert sent < 32 << 20  # the buffers of the system included
        assert memory() - before < 32
        assert server.metrics()['transformer_requests_total{status="413"}'] == 1


@needs_server
def test_who_waits_for_an_answer_keeps_the_connection_and_who_keeps_us_waiting_does_not():
    with serving(MOST_CONNECTIONS=8) as server:
        kept_waiting = []
        for _ in range(30):  # far more than there may be
            for sent in (b"", HALF_A_HEAD, HALF_A_BODY):
                kept_waiting.append(server.connect())
                kept_waiting[-1].sendall(sent)
            assert ask(server.address, "Gosto disto.") == "i like this."
        start = time.monotonic()
        for connection in kept_waiting[:-8]:
            assert until_closed(connection)[0] == b""
        assert time.monotonic() - start < 10.0  # long before their time is up


LONG = json.dumps({"sentences": ["a menina gosta do gato preto . " * 30] * 64}).encode()
LONG = HEAD + b"Content-Length: %d\r\n\r\n" % len(LONG) + LONG


@needs_server
def test_of_too_many_whole_requests_the_last_is_asked_to_come_again():
    with serving("--beam", "4", MOST_CONNECTIONS=7) as server:
        at_work = [server.connect() for _ in range(6)]
        for connection in at_work:
            connection.sendall(LONG)
        while server.metrics()["transformer_waiting_tokens"] < 6 * 64 * 200:
            time.sleep(0.05)
        at_work.append(server.connect())
        at_work[-1].sendall(LONG)
        time.sleep(0.3)
        late = server.connect()
        late.sendall(WHOLE)
        assert late.recv(1000).startswith(b"HTTP/1.1 503 ")
        assert [connection.recv(12) for connection in at_work] == [b"HTTP/1.1 200"] * 7


@needs_server
def test_who_leaves_is_translated_no_more():
    with serving() as server:
        with server.connect() as leaving:
            leaving.sendall(LONG)
            while not server.metrics()["transformer_waiting_tokens"]:
                time.sleep(0.01)
        deadline = time.monotonic() + 60
        while server.metrics()["transformer_waiting_tokens"] and time.monotonic() < deadline:
            time.sleep(0.01)
        after = server.metrics()
        assert after['transformer_requests_total{status="499"}'] == 1
        assert after["transformer_sentences_total"] == 0 and after["transformer_batches_total"] <= 3


@needs_server
@pytest.mark.skipif(os.name == "nt", reason="limits the files of the server with ulimit")
def test_an_attacker_costs_the_honest_at_most_twice_their_time():
    sentences = list(SAID) * 4
    with benchmark.servers(1, files=160, beam=1) as addresses:  # 80 connections
        for _ in range(6):  # what else the machine does only adds
            calm = benchmark.measure(addresses, 4, 2.0, sentences, fresh=True)
            met = benchmark.under_attack(addresses, 150, 2.0, sentences)
            assert met["opened in all"] >= 150
            if all(met[key] <= 2 * calm[key] for key in ("p50 ms", "p95 ms")):
                return
        pytest.fail(f"alone {calm}, under attack {met}")


@needs_server
def test_a_short_request_passes_three_of_the_longest():
    with benchmark.servers(1) as (address,):
        benchmark.ask(address, list(SAID))
        sentences = ["Gosto disto.", *["o menino come a maçã na casa ."] * 40]
        found = benchmark.behind_large_ones(address, sentences)
        assert found["behind longest ms"] < 1000 * found["the last of them s"] / 3


@needs_server
@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM to ask a program to end")
def test_half_a_request_does_not_keep_a_server_that_is_to_stop():
    with serving(STOPPING_SECONDS=2.0, ARRIVAL_SECONDS=100.0) as server:
        body, head = server.connect(), server.connect()
        body.sendall(HALF_A_BODY)
        head.sendall(HALF_A_HEAD)
        assert ask(server.address, "Gosto disto.") == "i like this."
        start = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        said, _ = server.process.communicate(timeout=60)
        assert time.monotonic() - start < 2.0 + 30.0  # the interpreter's end, on a busy machine, included
        assert b" 503 " in until_closed(body)[0]
    assert server.process.returncode == 0 and said == "answered 1 requests\n"


@needs_server
@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT to send to one program")
def test_a_second_interrupt_ends_it_and_nobody_gets_a_failure():
    long = json.dumps({"sentences": ["a menina gosta do gato preto . " * 30] * 6}).encode()
    with serving() as server:
        connections = [server.connect() for _ in range(40)]
        for connection in connections:
            connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(long) + long)
        while server.metrics()["transformer_waiting_tokens"] < 40 * 6 * 200:
            time.sleep(0.05)
        for _ in range(2):
            server.process.send_signal(signal.SIGINT)
            time.sleep(0.3)
        said, complained = server.process.communicate(timeout=60)
        statuses = [until_closed(connection)[0][9:12] for connection in connections]
    assert server.process.returncode == 0 and complained == ""
    assert set(statuses) <= {b"200", b"503"} and b"503" in statuses
    assert said == f"answered {statuses.count(b'200')} requests\n"


@pytest.mark.slow
@needs_server
@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM to ask a program to end")
def test_many_at_once_get_their_answers_and_nothing_is_lost_at_the_end():
    answers: list[tuple[str, str]] = []
    with serving() as (server, address, _):

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
    assert server.returncode == 0 and complained == ""
    assert len(answers) >= 40
    assert all(SAID[sentence] == found for sentence, found in answers)
    assert said == f"answered {len(answers)} requests\n"  # as many as were received
