"""transformer.__main__, from book/13-translation.ipynb, "Portuguese to English".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""


# %% book/13-translation.ipynb · From the command line · [command-line-code]
import argparse
import codecs
import os
import re
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, fields, replace
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import torch

from transformer.corpora import Pair, load_corpus, read_pairs
from transformer.model import Transformer, TransformerConfig
from transformer.toy import ToyRecipe, toy_record, train_toy
from transformer.training import (
    draw_curves,
    process_group,
    rank_and_world_size,
    read_record,
    save_weights,
    write_record,
)
from transformer.translation import (
    RECIPES,
    Recipe,
    Translator,
    corpus_scores,
    examine_translator,
    tokenize,
    train_translator,
    translation_record,
)
from transformer.validation import optional_import

ALL_RECIPES: dict[str, ToyRecipe | Recipe] = {"toy": ToyRecipe(), **RECIPES}


def changed(recipe: ToyRecipe | Recipe, changes: list[str]) -> ToyRecipe | Recipe:
    """A recipe with some fields set anew, each change written as `name=value`.

    Raises:
        ValueError: a change is not of that form, its name is no field, or its value not of the
            field's type.
    """
    kinds = {field.name: field.type for field in fields(recipe)}
    values = {}
    for change in changes:
        name, _, text = change.partition("=")
        if name not in kinds:
            raise ValueError(f"{name!r} is no setting of this recipe; there are {', '.join(kinds)}")
        if kinds[name] is bool and text not in ("true", "false"):
            raise ValueError(f"{name} must be true or false, not {text!r}")
        try:
            values[name] = text == "true" if kinds[name] is bool else kinds[name](text)
        except ValueError:
            kind = "an int" if kinds[name] is int else "a float"
            raise ValueError(f"{name} must be {kind}, not {text!r}") from None
    return replace(recipe, **values)


# %% book/13-translation.ipynb · From the command line · [config-code]
def read_recipe(path: Path) -> ToyRecipe | Recipe:
    """The recipe in a run's `config.json`, or in a record.

    Raises:
        OSError: the file cannot be opened.
        CheckpointError: it holds no record.
        ValueError: it holds no recipe; the message names the file and the setting.
    """
    values = read_record(path)
    values = values.get("recipe", values)
    if not isinstance(values, dict) or not {"corpus", "batch_size"} & set(values):
        raise ValueError(f"{path} holds no recipe: it has neither a corpus nor a batch_size")
    kind = Recipe if "corpus" in values else ToyRecipe
    kinds = {field.name: field.type for field in fields(kind)}
    for name, value in values.items():
        if name not in kinds:
            raise ValueError(f"{path} holds no recipe: {name!r} is no setting of one")
        if type(value) is not kinds[name] and (type(value), kinds[name]) != (int, float):
            wanted = kinds[name].__name__
            raise ValueError(
                f"{path} holds no recipe: {name} is {value!r:.60}, not of type {wanted}"
            )
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{path} holds no recipe: {error}") from None


# What a run leaves behind that is worth more than its log.
_WORK = ("best.pt", "model.safetensors", "record.json", "translator")


def claim_folder(folder: Path, recipe: ToyRecipe | Recipe) -> None:
    """Note a run's recipe in its folder, unless the folder holds a run that this one is not.

    More steps than before may be asked for; any other setting must be as it was.

    Raises:
        ValueError: the folder holds a run of another recipe, and the message names the first
            setting that differs; or checkpoints without a recipe, or results without checkpoints.
    """
    config = folder / "config.json"
    checkpoints = sorted(folder.glob("checkpoint-*.pt"))
    if checkpoints and not config.exists():
        raise ValueError(
            f"{folder} holds checkpoints, but no config.json that tells their recipe: put it back, "
            "or name another --directory"
        )
    if not checkpoints and (there := [name for name in _WORK if (folder / name).exists()]):
        raise ValueError(
            f"{folder} holds {there[0]} of a run, but no checkpoint to go on from: name another "
            "--directory, or move it away"
        )
    if checkpoints:
        _check_same(config, recipe)
        step = int(checkpoints[-1].stem.rpartition("-")[2])
        before = read_recipe(config).steps
        raised = f", raised from {before:,}" if before < recipe.steps else ""
        print(f"going on from step {step:,} of {recipe.steps:,}{raised}")
    folder.mkdir(parents=True, exist_ok=True)
    write_record(config, asdict(recipe))


def _check_same(config: Path, recipe: ToyRecipe | Recipe) -> None:
    stored, asked = asdict(read_recipe(config)), asdict(recipe)
    for name in stored | asked:
        there, here = stored.get(name), asked.get(name)
        more = name == "steps" and type(read_recipe(config)) is type(recipe) and there < here
        if there != here and not more:
            raise ValueError(
                f"{config.parent} holds a run with {name} = {there}, and {name} = {here} is asked "
                f"for: name another --directory, or go on with --config {config}"
            )


@contextmanager
def claimed(folder: Path, recipe: ToyRecipe | Recipe) -> Iterator[None]:
    """`claim_folder`, taken back where a run fails before the first line of its log."""
    existed, config = folder.exists(), folder / "config.json"
    before = config.read_bytes() if config.is_file() else None
    claim_folder(folder, recipe)
    try:
        yield
    except BlockingIOError:  # another process trains there: what stood there is its recipe
        if before is not None:
            config.write_bytes(before)
        raise
    except BaseException:
        log = folder / "log.jsonl"
        if not any(folder.glob("checkpoint-*.pt")) and not (log.exists() and log.stat().st_size):
            if before is None:
                config.unlink(missing_ok=True)
                log.unlink(missing_ok=True)
            if not existed:
                with suppress(OSError):  # something else lies there
                    folder.rmdir()
        raise


def check_memory(recipe: Recipe) -> None:
    """Refuse a recipe whose model cannot be trained in the memory of this machine.

    A model needs 16 bytes a parameter (weights, gradients, and two moments of Adam, each in
    float32) and about half a megabyte of Python for a pair of layers. Batches come on top.

    Raises:
        ValueError: there is less memory; nothing is checked where the system does not tell.
    """
    names = ("d_model", "n_heads", "d_ff", "dropout", "norm_first")
    sizes, counts = {name: getattr(recipe, name) for name in names}, []
    config = TransformerConfig(recipe.vocab_size, recipe.vocab_size, n_layers=recipe.n_layers, **sizes)
    with torch.device("meta"):
        for n_layers in (1, 2):
            model = Transformer(replace(config, n_layers=n_layers))
            counts.append(sum(parameter.numel() for parameter in model.parameters()))
    parameters = counts[0] + (recipe.n_layers - 1) * (counts[1] - counts[0])
    needed = 16 * parameters + 500_000 * recipe.n_layers
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not on Windows
        return
    if needed > memory:
        raise ValueError(
            f"a model of {parameters:,} parameters needs {needed / 1e9:,.0f} GB in training, and "
            f"this machine has {memory / 1e9:,.0f}"
        )


# %% book/13-translation.ipynb · From the command line · [commands-code]
def train(options: argparse.Namespace) -> None:
    """Train, and leave the model, its record and its log in the run's folder."""
    if (options.recipe is None) == (options.config is None):
        raise ValueError("train needs either the name of a recipe or --config, and not both")
    if options.recipe is None and options.directory is None:
        raise ValueError("--config needs --directory as well: a folder for the run")
    recipe = ALL_RECIPES[options.recipe] if options.recipe else read_recipe(options.config)
    recipe = changed(recipe, options.set)
    toy = isinstance(recipe, ToyRecipe)
    for library in ("tqdm", "safetensors") if toy else ("tqdm", "safetensors", "tokenizers", "sacrebleu"):
        optional_import(library)  # what is missing is better known now than after hours
    if not toy:
        check_memory(recipe)
    folder = options.directory or Path("runs") / options.recipe
    with process_group(options.device) as device:
        first = rank_and_world_size()[0] == 0
        with claimed(folder, recipe) if first else nullcontext():
            how = {"progress": True, "max_minutes": options.max_minutes}
            if toy:
                trainer = train_toy(recipe, folder, device, **how)
            else:
                translator, trainer = train_translator(recipe, folder, device, **how)
    if not first:  # of several processes one is enough from here on
        return
    usable = "model.safetensors" if toy else "translator"
    if toy:
        save_weights(trainer.model, folder / usable, torch.float16)
    else:
        translator.save(folder / usable)
    with suppress(ImportError):  # without matplotlib the run is as good
        draw_curves(trainer.history, folder / "curves.png")
    if not trainer.finished:
        print(f"time is over at step {trainer.step:,}; the same command goes on from there")
        print(f"what can be used already: {one_line(folder / usable)}")
        return
    if toy:
        record = toy_record(trainer, recipe)
        print(f"exact match on 10,000 unseen sequences: {record['test']['sequences']:.2%}")
    else:
        note("training is over; scoring dev and test takes some minutes more …")
        record = translation_record(translator, trainer, recipe)
        show_scores(record["scores"]["test"]["tuned"])
    write_record(folder / "record.json", record)
    print(f"the run's folder: {one_line(folder)}")


