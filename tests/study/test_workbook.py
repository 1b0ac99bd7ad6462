"""The workbook's examiner: every piece of the record is right, every planted mistake is found and named."""

from __future__ import annotations

import json
import linecache
from pathlib import Path

import pytest
import torch
from torch import nn

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
    defined,
    judge,
    judge_code,
    judge_notebook,
    pieces,
    read_verdicts,
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
    names = [(vars(module), dict(vars(module))) for module in workbook._core()]
    classes = {value for _, kept in names for value in kept.values() if isinstance(value, type)}
    bases = {kind: kind.__bases__ for kind in classes if kind.__module__.startswith("transformer.")}
    yield
    for now, kept in names:
        now.update(kept)
    for kind, before in bases.items():
        if kind.__bases__ != before:
            kind.__bases__ = before


def notebook_of(path: Path, **cells: str) -> Path:
    """A notebook with one marked cell for each piece of Chapter 3 that is named."""
    made = [
        {"cell_type": "code", "metadata": {"workbook": [f"03-attention/{name}"]}, "source": [code]}
        for name, code in cells.items()
    ]
    path.write_text(json.dumps({"cells": made}), encoding="utf8")
    return path


# The record


def test_there_are_pieces_in_every_chapter_and_forty_mistakes():
    counts = [sum(key.startswith(f"{chapter:02}-") for key in KEYS) for chapter in range(1, 18)]
    assert all(3 <= count <= 8 for count in counts[:9]) and min(counts) >= 1
    assert len(PLANTED) >= 40


@pytest.mark.parametrize("key", KEYS)
def test_the_books_piece_is_right(key):
    verdict = judge_code(pieces()[key], pieces()[key].code)
    assert verdict.mark == RIGHT, verdict.says


@pytest.mark.slow
@pytest.mark.parametrize("key", KEYS)
def test_every_planted_mistake_is_found_and_named(key):
    piece = pieces()[key]
    for mistake in piece.mistakes:
        assert judge_code(piece, with_mistake(piece, mistake)) == (WRONG, mistake.says)


# What is said


def test_what_is_not_written_yet_is_not_wrong():
    for key, code in {
        "03-attention/causal_mask": "def causal_mask(length):\n    raise NotImplementedError",
        "04-layers/LayerNorm": "class LayerNorm(nn.Module):\n    def __init__(self, *a, **k):\n"
        "        raise NotImplementedError",
    }.items():
        assert judge_code(pieces()[key], code) == (MISSING, "not written yet")


@pytest.mark.parametrize(
    "code, says",
    [
        ("return (", "its cell raises SyntaxError"),
        ("return 1 / 0", "two sentences: yours raises ZeroDivisionError"),
        ("return ids != pad_id", "two sentences: yours has the shape [2, 3], the book's [2, 1, 1, 3]"),
        ("return None", "two sentences: yours is None, the book's tensor("),
        ("return ((ids != pad_id) ^ (ids == 4))[:, None, None]", "two sentences: the largest difference"),
    ],
)
def test_what_no_mistake_explains_is_described(code, says):
    head = "def padding_mask(ids, pad_id=0):\n    "
    verdict = judge_code(pieces()["03-attention/padding_mask"], head + code)
    assert verdict.mark == WRONG and says in verdict.says


def test_what_torch_refuses_is_written_and_wrong():
    code = "def padding_mask(ids, pad_id=0):\n    raise NotImplementedError('no kernel for ids')"
    verdict = judge_code(pieces()["03-attention/padding_mask"], code)
    assert verdict == (WRONG, "two sentences: yours raises NotImplementedError: no kernel for ids")


def test_what_differs_by_less_than_a_thousandth_is_wrong():
    piece = pieces()["02-embedding/sinusoidal_encoding"]
    verdict = judge_code(piece, piece.code.replace("10000.0", "10010.0"))
    assert verdict.mark == WRONG and "the largest difference from the book's is 6.1e-05" in verdict.says


