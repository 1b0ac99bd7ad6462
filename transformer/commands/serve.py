"""`serve`: a translator over HTTP."""

import argparse
from transformer.commands.app import make_app, run_server
from transformer.commands.options import Add, engine_option, named_translator, search_options, within
from transformer.validation import optional_import

__all__ = ["serve", "SERVE_HELP", "serve_options"]


def serve(options: argparse.Namespace) -> None:
    """Translate over HTTP until a signal to stop."""
    for library in ("fastapi", "uvicorn", "prometheus_client"):
        optional_import(library)  # better to find out now than after loading that it is missing
    translator = named_translator(options)
    run_server(make_app(translator, options.search), options.host, options.port)


SERVE_HELP = """\
  curl --json '{"sentences": ["Gosto disto."]}' http://127.0.0.1:8000/translate

A request has up to 64 sentences of up to 1,000 characters; more is refused with status 413, a body of
another form with 422, and one that takes more than 20 seconds to arrive with 408. Requests that arrive
together are translated together, and short ones need not wait for long ones. With 131,072 tokens
waiting, others are refused with status 503. There is a page to try it at /, documentation at /docs,
the state at /health, and numbers for Prometheus at /metrics. Ctrl-C, or SIGTERM, ends the program
once it has answered what it has accepted; after 20 seconds, or at Ctrl-C again, it refuses the rest.
It has no encryption and no passwords: on an open network, put a web server that has them before it."""


def serve_options(add: Add) -> None:
    """The options of `serve`."""
    address = "the address to listen on; 0.0.0.0 for every one of this machine, :: for those of IPv6 as well "
    address += "(default: 127.0.0.1)"
    add("--host", default="127.0.0.1", help=address)
    port = "the port to listen on; 0 for any free one (default: 8000)"
    add("--port", type=within(int, 0, 65535), default=8000, help=port)
    engine_option(add)
    search_options(add)
