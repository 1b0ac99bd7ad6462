"""What a training step costs: operations, bytes, time."""

from dataclasses import dataclass
from math import ceil
from typing import Any
from transformer.model import TransformerConfig
from transformer.validation import check_type

__all__ = [
    "ModelShape",
    "Cluster",
    "Split",
    "Work",
    "ring_bytes",
    "PROGRAMS",
    "kept_bytes",
    "training_flops",
    "stage_share",
    "step_memory",
    "step_time",
]


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The sizes of a model that decide what its training takes; without an encoder, a language model's.

    Args:
        layers, encoder_layers: of the decoder, and of the encoder before it, if there is one.
        d_model, d_ff, vocab_size: widths of vectors, networks and logits.
        n_heads, n_kv_heads: attention heads, and those with keys and values of their own; 0 for all.
        tables: how many tables `[vocab_size, d_model]` are parameters of their own.
        gated, bias: whether networks have a third matrix, their gate; whether layers and norms have a bias.
    """

    layers: int
    d_model: int
    d_ff: int
    vocab_size: int
    n_heads: int
    n_kv_heads: int = 0
    encoder_layers: int = 0
    tables: int = 1
    gated: bool = False
    bias: bool = True

    @classmethod
    def of(cls, config: TransformerConfig) -> "ModelShape":
        """The shape of a `Transformer`; the target's vocabulary counts for both."""
        check_type(TransformerConfig, config=config)
        (encoder, decoder), tables = config.depths, 1 if config.tie_embeddings else 3
        sizes = config.d_model, config.d_ff, config.tgt_vocab_size, config.n_heads
        named: dict[str, Any] = dict(zip(("d_model", "d_ff", "vocab_size", "n_heads"), sizes))
        return cls(layers=decoder, encoder_layers=encoder, tables=tables, bias=config.bias, **named)

    @property
    def sublayers(self) -> tuple[int, int]:
        """How many attentions the model has, and how many networks."""
        networks = self.layers + self.encoder_layers
        return networks + self.layers * (self.encoder_layers > 0), networks

    @property
    def kv_share(self) -> float:
        """How wide keys and values are, as a share of the queries."""
        return (self.n_kv_heads or self.n_heads) / self.n_heads

    @property
    def matrices(self) -> float:
        """The numbers in the matrices of all layers."""
        attentions, networks = self.sublayers
        attention = 2 * (1 + self.kv_share) * self.d_model**2
        return attentions * attention + networks * (2 + self.gated) * self.d_model * self.d_ff

    @property
    def parameters(self) -> int:
        """The number of parameters, but for a norm on top of a stack."""
        (attentions, networks), d = self.sublayers, self.d_model
        biases = attentions * (3 + 2 * self.kv_share) * d + networks * (self.d_ff + 2 * d)  # norms' as well
        vectors = (attentions + networks) * d + self.bias * biases
        return round(self.matrices + vectors + self.tables * self.vocab_size * d)


@dataclass(frozen=True)
class Cluster:
    """Equal devices, what each of them can do, and what joins them.

    Args:
        devices, per_node: their number, and how many of them one machine holds.
        memory, flops, bandwidth: of each: bytes, operations a second, bytes of its memory a second.
        link, network: bytes a second that each can send within its machine, and out of it.
        efficiency, launch: the share of `flops` that products reach; seconds in which an operation starts.
    """

    devices: int
    memory: float
    flops: float
    bandwidth: float
    link: float
    network: float
    per_node: int = 8
    efficiency: float = 0.6
    launch: float = 1e-5

    def rate(self, group: int, stride: int = 1) -> float:
        """Bytes a second of a ring through `group` devices that lie `stride` apart."""
        return self.link if group * stride <= self.per_node else self.network


