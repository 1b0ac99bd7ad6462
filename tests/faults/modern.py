"""Mistakes in `transformer.modern`."""

from faults import Fault

FAULTS = [
    Fault(
        "rms-of-the-sum",
        "the sum of squares is taken for their mean",
        "RMSNorm.forward",
        ".mean(-1,",
        ".sum(-1,",
    ),
    Fault(
        "gate-exchanged",
        "the activation stands on the other layer",
        "GatedFeedForward.forward",
        "GATES[self.activation](self.w_gate(x)) * self.w_1(x)",
        "GATES[self.activation](self.w_1(x)) * self.w_gate(x)",
    ),
    Fault(
        "offset-forgotten",
        "with a cache every token stands at position 0",
        "rotary_table",
        "offset, offset + length",
        "0, length",
    ),
    Fault(
        "turned-back",
        "the second of a pair is turned the wrong way",
        "rotate",
        "first * sin + second * cos",
        "second * cos - first * sin",
    ),
    Fault(
        "slopes-of-heads-from-zero",
        "the first head has slope 1",
        "alibi",
        "torch.arange(1, n_heads + 1)",
        "torch.arange(n_heads)",
    ),
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
        "window-one-too-wide",
        "a window lets one position too many through",
        "sliding_mask",
        "offset - window + 1",
        "offset - window",
    ),
    Fault(
        "prefix-sees-its-end",
        "the first token after the prefix belongs to it",
        "prefix_mask",
        ") < prefix",
        ") <= prefix",
    ),
    Fault(
        "cache-of-all-heads",
        "the bytes count the heads of queries",
        "cache_bytes",
        "config.kv_heads",
        "config.n_heads",
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
    Fault(
        "base-ignored",
        "every model turns at the speeds of 2021",
        "_config_from_llama",
        'rotary.get("rope_theta") or theirs.get("rope_theta") or ',
        "",
    ),
]
