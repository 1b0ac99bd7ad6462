"""The workbook's examiner: every piece of the record is right, every planted mistake is found and named."""

from __future__ import annotations

import json
import linecache
import sys
from pathlib import Path

import pytest
import torch
from other_hands import NAMED, OTHER
from other_slips import SLIPS

import transformer
import transformer.layers
import transformer.modern.parts
from transformer.study import workbook
from transformer.study.workbook import (
    CORE,
    MISSING,
    RIGHT,
    WRONG,
    Workbook,
    judge,
    judge_code,
    pieces,
    same,
    with_mistake,
    written,
)

KEYS = list(pieces())
PLANTED = [(key, number) for key in KEYS for number in range(len(pieces()[key].mistakes))]
MASK = "def padding_mask(ids, pad_id=0):\n    return (ids {} pad_id)[:, None, None, :]\n"


@pytest.fixture
def put_back():
    """The package as it was, whatever a reader's pieces have replaced."""
    Workbook("99")  # which imports what a piece could be replaced in
    modules = [sys.modules[name] for name in ("transformer", *(f"transformer.{name}" for name in CORE))]
    names = [(vars(module), dict(vars(module))) for module in modules]
    yield
    for now, kept in names:
        now.update(kept)


def notebook_of(path: Path, **cells: str) -> Path:
    """A notebook with one marked cell for each piece of Chapter 3 that is named."""
    made = [
        {"cell_type": "code", "metadata": {"workbook": [f"03-attention/{name}"]}, "source": [code]}
        for name, code in cells.items()
    ]
    path.write_text(json.dumps({"cells": made}), encoding="utf8")
    return path


# The record


@pytest.mark.slow
@pytest.mark.parametrize("key", KEYS)
def test_the_books_piece_is_right(key):
    verdict = judge_code(pieces()[key], pieces()[key].code)
    assert verdict.mark == RIGHT, verdict.says


@pytest.mark.slow
@pytest.mark.parametrize("key", KEYS)
def test_every_planted_mistake_is_found_and_named(key):
    """By values that neither the book's piece nor an earlier mistake gives."""
    values = lambda found: [found[question] for question in pieces()[key].probes]
    expected = [values(workbook._expected(key, n)) for n in (None, *range(len(pieces()[key].mistakes)))]
    for number, found in enumerate(expected):
        assert not any(same(found, other) for other in expected[:number]), number


def test_a_planted_mistake_is_said():
    piece = pieces()["03-attention/causal_mask"]
    for mistake in piece.mistakes:
        verdict = judge_code(piece, with_mistake(piece, mistake))
        assert verdict.mark == WRONG and verdict.says.startswith(f"{mistake.says}; ")


# What is said


def test_what_is_not_written_yet_is_not_wrong():
    for key, code in {
        "03-attention/causal_mask": "def causal_mask(length):\n    raise NotImplementedError",
        "04-layers/LayerNorm": "class LayerNorm(nn.Module):\n    def __init__(self, *a, **k):\n"
        "        raise NotImplementedError",
    }.items():
        assert judge_code(pieces()[key], code)[:2] == (MISSING, "not written yet")


@pytest.mark.parametrize(
    "code, says",
    [
        ("return (", "its cell raises SyntaxError"),
        ("return 1 / 0", "two sentences: yours raises ZeroDivisionError"),
        (
            "return ids != pad_id",
            "two sentences: yours is a tensor [2, 3] of bool, and a tensor [2, 1, 1, 3] of bool",
        ),
        ("return None", "two sentences: yours is None, and a tensor [2, 1, 1, 3] of bool is wanted"),
        (
            "return ((ids != pad_id) ^ (ids == 4))[:, None, None]",
            "yours is 0, the book's 1, first at [1, 0, 0, 0] of 1 places",
        ),
        (
            "return (ids != pad_id)[:, None, None], 1",
            "you return a tuple of a tensor [2, 1, 1, 3] of bool, 1, and a tensor",
        ),
        (
            "return collections.Counter(ids)",
            "imports and helpers belong in the same cell; two sentences: yours raises",
        ),
    ],
)
def test_what_no_mistake_explains_is_described(code, says):
    head = "def padding_mask(ids, pad_id=0):\n    "
    verdict = judge_code(pieces()["03-attention/padding_mask"], head + code)
    assert verdict.mark == WRONG and says in verdict.says


# Right in other hands, and wrong in theirs


@pytest.mark.slow
@pytest.mark.parametrize("key", OTHER)
def test_what_other_hands_write_is_right(key):
    mark, says, renamed = judge_code(pieces()[key], OTHER[key])
    assert mark == RIGHT, says
    if renamed and key != "02-embedding/TokenEmbedding":  # where a module stands in another
        assert not judge_code(pieces()[key], NAMED[key]).renamed


