"""Mistakes in `transformer.exchange.foreign`."""

from faults import Fault

FAULTS = [
    Fault(
        "any-file-is-opened",
        "an index may name a file outside its folder",
        "ForeignFolder._indexed",
        " or file not in self.listed",
        "",
    ),
    Fault(
        "index-not-followed",
        "files that the index does not name are read as well",
        "ForeignFolder._read_heads",
        "sorted(set(places.values()))",
        'sorted(name for name in self.listed if name.endswith(".safetensors"))',
    ),
    Fault(
        "tensor-in-any-file",
        "a tensor may be in another file than the index says, and in two",
        "ForeignFolder._read_heads",
        "places is not None and places.get(name) != file",
        "False",
    ),
    Fault(
        "not-finite-accepted",
        "a model from elsewhere may hold what is no number",
        "fitted_weights",
        "check_finite_weights(theirs)",
        "pass",
    ),
    Fault(
        "another-model-overwritten",
        "an export replaces the configuration of any other model",
        "whole_folder",
        "ours(read_record(path))",
        "True",
    ),
]
