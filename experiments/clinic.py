"""`check_model` on right models of six libraries, and on each with faults: `python -m experiments.clinic`.

It writes transformer/records/book/clinic.json, which Chapter 16 reads: for each model, whether any check
fails; for each model and fault, which checks fail, which suspects they name, and whether the fault is
among them. All models are small and have random weights. It needs transformers, x-transformers, labml-nn and
litgpt.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import litgpt
import torch
import torch.nn.functional as F
import transformers
import x_transformers
from labml_nn.transformers import models as labml
from torch import Tensor, nn

from transformer import Transformer, TransformerConfig, accelerate, causal_mask, check_model, greedy_search
from transformer.files import write_record
from transformer.modern.language_model import LanguageModel, LanguageModelConfig
from transformer.runs.folder import run_facts
from transformer.study.model_checks import Adapted, CheckReport, decoder_only, seq2seq

RECORD = Path(__file__).resolve().parents[1] / "transformer" / "records" / "book" / "clinic.json"
V, D, HEADS, LENGTH, RATE = 20, 12, 3, 40, 0.1

# The faults, and the words with which a report has to name each.
ANYWHERE = {
    "two results": "more than one result",
    "axes swapped": "axes swapped",
    "state between calls": "state between calls",
    "dropout in evaluation": "dropout without the training flag",
    "softmax at the end": "a softmax at the end",
    "dropout left over": "a rate that does not reach all its layers",
    "target shifted twice": "target shifted inside as well",
    "squeeze": "squeeze() without an axis",
    "unused layer": "a layer that is built and not used",
    "norm over the words": "norm over words",
    "norm over the batch": "norm along the batch axis",
}
IN_DECODERS = {
    "no causal mask": "causal mask missing",
    "causal mask in training only": "in one mode only",
}
IN_ATTENTION = {
    "mask after the softmax": "after the softmax",
    "softmax over the queries": "softmax or norm over words",
}
IN_PAIRS = {
    "no padding mask": "no padding mask",
    "no padding mask in the encoder": "no padding mask in encoder",
    "no padding mask in cross-attention": "cross-attention",
    "padding mask inverted": "inverted",
    "padding mask of the first row": "mask of one row for all",
    "source not connected": "cross-attention not connected",
    "memory detached": "detach",
    "no positions in the source": "positions missing",
}
MINUS_INFINITY = {"minus infinity": "-inf in every score of a row"}
IN_PLACES = {"no positions in the target": "positions missing"}
IN_SEARCHES = {"search from another token": "start token"}
# Faults that a look from outside cannot find, and should not claim to.
NORM = {"norm with n - 1": ""}
NO_ANGLES = {"no positions, two layers": ""}


Search = Callable[[Any, Tensor, int], Tensor]


class Kind(NamedTuple):
    """A right model, and how a fault is put into it."""

    library: str
    make: Callable[[str], nn.Module]  # with a fault; "" for none
    faults: dict[str, str]
    positions: str = "absolute"
    random: bool = True  # in training mode
    search: Callable[[str], Search] | None = None


# Faults that go into any model


class Outside(nn.Module):
    """A model with a fault around it."""

    def __init__(self, model: nn.Module, fault: str) -> None:
        super().__init__()
        self.model, self.fault, self.kept = model, fault, 0.0
        self.config, self.reads_source = model.config, getattr(model, "reads_source", True)
        if fault == "unused layer":
            self.spare = nn.Linear(D, D)

    def forward(self, src: Tensor, tgt: Tensor) -> Any:
        if self.fault == "target shifted twice":
            tgt = F.pad(tgt[:, :-1], (1, 0), value=2)
        logits = self.model(src, tgt)
        if self.fault == "state between calls":
            logits, self.kept = logits + self.kept, logits.detach().mean()
        changed: dict[str, Callable[[], Any]] = {
            "two results": lambda: (logits, logits),
            "axes swapped": lambda: logits.transpose(0, 1),
            "dropout in evaluation": lambda: F.dropout(logits, RATE),
            "softmax at the end": lambda: logits.softmax(-1),
            "dropout left over": lambda: F.dropout(logits, RATE, self.training),
            "squeeze": lambda: logits.squeeze(),
        }
        return changed.get(self.fault, lambda: logits)()


def over_words(x: Tensor) -> Tensor:
    """Mean 0 and variance 1 over the words of a sentence, feature by feature."""
    return F.layer_norm(x.transpose(1, 2), x.shape[1:2]).transpose(1, 2)


def over_batch(x: Tensor) -> Tensor:
    """Mean 0 and variance 1 over the sentences of a batch."""
    return F.layer_norm(x.transpose(0, 2), x.shape[:1]).transpose(0, 2)


def with_norms(model: nn.Module, change: Callable[[Tensor], Tensor], after: bool = False) -> nn.Module:
    """Change what all norms of vectors of the model's width receive, or what they return."""

    def before_hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (change(inputs[0]), *inputs[1:]) if inputs[0].dim() == 3 else inputs

    def after_hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return change(output) if output.dim() == 3 else output

    for module in model.modules():
        if "Norm" in type(module).__name__:
            if after:
                module.register_forward_hook(after_hook)
            else:
                module.register_forward_pre_hook(before_hook)
    return model


