"""Models carried between ours and Hugging Face's MarianMTModel: equal logits, gradients and searches.

What needs no transformers is tested everywhere; the rest is skipped by name where it is missing.
"""

from __future__ import annotations

import copy
import shlex
import subprocess
import sys
from dataclasses import asdict, replace
from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F
from helpers import close, scrambled
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from transformer import (
    Transformer,
    TransformerConfig,
    Translator,
    accelerate,
    beam_search,
    greedy_search,
    load_corpus,
    padding_mask,
    r_drop_loss,
    sinusoidal_encoding,
    teacher_forced_loss,
)
from transformer.commands.recipes import RECIPES
from transformer.exchange.marian import (
    _MARIAN,
    Forbidding,
    _reordered,
    _sines_first,
    config_to,
    from_marian,
    from_pegasus,
    marian_names,
    to_marian,
    to_pegasus,
)
from transformer.files import CheckpointError
from transformer.language.vocabulary import EOS_ID

pytestmark = pytest.mark.usefixtures("float64")
needs_transformers = pytest.mark.skipif(
    find_spec("transformers") is None, reason="transformers is not installed: transformer-book[interchange]"
)

V, D, H, D_FF, LENGTH = 31, 12, 4, 20, 48
PAD, EOS = V - 1, 0  # as in OPUS-MT, where padding is the start token as well
SIZES = {"d_model": D, "n_heads": H, "n_layers": 2, "d_ff": D_FF, "max_length": LENGTH}
SPECIAL = {"pad_id": PAD, "bos_id": PAD, "eos_id": EOS}


# -------------------------------------------------------------------------------------------------
# The order of the features
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d_model", range(1, 10))
def test_all_sines_and_then_all_cosines_become_ours(d_model):
    table = sinusoidal_encoding(7, d_model)
    halves = torch.cat([table[:, 0::2], table[:, 1::2]], dim=1)
    assert torch.equal(halves[:, _sines_first(d_model)], table)


@settings(max_examples=10)
@given(order=st.permutations(range(D)), norm_first=st.booleans(), seed=st.integers(0, 2**31))
def test_a_reordered_model_is_the_same_function_of_reordered_vectors(order, norm_first, seed):
    torch.manual_seed(seed)
    config = TransformerConfig(V, V, norm_first=norm_first, tie_embeddings=False, **SIZES)
    model, order = scrambled(Transformer(config)).eval(), torch.tensor(order)
    moved = Transformer(config).eval()
    moved.load_state_dict(_reordered(model.state_dict(), order))
    x, z = torch.randn(2, 7, D), torch.randn(2, 5, D)
    hidden = model.decoder(z, model.encoder(x))
    reordered = moved.decoder(z[..., order], moved.encoder(x[..., order]))
    assert close(reordered, hidden[..., order])
    assert close(moved.project(reordered), model.project(hidden))
    ids = torch.randint(V, (2, 7))
    assert close(moved.src_embedding(ids), model.src_embedding(ids)[..., order])


@pytest.mark.parametrize("tied", [True, False], ids=["one table", "three tables"])
def test_each_of_our_parameters_has_names_of_marians(tied):
    ours = Transformer(TransformerConfig(V, V, tie_embeddings=tied, **SIZES)).state_dict()
    theirs = ["model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"]
    for stack, attentions in (("encoder", ["self_attn"]), ("decoder", ["self_attn", "encoder_attn"])):
        for n in range(2):
            parts = [f"{name}.{letter}_proj" for name in attentions for letter in ("q", "k", "v", "out")]
            parts += [f"{name}_layer_norm" for name in attentions] + ["fc1", "fc2", "final_layer_norm"]
            theirs += [f"model.{stack}.layers.{n}.{p}.{kind}" for p in parts for kind in ("weight", "bias")]
    other = ["model.encoder.embed_positions.weight", "final_logits_bias"]
    names = marian_names([*theirs, *other])
    assert list(names) == theirs and sorted(names.values()) == sorted(ours)


@pytest.mark.parametrize("convert", [from_marian, lambda model: to_marian(model, "folder")])
def test_a_missing_library_is_named_with_its_extra(convert, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r'pip install "transformer-book\[interchange\]"'):
        convert(Transformer(TransformerConfig(V, V, **SIZES)))


