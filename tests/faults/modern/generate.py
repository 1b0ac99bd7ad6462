"""Mistakes in `transformer.modern.generate`."""

from faults import Fault

FAULTS = [
    Fault(
        "ended-and-on",
        "a row writes on after its end",
        "generate",
        "chosen = chosen.masked_fill(ended, eos_id)",
        "pass",
    ),
    Fault(
        "always-kept", "every guess is kept", "accept", "min(1.0, float(p[t, token] / q[t, token]))", "1.0"
    ),
    Fault(
        "refused-drawn-from-p",
        "what replaces a refused token is drawn from all of p",
        "accept",
        "(p[t] - q[t])",
        "p[t]",
    ),
    Fault(
        "cache-not-rewound",
        "refused tokens stay in the caches",
        "speculative_decoding",
        "cache.rewind(len(tokens) - 1)",
        "pass",
    ),
]
