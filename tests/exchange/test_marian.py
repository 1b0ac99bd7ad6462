"""Marian and M2M-100, read from Hugging Face's folders and written: equal in what they compute."""

from __future__ import annotations

import copy
import math
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from helpers import close, refuses, scrambled
from torch import Tensor, nn

from transformer import (
    Transformer,
    TransformerConfig,
    accelerate,
    beam_search,
    check_model,
    greedy_search,
    sinusoidal_encoding,
    teacher_forced_loss,
)
from transformer.exchange.hugging_face import (
    M2M100Positions,
    M2M100Transformer,
    _sines_first,
    from_m2m100,
    from_marian,
    to_m2m100,
    to_marian,
)
from transformer.exchange.translators import Constrained
from transformer.files import CheckpointError
from transformer.language.folder import savable

pytestmark = pytest.mark.usefixtures("float64")
needs_transformers = pytest.mark.skipif(
    find_spec("transformers") is None, reason="transformers is not installed: transformer-book[interchange]"
)

V, D, LENGTH, STACKS = 31, 12, 48, ("encoder", "decoder")
SIZES = {"d_model": D, "n_heads": 3, "n_layers": 2, "d_ff": 20, "max_length": LENGTH}


class Family(NamedTuple):
    """One of their classes, and ours; `first` is the token that its results begin with."""

    name: str
    model: str
    read: Callable[[Any], Any]
    write: Callable[[Any, Any], None]
    kind: type[Transformer]
    special: dict[str, int]
    first: int | None

    def ours(self, **changes: Any) -> Transformer:
        ids = dict(zip(("pad_id", "bos_id", "eos_id"), self.special.values(), strict=True))
        form = {"norm_first": self.kind is not Transformer, **SIZES, **ids, **changes}
        return scrambled(self.kind(TransformerConfig(V, V, **form))).eval()

    def carried(self, theirs: Any) -> Any:
        """A model of theirs as one of ours, by way of a folder."""
        with tempfile.TemporaryDirectory() as folder:
            theirs.save_pretrained(folder)
            return self.read(folder)

    def theirs(self, **changes: Any) -> Any:
        """A model of transformers with random weights, in float64 and in evaluation mode."""
        import transformers

        options = {"vocab_size": V, "d_model": D, "max_position_embeddings": LENGTH, "scale_embedding": True}
        options |= {"activation_function": "relu", "forced_eos_token_id": None, **self.special}
        for stack in STACKS:
            options |= {f"{stack}_layers": 2, f"{stack}_attention_heads": 3, f"{stack}_ffn_dim": 20}
        torch.manual_seed(0)
        config = getattr(transformers, f"{self.name}Config")(**options | changes)
        theirs = getattr(transformers, self.model)(config).double().eval()
        with torch.no_grad():
            for name, parameter in theirs.named_parameters():
                if "embed_positions" not in name:
                    parameter.normal_(1.0 if "norm.weight" in name else 0.0, 0.4)
            if self.first is None:
                theirs.final_logits_bias.normal_()
            else:  # which takes no place where it is written, and so never is here
                theirs.model.shared.weight[config.pad_token_id] = 0.0
        return exact_positions(theirs)


def exact_positions(theirs: Any) -> Any:
    """With sinusoids in float64: transformers rounds its tables to float32 in a model of any dtype."""
    for stack in (theirs.model.encoder, theirs.model.decoder):
        positions = stack.embed_positions
        if isinstance(positions, nn.Embedding):
            table = sinusoidal_encoding(*positions.weight.shape)
            positions.weight.data = torch.cat([table[:, 0::2], table[:, 1::2]], dim=1)
        else:
            config = TransformerConfig(4, 4, pad_id=1, bos_id=2, d_model=positions.weights.size(1), n_heads=1)
            table = M2M100Transformer(config).positions.table[: len(positions.weights) - 2]
            positions.weights = F.pad(table, (0, 0, 2, 0))
    return theirs


