"""A small model of Llama's form that speaks Small Portuguese: `python -m experiments.speaking`.

`train SEED` trains one on the Portuguese side of the training split, a few minutes on one core, and keeps
its weights in runs/speaking/. `measure SEED` then asks the grammar which of its sentences it could have
drawn, beside those of an untrained model and of a table of pairs, for transformer/records/book/speaking.json.
The model of seed 0 goes to transformer/records/book/speaker/, as a Llama of transformers, which writes it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.recognizer import accepts
from transformer import TokenBatches, Vocabulary, fit, load_corpus
from transformer.exchange.hugging_face import LLAMA_PARTS, our_name
from transformer.files import read_record, write_record
from transformer.language.batches import pad
from transformer.language.vocabulary import BOS_ID, EOS_ID, PAD_ID, SPACE, SPECIALS
from transformer.modern.language_model import LanguageModel, LanguageModelConfig, generate
from transformer.modern.parts import wsd_rate
from transformer.runs.folder import run_facts
from transformer.weights import load_weights, save_weights

ROOT = Path(__file__).resolve().parents[1]
RUNS, RECORDS = ROOT / "runs" / "speaking", ROOT / "transformer" / "records" / "book"
RECORD, PACKED, DRAWN, LONGEST, SHOWN = RECORDS / "speaking.json", 0, 50, 40, 5
SUBWORDS, STEPS, WARMUP, PEAK, MAX_TOKENS = 1000, 2000, 100, 4e-3, 640
Draw = Callable[[torch.Generator], list[list[int]]]  # sentences, with a generator of its own
SIZES: dict[str, Any] = {"d_model": 96, "n_heads": 4, "n_kv_heads": 2, "n_layers": 3, "d_ff": 192}


def sentences(split: str) -> list[str]:
    """The Portuguese sentences of a split of the small corpus."""
    return [pair.source for pair in load_corpus("phrases", split)]


def encoded(vocabulary: Vocabulary, split: str) -> list[list[int]]:
    """The sentences of a split as ids, with start and end."""
    return [[BOS_ID, *ids, EOS_ID] for ids in vocabulary.encode_batch(sentences(split))]


def built(vocabulary: Vocabulary) -> LanguageModel:
    """The model, untrained."""
    return LanguageModel(LanguageModelConfig(len(vocabulary), **SIZES))


def sentence_loss(model: LanguageModel, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The summed loss of every token of `ids` `[B, T + 1]` but the first and padding, and their number."""
    logits, targets = model(ids[:, :-1]), ids[:, 1:]
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD_ID, reduction="sum")
    return loss, (targets != PAD_ID).sum()


def train(seed: int, steps: int = STEPS) -> None:
    """Train from one seed, and keep weights and facts."""
    torch.set_num_threads(1)
    facts = run_facts("cpu")
    vocabulary = Vocabulary.train(sentences("train"), SUBWORDS)
    rows, unseen = encoded(vocabulary, "train"), pad(encoded(vocabulary, "dev"))
    torch.manual_seed(seed)
    model = built(vocabulary)
    batches = TokenBatches([(row, row) for row in rows], MAX_TOKENS, seed=seed)
    history = fit(
        model,
        lambda model, batch: sentence_loss(model, batch[1]),
        batches,
        lambda step: wsd_rate(step, steps, PEAK, WARMUP),
        steps,
        evaluate=lambda model: {"dev": float(torch.divide(*sentence_loss(model, unseen)))},
        evaluate_every=250,
    )
    RUNS.mkdir(parents=True, exist_ok=True)
    save_weights(model, RUNS / f"seed-{seed}.safetensors")
    curve = [[row["step"], round(row["dev"], 4)] for row in history if "dev" in row]
    write_record(RUNS / f"seed-{seed}.json", {"seed": seed, "steps": steps, "dev": curve, **facts})
    print(f"seed {seed}: {curve[-1][1]} nats a subword on the development split")


def table_of_pairs(vocabulary: Vocabulary) -> Tensor:
    """The logarithm of how often each subword follows another in the training split `[V, V]`."""
    ids = torch.tensor([number for row in encoded(vocabulary, "train") for number in row])
    size = len(vocabulary)
    return torch.bincount(ids[:-1] * size + ids[1:], minlength=size**2).view(size, size).log()


def drawn_by_model(model: LanguageModel) -> Draw:
    """A function that draws sentences from a model's own distribution."""

    def draw(generator: torch.Generator) -> list[list[int]]:
        choose = lambda logits: torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
        begun = torch.full((DRAWN, 1), BOS_ID)
        return generate(model, begun, LONGEST, choose, EOS_ID).tolist()

    return draw


