"""Mistakes in `transformer.language.folder`."""

from faults import Fault

FAULTS = [
    Fault(
        "header-of-any-length",
        "a header may have as many bytes as its writer likes",
        "_read_header",
        "> _LARGEST_HEADER",
        "> 1 << 63",
    ),
    Fault(
        "new-files-in-place-before-the-sums",
        "a translator whose saving is cut off is neither the old one nor the new one",
        "write_translator",
        "new = [_written(folder, name) for name in _FILES]",
        "new = [folder / name for name in _FILES]",
    ),
    Fault(
        "preparation-not-saved",
        "a translator that was saved treats its sentences as the book's corpora are treated",
        "write_translator",
        ' | {"preparation": asdict(vocabulary.preparation)}',
        "",
    ),
    Fault(
        "overflow-saved",
        "a number too large for float16 is written as infinity",
        "check_savable",
        "(name := _not_finite(model, dtype)) is not None",
        "False",
    ),
]
