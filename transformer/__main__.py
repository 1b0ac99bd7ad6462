"""transformer.__main__, from book/B-command-line.ipynb, "Appendix B: The command line".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""


# %% book/B-command-line.ipynb · From the command line · [command-line-code]
import argparse
import codecs
import importlib
import os
import re
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import torch

from transformer import __version__
from transformer.checks import check_model
from transformer.corpora import Pair, load_corpus, read_pairs
from transformer.distributed import process_group, rank_and_world_size
from transformer.files import RunFolder, save_weights, write_record
from transformer.interop import ENGINES, load_translator
from transformer.recipes import (
    RECIPES,
    OwnTexts,
    Recipe,
    Reversals,
    changed,
    own_recipe,
    read_recipe,
    settings,
    toy_record,
    train_toy,
    train_translator,
    translation_record,
)
from transformer.serve import make_app, run_server
from transformer.trainer import Trainer, draw_curves
from transformer.translation import Translator, corpus_scores
from transformer.validation import optional_import
from transformer.wording import AS_IT_IS, CORPORA, PREPARATIONS, Preparation


def parsed(recipe: Recipe, changes: Iterable[str]) -> dict[str, Any]:
    """Settings written as `name=value`, each as a value of the recipe's own type.

    Raises:
        ValueError: a value is not of that type. Unknown names are left to `changed`.
    """
    known, values = settings(recipe), {}
    for name, _, text in (change.partition("=") for change in changes):
        kind = type(known.get(name, ""))
        try:
            values[name] = {"true": True, "false": False}[text] if kind is bool else kind(text)
        except (ValueError, KeyError):
            wanted = {bool: "true or false", int: "an int", float: "a float"}[kind]
            raise ValueError(f"{name} must be {wanted}, not {text!r}") from None
    return values


# %% book/B-command-line.ipynb · One line for every mistake · [messages-code]
def one_line(message: object) -> str:
    """A message on one line, with escapes for what is not printable, and without C++ frames."""
    text = str(message).partition("\nException raised from")[0]
    text = " ".join(line.strip() for line in text.splitlines())
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape", "surrogatepass").decode()
        for sign in text
    )


def note(message: object) -> None:
    """Say something on standard error, on one line, whether or not somebody still reads it."""
    try:
        print(one_line(message), file=sys.stderr, flush=True)
    except OSError:
        drop_output()


def tell(message: str) -> None:
    """Say something on standard output, whether or not somebody still reads it."""
    try:
        print(message, flush=True)
    except OSError:
        drop_output()


def refusal(error: Exception) -> str:
    """The text for an error: its message and, if the error was not foreseen, its type."""
    foreseen = (ValueError, TypeError, OSError, ImportError, ArithmeticError)
    if isinstance(error, foreseen) and str(error):
        return f"error: {one_line(error)}"
    said = ": ".join(filter(None, (type(error).__name__, one_line(error))))
    return f"error: {said} (--debug shows where)"


# %% book/B-command-line.ipynb · One line for every mistake · [ending-code]
def drop_output() -> None:
    """Discard output that was printed and cannot be written, which Python would try again at exit."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class Terminated(KeyboardInterrupt):
    """A request to terminate, which ends the program as an interrupt does.

    Attributes:
        signal: its number.
    """

    def __init__(self, number: int) -> None:
        super().__init__("terminated")
        self.signal = number


@contextmanager
def terminable() -> Iterator[None]:
    """Let a request to terminate, or the end of the terminal, end the program as an interrupt does,
    so that it can clean up."""

    def stop(number: int, frame: object) -> None:
        raise Terminated(number)

    handlers = {"SIGINT": signal.default_int_handler, "SIGTERM": stop, "SIGHUP": stop}
    with ExitStack() as stack:
        if threading.current_thread() is threading.main_thread():  # others may not ask for signals
            for name, handler in handlers.items():
                number = getattr(signal, name, None)  # there is no terminal to be closed on Windows
                if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                    before = signal.signal(number, handler)
                    stack.callback(signal.signal, number, before or signal.SIG_DFL)
            stack.callback(setattr, sys, "unraisablehook", sys.unraisablehook)
            sys.unraisablehook = partial(raise_again, sys.unraisablehook)
        yield


