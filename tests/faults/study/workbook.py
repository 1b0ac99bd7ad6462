"""Mistakes in `transformer.study.workbook`."""

from faults import Fault

FAULTS = [
    Fault(
        "books-name-left",
        "a cell that does not define its piece is judged by the book's",
        "defined",
        "names.pop(piece.name, None)",
        "names.get(piece.name)",
    ),
    Fault(
        "torchs-refusal-is-a-blank",
        "a piece that torch refuses counts as not written yet",
        "outcomes",
        " and not error.args",
        "",
    ),
    Fault(
        "dtype-left-behind",
        "after a judgment, the notebook computes in float64",
        "_in_float64",
        "torch.set_default_dtype(before)",
        "pass",
    ),
    Fault(
        "generator-disturbed",
        "what a notebook draws depends on the judgments before",
        "_in_float64",
        "torch.random.fork_rng(devices=[])",
        "torch.enable_grad()",
    ),
    Fault(
        "dtype-unseen",
        "a piece whose result has another dtype is right",
        "_same",
        " and one.dtype == other.dtype",
        "",
    ),
    Fault(
        "nearly-equal",
        "a piece that differs in the third digit is right",
        "_same",
        "rtol=1e-7, atol=1e-9, equal_nan=True",
        "rtol=1e-2, atol=1e-2, equal_nan=True",
    ),
    Fault(
        "first-mistake-blamed",
        "whatever is wrong, the first of the usual mistakes is named",
        "judge",
        "_same(found, _expected(piece.key, number))",
        "mistake",
    ),
    Fault(
        "wrong-piece-stays",
        "a piece that was right and is now wrong goes on in the package",
        "Workbook.use",
        "self._put(piece, self._books.get(piece.key))",
        "pass",
    ),
    Fault(
        "lent-piece-judged",
        "who runs the examiner's cell twice is told that the book's piece is theirs",
        "Workbook.use",
        "own is not self._lent.get(piece.key)",
        "True",
    ),
    Fault(
        "all-modules-replaced",
        "a reader's piece takes the place of one that faster modules count on",
        "Workbook._put",
        "piece.module in CORE and ",
        "",
    ),
    Fault(
        "base-class-kept",
        "a model goes on inheriting from the book's piece",
        "Workbook._put",
        "own if base is old else base",
        "base",
    ),
    Fault(
        "later-notebooks-read",
        "a notebook runs on pieces of chapters that come after it",
        "Workbook.__init__",
        "other < chapter",
        "other != chapter",
    ),
    Fault(
        "only-the-last-verdict",
        "of the verdicts on a notebook, the last one alone is kept",
        "judge_notebook",
        'open(results, "a"',
        'open(results, "w"',
    ),
]
