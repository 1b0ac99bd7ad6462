"""Mistakes in `transformer.language.vocabulary`."""

from faults import Fault

FAULTS = [
    Fault(
        "special-tokens-in-text",
        '"</s>" in a text ends the sentence',
        "Vocabulary.__init__",
        "self.tokenizer = _tokenizer(model)",
        "self.tokenizer = _tokenizer(model)\n        self.tokenizer.add_special_tokens(list(SPECIALS))",
    ),
    Fault(
        "decode-beyond-end",
        "what stands behind the end token is decoded as well",
        "Vocabulary.decode",
        "takewhile(lambda index: index != EOS_ID, _numbers(ids))",
        "(index for index in _numbers(ids) if index != EOS_ID)",
    ),
    Fault(
        "batch-not-prepared",
        "training sees texts as they are, whatever is done to them later",
        "Vocabulary.encode_batch",
        "self.prepare(text)",
        "normalize(text)",
    ),
    Fault(
        "vocabulary-of-unprepared-text",
        "the vocabulary is learned from texts that no model will see",
        "_learn",
        "_prepared(text, preparation)",
        "normalize(text)",
    ),
]