def raise_again(report: Callable[[Any], object], ignored: Any) -> None:
    """Send an interrupt once more that came in a callback, where Python ignores exceptions."""
    if issubclass(ignored.exc_type, KeyboardInterrupt):  # the value may be missing
        number = getattr(ignored.exc_value, "signal", signal.SIGINT)
        send = signal.raise_signal
        if hasattr(signal, "pthread_kill"):  # not on Windows; it also wakes a thread that sleeps
            send = partial(signal.pthread_kill, threading.get_ident())
        threading.Timer(0.01, send, [number]).start()  # by then, the callback is over
    else:
        report(ignored)


# %% book/B-command-line.ipynb · A run has a folder · [folder-code]
# What a run, or something else, has left that must not be written over.
_WORK = ("best.pt", "model.safetensors", "vocabulary.json", "record.json", "translator", "curves.png")


def check_folder(folder: Path, recipe: Recipe) -> None:
    """Refuse a folder that holds another run, or something else that training would write over.

    More steps than before may be asked for; any other setting must be as it was.

    Raises:
        ValueError: it holds a run of another recipe, and the message names the first setting that
            differs; checkpoints without a recipe, or results without checkpoints; or a
            `config.json` that is no recipe.
    """
    config, elsewhere = folder / "config.json", "name another --directory"
    checkpoints = RunFolder(folder).checkpoints()
    for name in () if checkpoints else _WORK:
        if (folder / name).exists():
            raise ValueError(
                f"{folder} holds {name}, but no checkpoint of a run to go on from: "
                f"{elsewhere}, or move it away"
            )
    if not config.exists():
        if checkpoints:
            raise ValueError(
                f"{folder} holds checkpoints, but no config.json that tells their recipe: "
                f"put it back, or {elsewhere}"
            )
        return
    try:
        before, asked = settings(read_recipe(config)), settings(recipe)
    except ValueError as error:
        raise ValueError(f"{error}: {elsewhere}, or move it away") from None
    raised = before["steps"] < asked["steps"]
    for name in before | asked:
        there, here = before.get(name), asked.get(name)
        if there != here and not (name == "steps" and raised):
            raise ValueError(
                f"{folder} holds a run with {name} = {there}, and {name} = {here} is asked "
                f"for: {elsewhere}, or go on with --config {config}"
            )
    if checkpoints:
        step = int(checkpoints[-1].stem.rpartition("-")[2])
        more = f", raised from {before['steps']:,}" if raised else ""
        tell(f"going on from step {step:,} of {asked['steps']:,}{more}")


# %% book/B-command-line.ipynb · A run has a folder · [claimed-code]
@contextmanager
def claimed(folder: Path, recipe: Recipe) -> Iterator[RunFolder]:
    """Keep the folder of a run to this process, and refuse it where `check_folder` does.

    Yields:
        the folder, locked; the trainer writes the recipe into it once the run has begun or gone on.

    Raises:
        ValueError: as in `check_folder`.
        BlockingIOError: another process is training there.
    """
    run = RunFolder(folder, asdict(recipe))
    with run.locked():
        check_folder(folder, recipe)
        yield run


# %% book/B-command-line.ipynb · A run has a folder · [memory-code]
def memory_of(device: torch.device | str) -> int | None:
    """The bytes of memory that a device has; `None` where the system does not tell."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not on Windows
        return None


def check_memory(recipe: Recipe, device: torch.device | str = "cpu") -> None:
    """Refuse a model that cannot be trained in the memory of a device.

    It needs 16 bytes per parameter (weights, gradients, and two moments of Adam, each in float32), four
    more for a moving average, and about half a megabyte of Python for a pair of layers. Batches need
    more memory still.

    Raises:
        ValueError: there is less memory; nothing is checked where the system does not tell.
    """
    d, d_ff, n_layers = recipe.model.d_model, recipe.model.d_ff, recipe.model.n_layers
    vocab_size = getattr(recipe.data, "vocab_size", 0)
    parameters = vocab_size * d + n_layers * (12 * d**2 + 4 * d * d_ff)  # without biases and norms
    needed = (16 + 4 * bool(recipe.training.average)) * parameters + 500_000 * n_layers
    memory = memory_of(device)
    if memory is not None and needed > memory:
        raise ValueError(
            f"a model of {parameters:,} parameters needs {needed / 1e9:,.0f} GB in training, but "
            f"{device} has {memory / 1e9:,.0f} GB"
        )


# %% book/B-command-line.ipynb · The commands · [train-code]
def train(options: argparse.Namespace) -> None:
    """Train, and leave the model, its record and its log in the run's folder."""
    recipe, folder = asked_for(options)
    toy = isinstance(recipe.data, Reversals)
    for library in ("tqdm", "safetensors", *(() if toy else ("tokenizers", "sacrebleu"))):
        optional_import(library)  # better to find out now than hours later that it is missing
    with process_group(options.device) as device:
        check_memory(recipe, device)
        first = rank_and_world_size()[0] == 0
        if first and isinstance(recipe.data, OwnTexts):
            announce(recipe)
        with claimed(folder, recipe) if first else nullcontext(RunFolder(folder)) as place:
            how = {"progress": True, "max_minutes": options.max_minutes}
            if toy:
                translator, trainer = None, train_toy(recipe, place, device, **how)
            else:
                translator, trainer = train_translator(recipe, place, device, **how)
    if first:  # of several processes, one is enough from here on
        leave_results(folder, recipe, trainer, translator)


