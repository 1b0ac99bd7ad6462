"""Mistakes in `transformer.decoding`."""

from faults import Fault

FAULTS = [
    Fault(
        "greedy-cache-keeps-who-left",
        "the remaining sentences read the keys of those that have ended",
        "greedy_search",
        "state.keep(left)",
        "state.keep(torch.arange(len(left), device=src.device))",
    ),
    Fault(
        "greedy-with-dropout",
        "dropout is on during the search",
        "greedy_search",
        "evaluating(model)",
        "torch.no_grad()",
    ),
    Fault(
        "longest-refused",
        "max_length may not equal the model's own",
        "check_search",
        "max_length > longest",
        "max_length >= longest",
    ),
    Fault(
        "tokens-not-sorted-with-scores",
        "scores are sorted, tokens stay where they were",
        "keep_best",
        "_rows(tokens, index)",
        "tokens[:, :beam_size]",
    ),
    Fault(
        "beginnings-without-scores",
        "candidates are ranked by their last token alone",
        "best_continuations",
        "alive.scores[:, :, None] + log_probs",
        "log_probs",
    ),
    Fault(
        "parent-and-token-swapped",
        "the flat index is taken apart by the beam's width",
        "best_continuations",
        "index // vocab_size, index % vocab_size",
        "index % beam_size, index // beam_size",
    ),
    Fault(
        "finished-goes-on",
        "a hypothesis that has ended is continued",
        "_finalize",
        ".masked_fill(ends, -torch.inf).topk",
        ".topk",
    ),
    Fault(
        "length-without-end",
        "the end token does not count for the length",
        "_search",
        "length_norm(length, alpha)",
        "length_norm(max(length - 1, 1), alpha)",
    ),
    Fault(
        "stops-with-first-finished",
        "a sentence's search stops when one hypothesis is finished",
        "_search",
        "(ended.scores == -torch.inf).any",
        "(ended.scores == -torch.inf).all",
    ),
    Fault(
        "absent-beginnings-expanded",
        "the search begins with K equal beginnings",
        "_start",
        "alive.scores[:, 0]",
        "alive.scores[:]",
    ),
    Fault(
        "cache-not-reordered",
        "hypotheses go on with the keys of others",
        "_search",
        "+ origin",
        "+ torch.arange(beam_size, device=src.device)",
    ),
    Fault(
        "log-probabilities-in-half-precision",
        "log-probabilities are rounded before they are summed",
        "extend_beam",
        ".log_softmax(-1, dtype=alive.scores.dtype)",
        ".log_softmax(-1).to(alive.scores.dtype)",
    ),
]
