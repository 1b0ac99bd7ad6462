"""Corpora verified, vocabularies that lose nothing, batches that hold each pair once within their budget."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import re
import sys
import tarfile
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transformer import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    UNK_ID,
    Corpus,
    CorpusError,
    CorpusSource,
    Pair,
    SubwordSampler,
    TokenBatches,
    Trainer,
    TrainingConfig,
    Transformer,
    TransformerConfig,
    Vocabulary,
    corpus_facts,
    data_folder,
    encode_pairs,
    load_corpus,
    normalize,
    pad,
    padding_waste,
    r_drop_loss,
    read_pairs,
    sampled_batches,
    text,
)

TEXTS = {
    "pt.train": "olá .\nobrigado .\n\naté já .\n",
    "en.train": "hello .\nthank you .\n\nsee you soon .\n",
    "pt.dev": "sim .\n",
    "en.dev": "yes .\n",
}
SUMS = {name: hashlib.sha256(content.encode()).hexdigest() for name, content in TEXTS.items()}
READ = [
    Pair("olá .", "hello ."),
    Pair("obrigado .", "thank you ."),
    Pair("", ""),
    Pair("até já .", "see you soon ."),
]


def write_archive(path: Path, members: dict[str, str | bytes], kind: bytes = tarfile.REGTYPE) -> CorpusSource:
    """Pack an archive and describe it, so that it counts as the right one whatever it holds."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            data = content if isinstance(content, bytes) else content.encode()
            entry = tarfile.TarInfo(name)
            entry.type, entry.size, entry.linkname = (
                kind,
                len(data) if kind == tarfile.REGTYPE else 0,
                "/etc/passwd",
            )
            tar.addfile(entry, io.BytesIO(data))
    return described(path)


def described(path: Path) -> CorpusSource:
    return CorpusSource(
        path.name, path.as_uri(), path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest()
    )


def in_folder(texts: dict[str, str | bytes]) -> dict[str, str | bytes]:
    return {f"set/{name}": content for name, content in texts.items()}


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    server, cache = tmp_path / "server", tmp_path / "cache"
    server.mkdir()
    return server, cache


def corpus_of(*sources: CorpusSource) -> Corpus:
    return Corpus("greetings", sources, "set", ("pt", "en"), SUMS, "ours")


def read(corpus: Corpus, cache: Path, split: str = "train") -> list[Pair]:
    return text._read_archive(corpus, split, cache)


# -------------------------------------------------------------------------------------------------
# Corpora
# -------------------------------------------------------------------------------------------------


def test_archive_is_fetched_once_then_used_where_it_lies(folders):
    server, cache = folders
    corpus = corpus_of(write_archive(server / "a.tar.gz", in_folder(TEXTS)))
    assert read(corpus, cache) == READ
    (server / "a.tar.gz").unlink()
    assert read(corpus, cache) == READ and read(corpus, cache, "dev") == [Pair("sim .", "yes .")]
    assert [path.name for path in cache.iterdir()] == ["a.tar.gz"]


def test_second_source_is_tried_and_found_too(folders):
    server, cache = folders
    good = write_archive(server / "b.tar.gz", in_folder(TEXTS))
    gone = replace(good, file="a.tar.gz", url=(server / "nowhere.tar.gz").as_uri())
    assert read(corpus_of(gone, good), cache) == READ
    Path(server / "b.tar.gz").unlink()
    assert read(corpus_of(gone, good), cache) == READ  # the second file lies in the cache now


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda data: data[: len(data) // 2], "bytes instead of"),
        (lambda data: data + b"!", "bytes instead of"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "sha256 [0-9a-f]{64} instead of"),
        (lambda data: b"", "has 0 bytes instead of"),
    ],
    ids=["truncated", "too long", "altered", "empty"],
)
@pytest.mark.parametrize("where", ["server", "cache"])
def test_a_wrong_archive_is_never_used(folders, spoil, problem, where):
    server, cache = folders
    source = write_archive(server / "a.tar.gz", in_folder(TEXTS))
    whole = (server / "a.tar.gz").read_bytes()
    cache.mkdir()
    (folders[where == "cache"] / "a.tar.gz").write_bytes(spoil(whole))
    if where == "cache":
        assert read(corpus_of(source), cache) == READ  # it is replaced by a good one
        assert (cache / "a.tar.gz").read_bytes() == whole
        return
    with pytest.raises(CorpusError, match=problem):
        read(corpus_of(source), cache)
    assert list(cache.iterdir()) == []  # neither the archive nor a piece of it


def test_half_finished_download_is_no_archive(folders):
    server, cache = folders
    source = write_archive(server / "a.tar.gz", in_folder(TEXTS))
    cache.mkdir()
    (cache / "a.tar.gz.123.part").write_bytes((server / "a.tar.gz").read_bytes())
    (server / "a.tar.gz").unlink()
    with pytest.raises(CorpusError, match="could not be fetched"):
        read(corpus_of(source), cache)


def test_interrupted_download_leaves_nothing(folders, monkeypatch):
    server, cache = folders
    source = write_archive(server / "a.tar.gz", in_folder(TEXTS))

    class Broken(io.BytesIO):
        def read(self, size: int = -1) -> bytes:
            if self.tell():
                raise ConnectionResetError("the line went dead")
            return super().read(10)

    monkeypatch.setattr(text.urllib.request, "urlopen", lambda url, timeout: Broken(b"x" * 100))
    with pytest.raises(CorpusError, match="the line went dead"):
        read(corpus_of(source), cache)
    assert list(cache.iterdir()) == []


def test_a_server_that_never_stops_is_stopped(folders, monkeypatch):
    server, cache = folders
    source = write_archive(server / "a.tar.gz", in_folder(TEXTS))
    sent = []

    class Endless(io.BytesIO):
        def read(self, size: int = -1) -> bytes:
            sent.append(size)
            return b"x" * size

    monkeypatch.setattr(text.urllib.request, "urlopen", lambda url, timeout: Endless())
    with pytest.raises(CorpusError, match="bytes instead of"):
        read(corpus_of(source), cache)
    assert len(sent) == 1


