"""Models written for CTranslate2: its probabilities and its translations are ours."""

from __future__ import annotations

import json
import random
import sys
from importlib.util import find_spec

import pytest
import torch
from helpers import scrambled
from torch import nn

from transformer import Transformer, TransformerConfig, Translator, accelerate, load_corpus, load_toy_model
from transformer.__main__ import main
from transformer.exchange.translators import CTranslate2Engine, load_translator, to_ctranslate2
from transformer.language.translator import Search

needs_ctranslate2 = pytest.mark.skipif(
    find_spec("ctranslate2") is None, reason="ctranslate2 is not installed: transformer-book[interchange]"
)
V = 23
SIZES = {"d_model": 16, "n_heads": 4, "n_layers": 2, "d_ff": 24, "max_length": 40}
FORMS = {
    "post-norm": {},
    "pre-norm": {"norm_first": True},
    "pre-norm, none on top": {"norm_first": True, "final_norm": False},
    "norm on top of post-norm": {"final_norm": True},
    "no biases": {"bias": False},
    "gelu": {"activation": "gelu"},
    "silu": {"activation": "silu"},
    "deep and shallow": {"n_layers": (3, 1)},
    "three tables": {"tie_embeddings": False, "tgt_vocab_size": V + 5},
    "other special tokens": {"pad_id": 20, "bos_id": 20, "eos_id": 0},
}


def model_of(form: str, output_bias: bool = False) -> Transformer:
    torch.manual_seed(0)
    sizes = {"src_vocab_size": V, "tgt_vocab_size": V, **SIZES, **FORMS[form]}
    model = Transformer(TransformerConfig(**sizes)).eval()
    scrambled(nn.ModuleList([model.encoder, model.decoder]))
    if output_bias:
        model.output.bias = nn.Parameter(torch.randn(model.config.tgt_vocab_size))
    return model


def engine(folder, **options):
    import ctranslate2

    return ctranslate2.Translator(str(folder), device="cpu", intra_threads=1, **options)


def written(ids) -> list[str]:
    return [str(token) for token in ids]


@needs_ctranslate2
@pytest.mark.parametrize("output_bias", [False, True], ids=["no output bias", "output bias"])
@pytest.mark.parametrize("form", FORMS)
def test_the_probabilities_of_any_target_are_equal(form, output_bias, tmp_path):
    model = model_of(form, output_bias)
    config, draw = model.config, random.Random(1)
    to_ctranslate2(model, tmp_path)
    sources = [[draw.randrange(4, 20) for _ in range(length)] for length in (3, 9, 20)]
    targets = [[draw.randrange(4, 20) for _ in range(length)] for length in (11, 1, 5)]
    scored = engine(tmp_path).score_batch(list(map(written, sources)), list(map(written, targets)))
    for source, target, found in zip(sources, targets, scored):
        tgt = torch.tensor([[config.bos_id, *target, config.eos_id]])
        with torch.no_grad():
            log_probs = model(torch.tensor([source]), tgt[:, :-1]).log_softmax(-1)
        expected = log_probs.gather(2, tgt[:, 1:, None])[0, :, 0]
        assert found.tokens == written(tgt[0, 1:].tolist())
        assert torch.allclose(torch.tensor(found.log_probs), expected, atol=1e-3)
        assert expected.std() > 0.05


@needs_ctranslate2
def test_a_translator_brings_its_words(tmp_path):
    translator = Translator.load("phrases")
    to_ctranslate2(translator, tmp_path)
    sentences = ["a menina gosta do gato preto .", "o homem lê um livro .", "ela não vê a casa ."]
    vocabulary = translator.vocabulary
    sources = [vocabulary.tokens(vocabulary.encode(text)) for text in sentences]
    found = engine(tmp_path).translate_batch(sources, beam_size=1)
    numbers = {piece: number for number, piece in enumerate(vocabulary.pieces)}
    texts = [vocabulary.decode(numbers[piece] for piece in result.hypotheses[0]) for result in found]
    assert texts == translator.translate_tokenized(sentences, beam_size=1)
    said = json.loads((tmp_path / "config.json").read_text(encoding="utf8"))
    assert said["preparation"] == {"name": "tokenized", "languages": ["pt", "en"]}


# ---------- The engine of a translator

TEXT, GIRL = "A menina gosta do gato preto.", "the girl likes the black cat."


