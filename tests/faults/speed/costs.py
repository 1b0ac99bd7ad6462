"""Mistakes in `transformer.speed.costs`."""

from faults import Fault

FAULTS = [
    Fault(
        "all-reduce-in-a-star",
        "every process sends the whole array, as to a server",
        "ring_bytes",
        "size * (group - 1) / group",
        "size * (group > 1)",
    ),
    Fault(
        "ring-by-group-alone",
        "devices that lie apart are taken for neighbors in one machine",
        "Cluster.rate",
        "group * stride",
        "group",
    ),
    Fault(
        "cross-attention-forgotten",
        "a decoder layer is counted with one attention",
        "ModelShape.sublayers",
        "networks + self.layers * (self.encoder_layers > 0)",
        "networks",
    ),
    Fault(
        "keys-as-wide-as-queries",
        "heads that share keys save no parameters",
        "ModelShape.kv_share",
        "(self.n_kv_heads or self.n_heads) / self.n_heads",
        "1.0",
    ),
    Fault(
        "three-tables",
        "tied tables are counted three times",
        "ModelShape.of",
        "1 if config.tie_embeddings else 3",
        "3",
    ),
    Fault(
        "recomputation-is-free",
        "what is computed again costs nothing",
        "training_flops",
        "(3 + recompute)",
        "3",
    ),
    Fault(
        "attention-linear-in-length",
        "the products of queries with keys are left out",
        "training_flops",
        "+ 4 * work.length * shape.sublayers[0] * shape.d_model",
        "",
    ),
    Fault(
        "every-stage-waits-for-all",
        "a stage keeps all microbatches, as if each of them went forward first",
        "step_memory",
        "share * min(p, m)",
        "share * m",
    ),
    Fault(
        "moments-not-shared-out",
        "the moments of Adam are held whole by every device",
        "step_memory",
        "averages * own / k",
        "averages * own",
    ),
    Fault(
        "positions-not-shared-out",
        "with sequence parallelism, norms and dropout still keep every position",
        "kept_bytes",
        "t if split.sequence else 1",
        "1",
    ),
    Fault(
        "bubble-of-one-batch",
        "more microbatches leave the bubble as long as it was",
        "step_time",
        "(p - 1) / (m * split.chunks)",
        "(p - 1) / p",
    ),
    Fault(
        "gradients-always-waited-for",
        "nothing travels while devices compute",
        "step_time",
        "max(0.0, data - busy)",
        "data",
    ),
]