def with_fault(kind: Kind, fault: str) -> nn.Module:
    """The model of a kind, with a fault or none."""
    torch.manual_seed(1)
    norms = {"norm over the words": over_words, "norm over the batch": over_batch}
    if fault in norms:
        return with_norms(kind.make(""), norms[fault])
    if fault == "norm with n - 1":  # every vector is shorter by the same factor
        return with_norms(kind.make(""), lambda x: x * math.sqrt((D - 1) / D), after=True)
    return Outside(kind.make(""), fault) if fault in ANYWHERE else kind.make(fault)


def late_mask(query: Tensor, key: Tensor, value: Tensor, hidden: Tensor | None) -> Tensor:
    """Attention whose weights are multiplied by the mask, after the softmax."""
    weights = (query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))).softmax(-1)
    return (weights if hidden is None else weights.masked_fill(hidden, 0.0)) @ value


def softmax_over_queries(query: Tensor, key: Tensor, value: Tensor, hidden: Tensor | None) -> Tensor:
    """Attention whose weights sum to 1 over the queries."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    return (scores if hidden is None else scores.masked_fill(hidden, -1e9)).softmax(-2) @ value


def minus_infinity(query: Tensor, key: Tensor, value: Tensor, hidden: Tensor | None) -> Tensor:
    """Attention that adds minus infinity, also where nothing is left."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    return (scores if hidden is None else scores.masked_fill(hidden, -math.inf)).softmax(-1) @ value


ATTENTIONS = {
    "mask after the softmax": late_mask,
    "softmax over the queries": softmax_over_queries,
    "minus infinity": minus_infinity,
}


def faulty_masks(right: Tensor, fault: str) -> tuple[Tensor, Tensor]:
    """Masks of the source for the encoder and for cross-attention, given the right one."""
    everything, first = torch.ones_like(right), right[:1].expand_as(right)
    masks = {
        "no padding mask": (everything, everything),
        "no padding mask in the encoder": (everything, right),
        "no padding mask in cross-attention": (right, everything),
        "padding mask inverted": (~right, ~right),
        "padding mask of the first row": (first, first),
    }
    return masks.get(fault, (right, right))


def faulty_memory(memory: Tensor, fault: str) -> Tensor:
    """What the decoder gets to read."""
    changed = {"memory detached": memory.detach(), "source not connected": torch.zeros_like(memory)}
    return changed.get(fault, memory)


def hides_future(fault: str, training: bool) -> bool:
    """Whether the causal mask is applied in this mode."""
    return fault != "no causal mask" and (training or fault != "causal mask in training only")


class Patched(nn.Module):
    """A model during whose calls something in its library is replaced."""

    def __init__(self, model: nn.Module, name: str, wrong: Any, evaluation_only: bool = False) -> None:
        super().__init__()
        self.model, self.name, self.wrong, self.evaluation_only = model, name, wrong, evaluation_only
        self.config, self.reads_source = model.config, getattr(model, "reads_source", True)

    def forward(self, src: Tensor, tgt: Tensor) -> Any:
        right = self.evaluation_only and self.training
        with nullcontext() if right else patch(self.name, self.wrong):
            return self.model(src, tgt)


