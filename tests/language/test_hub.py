"""Models by name: the hub of Hugging Face (a folder stands for it here), Marian's folders, the engine."""

from __future__ import annotations

import json
import random
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import yaml
from helpers import FILES
from huggingface_hub import errors

from transformer import Transformer, TransformerConfig, Translator, beam_search, greedy_search, load_record
from transformer.commands.main import main
from transformer.exchange.ctranslate2 import load_translator
from transformer.exchange.marian import Forbidding, from_marian, to_marian
from transformer.files import CheckpointError
from transformer.language.hub import model_card, pretrained_folder
from transformer.language.translator import Search
from transformer.language.wording import Preparation

SAID = ["A menina gosta do gato preto.", "Gosto disto.", ""]
GIRL = "the girl likes the black cat."
WHOLE = {*FILES, "SHA256SUMS", "README.md"}


def needs(*libraries: str, extra: str = "interchange"):
    """Skip where a library of an extra is not installed."""
    missing = [library for library in libraries if find_spec(library) is None]
    said = f"{', '.join(missing)} not installed: transformer-book[{extra}]"
    return pytest.mark.skipif(bool(missing), reason=said)


@pytest.fixture(scope="module")
def translator() -> Translator:
    return Translator.load("phrases")


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Path:
    """A folder that stands for the hub: what is uploaded lies there, what is fetched comes from there."""
    store = tmp_path / "hub"

    class Api:
        def __init__(self, token=None):
            self.token = token

        def create_repo(self, repo_id, *, private=None, exist_ok=False):
            (store / repo_id).mkdir(parents=True, exist_ok=exist_ok)

        def upload_folder(self, *, repo_id, folder_path, commit_message):
            shutil.copytree(folder_path, store / repo_id, dirs_exist_ok=True)
            return f"https://hub/{repo_id}/commit/{commit_message}"

    def snapshot_download(repo_id, *, allow_patterns, **how):
        if not (store / repo_id).is_dir():
            raise errors.LocalEntryNotFoundError("nothing here\n\nand no network")
        kept = tmp_path / "cache" / repo_id
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True)
        for pattern in allow_patterns:
            for path in (store / repo_id).glob(pattern):
                shutil.copy(path, kept)
        return str(kept)

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return store


def test_what_is_pushed_comes_back_and_translates_the_same(translator, hub):
    address = translator.push_to_hub("someone/phrases", record=load_record("phrases"), commit_message="first")
    assert address == "https://hub/someone/phrases/commit/first"
    assert {path.name for path in (hub / "someone/phrases").iterdir()} == WHOLE
    again = Translator.from_pretrained("someone/phrases")
    assert again.translate(SAID) == translator.translate(SAID)
    assert 'from_pretrained("someone/phrases")' in (hub / "someone/phrases/README.md").read_text("utf8")


def test_a_saved_folder_is_that_of_save_with_a_card(translator, tmp_path):
    translator.save(tmp_path / "bare")
    translator.save_pretrained(tmp_path / "carded")
    for name in (*FILES, "SHA256SUMS"):
        assert (tmp_path / "bare" / name).read_bytes() == (tmp_path / "carded" / name).read_bytes()
    assert Translator.from_pretrained(tmp_path / "carded").translate(SAID) == translator.translate(SAID)
    assert Translator.from_pretrained(str(tmp_path / "bare")).translate(SAID[:1]) == [GIRL]


def test_the_card_can_be_read_by_the_hub_and_tells_the_run(translator):
    record = load_record("phrases")
    card = model_card(translator.model.config, record, "a/b", translator.preparation)
    head = yaml.safe_load(card.split("---\n")[1])
    assert head["language"] == ["pt", "en"] and head["pipeline_tag"] == "translation"
    for said in (record["command"], record["commit"], record["device"], "| d_model | 128 |"):
        assert said in card
    for measured in record["scores"]["test"]["tuned"].values():
        assert measured["line"] in card
    assert "## Scores" not in model_card(translator.model.config, None, "a/b")


def test_the_card_says_the_languages_of_its_own_model():
    config = TransformerConfig(9, 9, d_model=8, n_heads=2, n_layers=1, d_ff=8)
    for languages in (("de", "en"), ("pt", "zh-Hant"), None):
        card = model_card(config, None, "a/b", Preparation("lower case", languages))
        assert yaml.safe_load(card.split("---\n")[1]).get("language") == (languages and [*languages])
        assert ("from pt to" in card) == ("Gosto disto." in card) == (languages == ("pt", "zh-Hant"))


