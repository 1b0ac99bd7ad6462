"""Questions that a reader can answer in the page, each above the cell that answers it.

`book/predictions.py` says what a question is. Here the cell that asks becomes a choice or a slider, and the
output of the cell that answers is marked, so that `_static/predict.js` can veil it until the reader has
guessed or wants to see it. Before the exercises stands a list of the chapter's questions, which the script
fills with the guesses. Nothing is veiled, and nothing can be pressed, where scripts do not run: there the
question is a paragraph, and so it is on paper.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parents[1]))
import predictions  # noqa: E402
from cells import has_picture  # noqa: E402
from predictions import Question  # noqa: E402

MARK = "predict"
STEPS = 120  # of a logarithmic slider


def ask(app: Sphinx, doctree: nodes.document) -> None:
    """Write the questions of a chapter, mark what answers them, and list them before the exercises."""
    path = Path(app.env.doc2path(app.env.docname))
    if path.suffix != ".ipynb":
        return
    questions = predictions.questions(json.loads(path.read_text(encoding="utf8")))
    cells = [node for node in doctree.findall(nodes.container) if node.get("nb_element") == "cell_code"]
    forms = [cell for cell in cells if predictions.TAG in cell["cell_metadata"].get("tags", [])]
    answers = [cell for cell in cells if MARK in cell["cell_metadata"]]
    for form, question in zip(forms, questions, strict=True):
        form.replace_self(nodes.raw("", html_of(question), format="html"))
    for answer in answers:
        asked = answer["cell_metadata"][MARK]["ask"]
        (question,) = (one for one in questions if one.ask == asked)
        shown = outputs(answer)
        for part in (*shown, *telling(shown[-1], question)):
            part["classes"].append(f"answers-{question.name}")
    if questions:
        doctree[MARK] = True
        place = exercises(doctree)
        place.parent.insert(place.parent.index(place), nodes.raw("", summary_of(questions), format="html"))


def outputs(answer: nodes.container) -> list[nodes.container]:
    """Return what a cell shows, and what the next one draws of it if no word stands between them."""
    shown = [part for part in answer.children if part.get("nb_element") == "cell_code_output"]
    after = answer.next_node(descend=False, siblings=True)
    if isinstance(after, nodes.container) and MARK not in after.get("cell_metadata", {MARK: None}):
        drawn = [part for part in after.children if part.get("nb_element") == "cell_code_output"]
        shown += [part for part in drawn if has_picture(part)]
    return shown


def telling(shown: nodes.container, question: Question) -> Iterator[nodes.Element]:
    """Yield what tells the answer below what a cell shows: the first paragraph, and what has the figure.

    A later cell is no paragraph, and has the figure in its code or in what it shows.
    """
    cell = shown.parent
    for place, part in enumerate(cell.parent[cell.parent.index(cell) + 1 :]):
        if isinstance(part, (nodes.section, nodes.raw)):
            return
        is_first_paragraph = not place and not isinstance(part, nodes.container)
        if is_first_paragraph or predictions.tells(part.astext().replace("_", ","), question):
            yield part


def exercises(doctree: nodes.document) -> nodes.section:
    """Return the section of a chapter's exercises."""
    return next(part for part in doctree.findall(nodes.section) if part[0].astext() == "Exercises")


# HTML --------------------------------------------------------------------------------------------------


def html_of(question: Question) -> str:
    """Return a question as HTML; what only a script can answer to is `pst-js-only`."""
    name = f"predict-{question.name}"
    known = {"name": question.name, "found": question.found}
    if question.choices:
        known |= {"answer": question.answer, "figure": question.figure}
    else:
        known |= {"value": question.value, "unit": question.unit, "log": question.log}
        known |= {"low": question.low, "high": question.high, "step": question.step}
    return (
        f'<div class="predict" id="{name}" role="group" aria-labelledby="{name}-ask"'
        f' data-question="{escape(json.dumps(known))}">'
        f'<p class="predict-ask" id="{name}-ask"><strong>Predict.</strong> {escape(question.ask)}</p>'
        f"{choices(question, name) if question.choices else slider(question, name)}"
        '<div class="predict-foot pst-js-only"><p class="predict-buttons">'
        '<button type="button" class="guess">Guess</button>'
        '<button type="button" class="show">Show me</button></p>'
        '<p class="predict-result" role="status" tabindex="-1"></p></div></div>\n'
    )


def choices(question: Question, name: str) -> str:
    labels = [
        f'<label><input class="pst-js-only" type="radio" name="{name}" value="{place}">'
        f" <span>{escape(choice)}</span></label>"
        for place, choice in enumerate(question.choices)
    ]
    return f'<div class="predict-choices">{"".join(labels)}</div>'


def slider(question: Question, name: str) -> str:
    low, high, step = (0, STEPS, 1) if question.log else (question.low, question.high, question.step)
    ends = [end(value, question) for value in (question.low, question.high)]
    middle = low + round((high - low) / 2 / step) * step
    return (
        '<div class="predict-scale"><span class="predict-value pst-js-only" aria-hidden="true"></span>'
        '<div class="predict-track">'
        f'<input class="pst-js-only" type="range" min="{low}" max="{high}" step="{step}" value="{middle:g}"'
        f' aria-labelledby="{name}-ask"></div>'
        f'<p class="predict-ends"><span>{ends[0]}</span> <span>{ends[1]}</span></p></div>'
    )


def end(value: float, question: Question) -> str:
    shown = f"{value:,.0f}" if 1e3 <= value < 1e12 else f"{value:g}".replace("-", "\u2212")
    return escape(predictions.with_unit(shown, question.unit))


def summary_of(questions: list[Question]) -> str:
    """Return the list of questions, to be filled by the script."""
    items = [
        f'<li data-name="{one.name}"><a href="#predict-{one.name}">{escape(one.ask)}</a> <span></span></li>'
        for one in questions
    ]
    return (
        '<div class="predict-summary pst-js-only" role="group" aria-label="Your predictions">'
        f'<p role="status"></p><details><summary>The questions</summary><ul>{"".join(items)}</ul>'
        '<button type="button" class="forget">Forget my guesses</button></details></div>\n'
    )


def load_script(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    if doctree and doctree.get(MARK):
        app.add_js_file("predict.js", loading_method="defer")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-read", ask, priority=400)  # before cells.py looks at the cells
    app.connect("html-page-context", load_script)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
