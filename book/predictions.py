"""Predict, then look: what a reader is asked to guess before a cell shows what it found.

A question stands in the metadata of the cell that answers it, as a slider, whose scale may be logarithmic, or
as a choice:

    {"ask": "What share …?", "pattern": "found ([0-9.]+)%", "from": 0, "to": 100, "step": 1, "unit": "%"}
    {"ask": "How many …?", "pattern": "count ([0-9,]+)", "from": 10, "to": 1000000, "log": true}
    {"ask": "Which …?", "pattern": "best +(.+)", "choices": ["this", "that"], "answer": 1}

The figure is not written down: `pattern` finds it in what the cell has printed, so that it is always what it
printed last. `execute.py` writes the question as a cell as well, which Jupyter shows as code and Colab as a
form. It asks only where a person runs it, since its tag keeps it out of every run without one. A new one is
put right before the answer; moved farther up, it stays there. In the page, `_ext/predict.py` makes it a
question that can be answered.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from typing import Any, NamedTuple

PREFIX = "predict-"  # and the id of the cell that answers
TAG = "predict"
TAGS = ["nbval-skip", TAG]
WIDTH = 98
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e-?\d+)?(?!\w)")


class Question(NamedTuple):
    """A question with what the cell has printed: `figure` as it stands there, `value` as a number."""

    name: str
    ask: str
    figure: str
    choices: list[str]
    answer: int
    low: float
    high: float
    step: float
    unit: str
    log: bool

    @property
    def value(self) -> float:
        return float(self.figure.replace(",", ""))

    @property
    def found(self) -> str:
        """What a page says that the cell has found."""
        return self.choices[self.answer] if self.choices else with_unit(self.figure, self.unit)


def with_unit(number: str, unit: str) -> str:
    return f"{number}{'' if unit == '%' else ' '}{unit}".rstrip()


def tells(text: str, question: Question) -> bool:
    """Tell whether a text has the figure of a question, as it is or rounded, with two digits or more."""
    figure = question.figure.rstrip("%").replace(",", "")
    rounded = [] if question.choices else [f"{float(f'{question.value:.{n}g}'):g}" for n in (2, 3)]
    telling = {one for one in (figure, *rounded) if len(re.sub(r"\D", "", one).strip("0")) > 1}
    return not telling.isdisjoint(number.replace(",", "") for number in NUMBER.findall(text))


def printed(cell: Mapping[str, Any]) -> str:
    """Return what a cell has printed; a picture is none of it."""
    texts = []
    for output in cell.get("outputs", []):
        text = output.get("text", output.get("data", {}).get("text/plain", ""))
        texts.append(text if isinstance(text, str) else "".join(text))
    return "\n".join(texts)


def question_of(cell: Mapping[str, Any]) -> Question:
    """Return the question that a cell answers.

    Raises:
        ValueError: The cell does not print the figure that its pattern describes.
    """
    asked = cell["metadata"]["predict"]
    found = re.search(asked["pattern"], printed(cell), re.MULTILINE)
    if not found:
        raise ValueError(f"{cell['id']}: nothing that the cell prints is {asked['pattern']!r}")
    low, high, step = (asked.get(name, 0) for name in ("from", "to", "step"))
    choices, answer = asked.get("choices", []), asked.get("answer", 0)
    more = (choices, answer, low, high, step, asked.get("unit", ""), asked.get("log", False))
    return Question(cell["id"], asked["ask"], found[1], *more)


def questions(notebook: Mapping[str, Any]) -> list[Question]:
    """Return the questions of a notebook, in the order in which they are asked."""
    asked = {cell["id"]: question_of(cell) for cell in notebook["cells"] if "predict" in cell["metadata"]}
    places = [cell["id"] for cell in notebook["cells"]]
    return sorted(asked.values(), key=lambda question: places.index(PREFIX + question.name))


# The cell that asks ------------------------------------------------------------------------------------


def number(value: float) -> str:
    return f"{value:.0f}" if 1e6 <= value < 1e9 else f"{value:g}"


def source_of(question: Question) -> str:
    """Return the cell that asks, as Colab reads a form and Jupyter a program."""
    asked = [f"# @markdown {line}" for line in textwrap.wrap(question.ask, WIDTH)]
    lines = ['# @title Predict { run: "auto" }', *asked]
    if question.choices:
        quoted = ", ".join(f'"{choice}"' for choice in ["?", *question.choices])
        right = question.choices[question.answer]
        lines += [
            f'my_guess = "?"  # @param [{quoted}]',
            'if my_guess == "?":',
            '    print("Choose above, and run this cell.")',
            "else:",
            f'    print("Yes." if my_guess == "{right}" else "No:", "{right}")',
        ]
        return "\n".join(lines)
    low, high, value = number(question.low), number(question.high), question.value
    start = high if value == question.low else low  # what no guess is
    if question.log:
        form = 'type: "number"'
        distance, none = f"{{max(my_guess / {value:g}, {value:g} / my_guess):.3g}} times", "<="
        lines.append(f"# @markdown (Between {low} and {with_unit(high, question.unit)}.)")
    else:
        form = f'type: "slider", min: {low}, max: {high}, step: {number(question.step)}'
        distance, none = f"{{abs(my_guess - {value:g}):.3g}}", "=="
    lines += [
        f"my_guess = {start}  # @param {{{form}}}",
        f"if my_guess {none} {start}:",
        '    print("Guess a number above, and run this cell.")',
        "else:",
        f'    print(f"You guessed {{my_guess}}; the cell below found {question.found}.")',
        f'    print(f"They are {distance} apart.")',
    ]
    return "\n".join(lines)


def ask(notebook: Any, new_cell: Any) -> None:
    """Write the cells that ask, each before the one that answers, and remove those whose answer is gone.

    Args:
        notebook: to be changed.
        new_cell: what makes a code cell, `nbformat.v4.new_code_cell`.
    """
    asked = {PREFIX + cell.id: cell for cell in notebook.cells if "predict" in cell.metadata}
    cells = [cell for cell in notebook.cells if not cell.id.startswith(PREFIX) or cell.id in asked]
    there = {cell.id: cell for cell in cells}
    for name, answer in asked.items():
        if not answer.outputs:  # it has yet to run
            continue
        if name not in there:
            there[name] = new_cell(id=name)
            cells.insert(cells.index(answer), there[name])
        there[name].metadata["tags"] = list(TAGS)
        there[name].source = source_of(question_of(answer))
    notebook.cells = cells
