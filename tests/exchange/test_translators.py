"""Translators of other programs, and any by its name: their words, what they say of doubts, and damage."""

from __future__ import annotations

import json
import random
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from helpers import close
from test_marian import M2M100, MARIAN, V, generated

from transformer import Translator, beam_search, greedy_search
from transformer.__main__ import main
from transformer.exchange.translators import Constrained, M2M100Translator, MarianTranslator, load_translator
from transformer.files import CheckpointError

missing = [library for library in ("transformers", "sentencepiece") if find_spec(library) is None]
needs_their_words = pytest.mark.skipif(bool(missing), reason=f"{missing} not installed")
TEXT = [
    "gosto disto .",
    "a menina gosta do gato preto .",
    "este é um problema .",
    "o gato dorme na cadeira .",
]

# ---------- Searches that begin with a token


@pytest.mark.slow
@pytest.mark.parametrize("token", [0, 5, V - 1])
def test_every_result_begins_with_the_token_which_costs_nothing(token, float64):
    model, src = M2M100.ours(), torch.randint(3, V, (4, 6))
    searched, end = Constrained(model, token), model.config.eos_id
    greedy, best = greedy_search(searched, src, 8), beam_search(searched, src, 3, 0.0, 8)
    assert (greedy[:, 0] == token).all() and (best.tokens[:, 0, 0] == token).all()
    rows = [row[: row.index(end) + 1] if end in row[1:] else row for row in best.tokens[:, 0].tolist()]
    for source, row, score in zip(src, rows, best.scores[:, 0]):
        chances = model(source[None], torch.tensor([[end, *row[:-1]]]))[0].log_softmax(-1)
        assert close(score, sum(chances[t, word] for t, word in enumerate(row) if t))
    for source, row in zip(src, greedy.tolist()):
        expected = model(source[None], torch.tensor([[end, token]]))[0, -1].argmax()
        assert row[1] == expected


def test_a_token_that_is_none_is_refused():
    with pytest.raises(ValueError, match=rf"first must lie in \[0, {V}\), but is {V}"):
        Constrained(MARIAN.ours(), V)


# ---------- Marian's words


