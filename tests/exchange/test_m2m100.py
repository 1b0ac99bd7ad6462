"""M2M-100 and NLLB-200: ours finds what the real class finds, and what is no such model is refused."""

from __future__ import annotations

import copy
import json
import math
import sys
from importlib.util import find_spec

import pytest
import torch
from helpers import close, refuses, scrambled
from torch import Tensor, nn

from transformer import Transformer, TransformerConfig, accelerate, beam_search, check_model, greedy_search
from transformer.exchange.ctranslate2 import load_translator, to_ctranslate2
from transformer.exchange.m2m100 import (
    Beginning,
    M2M100Positions,
    M2M100Transformer,
    M2M100Translator,
    from_m2m100,
    to_m2m100,
)
from transformer.exchange.marian import to_pegasus
from transformer.exchange.onnx import to_onnx
from transformer.files import CheckpointError
from transformer.language.folder import savable

pytestmark = pytest.mark.usefixtures("float64")
needs_transformers = pytest.mark.skipif(
    find_spec("transformers") is None, reason="transformers is not installed: transformer-book[interchange]"
)
PAD, EOS, V, D, LENGTH = 1, 2, 29, 12, 24
SIZES = {"d_model": D, "n_heads": 3, "n_layers": (3, 2), "d_ff": 20, "max_length": LENGTH, "dropout": 0.0}
SPECIAL = {"pad_id": PAD, "bos_id": EOS, "eos_id": EOS, "norm_first": True}
STACKS = ("encoder", "decoder")
FORMS = {
    "as NLLB-200": {},
    "as M2M-100": {f"{stack}_layerdrop": 0.05 for stack in STACKS},
    "deep and shallow": {"encoder_layers": 4, "decoder_layers": 1},
    "wide heads, silu": {
        "activation_function": "silu",
        "d_model": 16,
        **{f"{s}_attention_heads": 2 for s in STACKS},
    },
    "another start": {"decoder_start_token_id": 0, "activation_function": "gelu"},
}
EVERY_FORM = pytest.mark.parametrize("form", FORMS)


def ours_of(**changes) -> M2M100Transformer:
    torch.manual_seed(0)
    return scrambled(M2M100Transformer(TransformerConfig(V, V, **SIZES | SPECIAL | changes))).eval()


def waves(length: int, d_model: int) -> Tensor:
    """Their table by its definition, entry by entry."""
    n = d_model // 2
    angle = lambda t, i: (t + 2) / 10000 ** (i / (n - 1))
    rows = [[f(angle(t, i)) for f in (math.sin, math.cos) for i in range(n)] for t in range(length)]
    return torch.tensor(rows)


@pytest.mark.parametrize("d_model", [4, 10, 64])
def test_positions_are_those_of_the_definition_and_stay_so_in_any_dtype(d_model):
    positions = M2M100Positions(d_model, 0.0, 1100)
    assert close(positions.table, waves(1100, d_model), atol=1e-12)
    x = torch.zeros(1, 7, d_model)
    assert close(positions(x, 5)[0], waves(12, d_model)[5:], atol=1e-12)
    assert torch.equal(positions.float().double().table, M2M100Positions(d_model, 0.0, 1100).table)
    with torch.device("meta"):
        assert not M2M100Positions(d_model, 0.0, 9).table.is_meta


@pytest.mark.parametrize("changes, said", [
    ({"d_model": 15}, r"d_model % 2 must be one of \[0\], not 1"),
    ({"d_model": 3}, "d_model must be at least 4, but is 3"),
    ({"pad_id": 0}, r"pad_id must be one of \[1\], not 0"),
    ({"bos_id": PAD}, "pad_id and bos_id must differ here, but both are 1"),
], ids=str)  # fmt: skip
def test_what_m2m100_does_not_have_is_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        ours_of(**changes)


def test_it_is_a_transformer_that_sees_neither_future_nor_padding():
    assert check_model(ours_of()).passed


def test_in_training_what_is_added_to_positions_is_dropped_as_configured():
    positions = ours_of(dropout=0.5).positions.train()
    dropped = (positions(torch.ones(4, LENGTH, D)) == 0).double().mean()
    assert 0.4 < dropped < 0.6


