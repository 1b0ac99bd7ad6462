"""`check_model` on more kinds of models, right and with a fault: `python -m experiments.clinic_kinds`.

It writes transformer/records/book/clinic-kinds.json, which Chapter 16 reads: for each of fifteen models
what it returns, which checks fail, which fail with one planted fault, and whether the suspects name it. The
words to be used were fixed beforehand. All models are small, with random weights. It needs transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from transformer import Transformer, TransformerConfig, check_model
from transformer.files import write_record
from transformer.modern.parts import RoutedFeedForward
from transformer.runs.folder import run_facts
from transformer.study.checks import Adapted, decoder_only, encoder_only, seq2seq

RECORD = Path(__file__).resolve().parents[1] / "transformer" / "records" / "book" / "clinic-kinds.json"
SEED, V, D, HEADS, LENGTH = 1, 20, 12, 3, 40


class Kind(NamedTuple):
    """A right model, and one fault that can be put into it."""

    library: str
    returns: str
    make: Callable[[bool], nn.Module]  # with the fault, or without
    fault: str
    words: str  # with which a report has to name it


# -------------------------------------------------------------------------------------------------
# Ours, torch.nn, and a model in the manner of nanoGPT
# -------------------------------------------------------------------------------------------------


@dataclass
class Answer:
    """Logits under another name, and the vectors from which they come."""

    scores: Tensor
    hidden: Tensor


class Ours(Transformer):
    """A Transformer that returns a dataclass; with the fault, its decoder sees everything."""

    faulty = False

    def forward(self, src: Tensor, tgt: Tensor) -> Any:
        memory, mask = self.encode(src), self.src_mask(src)
        hidden = self.decode(tgt, memory, mask)
        if self.faulty:
            hidden = self.decoder(self.positions(self.tgt_embedding(tgt)), memory, None, mask)
        return Answer(self.project(hidden), hidden)


class Avoided(nn.Linear):
    """A router that never chooses its last expert."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).index_fill(-1, torch.tensor([self.out_features - 1]), -torch.inf)


def ours(faulty: bool, routed: bool = False) -> nn.Module:
    """A Transformer of this package, dense or with eight experts for each network."""
    config = TransformerConfig(V, V, d_model=D, n_heads=HEADS, n_layers=2, d_ff=24, max_length=LENGTH)
    if not routed:
        model = Ours(config)
        model.faulty = faulty
        return model
    model = Transformer(config)
    for layer in (*model.encoder.layers, *model.decoder.layers):
        layer.feed_forward = RoutedFeedForward(D, 24)
    if faulty:
        model.encoder.layers[0].feed_forward.router = Avoided(D, 8, bias=False)
    return model


class TorchPair(nn.Module):
    """`torch.nn.Transformer` that returns a dictionary; with the fault, its encoder reads padding."""

    def __init__(self, faulty: bool) -> None:
        super().__init__()
        self.faulty, self.table = faulty, nn.Embedding(V, D)
        self.positions, self.output = nn.Parameter(torch.randn(LENGTH, D)), nn.Linear(D, V)
        self.core = nn.Transformer(D, HEADS, 1, 1, 24, batch_first=True)

    def forward(self, src: Tensor, tgt: Tensor) -> dict[str, Tensor]:
        S, T, padding = src.size(1), tgt.size(1), src == 0
        hidden = self.core(
            self.table(src) + self.positions[:S],
            self.table(tgt) + self.positions[:T],
            tgt_mask=torch.ones(T, T, dtype=torch.bool).triu(1),
            src_key_padding_mask=None if self.faulty else padding,
            memory_key_padding_mask=padding,
        )
        return {"hidden": hidden, "scores": self.output(hidden)}


class TorchEncoder(nn.Module):
    """`torch.nn.TransformerEncoder`, which predicts words in their places; with the fault, unmasked."""

    def __init__(self, faulty: bool) -> None:
        super().__init__()
        self.faulty, self.table, self.output = faulty, nn.Embedding(V, D), nn.Linear(D, V)
        self.positions = nn.Parameter(torch.randn(LENGTH, D))
        layer = nn.TransformerEncoderLayer(D, HEADS, 24, batch_first=True)
        self.core = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids) + self.positions[: ids.size(1)]
        return self.output(self.core(x, src_key_padding_mask=None if self.faulty else ids == 0))