@pytest.mark.parametrize("record", [{}, {"scores": {"test": {}}}, {"scores": 3}, load_record("toy")])
def test_a_record_of_something_else_is_refused_before_anything_is_written(translator, record, tmp_path):
    with pytest.raises(ValueError, match="^record is not that of a translator"):
        translator.save_pretrained(tmp_path / "kept", record=record)
    assert not (tmp_path / "kept").exists()


def test_a_folder_and_a_carried_name_come_before_the_hub(hub, translator, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    translator.save("someone/mine")
    assert pretrained_folder("someone/mine") == Path("someone/mine")
    assert Translator.from_pretrained("phrases").translate(SAID[:1]) == [GIRL]


def test_only_what_executes_nothing_is_fetched(hub, translator):
    translator.push_to_hub("someone/phrases")
    (hub / "someone/phrases/pytorch_model.bin").write_bytes(b"pickle")
    (hub / "someone/phrases/code.py").write_bytes(b"print()")
    assert {path.name for path in pretrained_folder("someone/phrases").iterdir()} == WHOLE - {"README.md"}
    (hub / "someone/phrases/model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="someone/phrases holds no weights in the format safetensors"):
        Translator.from_pretrained("someone/phrases")


def test_what_is_fetched_is_checked_like_any_folder(hub, translator):
    translator.push_to_hub("someone/phrases")
    config = hub / "someone/phrases/config.json"
    config.write_text(config.read_text().replace('"n_heads": 4', '"n_heads": 8'))
    with pytest.raises(CheckpointError, match="config.json does not match"):
        Translator.from_pretrained("someone/phrases")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (errors.LocalEntryNotFoundError("a\nb"), "the hub cannot be reached, and the model was not fetched"),
        (errors.OfflineModeIsEnabled("a\nb"), "the library was told to work offline"),
        (ZeroDivisionError("of\nthe network"), "ZeroDivisionError: of the network"),
    ],
)
def test_a_hub_that_does_not_answer_is_said_in_one_line(error, message, monkeypatch, capsys):
    def fail(*given, **named):
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    assert main(["translate", "--model", "someone/phrases", "a"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: someone/phrases on the Hugging Face hub: {message}")
    assert said.count("\n") == 1


def test_a_hub_that_refuses_an_upload_is_said_so(translator, monkeypatch):
    class Api:
        def __init__(self, token=None):
            assert token == "secret"

        def create_repo(self, repo_id, **how):
            raise PermissionError("no right to write")

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    with pytest.raises(OSError, match="^someone/phrases on the Hugging Face hub: PermissionError: no right"):
        translator.push_to_hub("someone/phrases", token="secret")


def test_without_the_library_its_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r'pip install "transformer-book\[text\]"'):
        Translator.from_pretrained("someone/phrases")


def test_the_commands_take_a_name_on_the_hub(hub, translator, capsys):
    translator.push_to_hub("someone/phrases")
    assert main(["translate", "--model", "someone/phrases", SAID[0]]) == 0
    assert capsys.readouterr().out == f"{GIRL}\n"
    assert main(["info", "--model", "someone/phrases"]) == 0
    assert "d_model: 128" in capsys.readouterr().out


# Marian's models ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def marian(tmp_path_factory) -> Path:
    """A folder as OPUS-MT publishes them: a Marian model of random weights with a small vocabulary."""
    sentencepiece = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")
    folder = tmp_path_factory.mktemp("marian")
    text = folder / "text"
    text.write_text(
        "a menina gosta do gato preto .\no gato vê a casa .\nthe girl likes the black cat .\n" * 9
    )
    for side in ("source", "target"):
        sentencepiece.SentencePieceTrainer.train(
            input=str(text),
            model_prefix=str(folder / side),
            vocab_size=45,
            hard_vocab_limit=False,
            minloglevel=2,
        )
        (folder / f"{side}.model").rename(folder / f"{side}.spm")
    reader = sentencepiece.SentencePieceProcessor(model_file=str(folder / "source.spm"))
    pieces = [reader.id_to_piece(number) for number in range(3, len(reader))]
    words = ["</s>", "<unk>", *pieces, "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"source_lang": "pt", "target_lang": "en"}))
    torch.manual_seed(0)
    size, pad = len(words), len(words) - 1
    special = {"pad_id": pad, "bos_id": pad, "eos_id": 0, "max_length": 40}
    config = TransformerConfig(size, size, d_model=16, n_heads=2, n_layers=2, d_ff=24, **special)
    model = Transformer(config)
    bias = torch.zeros(size)
    bias[pad] = 50.0  # it would be written at every step
    model.output.bias = torch.nn.Parameter(bias, requires_grad=False)
    to_marian(model, folder)
    written = folder / "generation_config.json"
    written.write_text(json.dumps(json.loads(written.read_text()) | {"bad_words_ids": [[pad]]}))
    return folder


@needs("transformers", "sentencepiece")
def test_a_marian_folder_is_a_translator_with_its_own_words(marian):
    import transformers

    sentences, ours = ["a menina gosta do gato preto .", "o gato"], load_translator(marian)
    tokenizer = transformers.MarianTokenizer.from_pretrained(marian)
    model = from_marian(marian).eval()
    model = Forbidding(model, [model.config.pad_id])
    src = tokenizer(sentences, return_tensors="pt", padding=True).input_ids
    assert [ours.n_tokens(text) for text in sentences] == (src != model.config.pad_id).sum(1).tolist()
    greedy, found = greedy_search(model, src, 40), beam_search(model, src, 3, 0.5, 40).tokens[:, 0]
    assert ours.translate(sentences, beam_size=1) == tokenizer.batch_decode(greedy, skip_special_tokens=True)
    assert ours.translate(sentences, beam_size=3, length_penalty=0.5) == tokenizer.batch_decode(
        found, skip_special_tokens=True
    )
    assert any(ours.translate(sentences, beam_size=1))


@needs("transformers", "sentencepiece")
def test_a_marian_model_is_translated_with_from_the_hub(hub, marian, capsys):
    shutil.copytree(marian, hub / "opus" / "tiny")
    assert main(["translate", "--model", "opus/tiny", "--beam", "1", "o gato"]) == 0
    assert capsys.readouterr().out == load_translator(marian).translate(["o gato"], beam_size=1)[0] + "\n"
    assert main(["translate", "--model", "opus/tiny", "--engine", "ctranslate2", "o gato"]) == 2
    said = "engine must be 'pytorch' or 'auto' for opus/tiny, a Marian model, not 'ctranslate2'"
    assert said in capsys.readouterr().err
    assert main(["translate", "--model", "opus/tiny", "--engine", "auto", "--beam", "1", "o gato"]) == 0
    assert capsys.readouterr().err == "warning: searches run on pytorch: opus/tiny is a Marian model\n"


WORDS = {
    "a word that is no number": ({"▁o": "3"}, "vocab.json cannot be used: number of '▁o' must be an int"),
    "a number beyond the table": ({"▁o": 10**6}, "must have different numbers below"),
    "a negative number": ({"▁o": -1}, "number of '▁o' must be at least 0"),
    "one number twice": ({"▁o": 0}, "must have different numbers below"),
    "no end": ({"</s>": None}, "number of '</s>' must be"),
    "another padding": ({"<pad>": 3}, "must have different numbers below"),
    "no unknown": ({"<unk>": None}, "'<unk>' is missing"),
}


@needs("transformers", "sentencepiece")
@pytest.mark.parametrize("changes, said", WORDS.values(), ids=WORDS)
def test_words_that_do_not_fit_a_marian_model_are_refused(marian, tmp_path, changes, said):
    folder = shutil.copytree(marian, tmp_path / "model")
    words = json.loads((folder / "vocab.json").read_text()) | changes
    kept = {word: number for word, number in words.items() if number is not None}
    (folder / "vocab.json").write_text(json.dumps(kept))
    with pytest.raises(CheckpointError, match=said):
        load_translator(folder)


@needs("transformers", "sentencepiece")
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
    if name != "tokenizer_config.json":  # which only names the languages
        with pytest.raises(FileNotFoundError, match=f"{name} is missing, which Marian's tokenizer needs"):
            load_translator(folder)


@needs("transformers", "sentencepiece")
def test_no_tokenizer_of_marians_reads_a_file_elsewhere(marian, tmp_path):
    folder, expected = shutil.copytree(marian, tmp_path / "model"), load_translator(marian)
    told = {"source_lang": "pt", "target_lang": "en", "vocab": str(tmp_path / "words"), "unk_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    (tmp_path / "words").write_text('{"<unk>": 0}')
    sentence = "a menina gosta do gato xyz ."
    assert load_translator(folder).n_tokens(sentence) == expected.n_tokens(sentence)
    assert load_translator(folder).translate([sentence], beam_size=1) == expected.translate(
        [sentence], beam_size=1
    )


@needs("transformers", "sentencepiece")
def test_a_marian_translation_that_cannot_be_trusted_says_why(marian):
    sentences = ["o gato", "世界", "o gato 世", "."]
    found = load_translator(marian).translate_checked(sentences, beam_size=1)
    assert found[1] == ("世界", ("has no character of the vocabulary, and is copied",))
    assert found[2].doubts[0] == "has characters that the vocabulary lacks, 1 in all (世)"
    assert found[3].doubts[0] == "has no letter or digit"


@needs("transformers", "sentencepiece")
def test_a_sentence_too_long_for_a_marian_model_is_cut_and_said_so(marian):
    with pytest.warns(UserWarning, match="sentence 1 is cut to its first 39 tokens"):
        load_translator(marian).translate(["o gato vê a casa . " * 20, "o gato"], beam_size=1)


# The engine -----------------------------------------------------------------------------------------


def test_a_missing_engine_is_named_with_its_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    monkeypatch.setitem(sys.modules, "ctranslate2.specs", None)
    assert main(["translate", "--engine", "ctranslate2", "a"]) == 2
    need = 'this needs the library ctranslate2: pip install "transformer-book[interchange]"'
    assert capsys.readouterr().err == f"error: {need}\n"
    assert main(["translate", "--engine", "auto", SAID[0]]) == 0
    assert capsys.readouterr() == (f"{GIRL}\n", f"warning: searches run on pytorch: {need}\n")


def test_an_engine_that_nobody_knows_is_refused():
    message = r"engine must be one of \['pytorch', 'ctranslate2', 'auto'\], not 'torch'"
    for load in (load_translator, Translator.from_pretrained):
        with pytest.raises(ValueError, match=message):
            load("phrases", engine="torch")


@needs("ctranslate2")
def test_the_engine_is_taken_where_it_is_asked_for_and_said_once(capsys):
    carried = Translator.load("phrases", engine="auto")
    assert (carried.engine, Translator.load("phrases").engine) == ("ctranslate2", "pytorch")
    assert carried.translate([SAID[0]]) == [GIRL] and carried.align(SAID[0]).target[-1] == "</s>"
    assert main(["translate", "--engine", "auto", SAID[0], SAID[0]]) == 0
    assert capsys.readouterr() == (f"{GIRL}\n" * 2, "searches run on ctranslate2\n")
    assert main(["translate", SAID[0]]) == 0
    assert capsys.readouterr() == (f"{GIRL}\n", "")


@needs("ctranslate2")
def test_the_engine_says_what_pytorch_says(translator, capsys):
    from transformer import load_corpus

    sources = [pair.source for pair in load_corpus("phrases", "test")[:100]]
    engine: Any = load_translator("phrases", engine="ctranslate2")
    for search in (Search(1), Search(4), Search(4, 0.0)):
        pairs = zip(engine.translate(sources, search), translator.translate(sources, search))
        assert sum(a == b for a, b in pairs) >= 97
    ids = [[*translator.vocabulary.encode(text), translator.model.config.eos_id] for text in sources[:9]]
    for longest in (3, 200):
        search = Search(1, max_length=longest)
        assert engine.translate_ids(ids, search) == translator.translate_ids(ids, search)
    assert engine.translate(["", "gosto disto ."]) == ["", "i like this."]
    assert engine.translate_tokenized(["a menina gosta do gato preto ."], beam_size=1, max_length=3)[0] != ""
    assert main(["translate", "--engine", "ctranslate2", SAID[0]]) == 0
    assert capsys.readouterr().out == f"{GIRL}\n"


@needs("ctranslate2")
@pytest.mark.parametrize("changes", [{"beam_size": 101}, {"length_penalty": -1.0}, {"max_length": 0}])
def test_the_engine_refuses_what_translate_refuses(changes):
    engine: Any = load_translator("phrases", engine="ctranslate2")
    with pytest.raises(ValueError):
        engine.translate_tokenized(["a"], **changes)
