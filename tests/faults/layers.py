"""Mistakes in `transformer.layers`."""

from faults import Fault

FAULTS = [
    Fault(
        "eps-ignored",
        "the norm takes torch's ε, whatever was asked for",
        "LayerNorm.forward",
        ", self.eps)",
        ")",
    ),
    Fault(
        "gelu-approximated",
        "GELU is replaced by its approximation with tanh",
        "ACTIVATIONS",
        "F.gelu",
        'lambda x: F.gelu(x, approximate="tanh")',
    ),
    Fault(
        "feed-forward-dropout-at-end",
        "dropout falls on the result instead of the hidden layer",
        "FeedForward.forward",
        "self.w_2(self.dropout(ACTIVATIONS[self.activation](self.w_1(x))))",
        "self.dropout(self.w_2(ACTIVATIONS[self.activation](self.w_1(x))))",
    ),
    Fault(
        "post-norm-inside",
        "the norm is taken of the sublayer's result instead of the sum",
        "Residual.forward",
        "self.norm(x + self.dropout(sublayer(x)))",
        "x + self.dropout(self.norm(sublayer(x)))",
    ),
    Fault(
        "residual-missing",
        "post-norm has no residual connection",
        "Residual.forward",
        "x + self.dropout(sublayer(x))",
        "self.dropout(sublayer(x))",
    ),
    Fault(
        "encoder-rates-swapped",
        "attention weights are dropped at the rate meant for the activation",
        "_attention",
        "config.attention_dropout",
        "config.activation_dropout",
    ),
    Fault(
        "encoder-keys-not-normed",
        "in pre-norm, keys and values come from before the norm",
        "EncoderLayer.forward",
        "lambda y: self.self_attention(y, y, y,",
        "lambda y, x=x: self.self_attention(y, x, x,",
    ),
    Fault(
        "cross-attention-without-memory",
        "cross-attention takes its keys from the target",
        "DecoderLayer.forward",
        "y, memory, memory, memory_mask",
        "y, y, y, None",
    ),
    Fault(
        "memory-mask-missing",
        "the decoder attends to the source's padding",
        "DecoderLayer.forward",
        "memory, memory, memory_mask",
        "memory, memory, None",
    ),
    Fault(
        "decoder-norm-shared",
        "the decoder's position-wise network uses the norm of its cross-attention",
        "DecoderLayer.forward",
        "self.feed_residual",
        "self.cross_residual",
    ),
    Fault(
        "memory-cache-grows",
        "every step appends the memory once more",
        "DecoderLayer.forward",
        "cache.hold",
        "cache.append",
    ),
]