# Ours


class Meddled(Transformer):
    """Our model with a fault in one of its methods."""

    fault = ""

    def encode(self, src: Tensor) -> Tensor:
        mask, _ = faulty_masks(self.src_mask(src), self.fault)
        x = self.src_embedding(src)
        memory = self.encoder(x if self.fault == "no positions in the source" else self.positions(x), mask)
        return faulty_memory(memory, self.fault)

    def decode(
        self, tgt: Tensor, memory: Tensor, src_mask: Tensor | None = None, cache: Any = None
    ) -> Tensor:
        _, mask = faulty_masks(src_mask, self.fault)
        x = self.tgt_embedding(tgt)
        x = x if self.fault == "no positions in the target" else self.positions(x)
        causal = causal_mask(tgt.size(1))
        if not hides_future(self.fault, self.training):
            causal[:] = True
        return self.decoder(x, memory, causal, mask)


def our_attention(fault: str) -> Callable[..., Tensor]:
    """A wrong attention with the arguments of ours."""

    def attention(
        query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, dropout: float = 0.0
    ):
        return ATTENTIONS[fault](query, key, value, None if mask is None else ~mask)

    return attention


def our_model(fault: str, fast: bool = False, **changes: Any) -> nn.Module:
    """A Transformer of this package."""
    config = TransformerConfig(
        V, V, d_model=D, n_heads=HEADS, n_layers=2, d_ff=24, max_length=LENGTH, dropout=RATE, **changes
    )
    if fast:
        return accelerate(Transformer(config))
    model = Meddled(config) if fault else Transformer(config)
    model.fault = fault
    if fault in ATTENTIONS:
        return Patched(model, "transformer.attention.fused_attention", our_attention(fault))
    return model


def our_search(fault: str) -> Search:
    """Greedy search, with the right start token or another."""

    @torch.no_grad()
    def search(model: Transformer, src: Tensor, max_length: int) -> Tensor:
        tokens = torch.full((len(src), 1), 5)
        model.eval()
        for _ in range(max_length):
            tokens = torch.cat([tokens, model(src, tokens)[:, -1:].argmax(-1)], dim=1)
        return tokens[:, 1:]

    return search if fault else greedy_search


def our_language_model(fault: str, positions: str = "rotary") -> nn.Module:
    """A decoder-only model of this package."""
    positions = "none" if fault == "no positions, two layers" else positions
    config = LanguageModelConfig(V, d_model=D, n_heads=HEADS, n_layers=2, d_ff=24, positions=positions)
    model = decoder_only(LanguageModel(config))
    if fault in ATTENTIONS:
        return Patched(model, "transformer.modern.language_model.fused_attention", our_attention(fault))
    if fault in IN_DECODERS:
        name, only = "transformer.modern.language_model.sliding_mask", fault != "no causal mask"
        everything = lambda length, *rest, **more: torch.ones(1, 1, length, length, dtype=torch.bool)
        return Patched(model, name, everything, only)
    return model


# torch.nn


class TorchPair(nn.Module):
    """`torch.nn.Transformer` between tables. A fast path of theirs adds minus infinity to even heads."""

    def __init__(self, fault: str, norm_first: bool = False) -> None:
        super().__init__()
        heads = 4 if fault == "minus infinity" else HEADS
        options: dict[str, Any] = {"dim_feedforward": 24, "batch_first": True, "norm_first": norm_first}
        layer = nn.TransformerEncoderLayer(D, heads, **options)
        encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(D), enable_nested_tensor=False)
        self.core = nn.Transformer(D, heads, num_decoder_layers=2, custom_encoder=encoder, **options)
        self.tables = nn.ModuleList(nn.Embedding(V, D) for _ in range(2))
        self.output, self.fault, self.config = nn.Linear(D, V), fault, None
        placed = [fault != f"no positions in the {side}" for side in ("source", "target")]
        self.positions = nn.ParameterList(nn.Parameter(torch.randn(LENGTH, D) * yes, yes) for yes in placed)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        x, y = (
            table(ids) + positions[: ids.size(1)]
            for table, ids, positions in zip(self.tables, (src, tgt), self.positions, strict=True)
        )
        # True = may not attend, in all of their masks.
        encoder_mask, cross_mask = (~mask for mask in faulty_masks(src != 0, self.fault))
        causal = None
        if hides_future(self.fault, self.training):
            causal = ~causal_mask(tgt.size(1))[0, 0]
        memory = faulty_memory(self.core.encoder(x, src_key_padding_mask=encoder_mask), self.fault)
        return self.output(self.core.decoder(y, memory, tgt_mask=causal, memory_key_padding_mask=cross_mask))