def test_what_counts_on_the_papers_positions_refuses_it_in_one_line(tmp_path):
    model, given = ours_of(), "transformer.exchange.m2m100.M2M100Transformer"
    with refuses(
        TypeError,
        "accelerate takes only what a configuration makes, but the model is of M2M100Transformer, "
        "not of Transformer",
    ):
        accelerate(model)
    with pytest.raises(TypeError, match="no file could hold it, but positions.table is not as it makes it"):
        savable(model, torch.float32)
    for module, write in (
        ("onnxscript", to_onnx),
        ("ctranslate2.specs", to_ctranslate2),
        ("transformers", to_pegasus),
    ):
        if find_spec(module.partition(".")[0]) is None:
            continue
        with pytest.raises(
            TypeError, match=f"model must be of type transformer.model.Transformer, not {given}"
        ):
            write(model, tmp_path / "none")
    assert not (tmp_path / "none").exists()


# -------------------------------------------------------------------------------------------------
# One token at the beginning
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [0, 5, V - 1])
def test_every_result_begins_with_the_token_and_goes_on_as_the_model_does(token):
    model, src = ours_of(), torch.randint(3, V, (4, 6), generator=torch.Generator().manual_seed(1))
    found = greedy_search(Beginning(model, token), src, 8)
    assert (found[:, 0] == token).all()
    for source, row in zip(src, found):
        tokens = [EOS, token]
        while len(tokens) < 9 and (len(tokens) == 2 or tokens[-1] != EOS):
            tokens.append(int(model(source[None], torch.tensor([tokens]))[0, -1].argmax()))
        assert [t for t in row.tolist() if t != PAD or t in tokens[1:]][: len(tokens) - 1] == tokens[1:]
    best = beam_search(Beginning(model, token), src, 3, length_penalty=0.0, max_length=8)
    assert (best.tokens[:, 0, 0] == token).all() and best.scores[:, 0].isfinite().all()
    one = beam_search(Beginning(model, token), src, 1, max_length=8).tokens[:, 0]
    assert torch.equal(one[:, : found.size(1)], found)


def test_the_token_costs_nothing():
    """The score is that of what comes after it."""
    model, src = ours_of(), torch.tensor([[4, 9, 7]])
    found = beam_search(Beginning(model, 6), src, 3, length_penalty=0.0, max_length=6)
    row = found.tokens[0, 0].tolist()
    row = row[: row.index(EOS) + 1] if EOS in row else row
    chances = model(src, torch.tensor([[EOS, *row[:-1]]]))[0].log_softmax(-1)
    assert close(found.scores[0, 0], sum(chances[t, token] for t, token in enumerate(row) if t))


@pytest.mark.parametrize("token, error, said", [
    (V, ValueError, rf"token must lie in \[0, {V}\), but is {V}"),
    (-1, ValueError, "token must be at least 0, but is -1"),
    ("por_Latn", TypeError, "token must be an int, not str"),
], ids=str)  # fmt: skip
def test_a_token_that_is_none_is_refused(token, error, said):
    with pytest.raises(error, match=said):
        Beginning(ours_of(), token)


# -------------------------------------------------------------------------------------------------
# Models that transformers makes
# -------------------------------------------------------------------------------------------------


def exact_positions(theirs):
    """With sinusoids in float64: theirs are computed in float32."""
    for stack in STACKS:
        positions = getattr(theirs.model, stack).embed_positions
        exact = waves(len(positions.weights) - 2, positions.weights.size(1))
        positions.weights = torch.cat([torch.zeros(2, exact.size(1)), exact])
    return theirs


