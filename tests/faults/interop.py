"""Mistakes in `transformer.interop`."""

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
        "_place",
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
    Fault(
        "any-file-is-opened",
        "an index may name a file outside its folder",
        "ForeignFolder._indexed",
        " or file not in self.listed",
        "",
    ),
    Fault(
        "index-not-followed",
        "files that the index does not name are read as well",
        "ForeignFolder._read_heads",
        "sorted(set(places.values()))",
        'sorted(name for name in self.listed if name.endswith(".safetensors"))',
    ),
    Fault(
        "tensor-in-any-file",
        "a tensor may be in another file than the index says, and in two",
        "ForeignFolder._read_heads",
        "places is not None and places.get(name) != file",
        "False",
    ),
    Fault(
        "tied-and-different",
        "of two tensors that are one parameter, the first is taken",
        "fitted_weights",
        "not torch.equal(theirs[first.setdefault(own, name)], theirs[name])",
        "first.setdefault(own, name) is None",
    ),
    Fault(
        "not-finite-accepted",
        "a model from elsewhere may hold what is no number",
        "fitted_weights",
        "_check_finite({name: theirs[name] for name in ours})",
        "pass",
    ),
    Fault(
        "another-model-overwritten",
        "an export replaces the configuration of any other model",
        "_whole_folder",
        "ours(read_record(path))",
        "True",
    ),
]