@pytest.mark.slow
def test_usual_slips_get_a_likely_cause():
    vague = []
    for key, hands, right, wrong in SLIPS:
        code = OTHER[key] if hands == "other" else pieces()[key].code
        mark, says, _ = judge_code(pieces()[key], code.replace(right, wrong))
        assert mark == WRONG and right in code, key
        cause = says.partition("; ")[0]
        bare = cause.partition(": ")[0] in pieces()[key].probes and "yours raises" not in cause
        vague += [key] if bare else []
    assert len(SLIPS) >= 60 and len(vague) <= 0.1 * len(SLIPS), vague


@pytest.mark.parametrize(
    "key, says",
    [
        ("03-attention/causal_mask", "your mask is always on the CPU"),
        ("03-attention/scaled_dot_product_attention", "in half precision you compute in half precision"),
        ("03-attention/attention_in_blocks", "starts from 0"),
        ("03-attention/attention_in_blocks", "all keys at once"),
        ("01-gradients/log_softmax", "logarithm of a softmax"),
        ("06-loss/label_smoothed_cross_entropy", "outside of [0, 1) should be a ValueError"),
        ("06-loss/teacher_forced_loss", "`@singledispatch` above it is missing"),
    ],
)
def test_what_looks_right_and_is_not_is_among_the_planted(key, says):
    assert any(says in mistake.says for mistake in pieces()[key].mistakes)


@pytest.mark.parametrize(
    "found, right, words",
    [
        ([-1.5, 2.5], [1.5, -2.5], "the sign is wrong"),
        ([3.0, 5.0], [1.5, 2.5], "yours is 2 times the right one: a sum, or a mean over something else?"),
        ([2.5, 1.5, 7.25], [1.5, 7.25, 2.5], "off by one: all is moved by +1 along axis 0"),
        ([[1.5, 2.0], [3.0, 4.0]], [[1.5, 3.0], [2.0, 4.0]], "axes 0 and -1 are exchanged"),
        ([1.5, 2.0], [[1.5], [2.0]], "the values are right, and their shape is not"),
        ([1.5, 2.5], 2.0, "you return a value for each entry, and their mean is wanted"),
    ],
)
def test_one_value_made_of_another_is_put_into_words(found, right, words):
    assert workbook.transformation(torch.tensor(found), torch.tensor(right)) == words


def test_what_is_random_is_compared_in_distribution():
    x = torch.full((1, 4), 2.0)
    torch.manual_seed(0)
    by_kernel = workbook.draws(lambda x: torch.dropout(x, 0.5, True), x)
    assert workbook.same(workbook.draws(lambda x: x * (torch.rand_like(x) >= 0.5) * 2, x), by_kernel)
    rows = workbook.draws(lambda x: x * (torch.rand(len(x), 1) >= 0.5) * 2, x)  # whole rows at once
    assert not workbook.same(rows, by_kernel) and not workbook.same(workbook.draws(lambda x: x, x), by_kernel)


def test_parameters_of_other_names_are_right_and_the_notebook_goes_on_with_the_books(put_back, capsys):
    names = {"__name__": "__main__", "use": Workbook("04-layers").use, **vars(transformer.layers)}
    names["__name__"] = "__main__"
    exec(OTHER["04-layers/LayerNorm"] + "LayerNorm = use(LayerNorm)", names)
    assert transformer.LayerNorm.__module__ == "transformer.layers"
    assert [name for name, _ in names["LayerNorm"](3).named_parameters()] == ["weight", "bias"]
    said = capsys.readouterr().out
    assert "equal to the book's in" in said and "names of your own" in said and f"1 of {len(KEYS)}" in said


def test_a_cell_that_asks_for_more_runs_on_the_books_piece(put_back):
    mine = Workbook("03-attention")
    names = dict(vars(transformer.attention), mine=mine)
    exec(NAMED["03-attention/KeyValueCache"], names)
    own = names["KeyValueCache"]
    exec("mine.lend('KeyValueCache')", names)
    assert names["KeyValueCache"] is not own and hasattr(names["KeyValueCache"](), "_grown")
    exec("mine.give_back()", names)
    assert names["KeyValueCache"] is own


def test_judging_leaves_random_numbers_and_the_dtype_alone():
    torch.manual_seed(7)
    expected = torch.randn(3)
    torch.manual_seed(7)
    judge_code(pieces()["02-embedding/PositionalEncoding"], pieces()["02-embedding/PositionalEncoding"].code)
    assert torch.equal(torch.randn(3), expected) and torch.get_default_dtype() == torch.float32


# Whose piece is used


def test_a_right_piece_takes_the_books_place_in_the_core(put_back, capsys):
    use = Workbook("04-layers").use
    book = transformer.LayerNorm

    class LayerNorm(book):
        """Equal in value."""

    assert use(LayerNorm) is LayerNorm
    assert transformer.LayerNorm is transformer.layers.LayerNorm is transformer.model.LayerNorm is LayerNorm
    model = transformer.Transformer(transformer.TransformerConfig(9, 9, d_model=8, n_heads=2, d_ff=8))
    assert sum(type(part) is LayerNorm for part in model.modules()) == 30
    src, tgt = torch.tensor([[5, 6, 3]]), torch.tensor([[2, 7]])
    torch.testing.assert_close(transformer.accelerate(model.eval())(src, tgt), model(src, tgt))
    said = capsys.readouterr().out
    assert "✓ LayerNorm" in said and f"1 of {len(KEYS)} pieces are yours" in said