def test_without_network_the_message_says_what_to_put_where(folders):
    server, cache = folders
    source = write_archive(server / "a.tar.gz", in_folder(TEXTS))
    (server / "a.tar.gz").unlink()
    with pytest.raises(CorpusError) as error:
        read(corpus_of(source), cache)
    message = str(error.value)
    for part in ("'greetings'", str(cache), "a.tar.gz", f"{source.size:,} bytes", source.sha256, source.url):
        assert part in message
    assert "TRANSFORMER_DATA" in message and isinstance(error.value, OSError)


def test_foreign_and_climbing_members_are_left_alone(folders, tmp_path):
    server, cache = folders
    foreign = {"../up.txt": "x", "/tmp/absolute-name.txt": "x", "set/._pt.train": "x", "other/pt.train": "x"}
    assert read(corpus_of(write_archive(server / "a.tar.gz", foreign | in_folder(TEXTS))), cache) == READ
    written = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
    assert written == ["a.tar.gz", "a.tar.gz"]  # the server's and the cache's


def test_links_are_not_followed(folders):
    server, cache = folders
    source = write_archive(server / "a.tar.gz", in_folder(TEXTS), kind=tarfile.SYMTYPE)
    with pytest.raises(CorpusError, match="has no member set/pt.train, set/en.train"):
        read(corpus_of(source), cache)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pt.train": "something else .\n"}, "set/pt.train has sha256"),
        ({"pt.train": b"\xff\xfe"}, "set/pt.train has sha256"),
        ({"pt.train": None}, "has no member set/pt.train"),
    ],
)
def test_members_are_verified(folders, change, message):
    server, cache = folders
    members = {name: content for name, content in (TEXTS | change).items() if content is not None}
    with pytest.raises(CorpusError, match=message):
        read(corpus_of(write_archive(server / "a.tar.gz", in_folder(members))), cache)


def test_oversized_member_is_not_unpacked(folders, monkeypatch):
    server, cache = folders
    monkeypatch.setattr(text, "_MAX_MEMBER", 10)
    with pytest.raises(CorpusError, match=r"set/pt.train claims \d\d bytes"):
        read(corpus_of(write_archive(server / "a.tar.gz", in_folder(TEXTS))), cache)


def test_what_is_no_archive_is_named(folders):
    server, cache = folders
    (server / "a.tar.gz").write_bytes(b"this was never packed")
    with pytest.raises(CorpusError, match="a.tar.gz cannot be read"):
        read(corpus_of(described(server / "a.tar.gz")), cache)


def test_unequal_numbers_of_lines(folders):
    server, cache = folders
    texts = TEXTS | {"en.train": "hello .\n"}
    sums = SUMS | {"en.train": hashlib.sha256(b"hello .\n").hexdigest()}
    corpus = replace(corpus_of(write_archive(server / "a.tar.gz", in_folder(texts))), sha256=sums)
    with pytest.raises(CorpusError, match="greetings train: 4 source lines but 1 target lines"):
        read(corpus, cache)


def test_only_a_line_feed_ends_a_line(folders):
    server, cache = folders
    odd = "one\u2028line\x85 .\nanother\x0c\r .\n"
    texts = TEXTS | {"pt.dev": odd, "en.dev": "first .\nsecond .\n"}
    sums = {name: hashlib.sha256(content.encode()).hexdigest() for name, content in texts.items()}
    corpus = replace(corpus_of(write_archive(server / "a.tar.gz", in_folder(texts))), sha256=sums)
    sources = [pair.source for pair in read(corpus, cache, "dev")]
    assert sources == ["one\u2028line\x85 .", "another\x0c\r ."]


def test_an_archive_in_another_encoding_is_named(folders):
    server, cache = folders
    content = "olá .\nvocê não .\n".encode("latin-1")
    sums = SUMS | {"pt.dev": hashlib.sha256(content).hexdigest()}
    source = write_archive(server / "a.tar.gz", in_folder(TEXTS | {"pt.dev": content}))
    corpus = replace(corpus_of(source), sha256=sums)
    with pytest.raises(CorpusError, match=r"a\.tar\.gz: set/pt\.dev is not UTF-8: byte 0xe1 in line 1$"):
        read(corpus, cache, "dev")


def write_sides(folder: Path, source: str | bytes, target: str | bytes) -> tuple[Path, Path]:
    paths = folder / "train.pt", folder / "train.en"
    for path, content in zip(paths, (source, target)):
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return paths


def test_a_corpus_of_two_files(tmp_path):
    paths = write_sides(tmp_path, TEXTS["pt.train"], TEXTS["en.train"])
    assert read_pairs(*paths) == READ and isinstance(read_pairs(*paths)[0], Pair)
    assert read_pairs(*map(str, paths)) == READ
    assert read_pairs(*write_sides(tmp_path, "sim .", "yes .\n")) == [Pair("sim .", "yes .")]  # no last feed


@pytest.mark.parametrize(
    ("source", "target", "pairs"),
    [
        ("", "", []),
        ("\n", "\n", [("", "")]),
        ("\n\n", "a\n\n", [("", "a"), ("", "")]),
        ("a\n\nb", "c\nd\n\n", [("a", "c"), ("", "d"), ("b", "")]),
        ("a\r\n\r\nb\r\n", "c\nd\ne\n", [("a", "c"), ("", "d"), ("b", "e")]),
        ("\ufeffa\n\ufeffb\n", "c\nd\n", [("a", "c"), ("\ufeffb", "d")]),
        ("one\u2028line\x85 .\nb\x0c\rc\n", "d\ne\n", [("one\u2028line\x85 .", "d"), ("b\x0c\rc", "e")]),
        ("  a \t b \n", "c\n", [("  a \t b ", "c")]),
    ],
)
def test_lines_are_taken_as_they_are(tmp_path, source, target, pairs):
    assert read_pairs(*write_sides(tmp_path, source, target)) == pairs


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("a\nb\n", "a\n", r"train\.pt, .*train\.en: 2 source lines but 1 target lines"),
        ("a\n", "a\n\n", r"1 source lines but 2 target lines"),
        ("", "a\n", r"0 source lines but 1 target lines"),
        ("a\nvocê\n".encode("latin-1"), "a\nb\n", r"train\.pt is not UTF-8: byte 0xea in line 2$"),
        ("a\n", "você\n".encode("utf-16"), r"train\.en is not UTF-8: byte 0xff in line 1$"),
        ("a\nb\n", "a\nb\n".encode("utf-16-le"), r"train\.en is not text in UTF-8: a zero byte in line 1$"),
        (b"a\nb\0\n", "a\nb\n", r"train\.pt is not text in UTF-8: a zero byte in line 2$"),
    ],
)
def test_two_files_that_are_no_corpus(tmp_path, source, target, message):
    with pytest.raises(CorpusError, match=message):
        read_pairs(*write_sides(tmp_path, source, target))


