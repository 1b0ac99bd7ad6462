"""Mistakes in `transformer.loss`."""

from faults import Fault

FAULTS = [
    Fault(
        "smoothing-over-the-others",
        "the smoothing mass is shared by the V - 1 other tokens",
        "label_smoothed_cross_entropy",
        "label_smoothing=smoothing",
        "label_smoothing=smoothing * logits.size(-1) / max(logits.size(-1) - 1, 1)",
    ),
    Fault(
        "mean-over-padding",
        "the mean is over all targets, padding included",
        "label_smoothed_cross_entropy",
        "(targets != pad_id).sum().clamp(min=1)",
        "max(targets.numel(), 1)",
    ),
    Fault(
        "nan-where-all-is-padding",
        "where everything is padding, 0 is divided by 0",
        "label_smoothed_cross_entropy",
        ".clamp(min=1)",
        "",
    ),
    Fault(
        "half-precision-not-promoted",
        "a thousand losses are summed in half precision",
        "label_smoothed_cross_entropy",
        ".to(torch.promote_types(logits.dtype, torch.float32))",
        "",
    ),
    Fault(
        "accuracy-counts-padding",
        "padding that is predicted counts as right",
        "token_accuracy",
        " & real",
        "",
    ),
    Fault(
        "target-read-whole",
        "the model reads the token that it is to predict",
        "teacher_forced_loss",
        "tgt[:, :-1]",
        "tgt[:, 1:]",
    ),
    Fault(
        "project-bypassed",
        "the loss bypasses a subclass's own forward and projection",
        "teacher_forced_loss",
        "model(src, tgt[:, :-1])",
        "F.linear(model.decode(tgt[:, :-1], model.encode(src), model.src_mask(src)), model.output.weight)",
    ),
    Fault(
        "r-drop-forbidden-token",
        "where a token is forbidden in both passes, infinity is subtracted from itself",
        "symmetric_kl",
        ".masked_fill(log_p == log_q, 0.0)",
        "",
    ),
]
