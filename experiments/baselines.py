"""What a translator must beat on the talks: copying, word by word, a recurrent net of equal time and size.

    python -m experiments.baselines pace         # two minutes: how many updates the recurrent net gets
    python -m experiments.baselines recurrent    # trains it, in the processor time of the ablation's base
    python -m experiments.baselines curve        # scores the checkpoints of both, by processor time
    python -m experiments.baselines score copy ibm1 transformer recurrent    # writes rows of the record

A training that was stopped goes on at the next call; its checkpoints lie in runs/baselines. The Transformer
is the base of `experiments.ablation`, or the run that --folder names. As that one keeps five checkpoints,
`curve` is to be called while it trains as well: what was scored once is kept. TRANSFORMER_DATA names the
folder that holds the TED corpus. The record is transformer/records/book/baselines.json.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import transformer.language.translator
import transformer.language.wording
from experiments.ablation import BUDGET, ROOT
from experiments.ablation import RUNS as ABLATION
from experiments.recurrent import Recurrent, RecurrentConfig
from transformer import (
    Trainer,
    Transformer,
    TransformerConfig,
    Translator,
    Vocabulary,
    accelerate,
    corpus_scores,
    evaluate_loss,
    load_corpus,
)
from transformer.commands.data import Translations
from transformer.commands.recipes import RECIPES, Recipe, changed
from transformer.files import read_record, write_record
from transformer.language.batches import TokenBatches, encode_pairs
from transformer.language.corpora import Pair
from transformer.language.translator import Search, translate_ids
from transformer.runs.checkpoints import load_checkpoint
from transformer.runs.folder import RunFolder, run_facts
from transformer.runs.update import Updater

RUNS = Path("runs") / "baselines"
RECORD = ROOT / "transformer" / "records" / "book" / "baselines.json"
CHAPTER = ROOT / "book" / "13-translation.ipynb"
CELLS = ("imports", "ibm-model-1", "word-by-word", "alignment-error", "attention-links")
BASE = changed(RECIPES["ted-small"], **BUDGET)


def chapter() -> dict[str, Any]:
    """What the chapter's own cells define: IBM model 1, and the error of an alignment."""
    cells = {cell["id"]: "".join(cell["source"]) for cell in json.loads(CHAPTER.read_text("utf8"))["cells"]}
    # The package's part of the chapter.
    names = {**vars(transformer.language.wording), **vars(transformer.language.translator)}
    for name in CELLS:
        exec(cells[name], names)
    return names


def models(vocabulary: Vocabulary) -> dict[str, nn.Module]:
    """The Transformer of the ablation's base, and the recurrent net that it is compared with."""
    size = len(vocabulary)
    torch.manual_seed(BASE.training.seed)
    return {
        "transformer": Transformer(TransformerConfig(size, size, **asdict(BASE.model))),
        "recurrent": Recurrent(RecurrentConfig(size, dropout=BASE.model.dropout)),
    }


def load_vocabulary() -> Vocabulary:
    """The base's vocabulary, learned once."""
    path = RUNS / "vocabulary.json"
    if not path.exists():
        assert isinstance(BASE.data, Translations)
        path.parent.mkdir(parents=True, exist_ok=True)
        texts = (text for pair in load_corpus("ted", "train") for text in pair)
        Vocabulary.train(texts, BASE.data.vocab_size).save(path)
    return Vocabulary.load(path)


def batches_of(split: str, vocabulary: Vocabulary, shuffle: bool = True) -> TokenBatches:
    """The base's batches of a split of the talks."""
    assert isinstance(BASE.data, Translations)
    encoded = encode_pairs(load_corpus("ted", split), vocabulary)
    return TokenBatches(encoded, BASE.data.max_tokens, shuffle=shuffle, seed=BASE.training.seed)