def test_files_that_are_none_are_named(tmp_path):
    path, _ = write_sides(tmp_path, "a\n", "b\n")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_pairs(path, tmp_path / "nowhere")
    with pytest.raises(OSError, match="is no regular file"):
        read_pairs(tmp_path, path)


def test_works_without_tqdm(folders, monkeypatch):
    server, cache = folders
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert read(corpus_of(write_archive(server / "a.tar.gz", in_folder(TEXTS))), cache) == READ


def test_data_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("TRANSFORMER_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    monkeypatch.delenv("TRANSFORMER_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    for platform, folder in (("linux", tmp_path / "cache"), ("win32", tmp_path / "local")):
        monkeypatch.setattr(sys, "platform", platform)
        assert data_folder() == folder / "transformer-book"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert data_folder().parts[-3:] == ("Library", "Caches", "transformer-book")


def test_the_talks_come_from_where_the_book_says(monkeypatch, tmp_path):
    """Nothing is fetched: both sources are out of reach, and the message names them."""

    def unreachable(url, timeout):
        raise OSError("no network")

    monkeypatch.setenv("TRANSFORMER_DATA", str(tmp_path))
    monkeypatch.setattr(text.urllib.request, "urlopen", unreachable)
    with pytest.raises(CorpusError) as error:
        load_corpus("ted", "dev")
    message = str(error.value)
    for part in (
        "ted_hrlr_pt_to_en.tar.gz",
        "3,492,119",
        "qi18naacl-dataset.tar.gz",
        "131,005,909",
        str(tmp_path),
    ):
        assert part in message
    assert message.index("ted_hrlr") < message.index("qi18naacl")


def test_the_talks_are_read_from_portuguese_to_english(monkeypatch, tmp_path):
    members = {f"datasets/pt_to_en/{name}": content for name, content in TEXTS.items()}
    source = write_archive(tmp_path / "talks.tar.gz", members)
    monkeypatch.setattr(text, "_TED", replace(text._TED, sources=(source,), sha256=SUMS))
    monkeypatch.setenv("TRANSFORMER_DATA", str(tmp_path))
    assert load_corpus("ted", "train") == READ


def test_load_phrases():
    pairs = load_corpus("phrases", "dev")
    assert len(pairs) == 500 and isinstance(pairs[0], Pair) and pairs[0].source == pairs[0][0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("Ted", "train"), "name must be one of phrases, ted, got 'Ted'"),
        (("phrases", "valid"), "split must be one of train, dev, test, got 'valid'"),
        (("ted", None), "split must be one of train, dev, test, got None"),
    ],
)
def test_unknown_names(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        load_corpus(*arguments)


# -------------------------------------------------------------------------------------------------
# Vocabulary
# -------------------------------------------------------------------------------------------------

SENTENCES = [side for pair in load_corpus("phrases", "dev") for side in pair]
ALPHABET = sorted({character for sentence in SENTENCES for character in sentence} - {" "})


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.train(SENTENCES, size=300)


def test_special_ids_are_the_models():
    config = TransformerConfig(10, 10)
    assert (PAD_ID, BOS_ID, EOS_ID) == (config.pad_id, config.bos_id, config.eos_id) and UNK_ID == 1


@given(words=st.lists(st.text(st.sampled_from(ALPHABET), min_size=1, max_size=8), max_size=6))
def test_round_trip(vocabulary, words):
    sentence = " ".join(words)
    ids = vocabulary.encode(sentence)
    assert vocabulary.decode(ids) == normalize(sentence)
    assert min(ids, default=4) > EOS_ID and max(ids, default=4) < len(vocabulary)
    assert "".join(vocabulary.tokens(ids)) == "".join("▁" + word for word in words)


@given(anything=st.text(max_size=30))
def test_any_text_survives_or_becomes_unknown(vocabulary, anything):
    ids = vocabulary.encode(anything)
    assert all(index == UNK_ID or EOS_ID < index < len(vocabulary) for index in ids)
    assert isinstance(vocabulary.decode(ids), str)
    known = all(character in ALPHABET or character.isspace() for character in normalize(anything))
    assert known <= (UNK_ID not in ids)


def test_unknown_characters_leave_the_rest_alone(vocabulary):
    assert vocabulary.decode(vocabulary.encode("o gato 猫 preto .")) == "o gato <unk> preto ."


@pytest.mark.parametrize("special", ["<pad>", "<unk>", "<s>", "</s>"])
def test_a_text_cannot_spell_special_tokens(vocabulary, special):
    assert not {PAD_ID, BOS_ID, EOS_ID} & set(vocabulary.encode(f"o {special} gato{special}"))


def test_decode_stops_at_the_end_and_drops_what_is_no_text(vocabulary):
    ids = vocabulary.encode("o gato")
    for row in ([BOS_ID, *ids, EOS_ID, *ids], [*ids, EOS_ID, PAD_ID, PAD_ID], [*ids, PAD_ID]):
        assert vocabulary.decode(row) == vocabulary.decode(torch.tensor(row)) == "o gato"
    assert vocabulary.decode([]) == vocabulary.decode([EOS_ID]) == ""


def test_accents_written_in_two_ways_are_one(vocabulary):
    assert normalize("irma\u0303  e\u0301\n") == "irmã é"
    assert vocabulary.encode("irma\u0303") == vocabulary.encode("irmã")


def test_normal_form_keeps_signs_that_are_only_compatible():
    assert normalize("5½ ﬁ …") == "5½ ﬁ …"


def test_rare_pieces_are_not_merged():
    sentences = ["xyz xyz xyz", "klm klm"]
    merged = {n: Vocabulary.train(sentences, 100, min_frequency=n) for n in (2, 3)}
    assert len(merged[2].encode("klm")) == 1 < len(merged[3].encode("klm"))
    assert len(merged[3].encode("xyz")) == 1


def test_batch_equals_one_by_one(vocabulary):
    assert vocabulary.encode_batch(["irma\u0303  e"]) == [vocabulary.encode("irmã e")]
    assert vocabulary.encode_batch(SENTENCES[:50]) == [
        vocabulary.encode(sentence) for sentence in SENTENCES[:50]
    ]
    assert vocabulary.encode_batch([]) == []


def test_training_is_repeatable(vocabulary):
    assert Vocabulary.train(SENTENCES, size=300).tokenizer.to_str() == vocabulary.tokenizer.to_str()


def test_size_is_a_bound(vocabulary):
    assert len(vocabulary) == 300
    assert len(Vocabulary.train(["a b a b"], size=300)) < 300


def test_saved_and_loaded(vocabulary, tmp_path):
    vocabulary.save(tmp_path / "vocabulary.json")
    loaded = Vocabulary.load(tmp_path / "vocabulary.json")
    assert len(loaded) == len(vocabulary)
    assert loaded.encode_batch(SENTENCES) == vocabulary.encode_batch(SENTENCES)
    assert UNK_ID in loaded.encode("猫")


@pytest.mark.parametrize("content", ["", "{}", '{"model": 3}', "cos\nsystem\n(S'true'\ntR."])
def test_loading_refuses_what_is_no_vocabulary(content, tmp_path):
    (tmp_path / "v.json").write_text(content)
    with pytest.raises(ValueError, match="v.json holds no vocabulary"):
        Vocabulary.load(tmp_path / "v.json")


def test_loading_refuses_another_programs_vocabulary(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1}, [])).save(str(tmp_path / "v.json"))
    with pytest.raises(ValueError, match="v.json holds no vocabulary: 'pre_tokenizer' is None, not"):
        Vocabulary.load(tmp_path / "v.json")


