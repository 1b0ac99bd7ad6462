"""Mistakes in `transformer.modern.language_model`."""

from faults import Fault

FAULTS = [
    Fault(
        "groups-dealt-out",
        "head h gets the shared head h mod H_kv",
        "GroupedQueryAttention.forward",
        "one.repeat_interleave(self.group, dim=1)",
        "one.repeat(1, self.group, 1, 1)",
    ),
    Fault(
        "norm-after-the-turn",
        "keys are normalized by head only after they are turned",
        "GroupedQueryAttention.forward",
        "turned(self.k_norm(self._split(self.w_k(x))))",
        "self.k_norm(turned(self._split(self.w_k(x))))",
    ),
    Fault(
        "cache-of-all-heads",
        "the bytes count the heads of queries",
        "cache_bytes",
        "config.kv_heads",
        "config.n_heads",
    ),
]