def test_a_cell_without_its_piece_is_told():
    verdict = judge_code(pieces()["03-attention/padding_mask"], "pass")
    assert verdict == (WRONG, "its cell raises NameError: the cell defines no padding_mask")


def test_another_way_to_the_same_values_is_right():
    piece = pieces()["04-layers/LayerNorm"]
    code = """
class LayerNorm(nn.Module):
    def __init__(self, d_model, eps=1e-5, bias=True):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(d_model)), eps
        self.register_parameter("bias", nn.Parameter(torch.zeros(d_model)) if bias else None)

    def forward(self, x):
        centered = x - x.mean(-1, keepdim=True)
        x = centered / (centered.square().mean(-1, keepdim=True) + self.eps).sqrt() * self.weight
        return x if self.bias is None else x + self.bias
"""
    assert judge_code(piece, code).mark == RIGHT


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


def test_a_base_class_is_replaced_as_well(put_back):
    book = transformer.model.EncoderDecoder
    mine = defined(pieces()["05-model/EncoderDecoder"], pieces()["05-model/EncoderDecoder"].code)
    assert Workbook("05-model").use(mine) is mine
    assert transformer.Transformer.__bases__ == (mine,) and book is not mine
    transformer.Transformer(transformer.TransformerConfig(9, 9, d_model=8, n_heads=2, d_ff=8))


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
    assert said.count("True means may attend. Until it is right, the cells below run on the book's.") == 3


def test_what_is_lent_fits_what_else_the_notebook_defines(put_back):
    names = {"__name__": "__main__", "use": Workbook("05-model").use}
    names |= {name: value for name, value in vars(transformer.model).items() if not name.startswith("__")}
    exec("class EncoderDecoder(nn.Module):\n    def __init__(self, config): raise NotImplementedError", names)
    exec("class TransformerConfig(TransformerConfig): pass\nEncoderDecoder = use(EncoderDecoder)", names)
    assert names["EncoderDecoder"].__init__.__globals__ is names
    with pytest.raises(TypeError, match="config must be a TransformerConfig"):
        names["EncoderDecoder"](transformer.TransformerConfig(9, 9))


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
    mine = Workbook("16-since-2017")
    assert mine.use(RMSNorm) is RMSNorm
    assert transformer.modern.parts.RMSNorm is book
    assert mine.whose(book(8)) == "yours: nothing yet\nthe book's: RMSNorm"
    assert {module for module in CORE if "." in module} == set()


# A notebook in another process


def test_a_notebook_is_judged_line_by_line(tmp_path):
    path = notebook_of(tmp_path / "n.ipynb", padding_mask=MASK.format("=="), causal_mask="")
    keys = list(written(path))
    judge_notebook(str(path), str(tmp_path / "results"), *keys)
    verdicts = read_verdicts(tmp_path / "results")
    assert list(verdicts) == keys and [verdict.mark for verdict in verdicts.values()] == [WRONG, WRONG]
    assert read_verdicts(tmp_path / "none") == {}


@pytest.mark.parametrize("text", ["", "[]", '{"cells": 1}', '{"cells": [{}]}'])
def test_what_is_no_notebook_is_refused_by_name(text, tmp_path):
    (tmp_path / "n.ipynb").write_text(text, encoding="utf8")
    with pytest.raises(ValueError, match="n.ipynb is no notebook"):
        written(tmp_path / "n.ipynb")


def test_parameters_are_drawn_by_name():
    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.b, self.a = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(3))

    one, other = workbook.filled(Other()), workbook.filled(Other())
    assert torch.equal(one.a, other.a) and torch.equal(one.b, other.b) and one.a.abs().min() > 0


def test_a_live_piece_without_a_text_is_judged_as_it_is():
    assert judge(pieces()["03-attention/causal_mask"], transformer.causal_mask).mark == RIGHT