@dataclass(frozen=True)
class Split:
    """How a step is divided: data · tensor · pipeline devices.

    Args:
        data, tensor, pipeline: into how many parts batch, matrices and stack are divided.
        shard: how many of the `data` devices divide parameters, gradients and averages among them; with a
            pipeline, weights are gathered and gradients summed only once a step.
        micro, chunks: sequences that a device reads at a time; separate pieces of the stack in a stage.
        sequence: whether tensor parallelism divides norms and dropout as well, by positions.
        recompute: whether layers keep only their input, and compute the rest again.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    shard: int = 1
    micro: int = 1
    chunks: int = 1
    sequence: bool = False
    recompute: bool = False


@dataclass(frozen=True)
class Work:
    """A step's work: sequences, tokens of each (source and target), and the program that does it.

    Args:
        program: `"float32"` or `"bfloat16"`, this package's accelerated, or each with `" plain"` behind it;
            `"mixed"` for the programs of published runs, whose weights are 16-bit copies.
        fused: whether attention stores no weights.
    """

    batch: int
    length: int
    program: str = "mixed"
    fused: bool = True


def ring_bytes(size: float, group: int) -> float:
    """What each process sends while an array of `size` bytes goes once around a ring of `group`.

    A reduce-scatter and an all-gather take one such round each, an all-reduce takes both.
    """
    return size * (group - 1) / group


# Bytes kept for the backward pass by each number of a token's vector: in an attention, what tensor
# parallelism leaves whole and what it divides, and in a network; then by each hidden number. Last, the
# bytes of a number that products multiply.
PROGRAMS = {
    "float32 plain": (12, 20, 12, 4, 4),
    "float32": (9, 16, 9, 4, 4),
    "bfloat16 plain": (12, 10, 8, 2, 2),
    "bfloat16": (7, 18, 7, 2, 2),
    "mixed": (5, 8, 5, 4, 2),
}
_AT_ONCE = 2**21  # logits in a chunk of the loss


def kept_bytes(shape: ModelShape, work: Work, split: Split) -> float:
    """What the layers keep of one microbatch for its backward pass."""
    whole, divided, vectors, hidden, _ = PROGRAMS[work.program]
    (attentions, networks), t = shape.sublayers, split.tensor
    undivided = t if split.sequence else 1
    attention = shape.d_model * (whole / undivided + divided * (1 + shape.kv_share) / 2 / t)
    attention += 0.0 if work.fused else 5 * work.length * shape.n_heads / t  # scores, weights, dropout
    network = shape.d_model * vectors / undivided + hidden * (1 + shape.gated) * shape.d_ff / t
    return split.micro * work.length * (attentions * attention + networks * network)


def training_flops(shape: ModelShape, work: Work, recompute: bool = False) -> float:
    """Operations of a step, 6 for a parameter and a token, 12 `d_model` for two positions in an attention."""
    layers = 2 * shape.matrices + 4 * work.length * shape.sublayers[0] * shape.d_model
    return work.batch * work.length * ((3 + recompute) * layers + 6 * shape.vocab_size * shape.d_model)


def stage_share(shape: ModelShape, split: Split) -> tuple[float, float]:
    """Of the largest stage, its share of all layers, and the parameters of one of its devices."""
    share = split.chunks * ceil(shape.layers / (split.pipeline * split.chunks)) / shape.layers
    tables = shape.tables * shape.vocab_size * shape.d_model
    return share, (share * (shape.parameters - tables) + tables) / split.tensor


def step_memory(shape: ModelShape, work: Work, split: Split) -> dict[str, float]:
    """The bytes of a device when it holds most.

    A step of this package from one batch holds its first activations before it holds gradients: then the
    larger of the two counts, and the other is 0.
    """
    size, ours, plain = PROGRAMS[work.program][-1], work.program != "mixed", "plain" in work.program
    p, v, t, k = split.pipeline, split.chunks, split.tensor, split.shard
    n, m = split.micro * work.length, work.batch // (split.data * split.micro)  # tokens at a time, and times
    (attentions, networks), (share, own) = shape.sublayers, stage_share(shape, split)
    kept = kept_bytes(shape, work, split)
    waiting = share * min(p, m) * (1 + (p - 1) / (p * v) * (v > 1))  # microbatches' layers
    inputs = (4 if ours else 2) * n * shape.d_model * networks
    activations = waiting * inputs + kept / networks if split.recompute else waiting * kept
    if ours:  # copies of weights, in half precision or joined for one product; norms and loss at the ends
        joined = 4 * shape.d_model**2 * (2 * attentions + networks) * (not plain and n >= 128)
        activations += (2 * own if size == 2 else joined) + 16 * n * shape.d_model
    logits, table = n * shape.vocab_size / t, 4 * shape.vocab_size * shape.d_model / t
    activations += 12 * logits if plain else 12 * min(logits, _AT_ONCE) + table * (logits > _AT_ONCE)
    divided = k if p == 1 else 1
    activations += 2 * size * own / (share * (attentions + networks)) if divided > 1 else 0  # two, gathered
    weights, slopes, averages = (4, 4, 8) if ours else (2, 2, 12)
    gradients = slopes * own / divided
    if ours and m == p == 1:
        largest = max(activations, gradients + table)
        activations, gradients = (largest, 0) if largest == activations else (table, gradients)
    parts = {"parameters": weights * own / divided, "averages": averages * own / k}
    return parts | {"gradients": gradients, "activations": activations}


def step_time(shape: ModelShape, work: Work, split: Split, cluster: Cluster) -> dict[str, float]:
    """The seconds of a step, by what they pass in; what travels while devices compute counts nothing."""
    size, d, t, p, k = PROGRAMS[work.program][-1], split.data, split.tensor, split.pipeline, split.shard
    vectors = size * split.micro * work.length * shape.d_model  # bytes of a microbatch
    m = work.batch // (d * split.micro)
    (attentions, networks), (share, own) = shape.sublayers, stage_share(shape, split)
    flops = share * p * training_flops(shape, work, split.recompute) / cluster.devices
    trips = 7 if split.recompute else 5  # of what is kept, and of its gradient, to memory and back
    moved = m * share * trips * kept_bytes(shape, work, split) + 32 * own / k
    products, bandwidth = flops / (cluster.flops * cluster.efficiency), moved / cluster.bandwidth
    busy = max(products + bandwidth, m * share * (30 * attentions + 18 * networks) * cluster.launch)
    sums = m * share * (attentions + networks) * (2 + split.recompute)
    tensor = sums * 2 * ring_bytes(vectors, t) / cluster.rate(t)
    sent = m * split.chunks * 2 * vectors / t * (p > 1)
    data = 2 * ring_bytes(size * own / k, d // k) / cluster.rate(d // k, t * k)
    data += (3 * m if p == 1 else 2) * ring_bytes(size * own, k) / cluster.rate(k, t)
    return {
        "arithmetic": products,
        "bandwidth": bandwidth,
        "launches": busy - products - bandwidth,
        "tensor": tensor,
        "stages": sent / cluster.rate(p, t * d),
        "data": max(0.0, data - busy),
        "bubble": (p - 1) / (m * split.chunks) * (busy + tensor),
    }
