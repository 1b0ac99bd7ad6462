"""Mistakes in `transformer.language.folder`."""

from faults import Fault

FAULTS = [
    Fault(
        "file-larger-than-its-tensors",
        "a file may hold more than its header names",
        "_read_header",
        "8 + length + filled != size",
        "8 + length + filled > size",
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