def test_a_wrong_piece_gives_way_to_the_books_and_comes_in_when_it_is_right(put_back, capsys):
    use, book = Workbook("03-attention").use, transformer.padding_mask
    names = dict(vars(transformer.attention), use=use)
    for form in ("==", "!=", "=="):
        exec(MASK.format(form), names)
        mine = names["padding_mask"]
        exec("padding_mask = use(padding_mask)", names)
        assert (names["padding_mask"] is mine) == (form == "!=")
        assert transformer.model.padding_mask is (mine if form == "!=" else book)
        assert names["padding_mask"](torch.tensor([[5, 0]])).tolist() == [[[[True, False]]]]
    lent = names["padding_mask"]
    exec("padding_mask = use(padding_mask)", names)  # this cell alone, once more
    assert names["padding_mask"] is lent
    said = capsys.readouterr().out
    assert (
        said.count("True means may attend; two sentences: yours is 0, the book's 1, first at [0, 0, 0, 0]")
        == 3
    )
    assert said.count("Until it is right, the cells below run on the book's.") == 3


def test_what_is_lent_fits_what_else_the_notebook_defines(put_back):
    names = {"__name__": "__main__", "use": Workbook("05-model").use}
    names |= {name: value for name, value in vars(transformer.model).items() if not name.startswith("__")}
    exec("class Transformer(nn.Module):\n    def __init__(self, config): raise NotImplementedError", names)
    exec("class TransformerConfig(TransformerConfig): pass\nTransformer = use(Transformer)", names)
    assert names["Transformer"].__init__.__globals__ is names
    with pytest.raises(TypeError, match="config must be a TransformerConfig"):
        names["Transformer"](transformer.TransformerConfig(9, 9))


def test_a_cell_is_judged_by_its_text_among_the_names_of_its_module(put_back):
    code = "def padding_mask(ids, pad_id=0):\n    return _later(ids, pad_id)\n"
    code += "def _later(ids, pad_id):\n    return (ids != pad_id)[:, None, None, :]\n"
    linecache.cache["<cell>"] = (len(code), None, code.splitlines(True), "<cell>")
    names = {"__name__": "__main__"}
    exec(compile(code, "<cell>", "exec"), names)
    del names["_later"]  # as if a later cell defined it
    assert Workbook("03-attention").use(names["padding_mask"]) is names["padding_mask"]


def test_a_later_chapter_runs_on_what_is_right_in_earlier_ones(put_back, tmp_path, capsys):
    book = transformer.causal_mask
    wrong = "def causal_mask(length, device=None):\n    return torch.ones(1, 1, length, length).triu()"
    notebook_of(tmp_path / "03-attention.ipynb", padding_mask=MASK.format("!="), causal_mask=wrong)
    Workbook("04-layers", folder=str(tmp_path))
    assert transformer.padding_mask.__code__.co_filename == "<padding_mask>"
    assert transformer.causal_mask is book
    said = capsys.readouterr().out
    assert said.startswith("03-attention: 1 of 2 are yours; the book's: ✗ causal_mask\n")
    assert said.splitlines()[-1].endswith(f"1 of {len(KEYS)} pieces are yours")


def test_what_comes_later_is_not_looked_at(put_back, tmp_path, capsys):
    book = transformer.padding_mask
    notebook_of(tmp_path / "03-attention.ipynb", padding_mask=MASK.format("!="))
    for chapter in ("02-embedding", "03-attention"):
        Workbook(chapter, folder=str(tmp_path))
        assert transformer.padding_mask is book
    assert "03-attention" not in capsys.readouterr().out


def test_only_the_core_is_replaced(put_back):
    class RMSNorm(transformer.modern.parts.RMSNorm):
        pass

    book = transformer.modern.parts.RMSNorm
    mine = Workbook("15-since-2017")
    assert mine.use(RMSNorm) is RMSNorm
    assert transformer.modern.parts.RMSNorm is book


# Files


@pytest.mark.parametrize("text", ["", "[]", '{"cells": 1}', '{"cells": [{}]}'])
def test_what_is_no_notebook_is_refused_by_name(text, tmp_path):
    (tmp_path / "n.ipynb").write_text(text, encoding="utf8")
    with pytest.raises(ValueError, match="n.ipynb is no notebook"):
        written(tmp_path / "n.ipynb")


def test_a_live_piece_without_a_text_is_judged_as_it_is():
    assert judge(pieces()["03-attention/causal_mask"], transformer.causal_mask).mark == RIGHT