def test_the_file_can_be_read_by_the_library_itself(vocabulary, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary.save(tmp_path / "v.json")
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "v.json"))
    texts = [normalize(sentence) for sentence in SENTENCES[:50]]
    assert [encoding.ids for encoding in theirs.encode_batch(texts)] == vocabulary.encode_batch(texts)
    again = tmp_path / "again.json"
    Vocabulary.load(tmp_path / "v.json").save(again)
    assert again.read_bytes() == (tmp_path / "v.json").read_bytes()


def _set(**changes):
    return lambda content: content.update(changes)


def _in_model(**changes):
    return lambda content: content["model"].update(changes)


def _entry(piece, index):
    return lambda content: content["model"]["vocab"].update({piece: index})


def _merge(*merge):
    return lambda content: content["model"]["merges"].append(list(merge))


REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaaaa"}
TEMPLATE = {"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}}
SPLIT = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_in_model(dropout=0.5), "'dropout' is 0.5, not None"),
        (_in_model(byte_fallback=True), "'byte_fallback' is True, not False"),
        (_in_model(type="WordPiece"), "'type' is 'WordPiece', not 'BPE'"),
        (_in_model(unk_token="nowhere"), "'unk_token' is 'nowhere'"),
        (_in_model(surprise=1), "'surprise' is 1, not 'missing'"),
        (lambda content: content.pop("decoder"), "'decoder' is 'missing', not None"),
        (_set(truncation={"max_length": 2, "strategy": "LongestFirst", "stride": 9}), "'truncation' is"),
        (_set(padding={"strategy": {"Fixed": 10**12}}), "'padding' is"),
        (_set(normalizer={"type": "Sequence", "normalizers": [REPLACE] * 12}), "'normalizer' is"),
        (_set(pre_tokenizer=SPLIT), "'pre_tokenizer' is"),
        (_set(post_processor=TEMPLATE), "'post_processor' is"),
        (_set(added_tokens=[{"id": 9, "content": "gato"}]), "'added_tokens' is"),
        (_set(model=[]), "model must be a dict"),
        (_in_model(vocab=["a"]), "vocab must be a dict"),
        (_in_model(merges={"a": "b"}), "merges must be a list"),
        (_entry("new", 301), "entry 300 is 'new' with number 301"),
        (_entry("new", "300"), "entry 300 is 'new' with number '300'"),
        (_entry("", 300), "entry 300 is ''"),
        (_entry("x" * 257, 300), "entry 300 is 'xxx"),
        (_entry("\ud800", 300), "surrogates not allowed"),
        (_in_model(vocab={"<unk>": 0, "<pad>": 1, "<s>": 2, "</s>": 3, "a": 4}, merges=[]), "must be \\("),
        (_in_model(vocab={"<pad>": False, "<unk>": True}), "entry 0 is '<pad>' with number False"),
        (_merge("a", "nowhere"), "merge \\d+ is \\['a', 'nowhere'\\]"),
        (_merge("▁", "▁"), "merge \\d+ is"),
        (_merge("a", "b", "c"), "merge \\d+ is"),
        (_merge("a", 3), "merge \\d+ is"),
        (lambda content: content["model"]["merges"].append(7), "merge \\d+ is 7"),
    ],
)
def test_loading_takes_entries_and_merges_and_no_other_rule(damage, message, vocabulary, tmp_path):
    vocabulary.save(tmp_path / "v.json")
    content = json.loads((tmp_path / "v.json").read_text(encoding="utf8"))
    damage(content)
    (tmp_path / "v.json").write_text(json.dumps(content), encoding="utf8")
    with pytest.raises(ValueError, match=message) as refusal:
        Vocabulary.load(tmp_path / "v.json")
    assert "v.json holds no vocabulary" in str(refusal.value) and len(str(refusal.value)) < 500


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[" * 1_000_000, "recursion"),
        (b" " * ((1 << 24) + 1), "it has more than 16,777,216 bytes"),
        (b"\xff{}", "decode"),
        (b'{"model": NaN}', "model must be a dict"),
    ],
)
def test_loading_survives_what_is_too_deep_too_large_or_no_text(content, message, tmp_path):
    (tmp_path / "v.json").write_bytes(content)
    with pytest.raises(ValueError, match=f"v.json holds no vocabulary: .*{message}"):
        Vocabulary.load(tmp_path / "v.json")


