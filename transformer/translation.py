"""transformer.translation, from book/11-translation.ipynb, "Portuguese to English".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = [
    "tokenize",
    "detokenize",
    "corpus_scores",
    "by_length",
    "least_parameters",
    "Alignment",
    "Translator",
    "Recipe",
    "RECIPES",
    "train_translator",
    "evaluate_translator",
    "unseen_pairs",
    "LECTURE",
    "translation_record",
    "rounded",
]


# %% book/11-translation.ipynb · As the corpus writes · [wording-code]
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer.decoding import beam_search, greedy_search
from transformer.loss import teacher_forced_loss
from transformer.model import Transformer, TransformerConfig
from transformer.text import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    Pair,
    TokenBatches,
    Vocabulary,
    encode_pairs,
    load_corpus,
    pad,
)
from transformer.training import (
    CheckpointError,
    Trainer,
    TrainingConfig,
    atomic_file,
    cooldown,
    evaluate_loss,
    evaluating,
    load_weights,
    noam_rate,
    read_record,
    record_path,
    regular_file,
    run_facts,
    save_weights,
    write_record,
)
from transformer.validation import (
    check_device,
    check_number,
    check_size,
    check_type,
    optional_import,
)

_TOKEN = re.compile(r"``|''|\.\.\.|\d+(?:[.,]\d+)+|\w+(?:[-'’]\w+)*|[^\w\s]")


def tokenize(text: str) -> str:
    """Write raw text as the corpora are written: lower case, blanks around punctuation, paired
    quotes.

    Text that is written so already stays as it is.

    Raises:
        TypeError: `text` is no string.
    """
    check_type(str, text=text)
    tokens, opening = [], True
    for token in _TOKEN.findall(text.lower()):
        if token == '"':
            token, opening = ("``" if opening else "''"), not opening
        tokens.append({"“": "``", "”": "''", "«": "``", "»": "''", "…": "..."}.get(token, token))
    return " ".join(tokens)


def detokenize(text: str) -> str:
    """Write an English sentence of the corpora as one would type it; case stays lower.

    Raises:
        TypeError: `text` is no string.
    """
    check_type(str, text=text)
    text = re.sub(r"``(?: (?:``|''))*", "“", text)
    text = re.sub(r"''(?: (?:``|''))*", "”", text)
    text = re.sub(r" (?=[.,;:?!%)\]”]|n't\b|'(?:s|re|ve|m|ll|d)\b)", "", text)
    text = re.sub(r"(?<=[(\[“$]) ", "", text)
    return text.replace("“", '"').replace("”", '"')


# %% book/11-translation.ipynb · How good is a translation? · [corpus-scores]
def corpus_scores(
    hypotheses: Sequence[str], references: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """BLEU and chrF of tokenised translations, each with the signature that says how it was
    computed.

    Args:
        hypotheses: translations in the corpus' own tokenised lower-case form.
        references: one reference translation for each, in the same form.

    Returns:
        for `"BLEU-tok"` (on the tokens as they are), `"BLEU-detok"` (both sides detokenised, then
        sacreBLEU's own tokenisation) and `"chrF2"` (detokenised) the `"score"` from 0 to 100 and
        the `"signature"`.

    Raises:
        TypeError: they are no lists of strings.
        ValueError: there are no references, or not as many as hypotheses.

    Source: Papineni et al. (2002); Post (2018); Popović (2015).
    """
    check_type((list, tuple), hypotheses=hypotheses, references=references)
    if not references or len(hypotheses) != len(references):
        raise ValueError(
            f"hypotheses and references must be equally many and at least one, "
            f"not {len(hypotheses)} and {len(references)}"
        )
    metrics = optional_import("sacrebleu.metrics")
    typed = [detokenize(text) for text in hypotheses], [detokenize(text) for text in references]
    measured = {
        "BLEU-tok": (metrics.BLEU(tokenize="none", force=True), (hypotheses, references)),
        "BLEU-detok": (metrics.BLEU(), typed),
        "chrF2": (metrics.CHRF(), typed),
    }
    scores = {}
    for name, (metric, (ours, theirs)) in measured.items():
        score = metric.corpus_score(list(ours), [list(theirs)]).score
        scores[name] = {"score": round(score, 2), "signature": str(metric.get_signature())}
    return scores


# %% book/11-translation.ipynb · A translator to keep · [by-length]
def by_length(sequences: Sequence[Sequence[int]], max_tokens: int) -> Iterator[list[int]]:
    """Groups of rows of about one length, the longest first, so that trouble with memory comes at
    once.

    Args:
        sequences: token ids. A sequence of a single one, an end token alone, is left out: it says
            nothing.
        max_tokens: the most tokens in a group, padding included; a longer sequence makes a group of
            its own.

    Raises:
        TypeError: `max_tokens` is not an int.
        ValueError: it is below 1.
    """
    check_size(max_tokens=max_tokens)
    rows = sorted(
        (row for row, ids in enumerate(sequences) if len(ids) > 1),
        key=lambda row: -len(sequences[row]),
    )
    while rows:
        size = max(1, max_tokens // len(sequences[rows[0]]))
        yield rows[:size]
        rows = rows[size:]


# %% book/11-translation.ipynb · A translator to keep · [translator]
def least_parameters(config: TransformerConfig) -> int:
    """The fewest bytes that a file with a model's weights can have.

    A configuration from a stranger can ask for any amount of memory. This tells it from one that
    belongs to a file before the memory is taken.

    Args:
        config: of the model.

    Returns:
        the number of entries of one embedding table and of all matrices in the layers, or
        `max_length`, where that is more.
    """
    layers = config.n_layers * (12 * config.d_model + 4 * config.d_ff)
    return max(config.max_length, config.d_model * (config.src_vocab_size + layers))


class Alignment(NamedTuple):
    """A translation beside what its cross-attention looked at."""

    source: list[str]
    target: list[str]
    weights: Tensor                                             # [n_layers, H, T, S]


class Translator:
    """A trained model with its vocabulary: sentences in, sentences out.

    Args:
        model: a trained `Transformer` with one vocabulary for both languages.
        vocabulary: that vocabulary.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: model and vocabulary are of different sizes, or number the special tokens
            differently.
    """

    def __init__(self, model: Transformer, vocabulary: Vocabulary) -> None:
        check_type(nn.Module, model=model)
        check_type(Vocabulary, vocabulary=vocabulary)
        sizes = {model.config.src_vocab_size, model.config.tgt_vocab_size}
        if sizes != {len(vocabulary)}:
            raise ValueError(
                f"the model has {sorted(sizes)} tokens, the vocabulary {len(vocabulary)}"
            )
        ids = model.config.pad_id, model.config.bos_id, model.config.eos_id
        if ids != (PAD_ID, BOS_ID, EOS_ID):
            raise ValueError(
                f"the model has padding, start and end at {ids}, "
                f"the vocabulary at {(PAD_ID, BOS_ID, EOS_ID)}"
            )
        self.model, self.vocabulary = model, vocabulary

    @classmethod
    def load(cls, path: Path | str, device: torch.device | str = "cpu") -> "Translator":
        """Read a translator from the folder that `save` wrote; nothing in it is executed.

        Args:
            path: the folder, or the name of a translator that the package carries, such as
                `"phrases"`.
            device: to translate on.

        Raises:
            TypeError: `path` is none.
            FileNotFoundError: there is no such folder, or a file is missing in it.
            CheckpointError: a file is damaged, or they do not belong together; the message names it.
            ValueError: the vocabulary is damaged, or there is no such device.
        """
        check_type((str, Path), path=path)
        device = check_device(device)
        folder = Path(path) if Path(path).is_dir() else record_path(str(path))
        try:
            config = TransformerConfig(**read_record(folder / "config.json"))
        except (ValueError, TypeError) as error:
            raise CheckpointError(
                f"{folder / 'config.json'} is no configuration: {error}"
            ) from error
        vocabulary, weights = folder / "vocabulary.json", folder / "model.safetensors"
        if least_parameters(config) > regular_file(weights).stat().st_size:
            raise CheckpointError(f"{weights} is too small for the model of {folder / 'config.json'}")
        model = Transformer(config).to(device)
        load_weights(model, weights)
        try:
            return cls(model.eval(), Vocabulary.load(vocabulary))
        except ValueError as error:
            raise CheckpointError(f"{vocabulary} does not fit: {error}") from error

    def save(self, path: Path | str, dtype: torch.dtype = torch.float16) -> None:
        """Write weights, configuration and vocabulary into the folder `path`, made where missing.

        Raises:
            TypeError, ValueError: `dtype` is no floating-point `torch.dtype`.
            OSError: a file cannot be written; the message names it, and what stood there stays.
        """
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        with (  # none takes its place before all three are written: they belong together
            atomic_file(folder / "vocabulary.json") as vocabulary,
            atomic_file(folder / "model.safetensors") as weights,
            atomic_file(folder / "config.json") as config,
        ):
            write_record(config, asdict(self.model.config))
            save_weights(self.model, weights, dtype)
            self.vocabulary.save(vocabulary)

    def translate(
        self, sentences: Sequence[str], beam_size: int = 4, length_penalty: float = 0.6
    ) -> list[str]:
        """Translate sentences as one types them.

        Args:
            sentences: raw text, one sentence each.
            beam_size: width of the beam; 1 for greedy search.
            length_penalty: as in `beam_search`.

        Returns:
            one translation for each, in the same order; lower case, as the corpora are.

        Raises:
            TypeError: `sentences` is a single string.
        """
        if isinstance(sentences, str):
            raise TypeError("sentences must be a list of strings, not one string")
        tokenised = [tokenize(sentence) for sentence in sentences]
        return [
            detokenize(text)
            for text in self.translate_tokenized(tokenised, beam_size, length_penalty)
        ]

    def translate_tokenized(
        self,
        sentences: Sequence[str],
        beam_size: int = 4,
        length_penalty: float = 0.6,
        max_length: int = 200,
        max_tokens: int = 4000,
    ) -> list[str]:
        """Translate sentences that are written as the corpora are, and write the translations so.

        Args:
            sentences: tokenised lower-case text. A sentence longer than the model's `max_length` is
                cut, with a warning.
            beam_size: width of the beam; 1 for greedy search.
            length_penalty: as in `beam_search`.
            max_length: the most tokens of a translation; never more than the model's `max_length`.
            max_tokens: the most source tokens, padding included, that are translated at once.

        Raises:
            TypeError: `sentences` is a single string or holds what is none, or a setting is not a
                number of the right kind.
            ValueError: a setting is out of its range.
        """
        check_size(beam_size=beam_size, max_length=max_length, max_tokens=max_tokens)
        check_number(length_penalty=length_penalty)
        config, device = self.model.config, next(self.model.parameters()).device
        max_length = min(max_length, config.max_length)
        sources = self._encode(sentences)
        translations = [""] * len(sources)
        for rows in by_length(sources, max_tokens):
            src = pad([sources[row] for row in rows], config.pad_id).to(device)
            if beam_size == 1:
                best = greedy_search(self.model, src, max_length)
            else:
                best = beam_search(self.model, src, beam_size, length_penalty, max_length).tokens[
                    :, 0
                ]
            for row, ids in zip(rows, best.tolist(), strict=True):
                translations[row] = self.vocabulary.decode(ids)
        return translations

    def align(self, sentence: str, beam_size: int = 4) -> Alignment:
        """Translate one tokenised sentence and note what the decoder attended to while it did.

        Args:
            sentence: lower-case text, written as the corpora are.
            beam_size: width of the beam; 1 for greedy search.

        Raises:
            TypeError: `sentence` is no string, or `beam_size` not an int.
            ValueError: `beam_size` is below 1.
        """
        check_type(str, sentence=sentence)
        config, device = self.model.config, next(self.model.parameters()).device
        src = torch.tensor(self._encode([sentence]), device=device)
        found = beam_search(
            self.model, src, beam_size, max_length=min(200, config.max_length)
        ).tokens[:, 0]
        found = found[:, : (found[0] != config.pad_id).sum()]  # its rivals may be longer
        with evaluating(self.model):
            tgt = F.pad(found[:, :-1], (1, 0), value=config.bos_id)
            weights = self.model.attention_maps(src, tgt).cross[:, 0]
        return Alignment(
            self.vocabulary.tokens(src[0].tolist()),
            self.vocabulary.tokens(found[0].tolist()),
            weights,
        )

    def _encode(self, sentences: Sequence[str]) -> list[list[int]]:
        config = self.model.config
        sources = []
        for number, ids in enumerate(self.vocabulary.encode_batch(sentences), start=1):
            if len(ids) >= config.max_length:
                warnings.warn(
                    f"sentence {number} is cut to {config.max_length - 1} of {len(ids)} tokens",
                    stacklevel=3,
                )
            sources.append([*ids[: config.max_length - 1], config.eos_id])
        return sources


# %% book/11-translation.ipynb · Two recipes · [recipe]
@dataclass(frozen=True)
class Recipe:
    """How a translator is trained: corpus, vocabulary, model and schedule.

    Args:
        corpus: a name that `load_corpus` knows.
        vocab_size: tokens in the vocabulary that both languages share.
        d_model, n_heads, n_layers, d_ff, dropout, norm_first: as in `TransformerConfig`.
        steps: number of updates.
        max_tokens: target tokens in a batch, padding included.
        peak_rate: the highest learning rate.
        warmup_steps: updates until it is reached.
        cooldown: the share of the run over which the learning rate falls to 0 at the end.
        smoothing: of the labels.
        precision: as in `TrainingConfig`.
        evaluate_every: updates between two evaluations on the development split.
        seed: of weights, data order and dropout.
    """

    corpus: str
    vocab_size: int
    d_model: int = 128
    n_heads: int = 4
    n_layers: int = 2
    d_ff: int = 256
    dropout: float = 0.1
    norm_first: bool = True
    steps: int = 1000
    max_tokens: int = 2000
    peak_rate: float = 2e-3
    warmup_steps: int = 200
    cooldown: float = 0.0
    smoothing: float = 0.1
    precision: str = "float32"
    evaluate_every: int = 500
    seed: int = 0

    def schedule(self, step: int) -> float:
        """The learning rate of update `step`."""
        factor = self.peak_rate * (self.d_model * self.warmup_steps) ** 0.5
        return noam_rate(step, self.d_model, self.warmup_steps, factor) * cooldown(
            step, self.steps, self.cooldown
        )


RECIPES = {
    "phrases": Recipe(
        "phrases",
        vocab_size=1200,
        dropout=0.05,
        steps=1400,
        max_tokens=1000,
        peak_rate=3e-3,
        cooldown=0.6,
        evaluate_every=350,
    ),
    "ted": Recipe(
        "ted",
        vocab_size=4000,
        n_heads=8,
        n_layers=4,
        d_ff=512,
        steps=6000,
        peak_rate=2e-3,
        warmup_steps=800,
        cooldown=0.4,
        precision="bfloat16",
    ),
    "ted-small": Recipe(
        "ted",
        vocab_size=4000,
        d_model=256,
        n_layers=3,
        d_ff=1024,
        dropout=0.2,
        steps=10_000,
        peak_rate=1.2e-3,
        warmup_steps=1000,
        cooldown=0.5,
        precision="bfloat16",
    ),
}


# %% book/11-translation.ipynb · Two recipes · [train-translator]
def train_translator(
    recipe: Recipe,
    directory: Path | str | None = None,
    device: torch.device | str = "cpu",
    progress: bool = False,
    load: Callable[[str, str], list[Pair]] = load_corpus,
) -> tuple[Translator, Trainer]:
    """Train a translator as a recipe says; stopped and called again with the same directory, it
    goes on.

    Args:
        recipe: what to do.
        directory: where log and checkpoints go; `None` for nowhere.
        device: to train on.
        progress: whether to show a progress bar.
        load: gives a corpus' split, as `load_corpus` does.

    Returns:
        the translator with its last weights, and the trainer with its history.

    Raises:
        TypeError, ValueError: the recipe is none, an entry of it is out of its range, or there is no
            such device.
    """
    check_type(Recipe, recipe=recipe)
    check_size(minimum=0, seed=recipe.seed)
    check_size(warmup_steps=recipe.warmup_steps, d_model=recipe.d_model)
    check_number(peak_rate=recipe.peak_rate)
    device = check_device(device)
    torch.manual_seed(recipe.seed)
    train, dev = load(recipe.corpus, "train"), load(recipe.corpus, "dev")
    vocabulary = Vocabulary.train((text for pair in train for text in pair), recipe.vocab_size)
    size = len(vocabulary)
    names = ("d_model", "n_heads", "n_layers", "d_ff", "dropout", "norm_first")
    model = Transformer(
        TransformerConfig(size, size, **{name: getattr(recipe, name) for name in names})
    ).to(device)
    batches = TokenBatches(encode_pairs(train, vocabulary), recipe.max_tokens, seed=recipe.seed)
    held_out = TokenBatches(encode_pairs(dev, vocabulary), recipe.max_tokens, shuffle=False)
    trainer = Trainer(
        model,
        loss=partial(teacher_forced_loss, smoothing=recipe.smoothing),
        batches=batches,
        schedule=recipe.schedule,
        config=TrainingConfig(
            recipe.steps,
            precision=recipe.precision,
            seed=recipe.seed,
            evaluate_every=recipe.evaluate_every,
        ),
        directory=directory,
        evaluate=lambda model: evaluate_loss(model, held_out(0)),
        progress=progress,
    ).fit()
    model.eval()
    return Translator(model, vocabulary), trainer


# %% book/11-translation.ipynb · Two minutes of training · [evaluate-translator]
def evaluate_translator(
    translator: Translator, pairs: Sequence[Pair], beam_size: int = 4, length_penalty: float = 0.6
) -> dict[str, dict[str, Any]]:
    """The `corpus_scores` of translating the sources of `pairs`, against their targets."""
    check_type(Translator, translator=translator)
    hypotheses = translator.translate_tokenized(
        [source for source, _ in pairs], beam_size, length_penalty
    )
    return corpus_scores(hypotheses, [target for _, target in pairs])


def unseen_pairs(pairs: Iterable[Pair], train: Iterable[Pair]) -> list[Pair]:
    """The pairs that do not occur in the training split as well."""
    known = set(train)
    return [pair for pair in pairs if pair not in known]


# %% book/11-translation.ipynb · Real talks · [translation-record]
# Portuguese sentences that a lecture on this corpus shows, with what its model made of them.
LECTURE = {
    "este é um problema que temos que resolver": "this is a problem we have to solve .",
    "este modelo parece funcionar bem": "this model seems to work well .",
    "quem tudo quer tudo perde": "who always wants everything to lose .",
    "estás aqui estás a levar": "these are actually taking over here .",
    "estou feito ao bife": "i ' m done by the different tree .",
}


def translation_record(translator: Translator, trainer: Trainer, recipe: Recipe) -> dict[str, Any]:
    """What the book keeps of a finished translation run.

    Args:
        translator: what `train_translator` returned.
        trainer: what it returned beside.
        recipe: what it was given.

    Returns:
        the facts of `run_facts`, the recipe, the log, the time spent in updates in seconds, the
        number of parameters, translations of the sentences in `LECTURE`, cross-attention maps of
        the first two (the last layer's heads), and the scores: for `"dev"`, `"test"` and `"test,
        unseen"` those of greedy and of beam search.
    """
    splits = {split: load_corpus(recipe.corpus, split) for split in ("train", "dev", "test")}
    pairs = {
        "dev": splits["dev"],
        "test": splits["test"],
        "test, unseen": unseen_pairs(splits["test"], splits["train"]),
    }
    scores = {
        name: {
            "pairs": len(chosen),
            "greedy": evaluate_translator(translator, chosen, beam_size=1),
            "beam 4": evaluate_translator(translator, chosen, beam_size=4),
        }
        for name, chosen in pairs.items()
    }
    alignments = [translator.align(sentence) for sentence in list(LECTURE)[:2]]
    return run_facts(trainer.device) | {
        "recipe": asdict(recipe),
        "parameters": sum(parameter.numel() for parameter in translator.model.parameters()),
        "seconds": round(sum(entry.get("seconds", 0.0) for entry in trainer.history)),
        "log": trainer.history,
        "scores": scores,
        "lecture": {
            name: translator.translate_tokenized(list(LECTURE), beam_size)
            for name, beam_size in (("greedy", 1), ("beam 4", 4))
        },
        "alignments": [
            {"source": found.source, "target": found.target, "weights": rounded(found.weights[-1])}
            for found in alignments
        ],
    }


def rounded(weights: Tensor) -> list:
    """A tensor as nested lists of numbers with three digits, for a record that people can read."""
    check_type(Tensor, weights=weights)
    return (weights.double() * 1000).round().div(1000).tolist()
