"""Predict, then look: questions that the cells below them answer, in the notebooks and in the pages."""
# ruff: noqa: F811 (a fixture has the name under which it is imported)

from __future__ import annotations

import copy
import re

import nbformat
import predictions
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from playwright.sync_api import Browser, Locator, Page
from predictions import PREFIX, Question
from test_book import HTML, PATIENCE, ROOT, TOO_WIDE, chromium, reads_pages, show, tab, visit  # noqa: F401

PATHS = sorted((ROOT / "book").glob("[0-9][0-9]-*.ipynb"))
NOTEBOOKS = {path.stem: nbformat.read(path, as_version=4) for path in PATHS}
ASKED = {name: predictions.questions(notebook) for name, notebook in NOTEBOOKS.items()}
EVERY = [
    pytest.param(NOTEBOOKS[name], question, id=f"{name[:2]}-{question.name}")
    for name, questions in ASKED.items()
    for question in questions
]
each_question = pytest.mark.parametrize("notebook, question", EVERY)
SMALL = {"ask": "How many?", "pattern": r"found (\d+)", "from": 0, "to": 10, "step": 1}


# In the notebooks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ASKED)
def test_a_chapter_asks_one_to_three_questions_that_can_be_answered(name):
    assert 1 <= len({question.ask for question in ASKED[name]}) == len(ASKED[name]) <= 3
    for question in ASKED[name]:
        assert question.ask.endswith("?") and len(question.ask) <= 220
        cell = NOTEBOOKS[name].cells[place(NOTEBOOKS[name], PREFIX + question.name)]
        assert cell.source == predictions.source_of(question), "python book/execute.py --tidy"
        assert cell.metadata == {"tags": predictions.TAGS, "cellView": "form"}
        if question.choices:
            assert 2 <= len(set(question.choices)) == len(question.choices) <= 5
        else:
            assert question.low <= question.value <= question.high
            assert not question.log or 0 < question.low <= question.high / 100


def place(notebook: NotebookNode, name: str) -> int:
    return [cell.id for cell in notebook.cells].index(name)


@each_question
def test_a_question_comes_before_its_answer(notebook, question):
    asked, told = place(notebook, PREFIX + question.name), place(notebook, question.name)
    between = [cell.source for cell in notebook.cells[asked:told] if cell.cell_type == "markdown"]
    assert asked < told and not any(predictions.tells(text, question) for text in between)


def test_a_text_tells_a_figure_as_it_is_or_rounded():
    question = predictions.question_of(small().cells[1])._replace(figure="1,377", unit="")
    found = [predictions.tells(text, question) for text in ("is 1,377.", "about 1,400", "1,000", "11,377")]
    assert found == [True, True, False, False]


def small() -> NotebookNode:
    cells = [
        new_markdown_cell("# A", id="title"),
        new_code_cell("print('found 7')", id="count", metadata={"predict": dict(SMALL)}),
    ]
    cells[1].outputs = [new_output("stream", name="stdout", text="found 7\n")]
    return new_notebook(cells=cells)


def test_a_question_is_written_before_its_answer_and_stays_where_it_was_moved():
    notebook = small()
    predictions.ask(notebook, new_code_cell)
    assert [cell.id for cell in notebook.cells] == ["title", "predict-count", "count"]
    notebook.cells[:2] = reversed(notebook.cells[:2])
    before = copy.deepcopy(notebook)
    predictions.ask(notebook, new_code_cell)
    assert notebook == before
    del notebook.cells[2].metadata["predict"]
    predictions.ask(notebook, new_code_cell)
    assert [cell.id for cell in notebook.cells] == ["title", "count"]


def test_the_figure_is_what_the_cell_printed_last():
    notebook = small()
    notebook.cells[1].outputs[0].text = "found 9\n"
    assert predictions.question_of(notebook.cells[1]).value == 9
    predictions.ask(notebook, new_code_cell)
    assert "the cell below found 9." in notebook.cells[1].source
    notebook.cells[2].outputs[0].text = "none\n"
    with pytest.raises(ValueError, match="count: nothing that the cell prints is"):
        predictions.question_of(notebook.cells[2])
    notebook.cells[2].outputs = []  # an editor has cleared it
    predictions.ask(notebook, new_code_cell)
    assert "the cell below found 9." in notebook.cells[1].source


# In the pages ----------------------------------------------------------------------------------------

# What can be read up to the cell after the one that answers, without questions and formulas.
PROSE = """name => {
    const first = document.querySelector(`.answers-${name}`);
    const cells = [...document.querySelectorAll('article div.cell')];
    const isAfter = cell => first.compareDocumentPosition(cell) & Node.DOCUMENT_POSITION_FOLLOWING;
    const end = cells.find(cell => isAfter(cell) && !cell.querySelector(`.answers-${name}`));
    return [...document.querySelectorAll('article :is(p, li, td, th, figcaption, pre)')]
        .filter(one => !one.closest('.predict, .predict-summary') && one.checkVisibility())
        .filter(one => !end || one.compareDocumentPosition(end) & Node.DOCUMENT_POSITION_FOLLOWING)
        .map(one => {
            const copy = one.cloneNode(true);
            copy.querySelectorAll('mjx-container').forEach(formula => formula.remove());
            return [copy.textContent, one.matches('pre')];
        });
}"""