GROUP = 64  # lines that are translated together


def translate(options: argparse.Namespace) -> None:
    """Translate the sentences given or, where there are none, the lines of standard input."""
    translator, size = Translator.load(options.model, options.device), GROUP
    if options.sentence:
        given = decoded(((os.fsencode(text), False) for text in options.sentence), "sentence")
    elif sys.stdin is None:
        raise OSError("standard input is closed, and no sentence is given")
    else:
        if sys.stdin.isatty():
            note("One sentence a line; an end of file (Ctrl-D) ends it.")
            size = 1  # whoever types a line waits for its translation
        given = decoded(read_lines(sys.stdin.buffer), "standard input, line")
    for group in grouped(given, size):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            sentences = [sentence for _, sentence in group]
            answers = translator.translate(sentences, options.beam, options.length_penalty)
        for warning in caught:
            note(f"warning: {placed(str(warning.message), [place for place, _ in group])}")
        print(*answers, sep="\n", flush=True)


def placed(warning: str, places: list[str]) -> str:
    """A translator's warning, with the place of a sentence instead of its number in the group."""
    found = re.match(r"sentence (\d+)", warning)
    return places[int(found[1]) - 1] + warning[found.end() :] if found else warning


def evaluate(options: argparse.Namespace) -> None:
    """Score a translator on a split of a corpus, or on two files; or examine it for a record."""
    translator = Translator.load(options.model, options.device)
    if options.record is not None:
        record, recipe = record_of(options.record, translator)
        note(f"scoring dev and test of {recipe.corpus} takes some minutes …")
        write_record(options.record, record | examine_translator(translator, recipe.corpus))
        return
    pairs, seen = evaluation_pairs(options)
    sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
    note(f"scoring {len(pairs):,} pairs …")
    hypotheses = translator.translate_tokenized(sources, options.beam, options.length_penalty)
    print(f"{len(pairs):,} pairs, beam {options.beam}, length penalty {options.length_penalty}")
    show_scores(corpus_scores(hypotheses, targets, options.bootstrap))
    rows = [row for row, pair in enumerate(pairs) if pair not in seen]
    if 0 < len(rows) < len(pairs):
        print(
            f"{len(rows):,} pairs, without {len(pairs) - len(rows):,} that training showed as well"
        )
        ours, theirs = ([side[row] for row in rows] for side in (hypotheses, targets))
        show_scores(corpus_scores(ours, theirs, options.bootstrap))


