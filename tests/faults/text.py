"""Mistakes in vocabularies and batches."""

from faults import Fault

FAULTS = [
    Fault(
        "special-tokens-in-text",
        '"</s>" in a text ends the sentence',
        "Vocabulary.__init__",
        "self.tokenizer = _tokenizer(model)",
        "self.tokenizer = _tokenizer(model)\n        self.tokenizer.add_special_tokens(list(_SPECIALS))",
    ),
    Fault(
        "decode-beyond-end",
        "what stands behind the end token is decoded as well",
        "Vocabulary.decode",
        "takewhile(lambda index: index != EOS_ID, _numbers(ids))",
        "(index for index in _numbers(ids) if index != EOS_ID)",
    ),
    Fault(
        "target-without-end",
        "targets have no end token: the model never learns to stop",
        "encode_pairs",
        "*target, EOS_ID",
        "*target",
    ),
    Fault(
        "pad-id-ignored",
        "rows are filled up with 0, whatever was asked for",
        "pad",
        ", pad_id, dtype",
        ", 0, dtype",
    ),
    Fault(
        "budget-of-source-only",
        "the target tensor may exceed the budget",
        "_by_length",
        "max(source, target)",
        "source",
    ),
    Fault(
        "last-batch-lost",
        "the sentences after the last cut are never seen",
        "_cuts",
        "[*cuts, slice(start, len(lengths))]",
        "cuts or [slice(start, len(lengths))]",
    ),
    Fault(
        "shuffled-by-chance",
        "the order comes from torch's own generator",
        "TokenBatches.indices",
        "(len(order), generator=generator)",
        "(len(order))",
    ),
]
