"""Mistakes in `transformer.speed.configured`."""

from faults import Fault

FAULTS = [
    Fault(
        "other-kinds-taken",
        "a part of another kind is taken for the book's",
        "differences",
        "type(part) is not type(own)",
        "not isinstance(part, type(own))",
    ),
    Fault(
        "other-settings-taken",
        "a decoder part with other heads, or with a hook, is taken for a known one",
        "differences",
        "type(given) is not type(wanted) or given != wanted",
        "False",
    ),
    Fault(
        "other-sharing-taken",
        "tables that were parted, or tied by hand, are taken for the configuration's",
        "differences",
        "not owners.items() >= wanted.items()",
        "False",
    ),
    Fault(
        "more-parts-pass",
        "a model with an unknown part more is taken for a known one",
        "differences",
        "{**planned, **parts}",
        "planned",
    ),
    Fault(
        "missing-tensor-passes",
        "weights may lack a parameter of the model",
        "check_shapes",
        "wanted.keys() - {places.get(name, name) for name in shapes}",
        "()",
    ),
    Fault(
        "tied-and-different",
        "of two tensors that are one parameter, the first is taken",
        "by_parameter",
        "not torch.equal(weights[same], x)",
        "False",
    ),
]
