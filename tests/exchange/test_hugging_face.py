"""Folders of models that others have published, and what damage, malice and mistakes make of them.

A Llama and a Marian model of random weights are written by hand, so that none of this needs transformers.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import time
from pathlib import Path

import pytest
import torch
from helpers import contents, llama_folder, refuses, scrambled
from torch import nn

from transformer import Transformer, TransformerConfig, accelerate
from transformer.exchange.hugging_face import (
    _PARTS,
    M2M100Transformer,
    _reordered,
    _sines_first,
    from_llama,
    from_m2m100,
    from_marian,
    to_marian,
    whole_folder,
)
from transformer.exchange.translators import to_ctranslate2
from transformer.files import CheckpointError

safetensors = pytest.importorskip("safetensors.torch")

V, PAD, INDEX = 13, 12, "model.safetensors.index.json"
SIZES = {"d_model": 8, "n_heads": 2, "n_layers": 2, "d_ff": 10, "max_length": 16}


def small_model(**changes) -> Transformer:
    torch.manual_seed(0)
    special = {"pad_id": PAD, "bos_id": PAD, "eos_id": 0}
    return scrambled(Transformer(TransformerConfig(V, V, **SIZES, **special, **changes))).eval()


def marian_folder(folder: Path, **changes) -> Path:
    """`small_model` as Marian's, with changes of its configuration."""
    weights = _reordered(small_model().state_dict(), _sines_first(8).argsort())
    safetensors.save_file(
        as_marians(weights) | {"final_logits_bias": torch.zeros(1, V)}, folder / "model.safetensors"
    )
    settings = SETTINGS | {"model_type": "marian"} | changes
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf8")
    return folder


def m2m100_folder(folder: Path) -> Path:
    """A small model as M2M-100's."""
    special = {"pad_id": 1, "bos_id": 2, "eos_id": 0}
    config = TransformerConfig(V, V, **SIZES, **special, norm_first=True)
    weights = scrambled(M2M100Transformer(config)).state_dict()
    safetensors.save_file(as_marians(weights), folder / "model.safetensors")
    settings = SETTINGS | {"model_type": "m2m_100", "pad_token_id": 1, "decoder_start_token_id": 2}
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf8")
    return folder