def info(options: argparse.Namespace) -> None:
    """Show what a translator is made of, or the settings of a recipe."""
    if options.recipe is not None:
        shown = ALL_RECIPES[options.recipe]
    else:
        model = Translator.load(options.model).model
        print(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters")
        shown = model.config
    for name, value in asdict(shown).items():
        print(f"{name}: {value}")


def record_of(path: Path, translator: Translator) -> tuple[dict[str, Any], Recipe]:
    """The record of a translator's run, and the recipe in it.

    Raises:
        ValueError: the file is no record, the toy's, or that of a translator of other sizes.
    """
    record = read_record(path)
    for name in ("recipe", "command", "date"):
        if name not in record:
            raise ValueError(f"{path} is no record of a run: it has no {name!r}")
    recipe = read_recipe(path)
    if isinstance(recipe, ToyRecipe):
        raise ValueError(f"{path} is the record of a toy, not of a translator")
    for name in ("d_model", "n_heads", "n_layers", "d_ff", "norm_first"):
        there, here = getattr(recipe, name), getattr(translator.model.config, name)
        if there != here:
            raise ValueError(f"{path} is of a model with {name} = {there}, and --model has {here}")
    return record, recipe


def evaluation_pairs(options: argparse.Namespace) -> tuple[list[Pair], set[Pair]]:
    """The pairs that `evaluate` is asked for, tokenized, and those that training showed.

    Raises:
        ValueError: one of two files is missing, or a corpus is asked for beside them.
        CorpusError: a file is not UTF-8, or the two have not equally many lines.
    """
    files = options.source, options.reference
    if files == (None, None):
        corpus, split = options.corpus or "phrases", options.split or "test"
        seen = load_corpus(corpus, "train") if split != "train" else []
        return load_corpus(corpus, split), set(seen)
    if None in files:
        raise ValueError("--source and --reference belong together: two files, a sentence a line")
    if (options.corpus, options.split) != (None, None):
        raise ValueError(
            "--corpus and --split are for a corpus, --source and --reference for files"
        )
    return [Pair(*map(tokenize, pair)) for pair in read_pairs(*files)], set()


def show_scores(scores: dict[str, dict[str, Any]]) -> None:
    """Print scores as sacreBLEU does, one to a line."""
    for measured in scores.values():
        print(measured["line"])


# %% book/13-translation.ipynb · A million lines · [lines-code]
LONGEST_LINE = 1 << 16  # bytes of a line that are read


def read_lines(stream: BinaryIO) -> Iterator[tuple[bytes, bool]]:
    """The lines of a stream, each with whether it was cut off at `LONGEST_LINE` bytes."""
    while line := stream.readline(LONGEST_LINE + 1):
        cut = len(line) > LONGEST_LINE and not line.endswith(b"\n")
        if cut:
            while (rest := stream.readline(LONGEST_LINE)) and not rest.endswith(b"\n"):
                pass
        yield line[:LONGEST_LINE], cut


def decoded(lines: Iterable[tuple[bytes, bool]], place: str) -> Iterator[tuple[str, str]]:
    """Each line's place and its text; of one that was cut, a warning is printed.

    Args:
        lines: in UTF-8, each with whether it was cut.
        place: what a line is called, before its number.

    Raises:
        ValueError: a line is not UTF-8; the message names its place.
    """
    for number, (line, cut) in enumerate(lines, start=1):
        if cut:
            note(f"warning: {place} {number} is cut to its first {LONGEST_LINE:,} bytes")
        try:  # a character that the cut went through is left out
            text = codecs.getincrementaldecoder("utf-8")().decode(line, final=not cut)
        except UnicodeDecodeError as error:
            wrong = f"byte {line[error.start]:#04x} at position {error.start + 1}"
            raise ValueError(f"{place} {number} is not UTF-8: {wrong}") from None
        yield f"{place} {number}", text.rstrip("\r\n").removeprefix("\ufeff")


def grouped(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Lists of up to `size` items; an error comes after the items before it."""
    items, stopped = iter(items), []

    def until_error() -> Iterator[Any]:
        try:
            yield from items
        except ValueError as error:
            stopped.append(error)

    rest = until_error()
    while group := list(islice(rest, size)):
        yield group
    if stopped:
        raise stopped[0]


# %% book/13-translation.ipynb · One line for every mistake · [messages-code]
def one_line(message: object) -> str:
    """A message on one line, with escapes for what is not printable, and without C++ frames."""
    text = str(message).partition("\nException raised from")[0]
    text = " ".join(line.strip() for line in text.splitlines())
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape", "surrogatepass").decode()
        for sign in text
    )


def note(message: object) -> None:
    """Say something on standard error, on one line."""
    print(one_line(message), file=sys.stderr, flush=True)


def refusal(error: Exception) -> str:
    """What is said of an error: its message, and of one that nobody foresaw its type as well."""
    foreseen = (ValueError, TypeError, OSError, ImportError, ArithmeticError)
    if isinstance(error, foreseen) and str(error):
        return f"error: {one_line(error)}"
    said = ": ".join(filter(None, (type(error).__name__, one_line(error))))
    return f"error: {said} (--debug shows where)"


def drop_output() -> None:
    """Let what was printed and cannot be written go nowhere: at its end Python would try again."""
    if sys.stdout is not None:
        try:
            sys.stdout.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def terminable() -> Iterator[None]:
    """Let a request to terminate end the program as an interrupt does, so that it can clean up."""

    def stop(number: int, frame: object) -> None:
        error = KeyboardInterrupt("terminated")
        error.signal = number
        raise error

    if threading.current_thread() is not threading.main_thread():  # others may not ask for signals
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


# %% book/13-translation.ipynb · One line for every mistake · [parser-code]
DESCRIPTION = """\
Train a Transformer that translates Portuguese into English, and use it.

  python -m transformer translate "a menina gosta do gato preto ."
  python -m transformer train phrases --directory runs/mine
  python -m transformer evaluate --model runs/mine/translator --corpus phrases

Every command has a --help of its own."""

RECIPE_HELP = """\
recipes:
{recipes}

All settings of one: python -m transformer info --recipe NAME
With precision = auto, a processor or GPU computes in bfloat16 or float16 where it has units for
that, and in float32 otherwise.

The folder of a run holds config.json (the recipe), log.jsonl (losses; curves.png shows them),
checkpoint-*.pt (where a stopped run goes on), best.pt, and at the end record.json and translator/,
for translate --model. A run that was stopped, by Ctrl-C or --max-minutes, goes on when the same
command is given again; steps may be raised then, and nothing else may change.

With several GPUs: torchrun --nproc-per-node=N -m transformer train NAME"""

TRANSLATE_HELP = """\
Sentences are written as one types them, in UTF-8; translations are in lower case, as the talks and
phrases are that the models learn from. An empty line gives an empty line. A line of more tokens than
the model reads (512 for those of the recipes) is cut, with a warning on standard error, and so is one
of more than 65,536 bytes; a translation has at most 200 tokens.

A terminal is answered line by line. Anything else is read and translated in groups of 64 lines, in
order, in a fixed amount of memory. A line that is not UTF-8 ends the program, with its number, once
the lines before it are answered.

  python -m transformer translate < portuguese.txt > english.txt"""

EVALUATE_HELP = """\
Three lines as sacreBLEU prints them: BLEU on the tokens as the corpora have them (tok:none), BLEU
and chrF2 on text as one types it. Of a corpus, pairs that its training split holds as well are
then left out, and the rest is scored again. Files of your own are brought to lower case first.

  python -m transformer evaluate --model runs/ted/translator --corpus ted --split test --bootstrap
  python -m transformer evaluate --source mine.pt --reference mine.en
  python -m transformer evaluate --model runs/ted/translator --record runs/ted/record.json"""


MODULE = "python -m transformer"
LARGEST_BEAM = 100
LARGEST_PENALTY = 10.0


class Arguments(argparse.ArgumentParser):
    """A parser that leaves it to `main` to say what is wrong."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} (see {self.prog} --help)")


def program() -> str:
    """What the program was started as."""
    name = Path(sys.argv[0]).stem
    return name if name == "transformer-book" else MODULE


def version() -> str:
    """The version of the package, if it is installed."""
    try:
        return metadata.version("transformer-book")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def within(kind: type, low: float, high: float) -> Callable[[str], Any]:
    """A reader of numbers of a kind, from the lowest to the highest allowed."""

    def number(text: str) -> Any:
        value = kind(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"must lie in [{low}, {high}], but is {text}")
        return value

    number.__name__ = kind.__name__  # for the message about what is no number
    return number


def place(text: str) -> Path:
    """A path, which must not be empty: that would be the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("must not be empty")
    return Path(text)


def parser() -> argparse.ArgumentParser:
    """What may stand on the command line."""
    layout, name = argparse.RawDescriptionHelpFormatter, program()
    whole = Arguments(
        prog=name, description=DESCRIPTION.replace(MODULE, name), formatter_class=layout
    )
    whole.add_argument("--version", action="version", version=f"transformer-book {version()}")
    debug = {"action": "store_true", "default": False}
    debug["help"] = "show the traceback of an error (default: one line that says what is wrong)"
    whole.add_argument("--debug", **debug)
    commands = whole.add_subparsers(title="commands", metavar="command")

    def command(run, summary: str, more: str = "") -> argparse.ArgumentParser:
        described = f"{summary[0].upper()}{summary[1:]}."
        sub = commands.add_parser(
            run.__name__,
            help=summary,
            description=described,
            epilog=more.replace(MODULE, name),
            formatter_class=layout,
        )
        sub.add_argument("--debug", **debug | {"default": argparse.SUPPRESS})
        sub.set_defaults(run=run)
        return sub

    recipes = "\n".join(f"  {name:12}{summary(recipe)}" for name, recipe in ALL_RECIPES.items())
    training = command(
        train,
        "train a model, or go on with a run that was stopped",
        RECIPE_HELP.format(recipes=recipes),
    )
    training.add_argument(
        "recipe", nargs="?", choices=ALL_RECIPES, metavar="recipe", help="one of the recipes below"
    )
    training.add_argument(
        "--config",
        type=place,
        metavar="FILE",
        help="take the recipe from a run's config.json or record.json instead",
    )
    training.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="change a setting of the recipe, such as steps=500; may be repeated",
    )
    training.add_argument(
        "--directory", type=place, help="the run's folder (default: runs/ and the recipe's name)"
    )
    training.add_argument(
        "--max-minutes",
        type=within(float, 0.0, float("inf")),
        metavar="M",
        help="stop training after M minutes; the same command goes on later (default: no limit)",
    )
    translating = command(translate, "translate Portuguese sentences into English", TRANSLATE_HELP)
    translating.add_argument(
        "sentence", nargs="*", help="a sentence, in quotes (default: the lines of standard input)"
    )
    evaluating = command(evaluate, "score a translator with sacreBLEU", EVALUATE_HELP)
    evaluating.add_argument("--corpus", help="phrases or ted (default: phrases)")
    evaluating.add_argument("--split", help="train, dev or test (default: test)")
    evaluating.add_argument(
        "--source", type=place, metavar="FILE", help="Portuguese of your own, a sentence a line"
    )
    evaluating.add_argument(
        "--reference", type=place, metavar="FILE", help="its English, line by line"
    )
    evaluating.add_argument(
        "--bootstrap",
        type=within(int, 0, 100_000),
        nargs="?",
        const=1000,
        default=0,
        metavar="N",
        help="give a 95 %% interval from N corpora drawn from this one (default: none; without "
        "a number: 1000)",
    )
    evaluating.add_argument(
        "--record",
        type=place,
        metavar="FILE",
        help="instead of printing scores, examine the translator as train does at the end of a run, "
        "and put what is found into the run's record.json",
    )
    informing = command(info, "show what a translator is made of, or a recipe's settings")
    informing.add_argument(
        "--recipe", choices=ALL_RECIPES, help="show this recipe (default: a translator)"
    )
    for sub in (translating, evaluating, informing):
        sub.add_argument(
            "--model",
            default="phrases",
            metavar="FOLDER",
            help="a translator's folder, such as runs/ted/translator (default: phrases, the small one "
            "that is built in; a folder of that name is ./phrases)",
        )
    for sub in (translating, evaluating):
        sub.add_argument(
            "--beam",
            type=within(int, 1, LARGEST_BEAM),
            default=4,
            help="width of the beam, from 1 to 100: hypotheses kept; 1 for greedy search (default: 4)",
        )
        sub.add_argument(
            "--length-penalty",
            type=within(float, 0.0, LARGEST_PENALTY),
            default=0.6,
            metavar="ALPHA",
            help="how much a long translation is favoured, from 0 (not at all) to 10 (default: 0.6)",
        )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for sub in (training, translating, evaluating):
        sub.add_argument("--device", default=device, help=f"where to compute (default: {device})")
    return whole


def summary(recipe: ToyRecipe | Recipe) -> str:
    """A recipe in a line."""
    if isinstance(recipe, ToyRecipe):
        return f"sequences of {recipe.length} digits, reversed; {recipe.steps:,} updates"
    size = f"{recipe.n_layers}+{recipe.n_layers} layers of width {recipe.d_model}"
    return f"the corpus {recipe.corpus}; {size}, {recipe.steps:,} updates"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; bad input ends in one line on standard error and status 2.

    A reader who has seen enough, as `head` has, ends it silently, with the status that the shell
    gives to a program that a closed pipe stops; whoever interrupts or terminates it gets the
    shell's status for that. An error's traceback is shown with `--debug` only.
    """
    if sys.stderr is None:  # closed by whoever started the program
        sys.stderr = open(os.devnull, "w")
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if sys.stdout is None:
            raise OSError("standard output is closed")
        known = parser()
        options = known.parse_args(arguments)
        if not hasattr(options, "run"):
            known.print_help(sys.stderr)
            return 2
        with terminable():
            options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        drop_output()
        return 141
    except KeyboardInterrupt as error:
        note(str(error) or "interrupted")
        return 128 + getattr(error, "signal", signal.SIGINT)
    except Exception as error:
        if "--debug" in arguments:
            traceback.print_exc()
        note(refusal(error))
        drop_output()
        return 2
    return 0


if __name__ == "__main__":
    if "ipykernel" not in sys.modules:  # a notebook has the same name, and no command line
        sys.exit(main())
