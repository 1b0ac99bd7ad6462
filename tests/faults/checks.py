"""Mistakes in `transformer.checks`."""

from faults import Fault

FAULTS = [
    Fault(
        "nan-is-no-change",
        "a change that is not a number counts as none",
        "_unchanged",
        "not change <= probe.tolerance",
        "change > probe.tolerance",
    ),
    Fault(
        "future-in-evaluation-only",
        "a causal mask that is missing in training goes unnoticed",
        "_check_future",
        '("evaluation", "training")',
        '("evaluation",)',
    ),
    Fault(
        "own-position-unread",
        "a decoder that does not see its own token passes",
        "_check_target_reach",
        ".triu()",
        ".triu(1)",
    ),
    Fault(
        "gradient-of-zeros",
        "a parameter whose gradient is always 0 counts as trained",
        "_check_gradients",
        " or not gradient.any()",
        "",
    ),
    Fault(
        "model-not-copied",
        "the checks leave their traces in the model",
        "_run_check",
        "copy.deepcopy(model)",
        "model",
    ),
    Fault(
        "generator-disturbed",
        "what a program draws after the checks depends on them",
        "check_model",
        "torch.random.fork_rng(forked, device_type=device.type)",
        "torch.enable_grad()",
    ),
]
