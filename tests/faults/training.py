"""Mistakes in chapter 7's training."""

from faults import Fault

FAULTS = [
    Fault("adam-betas", "Adam's second decay rate is torch's 0.999", "adamw", "(0.9, 0.98)", "(0.9, 0.999)"),
    Fault(
        "vectors-decay",
        "biases and gains decay as matrices do",
        "adamw",
        '"weight_decay": 0.0}',
        '"weight_decay": weight_decay}',
    ),
    Fault(
        "cooldown-one-early",
        "the last update has a rate of 0",
        "cooldown",
        "(steps - step + 1) / (fraction * steps)",
        "(steps - step) / (fraction * steps)",
    ),
    Fault(
        "evaluating-ends-in-training",
        "a part that was in evaluation mode comes back in training mode",
        "evaluating",
        "[module for module in model.modules() if module.training]",
        "list(model.modules())",
    ),
    Fault(
        "evaluation-smoothed",
        "the loss that is reported is the smoothed one",
        "evaluate_loss",
        "targets, 0.0, pad_id",
        "targets, 0.1, pad_id",
    ),
    Fault(
        "evaluation-mean-of-means",
        "a short batch counts as much as a long one",
        "evaluate_loss",
        "pad_id) * n_tokens",
        "pad_id) * targets.numel()",
    ),
    Fault(
        "no-token-is-perfect",
        "the loss of no token at all is 0",
        "evaluate_loss",
        "if not n_tokens:",
        'if not n_tokens:\n        return {"loss": 0.0, "accuracy": 0.0}',
    ),
    Fault(
        "gradients-pile-up",
        "gradients of earlier updates are not cleared",
        "fit",
        "optimizer.zero_grad()",
        "pass",
    ),
    Fault(
        "mean-over-sentences",
        "the loss is the mean over a batch's rows instead of its target tokens",
        "fit",
        "max(int(n_tokens), 1)",
        "len(batch if isinstance(batch, Tensor) else batch[0])",
    ),
    Fault(
        "rate-after-the-step",
        "the rate is set when the update is made already",
        "fit",
        'for group in optimizer.param_groups:\n            group["lr"] = rate\n        optimizer.step()',
        'optimizer.step()\n        for group in optimizer.param_groups:\n            group["lr"] = rate',
    ),
]