class AsNanoGPT(nn.Module):
    """Only the last position's logits without targets; with the fault, no mask where there are some."""

    def __init__(self, faulty: bool) -> None:
        super().__init__()
        self.faulty, self.table, self.head = faulty, nn.Embedding(V, D), nn.Linear(D, V, bias=False)
        self.positions = nn.Embedding(LENGTH, D)
        layer = nn.TransformerEncoderLayer(D, HEADS, 24, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, nn.LayerNorm(D), enable_nested_tensor=False)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        T = idx.size(1)
        x = self.table(idx) + self.positions(torch.arange(T))
        unmasked = self.faulty and targets is not None
        x = self.blocks(x, mask=None if unmasked else torch.ones(T, T, dtype=torch.bool).triu(1))
        if targets is None:
            return self.head(x[:, [-1], :]), None
        logits = self.head(x)
        return logits, F.cross_entropy(logits.view(-1, V), targets.reshape(-1))


# -------------------------------------------------------------------------------------------------
# Hugging Face's transformers
# -------------------------------------------------------------------------------------------------


class Patched(nn.Module):
    """A model during whose calls a function of its library returns nothing."""

    def __init__(self, model: Adapted, name: str) -> None:
        super().__init__()
        self.model, self.config = model, model.config
        self.reads_source, self.reads_target = model.reads_source, model.reads_target
        self.name = f"{type(model.model).__module__}.{name}"

    def forward(self, src: Tensor, tgt: Tensor) -> Any:
        with patch(self.name, lambda *inputs, **named: None):
            return self.model(src, tgt)


def theirs(name: str, kind: str, **sizes: Any) -> Any:
    """A model of Hugging Face's transformers, with random weights."""
    special = {"pad_token_id": 0, "bos_token_id": 2, "decoder_start_token_id": 2, "eos_token_id": 3}
    config = getattr(transformers, f"{name}Config")(vocab_size=V, **special, **sizes)
    config._attn_implementation = "eager"
    return getattr(transformers, f"{name}{kind}")(config)