def m2m100(form: str = "as NLLB-200", seed: int = 0, **changes):
    """An M2M100ForConditionalGeneration with random weights, in float64 and in evaluation mode."""
    import transformers

    settings = {
        "vocab_size": V, "d_model": D, "max_position_embeddings": LENGTH, "activation_function": "relu",
        "scale_embedding": True, "pad_token_id": PAD, "decoder_start_token_id": EOS, "eos_token_id": EOS,
        **{f"{stack}_{name}": value for stack in STACKS for name, value in (
            ("layers", 2), ("attention_heads", 3), ("ffn_dim", 20), ("layerdrop", 0.0))},
    }  # fmt: skip
    torch.manual_seed(seed)
    config = transformers.M2M100Config(**settings | FORMS[form] | changes)
    theirs = transformers.M2M100ForConditionalGeneration(config).double().eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            parameter.normal_(1.0 if "norm.weight" in name else 0.0, 0.4)
    return exact_positions(theirs)


def sentences(batch: int = 12) -> tuple[Tensor, Tensor]:
    """Source and target ids, some of the sources padded."""
    src, tgt = torch.randint(3, V, (batch, 9)), torch.randint(3, V, (batch, 7))
    src[1, 6:] = src[2, 3:] = PAD
    return src, tgt


def their_logits(theirs, src: Tensor, tgt: Tensor) -> Tensor:
    return theirs(input_ids=src, attention_mask=(src != PAD).long(), decoder_input_ids=tgt).logits


def generated(theirs, src: Tensor, token: int, max_length: int, **options) -> Tensor:
    """What `generate` finds after the token, which computes its scores in float32."""
    given = {"input_ids": src, "attention_mask": (src != PAD).long(), "forced_bos_token_id": token}
    torch.set_default_dtype(torch.float32)
    try:
        return theirs.generate(**given, do_sample=False, max_new_tokens=max_length, **options)[:, 1:]
    finally:
        torch.set_default_dtype(torch.float64)


def until_end(rows: Tensor) -> list[list[int]]:
    return [row[: row.index(EOS) + 1] if EOS in row else row for row in rows.tolist()]


@needs_transformers
@EVERY_FORM
def test_logits_and_searches_are_equal_there_and_back(form, tmp_path):
    import transformers

    theirs = m2m100(form)
    ours = from_m2m100(theirs)
    assert type(ours) is M2M100Transformer and not ours.training
    assert ours.config.depths == (theirs.config.encoder_layers, theirs.config.decoder_layers)
    src, tgt = sentences()
    expected = their_logits(theirs, src, tgt)
    assert close(ours(src, tgt), expected) and expected.std() > 0.5
    for token in (5, 17):
        searched = Beginning(ours, token)
        greedy = generated(theirs, src, token, 15, num_beams=1)
        assert until_end(greedy_search(searched, src, 15)) == until_end(greedy)
        beam = generated(theirs, src, token, 15, num_beams=4, length_penalty=0.0, early_stopping=True)
        found = beam_search(searched, src, 4, length_penalty=0.0, max_length=15).tokens[:, 0]
        assert until_end(found) == until_end(beam)
    to_m2m100(ours, tmp_path)
    back = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert type(back) is type(theirs)
    state = back.state_dict()
    assert all(torch.equal(state[name], value) for name, value in theirs.state_dict().items())
    assert close(their_logits(exact_positions(back), src, tgt), expected)
    again = from_m2m100(str(tmp_path))
    assert again.config == ours.config and close(again(src, tgt), expected)


@needs_transformers
def test_in_float32_the_difference_is_that_of_rounding():
    theirs = m2m100(max_position_embeddings=400).float()
    for stack in STACKS:
        positions = getattr(theirs.model, stack).embed_positions
        positions.make_weights(402, D, PAD)  # theirs, rounded as published
    src, tgt = torch.randint(3, V, (2, 390)), torch.randint(3, V, (2, 390))
    ours = from_m2m100(theirs)
    assert ours.positions.table.dtype == torch.float32
    assert close(ours(src, tgt), their_logits(theirs, src, tgt), atol=1e-3)
    assert close(ours(src[:, :9], tgt[:, :9]), their_logits(theirs, src[:, :9], tgt[:, :9]), atol=1e-4)