def tells(text: str, is_code: bool, question: Question) -> bool:
    # Code and what it prints are full of numbers: there only the very figure tells.
    if not is_code:
        return predictions.tells(text, question) and "squares sum to 14" not in text  # of 4, not asked
    figure = question.figure.rstrip("%")
    return len(re.sub(r"\D", "", figure)) > 3 and figure in text.replace("_", ",")


TOP = "name => document.getElementById(`predict-${name}`).getBoundingClientRect().top"
ONE_LINE = 60  # pixels


def numeric(name: str) -> Question:
    return next(question for question in ASKED[name] if not question.choices)


def box(tab: Page, question: Question) -> Locator:
    return tab.locator(f"#{PREFIX}{question.name}")


def answer(tab: Page, question: Question) -> Locator:
    return tab.locator(f".answers-{question.name}").first


def veil(tab: Page, question: Question) -> Locator:
    return tab.locator(f".predict-veil:has(a[href='#{PREFIX}{question.name}'])")


@reads_pages
@pytest.mark.parametrize("name", ASKED)
def test_every_question_veils_its_answer_until_it_is_shown(name, tab):
    visit(tab, HTML / "book" / f"{name}.html")
    assert tab.locator(".predict").count() == len(ASKED[name])
    if name.startswith("13"):  # on paper nothing is veiled
        tab.emulate_media(media="print")
        assert not any(veil(tab, question).is_visible() for question in ASKED[name])
        assert all(answer(tab, question).is_visible() for question in ASKED[name])
        tab.emulate_media(media="screen")
    told = [
        (question.name, text)
        for question in ASKED[name]
        for text, is_code in tab.evaluate(PROSE, question.name)
        if tells(text, is_code, question)
    ]
    assert told == []
    for question in ASKED[name]:
        box(tab, question).scroll_into_view_if_needed()
        assert question.ask in box(tab, question).inner_text()
        assert veil(tab, question).bounding_box()["height"] < ONE_LINE
        assert not answer(tab, question).is_visible()
        veil(tab, question).scroll_into_view_if_needed()
        before = tab.evaluate(TOP, question.name)
        veil(tab, question).get_by_role("button", name="Show me").click()
        assert tab.evaluate(TOP, question.name) == before
        assert veil(tab, question).count() == 0 and answer(tab, question).is_visible()
        assert question.found in box(tab, question).get_by_role("status").text_content()
    assert "none yet" in tab.locator(".predict-summary").text_content()


@reads_pages
def test_a_guess_by_keyboard_is_compared_kept_summed_up_and_forgotten(tab):
    name = "02-embedding"
    question, total = numeric(name), len(ASKED[name])
    visit(tab, HTML / "book" / f"{name}.html")
    show(tab, 390, "light")
    slider = box(tab, question).locator("input[type=range]")
    slider.focus()
    middle = float(slider.input_value())
    before = tab.evaluate(TOP, question.name)
    tab.keyboard.press("ArrowRight")
    guess = middle + question.step
    assert float(box(tab, question).locator(".predict-value").inner_text()) == guess
    tab.keyboard.press("Tab")
    tab.keyboard.press("Enter")
    status = box(tab, question).locator(".predict-result[role=status]")
    far = f"{abs(guess - question.value):g}"
    assert status.text_content() == (
        f"You guessed {guess:g}. The cell found {question.found}, so you were off by {far}."
    )
    assert status.evaluate("one => one === document.activeElement")
    assert tab.evaluate(TOP, question.name) == before and tab.evaluate(TOO_WIDE) <= 0
    assert veil(tab, question).count() == 0
    summary = tab.locator(".predict-summary")
    summary.get_by_text("The questions", exact=True).click()
    assert f"1 of this chapter’s {total} predictions" in summary.text_content()

    tab.reload()
    tab.wait_for_function("() => document.documentElement.dataset.settled !== undefined")
    status.filter(has_text=f"You guessed {guess:g}.").wait_for()
    assert veil(tab, question).count() == 0 and veil(tab, ASKED[name][1]).count() == 1
    summary.get_by_text("The questions", exact=True).click()
    assert f"You said {guess:g}. Found: {question.found}." in summary.text_content()

    summary.get_by_role("button", name="Forget my guesses").click()
    assert veil(tab, question).count() == 1 and status.text_content() == ""
    assert "none yet" in summary.text_content()
    tab.reload()
    assert veil(tab, question).count() == 1


@reads_pages
def test_without_scripts_a_question_is_a_paragraph_and_nothing_is_hidden(chromium: Browser):
    tab = chromium.new_page(java_script_enabled=False)
    tab.set_default_timeout(PATIENCE)
    question = numeric("13-translation")
    tab.goto((HTML / "book/13-translation.html").as_uri())
    assert box(tab, question).is_visible() and question.ask in box(tab, question).text_content()
    assert answer(tab, question).is_visible()
    hidden = tab.locator(".predict-summary, .predict-veil, .predict button, .predict input")
    assert not any(one.is_visible() for one in hidden.all())
    tab.close()