def asked_for(options: argparse.Namespace) -> tuple[Recipe, Path]:
    """The recipe that `train` was given, and the folder of its run.

    Raises:
        ValueError: not exactly one of a recipe, a file and texts is named; no folder for a file's
            recipe; or as in `own_texts`.
        CorpusError: the texts are no corpus.
    """
    own = own_texts(options)
    if [options.recipe is None, options.config is None, not own].count(False) != 1:
        raise ValueError(
            "train needs one of three: the name of a recipe, --config, or texts of your own "
            "(--source and --target, or --pairs)"
        )
    if options.config and options.directory is None:
        raise ValueError("--config needs --directory as well: a folder for the run")
    folder = options.directory or Path("runs") / (options.recipe or "own")
    if own:
        recipe = recipe_of_texts(options, own, folder)
    else:
        recipe = RECIPES[options.recipe] if options.recipe else read_recipe(options.config)
    return changed(recipe, **parsed(recipe, options.set)), folder


# %% book/B-command-line.ipynb · The commands · [own-train-code]
def own_texts(options: argparse.Namespace) -> dict[str, str]:
    """The files that `train` was given, by the names that `OwnTexts` has for them; none for a recipe.

    Raises:
        ValueError: of two files that belong together, one is missing, or too many are named; or what is
            said of texts is said of a recipe.
    """
    files: dict[str, str] = {}
    for prefix in ("", "dev_"):
        both, one = [getattr(options, f"{prefix}{side}") for side in ("source", "target")], f"{prefix}pairs"
        flags = [f"--{prefix}{side}".replace("_", "-") for side in ("source", "target", "pairs")]
        if both.count(None) == 1:
            raise ValueError(f"{flags[0]} and {flags[1]} belong together: two files, a sentence a line")
        if (pairs := getattr(options, one)) is not None:
            if None not in both:
                raise ValueError(f"{flags[2]} takes the place of {flags[0]} and {flags[1]}")
            both = [pairs, ""]
        if None not in both:
            files |= {f"{prefix}{side}": str(path) for side, path in zip(("source", "target"), both)}
    if "source" not in files:
        for name in ("dev_source", "languages", "preparation"):
            if files.get(name) or getattr(options, name, None):
                option = "--" + name.replace("_", "-")
                raise ValueError(f"{option} is for texts of your own: --source and --target, or --pairs")
    return files


def recipe_of_texts(options: argparse.Namespace, files: dict[str, str], folder: Path) -> Recipe:
    """The recipe for texts: that of the run in the folder, if it has begun with these files, or a new one."""
    languages = tuple(options.languages) if options.languages else None
    if RunFolder(folder).checkpoints() and (folder / "config.json").is_file():
        recipe, names = read_recipe(folder / "config.json"), ("source", "target", "dev_source", "dev_target")
        there = {name: getattr(recipe.data, name, "") for name in names}
        if there == dict.fromkeys(names, "") | files:
            asked = {"preparation": options.preparation, "languages": " ".join(languages or ())}
            return changed(recipe, **{name: value for name, value in asked.items() if value})
        if isinstance(recipe.data, OwnTexts):
            theirs, ours = ", ".join(recipe.data.files), ", ".join(filter(None, files.values()))
            raise ValueError(f"{folder} holds a run on {theirs}, not on {ours}: name another --directory")
    chosen = Preparation(options.preparation or AS_IT_IS.name, languages)
    return own_recipe(**files, preparation=chosen)


