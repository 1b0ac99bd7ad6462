"""The server's application: routes, answers, and how it starts."""

import socket
from contextlib import suppress
from typing import Any
from transformer.commands.connections import most_connections, timed_protocol
from transformer.commands.gate import Gate
from transformer.commands.limits import Refusal
from transformer.commands.service import Service
from transformer.language.translator import AnyTranslator, Search
from transformer.validation import optional_import

__all__ = ["make_app", "STOPPING_SECONDS", "run_server"]


def make_app(translator: AnyTranslator, search: Search = Search()) -> Any:
    """A `fastapi.FastAPI` that translates: what `serve` runs, for use in your own server.

    Arguments are those of `Service`.

    Raises:
        ImportError: fastapi or prometheus_client is not installed.
    """
    fastapi, service = optional_import("fastapi"), Service(translator, search)
    app = fastapi.FastAPI(title="Translator", lifespan=service.working)
    app.state.service = service
    app.add_api_route("/translate", service.translate, methods=["POST"])
    app.add_api_route("/health", service.health)
    app.add_api_route("/metrics", service.metrics)
    html = optional_import("fastapi.responses").HTMLResponse
    app.add_api_route("/", service.page, response_class=html, include_in_schema=False)
    app.add_exception_handler(Refusal, service.refused)
    app.add_exception_handler(400, service.misshapen)  # what FastAPI says of a body that it cannot decode
    misshapen = optional_import("fastapi.exceptions").RequestValidationError
    app.add_exception_handler(misshapen, service.misshapen)
    app.add_middleware(Gate, service=service)
    return app


STOPPING_SECONDS = 20.0  # that a server which stops has for what it has accepted
_BACKLOG = 1024  # connections that the system holds until the server accepts them


def _listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections, of IPv6 if the address has a colon.

    Raises:
        ValueError: `host` is empty.
        OSError: the port is taken, or not allowed, or the address is not this machine's.
    """
    if not host:
        raise ValueError("host is empty; 0.0.0.0 stands for every address of this machine")
    if ":" not in host:
        return socket.create_server((host, port), backlog=_BACKLOG)
    both = host == "::" and socket.has_dualstack_ipv6()  # every address, that of IPv4 as well
    ipv6 = socket.AF_INET6
    return socket.create_server((host, port), family=ipv6, backlog=_BACKLOG, dualstack_ipv6=both)


def run_server(app: Any, host: str = "127.0.0.1", port: int = 8000) -> None:
    """Serve until an interrupt; then answer what was accepted, and return.

    To return at SIGTERM as well, turn it into a `KeyboardInterrupt`, as the command line does.

    Args:
        app: what `make_app` returned.
        host: the address to listen on; `"0.0.0.0"` for all addresses of this machine, `"::"` for those of
            IPv6 as well.
        port: the port to listen on; 0 for any free one, which is printed.

    Raises:
        ValueError: `host` is empty.
        OSError: the port is taken, or not allowed.
        ImportError: uvicorn is not installed.
    """
    uvicorn, most = optional_import("uvicorn"), most_connections()
    with _listen(host, port) as listening:

        async def lengthen() -> None:  # the system's queue, which asyncio makes as short as the other
            listening.listen(_BACKLOG)

        settings = uvicorn.Config(
            app,
            http=timed_protocol(most),
            ws="none",
            log_level="error",
            access_log=False,
            backlog=most // 4,  # that asyncio accepts at once, before any of them is counted
            callback_notify=lengthen,
            timeout_graceful_shutdown=STOPPING_SECONDS,
        )
        host, port = listening.getsockname()[:2]
        print(f"listening on http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)
        with suppress(KeyboardInterrupt):  # uvicorn raises the signal once more at its end
            uvicorn.Server(settings).run(sockets=[listening])
    print(f"answered {app.state.service.measured.answered()} requests", flush=True)