def both_of(model: Transformer) -> tuple[Translator, Translator]:
    """A model with the packaged vocabulary, searched by PyTorch and by the engine."""
    ours, theirs = (Translator(model, Translator.load("phrases").vocabulary) for _ in range(2))
    theirs.engine = CTranslate2Engine(theirs)
    return ours, theirs


@needs_ctranslate2
@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_translation_may_be_empty(beam_size):
    size = len(Translator.load("phrases").vocabulary)
    model = Transformer(TransformerConfig(size, size, tie_embeddings=False, **SIZES))
    with torch.no_grad():  # whatever was written, the end is the most probable
        norm = model.decoder.layers[-1].feed_residual.norm
        norm.weight.zero_()
        norm.bias.fill_(1.0)
        model.output.weight.zero_()
        model.output.weight[model.config.eos_id] = 1.0
    for translator in both_of(model):
        assert translator.translate_tokenized(["o gato ."], Search(beam_size)) == [""]


@needs_ctranslate2
def test_every_search_is_one_that_the_engine_can_do():
    """Also a beam wider than the vocabulary, and translations and batches of a single token."""
    size = len(Translator.load("phrases").vocabulary)
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(size, size, **SIZES)).eval()
    scrambled(nn.ModuleList([model.encoder, model.decoder]))
    ours, theirs = both_of(model)
    sources = ["o gato .", "", "a menina gosta do gato preto .", "ela não vê a casa ."]
    for search in (
        Search(1), Search(100, max_length=6), Search(3, 10.0), Search(4, 0.0), Search(4, max_length=1),
        Search(1, max_tokens=1), Search(2, max_tokens=3),
    ):  # fmt: skip
        assert theirs.translate_tokenized(sources, search) == ours.translate_tokenized(sources, search)
    with pytest.raises(ValueError, match="beam_size"):
        theirs.translate(sources, beam_size=101)


@needs_ctranslate2
def test_the_engine_says_what_pytorch_says(capsys):
    sources = [pair.source for pair in load_corpus("phrases", "test")[:100]]
    ours, theirs = Translator.load("phrases"), load_translator("phrases", engine="ctranslate2")
    for search in (Search(1), Search(4), Search(4, 0.0)):
        pairs = zip(theirs.translate(sources, search), ours.translate(sources, search))
        assert sum(a == b for a, b in pairs) >= 97
    ids = [[*ours.vocabulary.encode(text), ours.model.config.eos_id] for text in sources[:9]]
    for longest in (3, 200):
        search = Search(1, max_length=longest)
        assert theirs.engine(ids, search) == ours.engine(ids, search)
    assert theirs.translate(["", "gosto disto ."]) == ["", "i like this."]
    engine = ["--engine", "ctranslate2", "--compute-type", "int8"]
    assert main(["translate", *engine, TEXT]) == 0 and capsys.readouterr() == (f"{GIRL}\n", "")


@needs_ctranslate2
def test_the_engine_computes_with_the_numbers_that_are_asked_for():
    translator = Translator.load("phrases")
    for compute_type in (None, "int8"):
        engine = CTranslate2Engine(translator, compute_type)
        assert engine._engine.compute_type.startswith(compute_type or "float32")
    with pytest.raises(ValueError, match="int3"):
        CTranslate2Engine(translator, "int3")
    with pytest.raises(TypeError, match="to_ctranslate2 takes only .* the model is of FastTransformer"):
        CTranslate2Engine(Translator(accelerate(translator.model), translator.vocabulary))


def test_a_missing_engine_is_named_with_its_extra_by_the_command(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    assert main(["translate", "--engine", "ctranslate2", "a"]) == 2
    said = "this needs the library ctranslate2: pip install ctranslate2, or the extra 'interchange'"
    assert said in capsys.readouterr().err


# ---------- Files


@needs_ctranslate2
def test_eight_bits_are_smaller_and_three_are_unknown(tmp_path):
    model = load_toy_model()
    for name, quantization in (("whole", None), ("small", "int8")):
        to_ctranslate2(model, tmp_path / "of" / name, quantization)
    size = {name: (tmp_path / "of" / name / "model.bin").stat().st_size for name in ("whole", "small")}
    assert size["small"] < 0.6 * size["whole"]
    with pytest.raises(ValueError, match="int3"):
        to_ctranslate2(model, tmp_path / "none", "int3")
    assert not (tmp_path / "none").exists()