def test_saving_refuses_a_tokenizer_with_rules_that_the_file_could_not_hold(vocabulary, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    lower = tokenizers.Tokenizer.from_str(vocabulary.tokenizer.to_str())
    lower.normalizer = tokenizers.normalizers.Lowercase()
    with pytest.raises(ValueError, match="only a vocabulary that cuts words by merges alone.*normalizer"):
        Vocabulary(lower).save(tmp_path / "v.json")
    assert not (tmp_path / "v.json").exists()


def test_no_piece_becomes_longer_than_a_file_may_hold(tmp_path):
    vocabulary = Vocabulary.train(["a" * 2000] * 3, 3000)
    assert max(map(len, vocabulary.tokens(range(4, len(vocabulary))))) <= 256
    vocabulary.save(tmp_path / "v.json")
    assert len(Vocabulary.load(tmp_path / "v.json")) == len(vocabulary)


def test_files_of_ones_own_have_a_bound(tmp_path, monkeypatch):
    for name in ("a.pt", "a.en"):
        (tmp_path / name).write_text("um\n")
    monkeypatch.setattr(text, "_MAX_FILE", 2)
    with pytest.raises(CorpusError, match="a.pt has 3 bytes, more than 2: divide it"):
        read_pairs(tmp_path / "a.pt", tmp_path / "a.en")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda v: Vocabulary.train("one string", 100),
            TypeError,
            "sentences must be several strings, got one",
        ),
        (lambda v: Vocabulary.train(["a"], 4), ValueError, "size must be at least 5, but is 4"),
        (lambda v: Vocabulary.train(["a"], 10.0), TypeError, "size must be an int"),
        (lambda v: Vocabulary.train([], 10), ValueError, "sentences hold no words to learn from"),
        (lambda v: v.encode(None), TypeError, "text must be a str, not NoneType (None)"),
        (lambda v: v.decode([300]), IndexError, "ids must lie in [0, 300), got 300"),
        (lambda v: v.tokens([-1]), IndexError, "ids must lie in [0, 300), got -1"),
    ],
)
def test_vocabulary_refuses(vocabulary, call, error, message):
    with pytest.raises(error, match=re.escape(message)):
        call(vocabulary)


# -------------------------------------------------------------------------------------------------
# Pairs, tensors, batches
# -------------------------------------------------------------------------------------------------

LENGTHS = st.lists(st.tuples(st.integers(1, 12), st.integers(2, 12)), min_size=1, max_size=60)


def pairs_of(lengths: list[tuple[int, int]]) -> list[tuple[list[int], list[int]]]:
    """Pairs of these lengths, each of its own number, so that it can be recognised in a batch."""
    return [([index + 4] * source, [index + 4] * target) for index, (source, target) in enumerate(lengths)]


def test_encoded_pairs_feed_teacher_forcing(vocabulary):
    source, target = encode_pairs([("o gato", "the cat")], vocabulary)[0]
    assert source == [*vocabulary.encode("o gato"), EOS_ID]
    assert target == [BOS_ID, *vocabulary.encode("the cat"), EOS_ID]


def test_long_pairs_are_left_out(vocabulary):
    pairs = load_corpus("phrases", "dev")
    every = encode_pairs(pairs, vocabulary)
    short = encode_pairs(pairs, vocabulary, max_tokens=12)
    assert short == [pair for pair in every if len(pair[0]) <= 12 and len(pair[1]) <= 12]
    assert 0 < len(short) < len(every) == len(pairs)
    with pytest.raises(ValueError, match="max_tokens must be at least 1, but is 0"):
        encode_pairs(pairs, vocabulary, max_tokens=0)


def test_empty_and_endless_sentences_are_kept_or_left_out_as_asked(vocabulary):
    """Nothing is lost without being asked for, and what does not fit a batch is named."""
    endless = " ".join(["gato"] * 10_000)
    pairs = [Pair("", ""), Pair(endless, "the cat ."), Pair("o gato", "")]
    encoded = encode_pairs(pairs, vocabulary)
    assert encoded[0] == ([EOS_ID], [BOS_ID, EOS_ID]) and len(encoded) == 3
    assert len(encoded[1][0]) > 10_000 and vocabulary.decode(encoded[1][0]) == endless
    assert encode_pairs(pairs, vocabulary, max_tokens=100) == [encoded[0], encoded[2]]
    with pytest.raises(ValueError, match=r"pairs\[1\] has \d+ tokens, more than max_tokens=4096"):
        TokenBatches(encoded, 4096)
    assert sum(len(source) for source, _ in TokenBatches(encoded, 40_000)(0)) == 3
    drawn = SubwordSampler(pairs, vocabulary, 0.3)(0)
    assert drawn[0] == encoded[0] and vocabulary.decode(drawn[1][0]) == endless
    assert sum(len(source) for source, _ in sampled_batches(pairs, vocabulary, 4096, 0.3)(0)) == 2


def test_pad():
    assert pad([[5, 6], [7], []]).tolist() == [[5, 6], [7, 0], [0, 0]]
    assert pad([torch.tensor([5]), torch.tensor([6, 7])], pad_id=9).tolist() == [[5, 9], [6, 7]]
    assert pad([[1]]).dtype == torch.long
    with pytest.raises(ValueError, match="sequences must hold at least one sequence"):
        pad([])


@given(
    lengths=LENGTHS,
    max_tokens=st.integers(12, 60),
    seed=st.integers(0, 5),
    epoch=st.integers(0, 5),
    shuffle=st.booleans(),
)
def test_batches_hold_every_pair_once_within_the_budget(lengths, max_tokens, seed, epoch, shuffle):
    pairs = pairs_of(lengths)
    batches = TokenBatches(pairs, max_tokens, seed, shuffle)
    seen = []
    for source, target in batches(epoch):
        assert source.numel() <= max_tokens and target.numel() <= max_tokens and len(source) == len(target)
        for row, column in zip(source.tolist(), target.tolist(), strict=True):
            index = row[0] - 4
            assert [token for token in row if token] == pairs[index][0]
            assert [token for token in column if token] == pairs[index][1]
            seen.append(index)
    assert sorted(seen) == list(range(len(pairs)))
    assert len(batches) == len(batches.indices(epoch)) == len(batches.indices(epoch + 1))