def as_marians(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights of ours with one table, under the names that Marian and its kin have for them."""
    named = {"model.shared.weight": weights["src_embedding.weight"].contiguous()}
    for name, x in weights.items():
        if "layers" in name or ".norm." in name:
            for theirs, ours in _PARTS.items():
                name = name.replace(f".{ours}.", f".{theirs}.")
            named[f"model.{name}"] = x.contiguous()
    return named


SETTINGS = {
    "vocab_size": V, "d_model": 8, "max_position_embeddings": 16,
    "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 10, "decoder_ffn_dim": 10, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0,
    "dropout": 0.1, "attention_dropout": 0.0, "activation_dropout": 0.0, "activation_function": "relu",
    "scale_embedding": True, "pad_token_id": PAD, "decoder_start_token_id": PAD, "eos_token_id": 0,
}  # fmt: skip


KINDS = {"Llama": (llama_folder, from_llama), "Marian": (marian_folder, from_marian)}
MIXED = KINDS | {"M2M-100": (m2m100_folder, from_m2m100)}
BOTH = pytest.mark.parametrize("write, read", KINDS.values(), ids=KINDS)


def stored(folder: Path) -> dict[str, torch.Tensor]:
    return safetensors.load_file(folder / "model.safetensors")


def restored(folder: Path, weights: dict[str, torch.Tensor]) -> Path:
    safetensors.save_file({name: x.clone() for name, x in weights.items()}, folder / "model.safetensors")
    return folder


def divided(folder: Path, **moved: str) -> Path:
    """The weights in two files, with an index that names them, or what `moved` has in their place."""
    weights = stored(folder)
    (folder / "model.safetensors").unlink()
    places = {}
    for turn in (0, 1):
        file, names = f"model-{turn}.safetensors", sorted(weights)[turn::2]
        safetensors.save_file({name: weights[name] for name in names}, folder / file)
        places |= dict.fromkeys(names, moved.get(f"file_{turn}", file))
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}), encoding="utf8")
    return folder


def same(first: torch.nn.Module, second: torch.nn.Module) -> bool:
    """Whether two models have equal parameters."""
    a, b = first.state_dict(), second.state_dict()
    return a.keys() == b.keys() and all(torch.equal(x, b[name]) for name, x in a.items())


# ---------- Which files are read


def test_a_folder_by_hand_is_the_model(tmp_path):
    ours, read = small_model(), from_marian(marian_folder(tmp_path))
    src, tgt = torch.randint(V - 1, (3, 5)), torch.randint(V - 1, (3, 4))
    found, expected = read(src, tgt), ours(src, tgt)
    assert torch.allclose(found, expected, atol=1e-5) and not read.training
    assert read.config.bos_id == PAD and read.config.max_length == 16


@BOTH
def test_an_index_is_followed(write, read, tmp_path):
    expected = read(write(tmp_path))
    stray = {name: x + 1 for name, x in stored(tmp_path).items()}
    divided(tmp_path)
    for name in ("model-9.safetensors", "model.safetensors"):  # which the index does not name
        safetensors.save_file(stray, tmp_path / name)
    assert same(read(tmp_path), expected)


def test_links_of_the_cache_of_the_hub_are_followed(tmp_path):
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0123"
    for folder in (blobs, snapshot):
        folder.mkdir(parents=True)
    expected = from_llama(llama_folder(blobs))
    for number, path in enumerate(sorted(divided(blobs).iterdir())):
        path.rename(blobs / f"{number:064x}")
        (snapshot / path.name).symlink_to(os.path.join("..", "..", "blobs", f"{number:064x}"))
    assert same(from_llama(snapshot), expected)


@pytest.mark.parametrize(
    "named", ["../outside.safetensors", "{absolute}", "in/side.safetensors", "", ".", "a\0b"], ids=repr
)
def test_no_path_leads_out_of_the_folder(named, tmp_path):
    folder, outside = tmp_path / "model", tmp_path / "outside.safetensors"
    (folder / "in").mkdir(parents=True)
    divided(llama_folder(folder), file_1=named.format(absolute=outside))
    for path in (outside, folder / "in" / "side.safetensors"):  # where all that is asked for would be found
        shutil.copy(folder / "model-1.safetensors", path)
    with pytest.raises(CheckpointError, match="it names files that the folder does not"):
        from_llama(folder)


def fewer(folder):
    weights = safetensors.load_file(folder / "model-1.safetensors")
    safetensors.save_file(dict(list(weights.items())[1:]), folder / "model-1.safetensors")


def no_map(folder):
    (folder / INDEX).write_text("{}")


def no_dictionary(folder):
    (folder / INDEX).write_text('{"weight_map": ["model-0.safetensors"]}')


DISAGREEMENTS = {
    fewer: "no tensor stands for .* of ours",
    no_map: "index.json cannot be used: 'weight_map' is missing",
    no_dictionary: "index.json cannot be used: AttributeError",
}


@pytest.mark.parametrize("damage, said", DISAGREEMENTS.items(), ids=lambda one: getattr(one, "__name__", ""))
def test_index_and_files_must_agree(damage, said, tmp_path):
    damage(divided(llama_folder(tmp_path)))
    with pytest.raises(CheckpointError, match=said):
        from_llama(tmp_path)


def test_one_tensor_under_two_names_must_be_one(tmp_path):
    weights = stored(llama_folder(tmp_path)) | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)}
    name = next(name for name in weights if name.startswith("model.") and "layers.1" in name)
    expected = from_llama(restored(tmp_path, weights | {name.removeprefix("model."): weights[name].clone()}))
    assert same(expected, from_llama(restored(tmp_path, weights)))
    restored(tmp_path, weights | {name.removeprefix("model."): weights[name] + 1})
    with pytest.raises(CheckpointError, match="must equal .*, as both are one parameter here"):
        from_llama(tmp_path)


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        from_llama(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="config.json"):
        from_llama(tmp_path)
    (llama_folder(tmp_path) / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match="has no model.safetensors: save the model by"):
        from_llama(tmp_path)
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(OSError, match="model.safetensors is not a regular file"):
        from_llama(tmp_path)


# ---------- What they hold


@BOTH
def test_numbers_that_are_not_finite_are_refused_by_the_name_of_their_tensor(write, read, tmp_path):
    weights = stored(write(tmp_path))
    for name, value in (("final_logits_bias", torch.nan), (list(weights)[-1], -torch.inf)):
        if name in weights:
            changed = weights[name].clone()
            changed.view(-1)[-1] = value
            restored(tmp_path, weights | {name: changed})
            with pytest.raises(CheckpointError, match=f"{re.escape(name)} holds numbers that are not finite"):
                read(tmp_path)


@BOTH
def test_other_tensors_are_refused_by_name(write, read, tmp_path):
    weights = stored(write(tmp_path))
    name = next(name for name in weights if "layers.1" in name)
    for other, said in (
        ({one: x.int() for one, x in weights.items()}, "cannot be used"),
        (weights | {name: weights[name][:-1].contiguous()}, f"{name} must have shape"),
        (weights | {name: weights[name][None]}, f"{name} must have shape"),
        (weights | {"model.bias": torch.zeros(3)}, "model.bias has no place in this model"),
        (weights | {name.replace("1", "3", 1): weights[name]}, "has no place in this model"),
        ({one: x for one, x in weights.items() if one != name}, "no tensor stands for"),
    ):
        with pytest.raises(CheckpointError, match=re.escape(said)):
            read(restored(tmp_path, other))


@pytest.mark.slow
@pytest.mark.parametrize("most, other", [("float32", "float16"), ("bfloat16", "float32")])
@pytest.mark.parametrize("write, read", MIXED.values(), ids=MIXED)
def test_a_single_weight_of_another_dtype_is_refused_by_name(write, read, most, other, tmp_path):
    whole = {name: x.to(getattr(torch, most)) for name, x in stored(write(tmp_path)).items()}
    assert {x.dtype for x in read(restored(tmp_path, whole)).parameters()} == {getattr(torch, most)}
    said = (
        f"all weights must be of one dtype, but .* is torch.({most}|{other}) and .* is torch.({most}|{other})"
    )
    for name, value in list(whole.items())[::5]:
        with pytest.raises(CheckpointError, match=said):
            read(restored(tmp_path, whole | {name: value.to(getattr(torch, other))}))


ROPE = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0}
ROPE |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 32}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0}
LLAMAS = {
    "of no family": ({"model_type": "gpt2"}, "model_type must be one of"),
    "with another activation": ({"hidden_act": "gelu_new"}, "activation must be one of"),
    "scaled in another way": ({"rope_parameters": YARN}, "rope_type must be one of"),
    "with norms that are not there": ({"model_type": "qwen3"}, "no tensor stands for .*attention.k_norm.wei"),
    "tied, with an output of its own": ({"tie_word_embeddings": True}, "must equal .*, as both are one"),
    "a factor of 0": ({"rope_parameters": ROPE | {"factor": 0}}, "factor must be at least 1"),
    "no length": ({"rope_parameters": {k: ROPE[k] for k in list(ROPE)[:-1]}}, "'original_max.*is missing"),
    "a part that turns": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor must be one of"),
    "heads that do not divide": ({"num_attention_heads": 3, "head_dim": None}, "n_heads must divide d_model"),
    "no heads": ({"num_attention_heads": 0}, "n_heads must be at least 1, but is 0"),
    "a width as a word": ({"hidden_size": "16"}, "d_model must be an int, not str"),
}
MARIANS = {
    "of another family": ({"model_type": "bart"}, "model_type must be one of"),
    "stacks of two widths": ({"decoder_ffn_dim": 8}, r"decoder_ffn_dim must be one of \[10\], not 8"),
    "embeddings as they are": ({"scale_embedding": False}, "scale_embedding must be one of .True., not Fal"),
    "another activation": ({"activation_function": "gelu_new"}, "activation must .* not 'gelu_new'"),
    "padding that ends": ({"eos_token_id": PAD}, "pad_id and eos_id must differ"),
    "two ends": ({"eos_token_id": [0, 1]}, "eos_id must be an int, not list"),
    "more words": ({"vocab_size": V + 1}, r"must have shape \[14, 8\], not \[13, 8\]|shape \[1, 14\]"),
    "more positions than memory": ({"max_position_embeddings": 10**12}, "numbers in the table of positions"),
}


@pytest.mark.parametrize("changes, said", LLAMAS.values(), ids=LLAMAS)
def test_a_configuration_that_no_llama_has_is_refused(changes, said, tmp_path):
    with pytest.raises(CheckpointError, match=said):
        from_llama(llama_folder(tmp_path, **changes))


@pytest.mark.parametrize("changes, said", MARIANS.values(), ids=MARIANS)
def test_a_configuration_that_no_marian_has_is_refused(changes, said, tmp_path):
    with pytest.raises(CheckpointError, match=said):
        from_marian(marian_folder(tmp_path, **changes))


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("size", [20_000, 10**15, 10**30], ids=str)
def test_sizes_are_refused_at_once(write, read, size, tmp_path):
    read(write(tmp_path))  # the first model on the meta device makes torch import for seconds
    settings = json.loads((tmp_path / "config.json").read_text())
    names = ("layers", "ffn_dim", "intermediate_size", "d_model", "hidden_size", "vocab_size")
    for name in (name for name in settings if name.endswith(names)):
        twins = [name.replace("encoder", side) for side in ("encoder", "decoder")]
        write(tmp_path, **dict.fromkeys(twins, size))
        began = time.process_time()
        with pytest.raises(CheckpointError):
            read(tmp_path)
        assert time.process_time() - began < 2


# ---------- Any damage

VALUES = (None, True, 0, -1, 3.5, 1e400, 10**30, "8", [1], {"a": [{}]})
TEXTS = (b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}", b"\0" * 64)


def damaged(folder: Path, files: list[str], draw: random.Random):
    """Damage of every kind to the files of a folder, one at a time; each is undone afterward."""
    for name in files:
        path = folder / name
        whole = path.read_bytes()
        for text in TEXTS:
            path.write_bytes(text)
            yield
        for at in (*range(0, 20, 4), *(draw.randrange(len(whole)) for _ in range(5))):
            path.write_bytes(whole[:at])
            yield
        for n in range(12):
            at = draw.randrange(min(len(whole), 4000) if n % 3 else len(whole))
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << draw.randrange(8)]) + whole[at + 1 :])
            yield
        if name.endswith(".json"):
            settings = json.loads(whole)
            for key in settings:
                path.write_text(json.dumps({one: x for one, x in settings.items() if one != key}))
                yield
                for value in VALUES:
                    path.write_text(json.dumps(settings | {key: value}))
                    yield
        path.write_bytes(whole + b"\0")
        yield
        path.unlink()
        yield
        path.write_bytes(whole)


@BOTH
@pytest.mark.slow
def test_any_damage_is_refused_in_one_line_or_does_no_harm(write, read, tmp_path):
    files, verdicts = sorted(contents(divided(write(tmp_path)))), {True: 0, False: 0}
    ids = torch.tensor([[1, 2, 3]])
    for _ in damaged(tmp_path, files, random.Random(0)):
        try:
            model = read(tmp_path)
        except (CheckpointError, FileNotFoundError) as error:
            assert str(tmp_path) in str(error) and "\n" not in str(error)
            verdicts[False] += 1
        else:
            with torch.no_grad():
                assert model(ids, ids).shape[-1] > 3 if read is from_marian else model(ids).shape[-1] > 3
            verdicts[True] += 1
    assert verdicts[False] > verdicts[True] > 0


# ---------- Writing


@pytest.mark.parametrize("there", [False, True], ids=["new", "empty"])
def test_an_export_is_whole_or_not_there(tmp_path, there):
    folder = tmp_path / "new" / "model"
    if there:
        folder.mkdir(parents=True)
    with pytest.raises(OSError, match="full"), whole_folder(folder) as part:
        (part / "a.bin").write_bytes(b"ne")
        raise OSError("full")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["model"] * there
    with whole_folder(folder) as part:
        (part / "a.bin").write_bytes(b"new")
    assert contents(folder) == {"a.bin": b"new"}
    assert folder.stat().st_mode & 0o777 == folder.parent.stat().st_mode & 0o777
    with pytest.raises(ValueError, match="folder must be new or empty, but .*model holds a.bin"):
        with whole_folder(folder):
            pass
    assert contents(folder) == {"a.bin": b"new"}


EXPORTS = {to_marian: "transformers", to_ctranslate2: "ctranslate2"}


@pytest.mark.parametrize("export, library", EXPORTS.items(), ids=EXPORTS.values())
def test_a_model_that_is_not_finite_or_was_changed_is_not_exported(export, library, tmp_path):
    pytest.importorskip(library, reason=f"{library} is not installed: transformer-book[interchange]")
    model, name = small_model(), export.__name__
    with torch.no_grad():
        model.decoder.layers[1].feed_forward.w_1.weight[3, 4] = torch.nan
    with refuses(ValueError, "decoder.layers.1.feed_forward.w_1.weight holds numbers that are not finite"):
        export(model, tmp_path / "model")
    model = small_model()
    model.decoder.norm = nn.LayerNorm(8)
    said = "decoder.norm is of LayerNorm, not of Identity"
    with pytest.raises(TypeError, match=f"{name} takes only what a configuration makes, but {said}"):
        export(model, tmp_path / "model")
    with pytest.raises(TypeError, match=f"{name} takes .* the model is of FastTransformer, not of Transform"):
        export(accelerate(small_model()), tmp_path / "model")
    with pytest.raises(TypeError, match="model must be a Transformer, not "):
        export(small_model().encoder, tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.filterwarnings("ignore")  # what torch has to say of its own imports
def test_a_compiled_model_is_exported_as_it_was_before(tmp_path):
    pytest.importorskip("transformers", reason="transformers is not installed: transformer-book[interchange]")
    model, expected = small_model(), small_model()
    model.encoder.layers[1] = torch.compile(model.encoder.layers[1])
    to_marian(torch.compile(model), tmp_path / "model")
    assert same(from_marian(tmp_path / "model"), expected)
