"""Mistakes in `transformer.modern.parts`."""

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
        "torch.arange(1, n_heads + 1, dtype=torch.float64)",
        "torch.arange(n_heads, dtype=torch.float64)",
    ),
    Fault(
        "places-in-one-digit",
        "the place is one feature, which bfloat16 cannot hold from 256 on",
        "alibi",
        "places // 256, places % 256",
        "0 * places, places",
    ),
    Fault(
        "gates-of-all",
        "the gates are not made to sum to 1 over the chosen experts",
        "route",
        "highest.softmax(-1, dtype=wide)",
        "scores.softmax(-1, dtype=wide).gather(-1, chosen)",
    ),
    Fault(
        "gates-forgotten",
        "the outputs of the chosen experts are summed without their gates",
        "RoutedFeedForward.forward",
        "gates[rows, rank, None] * ",
        "",
    ),
    Fault(
        "balance-of-probabilities",
        "the loss does not count what is chosen",
        "balance_loss",
        "share @ scores.softmax(-1).flatten(0, -2).mean(0)",
        "scores.softmax(-1).flatten(0, -2).mean(0).square().sum()",
    ),
    Fault(
        "stretch-upside-down",
        "fast rotations are slowed down, and slow ones are not",
        "RotaryStretch.__call__",
        "(kept + (1 - kept) / self.factor)",
        "(1 - kept + kept / self.factor)",
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
]