# Hugging Face's transformers


class Nothing(nn.Module):
    """A table of positions, or of biases, that adds nothing."""

    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.table = table.requires_grad_(False)

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        return 0 * self.table(*inputs, **named)


class NoAngles(nn.Module):
    """Cosines and sines of an angle of 0."""

    def __init__(self, angles: nn.Module) -> None:
        super().__init__()
        self.angles = angles

    def forward(self, *inputs: Any, **named: Any) -> tuple[Tensor, Tensor]:
        cos, sin = self.angles(*inputs, **named)
        return torch.ones_like(cos), torch.zeros_like(sin)


def hugging_face_attention(fault: str) -> Callable[..., tuple[Tensor, None]]:
    """A wrong attention with the arguments of theirs."""

    def attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **more: Any,
    ) -> tuple[Tensor, None]:
        groups = query.size(1) // key.size(1)
        key, value = (one.repeat_interleave(groups, dim=1) for one in (key, value))
        hidden = None if attention_mask is None else attention_mask < -1e4
        return ATTENTIONS[fault](query, key, value, hidden).transpose(1, 2).contiguous(), None

    return attention


def patched_hugging_face(model: nn.Module, fault: str) -> nn.Module:
    """Their model, with a fault in its attention or in its masks."""
    module = type(model.model).__module__
    if fault in ATTENTIONS:
        return Patched(model, f"{module}.eager_attention_forward", hugging_face_attention(fault))
    if fault in IN_DECODERS:
        nothing = lambda *inputs, **named: None
        return Patched(model, f"{module}.create_causal_mask", nothing, fault != "no causal mask")
    return model


def meddled_call(model: Any, src: Tensor, tgt: Tensor, fault: str) -> Any:
    """A call of an encoder–decoder of theirs, with wrong masks or wrong memory."""
    encoder_mask, cross_mask = (mask.long() for mask in faulty_masks(src != 0, fault))
    memory = model.get_encoder()(input_ids=src, attention_mask=encoder_mask)
    memory.last_hidden_state = faulty_memory(memory.last_hidden_state, fault)
    return model(encoder_outputs=memory, attention_mask=cross_mask, decoder_input_ids=tgt)


def hugging_face_pair(fault: str, name: str, **sizes: Any) -> nn.Module:
    """An encoder–decoder of Hugging Face's transformers."""
    special = {"pad_token_id": 0, "bos_token_id": 2, "decoder_start_token_id": 2, "eos_token_id": 3}
    special["forced_eos_token_id"] = None
    config = getattr(transformers, f"{name}Config")(
        vocab_size=V, d_model=D, **special, **sizes, attn_implementation="eager"
    )
    classes = {"T5": "T5ForConditionalGeneration", "Marian": "MarianMTModel"}
    theirs = getattr(transformers, classes.get(name, f"{name}ForConditionalGeneration"))(config)
    lost = "no positions in the target" if fault in NO_ANGLES else fault
    for side, stack in (("source", theirs.get_encoder()), ("target", theirs.get_decoder())):
        if lost == f"no positions in the {side}":
            place, table = stack, "embed_positions"
            if name == "T5":
                place, table = stack.block[0].layer[0].SelfAttention, "relative_attention_bias"
            setattr(place, table, Nothing(getattr(place, table)))
    if fault in IN_PAIRS and "positions" not in fault:
        return Adapted(theirs, partial(meddled_call, fault=fault), pad_id=0)
    return patched_hugging_face(seq2seq(theirs), fault)


