"""What kind of cell a reader has before them, read from the cell itself.

An exported cell says which module of the package it goes to. A cell that compares values, and reached its end
when it was last executed, says so; where it goes on with what a recorded run has found, it says that instead.
Code that draws a picture and hands nothing on to later cells is folded above the picture, as the solutions of
exercises are. Folded cells that follow one another stand behind one line, which for imports, and at a
chapter's top, is called Setup. Nothing of this is typed by hand.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from docutils import nodes
from myst_nb.sphinx_ import HideCodeCellNode
from sphinx.application import Sphinx

EXPORT = "export:"
# torch.testing.assert_close, the short names that the chapters give it, and the book's line of what is equal.
COMPARISONS = {"torch.testing.assert_close", "assert_close", "close", "show_equal"}
MAGIC = re.compile(r"^%.*$", re.MULTILINE)
RECORDS = {"load_record", "np.load"}  # what reads the record of a run


def code_cells(doctree: nodes.document) -> list[nodes.container]:
    """Return the code cells of a page whose source is shown, in order."""
    cells = (node for node in doctree.findall(nodes.container) if node.get("nb_element") == "cell_code")
    return [cell for cell in cells if cell.children and cell[0].get("nb_element") == "cell_code_source"]


def syntax(source: str) -> ast.Module:
    """Return the syntax tree of a cell; a cell that is not Python has an empty one."""
    try:
        return ast.parse(source)
    except SyntaxError:
        return ast.Module([], [])


def module_of(cell: nodes.container) -> str | None:
    """Return the name of the module that a cell is exported to."""
    tags = cell["cell_metadata"].get("tags", [])
    return next((tag.removeprefix(EXPORT) for tag in tags if tag.startswith(EXPORT)), None)


def ran(cell: nodes.container) -> bool:
    """Tell whether a cell, when it was last executed, reached its end."""
    failed = any("traceback" in node["classes"] for node in cell.findall(nodes.Element))
    return cell.get("exec_count") is not None and not failed


def executed(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the pieces of a program that run when it runs: what a function holds waits for its call."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from executed(child)


def called(node: ast.AST) -> str | None:
    """Return the name of what a piece of a program calls, dots included, if it is a call."""
    return ast.unparse(node.func) if isinstance(node, ast.Call) else None


def compares(node: ast.AST, checkers: set[str]) -> bool:
    """Tell whether a piece of a program stops where two values differ."""
    return isinstance(node, ast.Assert) or called(node) in checkers


def learn(tree: ast.Module, checkers: set[str]) -> None:
    """Add the functions of a cell that compare values to `checkers`, and remove those that do not."""
    for function in tree.body:
        if isinstance(function, ast.FunctionDef):
            asserts = any(compares(node, checkers) for node in ast.walk(function))
            (checkers.add if asserts else checkers.discard)(function.name)


def names(tree: ast.Module, context: type[ast.expr_context]) -> set[str]:
    """Return the names that a cell reads (`ast.Load`) or binds (`ast.Store`)."""
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
    return {node.id for node in found if isinstance(node.ctx, context)}


def learn_records(statements: list[ast.stmt], recorded: set[str]) -> None:
    """Add the names that statements bind to what comes out of a record, and remove those that they bind anew.

    Such a name may be a function that reads one.
    """
    for node in statements:
        match node:
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value) | ast.For(iter=value):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                (recorded.update if reads(value, recorded) else recorded.difference_update)(bound(*targets))
            case ast.FunctionDef(name=name):
                (recorded.add if reads(node, recorded - bound(node)) else recorded.discard)(name)
        learn_records([] if isinstance(node, ast.FunctionDef) else getattr(node, "body", []), recorded)


def bound(*nodes: ast.AST) -> set[str]:
    """Return the names that pieces of a program bind, a function's arguments included."""
    pieces = [piece for node in nodes for piece in ast.walk(node)]
    named = {piece.id for piece in pieces if isinstance(piece, ast.Name) and isinstance(piece.ctx, ast.Store)}
    return named | {piece.arg for piece in pieces if isinstance(piece, ast.arg)}


def reads(tree: ast.AST, recorded: set[str]) -> bool:
    """Tell whether a piece of a program goes on with what comes out of a record."""
    return any(getattr(node, "id", called(node)) in recorded for node in ast.walk(tree))


def only_draws(number: int, cells: list[nodes.container], trees: list[ast.Module]) -> bool:
    """Tell whether a cell makes a picture and defines nothing that a later cell goes on with."""
    open_names = names(trees[number], ast.Store)
    open_names |= {node.name for node in trees[number].body if hasattr(node, "name")}
    for tree in trees[number + 1 :]:
        bound = names(tree, ast.Store)
        if open_names & (names(tree, ast.Load) - bound):
            return False
        open_names -= bound
    return has_picture(cells[number])


def has_output(cell: nodes.container) -> bool:
    return any(child.get("nb_element") == "cell_code_output" for child in cell.children)


def has_picture(cell: nodes.container) -> bool:
    return any(node.get("mime_type", "").startswith("image/") for node in cell.findall(nodes.container))