@pytest.fixture(scope="module")
def marian(tmp_path_factory) -> Path:
    """A folder as OPUS-MT publishes them: a Marian model of random weights with a small vocabulary."""
    spm = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")
    folder = tmp_path_factory.mktemp("marian")
    (folder / "text").write_text("\n".join(TEXT * 9), encoding="utf8")
    for side in ("source", "target"):
        options = {"vocab_size": 45, "hard_vocab_limit": False, "minloglevel": 2}
        spm.SentencePieceTrainer.train(input=str(folder / "text"), model_prefix=str(folder / side), **options)
        (folder / f"{side}.model").rename(folder / f"{side}.spm")
    reader = spm.SentencePieceProcessor(model_file=str(folder / "source.spm"))
    words = ["</s>", "<unk>", *(reader.id_to_piece(number) for number in range(3, len(reader))), "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"source_lang": "pt", "target_lang": "en"}))
    pad = len(words) - 1
    theirs = MARIAN.theirs(vocab_size=len(words), pad_token_id=pad, decoder_start_token_id=pad).float()
    theirs.final_logits_bias[0, pad] = 50.0  # it would be written at every step
    theirs.generation_config.bad_words_ids = [[pad]]
    theirs.save_pretrained(folder)
    return folder


@needs_their_words
def test_a_marian_folder_translates_as_transformers_does(marian):
    import transformers

    ours, tokenizer = load_translator(marian), transformers.MarianTokenizer.from_pretrained(marian)
    assert isinstance(ours, MarianTranslator)
    theirs = transformers.MarianMTModel.from_pretrained(marian).eval()
    for sentence in TEXT:
        src = tokenizer([sentence], return_tensors="pt").input_ids
        assert ours.read([sentence])[0].ids == src[0].tolist()
        for beam in (1, 3):
            options = {"num_beams": beam} | (
                {"early_stopping": True, "length_penalty": 0.0} if beam > 1 else {}
            )
            found = theirs.generate(src, do_sample=False, max_new_tokens=12, **options)
            said = tokenizer.batch_decode(found, skip_special_tokens=True)
            assert ours.translate([sentence], beam_size=beam, length_penalty=0.0, max_length=12) == said
            assert any(said)
    with pytest.warns(UserWarning, match="sentence 1 is cut to its first 47 tokens"):
        ours.translate(["o gato dorme na cadeira . " * 20], beam_size=1)
    with pytest.raises(TypeError, match="sentences must be a list of strings, not one string"):
        ours.translate("o gato")
    found = ours.translate_checked(["世界", "o gato 世", "."], beam_size=1)
    assert found[0] == ("世界", ("has no character of the vocabulary, and is copied",))
    assert found[1].doubts[0] == "has characters that the vocabulary lacks, 1 in all (世)"
    assert found[2].doubts[0] == "has no letter or digit"


@needs_their_words
def test_the_command_translates_with_it_and_names_the_engine_that_it_has_not(marian, capsys):
    assert main(["translate", "--model", str(marian), "--beam", "1", "o gato"]) == 0
    assert capsys.readouterr().out == load_translator(marian).translate(["o gato"], beam_size=1)[0] + "\n"
    assert main(["translate", "--model", str(marian), "--engine", "ctranslate2", "o gato"]) == 2
    assert f"engine of {marian}, a Marian model, must be one of [None]" in capsys.readouterr().err


WORDS = {
    "a word that is no number": ({"▁o": "3"}, "number of '▁o' must be an int"),
    "a number beyond the table": ({"▁o": 10**6}, r"number of '▁o' must lie in \[0, "),
    "no end": ({"</s>": None}, "'</s>' is missing"),
    "no unknown": ({"<unk>": None}, "model cannot be used: .*unk"),
}


@needs_their_words
@pytest.mark.parametrize("changes, said", WORDS.values(), ids=WORDS)
def test_words_that_do_not_fit_a_marian_model_are_refused(marian, tmp_path, changes, said):
    folder = shutil.copytree(marian, tmp_path / "model")
    words = json.loads((folder / "vocab.json").read_text()) | changes
    kept = {word: number for word, number in words.items() if number is not None}
    (folder / "vocab.json").write_text(json.dumps(kept))
    with pytest.raises(CheckpointError, match=said):
        load_translator(folder)


@needs_their_words
@pytest.mark.parametrize("name", ["vocab.json", "source.spm", "target.spm", "tokenizer_config.json"])
def test_any_damage_of_its_words_is_refused_in_one_line_or_does_no_harm(marian, tmp_path, name):
    folder, draw = shutil.copytree(marian, tmp_path / "model"), random.Random(0)
    path = folder / name
    whole, refused = path.read_bytes(), 0
    cuts = [whole[: draw.randrange(len(whole))] for _ in range(10)]
    flips = [(draw.randrange(len(whole)), 1 << draw.randrange(8)) for _ in range(20)]
    for content in (
        *(b"", b"[]", b"{}", b"null", b"\xff" * 99, b'{"separate_vocabs": 1}', b'{"source_lang": [[]]}'),
        *cuts,
        *(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :] for at, bit in flips),
    ):
        path.write_bytes(content)
        try:
            assert isinstance(load_translator(folder).translate(["o gato"], beam_size=1)[0], str)
        except (CheckpointError, FileNotFoundError) as error:
            assert str(folder) in str(error) and "\n" not in str(error)
            refused += 1
    assert refused > 5
    path.unlink()
    with pytest.raises((OSError, CheckpointError), match=name):
        load_translator(folder)