def hugging_face_search(fault: str) -> Search:
    """Their greedy search, with the right start token or another."""

    def search(model: Any, src: Tensor, max_length: int) -> Tensor:
        start = {"decoder_start_token_id": 5} if fault else {}
        options = {"max_new_tokens": max_length, "num_beams": 1, "do_sample": False, **start}
        return model.eval().model.generate(src, attention_mask=(src != 0).long(), **options)[:, 1:]

    return search


def hugging_face_decoder(fault: str, name: str, **sizes: Any) -> nn.Module:
    """A decoder-only model of Hugging Face's transformers."""
    special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    config = getattr(transformers, f"{name}Config")(
        vocab_size=V, **special, **sizes, attn_implementation="eager"
    )
    suffix = "LMHeadModel" if name == "GPT2" else "ForCausalLM"
    theirs = getattr(transformers, f"{name}{suffix}")(config)
    if fault == "no positions in the target":
        theirs.transformer.wpe = Nothing(theirs.transformer.wpe)
    if fault == "no positions, two layers":
        theirs.model.rotary_emb = NoAngles(theirs.model.rotary_emb)
    return patched_hugging_face(decoder_only(theirs), fault)


# x-transformers


class XPair(nn.Module):
    """An encoder and a decoder of x-transformers."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        sizes: dict[str, Any] = {"dim": D, "depth": 2, "heads": HEADS, "attn_dim_head": 4, "ff_dropout": RATE}
        layers = x_transformers.x_transformers.AttentionLayers
        whole: dict[str, Any] = {"num_tokens": V, "max_seq_len": LENGTH}
        self.encoder = x_transformers.TransformerWrapper(
            **whole,
            use_abs_pos_emb=fault != "no positions in the source",
            attn_layers=layers(causal=False, **sizes),
            to_logits=nn.Identity(),
        )
        self.decoder = x_transformers.TransformerWrapper(
            **whole,
            use_abs_pos_emb=fault != "no positions in the target",
            attn_layers=layers(causal=fault != "no causal mask", cross_attend=True, **sizes),
        )
        self.fault, self.config = fault, None

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        encoder_mask, cross_mask = faulty_masks(src != 0, self.fault)
        memory = faulty_memory(self.encoder(src, mask=encoder_mask, return_embeddings=True), self.fault)
        return self.decoder(tgt, context=memory, context_mask=cross_mask)


def x_decoder(fault: str, positions: str = "rotary_pos_emb") -> nn.Module:
    """A decoder-only model of x-transformers."""
    placed = {} if fault == "no positions, two layers" else {positions: True}
    layers = x_transformers.x_transformers.AttentionLayers(
        dim=D, depth=2, heads=HEADS, attn_dim_head=8, causal=fault != "no causal mask", **placed
    )
    whole: dict[str, Any] = {"num_tokens": V, "max_seq_len": LENGTH, "use_abs_pos_emb": False}
    return decoder_only(x_transformers.TransformerWrapper(**whole, attn_layers=layers))


# labml-nn and litgpt


class LabPair(nn.Module):
    """An encoder and a decoder of labml-nn, in whose tensors the words come first."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        attention = partial(labml.MultiHeadAttention, HEADS, D, RATE)
        layer = partial(labml.TransformerLayer, d_model=D, dropout_prob=RATE)
        reads = layer(self_attn=attention(), feed_forward=labml.FeedForward(D, 24, RATE))
        writes = layer(
            self_attn=attention(), src_attn=attention(), feed_forward=labml.FeedForward(D, 24, RATE)
        )
        tables = [labml.EmbeddingsWithPositionalEncoding(D, V, LENGTH) for _ in range(2)]
        for side, table in zip(("source", "target"), tables, strict=True):
            if fault == f"no positions in the {side}":
                table.positional_encodings.zero_()
        stacks = labml.Encoder(reads, 2), labml.Decoder(writes, 2)
        self.model = labml.EncoderDecoder(*stacks, *tables, labml.Generator(V, D))
        self.fault, self.config = fault, None

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        masks = faulty_masks(src != 0, self.fault)
        if self.fault != "minus infinity":  # or else the library's softmax is NaN for a source without a word
            masks = tuple(mask | ~mask.any(1, keepdim=True) for mask in masks)
        encoder_mask, cross_mask = (mask.T[None] for mask in masks)
        causal = torch.ones(tgt.size(1), tgt.size(1), dtype=torch.bool)
        if self.fault != "no causal mask":
            causal = causal.tril()
        memory = faulty_memory(self.model.encode(src.T, encoder_mask), self.fault)
        states = self.model.decode(memory, cross_mask, tgt.T, causal[:, :, None])
        return self.model.generator(states).transpose(0, 1)