def announce(recipe: Recipe) -> None:
    """Say what was chosen for texts of somebody's own."""
    data, model, steps = recipe.data, recipe.model, recipe.training.steps
    assert isinstance(data, OwnTexts)
    train, dev = data.load("train"), data.load("dev")
    origin = f"from {data.dev_source}" if data.dev_source else "held out: no copy of them is trained on"
    print(f"{len(train):,} pairs to train on, {len(dev):,} to judge by, {origin}")
    print(f"texts: {data.prepared}; a vocabulary of up to {data.vocab_size:,} tokens")
    print(
        f"{model.n_layers}+{model.n_layers} layers of width {model.d_model}, dropout {model.dropout}; "
        f"{steps:,} updates with batches of {data.max_tokens:,} tokens",
        flush=True,
    )


# %% book/B-command-line.ipynb · The commands · [results-code]
def leave_results(
    folder: Path, recipe: Recipe, trainer: Trainer, translator: Translator | None
) -> None:
    """Write what was trained into the run's folder and, once the run is over, its record."""
    usable = folder / ("model.safetensors" if translator is None else "translator")
    if translator is None:  # `train_translator` leaves its own
        save_weights(trainer.model, usable, torch.float16)
    with suppress(ImportError):  # without matplotlib the run is just as good
        draw_curves(trainer.history, folder / "curves.png")
    if not trainer.finished:
        tell(f"time is over at step {trainer.step:,}; the same command goes on from there")
        tell(f"what can be used already: {one_line(usable)}")
        return
    if translator is None:
        record = toy_record(trainer, recipe)
        said = f"exact match on 10,000 unseen sequences: {record['test']['sequences']:.2%}"
    else:
        note("training is over; scoring it takes some minutes more …")
        record = translation_record(translator, trainer, recipe)
        own = isinstance(recipe.data, OwnTexts)
        scores = record["scores"]["held out"]["beam 4"] if own else record["scores"]["test"]["tuned"]
        said = "\n".join(score["line"] for score in scores.values())
        translator.save_pretrained(usable, record=record)
    write_record(folder / "record.json", record)
    tell(said)
    tell(f"the run's folder: {one_line(folder)}")


# %% book/B-command-line.ipynb · The commands · [translate-code]
GROUP = 64  # lines that are translated together


def translate(options: argparse.Namespace) -> None:
    """Translate the sentences given or, where there are none, the lines of standard input."""
    translator = load_translator(options.model, options.device, options.engine)
    size = GROUP
    if options.sentence:
        given = decoded(((os.fsencode(text), False) for text in options.sentence), "sentence")
    elif sys.stdin is None:
        raise OSError("standard input is closed, and no sentence is given")
    else:
        if sys.stdin.isatty():
            note("One sentence a line; an end of file (Ctrl-D) ends it.")
            size = 1  # a person who types a line waits for its translation
        given = decoded(read_lines(sys.stdin.buffer), "standard input, line")
    for group in grouped(given, size):
        places, sentences = zip(*group, strict=True)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            answers = translator.translate(sentences, options.beam, options.length_penalty)
        for warning in caught:
            note(f"warning: {placed(str(warning.message), places)}")
        print(*answers, sep="\n", flush=True)


def placed(warning: str, places: Sequence[str]) -> str:
    """A translator's warning, with the place of a sentence instead of its number in the group."""
    return re.sub(r"^sentence (\d+)", lambda number: places[int(number[1]) - 1], warning)


# %% book/B-command-line.ipynb · The commands · [lines-code]
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
    """Each line's place and its text; a warning says which were cut.

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


# %% book/B-command-line.ipynb · The commands · [grouped-code]
def grouped(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Lists of up to `size` items; an error comes after the items before it."""
    group: list[Any] = []
    try:
        for item in items:
            group.append(item)
            if len(group) == size:
                yield group
                group = []
    except ValueError:
        if group:
            yield group
        raise
    if group:
        yield group


# %% book/B-command-line.ipynb · The commands · [evaluate-code]
def evaluate(options: argparse.Namespace) -> None:
    """Score a translator on a split of a corpus, or on two files."""
    translator = Translator.from_pretrained(options.model, device=options.device)
    pairs, seen = evaluation_pairs(options, translator.preparation)
    sources = [source for source, _ in pairs]
    targets = [translator.vocabulary.prepare(target) for _, target in pairs]
    scored = partial(
        corpus_scores, n_bootstrap=options.bootstrap, preparation=translator.preparation
    )
    note(f"scoring {len(pairs):,} pairs …")
    hypotheses = translator.translate_tokenized(sources, options.beam, options.length_penalty)
    print(f"{len(pairs):,} pairs, beam {options.beam}, length penalty {options.length_penalty}")
    show_scores(scored(hypotheses, targets))
    rows = [row for row, pair in enumerate(pairs) if pair not in seen]
    if 0 < len(rows) < len(pairs):
        print(
            f"{len(rows):,} pairs, without {len(pairs) - len(rows):,} that are in the training split as well"
        )
        ours, theirs = ([side[row] for row in rows] for side in (hypotheses, targets))
        show_scores(scored(ours, theirs))


