"""Language models and their tokenizers as folders: there and back, refused, and read by transformers."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
import torch
from helpers import assert_close, contents, refuses, scrambled

from transformer import Vocabulary
from transformer.exchange.llama import Speaker, from_llama, to_llama
from transformer.files import CheckpointError
from transformer.language.vocabulary import BOS_ID, EOS_ID
from transformer.modern.generate import generate, most_probable
from transformer.modern.language_model import LanguageModel, LanguageModelConfig
from transformer.modern.parts import RotaryStretch
from transformer.training import record_path

pytest.importorskip("safetensors")
pytest.importorskip("tokenizers")

SENTENCES = ["o gato come a maçã .", "a gata bebe água .", "o gato não bebe , a gata come ."]
TEXTS = ["a gata come", "  o   gato\tbebe ", "", "comê-la !", "a gata não vê o gato ."]
SIZES = {"d_model": 16, "n_heads": 4, "n_kv_heads": 2, "n_layers": 2, "d_ff": 24}


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.train(SENTENCES, 40, min_frequency=1)


def model_of(vocabulary: Vocabulary, **changes) -> LanguageModel:
    torch.manual_seed(0)
    return scrambled(LanguageModel(LanguageModelConfig(len(vocabulary), **(SIZES | changes)))).eval()


def rewritten(path: Path, **changes) -> None:
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf8")) | changes), encoding="utf8")


FORMS = [
    {},
    {"tie_embeddings": False},
    {"activation": "gelu_tanh", "d_head": 6, "norm_eps": 1e-5},
    {"rotary_base": 500.0, "rotary_stretch": RotaryStretch(4.0, 1.0, 2.0, 32), "n_kv_heads": None},
]


@pytest.mark.parametrize("changes", FORMS, ids=str)
def test_a_model_comes_back_as_it_went(tmp_path, vocabulary, changes):
    ours = model_of(vocabulary, **changes)
    to_llama(ours, tmp_path)
    back = from_llama(tmp_path)
    ids = torch.randint(len(vocabulary), (2, 9))
    assert_close(back(ids), ours(ids), 0)
    assert back.config.kv_heads == ours.config.kv_heads and back.config.activation == ours.config.activation
    assert back.config.rotary_stretch == ours.config.rotary_stretch
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_a_speaker_reads_and_writes_as_model_and_vocabulary_do(tmp_path, vocabulary):
    ours = model_of(vocabulary)
    to_llama(ours, tmp_path, vocabulary)
    speaker = Speaker(tmp_path)
    for text in TEXTS:
        ids = vocabulary.encode(text)
        assert speaker.encode(text) == [BOS_ID, *ids]
        assert speaker.decode([BOS_ID, *ids, EOS_ID]) == vocabulary.decode(ids).replace("<unk>", "")
        written = generate(ours, torch.tensor([[BOS_ID, *ids]]), 9, eos_id=EOS_ID)[0].tolist()
        expected = vocabulary.decode([*ids, *written]).replace("<unk>", "")
        assert speaker.speak(text, 9) == [expected]
    assert "<unk>" in vocabulary.decode(vocabulary.encode(TEXTS[3]))


def test_half_precision_halves_the_file(tmp_path, vocabulary):
    ours = model_of(vocabulary)
    for dtype in (torch.float32, torch.float16):
        to_llama(ours, tmp_path / str(dtype), vocabulary, dtype)
    sizes = [
        (tmp_path / str(dtype) / "model.safetensors").stat().st_size
        for dtype in (torch.float32, torch.float16)
    ]
    numbers = sum(value.numel() for value in ours.parameters())
    assert sizes[0] - sizes[1] == pytest.approx(2 * numbers, abs=64)
    half = from_llama(tmp_path / "torch.float16")
    assert half.output.weight.dtype == torch.float16
    assert_close(half.float().state_dict(), ours.half().float().state_dict(), 0)


def test_draws_differ_and_several_ends_are_ends(tmp_path, vocabulary):
    to_llama(model_of(vocabulary), tmp_path, vocabulary)
    word = vocabulary.encode("gato")[0]
    rewritten(tmp_path / "generation_config.json", eos_token_id=[EOS_ID, word])
    said = iter(torch.tensor([[5, word], [word, 6], [7, 7]]).T)
    texts = Speaker(tmp_path).speak("a", 2, lambda logits: next(said), n_texts=3)
    a, five, seven = vocabulary.encode("a"), [5], [7, 7]
    assert texts == [vocabulary.decode(ids) for ids in ([*a, *five], a, [*a, *seven])]


def test_where_an_older_folder_says_the_end_it_is_found(tmp_path, vocabulary):
    to_llama(model_of(vocabulary), tmp_path, vocabulary)
    (tmp_path / "generation_config.json").unlink()
    assert len(Speaker(tmp_path).speak("a", 30, lambda logits: torch.full((1,), EOS_ID))) == 1
    rewritten(tmp_path / "config.json", eos_token_id=None)
    assert Speaker(tmp_path).speak("a", 3, lambda logits: torch.full((1,), EOS_ID)) == ["a"]


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"positions": "alibi"}, "positions must be one of"),
        ({"window": 3}, "window must be one of"),
        ({"qk_norm": True}, "qk_norm must be one of"),
        ({"scale_embedding": True}, "scale_embedding must be one of"),
        ({"activation": "relu"}, "activation must be one of"),
    ],
    ids=str,
)
def test_what_llama_lacks_is_refused_by_name(tmp_path, vocabulary, changes, said):
    with pytest.raises(ValueError, match=said):
        to_llama(model_of(vocabulary, **changes), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_other_mistakes_are_refused(tmp_path, vocabulary):
    ours, new = model_of(vocabulary), tmp_path / "new"
    larger = LanguageModel(LanguageModelConfig(len(vocabulary) + 1, **SIZES))
    for error, message, arguments in (
        (ValueError, "vocabulary must have the model's 41 tokens, but has 40", (larger, new, vocabulary)),
        (TypeError, "vocabulary must be", (ours, new, "a")),
        (ValueError, "dtype must be one of", (ours, new, None, torch.int8)),
        (TypeError, "model must be of type", (torch.nn.Linear(2, 2), new)),
    ):
        with pytest.raises(error, match=message):
            to_llama(*arguments)
    large = model_of(vocabulary)
    large.norm.weight.data[0] = 1e5
    with refuses(ValueError, "model.norm.weight holds numbers that are not finite"):
        to_llama(large, new, dtype=torch.float16)
    ours.layers[0].feed_forward.activation = "gelu"
    with refuses(ValueError, "activation of layers.0.feed_forward must be silu as configured, not gelu"):
        to_llama(ours, new)
    assert not new.exists()
    (tmp_path / "config.json").write_text('{"model_type": "marian"}')
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="folder must not hold another model"):
        to_llama(model_of(vocabulary), tmp_path)
    assert contents(tmp_path) == before


def test_a_folder_without_a_tokenizer_is_refused_by_the_name_of_the_file(tmp_path, vocabulary):
    to_llama(model_of(vocabulary), tmp_path)
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json"):
        Speaker(tmp_path)


def test_damaged_and_foreign_tokenizers_are_refused_by_file_and_bound(tmp_path, vocabulary):
    to_llama(model_of(vocabulary), tmp_path, vocabulary)
    path = tmp_path / "tokenizer.json"
    whole = path.read_text(encoding="utf8")
    for damaged in ("", "{}", whole[:-200], whole.replace('"BPE"', '"XYZ"'), "[" * 10_000):
        path.write_text(damaged, encoding="utf8")
        with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be used"):
            Speaker(tmp_path)
    path.write_bytes(whole.encode() + b" " * (1 << 26))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json .* over 67,108,864"):
        Speaker(tmp_path)
    more = json.loads(whole)
    more["model"]["vocab"]["zzz"] = 40
    path.write_text(json.dumps(more), encoding="utf8")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json .*'zzz' must be below 40, but is 40"):
        Speaker(tmp_path)


REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
CHARS = {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False}
TWICE = [{"Sequence": {"id": "A", "type_id": 0}}] * 2
TEMPLATE = {"type": "TemplateProcessing", "single": TWICE, "pair": TWICE, "special_tokens": {}}
META = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": False}
CHARSMAP = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(b"\0" * 4 + b"a" * 5000).decode()}
GROWING = {
    "normalizers that double": ({"normalizer": ("normalizers", [REPLACE] * 24)}, "can .* Replace"),
    "one that inserts": ({"normalizer": ("normalizers", [REPLACE | {"content": "a" * 5000}])}, "Replace"),
    "by an expression": ({"normalizer": ("normalizers", [REPLACE | {"pattern": {"Regex": ""}}] * 9)}, "Re"),
    "one that prepends": ({"normalizer": ("normalizers", [{"type": "Prepend", "prepend": "a" * 5000}])}, ""),
    "a table": ({"normalizer": ("normalizers", [CHARSMAP])}, "normalizer can .* 5,001 .* Precompiled"),
    "bytes as characters": ({"pre_tokenizer": ("pretokenizers", [BYTES] * 24)}, "tokenizer can .* ByteL"),
    "splits and marks": ({"pre_tokenizer": ("pretokenizers", [CHARS, META] * 12)}, "tokenizer can .* Meta"),
    "templates": ({"post_processor": ("processors", [TEMPLATE] * 24)}, "post_processor can .* Template"),
    "a decoder": ({"decoder": ("decoders", [REPLACE] * 24)}, "decoder can .* Replace"),
    "parts together": (
        {"normalizer": ("normalizers", [REPLACE] * 5), "pre_tokenizer": ("pretokenizers", [BYTES] * 9)},
        "pre_tokenizer can make a text .* times longer with step 13, ByteLevel",
    ),
    "many steps": ({"normalizer": ("normalizers", [{"type": "Lowercase"}] * 40)}, "steps by number 32"),
    "an unknown step": ({"normalizer": ("normalizers", [{"type": "Macro"}])}, "not known, 'Macro'"),
    "no step": ({"normalizer": ("normalizers", [3])}, "step must be a dict"),
}  # fmt: skip


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("parts, said", GROWING.values(), ids=GROWING)
def test_a_tokenizer_that_makes_texts_long_is_refused_before_it_runs(
    tmp_path, vocabulary, parts, said, nested
):
    to_llama(model_of(vocabulary), tmp_path, vocabulary)
    for part, (name, steps) in parts.items():
        inner = [{"type": "Sequence", name: steps}] if nested else steps
        rewritten(tmp_path / "tokenizer.json", **{part: {"type": "Sequence", name: inner}})
    with pytest.raises(CheckpointError, match=rf"tokenizer\.json cannot be used: .*{said}"):
        Speaker(tmp_path)


@pytest.mark.parametrize("kind", ["WordLevel", "WordPiece"])
def test_a_tokenizer_without_its_unknown_token_is_refused_before_it_runs(tmp_path, vocabulary, kind):
    to_llama(model_of(vocabulary), tmp_path, vocabulary)
    model = {"type": kind, "vocab": {"a": 4}, "unk_token": "[UNK]"}
    model |= {"continuing_subword_prefix": "##", "max_input_chars_per_word": 9} if kind == "WordPiece" else {}
    rewritten(tmp_path / "tokenizer.json", model=model)
    with pytest.raises(CheckpointError, match=rf"{kind} lacks the unknown token, '\[UNK\]'"):
        Speaker(tmp_path)
    rewritten(tmp_path / "tokenizer.json", model=model | {"unk_token": "a"}, post_processor=None)
    assert Speaker(tmp_path).encode("b") == [4]


UNIGRAM = {"type": "Unigram", "unk_id": None, "vocab": [["a", -1.0]], "byte_fallback": False}
SLOW = CHARS | {"pattern": {"Regex": "(a+)+$"}}


@pytest.mark.parametrize(
    "change", [{"model": UNIGRAM}, {"pre_tokenizer": SLOW}], ids=["unknown", "backtracking"]
)
def test_what_the_library_raises_or_panics_at_names_the_file(tmp_path, vocabulary, change, capfd):
    to_llama(model_of(vocabulary), tmp_path, vocabulary)
    rewritten(tmp_path / "tokenizer.json", **change)
    with pytest.raises(
        CheckpointError, match=r"tokenizer\.json cannot be used: (Exception|PanicException): "
    ):
        Speaker(tmp_path).speak("a" * 40 + "b")


def test_numbers_that_are_no_tokens_are_not_blamed_on_the_file(tmp_path, vocabulary):
    to_llama(model_of(vocabulary), tmp_path, vocabulary)
    with pytest.raises(ValueError, match=r"ids\[1\] must be at least 0, but is -3"):
        Speaker(tmp_path).decode([3, -3])


@pytest.mark.parametrize(
    "end, said", [(40, "eos_token_id must be below 40"), (-1, "at least 0"), ("a", "must be an int")]
)
def test_an_end_that_is_no_token_is_refused(tmp_path, vocabulary, end, said):
    to_llama(model_of(vocabulary), tmp_path, vocabulary)
    rewritten(tmp_path / "generation_config.json", eos_token_id=end)
    with pytest.raises(CheckpointError, match=said):
        Speaker(tmp_path)


def test_speaking_refuses_what_is_no_text(tmp_path, vocabulary):
    to_llama(model_of(vocabulary), tmp_path, vocabulary)
    speaker = Speaker(tmp_path)
    for error, message, arguments in (
        (TypeError, "text must be", (3,)),
        (ValueError, "surrogates", ("\ud800",)),
        (ValueError, "n_tokens must be at least 1, but is 0", ("a", 0)),
        (ValueError, "n_texts must be at least 1, but is 0", ("a", 9, most_probable, 0)),
    ):
        with pytest.raises(error, match=message):
            speaker.speak(*arguments)


@pytest.mark.parametrize("changes", FORMS, ids=str)
def test_transformers_loads_the_folder_and_writes_the_same(tmp_path, vocabulary, changes):
    transformers = pytest.importorskip("transformers")
    ours = model_of(vocabulary, **changes)
    to_llama(ours, tmp_path, vocabulary)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert type(theirs).__name__ == "LlamaForCausalLM"
    speaker = Speaker(tmp_path)
    for text in TEXTS:
        ids = tokenizer(text).input_ids
        assert ids == speaker.encode(text)
        assert tokenizer.decode(ids, skip_special_tokens=True) == speaker.decode(ids)
        given = torch.tensor([ids])
        with torch.no_grad():
            assert_close(speaker.model(given), theirs(given).logits, 1e-5)
            written = theirs.generate(
                given, attention_mask=torch.ones_like(given), max_new_tokens=12, do_sample=False
            )
        assert speaker.speak(text, 12) == [tokenizer.decode(written[0], skip_special_tokens=True)]


def test_transformers_reads_the_llama_that_the_package_carries():
    transformers = pytest.importorskip("transformers")
    folder = record_path("speaker")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).float().eval()
    speaker = Speaker(folder)
    speaker.model.float()
    for text in ("a menina", "o pedro não", "", "os livros são novos ,"):
        given = torch.tensor([tokenizer(text).input_ids])
        assert given[0].tolist() == speaker.encode(text)
        with torch.no_grad():
            assert_close(speaker.model(given), theirs(given).logits, 1e-4)
            mask = torch.ones_like(given)
            written = theirs.generate(given, attention_mask=mask, max_new_tokens=30, do_sample=False)
        assert speaker.speak(text, 30) == [tokenizer.decode(written[0], skip_special_tokens=True)]
