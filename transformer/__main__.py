"""The program `transformer-book`, also as `python -m transformer`."""

import sys
from importlib import import_module
from transformer.commands.main import run

__all__ = ["COMMANDS", "main"]


COMMANDS = [  # each has HELP, add_options and run
    import_module("transformer.commands.train"),
    import_module("transformer.commands.translate"),
    import_module("transformer.commands.evaluate"),
    import_module("transformer.commands.serve"),
    import_module("transformer.commands.check"),
    import_module("transformer.commands.info"),
]


def main(arguments: list[str] | None = None) -> int:
    """Run the command line, as `transformer.commands.main.run` does, and return its status."""
    return run(COMMANDS, arguments)


if __name__ == "__main__" and "ipykernel" not in sys.modules:  # a notebook has the same name
    sys.exit(main())
