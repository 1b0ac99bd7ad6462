"""How long clients wait for a translation when several ask at once, of one server and of two.

    python -m benchmarks.serving

Each client sends one sentence of the phrases' test split, waits for the answer, and sends the next. Of two
servers, it asks now the one, now the other. Needs the extra `serve`; writes transformer/records/serving.json.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformer.corpora import load_corpus
from transformer.files import run_facts, write_record

RECORD = Path(__file__).resolve().parents[1] / "transformer" / "records" / "serving.json"
BEAM = 4


@contextmanager
def servers(count: int) -> Iterator[list[str]]:
    """The addresses of some servers, each a process of one thread."""
    command = [sys.executable, "-m", "transformer", "serve", "--port", "0", "--beam", str(BEAM)]
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
            each.wait(60)


class Client(threading.Thread):
    """Asks until it is told to stop, and notes how long each answer took, in seconds.

    Args:
        addresses: of the servers, which it asks in turn.
        first: the one to begin with.
        sentences: what to ask for.
        stop: set when it is time to stop.
    """

    def __init__(self, addresses: list[str], first: int, sentences: list[str], stop: threading.Event) -> None:
        super().__init__()
        self.connections = [http.client.HTTPConnection(address, timeout=300) for address in addresses]
        self.first, self.sentences, self.stop, self.seconds = first, sentences, stop, []

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


def measure(addresses: list[str], n_clients: int, duration: float, sentences: list[str]) -> dict[str, Any]:
    """What `n_clients` meet within `duration` seconds."""
    stop, share = threading.Event(), len(sentences) // n_clients
    clients = [
        Client(addresses, n % len(addresses), sentences[n * share : (n + 1) * share], stop)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--servers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    options = parser.parse_args()
    sentences = [pair.source for pair in load_corpus("phrases", "test")]
    rows = []
    for count in options.servers:
        with servers(count) as addresses:
            measure(addresses, 4, 2.0, sentences)  # to warm up
            for n_clients in options.clients:
                row = measure(addresses, n_clients, options.seconds, sentences)
                row["load"] = round(os.getloadavg()[0], 1)  # of the machine, clients and others included
                print(row, flush=True)
                rows.append(row)
    facts = {"cores": os.cpu_count(), "beam": BEAM, "threads of a server": 1}
    write_record(RECORD, run_facts("cpu") | facts | {"rows": rows})


if __name__ == "__main__":
    main()
