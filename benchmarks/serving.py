"""How long clients wait for a translation when several ask at once, of one server and of two.

    python -m benchmarks.serving
    python -m benchmarks.serving --attack

Each client sends one sentence of the phrases' test split, waits for the answer, and sends the next. Of two
servers, it asks now the one, now the other. Writes transformer/records/book/serving.json.

With --attack, four such clients ask one server while somebody else holds connections open with requests that
never end, and one client asks while three of the largest requests are being answered. Writes
transformer/records/book/serving-attack.json. Needs the extra `serve`.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformer.files import write_record
from transformer.language.corpora import load_corpus
from transformer.runs.folder import run_facts

RECORDS = Path(__file__).resolve().parents[1] / "transformer" / "records"
BEAM = 4


@contextmanager
def servers(count: int, files: int | None = None, beam: int = BEAM) -> Iterator[list[str]]:
    """The addresses of some servers, each a process of one thread that may have `files` open."""
    command = [sys.executable, "-m", "transformer", "serve", "--port", "0", "--beam", str(beam)]
    if files is not None:
        command = ["sh", "-c", f'ulimit -n {files} && exec "$@"', "sh", *command]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(count)
    ]
    try:
        yield [each.stdout.readline().strip().removeprefix("listening on http://") for each in started]
    finally:
        for each in started:
            each.terminate()
        for each in started:
            each.communicate(timeout=60)


class Client(threading.Thread):
    """Asks until it is told to stop, and notes how long each answer took, in seconds.

    Args:
        addresses: of the servers, which it asks in turn.
        first: the one to begin with.
        sentences: what to ask for.
        stop: set when it is time to stop.
        fresh: whether each request has a connection of its own.
    """

    def __init__(
        self, addresses: list[str], first: int, sentences: list[str], stop: threading.Event, fresh: bool
    ) -> None:
        super().__init__()
        self.connections = [http.client.HTTPConnection(address, timeout=300) for address in addresses]
        self.first, self.sentences, self.stop, self.seconds = first, sentences, stop, []
        self.fresh = fresh

    def run(self) -> None:
        turns = itertools.cycle(self.connections[self.first :] + self.connections[: self.first])
        for sentence in itertools.cycle(self.sentences):
            if self.stop.is_set():
                return
            connection, start = next(turns), time.perf_counter()
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/translate", json.dumps({"sentences": [sentence]}), headers)
            answer = connection.getresponse()
            content = answer.read()
            if answer.status != 200:
                raise RuntimeError(f"status {answer.status}: {content!r}")
            self.seconds.append(time.perf_counter() - start)
            if self.fresh:
                connection.close()


def measure(
    addresses: list[str], n_clients: int, duration: float, sentences: list[str], fresh: bool = False
) -> dict[str, Any]:
    """What `n_clients` meet within `duration` seconds, with a connection for each or for each request."""
    stop, share = threading.Event(), len(sentences) // n_clients
    clients = [
        Client(addresses, n % len(addresses), sentences[n * share : (n + 1) * share], stop, fresh)
        for n in range(n_clients)
    ]
    start = time.perf_counter()
    for client in clients:
        client.start()
    time.sleep(duration)
    stop.set()
    for client in clients:
        client.join()
    took = time.perf_counter() - start
    seconds = [second for client in clients for second in client.seconds]
    percentiles = statistics.quantiles(seconds, n=20, method="inclusive")
    return {
        "servers": len(addresses),
        "clients": n_clients,
        "requests": len(seconds),
        "requests per second": round(len(seconds) / took, 1),
        "p50 ms": round(1000 * percentiles[9], 1),
        "p95 ms": round(1000 * percentiles[18], 1),
    }


# What an attacker sends: a head that does not end, a body that does not come, and one that comes by the byte.
_HEAD = b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
_LENGTH = b"Content-Length: 1000\r\n\r\n"
ATTACKS = ((_HEAD, b""), (_HEAD + _LENGTH, b""), (_HEAD + _LENGTH, b" "))


class Attacker(threading.Thread):
    """Holds connections open until it is told to stop, and opens new ones for those that the server closes.

    Args:
        address: of the server.
        n_connections: how many, in turn of each kind of `ATTACKS`.
        stop: set when it is time to stop.
    """

    def __init__(self, address: str, n_connections: int, stop: threading.Event) -> None:
        super().__init__()
        self.host, self.port = address.rsplit(":", 1)
        self.open: list[tuple[socket.socket, bytes] | None] = [None] * n_connections
        self.stop, self.connected = stop, 0

    def run(self) -> None:
        while not self.stop.wait(0.1):
            for n, held in enumerate(self.open):
                self.open[n] = self.hold(*held, ATTACKS[n % 3][1]) if held else self.begin(ATTACKS[n % 3][0])
        for connection, _ in filter(None, self.open):
            connection.close()

    def begin(self, unsent: bytes) -> tuple[socket.socket, bytes]:
        """A connection that will be, and what is to be sent then."""
        connection = socket.socket()
        connection.setblocking(False)
        connection.connect_ex((self.host, int(self.port)))
        self.connected += 1
        return connection, unsent

    def hold(
        self, connection: socket.socket, unsent: bytes, more: bytes
    ) -> tuple[socket.socket, bytes] | None:
        """The connection and what is to be sent next; `None` if the server has closed it."""
        try:
            connection.send(unsent)
            unsent = more
            if connection.recv(4096):
                return connection, unsent
        except BlockingIOError:  # not there yet, or nothing to read
            return connection, unsent
        except OSError:
            pass
        connection.close()
        return None


def under_attack(
    addresses: list[str], n_connections: int, duration: float, sentences: list[str]
) -> dict[str, Any]:
    """What four clients meet within `duration` seconds while an attacker holds connections open."""
    stop = threading.Event()
    attacker = Attacker(addresses[0], n_connections, stop)
    attacker.start()
    time.sleep(1.0)
    try:
        row = measure(addresses, 4, duration, sentences, fresh=True)
    finally:
        stop.set()
        attacker.join()
    return row | {"attacker's connections": n_connections, "opened in all": attacker.connected}


def ask(address: str, sentences: list[str]) -> float:
    """The seconds until a request is answered."""
    connection = http.client.HTTPConnection(address, timeout=300)
    start, headers = time.perf_counter(), {"Content-Type": "application/json"}
    connection.request("POST", "/translate", json.dumps({"sentences": sentences}), headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    if answer.status != 200:
        raise RuntimeError(f"status {answer.status}: {content!r}")
    return time.perf_counter() - start


def behind_large_ones(address: str, sentences: list[str], n_large: int = 3) -> dict[str, Any]:
    """How long one short sentence takes alone, and again and again while large requests are answered."""
    long = " ".join(sentences)[:1000]  # as many characters as a sentence may have
    alone = [ask(address, sentences[:1]) for _ in range(20)]
    took: list[float] = []
    large = [threading.Thread(target=lambda: took.append(ask(address, [long] * 64))) for _ in range(n_large)]
    for thread in large:
        thread.start()
    time.sleep(0.3)
    behind = []
    while any(thread.is_alive() for thread in large):
        behind.append(ask(address, sentences[:1]))
    for thread in large:
        thread.join()
    return {
        "large requests": n_large,
        "the last of them s": round(max(took), 1),
        "alone p50 ms": round(1000 * statistics.median(alone), 1),
        "behind p50 ms": round(1000 * statistics.median(behind), 1),
        "behind longest ms": round(1000 * max(behind), 1),
    }


def attack(seconds: float, sentences: list[str]) -> dict[str, Any]:
    """The record of an attack, with few files that the server may open and with the usual number."""
    rows = []
    for files in (128, 1024):
        with servers(1, files) as addresses:
            measure(addresses, 4, 2.0, sentences)  # to warm up
            for n_connections in (0, 150, 0, 150):
                row = {"files": files, **under_attack(addresses, n_connections, seconds, sentences)}
                row["load"] = round(os.getloadavg()[0], 1)
                print(row, flush=True)
                rows.append(row)
            if files == 1024:
                fair = behind_large_ones(addresses[0], sentences)
                print(fair, flush=True)
    return {"rows": rows, "fair": fair}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--servers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--attack", action="store_true", help="measure what honest clients meet under attack")
    options = parser.parse_args()
    sentences = [pair.source for pair in load_corpus("phrases", "test")]
    facts = run_facts("cpu") | {"cores": os.cpu_count(), "beam": BEAM, "threads of a server": 1}
    if options.attack:
        write_record(RECORDS / "serving-attack.json", facts | attack(options.seconds, sentences))
        return
    rows = []
    for count in options.servers:
        with servers(count) as addresses:
            measure(addresses, 4, 2.0, sentences)  # to warm up
            for n_clients in options.clients:
                row = measure(addresses, n_clients, options.seconds, sentences)
                row["load"] = round(os.getloadavg()[0], 1)  # of the machine, clients and others included
                print(row, flush=True)
                rows.append(row)
    write_record(RECORDS / "serving.json", facts | {"rows": rows})


if __name__ == "__main__":
    main()
