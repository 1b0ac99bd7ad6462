"""Folders of Llama's form with their tokenizers: read, continued, refused, and compared with transformers.

The folder is a copy of the small Llama that the package carries; `tests/modern` compares random ones.
"""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path

import pytest
import torch
from helpers import assert_close

from transformer.exchange.translators import Speaker
from transformer.files import CheckpointError
from transformer.language.vocabulary import BOS_ID, EOS_ID
from transformer.modern.language_model import generate
from transformer.training import record_path

pytest.importorskip("safetensors")
pytest.importorskip("tokenizers")

TEXTS = ["a menina", "  o   pedro\tnão ", "", "os livros são novos ,", "xyz é !"]
SIZE = 1000  # entries of its vocabulary


@pytest.fixture
def folder(tmp_path) -> Path:
    return Path(shutil.copytree(record_path("speaker"), tmp_path / "speaker"))


def rewritten(path: Path, **changes) -> None:
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf8")) | changes), encoding="utf8")


def test_transformers_reads_the_llama_that_the_package_carries_and_writes_the_same():
    transformers = pytest.importorskip("transformers")
    folder = record_path("speaker")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).float().eval()
    speaker = Speaker(folder)
    speaker.model.float()
    for text in TEXTS:
        given = torch.tensor([tokenizer(text).input_ids])
        assert given[0].tolist() == speaker.encode(text)
        assert tokenizer.decode(given[0], skip_special_tokens=True) == speaker.decode(given[0].tolist())
        with torch.no_grad():
            assert_close(speaker.model(given), theirs(given).logits, 1e-4)
            mask = torch.ones_like(given)
            written = theirs.generate(given, attention_mask=mask, max_new_tokens=30, do_sample=False)
        assert speaker.speak(text, 30) == tokenizer.decode(written[0], skip_special_tokens=True)


def test_a_speaker_reads_and_continues_as_its_model_does(folder):
    speaker = Speaker(folder)
    assert speaker.model.output.weight.dtype == torch.float16
    speaker.model.float()
    for text in TEXTS[:3]:
        ids = speaker.encode(text)
        assert ids[0] == BOS_ID and speaker.decode([*ids, EOS_ID]) == " ".join(text.split())
        written = generate(speaker.model, torch.tensor([ids]), 9, eos_id=EOS_ID)[0].tolist()
        assert speaker.speak(text, 9) == speaker.decode([*ids, *written])


@pytest.mark.slow
def test_draws_differ_and_several_ends_are_ends(folder):
    five, six, seven = (Speaker(folder).encode(word)[1] for word in ("menina", "livro", "casa"))
    rewritten(folder / "generation_config.json", eos_token_id=[EOS_ID, six])
    speaker = Speaker(folder)
    for drawn, kept in (([five, six], [five]), ([six, five], []), ([seven, seven], [seven] * 2)):
        said = iter(torch.tensor(drawn))
        text = speaker.speak("a", 2, lambda logits, said=said: next(said)[None])
        assert text == speaker.decode([*speaker.encode("a"), *kept])


@pytest.mark.parametrize("end, said", [(SIZE, rf"must lie in \[0, {SIZE}\)"), ("a", "must be an int")])
def test_an_end_that_is_no_token_is_refused(folder, end, said):
    (folder / "generation_config.json").unlink()  # as in older folders, which say it all in one file
    rewritten(folder / "config.json", eos_token_id=end)
    with pytest.raises(CheckpointError, match=f"eos_token_id, number 0 {said}"):
        Speaker(folder)


def test_speaking_refuses_what_is_no_text(folder):
    speaker = Speaker(folder)
    with pytest.raises(TypeError, match="text must be"):
        speaker.speak(3)
    with pytest.raises(ValueError, match="surrogates"):
        speaker.speak("\ud800")
    with pytest.raises(ValueError, match="n_tokens must be at least 1, but is 0"):
        speaker.speak("a", 0)


# ---------- A stranger's tokenizer