def evaluation_pairs(
    options: argparse.Namespace, preparation: Preparation
) -> tuple[list[Pair], set[Pair]]:
    """The pairs that `evaluate` is asked for, and those that training showed.

    Raises:
        ValueError: one of two files is missing, or a corpus is asked for as well, or it is not of the kind
            of texts that the translator was made for.
        CorpusError: a file is not UTF-8, or the two do not have the same number of lines.
    """
    files = options.source, options.reference
    if files == (None, None):
        corpus, split = options.corpus or "phrases", options.split or "test"
        if preparation != CORPORA:
            raise ValueError(
                f"a translator of texts that are {preparation} cannot be scored on --corpus {corpus}, whose "
                f"texts are {CORPORA}: name --source and --reference"
            )
        seen = load_corpus(corpus, "train") if split != "train" else []
        return load_corpus(corpus, split), set(seen)
    if None in files:
        raise ValueError("--source and --reference belong together: two files, a sentence a line")
    if (options.corpus, options.split) != (None, None):
        raise ValueError(
            "--corpus and --split are for a corpus, --source and --reference for files"
        )
    return read_pairs(*files), set()


def show_scores(scores: dict[str, dict[str, Any]]) -> None:
    """Print scores as sacreBLEU does, one to a line."""
    for measured in scores.values():
        print(measured["line"])


# %% book/B-command-line.ipynb · The commands · [info-code]
import json


def info(options: argparse.Namespace) -> None:
    """Show what a translator is made of, or the settings of a recipe."""
    if options.recipe is not None:
        shown = settings(RECIPES[options.recipe])
    else:
        model = Translator.from_pretrained(options.model).model
        shown = {"parameters": sum(parameter.numel() for parameter in model.parameters())}
        shown |= asdict(model.config)
    if options.json:
        print(json.dumps(shown, indent=2))
        return
    for name, value in shown.items():
        print(f"{name}: {value}")


# %% book/B-command-line.ipynb · The commands · [serve-code]
def serve(options: argparse.Namespace) -> None:
    """Translate over HTTP until a signal to stop."""
    for library in ("fastapi", "uvicorn"):
        optional_import(library)  # better to find out now than after loading that it is missing
    translator = load_translator(options.model, options.device, options.engine)
    run_server(make_app(translator, options.beam, options.length_penalty), options.host, options.port)


# %% book/B-command-line.ipynb · The commands · [check-code]
def check(options: argparse.Namespace) -> int:
    """Examine the model that a function builds; the status is 1 if a check fails."""
    sizes = options.src_vocab_size, options.tgt_vocab_size
    special = options.pad_id, options.bos_id
    try:
        report = check_model(built(options.factory), *sizes, *special, positions=options.positions)
    except SystemExit as error:  # not a status of this program
        raise ValueError(f"{options.factory} called exit({error.code!r}), and left no model") from error
    print(report)
    return int(not report.passed)


def built(name: str) -> Any:
    """What a user's own function returns.

    Args:
        name: as in `module:function`; a module in the current folder is found as well.

    Raises:
        ValueError: there is no such function, or the name has another form.
    """
    module, _, function = name.partition(":")
    if not (module and function):
        raise ValueError(f"a factory is named as module:function, not {name!r}")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    factory = getattr(importlib.import_module(module), function, None)
    if not callable(factory):
        raise ValueError(f"module {module} has no function {function}")
    return factory()


# %% book/B-command-line.ipynb · The options · [help-code]
DESCRIPTION = """\
Train a Transformer that translates, on a corpus of this book or texts of your own, and use it.
The one that is built in translates Portuguese into English; --model takes any other.

  python -m transformer translate "A menina gosta do gato preto."
  python -m transformer train phrases --directory runs/mine
  python -m transformer evaluate --model runs/mine/translator --corpus phrases
  python -m transformer train --source train.de --target train.en

Every command has a --help of its own."""