OF_MARIAN = {"pad_token_id": V - 1, "decoder_start_token_id": V - 1, "eos_token_id": 0}  # as in OPUS-MT
OF_M2M = {"pad_token_id": 1, "decoder_start_token_id": 2, "eos_token_id": 2}
MARIAN = Family("Marian", "MarianMTModel", from_marian, to_marian, Transformer, OF_MARIAN, None)
M2M100 = Family(
    "M2M100", "M2M100ForConditionalGeneration", from_m2m100, to_m2m100, M2M100Transformer, OF_M2M, 5
)
BOTH = pytest.mark.parametrize("family", [MARIAN, M2M100], ids=lambda family: family.name)
FORMS = {
    "Marian": (MARIAN, {"activation_function": "swish"}),
    "Marian, a start of its own": (MARIAN, {"decoder_start_token_id": 2, "pad_token_id": 1}),
    "Marian, deep and shallow": (MARIAN, {"encoder_layers": 3, "decoder_layers": 1}),
    "M2M-100": (M2M100, {}),
    "M2M-100, gelu": (M2M100, {"activation_function": "gelu", "decoder_start_token_id": 0}),
    "M2M-100, deep, silu": (M2M100, {"activation_function": "silu", "encoder_layers": 4, "d_model": 18}),
}
EVERY_FORM = pytest.mark.parametrize("family, form", FORMS.values(), ids=FORMS)


def sentences(theirs: Any, batch: int = 12) -> tuple[Tensor, Tensor]:
    """Source and target ids, some of them padded."""
    src, tgt = torch.randint(3, V - 1, (batch, 9)), torch.randint(3, V - 1, (batch, 7))
    src[1, 6:] = src[2, 3:] = theirs.config.pad_token_id
    tgt[:, 0] = theirs.config.decoder_start_token_id
    return src, tgt


def their_logits(theirs: Any, src: Tensor, tgt: Tensor) -> Tensor:
    mask = (src != theirs.config.pad_token_id).long()
    return theirs(input_ids=src, attention_mask=mask, decoder_input_ids=tgt).logits


def generated(theirs: Any, src: Tensor, **options: Any) -> Tensor:
    """What `generate` finds, which computes its scores in float32 and expects this to be the default."""
    mask = (src != theirs.config.pad_token_id).long()
    torch.set_default_dtype(torch.float32)
    try:
        return theirs.generate(input_ids=src, attention_mask=mask, do_sample=False, **options)[:, 1:]
    finally:
        torch.set_default_dtype(torch.float64)


def until_end(rows: Tensor, end: int) -> list[list[int]]:
    return [row[: row.index(end) + 1] if end in row else row for row in rows.tolist()]


# ---------- The order of the features


@pytest.mark.parametrize("d_model", [2, 8, 10])
def test_all_sines_and_then_all_cosines_become_ours(d_model):
    table = sinusoidal_encoding(7, d_model)
    halves = torch.cat([table[:, 0::2], table[:, 1::2]], dim=1)
    assert torch.equal(halves[:, _sines_first(d_model)], table)


# ---------- The positions of M2M-100


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
    ({"pad_id": 0}, r"pad_id must be one of \[1\], not 0"),
    ({"bos_id": 1}, "pad_id and bos_id must differ here, but both are 1"),
], ids=str)  # fmt: skip
def test_what_m2m100_does_not_have_is_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        M2M100.ours(**changes)


@pytest.mark.slow
def test_it_is_a_transformer_that_what_counts_on_the_papers_positions_refuses():
    assert check_model(M2M100.ours()).passed
    said = "the model is of M2M100Transformer, not of Transformer"
    with refuses(TypeError, f"accelerate takes only what a configuration makes, but {said}"):
        accelerate(M2M100.ours())
    with pytest.raises(TypeError, match="no file could hold it, but positions.table is not as it makes it"):
        savable(M2M100.ours())


# ---------- Equal, there and back


@needs_transformers
@EVERY_FORM
def test_logits_and_searches_are_equal_and_so_are_those_of_the_folder(family, form, tmp_path):
    import transformers

    theirs = family.theirs(**form)
    config, (src, tgt) = theirs.config, sentences(theirs)
    end = config.eos_token_id
    ended = lambda: (greedy_search(family.carried(theirs), src, 20) == end).any(1).double().mean()
    while family is MARIAN and ended() < 0.3:
        theirs.final_logits_bias[:, end] += 0.3
    ours = family.carried(theirs)
    assert type(ours) is family.kind and not ours.training
    assert ours.config.depths == (config.encoder_layers, config.decoder_layers)
    expected = their_logits(theirs, src, tgt)
    assert close(ours(src, tgt), expected) and expected.std() > 0.5
    searched, given = ours, {}
    if family.first is not None:
        searched, given = Constrained(ours, first=family.first), {"forced_bos_token_id": family.first}
    greedy = generated(theirs, src, num_beams=1, max_new_tokens=20, **given)
    assert until_end(greedy_search(searched, src, 20), end) == until_end(greedy, end)
    beam = {"num_beams": 4, "length_penalty": 0.0, "early_stopping": True}
    best = beam_search(searched, src, 4, length_penalty=0.0, max_length=20).tokens[:, 0]
    assert until_end(best, end) == until_end(generated(theirs, src, max_new_tokens=20, **beam, **given), end)
    family.write(ours, tmp_path)
    back = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert type(back) is type(theirs) and back.dtype == torch.float64
    state = exact_positions(back).state_dict()
    assert all(torch.equal(state[name], value) for name, value in theirs.state_dict().items())
    assert close(their_logits(back, src, tgt), expected)
    kept = back.config.to_dict()
    for name, value in config.to_dict().items():
        if name not in ("architectures", "dtype", "transformers_version", "_name_or_path", "init_std"):
            if "layerdrop" not in name:
                assert kept[name] == ("silu" if value == "swish" else value), name
    assert family.read(tmp_path).config == ours.config