def test_damaged_and_foreign_tokenizers_are_refused_by_file_and_bound(folder):
    path = folder / "tokenizer.json"
    whole = path.read_text(encoding="utf8")
    for damaged in ("", "{}", whole[:-200], whole.replace('"BPE"', '"XYZ"'), "[" * 10_000):
        path.write_text(damaged, encoding="utf8")
        with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be used"):
            Speaker(folder)
    more = json.loads(whole)
    more["model"]["vocab"]["zzz"] = SIZE
    path.write_text(json.dumps(more), encoding="utf8")
    with pytest.raises(
        CheckpointError, match=rf"tokenizer\.json .*'zzz' must lie in \[0, {SIZE}\), but is {SIZE}"
    ):
        Speaker(folder)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json"):
        Speaker(folder)


REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
CHARS = {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False}
TWICE = [{"Sequence": {"id": "A", "type_id": 0}}] * 2
TEMPLATE = {"type": "TemplateProcessing", "single": TWICE, "pair": TWICE, "special_tokens": {}}
META = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": False}
CHARSMAP = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(b"\0" * 4 + b"a" * 5000).decode()}
ENCODES, LONG = "normalizer and pre_tokenizer and post_processor can make a text", "a" * 5000
GROWING = {
    "normalizers that double": ({"normalizer": ("normalizers", [REPLACE] * 24)}, ENCODES),
    "one that inserts": ({"normalizer": ("normalizers", [REPLACE | {"content": LONG}])}, ENCODES),
    "one that prepends": ({"normalizer": ("normalizers", [{"type": "Prepend", "prepend": LONG}])}, ENCODES),
    "a table": ({"normalizer": ("normalizers", [CHARSMAP])}, f"{ENCODES} 40,008 times longer; at most 4,096"),
    "splits and marks": ({"pre_tokenizer": ("pretokenizers", [CHARS, META] * 12)}, ENCODES),
    "templates": ({"post_processor": ("processors", [TEMPLATE] * 24)}, ENCODES),
    "a decoder": ({"decoder": ("decoders", [REPLACE] * 24)}, "decoder can make a text"),
    "parts together": (
        {"normalizer": ("normalizers", [REPLACE] * 5), "pre_tokenizer": ("pretokenizers", [BYTES] * 9)},
        ENCODES,
    ),
    "an unknown step": ({"normalizer": ("normalizers", [{"type": "Macro"}])}, "'Macro' is missing"),
    "no step": ({"normalizer": ("normalizers", [3])}, "not subscriptable"),
}


@pytest.mark.slow
@pytest.mark.parametrize("parts, said", GROWING.values(), ids=GROWING)
def test_a_tokenizer_that_makes_texts_long_is_refused_before_it_runs(folder, parts, said):
    for part, (name, steps) in parts.items():
        inner = [{"type": "Sequence", name: steps[1:]}]
        rewritten(folder / "tokenizer.json", **{part: {"type": "Sequence", name: [*steps[:1], *inner]}})
    with pytest.raises(CheckpointError, match=rf"tokenizer\.json cannot be used: .*{said}"):
        Speaker(folder)


UNIGRAM = {"type": "Unigram", "unk_id": None, "vocab": [["a", -1.0]], "byte_fallback": False}
WORDS = {"type": "WordLevel", "vocab": {"a": 4}, "unk_token": "[UNK]"}
SLOW = CHARS | {"pattern": {"Regex": "(a+)+$"}}


@pytest.mark.slow
@pytest.mark.parametrize("change", [{"model": UNIGRAM}, {"model": WORDS}, {"pre_tokenizer": SLOW}], ids=str)
def test_what_the_library_raises_or_panics_at_names_the_file(folder, change, capfd):
    rewritten(folder / "tokenizer.json", **change)
    with pytest.raises(
        CheckpointError, match=r"tokenizer\.json cannot be used: (Exception|PanicException): "
    ):
        Speaker(folder).speak("a" * 40 + "b")
