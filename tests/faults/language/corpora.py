"""Mistakes in `transformer.language.corpora`."""

from faults import Fault

FAULTS = [
    Fault(
        "download-without-end",
        "a server may send more than the archive's length",
        "_download",
        "source.size",
        "9 * _CHUNK",
    ),
    Fault(
        "archive-unchecked",
        "a local archive is used whatever it holds",
        "_archive",
        "_fault(path, source)",
        '""',
    ),
    Fault(
        "own-corpus-empty-lines-lost",
        "empty lines are dropped, so that later sentences get other translations",
        "_lines",
        'text.removesuffix("\\n").split("\\n") if text else []',
        '[line for line in text.split("\\n") if line]',
    ),
    Fault(
        "own-corpus-shorter-side-decides",
        "the extra lines of the longer side are dropped without a word",
        "_paired",
        "if len(source) != len(target):",
        "source, target = source[: len(target)], target[: len(source)]\n    if False:",
    ),
    Fault(
        "own-corpus-mark-kept",
        "a byte order mark becomes part of the first word",
        "_own_lines",
        '.removeprefix("\\ufeff")',
        "",
    ),
    Fault(
        "packed-splits-mixed",
        "every split of the phrases holds the others as well",
        "_packed_pairs",
        " if name == split",
        "",
    ),
]
