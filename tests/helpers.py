"""What several test files need."""

from __future__ import annotations

import hashlib
from pathlib import Path

FILES = ("config.json", "model.safetensors", "vocabulary.json")  # of a saved translator


def summed(folder: Path) -> Path:
    """The folder, with sums that agree with its files, as a stranger would make them."""
    sums = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in FILES]
    (folder / "SHA256SUMS").write_bytes("".join(sums).encode())
    return folder