# -------------------------------------------------------------------------------------------------
# Models that transformers makes
# -------------------------------------------------------------------------------------------------

BOTH = ("encoder", "decoder")
UNTIED = {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}
FORMS = {
    "as OPUS-MT": {},
    "relu": {"activation_function": "relu", "d_model": 16},
    "gelu": {"activation_function": "gelu", "encoder_layers": 1, "decoder_layers": 1},
    "deep and shallow": {"encoder_layers": 3, "decoder_layers": 1},
    "an odd width": {"d_model": 15, "encoder_attention_heads": 5, "decoder_attention_heads": 5},
    "three tables": {**UNTIED, "decoder_vocab_size": V + 4},
    "a start token of its own": {"decoder_start_token_id": 2, "pad_token_id": 1},
}
EVERY_FORM = pytest.mark.parametrize("form", FORMS)
EXACT = pytest.mark.parametrize("form", ["as OPUS-MT", "three tables"])


def halves(length: int, d_model: int) -> Tensor:
    table = sinusoidal_encoding(length, d_model)
    return torch.cat([table[:, 0::2], table[:, 1::2]], dim=1)


def exact_positions(theirs):
    """With sinusoids in float64: transformers rounds its table to float32 in a model of any dtype."""
    for stack in (theirs.model.encoder, theirs.model.decoder):
        stack.embed_positions.weight.data = halves(*stack.embed_positions.weight.shape)
    return theirs


def marian(form: str = "as OPUS-MT", bias: bool = True, seed: int = 0, **changes):
    """A MarianMTModel with random weights, in float64 and in evaluation mode."""
    import transformers

    settings = {
        "vocab_size": V,
        "d_model": D,
        **{f"{side}_layers": 2 for side in BOTH},
        **{f"{side}_attention_heads": H for side in BOTH},
        **{f"{side}_ffn_dim": D_FF for side in BOTH},
        "max_position_embeddings": LENGTH,
        "activation_function": "swish",
        "scale_embedding": True,
        "pad_token_id": PAD,
        "decoder_start_token_id": PAD,
        "eos_token_id": EOS,
        "forced_eos_token_id": None,
    }
    torch.manual_seed(seed)
    settings |= FORMS[form] | changes
    theirs = transformers.MarianMTModel(transformers.MarianConfig(**settings)).double().eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "embed_positions" not in name:
                parameter.normal_(1.0 if "norm.weight" in name else 0.0, 0.4)
        if bias:
            theirs.final_logits_bias.normal_()
            theirs.final_logits_bias[:, EOS] += 2.0  # so that sentences end
    return exact_positions(theirs)


def sentences(theirs, batch=4):
    """Source and target ids, some of them padded."""
    config = theirs.config
    low = 3
    src = torch.randint(low, V - 1, (batch, 9))
    src[1, 6:] = src[2, 3:] = config.pad_token_id
    tgt = torch.randint(low, V - 1, (batch, 7))
    tgt[:, 0] = config.decoder_start_token_id
    return src, tgt


def their_logits(theirs, src, tgt):
    mask = (src != theirs.config.pad_token_id).long()
    return theirs(input_ids=src, attention_mask=mask, decoder_input_ids=tgt).logits


def generated(theirs, src, max_length, **options):
    """What `generate` finds, which computes its scores in float32 and expects this to be the default."""
    mask = (src != theirs.config.pad_token_id).long()
    options = {"do_sample": False, "num_beams": 1, "max_new_tokens": max_length, **options}
    torch.set_default_dtype(torch.float32)
    try:
        return theirs.generate(input_ids=src, attention_mask=mask, return_dict_in_generate=True, **options)
    finally:
        torch.set_default_dtype(torch.float64)


def that_ends(form: str, share: float):
    """A model and sources, for which greedy search ends that share of the sentences or a little more."""
    theirs = marian(form)
    src, _ = sentences(theirs, batch=12)
    while (greedy_search(from_marian(theirs), src, 30) == EOS).any(1).double().mean() < share:
        theirs.final_logits_bias[:, EOS] += 0.3
    return theirs, src


def without_padding(rows: Tensor, config: TransformerConfig) -> list[list[int]]:
    """The tokens of each row up to its end, which both libraries fill up with padding."""
    ended = [row.index(config.eos_id) if config.eos_id in row else len(row) for row in rows.tolist()]
    return [row[: end + 1] for row, end in zip(rows.tolist(), ended)]


