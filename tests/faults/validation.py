"""Mistakes in `transformer.validation`."""

from faults import Fault

FAULTS = [
    Fault(
        "size-may-be-bool",
        "True passes for the size 1",
        "check_type",
        " or (isinstance(value, bool) and bool not in kinds)",
        "",
    ),
    Fault(
        "rate-may-be-nan",
        "a rate that is not a number passes",
        "check_rate",
        "not 0 <= rate < 1",
        "rate < 0 or rate >= 1",
    ),
    Fault(
        "transforms-not-noticed",
        "values are looked at inside vmap, which forbids it",
        "is_traced",
        " or any(_unwrap(x) is not x for x in tensors)",
        "",
    ),
    Fault(
        "ids-up-to-vocab-size",
        "the id V passes, one past the last",
        "check_range",
        "high >= end",
        "high > end",
    ),
    Fault(
        "negative-ids",
        "negative ids pass, and are looked up from the end of the table",
        "check_range",
        "low < 0 or high >= end",
        "high >= end",
    ),
    Fault(
        "ids-looked-at-on-every-device",
        "the host waits for the accelerator at every step",
        "check_range",
        'is_traced(ids) or not (always or ids.device.type == "cpu")',
        "is_traced(ids)",
    ),
]
