"""Mistakes in `transformer.language.wording`."""

from faults import Fault

FAULTS = [
    Fault(
        "accents-taken-apart",
        "a decomposed accent counts as a sign of punctuation",
        "tokenize",
        'unicodedata.normalize("NFC", text).lower()',
        "text.lower()",
    ),
]
