"""The program `transformer-book`, also as `python -m transformer`."""

import sys
from transformer.commands.main import main

if __name__ == "__main__" and "ipykernel" not in sys.modules:  # a notebook has the same name
    sys.exit(main())