@needs_transformers
def test_gradients_are_equal_where_padding_starts_a_sentence():
    """The loss of ours skips padding among targets, and so does theirs; both start with padding."""
    theirs = MARIAN.theirs()
    ours = MARIAN.carried(theirs)
    src, tgt = sentences(theirs)
    tgt[1, 5:] = pad = V - 1
    loss, tokens = teacher_forced_loss(ours, (src, tgt), smoothing=0.0)
    logits, targets = their_logits(theirs, src, tgt[:, :-1]), tgt[:, 1:]
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=pad, reduction="sum")
    assert tokens == (targets != pad).sum() and close(loss, expected)
    loss.backward()
    expected.backward()
    as_weights = copy.deepcopy(theirs)
    for parameter, source in zip(as_weights.parameters(), theirs.parameters()):
        if source.grad is not None:
            parameter.data = source.grad
    converted = dict(MARIAN.carried(as_weights).named_parameters())
    for name, parameter in ours.named_parameters():
        assert not parameter.requires_grad or close(parameter.grad, converted[name]), name


@needs_transformers
@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_there_and_back_changes_no_weight_and_draws_no_random_number(family, dtype, tmp_path):
    ours = family.ours().to(dtype)
    state, before = torch.get_rng_state(), copy.deepcopy(ours.state_dict())
    family.write(ours, tmp_path)
    again = family.read(tmp_path)
    assert torch.equal(torch.get_rng_state(), state) and again.config == ours.config
    for model in (ours, again):
        assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    assert {p.dtype for p in again.parameters()} == {dtype}


@needs_transformers
def test_a_search_of_theirs_may_use_all_positions_of_ours(tmp_path):
    import transformers

    ours = MARIAN.ours(pad_id=1, bos_id=1, eos_id=3)
    ours.output.bias = nn.Parameter(torch.zeros(V).index_fill(0, torch.tensor(3), -1e4))  # nothing ends
    to_marian(ours, tmp_path)
    theirs = exact_positions(transformers.MarianMTModel.from_pretrained(tmp_path))
    src = torch.randint(4, V, (2, 5))
    assert torch.equal(generated(theirs, src, num_beams=1), greedy_search(ours, src, LENGTH))


# ---------- Refused by name


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match="pip install transformers, or the extra 'interchange'"):
        to_marian(MARIAN.ours(), "folder")


@needs_transformers
@BOTH
def test_other_models_are_refused(family):
    other = M2M100 if family is MARIAN else MARIAN
    with pytest.raises(CheckpointError, match="model_type must be one of"):
        family.carried(other.theirs())


@needs_transformers
@pytest.mark.parametrize("family, changes, said", [
    (MARIAN, {"norm_first": True}, "norm_first must be one of .False., not True"),
    (MARIAN, {"bias": False}, "bias must be one of .True., not False"),
    (MARIAN, {"tie_embeddings": False}, "tie_embeddings must be one of .True., not False"),
    (M2M100, {"final_norm": False}, "final_norm must be one of .True., not False"),
], ids=lambda part: part.name if isinstance(part, Family) else str(part))  # fmt: skip
def test_a_form_that_theirs_cannot_have_is_refused(family, changes, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        family.write(family.ours(**changes), tmp_path / "model")
    biased = M2M100.ours()
    biased.output.bias = nn.Parameter(torch.zeros(V))
    with pytest.raises(ValueError, match="output.bias must be None"):
        to_m2m100(biased, tmp_path / "model")
    assert not (tmp_path / "model").exists()