TRAIN_HELP = """\
recipes:
{recipes}

All settings of one: python -m transformer info --recipe NAME
With precision = auto, a CPU or GPU computes in bfloat16 or float16 where it has units for that,
and in float32 otherwise.

The folder of a run holds config.json (the recipe), log.jsonl (losses; curves.png shows them),
checkpoint-*.pt (where a stopped run goes on), best.pt, and the model: translator/, for
translate --model, or model.safetensors of the toy. At the end of the run, record.json is added.
A run that was stopped, by Ctrl-C or --max-minutes, goes on when the same command is given again;
steps may be raised then, and nothing else may change.

Texts of your own take the place of a recipe: two files in UTF-8, of which line n of one translates line
n of the other, or one file with a tab between sentence and translation.

  python -m transformer train --source train.de --target train.en --languages de en
  python -m transformer train --pairs dates.tsv --directory runs/dates --set steps=2000

Vocabulary, model, batches and steps are chosen by the size of the corpus, and said. Without dev files
a twentieth of the pairs, at most 1,000, is held out and scored at the end. What is done to the texts is
kept with the translator, which treats whatever it translates in the same way.

With several GPUs: torchrun --nproc-per-node=N -m transformer train NAME"""

TRANSLATE_HELP = """\
Sentences are written as one types them, in UTF-8. The translator treats them as it did those that it
has learned from; translations of models of the talks and phrases are in lower case, like these.

An empty line gives an empty line. A line of more tokens than the model reads (512 for those of the
recipes) is cut, with a warning on standard error, and so is one of more than 65,536 bytes; a translation
has at most 200 tokens.

A terminal is answered line by line. Anything else is read and translated in groups of 64 lines, in
order, in a fixed amount of memory. A line that is not UTF-8 ends the program, with its number, once
the lines before it are answered.

  python -m transformer translate < portuguese.txt > english.txt

A name with one slash that is not a folder is looked up on the Hugging Face hub: a translator that
Translator.push_to_hub has put there, or a Marian model with weights in safetensors. Only files that
execute nothing are fetched, and they are kept, so that the next call needs no network."""

SERVE_HELP = """\
  curl --json '{"sentences": ["Gosto disto."]}' http://127.0.0.1:8000/translate

A request has up to 64 sentences of up to 1,000 characters; more is refused with status 413, a body of
another form with 422, and one that takes more than 20 seconds to arrive with 408. Requests that arrive
together are translated together, and short ones need not wait for long ones. With 131,072 tokens
waiting, others are refused with status 503. There is a page to try it at /, documentation at /docs,
the state at /health, and numbers for Prometheus at /metrics. Ctrl-C, or SIGTERM, ends the program
once it has answered what it has accepted; after 20 seconds, or at Ctrl-C again, it refuses the rest.
It has no encryption and no passwords: on an open network, put a web server that has them before it."""

CHECK_HELP = """\
  python -m transformer check mine:build

calls the function build of mine.py, in the current folder, and examines the model that it returns.
A model that is not called as model(src, tgt) needs an adapter around it, from transformer.checks:
seq2seq and decoder_only for models of Hugging Face, torch_transformer for torch.nn.Transformer.
The status is 0 if no check fails, 1 if one does, and 2 if there is nothing to check."""

EVALUATE_HELP = """\
Lines as sacreBLEU prints them: BLEU on the tokens as the corpora have them (tok:none), if the texts of
the translator are split into tokens; BLEU and chrF2 on text as one types it; and how many translations
are equal to their reference. Of a corpus, pairs that its training split holds as well are then left out,
and the rest is scored again. Files of your own are prepared as the translator's texts are.

  python -m transformer evaluate --model runs/ted/translator --corpus ted --split test --bootstrap
  python -m transformer evaluate --model runs/own/translator --source test.de --reference test.en"""


# %% book/B-command-line.ipynb · The options · [kinds-code]
class Arguments(argparse.ArgumentParser):
    """A parser that leaves it to `main` to say what is wrong."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} (see {self.prog} --help)")


def within(kind: type, low: float, high: float) -> Callable[[str], Any]:
    """A parser of numbers of a type, from the lowest to the highest allowed."""

    def number(text: str) -> Any:
        value = kind(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"must lie in [{low}, {high}], but is {text}")
        return value

    number.__name__ = kind.__name__  # for the message about what is not a number
    return number


def place(text: str) -> Path:
    """A path, which must not be empty: that would be the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("must not be empty")
    return Path(text)


def program() -> str:
    """The name under which the program was started."""
    name = Path(sys.argv[0]).stem
    return name if name == "transformer-book" else "python -m transformer"