def measure_pace(rounds: int = 3, n_batches: int = 12) -> dict[str, Any]:
    """Processor seconds of an update of either model, in turn on the same batches.

    Args:
        rounds: how often each is timed; one more round before them does not count.
        n_batches: updates in a round.

    Returns:
        of each model the number of `"parameters"` and the mean `"seconds"`; and how many updates, `"steps"`,
        the recurrent net can make while the Transformer makes its own.
    """
    vocabulary = load_vocabulary()
    batches = list(islice(batches_of("train", vocabulary)(0), n_batches))
    found = models(vocabulary)
    parameters = {name: sum(p.numel() for p in model.parameters()) for name, model in found.items()}
    found["transformer"] = accelerate(found["transformer"])
    slow, config = lambda step: 1e-5, BASE.training
    updaters = {name: Updater(model, BASE.loss, slow, config) for name, model in found.items()}
    seconds: dict[str, list[float]] = {name: [] for name in updaters}
    for _ in range(rounds + 1):
        for name, updater in updaters.items():
            start = time.process_time()
            for batch in batches:
                updater([batch])
            seconds[name].append((time.process_time() - start) / n_batches)
    pace = {name: sum(values[1:]) / rounds for name, values in seconds.items()}
    steps = round(BASE.training.steps * pace["transformer"] / pace["recurrent"], -2)
    return {"parameters": parameters, "seconds": pace, "rounds": seconds, "steps": int(steps)}