@needs_transformers
def test_the_tables_of_older_files_are_looked_at(tmp_path):
    from safetensors.torch import load_file, save_file

    theirs = m2m100()
    theirs.save_pretrained(tmp_path)
    weights, name = load_file(tmp_path / "model.safetensors"), "model.decoder.embed_positions.weights"
    table = theirs.model.decoder.embed_positions.weights
    save_file(weights | {name: table.contiguous()}, tmp_path / "model.safetensors")
    src, tgt = sentences()
    assert close(from_m2m100(tmp_path)(src, tgt), their_logits(theirs, src, tgt))
    save_file(weights | {name: table.flip(0).contiguous()}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"{name} must hold the sinusoids of M2M-100"):
        from_m2m100(tmp_path)


@needs_transformers
@pytest.mark.parametrize("changes, said", [
    ({"scale_embedding": False}, "scale_embedding must be one of .True., not False"),
    ({"encoder_ffn_dim": 8}, "encoder_ffn_dim and decoder_ffn_dim .* 20 and 8"),
    ({"activation_function": "gelu_new"}, "activation_function .* not 'gelu_new'"),
    ({"pad_token_id": 0}, "pad_id must be one of .1., not 0"),
    ({"decoder_start_token_id": PAD}, "pad_id and bos_id must differ here"),
], ids=str)  # fmt: skip
def test_a_configuration_that_ours_cannot_have_is_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        from_m2m100(m2m100(**changes))


def other_positions(theirs):
    theirs.model.encoder.embed_positions.weights = theirs.model.encoder.embed_positions.weights.flip(1)


def another_epsilon(theirs):
    theirs.model.decoder.layer_norm.eps = 1e-6


def a_table_of_its_own(theirs):
    theirs.lm_head.weight = nn.Parameter(theirs.lm_head.weight.clone())


@needs_transformers
@pytest.mark.parametrize("change, said", [
    (other_positions, "embed_positions.weights must hold the sinusoids of M2M-100"),
    (another_epsilon, "eps of model.decoder.layer_norm must be 1e-05 as configured"),
    (a_table_of_its_own, "must share the parameters that its configuration shares"),
])  # fmt: skip
def test_a_model_that_was_changed_is_refused(change, said):
    theirs = m2m100()
    change(theirs)
    with pytest.raises(ValueError, match=said):
        from_m2m100(theirs)


@needs_transformers
def test_models_with_the_papers_positions_are_sent_to_pegasus(tmp_path):
    model = Transformer(TransformerConfig(V, V, **SIZES | SPECIAL))
    with refuses(
        TypeError, "model must have the positions of M2M-100, not the paper's: to_pegasus writes it"
    ):
        to_m2m100(model, tmp_path / "none")
    with pytest.raises(ValueError, match="norm_first must be one of .True., not False"):
        to_m2m100(ours_of(norm_first=False), tmp_path / "none")
    moved = copy.deepcopy(ours_of())
    moved.positions = copy.deepcopy(model.positions)
    with pytest.raises(
        TypeError, match="positions must be of type .*M2M100Positions, not .*PositionalEncoding"
    ):
        to_m2m100(moved, tmp_path / "none")
    assert not (tmp_path / "none").exists()


# -------------------------------------------------------------------------------------------------
# With a vocabulary
# -------------------------------------------------------------------------------------------------

TEXT = [
    "gosto disto .",
    "a menina gosta do gato preto .",
    "este é um problema .",
    "o gato dorme na cadeira .",
]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    """A small sentencepiece.bpe.model."""
    spm = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")
    folder = tmp_path_factory.mktemp("spm")
    (folder / "text").write_text("\n".join(TEXT * 3), encoding="utf8")
    options = {"vocab_size": 60, "model_type": "bpe", "unk_id": 0, "bos_id": 1, "eos_id": 2, "minloglevel": 2}
    spm.SentencePieceTrainer.train(input=str(folder / "text"), model_prefix=str(folder / "sp"), **options)
    return folder / "sp.model"


def nllb_tokenizer(vocabulary, folder):
    import transformers

    (folder / "sentencepiece.bpe.model").write_bytes(vocabulary.read_bytes())
    raw = transformers.NllbTokenizer.from_pretrained(folder, local_files_only=True)
    transformers.NllbTokenizer(vocab=raw._vocab, merges=raw._merges).save_pretrained(folder)
    return transformers.NllbTokenizer.from_pretrained(folder, local_files_only=True)