def test_order_depends_on_seed_and_epoch_alone(vocabulary):
    encoded = encode_pairs(load_corpus("phrases", "dev"), vocabulary)
    batches, twin, other = (TokenBatches(encoded, 200, seed) for seed in (1, 1, 2))
    torch.manual_seed(99)
    assert batches.indices(3) == twin.indices(3)
    assert len({str(b.indices(epoch)) for b in (batches, other) for epoch in range(3)}) == 6
    assert sorted(map(len, batches.indices(0))) == sorted(map(len, batches.indices(1)))
    before = torch.random.get_rng_state()
    list(batches(0))
    assert torch.equal(before, torch.random.get_rng_state())  # the dropout of a training run is not disturbed


def test_long_and_short_batches_come_in_random_order(vocabulary):
    batches = TokenBatches(encode_pairs(load_corpus("phrases", "dev"), vocabulary), 200)
    widths = [[source.size(1) for source, _ in batches(epoch)] for epoch in range(2)]
    assert sorted(widths[0]) == sorted(widths[1])
    assert widths[0] != widths[1] and sorted(widths[0]) not in widths


def test_resumption_skips_batches(vocabulary):
    batches = TokenBatches(encode_pairs(load_corpus("phrases", "dev"), vocabulary), 200)
    whole = list(batches(0))
    again = batches(0)
    for _ in range(5):
        next(again)
    assert all(
        torch.equal(a, b) for left, right in zip(whole[5:], again, strict=True) for a, b in zip(left, right)
    )


def test_unshuffled_batches_are_the_same_in_every_epoch():
    batches = TokenBatches(pairs_of([(n % 7 + 1, n % 5 + 2) for n in range(40)]), 30, shuffle=False)
    assert batches.indices(0) == batches.indices(5)
    longest = [max(source.size(1), target.size(1)) for source, target in batches(0)]
    assert longest == sorted(longest)


def test_waste_by_hand():
    batch = torch.tensor([[5, 6, 7], [8, 0, 0]]), torch.tensor([[5, 6], [7, 0]])
    assert padding_waste([batch]) == 3 / 10
    assert padding_waste([batch, (torch.tensor([[1] * 10]), torch.empty(1, 0))]) == 3 / 20
    with pytest.raises(ValueError, match="batches must hold at least one batch"):
        padding_waste([])


def test_little_of_a_batch_is_padding():
    train = load_corpus("phrases", "train")
    encoded = encode_pairs(train, Vocabulary.train((side for pair in train for side in pair), 800))
    for max_tokens, bound in ((2000, 0.03), (4096, 0.05)):
        assert padding_waste(TokenBatches(encoded, max_tokens)(0)) <= bound
    assert padding_waste(text._in_turn(encoded, 4096)) > 0.3


