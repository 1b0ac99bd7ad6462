"""The program `transformer-book`, also as `python -m transformer`."""

import sys
from transformer.commands import check, evaluate, info, serve, train, translate
from transformer.commands.main import run

__all__ = ["COMMANDS", "main"]


COMMANDS = [train, translate, evaluate, serve, check, info]  # each has HELP, add_options and run


def main(arguments: list[str] | None = None) -> int:
    """Run the command line, as `transformer.commands.main.run` does, and return its status."""
    return run(COMMANDS, arguments)


if __name__ == "__main__" and "ipykernel" not in sys.modules:  # a notebook has the same name
    sys.exit(main())