def drawn_by_table(table: Tensor) -> Draw:
    """A function that draws sentences in which each subword depends on the one before it alone."""

    def draw(generator: torch.Generator) -> list[list[int]]:
        rows = torch.full((DRAWN, 1), BOS_ID)
        for _ in range(LONGEST):
            shares = table[rows[:, -1]].softmax(-1)
            rows = torch.cat([rows, torch.multinomial(shares, 1, generator=generator)], dim=1)
        return rows[:, 1:].tolist()

    return draw


def judged(found: list[str]) -> dict[str, Any]:
    """How many sentences the grammar accepts, and how many of those the training has not shown."""
    accepted, known = [sentence for sentence in found if accepts(sentence)], set(sentences("train"))
    return {
        "drawn": len(found),
        "accepted": len(accepted),
        "accepted and new": sum(sentence not in known for sentence in accepted),
        "examples": accepted[:SHOWN],
        "refused": [sentence for sentence in found if sentence not in accepted][:SHOWN],
    }


def pack(model: LanguageModel, vocabulary: Vocabulary) -> None:
    """Write the model and its subwords by transformers, in half precision."""
    import tokenizers as t
    import transformers

    special = dict(zip(("pad_token", "unk_token", "bos_token", "eos_token"), SPECIALS, strict=True))
    theirs = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=len(vocabulary), hidden_size=SIZES["d_model"], intermediate_size=SIZES["d_ff"],
            num_hidden_layers=SIZES["n_layers"], num_attention_heads=SIZES["n_heads"],
            num_key_value_heads=SIZES["n_kv_heads"], rms_norm_eps=model.config.norm_eps,
            tie_word_embeddings=True, pad_token_id=PAD_ID, bos_token_id=BOS_ID, eos_token_id=EOS_ID,
        )
    )  # fmt: skip
    ours = model.state_dict()
    theirs.load_state_dict({name: ours[our_name(name, LLAMA_PARTS)] for name in theirs.state_dict()})
    theirs.half().save_pretrained(RECORDS / "speaker")
    fast = t.Tokenizer.from_str(vocabulary.tokenizer.to_str())
    spaces = t.normalizers.Replace(t.Regex(r"\s+"), " ")
    fast.normalizer = t.normalizers.Sequence([t.normalizers.NFC(), spaces, t.normalizers.Strip()])
    fast.decoder = t.decoders.Metaspace(replacement=SPACE, prepend_scheme="always")
    start = SPECIALS[BOS_ID]
    fast.post_processor = t.processors.TemplateProcessing(f"{start} $A", special_tokens=[(start, BOS_ID)])
    fast.add_special_tokens(list(SPECIALS))
    whole = transformers.PreTrainedTokenizerFast(tokenizer_object=fast, **special)
    whole.save_pretrained(RECORDS / "speaker")


def measure(seed: int) -> None:
    """Judge what the model of a seed says, and pack it if it is the one of the book."""
    facts = run_facts("cpu")
    torch.set_num_threads(1)
    vocabulary = Vocabulary.train(sentences("train"), SUBWORDS)
    torch.manual_seed(seed)
    untrained, model = built(vocabulary), built(vocabulary)
    load_weights(model, RUNS / f"seed-{seed}.safetensors")
    if seed == PACKED:
        pack(model, vocabulary)
    ways = {
        "trained": drawn_by_model(model),
        "untrained": drawn_by_model(untrained),
        "table of pairs": drawn_by_table(table_of_pairs(vocabulary)),
    }
    found = {
        name: [vocabulary.decode(row) for row in draw(torch.Generator().manual_seed(seed))]
        for name, draw in ways.items()
    }
    said = {name: judged(each) for name, each in found.items()}
    said["test split"] = judged(sentences("test")[DRAWN * seed :][:DRAWN])
    print({name: (row["accepted"], row["accepted and new"]) for name, row in said.items()})
    runs = read_record(RECORD)["runs"] if RECORD.exists() else []
    training = read_record(RUNS / f"seed-{seed}.json")
    runs = [run for run in runs if run["seed"] != seed]
    runs.append({"seed": seed, "said": said, "training": training, **facts})
    write_record(RECORD, {"sizes": SIZES, "runs": sorted(runs, key=lambda run: run["seed"])})


def main() -> None:
    """Train, or measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True, dest="command")
    of_train = commands.add_parser("train", help="train a model from a seed")
    of_train.add_argument("seed", type=int)
    of_measure = commands.add_parser("measure", help="judge what it says")
    of_measure.add_argument("seed", type=int)
    options = parser.parse_args()
    {"train": train, "measure": measure}[options.command](options.seed)


if __name__ == "__main__":
    main()