STACKS = {
    f"{side}_{size}": value
    for side in ("encoder", "decoder")
    for size, value in {"layers": 2, "attention_heads": HEADS, "ffn_dim": 24}.items()
}
BART = {"d_model": D, "max_position_embeddings": LENGTH} | STACKS
T5 = {"d_model": D, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": HEADS}
SWITCH = T5 | {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "num_experts": 4}
BERT = {"hidden_size": D, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": HEADS}
LLAMA = BERT | {"num_key_value_heads": 1, "head_dim": 4}
MIXTRAL = LLAMA | {"num_local_experts": 4, "num_experts_per_tok": 2}


def bart(faulty: bool) -> nn.Module:
    """Returns tuples; with the fault, what goes from its encoder to its decoder has no gradient."""
    model = theirs("Bart", "ForConditionalGeneration", **BART)

    def stop(module: Any, inputs: Any, output: Any) -> Any:
        output.last_hidden_state = output.last_hidden_state.detach()
        return output

    def call(model: Any, src: Tensor, tgt: Tensor) -> Any:
        return model(src, (src != 0).long(), tgt, return_dict=False)

    if faulty:
        model.model.encoder.register_forward_hook(stop)
    return Adapted(model, call, pad_id=0)


def t5(faulty: bool) -> nn.Module:
    """With the fault, its masks of the source are not made."""
    model = seq2seq(theirs("T5", "ForConditionalGeneration", **T5))
    return Patched(model, "create_bidirectional_mask") if faulty else model


def marian(faulty: bool) -> nn.Module:
    """Never writes padding; with the fault, it may in training."""
    model = theirs("Marian", "MTModel", **BART)
    model.final_logits_bias[0, 0] = -torch.inf

    def lifts(module: Any, inputs: Any, output: Any) -> Any:
        output.logits = output.logits.nan_to_num(neginf=0.0) if module.training else output.logits
        return output

    if faulty:
        model.register_forward_hook(lifts)
    return model


def pegasus(faulty: bool) -> nn.Module:
    """With the fault, its encoder has no positions."""
    model = theirs("Pegasus", "ForConditionalGeneration", **BART)
    if faulty:
        nowhere = lambda module, inputs, output: torch.zeros_like(output)
        model.model.encoder.embed_positions.register_forward_hook(nowhere)
    return model


def switch(faulty: bool) -> nn.Module:
    """With the fault, one of its experts is never chosen."""
    model = theirs("SwitchTransformers", "ForConditionalGeneration", **SWITCH)
    (router, *_) = (module for module in model.modules() if type(module).__name__.endswith("Top1Router"))
    if faulty:
        avoid = lambda module, inputs, output: output.index_fill(-1, torch.tensor([3]), -1e9)
        router.classifier.register_forward_hook(avoid)
    return model


def mixtral(faulty: bool) -> nn.Module:
    """The same, though its experts share their parameters."""
    model = theirs("Mixtral", "ForCausalLM", **MIXTRAL)

    def avoid(module: Any, inputs: Any, output: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return *output[:2], output[2].clamp(max=2)

    if faulty:
        model.model.layers[0].mlp.gate.register_forward_hook(avoid)
    return decoder_only(model)


def gpt2(faulty: bool) -> nn.Module:
    """With the fault, its causal mask is not made."""
    sizes = {"n_embd": D, "n_layer": 2, "n_head": HEADS, "n_positions": LENGTH}
    model = decoder_only(theirs("GPT2", "LMHeadModel", **sizes))
    return Patched(model, "create_causal_mask") if faulty else model


def llama(faulty: bool) -> nn.Module:
    """Returns tuples; with the fault, probabilities."""
    model = theirs("Llama", "ForCausalLM", **LLAMA)
    if faulty:
        model.lm_head.register_forward_hook(lambda module, inputs, output: output.softmax(-1))
    return Adapted(model, lambda model, src, tgt: model(tgt, return_dict=False), reads_source=False)


def bert(faulty: bool) -> nn.Module:
    """With the fault, it has no positions."""
    model = theirs("Bert", "ForMaskedLM", **BERT)
    if faulty:
        nowhere = lambda module, inputs, output: torch.zeros_like(output)
        model.bert.embeddings.position_embeddings.register_forward_hook(nowhere)
    return encoder_only(model)


def roberta(faulty: bool) -> nn.Module:
    """With the fault, a word sees only those before it."""
    return encoder_only(theirs("Roberta", "ForMaskedLM", is_decoder=faulty, **BERT))


OURS, TORCH, NANO, HF = "transformer", "torch", "as nanoGPT", "transformers"
UNUSED, MASK = "a layer that is built and not used", "no padding mask"
KINDS: dict[str, Kind] = {
    "Transformer": Kind(OURS, "dataclass", ours, "no causal mask", "causal mask missing"),
    "Transformer, eight experts": Kind(
        OURS, "tensor", partial(ours, routed=True), "an expert never chosen", UNUSED
    ),
    "nn.Transformer": Kind(TORCH, "dictionary", TorchPair, "no padding mask in the encoder", MASK),
    "nn.TransformerEncoder": Kind(
        TORCH, "tensor", lambda faulty: encoder_only(TorchEncoder(faulty)), "no padding mask", MASK
    ),
    "ten lines": Kind(NANO, "tuple", AsNanoGPT, "no causal mask with targets", "causal mask missing"),
    "BART": Kind(HF, "tuple", bart, "memory detached", "detach"),
    "T5": Kind(HF, "ModelOutput", t5, "no padding mask", MASK),
    "Marian, padding banned": Kind(HF, "ModelOutput", marian, "a ban lifted in training", "masks of -inf"),
    "Pegasus": Kind(HF, "ModelOutput", pegasus, "no positions in the source", "positions missing"),
    "Switch": Kind(HF, "ModelOutput", switch, "an expert never chosen", UNUSED),
    "Mixtral": Kind(HF, "ModelOutput", mixtral, "an expert never chosen", UNUSED),
    "GPT-2": Kind(HF, "ModelOutput", gpt2, "no causal mask", "causal mask missing"),
    "Llama": Kind(HF, "tuple", llama, "softmax at the end", "a softmax at the end"),
    "BERT": Kind(HF, "ModelOutput", bert, "no positions", "positions missing"),
    "RoBERTa": Kind(HF, "ModelOutput", roberta, "a causal mask", "a causal mask"),
}


def tried(name: str, kind: Kind) -> dict[str, Any]:
    """What the record holds of a kind: the right model, and the faulty one."""
    reports = []
    for faulty in (False, True):
        torch.manual_seed(SEED)
        reports.append(check_model(kind.make(faulty), V, pad_id=0, bos_id=2))
    right, wrong = reports
    suspects = [result.suspects for result in wrong.results if result.suspects]
    return {
        "library": kind.library,
        "model": name,
        "returns": kind.returns,
        "failures": right.failures,
        "skipped": [result.name for result in right.results if result.verdict == "skipped"],
        "fault": kind.fault,
        "failures with the fault": wrong.failures,
        "named": any(kind.words in text for text in suspects),
    }


def main() -> None:
    """Try all kinds, and write the record."""
    transformers.logging.set_verbosity_error()
    rows = []
    for name, kind in KINDS.items():
        rows.append(tried(name, kind))
        print(name, *(rows[-1][key] for key in ("failures", "failures with the fault", "named")), flush=True)
    facts = run_facts("cpu")
    facts["versions"]["transformers"] = metadata.version("transformers")
    write_record(RECORD, {**facts, "seed": SEED, "models": rows})


if __name__ == "__main__":
    main()
