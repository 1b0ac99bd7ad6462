"""Folders of Llama's form with their tokenizers: read, continued, refused, and compared with transformers.

The folder is a copy of the small Llama that the package carries; `tests/modern` compares random ones.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from helpers import assert_close

from transformer.exchange.llama import Speaker, from_llama
from transformer.files import CheckpointError
from transformer.language.vocabulary import BOS_ID, EOS_ID
from transformer.modern.generate import generate, most_probable
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
        assert speaker.speak(text, 30) == [tokenizer.decode(written[0], skip_special_tokens=True)]


def test_a_speaker_reads_and_continues_as_its_model_does(folder):
    speaker = Speaker(folder)
    assert speaker.model.output.weight.dtype == torch.float16
    speaker.model.float()
    for text in TEXTS[:3]:
        ids = speaker.encode(text)
        assert ids[0] == BOS_ID and speaker.decode([*ids, EOS_ID]) == " ".join(text.split())
        written = generate(speaker.model, torch.tensor([ids]), 9, eos_id=EOS_ID)[0].tolist()
        assert speaker.speak(text, 9) == [speaker.decode([*ids, *written])]


def test_draws_differ_and_several_ends_are_ends(folder):
    five, six, seven = (Speaker(folder).encode(word)[1] for word in ("menina", "livro", "casa"))
    rewritten(folder / "generation_config.json", eos_token_id=[EOS_ID, six])
    said = iter(torch.tensor([[five, six], [six, five], [seven, seven]]).T)
    texts = Speaker(folder).speak("a", 2, lambda logits: next(said), n_texts=3)
    expected = [
        Speaker(folder).decode([*Speaker(folder).encode("a"), *more]) for more in ([five], [], [seven] * 2)
    ]
    assert texts == expected


def test_where_an_older_folder_says_the_end_it_is_found(folder):
    (folder / "generation_config.json").unlink()
    ended = lambda logits: torch.full((1,), EOS_ID)
    rewritten(folder / "config.json", eos_token_id=EOS_ID)
    assert Speaker(folder).speak("a", 30, ended) == ["a"]
    rewritten(folder / "config.json", eos_token_id=None)
    assert Speaker(folder).speak("a", 3, ended) == ["a"]


@pytest.mark.parametrize(
    "end, said", [(SIZE, f"eos_token_id must be below {SIZE:,}"), (-1, "at least 0"), ("a", "must be an int")]
)
def test_an_end_that_is_no_token_is_refused(folder, end, said):
    rewritten(folder / "generation_config.json", eos_token_id=end)
    with pytest.raises(CheckpointError, match=said):
        Speaker(folder)


def test_speaking_refuses_what_is_no_text(folder):
    speaker = Speaker(folder)
    for error, message, arguments in (
        (TypeError, "text must be", (3,)),
        (ValueError, "surrogates", ("\ud800",)),
        (ValueError, "n_tokens must be at least 1, but is 0", ("a", 0)),
        (ValueError, "n_texts must be at least 1, but is 0", ("a", 9, most_probable, 0)),
    ):
        with pytest.raises(error, match=message):
            speaker.speak(*arguments)
    with pytest.raises(ValueError, match=r"ids\[1\] must be at least 0, but is -3"):
        speaker.decode([3, -3])
    with pytest.raises(TypeError, match="model must be"):
        from_llama(3)


# -------------------------------------------------------------------------------------------------
# A stranger's tokenizer
# -------------------------------------------------------------------------------------------------


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
        CheckpointError, match=rf"tokenizer\.json .*'zzz' must be below {SIZE:,}, but is {SIZE:,}"
    ):
        Speaker(folder)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json"):
        Speaker(folder)


UNIGRAM = {"type": "Unigram", "unk_id": None, "vocab": [["a", -1.0]], "byte_fallback": False}
SLOW = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize(
    "change", [{"model": UNIGRAM}, {"pre_tokenizer": SLOW}], ids=["unknown", "backtracking"]
)
def test_what_the_library_raises_or_panics_at_names_the_file(folder, change, capfd):
    rewritten(folder / "tokenizer.json", **change)
    with pytest.raises(
        CheckpointError, match=r"tokenizer\.json cannot be used: (Exception|PanicException): "
    ):
        Speaker(folder).speak("a" * 40 + "b")
