"""Mistakes in `transformer.model`."""

from faults import Fault

FAULTS = [
    Fault(
        "encoder-layers-shared",
        "the encoder's layers are one layer n times",
        "Encoder.__init__",
        "(EncoderLayer(config) for _ in range(depth))",
        "([EncoderLayer(config)] * depth)",
    ),
    Fault(
        "biases-at-random",
        "biases start as torch initializes them",
        "initialize",
        "nn.init.zeros_(module.bias)",
        "pass",
    ),
    Fault(
        "tie-lost-when-assigned",
        "weights that are assigned make three parameters of a tied table",
        "_keep_tied",
        "nn.Parameter(state_dict[first], False)",
        "state_dict[first]",
    ),
    Fault(
        "one-module-for-three-tables",
        "a tied table is one module under three names, which functional_call overwrites for good",
        "Transformer.__init__",
        "self.tgt_embedding.weight = self.src_embedding.weight\n"
        "            self.output.weight = self.src_embedding.weight",
        "self.tgt_embedding = self.output = self.src_embedding",
    ),
    Fault(
        "output-bias",
        "the output layer has a bias",
        "Transformer.__init__",
        "nn.Linear(c.d_model, c.tgt_vocab_size, bias=False)",
        "nn.Linear(c.d_model, c.tgt_vocab_size)",
    ),
    Fault(
        "forward-without-source-mask",
        "the decoder sees the source's padding in training",
        "Transformer.forward",
        "self.src_mask(src)",
        "None",
    ),
    Fault(
        "padding-is-always-zero",
        "the mask takes 0 for padding, whatever was configured",
        "Transformer.src_mask",
        "padding_mask(src, self.config.pad_id)",
        "padding_mask(src)",
    ),
    Fault(
        "source-by-target-table",
        "source ids are looked up in the target's table",
        "Transformer.encode",
        "self.src_embedding",
        "self.tgt_embedding",
    ),
    Fault(
        "causal-with-cache-at-the-wrong-end",
        "the cached positions are taken for the last ones",
        "_visible",
        "(offset, 0)",
        "(0, offset)",
    ),
    Fault(
        "offset-one-short",
        "with a cache, tokens stand one position too early",
        "Transformer.decode",
        "(tgt), offset)",
        "(tgt), max(offset - 1, 0))",
    ),
    Fault(
        "output-uncalled",
        "a hook on the output layer is never called",
        "Transformer.project",
        "self.output(hidden)",
        "F.linear(hidden, self.output.weight)",
    ),
    Fault(
        "tap-left-in-place",
        "after one look at the maps, every pass computes them",
        "attention_tap",
        "handle.remove()",
        "pass",
    ),
]