@pytest.mark.parametrize(
    ("pairs", "options", "error", "message"),
    [
        ([], {"max_tokens": 8}, ValueError, "pairs must hold at least one pair"),
        (
            pairs_of([(2, 2), (9, 3)]),
            {"max_tokens": 8},
            ValueError,
            "pairs[1] has 9 tokens, more than max_tokens=8",
        ),
        ([([4], [])], {"max_tokens": 8}, ValueError, "pairs[0] has an empty side"),
        (pairs_of([(2, 2)]), {"max_tokens": 0}, ValueError, "max_tokens must be at least 1, but is 0"),
        (pairs_of([(2, 2)]), {"max_tokens": 8.0}, TypeError, "max_tokens must be an int"),
        (pairs_of([(2, 2)]), {"max_tokens": 8, "seed": -1}, ValueError, "seed must be at least 0, but is -1"),
    ],
)
def test_batches_refuse(pairs, options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        TokenBatches(pairs, **options)


def test_epoch_is_a_number():
    batches = TokenBatches(pairs_of([(2, 2)]), 8)
    with pytest.raises(ValueError, match="epoch must be at least 0, but is -1"):
        next(batches(-1))


# -------------------------------------------------------------------------------------------------
# BPE-dropout
# -------------------------------------------------------------------------------------------------

PAIRS = load_corpus("phrases", "dev")
ODD = [
    Pair("", ""),
    Pair("o gato 猫猫 preto .", "the 猫"),
    Pair("a▁b ▁ ▁▁c d▁", "▁"),
    Pair("irma\u0303  e\u0301\n", "<s> </s> <pad>"),
    Pair("gato" * 40, "x" * 300),
]


def learned_merges(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    return [tuple(pair) for pair in json.loads(vocabulary.tokenizer.to_str())["model"]["merges"]]


def exact_chances(pieces: tuple[str, ...], merges: list[tuple[str, str]], p: float) -> dict:
    """The probability of every cut, as the paper's algorithm is printed: by all subsets that may remain."""
    possible = [
        (merges.index(pair), place) for place, pair in enumerate(zip(pieces, pieces[1:])) if pair in merges
    ]
    total: Counter = Counter()
    for kept in itertools.product((True, False), repeat=len(possible)):
        chance = (1 - p) ** sum(kept) * p ** (len(kept) - sum(kept))
        remaining = list(itertools.compress(possible, kept))
        if not remaining:
            total[pieces] += chance
            continue
        _, i = min(remaining)
        merged = (*pieces[:i], pieces[i] + pieces[i + 1], *pieces[i + 2 :])
        for cut, share in exact_chances(merged, merges, p).items():
            total[cut] += chance * share
    return dict(total)


@pytest.mark.parametrize("word", ["gato", "do", "menina", "posso", "ana", "z"])
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_frequencies_are_those_of_the_algorithm(vocabulary, word, p):
    """5 standard deviations for every cut; one word occurs twice, so that its two draws must differ too."""
    exact = exact_chances(tuple("▁" + word), learned_merges(vocabulary), p)
    assert sum(exact.values()) == pytest.approx(1)
    n = 5000
    drawn = SubwordSampler([Pair(f"{word} {word}", "")] * n, vocabulary, p, seed=7)(2)
    halves = [[], []]
    for source, _ in drawn:
        tokens = vocabulary.tokens(source[:-1])
        second = tokens.index(next(token for token in tokens[1:] if token.startswith("▁")), 1)
        halves[0].append(tuple(tokens[:second]))
        halves[1].append(tuple(tokens[second:]))
    found = Counter(halves[0] + halves[1])
    assert set(found) <= set(exact)
    for cut, chance in exact.items():
        assert abs(found[cut] / (2 * n) - chance) < 5 * (chance * (1 - chance) / (2 * n)) ** 0.5 + 1e-9
    likeliest = max(exact.values())
    both = sum(a == b for a, b in zip(*halves)) / n  # of two independent draws
    expected = sum(chance**2 for chance in exact.values())
    assert abs(both - expected) < 5 * (expected * (1 - expected) / n) ** 0.5 + 1e-9, likeliest


def test_without_dropout_it_is_the_vocabulary(vocabulary):
    pairs = PAIRS + ODD
    assert SubwordSampler(pairs, vocabulary, dropout=0.0)(3) == encode_pairs(pairs, vocabulary)
    # The same by the way that is used with dropout: every word's course to its end.
    sampler = SubwordSampler(pairs, vocabulary, dropout=1e-12)
    assert sampler(0) == encode_pairs(pairs, vocabulary)


@given(anything=st.text(max_size=30))
def test_words_are_cut_where_the_library_cuts_them(vocabulary, anything):
    text_ = normalize(anything)
    theirs = [word for word, _ in vocabulary.tokenizer.pre_tokenizer.pre_tokenize_str(text_)]
    assert text._words(text_) == theirs
    assert SubwordSampler([(anything, text_)], vocabulary, 1e-12)(0) == encode_pairs(
        [(anything, text_)], vocabulary
    )


@pytest.mark.parametrize("p", [0.1, 0.5, 0.95])
def test_any_cut_spells_the_same_text(vocabulary, p):
    pairs = PAIRS + ODD
    for epoch in range(2):
        drawn = SubwordSampler(pairs, vocabulary, p)(epoch)
        for (source, target), pair in zip(drawn, pairs, strict=True):
            assert source[-1] == target[-1] == EOS_ID and target[0] == BOS_ID
            for ids, side in ((source[:-1], pair.source), (target[1:-1], pair.target)):
                usual = vocabulary.encode(side)
                assert "".join(vocabulary.tokens(ids)) == "".join(vocabulary.tokens(usual))
                assert not {PAD_ID, BOS_ID, EOS_ID} & set(ids)


def test_more_dropout_makes_longer_sentences_up_to_characters(vocabulary):
    counts = [
        sum(len(source) + len(target) - 3 for source, target in SubwordSampler(PAIRS, vocabulary, p)(0))
        for p in (0.0, 0.1, 0.3, 0.999999)
    ]
    assert counts[1] > 1.05 * counts[0] and counts[2] > 1.1 * counts[1]
    assert counts[3] == sum(len(side.replace(" ", "")) + len(side.split()) for pair in PAIRS for side in pair)


def test_cuts_depend_on_seed_and_epoch_alone(vocabulary):
    sampler, twin = (SubwordSampler(PAIRS, vocabulary, 0.2, seed=3) for _ in range(2))
    later = sampler(4)
    before = torch.random.get_rng_state()
    torch.manual_seed(99)
    state = torch.random.get_rng_state()
    assert twin(4) == later == sampler(4)
    assert torch.equal(torch.random.get_rng_state(), state)  # the dropout of a training run is not disturbed
    torch.random.set_rng_state(before)
    torch.set_default_dtype(torch.float64)
    try:
        assert sampler(4) == later
    finally:
        torch.set_default_dtype(torch.float32)
    others = [later, sampler(5), SubwordSampler(PAIRS, vocabulary, 0.2, seed=4)(4)]
    assert len({str(drawn) for drawn in others}) == 3


def test_what_is_remembered_changes_nothing(vocabulary, monkeypatch):
    expected = SubwordSampler(PAIRS, vocabulary, 0.3)(1)
    monkeypatch.setattr(text, "_REMEMBERED", 2)
    assert SubwordSampler(PAIRS, vocabulary, 0.3)(1) == expected


def test_the_vocabulary_itself_goes_on_without_dropout(vocabulary):
    before = vocabulary.encode_batch(side for pair in PAIRS for side in pair)
    SubwordSampler(PAIRS, vocabulary, 0.5)(0)
    assert vocabulary.encode_batch(side for pair in PAIRS for side in pair) == before
    assert vocabulary.tokenizer.model.dropout is None


def test_a_pair_that_chance_makes_too_long_is_cut_as_usual(vocabulary):
    usual = encode_pairs(PAIRS, vocabulary, max_tokens=14)
    drawn = SubwordSampler(PAIRS, vocabulary, 0.3, max_tokens=14)(0)
    free = SubwordSampler(PAIRS, vocabulary, 0.3)(0)
    assert 0 < len(drawn) == len(usual) < len(free) == len(PAIRS)
    assert max(len(side) for pair in drawn for side in pair) == 14
    kept = sum(new == old for new, old in zip(drawn, usual))
    assert 0 < kept < len(usual)
    assert max(len(side) for pair in free for side in pair) > 14


def test_a_word_without_end_is_cut_as_usual(vocabulary):
    pair = Pair("gato" * 5000, "o gato")
    drawn = [SubwordSampler([pair], vocabulary, 0.5)(epoch)[0] for epoch in range(5)]
    assert {tuple(source) for source, _ in drawn} == {(*vocabulary.encode(pair.source), EOS_ID)}
    assert len({tuple(target) for _, target in drawn}) > 1
    just = "gato" * 15 + "ga"  # 63 characters with the sign for the space, and with one more 64
    for word, changes in ((just + "to"[:1], True), (just + "to", False)):
        assert len("▁" + word) == (64 if changes else 65)
        cuts = {str(SubwordSampler([(word, "")], vocabulary, 0.5)(epoch)) for epoch in range(3)}
        assert (len(cuts) > 1) == changes


def test_sampled_batches_are_an_epochs_and_the_same_again(vocabulary):
    batches, twin = (sampled_batches(PAIRS, vocabulary, 300, 0.2, seed=5) for _ in range(2))
    sampler = SubwordSampler(PAIRS, vocabulary, 0.2, seed=5, max_tokens=300)
    for epoch in (0, 3):
        expected = list(TokenBatches(sampler(epoch), 300, seed=5)(epoch))
        for found in (batches(epoch), twin(epoch), batches(epoch)):
            for one, two in zip(found, expected, strict=True):
                assert torch.equal(one[0], two[0]) and torch.equal(one[1], two[1])
    shapes = [sorted((tuple(s.shape), tuple(t.shape)) for s, t in batches(epoch)) for epoch in (0, 1)]
    assert shapes[0] != shapes[1]


def test_a_run_with_drawn_cuts_and_two_passes_resumes_to_the_same_bits(vocabulary, tmp_path):
    """Stopped in the middle of its second epoch, with another number of batches than the first."""
    sampled = sampled_batches(PAIRS[:60], vocabulary, 80, 0.3)
    first, second = (sum(1 for _ in sampled(epoch)) for epoch in (0, 1))
    assert first != second
    ends = []
    for stops in ([first + second], [first + 2, first + second]):
        for steps in stops:
            torch.manual_seed(0)
            sizes = dict(d_model=8, n_heads=2, n_layers=1, d_ff=16, dropout=0.3)
            trainer = Trainer(
                Transformer(TransformerConfig(len(vocabulary), len(vocabulary), **sizes)),
                loss=partial(r_drop_loss, alpha=5),
                batches=sampled_batches(PAIRS[:60], vocabulary, 80, 0.3),
                schedule=lambda step: 1e-3,
                config=TrainingConfig(steps, evaluate_every=1000, log_every=1000),
                directory=tmp_path / str(len(stops)),
            ).fit()
        assert trainer.step == first + second
        ends.append(list(trainer.model.parameters()))
    assert all(torch.equal(one, two) for one, two in zip(*ends, strict=True))


def test_sampled_batches_keep_within_a_models_length(vocabulary):
    batches = sampled_batches(PAIRS, vocabulary, 300, 0.5, max_length=14)
    widths = [side.size(1) for epoch in range(2) for batch in batches(epoch) for side in batch]
    assert max(widths) == 14
    sentences = sum(len(source) for source, _ in batches(0))
    assert sentences == len(encode_pairs(PAIRS, vocabulary, max_tokens=14))
    free = sampled_batches(PAIRS, vocabulary, 40, 0.9)  # nearly characters, most too many for a batch of 40
    assert sum(len(source) for source, _ in free(0)) == len(encode_pairs(PAIRS, vocabulary, max_tokens=40))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"dropout": 1.0}, ValueError, "dropout must lie in [0, 1), but is 1.0"),
        ({"dropout": "0.1"}, TypeError, "dropout must be a number, not str"),
        ({"seed": -1}, ValueError, "seed must be at least 0, but is -1"),
        ({"max_tokens": 0}, ValueError, "max_tokens must be at least 1, but is 0"),
        ({"vocabulary": None}, TypeError, "vocabulary must be a Vocabulary"),
        ({"pairs": [("a",)]}, ValueError, "pairs[0] must be a source and a target, not 1 things"),
        ({"pairs": [("a", 3)]}, TypeError, "text must be a str, not int (3)"),
    ],
)
def test_sampler_refuses(vocabulary, options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        SubwordSampler(**({"pairs": PAIRS[:2], "vocabulary": vocabulary} | options))


def test_sampler_refuses_epochs_that_are_none_and_no_pairs(vocabulary):
    with pytest.raises(ValueError, match="epoch must be at least 0, but is -1"):
        SubwordSampler(PAIRS[:2], vocabulary)(-1)
    assert SubwordSampler([], vocabulary)(0) == []
    with pytest.raises(ValueError, match="pairs must hold at least one pair"):
        sampled_batches([], vocabulary, 100)(0)


def test_sampler_refuses_a_vocabulary_that_cuts_otherwise():
    tokenizers = pytest.importorskip("tokenizers")
    specials = ["<pad>", "<unk>", "<s>", "</s>"]
    pieces = tokenizers.models.Unigram([(name, 0.0) for name in (*specials, "▁a", "b")], unk_id=1)
    lower = tokenizers.Tokenizer.from_str(Vocabulary.train(["a ab"], 10, 1).tokenizer.to_str())
    lower.normalizer = tokenizers.normalizers.Lowercase()
    for tokenizer, message in (
        (text._new_tokenizer(pieces), "vocabulary must be made of merges, but is of type Unigram"),
        (lower, "vocabulary must cut words by its merges alone"),
    ):
        with pytest.raises(ValueError, match=message):
            SubwordSampler([("AB a", "a")], Vocabulary(tokenizer))


# -------------------------------------------------------------------------------------------------
# Facts
# -------------------------------------------------------------------------------------------------


def test_facts_by_hand(monkeypatch):
    splits = {
        "train": [Pair("a b", "x"), Pair("a b", "x"), Pair("c", "c")],
        "dev": [Pair("a d", "x")],
        "test": [Pair("c", "c"), Pair("d", "y z")],
    }
    monkeypatch.setattr(text, "load_corpus", lambda name, split: splits[split])
    every = corpus_facts("ours", sizes=(20,), budgets=(8,), dropouts=(0.0, 0.9))
    facts = every["splits"]
    (usual, most), ((_, *pieces),) = every["dropout"], every["vocabularies"]
    assert usual == [0.0, *pieces] and most[0] == 0.9 and most[1] > pieces[0]
    assert facts["train"] == {
        "pairs": 3, "tokens": [5, 3], "types": [3, 2], "lengths": [[(1, 1), (2, 2)], [(1, 3)]],
        "repeated": 1, "equal sides": 1, "in train": 3, "unknown": [0.0, 0.0],
    }  # fmt: skip
    assert facts["dev"]["unknown"] == [0.5, 0.0] and facts["test"]["unknown"] == [0.5, 2 / 3]
    assert facts["test"]["in train"] == 1
