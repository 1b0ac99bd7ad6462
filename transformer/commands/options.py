"""What commands share: options, and messages."""

import argparse
import difflib
import inspect
import os
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NoReturn
import torch
from transformer.commands.recipes import RECIPES, settings
from transformer.exchange.translators import load_translator
from transformer.language.translator import AnyTranslator, Search
from transformer.training import best_device

__all__ = [
    "Arguments",
    "within",
    "place",
    "program",
    "Add",
    "Setting",
    "search_options",
    "model_option",
    "engine_option",
    "named_translator",
    "device_option",
    "use_threads",
    "one_line",
    "note",
    "tell",
    "drop_output",
]


_OTHER_NAMES = {  # what other programs call a setting of a recipe, or an option
    "batch_size": "max_tokens",
    "epochs": "steps",
    "num_train_epochs": "steps",
    "max_steps": "steps",
    "lr": "peak_rate",
    "learning_rate": "peak_rate",
    "warmup": "warmup_steps",
    "label_smoothing": "smoothing",
    "layers": "n_layers",
    "heads": "n_heads",
    "hidden_size": "d_model",
    "num_beams": "beam_size",
    "output": "directory",
    "output_dir": "directory",
    "gpu": "device",
}


class Arguments(argparse.ArgumentParser):
    """A parser that leaves it to `main` to say what is wrong, and names an unknown option itself."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} (see {self.prog} --help)")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words: list[str] = list(sys.argv[1:] if args is None else args)
        for word in words:  # else argparse takes the value after it for something else
            flag = word.partition("=")[0]
            option = re.match(r"-[^\W\d]|--.", word) and " " not in flag
            if word == "--" or self._subparsers and not option:  # what follows is another's
                break
            start = flag if flag.startswith("--") else flag[:2]
            if option and not any(known.startswith(start) for known in self._option_string_actions):
                self.error(f"unknown option {flag}{self._meant(flag, words)}")
        return super().parse_known_args(words, namespace)

    def _meant(self, flag: str, words: list[str]) -> str:
        """What somebody may have meant by an unknown option, as a question; empty if nothing is like it."""
        options = {known.lstrip("-").replace("-", "_"): known for known in self._option_string_actions}
        recipe = next((RECIPES[word] for word in words if word in RECIPES), RECIPES["phrases"])
        changes = settings(recipe) if "set" in options else {}
        known = {name: f"--set {name}=VALUE" for name in changes} | options
        named = flag.lstrip("-").replace("-", "_")
        near = [name for name in (named, _OTHER_NAMES.get(named, "")) if name in known]
        near += difflib.get_close_matches(named, known, 1)
        return f"; did you mean {known[near[0]]}?" if near else ""


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


Add = Callable[..., Any]  # an argument parser's `add_argument`


class Setting(argparse.Action):
    """An option that changes one setting, `const`, of the value at `dest`, which checks it."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        before = getattr(namespace, self.dest)
        try:
            setattr(namespace, self.dest, replace(before, **{self.const: values}))
        except ValueError as error:
            raise argparse.ArgumentError(self, str(error)) from None


def search_options(add: Add) -> None:
    """Which translator searches, how, and where; `options.search` is the `Search`."""
    model_option(add)
    said = dict(re.findall(r"^    (\w+): (.+)\.$", inspect.getdoc(Search) or "", re.M))
    for setting in fields(Search):
        short = ["--beam"] if setting.name == "beam_size" else []
        flag = "--" + setting.name.replace("_", "-")
        text = f"{said.get(setting.name, setting.name)} (default: {setting.default})"
        kept = {"dest": "search", "default": Search(), "const": setting.name}
        add(*short, flag, action=Setting, type=setting.type, metavar="N", help=text, **kept)
    device_option(add)


def model_option(add: Add) -> None:
    """Which translator."""
    name = "a translator's folder, such as runs/ted-small/translator, or OWNER/NAME on the Hugging Face hub "
    name += "(default: phrases, the small one that is built in; a folder of that name is ./phrases)"
    add("--model", default="phrases", metavar="NAME", help=name)


def engine_option(add: Add) -> None:
    """What runs the search."""
    engine = "search by ctranslate2, a program in C++ (default: PyTorch)"
    add("--engine", choices=["ctranslate2"], help=engine)
    numbers = "what ctranslate2 computes with, such as int8 (default: float32)"
    add("--compute-type", metavar="TYPE", help=numbers)


def named_translator(options: argparse.Namespace) -> AnyTranslator:
    """The translator of the options."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        translator = load_translator(options.model, options.device, options.engine, options.compute_type)
    for warning in caught:
        note(f"warning: {warning.message}")
    return translator


def device_option(add: Add) -> None:
    """On which device."""
    device = best_device().type
    add("--device", default=device, help=f"where to compute (default: {device})")
    many = "threads to compute with (default: as many as PyTorch takes, but one to train a narrow model)"
    add("--threads", type=within(int, 1, 1024), metavar="N", help=many)


_NARROW = 128  # a step of a model up to this width is too short to be shared


def use_threads(options: argparse.Namespace, d_model: int | None = None) -> None:
    """Compute with the threads asked for; unasked, with one for a run of a narrow model."""
    asked: int | None = getattr(options, "threads", None)
    if asked is None and d_model is not None and d_model <= _NARROW and "OMP_NUM_THREADS" not in os.environ:
        asked = 1
    if asked is not None:
        torch.set_num_threads(asked)


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


def drop_output() -> None:
    """Discard output that was printed and cannot be written, which Python would try again at exit."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