@needs_their_words
def test_no_tokenizer_of_marians_reads_a_file_elsewhere(marian, tmp_path):
    folder, expected = shutil.copytree(marian, tmp_path / "model"), load_translator(marian)
    told = {"source_lang": "pt", "vocab": str(tmp_path / "words"), "unk_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    (tmp_path / "words").write_text('{"<unk>": 0}')
    given = ["a menina gosta do gato xyz ."]
    assert load_translator(folder).translate_checked(given, beam_size=1) == expected.translate_checked(
        given, beam_size=1
    )


# ---------- The words of M2M-100 and NLLB


@pytest.fixture(scope="module")
def pieces(tmp_path_factory) -> Path:
    """A small sentencepiece.bpe.model."""
    spm = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")
    folder = tmp_path_factory.mktemp("spm")
    (folder / "text").write_text("\n".join(TEXT * 3), encoding="utf8")
    options = {"vocab_size": 60, "model_type": "bpe", "unk_id": 0, "bos_id": 1, "eos_id": 2, "minloglevel": 2}
    spm.SentencePieceTrainer.train(input=str(folder / "text"), model_prefix=str(folder / "sp"), **options)
    return folder / "sp.model"


def nllb(pieces: Path, folder: Path):
    import transformers

    (folder / "sentencepiece.bpe.model").write_bytes(pieces.read_bytes())
    raw = transformers.NllbTokenizer.from_pretrained(folder, local_files_only=True)
    transformers.NllbTokenizer(vocab=raw._vocab, merges=raw._merges).save_pretrained(folder)
    return transformers.NllbTokenizer.from_pretrained(folder, local_files_only=True)


def m2m100(pieces: Path, folder: Path):
    import sentencepiece
    import transformers

    reader = sentencepiece.SentencePieceProcessor(str(pieces))
    words = ["<s>", "<pad>", "</s>", "<unk>", *(reader.id_to_piece(n) for n in range(3, len(reader)))]
    (folder / "vocab.json").write_text(json.dumps({word: n for n, word in enumerate(words)}), encoding="utf8")
    (folder / "sentencepiece.bpe.model").write_bytes(pieces.read_bytes())
    return transformers.M2M100Tokenizer(str(folder / "vocab.json"), str(folder / "sentencepiece.bpe.model"))


@needs_their_words
@pytest.mark.parametrize("kind, languages", [(nllb, ("por_Latn", "eng_Latn")), (m2m100, ("pt", "en"))])
def test_a_folder_of_many_languages_translates_as_transformers_does(
    kind, languages, pieces, tmp_path, float64
):
    tokenizer, (source, target) = kind(pieces, tmp_path), languages
    theirs = M2M100.theirs(vocab_size=1000)
    theirs.save_pretrained(tmp_path)
    translator = M2M100Translator(tmp_path, source, target)
    tokenizer.src_lang = source
    code = tokenizer.get_lang_id(target) if kind is m2m100 else tokenizer.convert_tokens_to_ids(target)
    assert code != tokenizer.unk_token_id
    for beam in (1, 3):
        options = {"num_beams": beam} | ({"length_penalty": 0.0, "early_stopping": True} if beam > 1 else {})
        for sentence in TEXT:
            ids = torch.tensor([tokenizer(sentence).input_ids])
            written = generated(theirs, ids, forced_bos_token_id=code, max_new_tokens=12, **options)
            said = tokenizer.batch_decode(written[:, 1:], skip_special_tokens=True)
            assert translator.translate([sentence], beam_size=beam, length_penalty=0.0, max_length=12) == said
    assert translator.read(TEXT[:1])[0].ids == tokenizer(TEXT[0]).input_ids
    with pytest.raises(ValueError, match="target must be one of .*, not 'klingon'"):
        M2M100Translator(tmp_path, source, "klingon")
    with pytest.raises(ValueError, match="M2M100Translator is told which"):
        load_translator(tmp_path)
    M2M100.theirs(vocab_size=70).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"must lie in \[0, 70\)"):
        M2M100Translator(tmp_path, source, target)


@needs_their_words
def test_words_of_many_languages_that_are_missing_are_refused(tmp_path):
    M2M100.theirs(vocab_size=1000).save_pretrained(tmp_path)
    with pytest.raises(FileNotFoundError, match="tokenizer.json"):
        M2M100Translator(tmp_path, "por_Latn", "eng_Latn")


# ---------- By name


def test_a_translator_of_ours_is_loaded_by_its_name_and_what_is_unknown_is_refused():
    assert isinstance(load_translator("phrases"), Translator)
    with pytest.raises(ValueError, match=r"engine must be one of \[None, 'ctranslate2'\], not 'torch'"):
        load_translator("phrases", engine="torch")
    with pytest.raises(ValueError, match="compute_type without an engine must be one of .None., not 'int8'"):
        load_translator("phrases", compute_type="int8")
