"""Corpora: verified before use, taken as they are, and named where something is wrong with them."""

from __future__ import annotations

import hashlib
import http.client
import io
import re
import sys
import tarfile
from pathlib import Path

import pytest

from transformer import Preparation, load_corpus, read_pairs, recipe_for
from transformer.commands.data import held_out
from transformer.language import corpora
from transformer.language.corpora import CorpusError, Pair, _Archive, data_folder

TEXTS = {
    "pt.train": "olá .\nobrigado .\n\naté já .\n",
    "en.train": "hello .\nthank you .\n\nsee you soon .\n",
    "pt.dev": "sim .\n",
    "en.dev": "yes .\n",
}
READ = [
    Pair("olá .", "hello ."),
    Pair("obrigado .", "thank you ."),
    Pair("", ""),
    Pair("até já .", "see you soon ."),
]


def write_archive(path: Path, members: dict[str, str | bytes]) -> _Archive:
    """Pack an archive and describe it, so that it counts as the right one whatever it holds."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            data = content if isinstance(content, bytes) else content.encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return described(path)


def described(path: Path) -> _Archive:
    return _Archive(
        path.name, path.as_uri(), path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest()
    )


def in_folder(texts: dict[str, str | bytes]) -> dict[str, str | bytes]:
    return {f"datasets/pt_to_en/{name}": content for name, content in texts.items()}


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    server, cache = tmp_path / "server", tmp_path / "cache"
    server.mkdir()
    return server, cache


def read(sources: list[_Archive], cache: Path, split: str = "train") -> list[Pair]:
    return corpora._archived_pairs(sources, split, cache)


# ---------- Corpora


def test_archive_is_fetched_once_then_used_where_it_lies(folders):
    server, cache = folders
    corpus = [write_archive(server / "a.tar.gz", in_folder(TEXTS))]
    assert read(corpus, cache) == READ
    (server / "a.tar.gz").unlink()
    assert read(corpus, cache) == READ and read(corpus, cache, "dev") == [Pair("sim .", "yes .")]
    assert [path.name for path in cache.iterdir()] == ["a.tar.gz"]


def test_second_source_is_tried_and_found_too(folders):
    server, cache = folders
    good = write_archive(server / "b.tar.gz", in_folder(TEXTS))
    gone = good._replace(file="a.tar.gz", url=(server / "nowhere.tar.gz").as_uri())
    assert read([gone, good], cache) == READ
    Path(server / "b.tar.gz").unlink()
    assert read([gone, good], cache) == READ  # the second file lies in the cache now


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
        assert read([source], cache) == READ  # it is replaced by a good one
        assert (cache / "a.tar.gz").read_bytes() == whole
        return
    with pytest.raises(CorpusError, match=problem):
        read([source], cache)
    assert list(cache.iterdir()) == []  # neither the archive nor a piece of it


@pytest.mark.parametrize(
    "error",
    [ConnectionResetError("the line went dead"), http.client.IncompleteRead(b""), TimeoutError("no answer")],
)
def test_interrupted_download_leaves_nothing(folders, monkeypatch, error):
    server, cache = folders
    source = write_archive(server / "a.tar.gz", in_folder(TEXTS))

    class Broken(io.BytesIO):
        def read(self, size: int = -1) -> bytes:
            if self.tell():
                raise error
            return super().read(10)

    monkeypatch.setattr(corpora.urllib.request, "urlopen", lambda url, timeout: Broken(b"x" * 100))
    with pytest.raises(CorpusError, match=re.escape(str(error))):
        read([source], cache)
    assert list(cache.iterdir()) == []


def test_without_network_the_message_says_what_to_put_where(folders):
    server, cache = folders
    source = write_archive(server / "a.tar.gz", in_folder(TEXTS))
    (server / "a.tar.gz").unlink()
    with pytest.raises(CorpusError) as error:
        read([source], cache)
    message = str(error.value)
    for part in ("'ted'", str(cache), "a.tar.gz", f"{source.size:,} bytes", source.sha256, source.url):
        assert part in message
    assert "TRANSFORMER_DATA" in message and isinstance(error.value, OSError)


def test_foreign_and_climbing_members_are_left_alone(folders, tmp_path):
    server, cache = folders
    foreign = {
        "../up.txt": "x",
        "/tmp/absolute-name.txt": "x",
        "datasets/pt_to_en/._pt.train": "x",
        "other/pt.train": "x",
    }
    assert read([write_archive(server / "a.tar.gz", foreign | in_folder(TEXTS))], cache) == READ
    written = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
    assert written == ["a.tar.gz", "a.tar.gz"]  # the server's and the cache's


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


def test_only_a_line_feed_ends_a_line(tmp_path):
    odd = "one\u2028line\x85 .\nanother\x0c\r .\n"
    sources = [pair.source for pair in read_pairs(*write_sides(tmp_path, odd, "first .\nsecond .\n"))]
    assert sources == ["one\u2028line\x85 .", "another\x0c\r ."]


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (
            "a\nb\n",
            "a\n",
            r"train\.pt, .*train\.en: 2 source lines but 1 target lines, so that line 2 is alone$",
        ),
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


def test_a_corpus_of_one_file(tmp_path):
    path = tmp_path / "own.tsv"
    path.write_bytes("\ufeffum gato\ta cat\r\n\t\n dois \tDois".encode())
    assert read_pairs(path) == [("um gato", "a cat"), ("", ""), (" dois ", "Dois")]
    assert isinstance(read_pairs(path)[0], Pair)
    for content, message in (
        (b"a\tb\nc\n", "own.tsv: line 2 has 0 tabs"),
        (b"a\tb\tc\n", "own.tsv: line 1 has 2 tabs"),
        (b"a\tb\n\n", "own.tsv: line 2 has 0 tabs"),
        (b"a\t\xff\n", "own.tsv is not UTF-8: byte 0xff in line 1"),
    ):
        path.write_bytes(content)
        with pytest.raises(CorpusError, match=message):
            read_pairs(path)


def cats(n: int) -> list[Pair]:
    return [Pair(f"{number} gatos", f"{number} cats") for number in range(n)]


@pytest.mark.slow
@pytest.mark.parametrize(("n", "size"), [(2, 1), (10, 2), (600, 100), (5000, 250), (30000, 1000)])
def test_the_size_of_what_is_held_out(n, size):
    pairs = cats(n)
    train, dev = held_out(pairs)
    assert len(dev) == size and len(train) == n - size
    chosen = set(dev)
    assert chosen <= set(pairs) and train == [pair for pair in pairs if pair not in chosen]


def test_what_is_held_out_is_not_trained_on_in_any_form():
    own = [*cats(50), *cats(50), *(Pair(s.upper() + " ", t.upper()) for s, t in cats(50))]
    train, dev = held_out(own, Preparation("lower case"))
    assert len(dev) == len(set(dev)) == 10 and len(train) == 120
    kept = {(source.lower().strip(), target.lower()) for source, target in train}
    assert not kept & {(source.lower().strip(), target.lower()) for source, target in dev}
    assert len(held_out(own)[1]) == 20  # as it is, a capital makes another pair


@pytest.mark.parametrize(
    "pair, error, message",
    [
        # Of which not the keys are meant.
        ({"src": "um", "tgt": "one"}, TypeError, r"pairs\[1\] must be a tuple or list, not dict"),
        ("ab", TypeError, r"pairs\[1\] must be a tuple or list, not str"),
        (("a", "b", "c"), ValueError, r"pairs\[1\] must be a source and a target, not 3 things"),
        (("um", 1), TypeError, r"pairs\[1\]\[1\] must be a str, not int \(1\)"),
    ],
)
def test_what_is_no_pair_is_named(pair, error, message):
    for take in (held_out, recipe_for):
        with pytest.raises(error, match=message):
            take([["dois", "two"], pair])


@pytest.mark.slow
def test_data_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("TRANSFORMER_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    monkeypatch.delenv("TRANSFORMER_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_folder().is_absolute() and data_folder().name == "transformer-book"
    if sys.platform == "linux":
        assert data_folder().parent == tmp_path / "cache"
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    with pytest.raises(ImportError, match="platformdirs"):
        data_folder()
    assert load_corpus("phrases", "dev")  # which the package carries, and looks for in no folder


def test_load_phrases():
    pairs = load_corpus("phrases", "dev")
    assert len(pairs) == 500 and isinstance(pairs[0], Pair) and pairs[0].source == pairs[0][0]
    pairs.clear()  # a caller cannot spoil the corpus
    assert len(load_corpus("phrases", "dev")) == 500
