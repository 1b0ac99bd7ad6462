"""What Hugging Face's Llama computes with random weights: `python -m experiments.llama`.

It writes transformer/records/book/llama.safetensors and llama.json, with which Chapter 15 compares its own
model. Their norms, and their cosines and sines, are rounded to float32 in a model of any dtype. So the logits
are recorded twice: as they are, and in float64 throughout. It needs transformers.
"""

from __future__ import annotations

import json
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from transformer.files import write_record
from transformer.runs.folder import run_facts

RECORDS = Path(__file__).resolve().parents[1] / "transformer" / "records" / "book"
SIZES: dict[str, Any] = {
    "vocab_size": 32, "hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4,
    "num_hidden_layers": 2, "intermediate_size": 24, "max_position_embeddings": 64,
    "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip


def random_model(model: type, config: type, **changes: Any) -> Any:
    """A small model of theirs in float64, none of whose parameters is 0 or 1."""
    theirs = model(config(**(SIZES | changes))).double().eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return theirs


def in_double(theirs: Any) -> Any:
    """The same model, changed so that it computes in float64 what it computes in float32."""
    for part in list(theirs.modules()):
        for name, norm in list(part.named_children()):
            if type(norm).__name__.endswith("RMSNorm"):
                eps = norm.eps if hasattr(norm, "eps") else norm.variance_epsilon
                exact = nn.RMSNorm(len(norm.weight), eps).double()
                exact.weight = nn.Parameter(norm.weight.detach())
                setattr(part, name, exact)
    rope, d_k = theirs.config.rope_parameters, theirs.config.head_dim
    speeds = rope["rope_theta"] ** -(torch.arange(0, d_k, 2).double() / d_k)
    if rope["rope_type"] == "llama3":
        turns = rope["original_max_position_embeddings"] * speeds / (2 * torch.pi)
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        between = (turns - low) / (high - low)
        slower = torch.where(turns < low, speeds / rope["factor"], speeds)
        mixed = (1 - between) * speeds / rope["factor"] + between * speeds
        speeds = torch.where((turns >= low) & (turns <= high), mixed, slower)

    def exact_angles(module: nn.Module, inputs: Any, named: dict[str, Tensor], output: Any) -> Any:
        positions = named.get("position_ids", inputs[-1])[..., None].double()  # [B, T, 1]
        angles = positions * speeds  # [B, T, d_k / 2]
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos(), angles.sin()

    theirs.model.rotary_emb.register_forward_hook(exact_angles, with_kwargs=True)
    return theirs


@torch.no_grad()
def main() -> None:
    """Write the record."""
    torch.manual_seed(0)
    theirs = random_model(transformers.LlamaForCausalLM, transformers.LlamaConfig)
    ids = torch.randint(SIZES["vocab_size"], (2, 10))
    record = {**run_facts("cpu"), "transformers": metadata.version("transformers"), "ids": ids.tolist()}
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        record["config"] = json.loads(Path(folder, "config.json").read_text(encoding="utf8"))
        weights = Path(folder, "model.safetensors").read_bytes()
    record["logits"] = theirs(ids).logits.tolist()
    record["logits in float64"] = in_double(theirs)(ids).logits.tolist()
    mask = torch.ones_like(ids)
    continued = theirs.generate(ids, attention_mask=mask, max_new_tokens=20, do_sample=False)
    record["continued"] = continued[:, ids.size(1) :].tolist()
    (RECORDS / "llama.safetensors").write_bytes(weights)
    write_record(RECORDS / "llama.json", record)


if __name__ == "__main__":
    main()