def m2m100_tokenizer(vocabulary, folder):
    import sentencepiece
    import transformers

    pieces = sentencepiece.SentencePieceProcessor(str(vocabulary))
    words = ["<s>", "<pad>", "</s>", "<unk>", *(pieces.id_to_piece(n) for n in range(3, len(pieces)))]
    (folder / "vocab.json").write_text(json.dumps({word: n for n, word in enumerate(words)}), encoding="utf8")
    (folder / "sentencepiece.bpe.model").write_bytes(vocabulary.read_bytes())
    return transformers.M2M100Tokenizer(str(folder / "vocab.json"), str(folder / "sentencepiece.bpe.model"))


@needs_transformers
@pytest.mark.parametrize(
    "kind, languages", [(nllb_tokenizer, ("por_Latn", "eng_Latn")), (m2m100_tokenizer, ("pt", "en"))]
)
def test_a_folder_translates_as_transformers_does(kind, languages, vocabulary, tmp_path):
    tokenizer, (source, target) = kind(vocabulary, tmp_path), languages
    theirs = m2m100(vocab_size=1000)
    theirs.save_pretrained(tmp_path)
    translator = M2M100Translator(tmp_path, source, target)
    tokenizer.src_lang = source
    code = (
        tokenizer.get_lang_id(target) if kind is m2m100_tokenizer else tokenizer.convert_tokens_to_ids(target)
    )
    assert code != tokenizer.unk_token_id
    for beam in (1, 3):
        options = (
            {"num_beams": beam, "length_penalty": 0.0, "early_stopping": True}
            if beam > 1
            else {"num_beams": 1}
        )
        for sentence in TEXT:
            ids = torch.tensor([tokenizer(sentence).input_ids])
            written = generated(theirs, ids, code, 12, **options)
            said = tokenizer.batch_decode(written[:, 1:], skip_special_tokens=True)
            assert translator.translate([sentence], beam_size=beam, length_penalty=0.0, max_length=12) == said
    assert translator.n_tokens(TEXT[0]) == len(tokenizer(TEXT[0]).input_ids)
    with pytest.warns(UserWarning, match="sentence 1 is cut to its first 23 tokens"):
        translator.translate([" ".join(TEXT * 3)], max_length=3)
    with pytest.raises(ValueError, match="the model has no language 'klingon'; it has .* and others"):
        M2M100Translator(tmp_path, source, "klingon")
    with pytest.raises(ValueError, match="M2M100Translator is told which"):
        load_translator(tmp_path)
    m2m100(vocab_size=70).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="its tokens must lie below 70"):
        M2M100Translator(tmp_path, source, target)


@needs_transformers
def test_a_tokenizer_that_makes_texts_long_is_refused_before_it_runs(vocabulary, tmp_path):
    nllb_tokenizer(vocabulary, tmp_path)
    m2m100(vocab_size=1000).save_pretrained(tmp_path)
    path = tmp_path / "tokenizer.json"
    double = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    found = json.loads(path.read_text(encoding="utf8"))
    found["normalizer"] = {"type": "Sequence", "normalizers": [double] * 24}
    path.write_text(json.dumps(found), encoding="utf8")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be used: normalizer can make a text"):
        M2M100Translator(tmp_path, "por_Latn", "eng_Latn")


@needs_transformers
def test_a_missing_vocabulary_is_named(tmp_path):
    m2m100().save_pretrained(tmp_path)
    with pytest.raises(FileNotFoundError, match="tokenizer.json is missing, which the tokenizer needs"):
        M2M100Translator(tmp_path, "por_Latn", "eng_Latn")
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="sentencepiece.bpe.model is missing"):
        M2M100Translator(tmp_path, "pt", "en")


@pytest.mark.parametrize("convert", [from_m2m100, lambda model: to_m2m100(model, "folder")])
def test_a_missing_library_is_named_with_its_extra(convert, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r'pip install "transformer-book\[interchange\]"'):
        convert(ours_of())