def summary(recipe: Recipe) -> str:
    """A recipe in a line."""
    model, steps = recipe.model, recipe.training.steps
    if isinstance(recipe.data, Reversals):
        return f"sequences of {recipe.data.length} digits, reversed; {steps:,} updates"
    size = f"{model.n_layers}+{model.n_layers} layers of width {model.d_model}"
    return f"the corpus {recipe.data.corpus}; {size}, {steps:,} updates"


# %% book/B-command-line.ipynb · The options · [options-code]
Add = Callable[..., Any]  # an argument parser's `add_argument`


def train_options(add: Add) -> None:
    """The options of `train`."""
    add("recipe", nargs="?", choices=list(RECIPES), metavar="recipe", help="one of the recipes below")
    instead = "take the recipe from a run's config.json or record.json instead"
    add("--config", type=place, metavar="FILE", help=instead)
    change = "change a setting of the recipe, such as steps=500; may be repeated"
    add("--set", action="append", default=[], metavar="NAME=VALUE", help=change)
    texts_options(add)
    folder = "the run's folder (default: runs/ and the recipe's name, or runs/own)"
    add("--directory", type=place, help=folder)
    stop = "stop training after M minutes; the same command goes on later (default: no limit)"
    add("--max-minutes", type=within(float, 0.0, float("inf")), metavar="M", help=stop)
    device_option(add)


def texts_options(add: Add) -> None:
    """What `train` can be given in place of a recipe."""
    texts = "texts of your own to train on, a sentence a line (default: the corpus of a recipe)"
    add("--source", type=place, metavar="FILE", help=texts)
    add("--target", type=place, metavar="FILE", help="their translations, line by line (default: none)")
    both = "one file in place of both, a tab between sentence and translation (default: none)"
    add("--pairs", type=place, metavar="FILE", help=both)
    judge = "texts to judge by, which are not trained on (default: some are held out)"
    add("--dev-source", type=place, metavar="FILE", help=judge)
    add("--dev-target", type=place, metavar="FILE", help="their translations (default: none)")
    add("--dev-pairs", type=place, metavar="FILE", help="one file in place of both (default: none)")
    codes = "their languages, such as de en, for the model card (default: not said)"
    add("--languages", nargs=2, metavar=("SOURCE", "TARGET"), help=codes)
    form = "what is done to all texts, in training and in use (default: as it is)"
    add("--preparation", choices=PREPARATIONS, help=form)


def translate_options(add: Add) -> None:
    """The options of `translate`."""
    add("sentence", nargs="*", help="a sentence, in quotes (default: the lines of standard input)")
    engine_option(add)
    search_options(add)


def evaluate_options(add: Add) -> None:
    """The options of `evaluate`."""
    add("--corpus", help="phrases or ted (default: phrases)")
    add("--split", help="train, dev or test (default: test)")
    add("--source", type=place, metavar="FILE", help="texts of your own, one a line")
    add("--reference", type=place, metavar="FILE", help="their translations, line by line")
    interval = "give a 95%% interval from N corpora drawn from this one "
    interval += "(default: none; without a number: 1000)"
    count = {"type": within(int, 0, 100_000), "nargs": "?", "const": 1000, "default": 0}
    add("--bootstrap", **count, metavar="N", help=interval)
    search_options(add)


def serve_options(add: Add) -> None:
    """The options of `serve`."""
    address = "the address to listen on; 0.0.0.0 for every one of this machine, :: for those of IPv6 as well "
    address += "(default: 127.0.0.1)"
    add("--host", default="127.0.0.1", help=address)
    port = "the port to listen on; 0 for any free one (default: 8000)"
    add("--port", type=within(int, 0, 65535), default=8000, help=port)
    engine_option(add)
    search_options(add)


def info_options(add: Add) -> None:
    """The options of `info`."""
    add("--recipe", choices=list(RECIPES), help="show this recipe (default: a translator)")
    add("--json", action="store_true", help="as JSON (default: none, a setting to a line)")
    model_option(add)


# %% book/B-command-line.ipynb · The options · [shared-options-code]
def search_options(add: Add) -> None:
    """Which translator searches, how, and where."""
    model_option(add)
    width = "width of the beam, from 1 to 100: hypotheses kept; 1 for greedy search (default: 4)"
    add("--beam", type=within(int, 1, 100), default=4, help=width)
    length = "how much a long translation is favored, from 0 (not at all) to 10 (default: 0.6)"
    number = within(float, 0.0, 10.0)
    add("--length-penalty", type=number, default=0.6, metavar="ALPHA", help=length)
    device_option(add)


