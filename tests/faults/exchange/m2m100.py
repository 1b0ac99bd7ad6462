"""Mistakes in `transformer.exchange.m2m100`."""

from faults import Fault

FAULTS = [
    Fault(
        "first-position",
        "positions are counted from padding's own",
        "_FIRST",
        "2",
        "1",
    ),
    Fault(
        "wavelengths",
        "the wavelengths are divided as in the paper, not as in M2M-100",
        "M2M100Positions._compute",
        "(n - 1)",
        "n",
    ),
    Fault(
        "narrow-model",
        "a model too narrow for two wavelengths divides by zero",
        "M2M100Transformer.__init__",
        "minimum=4",
        "minimum=1",
    ),
    Fault(
        "padding-anywhere",
        "another padding token is taken, whose position the sinusoids do not leave free",
        "M2M100Transformer.__init__",
        "[_FIRST - 1]",
        "[config.pad_id]",
    ),
    Fault(
        "no-dropout-of-positions",
        "the sum of vectors and positions is not dropped",
        "M2M100Transformer.__init__",
        "config.dropout",
        "0.0",
    ),
    Fault(
        "token-beyond-the-vocabulary",
        "a first token is taken that the model does not have",
        "Beginning.__init__",
        "token >= (end",
        "token > (end",
    ),
    Fault(
        "language-for-good",
        "every token is the language",
        "_BeginningState.step",
        "self.begins_with.pop()",
        "self.begins_with[-1]",
    ),
    Fault(
        "rows-not-kept",
        "a beam goes on with the states of other beginnings",
        "_BeginningState.keep",
        "self.free.keep(rows)",
        "pass",
    ),
]
