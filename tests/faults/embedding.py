"""Mistakes in `transformer.embedding`."""

from faults import Fault

FAULTS = [
    Fault(
        "rows-of-variance-one",
        "the table starts as N(0, 1), torch's default",
        "TokenEmbedding.__init__",
        "d_model**-0.5",
        "1.0",
    ),
    Fault(
        "scale-missing",
        "vectors are not multiplied by √d_model",
        "TokenEmbedding.forward",
        " * math.sqrt(self.d_model)",
        "",
    ),
    Fault(
        "sine-and-cosine-swapped",
        "even columns hold the cosines",
        "sinusoidal_encoding",
        "[angle.sin(), angle.cos()]",
        "[angle.cos(), angle.sin()]",
    ),
    Fault(
        "exponent-of-column",
        "the exponent takes i where the formula has 2i",
        "sinusoidal_encoding",
        "torch.arange(0, d_model, 2, dtype=torch.float64)",
        "torch.arange((d_model + 1) // 2, dtype=torch.float64)",
    ),
    Fault(
        "exponents-in-float32",
        "the exponents are rounded to float32 before they are used",
        "sinusoidal_encoding",
        "d_model, 2, dtype=torch.float64",
        "d_model, 2, dtype=torch.float32",
    ),
    Fault(
        "table-stored",
        "the table is stored with the weights, so that max_length cannot change",
        "PositionalEncoding.__init__",
        "persistent=False",
        "persistent=True",
    ),
    Fault(
        "offset-ignored",
        "every step of a search stands at position 0",
        "PositionalEncoding.forward",
        "self.table[offset:end]",
        "self.table[: x.size(1)]",
    ),
    Fault(
        "table-only-cast",
        "double() casts the rounded table instead of computing it anew",
        "PositionalEncoding._apply",
        "self.table = table.to(self.table.device)",
        "pass",
    ),
]