def model_option(add: Add) -> None:
    """Which translator."""
    name = "a translator's folder, such as runs/ted/translator, or OWNER/NAME on the Hugging Face hub "
    name += "(default: phrases, the small one that is built in; a folder of that name is ./phrases)"
    add("--model", default="phrases", metavar="NAME", help=name)


def engine_option(add: Add) -> None:
    """What runs the search."""
    engine = "what searches: pytorch, or ctranslate2, a program in C++ (default: pytorch)"
    add("--engine", choices=ENGINES, default="pytorch", help=engine)


def device_option(add: Add) -> None:
    """On which device."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    add("--device", default=device, help=f"where to compute (default: {device})")


# %% book/B-command-line.ipynb · The options · [check-options-code]
def check_options(add: Add) -> None:
    """The options of `check`."""
    add("factory", metavar="MODULE:FUNCTION", help="a function without arguments that builds the model")
    unsaid = "(default: as the model's configuration says)"
    size = within(int, 1, 2**22)
    add("--src-vocab-size", type=size, metavar="N", help=f"number of source tokens {unsaid}")
    add("--tgt-vocab-size", type=size, metavar="N", help=f"number of target tokens {unsaid}")
    add("--pad-id", type=int, metavar="ID", help=f"the padding token {unsaid}")
    add("--bos-id", type=int, metavar="ID", help=f"the token that a target begins with {unsaid}")
    kinds = "what the model is meant to have; rotary positions are relative (default: not said)"
    add("--positions", choices=("absolute", "relative", "none"), help=kinds)


# %% book/B-command-line.ipynb · The options · [parser-code]
class Completion(argparse.Action):
    """Print a shell's completion of the command line, and end."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> NoReturn:
        shtab = optional_import("shtab")
        (commands,) = (action.choices for action in parser._actions if isinstance(action.choices, dict))
        for action in (action for command in commands.values() for action in command._actions):
            if action.dest in ("model", "directory"):
                action.complete = shtab.DIRECTORY
            elif action.type is place:
                action.complete = shtab.FILE
        parser.prog = "transformer-book"
        print(shtab.complete(parser, values))
        parser.exit()


def parser() -> argparse.ArgumentParser:
    """What may appear on the command line."""
    layout = argparse.RawDescriptionHelpFormatter
    name, module = program(), "python -m transformer"
    described = DESCRIPTION.replace(module, name)
    whole = Arguments(prog=name, description=described, formatter_class=layout)
    whole.add_argument("--version", action="version", version=f"transformer-book {__version__}")
    debug = "show the traceback of an error (default: one line that says what is wrong)"
    whole.add_argument("--debug", action="store_true", help=debug)
    script = "print what makes bash, zsh or fish complete transformer-book at the Tab key"
    shells = ("bash", "zsh", "fish")
    whole.add_argument(
        "--print-completion", action=Completion, choices=shells, metavar="SHELL", help=script
    )
    commands = whole.add_subparsers(title="commands", metavar="command")
    recipes = "\n".join(f"  {key:12}{summary(recipe)}" for key, recipe in RECIPES.items())
    training = TRAIN_HELP.format(recipes=recipes)
    for run, line, more, fill in (
        (train, "train a model, or go on with a run that was stopped", training, train_options),
        (translate, "translate sentences, given here or line by line", TRANSLATE_HELP, translate_options),
        (evaluate, "score a translator with sacreBLEU", EVALUATE_HELP, evaluate_options),
        (serve, "translate over HTTP", SERVE_HELP, serve_options),
        (check, "look for faults of a model of yours", CHECK_HELP, check_options),
        (info, "show what a translator is made of, or a recipe's settings", "", info_options),
    ):
        more, described = more.replace(module, name), f"{line[0].upper()}{line[1:]}."
        sub = commands.add_parser(
            run.__name__, help=line, description=described, epilog=more, formatter_class=layout
        )
        sub.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=debug)
        sub.set_defaults(run=run)
        fill(sub.add_argument)
    return whole


# %% book/B-command-line.ipynb · The options · [main-code]
def main(arguments: list[str] | None = None) -> int:
    """Run the command line; bad input ends in one line on standard error and status 2.

    A closed pipe, such as `head` leaves behind, ends the program silently. The status is then the
    one that a shell has for it, as it is after an interrupt or a request to terminate. `--debug` shows
    an error's traceback.
    """
    if sys.stderr is None:  # the parent process has closed it
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
            status: int | None = options.run(options)
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
    drop_output()
    return status or 0


if __name__ == "__main__":
    if "ipykernel" not in sys.modules:  # a notebook has the same name, and no command line
        sys.exit(main())
