"""The diagrams of Chapters 6 to 18: training, decoding, speed and what follows."""

from __future__ import annotations