def seeing_all(attention: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, mask: Any = None) -> Tensor:
    """Attention from every place to every place."""
    return attention(q, k, v, torch.ones(q.size(2), k.size(2), dtype=torch.bool))


def lit_decoder(fault: str) -> nn.Module:
    """A decoder-only model of litgpt."""
    sizes = {"n_layer": 2, "n_head": HEADS, "n_embd": D, "n_query_groups": 1, "intermediate_size": 24}
    parts = {"norm_class_name": "RMSNorm", "mlp_class_name": "LLaMAMLP", "rotary_percentage": 1.0}
    whole = {"name": "small", "block_size": LENGTH, "vocab_size": V, "padded_vocab_size": V, "bias": False}
    model = litgpt.GPT(litgpt.Config(**whole, **sizes, **parts, parallel_residual=False))
    if fault == "no positions, two layers":
        model.cos.fill_(1.0)
        model.sin.zero_()
    if fault == "no causal mask":
        for block in model.transformer.h:
            attention = block.attn.scaled_dot_product_attention
            block.attn.scaled_dot_product_attention = partial(seeing_all, attention)
    return decoder_only(model)


# All of them

OUTSIDE = ANYWHERE | NORM
NO_CAUSAL = {"no causal mask": IN_DECODERS["no causal mask"]}
X_DECODER = ANYWHERE | NO_CAUSAL | NORM | NO_ANGLES
PAIR = ANYWHERE | IN_DECODERS | IN_PAIRS | NORM
DECODER = ANYWHERE | IN_DECODERS | NORM
ATTENTION = IN_ATTENTION | MINUS_INFINITY
STACKS = {
    f"{side}_{name}": value
    for side in ("encoder", "decoder")
    for name, value in {"layers": 2, "attention_heads": HEADS, "ffn_dim": 24}.items()
}
BART = STACKS | {"max_position_embeddings": LENGTH}
T5 = {"d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": HEADS, "relative_attention_num_buckets": 8}
LLAMA = {
    "hidden_size": D, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": HEADS,
    "num_key_value_heads": 1, "head_dim": 4, "max_position_embeddings": LENGTH, "attention_dropout": RATE,
}  # fmt: skip
GPT2 = {"n_embd": D, "n_layer": 2, "n_head": HEADS, "n_positions": LENGTH}
OURS, TORCH, THEIRS, X = "transformer", "torch", "transformers", "x-transformers"
LAB, LIT = "labml-nn", "litgpt"
# Not for tensors in which the words come first.
OVER_AXES = ("norm over the words", "norm over the batch")
X_PAIR = ANYWHERE | NO_CAUSAL | IN_PAIRS | IN_PLACES | NORM


def pair(name: str, sizes: dict[str, Any], positions: str = "absolute") -> Kind:
    """A kind of encoder–decoder of Hugging Face's."""
    make = partial(hugging_face_pair, name=name, **sizes)
    faults = PAIR | ATTENTION | IN_SEARCHES | (IN_PLACES if positions == "absolute" else NO_ANGLES)
    return Kind(THEIRS, make, faults, positions, search=hugging_face_search)


def alone(name: str, sizes: dict[str, Any], positions: str, random: bool, more: dict[str, str]) -> Kind:
    """A kind of decoder-only model of Hugging Face's."""
    make = partial(hugging_face_decoder, name=name, **sizes)
    return Kind(THEIRS, make, DECODER | IN_ATTENTION | more, positions, random)