@needs_transformers
@EVERY_FORM
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_logits_are_equal_and_so_are_those_of_the_folder(form, bias, tmp_path):
    import transformers

    theirs = marian(form, bias)
    ours = from_marian(theirs)
    assert type(ours) is Transformer and (ours.output.bias is not None) == bias
    src, tgt = sentences(theirs)
    expected = their_logits(theirs, src, tgt)
    assert close(ours(src, tgt), expected) and expected.std() > 0.5
    to_marian(ours, tmp_path / "model")
    loaded = exact_positions(transformers.MarianMTModel.from_pretrained(tmp_path / "model"))
    assert close(their_logits(loaded, src, tgt), expected)


@needs_transformers
def test_in_float32_the_tables_of_both_are_the_same():
    theirs = marian()
    src, tgt = sentences(theirs)
    theirs.float()
    for stack in (theirs.model.encoder, theirs.model.decoder):
        stack._init_weights(stack.embed_positions)
    ours = from_marian(theirs)
    assert ours.positions.table.dtype == torch.float32
    assert close(ours(src, tgt), their_logits(theirs, src, tgt), atol=1e-4)


@needs_transformers
@EXACT
def test_gradients_are_equal_where_padding_starts_a_sentence(form):
    """The loss of ours skips padding among targets, and so does theirs; both start with padding."""
    theirs = marian(form)
    ours = from_marian(theirs)
    src, tgt = sentences(theirs)
    tgt[1, 5:] = PAD
    loss, tokens = teacher_forced_loss(ours, (src, tgt), smoothing=0.0)
    logits, targets = their_logits(theirs, src, tgt[:, :-1]), tgt[:, 1:]
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD, reduction="sum")
    assert tokens == (targets != PAD).sum() and close(loss, expected)
    loss.backward()
    expected.backward()
    as_weights = copy.deepcopy(theirs)
    for parameter, source in zip(as_weights.parameters(), theirs.parameters()):
        if source.grad is not None:
            parameter.data = source.grad
    converted = dict(from_marian(as_weights).named_parameters())
    for name, parameter in ours.named_parameters():
        if parameter.requires_grad:
            assert close(parameter.grad, converted[name]), name


@needs_transformers
@EVERY_FORM
def test_greedy_search_is_equal(form):
    theirs, src = that_ends(form, 0.3)
    ours = from_marian(theirs)
    expected = generated(theirs, src, 30).sequences[:, 1:]
    found = greedy_search(ours, src, 30)
    assert without_padding(found, ours.config) == without_padding(expected, ours.config)
    assert len({tuple(row) for row in found.tolist()}) > 1


@needs_transformers
@EVERY_FORM
def test_beam_search_is_equal_where_both_rank_by_log_probability(form):
    """Without a length penalty, and where theirs too stops at the third finished hypothesis."""
    theirs, src = that_ends(form, 0.5)
    ours = from_marian(theirs)
    options = {"num_beams": 3, "num_return_sequences": 3, "length_penalty": 0.0, "early_stopping": True}
    expected = generated(theirs, src, 40, output_scores=True, **options)
    found = beam_search(ours, src, 3, length_penalty=0.0, max_length=40)
    assert close(found.scores.flatten(), expected.sequences_scores.double(), atol=1e-3)  # theirs: float32
    tokens = found.tokens.flatten(0, 1)
    assert without_padding(tokens, ours.config) == without_padding(expected.sequences[:, 1:], ours.config)
    assert (tokens == EOS).any(1).double().mean() > 0.3  # many have ended


@needs_transformers
def test_a_token_that_must_not_be_chosen_is_not():
    theirs = marian()
    with torch.no_grad():
        theirs.final_logits_bias[:, PAD] = 30.0
    src, tgt = sentences(theirs, batch=12)
    assert (greedy_search(from_marian(theirs), src, 10) == PAD).all()
    theirs.generation_config.bad_words_ids = [[PAD], [7]]
    ours = from_marian(theirs)
    assert close(ours(src, tgt), their_logits(theirs, src, tgt))  # the model is what it was
    expected = generated(theirs, src, 30).sequences[:, 1:]
    for searched in (Forbidding(ours, [PAD, 7]), Forbidding(accelerate(ours), [PAD, 7])):
        found = greedy_search(searched, src, 30)
        assert without_padding(found, ours.config) == without_padding(expected, ours.config)
        hypotheses = beam_search(searched, src, 4, max_length=20).tokens
        assert not (hypotheses == 7).any() and (hypotheses == PAD).any() == (hypotheses == EOS).any()