def recurrent_recipe(steps: int) -> Recipe:
    """The base's recipe for the recurrent net, which makes `steps` updates in the same time."""
    shorter = {"steps": steps, "warmup_steps": steps // 5, "evaluate_every": 200, "keep": steps // 200 + 1}
    return changed(BASE, **shorter)


def train_recurrent(max_minutes: float | None) -> None:
    """Train the recurrent net, or go on with it."""
    recipe, vocabulary = recurrent_recipe(read_record(RUNS / "pace.json")["steps"]), load_vocabulary()
    held_out = batches_of("dev", vocabulary, shuffle=False)
    trainer = Trainer(
        models(vocabulary)["recurrent"],
        loss=recipe.loss,
        batches=batches_of("train", vocabulary),
        schedule=recipe.rate,
        config=recipe.training,
        directory=RUNS / "recurrent",
        evaluate=lambda model: evaluate_loss(model, held_out(0)),
    ).fit(max_minutes)
    if trainer.finished:
        facts = run_facts("cpu") | {"recipe": asdict(recipe), "config": asdict(trainer.model.config)}
        write_record(RUNS / "recurrent" / "record.json", facts | {"log": trainer.history})
    else:
        print(f"time is over at step {trainer.step:,}; the same command goes on from there")


def checkpoints(folder: Path) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """The updates and weights of the checkpoints that a folder still has, from the first update on."""
    for path in RunFolder(folder).checkpoints():
        if step := int(path.stem.removeprefix("checkpoint-")):
            yield step, load_checkpoint(path)["model"]


def translated(model: nn.Module, vocabulary: Vocabulary, pairs: Sequence[Pair], search: Search) -> list[str]:
    """The sources, translated by any model that searches know, tokenized as they are."""
    sources = [[*ids, 3] for ids in vocabulary.encode_batch([pair.source for pair in pairs])]
    found = translate_ids(model, sources, search)
    return [vocabulary.decode(ids) for ids in found]


def score_curves(folders: dict[str, Path]) -> None:
    """Score the checkpoints that have no score yet, BLEU-tok of the development split by greedy search."""
    path, vocabulary, dev = RUNS / "curves.json", load_vocabulary(), load_corpus("ted", "dev")
    curves: dict[str, dict[str, float]] = read_record(path) if path.exists() else {}
    for name, model in models(vocabulary).items():
        curve = curves.setdefault(name, {})
        searched = accelerate(model) if name == "transformer" else model
        for step, weights in checkpoints(folders[name]):
            if str(step) not in curve:
                model.load_state_dict(weights)
                said = translated(searched, vocabulary, dev, Search(1))
                curve[str(step)] = corpus_scores(said, [pair.target for pair in dev])["BLEU-tok"]["score"]
                write_record(path, curves)
                print(f"{name}, update {step:,}: {curve[str(step)]:.2f}", flush=True)
    score((), folders["transformer"])


def scores_of(translate: Callable[[Sequence[Pair]], list[str]]) -> dict[str, Any]:
    """The scores of a way to translate on both held-out splits, with intervals on the test split."""
    found = {}
    for split, n_bootstrap in (("dev", 0), ("test", 1000)):
        pairs = load_corpus("ted", split)
        found[split] = corpus_scores(translate(pairs), [pair.target for pair in pairs], n_bootstrap)
    return found


def attention_errors(names: dict[str, Any], translator: Translator) -> list[float]:
    """The alignment error of each layer's cross-attention, on those of our sentences that are aligned."""
    aligned = names["load_alignments"]("sentences")
    links = [names["attention_links"](translator, *pair) for pair, _ in aligned]  # [pair][layer]
    return [names["alignment_error"](layer, aligned) for layer in zip(*links, strict=True)]


def row(name: str, folder: Path) -> dict[str, Any]:
    """What the record keeps of one baseline: its scores and, where it aligns words, the error of that."""
    facts = run_facts("cpu")
    if name == "copy":
        return facts | {"scores": scores_of(lambda pairs: [pair.source for pair in pairs])}
    if name == "ibm1":
        names = chapter()
        table = names["ibm_model_1"](load_corpus("ted", "train"))
        aligned = names["load_alignments"]("sentences")
        links = [names["ibm_links"](table, *pair) for pair, _ in aligned]
        scores = scores_of(lambda pairs: [names["word_by_word"](table, pair.source) for pair in pairs])
        return facts | {"scores": scores, "alignment error": names["alignment_error"](links, aligned)}
    if name == "transformer":
        translator = Translator.load(folder / "translator", "cpu")
        record = read_record(folder / "record.json")
        scores = {split: record["scores"][split]["beam 4"] for split in ("dev", "test")}
        kept = {key: record[key] for key in ("command", "commit", "date", "parameters", "seconds")}
        return facts | {
            "run": kept,
            "scores": scores,
            "alignment error by layer": attention_errors(chapter(), translator),
        }
    record, pace = read_record(RUNS / "recurrent" / "record.json"), read_record(RUNS / "pace.json")
    vocabulary = load_vocabulary()
    model = models(vocabulary)["recurrent"]
    *_, (step, weights) = checkpoints(RUNS / "recurrent")
    assert step == pace["steps"]
    model.load_state_dict(weights)
    scores = scores_of(lambda pairs: translated(model.eval(), vocabulary, pairs, Search(4)))
    return facts | {"run": record, "parameters": pace["parameters"]["recurrent"], "scores": scores}


def score(rows: Sequence[str], folder: Path) -> None:
    """Write these rows of the record, and the pace and curves that there are."""
    record: dict[str, Any] = read_record(RECORD) if RECORD.exists() else {"rows": {}}
    for name in rows:
        record["rows"][name] = row(name, folder)
        measured = record["rows"][name]["scores"]["test"]
        print(name, *(f"{metric} {found['score']:.2f}" for metric, found in measured.items()), flush=True)
    for part in ("pace", "curves"):
        if (RUNS / f"{part}.json").exists():
            record[part] = read_record(RUNS / f"{part}.json")
    write_record(RECORD, record)


def main() -> None:
    """Measure, train or score."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("pace", help="how long an update of either model takes")
    training = commands.add_parser("recurrent", help="train the recurrent net")
    training.add_argument("--max-minutes", type=float, help="the same command goes on later")
    curves = commands.add_parser("curve", help="score the checkpoints that have no score yet")
    scoring = commands.add_parser("score", help="write rows of the record")
    scoring.add_argument("rows", nargs="+", choices=["copy", "ibm1", "transformer", "recurrent"])
    for command in (curves, scoring):
        command.add_argument("--folder", type=Path, default=ABLATION / "base", help="the Transformer's run")
    options = parser.parse_args()
    torch.set_num_threads(1)
    work: dict[str, Callable[[], Any]] = {
        "pace": lambda: write_record(RUNS / "pace.json", run_facts("cpu") | measure_pace()),
        "recurrent": lambda: train_recurrent(options.max_minutes),
        "curve": lambda: score_curves({"transformer": options.folder, "recurrent": RUNS / "recurrent"}),
        "score": partial(score, getattr(options, "rows", ()), getattr(options, "folder", None)),
    }
    work[options.command]()


if __name__ == "__main__":
    main()