KINDS: dict[str, Kind] = {
    "Transformer, post-norm": Kind(
        OURS, our_model, PAIR | IN_PLACES | ATTENTION | IN_SEARCHES, search=our_search
    ),
    "Transformer, pre-norm": Kind(
        OURS,
        partial(our_model, norm_first=True),
        PAIR | IN_PLACES | ATTENTION | IN_SEARCHES,
        search=our_search,
    ),
    "FastTransformer": Kind(OURS, partial(our_model, fast=True), OUTSIDE | IN_SEARCHES, search=our_search),
    "LanguageModel, rotary": Kind(
        OURS, our_language_model, DECODER | IN_ATTENTION | NO_ANGLES, "relative", False
    ),
    "LanguageModel, ALiBi": Kind(
        OURS, partial(our_language_model, positions="alibi"), DECODER | NO_ANGLES, "relative", False
    ),
    "LanguageModel, none": Kind(OURS, partial(our_language_model, positions="none"), DECODER, "none", False),
    "nn.Transformer, post-norm": Kind(TORCH, TorchPair, PAIR | IN_PLACES | MINUS_INFINITY),
    "nn.Transformer, pre-norm": Kind(TORCH, partial(TorchPair, norm_first=True), PAIR | IN_PLACES),
    "Marian": pair("Marian", BART),
    "BART": pair("Bart", BART),
    "T5": pair("T5", T5, "relative"),
    "GPT-2": alone("GPT2", GPT2, "absolute", True, IN_PLACES),
    "Llama": alone("Llama", LLAMA, "relative", True, NO_ANGLES),
    "Qwen3": alone("Qwen3", LLAMA, "relative", True, NO_ANGLES),
    "encoder and decoder": Kind(X, XPair, X_PAIR),
    "decoder, rotary": Kind(X, x_decoder, X_DECODER, "relative", False),
    "decoder, T5's biases": Kind(
        X, partial(x_decoder, positions="rel_pos_bias"), X_DECODER, "relative", False
    ),
    "annotated encoder and decoder": Kind(
        LAB,
        LabPair,
        {name: words for name, words in (X_PAIR | MINUS_INFINITY).items() if name not in OVER_AXES},
    ),
    "GPT, rotary": Kind(LIT, lit_decoder, X_DECODER, "relative", False),
}


def examined(kind: Kind, fault: str, told: bool = True) -> CheckReport:
    """What `check_model` says of a model, with or without a word from its owner."""
    model = with_fault(kind, fault)
    if not told:
        return check_model(model, V, pad_id=0, bos_id=2)
    random = kind.random and fault != "dropout left over"
    search = kind.search and kind.search(fault if fault in IN_SEARCHES else "")
    return check_model(model, V, pad_id=0, bos_id=2, dropout=random, positions=kind.positions, search=search)


def named(report: CheckReport) -> list[str]:
    """All suspects that a report names."""
    return [
        suspect
        for result in report.results
        for suspect in result.suspects.replace("; ", ", ").split(", ")
        if result.suspects
    ]


def tried(name: str, kind: Kind) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What the record holds of a model: the right one, and each fault in it."""
    told, untold = examined(kind, ""), examined(kind, "", told=False)
    where = {"library": kind.library, "model": name}
    right = where | {
        "failures": told.failures,
        "failures without a word": untold.failures,
        "skipped": [result.name for result in told.results if result.verdict == "skipped"],
    }
    faults = []
    for fault, words in kind.faults.items():
        report = examined(kind, fault)
        suspects = named(report)
        found = bool(words) and any(words in suspect for suspect in suspects)
        faults.append(
            where
            | {"fault": fault, "visible": bool(words), "words": words}
            | {"failures": report.failures, "suspects": suspects, "named": found}
        )
    return right, faults


def main() -> None:
    """Write the record."""
    transformers.logging.set_verbosity_error()
    models, faults = [], []
    for name, kind in KINDS.items():
        right, wrong = tried(name, kind)
        models, faults = [*models, right], [*faults, *wrong]
        print(name, right["failures"], sum(fault["named"] for fault in wrong), "of", len(wrong), flush=True)
    facts = run_facts("cpu")
    for library in ("transformers", "x-transformers", "labml-nn", "litgpt"):
        facts["versions"][library] = metadata.version(library)
    write_record(RECORD, {**facts, "models": models, "faults": faults})


if __name__ == "__main__":
    main()
