"""Mistakes in `transformer.exchange.torch`."""

from faults import Fault

FAULTS = [
    Fault(
        "second-norm-of-an-encoder",
        "a decoder's second norm is taken for the last one, as in an encoder",
        "_DECODER_PARTS",
        '"cross_residual.norm"',
        '"feed_residual.norm"',
    ),
    Fault(
        "weights-shared",
        "training the copy changes the original",
        "place_copy",
        "value.detach().clone(memory_format=torch.contiguous_format)",
        "value.detach()",
    ),
    Fault(
        "queries-and-keys-exchanged",
        "the first third of torch's matrix is taken for the keys",
        "_attention_from_torch",
        "(ours.w_q, ours.w_k, ours.w_v)",
        "(ours.w_k, ours.w_q, ours.w_v)",
    ),
    Fault(
        "extra-keys-ignored",
        "add_bias_kv is taken over without its keys",
        "_attention_from_torch",
        "theirs.bias_k is not None or theirs.bias_v is not None",
        "theirs.bias_k is not None and theirs.bias_v is None",
    ),
    Fault("epsilon-forgotten", "norms keep the default ε", "_fill", "target.eps = source.eps", "pass"),
    Fault(
        "mode-forgotten",
        "every part of the copy is in training mode",
        "_fill",
        ".train(source.training)",
        ".train()",
    ),
    Fault(
        "approximate-gelu-accepted",
        "the approximation of GELU by tanh passes for the exact one",
        "_activation_name",
        ' and function.approximate == "none"',
        "",
    ),
]