def in_exercise(cell: nodes.container) -> bool:
    """Tell whether a cell stands in a section that is titled as an exercise."""
    section = cell.parent
    while section is not None and not isinstance(section, nodes.section):
        section = section.parent
    return section is not None and section[0].astext().startswith("Exercise ")


def label(cell: nodes.container, kind: str, text: str) -> None:
    """Write a line about a cell under its source."""
    cell["classes"].append(f"cell-{kind}")
    cell[0].append(nodes.paragraph(text, text, classes=["cell-label"]))


def fold(cell: nodes.container, mode: str, prompt: str) -> None:
    """Put a cell, or its input alone, behind a line that says what is there."""
    cell["hide_mode"], cell["prompt_show"], cell["prompt_hide"] = mode, prompt, prompt


def prompt_of(cell: nodes.container) -> str:
    """Return what the line says that a cell, or its input alone, is folded behind."""
    if cell["hide_mode"] == "all":
        return "Solution" if in_exercise(cell) else "Code and result" if has_output(cell) else "Code"
    return "Code of the figure" if has_picture(cell) else "Code"


# Several folded cells ----------------------------------------------------------------------------------


def at_the_top(cell: nodes.container) -> bool:
    """Tell whether a cell stands before the first section of its chapter."""
    return isinstance(cell.parent, nodes.section) and isinstance(cell.parent.parent, nodes.document)


def follows(cell: nodes.container, before: nodes.container) -> bool:
    """Tell whether nothing is to be seen between two cells of which the former is folded."""
    siblings = cell.parent.children
    shows = before["hide_mode"] == "input" and has_output(before)
    return before.parent is cell.parent and siblings.index(cell) == siblings.index(before) + 1 and not shows


def runs(cells: list[nodes.container]) -> Iterator[list[nodes.container]]:
    """Yield the folded cells that follow one another; the last may show its output."""
    run: list[nodes.container] = []
    for cell in cells:
        folded = cell.get("hide_mode") in ("all", "input")
        if run and not (folded and follows(cell, run[-1])):
            yield run
            run = []
        if folded:
            run.append(cell)
    if run:
        yield run


def imports(cell: nodes.container) -> bool:
    """Tell whether a cell imports anything."""
    statements = syntax(MAGIC.sub("", cell[0].astext())).body
    return any(isinstance(statement, (ast.Import, ast.ImportFrom)) for statement in statements)


def prompt_of_run(run: list[nodes.container]) -> str:
    """Return what the line says that the cells of a run are folded behind."""
    prepares = any(map(imports, run)) and not has_output(run[-1]) and not in_exercise(run[0])
    if at_the_top(run[0]) or prepares:
        return "Setup"
    prompts = [cell["prompt_show"] for cell in run]
    return next((prompt for prompt in reversed(prompts) if prompt != "Code"), "Code")


def gather(run: list[nodes.container]) -> None:
    """Put the cells of a run behind one line. What the last of them shows stays where it is."""
    first, last, prompt = run[0], run[-1], prompt_of_run(run)
    if len(run) == 1:
        if not has_picture(last):
            fold(last, last["hide_mode"], prompt)
        return
    box = HideCodeCellNode(prompt_show=prompt, prompt_hide=prompt, classes=["above-input", "several"])
    first.replace_self([nodes.container("", box, nb_element="cells", classes=["cell"]), first])
    shows = last["hide_mode"] == "input" and has_output(last)
    for cell in run:
        del cell["hide_mode"]
        if cell is last and shows:
            source = cell.pop(0)
            cell = nodes.container("", source, nb_element="cell_code", classes=list(cell["classes"]))
        else:
            cell.parent.remove(cell)
        box.append(cell)


def mark(app: Sphinx, doctree: nodes.document) -> None:
    """Label and fold the code cells of a page."""
    cells = code_cells(doctree)
    trees = [syntax(cell[0].astext()) for cell in cells]
    checkers, recorded = set(COMPARISONS), set(RECORDS)
    for number, (cell, tree) in enumerate(zip(cells, trees, strict=True)):
        learn(tree, checkers)
        module = module_of(cell)
        if not module:  # what the package loads, such as weights, is run, not read
            learn_records(tree.body, recorded)
        checked = ran(cell) and any(compares(node, checkers) for node in executed(tree))
        from_record = ran(cell) and (checked or has_output(cell)) and reads(tree, recorded - bound(tree))
        mode = cell.get("hide_mode")
        if mode == "output":
            fold(cell, mode, "Result")
        elif mode or (not module and not checked and only_draws(number, cells, trees)):
            cell["hide_mode"] = "all" if mode == "all" else "input"
            fold(cell, cell["hide_mode"], prompt_of(cell))
        if module:
            label(cell, "exported", f"→ transformer/{module}.py")
        elif from_record:
            label(cell, "recorded", "▤ read from a record")
        elif checked:
            label(cell, "checked", "✓ checked by value")
    for run in list(runs(cells)):
        gather(run)


def setup(app: Sphinx) -> dict:
    app.connect("doctree-read", mark)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