# -------------------------------------------------------------------------------------------------
# There and back
# -------------------------------------------------------------------------------------------------


@needs_transformers
@EVERY_FORM
def test_there_and_back_gives_the_same_model(form, tmp_path):
    import transformers

    theirs = marian(form)
    to_marian(from_marian(theirs), tmp_path)
    back = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert type(back) is type(theirs) and back.dtype == torch.float64
    state = exact_positions(back).state_dict()
    assert state.keys() == theirs.state_dict().keys()
    assert all(torch.equal(state[name], value) for name, value in theirs.state_dict().items())
    kept = back.config.to_dict()
    for name, value in theirs.config.to_dict().items():
        if name not in ("architectures", "dtype", "transformers_version", "_name_or_path", "init_std"):
            assert kept[name] == ("silu" if value == "swish" else value), name


@needs_transformers
def test_ours_there_and_back_is_the_same_model(tmp_path):
    rates = {"dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.1}
    for tied in (True, False):
        config = TransformerConfig(V, V, tie_embeddings=tied, activation="silu", **rates, **SIZES)
        ours = scrambled(Transformer(config))
        to_marian(ours, tmp_path)
        again = from_marian(str(tmp_path))
        assert again.config == config and not again.training
        assert (again.src_embedding.weight is again.output.weight) == tied
        state = ours.state_dict()
        assert all(torch.equal(value, state[name]) for name, value in again.state_dict().items())


@needs_transformers
def test_a_search_of_theirs_may_use_all_positions_of_ours(tmp_path):
    import transformers

    ours = scrambled(Transformer(TransformerConfig(V, V, eos_id=3, **SIZES))).eval()
    with torch.no_grad():
        ours.output.bias = nn.Parameter(torch.zeros(V))
        ours.output.bias[3] = -1e4  # nothing ends
    to_marian(ours, tmp_path)
    theirs = exact_positions(transformers.MarianMTModel.from_pretrained(tmp_path))
    src = torch.randint(4, V, (2, 5))
    found = theirs.generate(input_ids=src, do_sample=False, num_beams=1)
    assert torch.equal(found[:, 1:], greedy_search(ours, src, LENGTH))


@needs_transformers
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_dtype_mode_and_random_numbers_are_kept(dtype, tmp_path):
    theirs = marian().to(dtype).train()
    state = torch.get_rng_state()
    ours = from_marian(theirs)
    to_marian(ours, tmp_path)
    assert torch.equal(torch.get_rng_state(), state)
    assert ours.training and {p.dtype for p in ours.parameters()} == {dtype}
    assert from_marian(tmp_path).output.weight.dtype == dtype


@needs_transformers
def test_weights_are_copied_and_never_shared(tmp_path):
    theirs = marian()
    before = copy.deepcopy(theirs.state_dict())
    ours = from_marian(theirs)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(1.0)
    kept = copy.deepcopy(ours.state_dict())
    to_marian(ours, tmp_path)
    assert all(torch.equal(theirs.state_dict()[name], value) for name, value in before.items())
    assert all(torch.equal(ours.state_dict()[name], value) for name, value in kept.items())


@needs_transformers
@pytest.mark.parametrize("bias", [True, False])
def test_with_a_bias_and_without_it_can_be_accelerated(bias):
    theirs = marian(bias=bias)
    src, tgt = sentences(theirs)
    ours = from_marian(theirs)
    fast = accelerate(ours)
    assert (fast.output.bias is not None) == bias and close(fast(src, tgt), ours(src, tgt))
    assert torch.equal(greedy_search(fast, src, 9), greedy_search(ours, src, 9))
    found, expected = (beam_search(model, src, max_length=9) for model in (fast, ours))
    assert torch.equal(found.tokens, expected.tokens) and close(found.scores, expected.scores)


def test_tokens_of_a_model_can_be_forbidden_and_nothing_else():
    model = Transformer(TransformerConfig(V, V, **SIZES, **SPECIAL)).eval()
    for banned, error, said in (
        (7, TypeError, "banned must be"),
        ([True], TypeError, r"banned\[0\] must be"),
        ([4, -1], ValueError, r"banned\[1\] must be at least 0, but is -1"),
        ([V], ValueError, rf"banned must lie in \[0, {V}\), but holds {V}"),
    ):
        with pytest.raises(error, match=said):
            Forbidding(model, banned)
    with pytest.raises(ValueError, match="NaN"):
        beam_search(Forbidding(model, list(range(V))), torch.tensor([[5, 7]]))


def test_every_bias_of_the_output_counts_in_searches_and_losses():
    """Not an option of ours, but what a linear layer can do."""
    torch.manual_seed(0)
    model = scrambled(Transformer(TransformerConfig(V, V, **SIZES, **SPECIAL))).eval()
    src, tgt = torch.randint(3, PAD, (3, 6)), torch.randint(3, PAD, (3, 5))
    plain = model(src, tgt)
    model.output.bias = nn.Parameter(torch.randn(V))
    assert close(model(src, tgt), plain + model.output.bias)
    start = torch.full((3, 1), model.config.bos_id)
    fast, batch = accelerate(model), (src, torch.cat((start, torch.randint(3, PAD, (3, 3))), 1))
    for loss in (teacher_forced_loss, r_drop_loss):
        assert all(map(close, loss(fast, batch), loss(model, batch)))
    with torch.no_grad():
        model.output.bias.fill_(-torch.inf)
        model.output.bias[9] = 0.0
    assert (greedy_search(model, src, 6) == 9).all()
    assert (beam_search(model, src, 1, max_length=6).tokens == 9).all()
    nines = torch.cat((start, torch.full((3, 3), 9)), 1)
    assert teacher_forced_loss(model, (src, nines), smoothing=0.0)[0] == 0.0
    assert padding_mask(src, PAD).all()


# -------------------------------------------------------------------------------------------------
# Pegasus, the same with norms first
# -------------------------------------------------------------------------------------------------


def pegasus(form="as OPUS-MT", **changes):
    """A Pegasus model with random weights, as `marian` makes one."""
    import transformers

    settings = marian(form).config.to_dict()
    for name in ("model_type", "architectures", "transformers_version", "decoder_vocab_size"):
        settings.pop(name, None)
    torch.manual_seed(1)
    config = transformers.PegasusConfig(**settings | changes)
    theirs = transformers.PegasusForConditionalGeneration(config).double().eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "embed_positions" not in name:
                parameter.normal_(1.0 if "norm.weight" in name else 0.0, 0.4)
        theirs.final_logits_bias.normal_()
        theirs.final_logits_bias[:, EOS] += 2.0
    return exact_positions(theirs)


@needs_transformers
@pytest.mark.parametrize("form", [form for form in FORMS if form != "three tables"])
def test_pegasus_there_and_back_with_equal_logits_and_searches(form, tmp_path):
    import transformers

    theirs = pegasus(form)
    ours = from_pegasus(theirs)
    assert ours.config.norm_first and ours.config.has_final_norm
    src, tgt = sentences(theirs, batch=12)
    expected = their_logits(theirs, src, tgt)
    assert close(ours(src, tgt), expected) and expected.std() > 0.5
    assert close(accelerate(ours)(src, tgt), expected)
    found, wanted = greedy_search(ours, src, 30), generated(theirs, src, 30).sequences[:, 1:]
    assert without_padding(found, ours.config) == without_padding(wanted, ours.config)
    to_pegasus(ours, tmp_path)
    back = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert type(back) is type(theirs)
    state = exact_positions(back).state_dict()
    assert all(torch.equal(state[name], value) for name, value in theirs.state_dict().items())
    assert close(from_pegasus(str(tmp_path))(src, tgt), expected)


@needs_transformers
def test_transformers_alone_translates_with_the_packaged_translator(tmp_path):
    import transformers

    ours = Translator.load("phrases")
    to_pegasus(ours, tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    sentences = [ours.vocabulary.prepare(source) for source, _ in load_corpus("phrases", "test")[:20]]
    read = tokenizer(sentences, return_tensors="pt", padding=True)
    found = [ids[kept == 1].tolist() for ids, kept in zip(read.input_ids, read.attention_mask)]
    assert found == [[*ids, EOS_ID] for ids in ours.vocabulary.encode_batch(sentences)]
    kept = {"input_ids": read.input_ids, "attention_mask": read.attention_mask}
    torch.set_default_dtype(torch.float32)
    written = theirs.generate(**kept, num_beams=1, do_sample=False)
    torch.set_default_dtype(torch.float64)
    said = tokenizer.batch_decode(written, skip_special_tokens=True)
    assert said == ours.translate_tokenized(sentences, beam_size=1)


@needs_transformers
def test_each_order_of_norms_has_its_family(tmp_path):
    ours = from_pegasus(pegasus())
    to_pegasus(ours, tmp_path)
    with pytest.raises(ValueError, match=r"norm_first must be one of \[False\]"):
        to_marian(ours, tmp_path / "marian")
    with pytest.raises(ValueError, match="must not hold another model"):
        to_marian(from_marian(marian()), tmp_path)
    with pytest.raises(CheckpointError, match="model_type must be one of"):
        from_marian(tmp_path)


@needs_transformers
@pytest.mark.parametrize("changes, said", [
    ({"norm_first": False}, r"norm_first must be one of \[True\]"),
    ({"norm_first": True, "final_norm": False}, r"final_norm must be one of \[True\]"),
    ({"norm_first": True, "tie_embeddings": False}, r"tie_embeddings must be one of \[True\]"),
    ({"norm_first": True, "bias": False}, r"bias must be one of \[True\]"),
], ids=str)  # fmt: skip
def test_to_pegasus_refuses(changes, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        to_pegasus(Transformer(TransformerConfig(V, V, **SIZES, **changes)), tmp_path)


# -------------------------------------------------------------------------------------------------
# Refused by name
# -------------------------------------------------------------------------------------------------

FROM_CONFIG = {
    "stacks of different heads": (
        {"decoder_attention_heads": 3},
        "encoder_attention_heads and decoder_attention_heads",
    ),
    "stacks of different width": ({"encoder_ffn_dim": 8}, "encoder_ffn_dim and decoder_ffn_dim .* 20 and 8"),
    "unscaled embeddings": ({"scale_embedding": False}, "scale_embedding must be one of .True., not False"),
    "dropped layers": ({"decoder_layerdrop": 0.1}, "decoder_layerdrop must be .* not 0.1"),
    "another activation": ({"activation_function": "gelu_new"}, "activation_function .* not 'gelu_new'"),
    "two tables": (
        {"share_encoder_decoder_embeddings": False},
        "share_encoder_decoder_embeddings and tie_word_embeddings .* False and True",
    ),
    "padding that ends": ({"eos_token_id": PAD}, "pad_id and eos_id must differ"),
}


@needs_transformers
@pytest.mark.parametrize("changes, said", FROM_CONFIG.values(), ids=FROM_CONFIG)
def test_from_marian_refuses_a_configuration(changes, said):
    with pytest.raises(ValueError, match=said):
        from_marian(marian(**changes))


def learned_positions(theirs):
    theirs.model.decoder.embed_positions.weight.data[3, 1] += 0.01


def interleaved(theirs):
    theirs.model.encoder.embed_positions.weight.data = sinusoidal_encoding(LENGTH, D)


def another_norm(theirs):
    theirs.model.encoder.layers[1].final_layer_norm = nn.RMSNorm(D)


def another_epsilon(theirs):
    theirs.model.decoder.layers[0].encoder_attn_layer_norm.eps = 1e-6


def another_rate(theirs):
    theirs.model.decoder.layers[1].dropout = 0.5


def a_table_of_its_own(theirs):
    theirs.lm_head.weight = nn.Parameter(theirs.lm_head.weight.clone())


def one_layer_twice(theirs):
    theirs.model.encoder.layers[1] = theirs.model.encoder.layers[0]


def another_size(theirs):
    theirs.model.encoder.layers[0].fc1 = nn.Linear(D, D_FF + 1)


FROM_PARTS = {
    learned_positions: (ValueError, "embed_positions must hold sinusoids"),
    interleaved: (ValueError, "embed_positions must hold sinusoids"),
    another_norm: (TypeError, "layers.1.final_layer_norm must be of type .*LayerNorm, not .*RMSNorm"),
    another_epsilon: (ValueError, "eps of .*encoder_attn_layer_norm must be 1e-05 as configured, not 1e-06"),
    another_rate: (ValueError, "dropout of model.decoder.layers.1 must be 0.1 as configured, not 0.5"),
    a_table_of_its_own: (ValueError, "must share the parameters that its configuration shares"),
    one_layer_twice: (ValueError, "must share the parameters that its configuration shares"),
    another_size: (ValueError, r"layers.0.fc1.weight must have shape \[20, 12\], not \[21, 12\]"),
}


@needs_transformers
@pytest.mark.parametrize("change", FROM_PARTS, ids=lambda change: change.__name__)
def test_from_marian_refuses_a_model_that_was_changed(change):
    theirs = marian()
    change(theirs)
    error, said = FROM_PARTS[change]
    with pytest.raises(error, match=said):
        from_marian(theirs)


@needs_transformers
def test_from_marian_refuses_other_models_and_empty_folders(tmp_path):
    import transformers

    class Subclass(transformers.MarianMTModel):
        """Of another type, whatever it computes."""

    theirs = marian()
    theirs.__class__ = Subclass
    for other in (theirs, theirs.model, nn.Linear(2, 2), None):
        with pytest.raises(TypeError, match="model must be of type .*MarianMTModel, not"):
            from_marian(other)
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises((OSError, ValueError), match=folder.name):
            from_marian(folder)


@needs_transformers
@pytest.mark.slow
def test_weights_in_another_format_are_converted_by_the_command_that_is_named(tmp_path):
    theirs = marian()
    theirs.save_pretrained(tmp_path)
    src, tgt = sentences(theirs)
    torch.save(theirs.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="pytorch_model.bin, convert them once: python -c") as refusal:
        from_marian(tmp_path)
    command = shlex.split(str(refusal.value).partition("convert them once: ")[2])
    subprocess.run([sys.executable, *command[1:]], check=True, capture_output=True)
    assert close(from_marian(tmp_path)(src, tgt), their_logits(theirs, src, tgt))


def test_the_recipe_that_is_post_norm_is_of_marians_form():
    config = TransformerConfig(V, V, **asdict(RECIPES["phrases-post"].model))
    settings = config_to(config, _MARIAN)
    assert (settings["encoder_layers"], settings["decoder_layers"]) == config.depths == (2, 2)
    with pytest.raises(ValueError, match="norm_first must be one of .False., not True"):
        config_to(replace(config, norm_first=True), _MARIAN)


TO_CONFIG = {
    "pre-norm": ({"norm_first": True}, ValueError, "norm_first must be one of .False., not True"),
    "norms on top": ({"final_norm": True}, ValueError, "final_norm must be one of .False., not True"),
    "no biases": ({"bias": False}, ValueError, "bias must be one of .True., not False"),
}


@needs_transformers
@pytest.mark.parametrize("changes, error, said", TO_CONFIG.values(), ids=TO_CONFIG)
def test_to_marian_refuses_a_configuration(changes, error, said, tmp_path):
    with pytest.raises(error, match=said):
        to_marian(Transformer(TransformerConfig(V, V, **SIZES, **changes)), tmp_path / "model")
    assert not (tmp_path / "model").exists()


@needs_transformers
def test_to_marian_refuses_a_model_that_was_changed(tmp_path):
    def changed(change):
        model = Transformer(TransformerConfig(V, V, **SIZES))
        change(model)
        return model

    for change, error, said in (
        (
            lambda m: setattr(m.encoder.layers[0].self_residual.norm, "eps", 1e-6),
            ValueError,
            "eps of encoder",
        ),
        (
            lambda m: setattr(m.decoder.layers[1].cross_attention, "dropout", 0.5),
            ValueError,
            "dropout of deco",
        ),
        (lambda m: setattr(m.decoder, "norm", nn.LayerNorm(D)), TypeError, "decoder.norm must be of type"),
        (lambda m: setattr(m.output, "weight", nn.Parameter(m.output.weight + 1)), ValueError, "must share"),
    ):
        with pytest.raises(error, match=said):
            to_marian(changed(change), tmp_path)
    for other in (accelerate(changed(lambda m: None)), changed(lambda m: None).encoder, None):
        with pytest.raises(TypeError, match="model must be of type transformer.model.Transformer, not"):
            to_marian(other, tmp_path)
    assert not list(tmp_path.iterdir())
