"""What the package promises to whoever imports it, one clause after the other.

Where a clause has tests of its own in another file, a comment names them; here stands what they leave open:
signatures, the whole model of any configuration against the formulas, searches at their edges.
"""

from __future__ import annotations

import copy
import inspect
import random

import pytest
import torch
from helpers import DROPPING, NORM_ORDERS, SIZES, assert_close, everything, lively_model, make_model
from torch import Tensor

import transformer
from transformer import (
    TokenBatches,
    Transformer,
    TransformerConfig,
    beam_search,
    evaluate_loss,
    greedy_search,
    label_smoothed_cross_entropy,
    padding_mask,
    reversal_batch,
    sinusoidal_encoding,
    teacher_forced_loss,
    token_accuracy,
)
from transformer.language.vocabulary import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from transformer.toy import reversal_batches

# B 2, S 7, T 5: no two sizes are equal.
SRC = torch.tensor([[4, 9, 6, 1, 5, 7, 3], [8, 5, 10, 3, 0, 0, 0]])
TGT = torch.tensor([[2, 10, 4, 1, 6], [2, 7, 9, 3, 0]])


def ids(*shape: int, low: int = 1, high: int = 11) -> Tensor:
    return torch.randint(low, high, shape)


# ---------- Letters: the paper's, for names and for the shapes in docstrings

# As the contract writes them; what stands behind these parameters may be added to.
SIGNATURES = {
    "sinusoidal_encoding": "length, d_model",
    "TokenEmbedding": "vocab_size, d_model, pad_id=None",
    "PositionalEncoding": "d_model, dropout, max_length",
    "PositionalEncoding.forward": "x, offset=0",
    "padding_mask": "ids, pad_id=0",
    "causal_mask": "length",
    "scaled_dot_product_attention": "query, key, value, mask=None, dropout=0.0",
    "MultiHeadAttention": "d_model, n_heads, dropout=0.0, bias=True, kdim=None, vdim=None",
    "MultiHeadAttention.forward": "query, key, value, mask=None, need_weights=False, cache=None",
    "LayerNorm": "d_model, eps=1e-5",
    "FeedForward": "d_model, d_ff, dropout=0.0, activation='relu'",
    "KeyValueCache.append": "attention, project",
    "KeyValueCache.hold": "attention, project",
    "KeyValueCache.reorder": "rows",
    "EncoderLayer": "config",
    "EncoderLayer.forward": "x, mask",
    "DecoderLayer": "config",
    "DecoderLayer.forward": "x, memory, self_mask, memory_mask, cache=None",
    "LayerConfig": "*, d_model=512, n_heads=8, d_ff=2048, dropout=0.1, attention_dropout=0.0, "
    "activation_dropout=0.0, activation='relu', bias=True, norm_first=False",
    "TransformerConfig": "src_vocab_size, tgt_vocab_size, *, d_model=512, n_heads=8, n_layers=6, d_ff=2048, "
    "dropout=0.1, attention_dropout=0.0, activation_dropout=0.0, activation='relu', bias=True, "
    "norm_first=False, final_norm=None, tie_embeddings=True, pad_id=0, bos_id=2, eos_id=3, max_length=512",
    "Encoder": "config",
    "Decoder": "config",
    "Transformer": "config",
    "Transformer.forward": "src, tgt",
    "Transformer.encode": "src",
    "Transformer.decode": "tgt, memory, src_mask, cache=None",
    "Transformer.project": "hidden",
    "label_smoothed_cross_entropy": "logits, targets, smoothing=0.1, pad_id=0",
    "token_accuracy": "logits, targets, pad_id=0",
    "noam_rate": "step, d_model, warmup_steps, factor=1.0",
    "Trainer": "model, loss",
    "greedy_search": "model, src, max_length",
    "beam_search": "model, src, beam_size=4, length_penalty=0.6, max_length=...",
    "teacher_forced_loss": "model, batch, smoothing=0.1",
    "r_drop_loss": "model, batch, smoothing=0.1, alpha=5.0",
    "DecoderState": "model, src, beam_size=1",
    "DecoderState.step": "last",
    "DecoderState.keep": "rows",
    "decoder_state": "model, src, beam_size=1",
    "accelerate": "model",
    "check_model": "model",
    "check_training": "model, batch, loss=None, search=None, dev=None",
    "fit": "model, loss, batches",
    "reversal_batch": "batch_size, length, n_digits=10, generator=None",
    "Translator.load": "path",
    "Translator.translate": "sentences",
    "from_torch": "module",
    "to_torch": "module",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_public_names_have_the_signatures_of_the_contract(name):
    owner, _, method = name.partition(".")
    thing = getattr(everything, owner)
    found = inspect.signature(getattr(thing, method) if method else thing).parameters
    found = {name: parameter for name, parameter in found.items() if name != "self"}
    wanted = inspect.signature(eval(f"lambda {SIGNATURES[name]}: 0")).parameters
    placed = [name for name, p in wanted.items() if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert list(found)[: len(placed)] == placed and wanted.keys() <= found.keys()
    for name, theirs in wanted.items():
        ours = found[name]
        assert ours.kind is theirs.kind
        if theirs.default is ...:
            assert ours.default is not inspect.Parameter.empty
        elif theirs.default is not inspect.Parameter.empty:
            assert ours.default == theirs.default and type(ours.default) is type(theirs.default)
    assert owner in transformer.__all__ or owner in {"KeyValueCache", "DecoderState", "decoder_state"}


def test_the_package_itself_exports_what_users_import_and_no_more():
    assert "Translator" in transformer.__all__
    assert len(transformer.__all__) <= 58


# ---------- Masks: boolean, True = may attend; nothing to attend to gives zeros in every dtype


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@NORM_ORDERS
def test_empty_sentences_among_others_leave_training_in_numbers(norm_first, dtype):
    """With all kinds of dropout, forwards and backwards, in every dtype; the others are not disturbed."""
    torch.manual_seed(0)
    config = TransformerConfig(11, 11, **SIZES, **DROPPING, norm_first=norm_first)
    model = Transformer(config).to(dtype)
    src = torch.cat([SRC, torch.zeros(1, 7, dtype=torch.long)])
    tgt = torch.cat([TGT, torch.tensor([[2, 0, 0, 0, 0]])])
    total, count = teacher_forced_loss(model, (src, tgt))
    (total / count).backward()
    assert total.isfinite() and count == 7
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert [name for name, gradient in gradients.items() if not gradient.isfinite().all()] == []
    assert sum(bool(gradient.any()) for gradient in gradients.values()) > len(gradients) / 2
    assert_close(model.eval()(src, tgt)[:2].double(), model(SRC, TGT).double(), 40 * torch.finfo(dtype).eps)


# ---------- Special ids


def test_special_ids_are_defined_once():
    assert (PAD_ID, UNK_ID, BOS_ID, EOS_ID) == (0, 1, 2, 3)
    config = TransformerConfig(9, 9)
    assert (config.pad_id, config.bos_id, config.eos_id) == (PAD_ID, BOS_ID, EOS_ID)
    for function in (padding_mask, label_smoothed_cross_entropy, token_accuracy, transformer.pad):
        assert inspect.signature(function).parameters["pad_id"].default == PAD_ID


# ---------- Randomness: a seed or a generator for every choice, and torch's own for dropout

# test_toy.py: test_stream_depends_on_seed_and_epoch_and_on_nothing_else; language/test_vocabulary.py:
# test_order_depends_on_seed_and_epoch_alone; test_training.py: test_two_runs_are_equal_but_for_the_seed;
# test_model.py: test_dropout_only_in_training_and_only_by_torchs_generator.

PAIRS = [([5] * n, [2, *[6] * n, 3]) for n in range(1, 30)]


@pytest.mark.parametrize(
    "draw",
    [
        lambda model: reversal_batch(3, 4, generator=torch.Generator().manual_seed(1)),
        lambda model: next(reversal_batches(0, 3, 4, seed=1)),
        lambda model: next(TokenBatches(PAIRS, max_tokens=40, seed=1)(0)),
        lambda model: sinusoidal_encoding(3, 4),
        lambda model: greedy_search(model, SRC, 4),
        lambda model: beam_search(model, SRC, max_length=4),
        lambda model: evaluate_loss(model, [(SRC, TGT)]),
        lambda model: model.eval()(SRC, TGT),
    ],
    ids=["digits", "stream", "batches", "positions", "greedy", "beam", "evaluation", "model"],
)
def test_what_has_its_own_seed_or_none_leaves_the_global_generators_alone(draw):
    model = make_model(**DROPPING)
    before, python = torch.get_rng_state(), random.getstate()
    draw(model)
    assert torch.equal(torch.get_rng_state(), before) and random.getstate() == python


# ---------- Dtype and device: nothing hard-coded, float64 everywhere, softmax in float32 under half precision

# test_attention.py: test_softmax_of_half_precision_is_computed_in_float32,
# test_module_runs_in_half_precision; test_loss.py: test_half_precision_is_summed_in_float32;
# test_decoding.py: test_scores_are_summed_in_float32_at_least.


@pytest.mark.parametrize("dtype, atol", [(torch.float32, 1e-4), (torch.bfloat16, 0.1), (torch.float16, 0.02)])
@NORM_ORDERS
def test_the_model_computes_the_same_in_every_precision_with_gradients(norm_first, dtype, atol):
    torch.manual_seed(0)
    exact = Transformer(TransformerConfig(11, 11, **SIZES, dropout=0.0, norm_first=norm_first)).double()
    rounded, results = copy.deepcopy(exact).to(dtype), []
    for model in (exact, rounded):
        total, count = teacher_forced_loss(model, (SRC, TGT))
        (total / count).backward()
        gradients = torch.cat([parameter.grad.double().flatten() for parameter in model.parameters()])
        results.append((model(SRC, TGT).double(), total.double(), gradients))
    assert rounded(SRC, TGT).dtype == dtype
    (logits, total, gradients), found = results
    assert_close(found[0], logits, 3 * atol)
    assert_close(found[1], total, 10 * atol)
    assert (found[2] - gradients).norm() < atol * gradients.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_gives_finite_losses_near_the_exact_one(dtype):
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(11, 11, **SIZES, dropout=0.0))
    exact, count = teacher_forced_loss(model, (SRC, TGT))
    with torch.autocast("cpu", dtype=dtype):
        assert model(SRC, TGT).dtype == dtype
        total, _ = teacher_forced_loss(model, (SRC, TGT))
    (total / count).backward()
    assert total.dtype == torch.float32 and abs(total - exact) / count < 0.05
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in model.parameters())


# ---------- Weights: their names, and what captures the model

# Ties, initialization and the number of parameters, torch.compile and torch.export: test_model.py.


def names_of(config: TransformerConfig) -> list[str]:
    """The names of a model's weights, which files that were saved depend on."""

    def affine(name: str) -> list[str]:
        return [f"{name}.weight", f"{name}.bias"] if config.bias else [f"{name}.weight"]

    names = ["src_embedding.weight", "tgt_embedding.weight", "output.weight"]
    for side in ("encoder", "decoder"):
        kinds = ["self", "cross"] if side == "decoder" else ["self"]
        for number in range(config.depths[side == "decoder"]):
            layer = f"{side}.layers.{number}"
            for kind in kinds:
                for part in "qkvo":
                    names += affine(f"{layer}.{kind}_attention.w_{part}")
            names += affine(f"{layer}.feed_forward.w_1") + affine(f"{layer}.feed_forward.w_2")
            for kind in [*kinds, "feed"]:
                names += affine(f"{layer}.{kind}_residual.norm")
        if config.has_final_norm:
            names += affine(f"{side}.norm")
    return names


@pytest.mark.parametrize(
    "changes", [{}, {"norm_first": True}, {"bias": False}, {"tie_embeddings": False}], ids=str
)
def test_names_of_weights_stay_and_loading_is_strict(changes):
    model = make_model(**changes)
    state = model.state_dict()
    assert sorted(state) == sorted(names_of(model.config))
    other = make_model(seed=1, **changes)
    assert not torch.equal(other(SRC, TGT), model(SRC, TGT))
    other.load_state_dict(state)
    assert torch.equal(other(SRC, TGT), model(SRC, TGT))
    for spoiled in ({**state, "more": torch.zeros(1)}, {name: state[name] for name in list(state)[:-1]}):
        with pytest.raises(RuntimeError):
            other.load_state_dict(spoiled)


# ---------- The loss and the searches, at their edges

# test_loss.py: test_equals_torch_for_any_shape_with_gradients, test_nothing_to_count_is_zero;
# test_decoding.py: test_length_norm_is_the_formula_of_wu_et_al, test_a_beam_of_one_is_greedy_search,
# test_a_beam_that_drops_nothing_is_exhaustive_search, test_batch_mates_have_no_influence. The accelerated
# model: speed/test_fast.py, speed/test_kernels.py.


@pytest.mark.parametrize("shape", [(0, 3), (0, 0), (2, 0), (2, 3)], ids=str)
@pytest.mark.parametrize("beam_size", [1, 3, 20])
def test_searches_take_empty_batches_and_sources_without_a_token(beam_size, shape):
    """No sentence gives no result; no source token, what the model says to nothing."""
    model = lively_model(1)
    src = torch.zeros(shape, dtype=torch.long)
    greedy = greedy_search(model, src, max_length=6)
    tokens, scores = beam_search(model, src, beam_size, max_length=6)
    assert len(greedy) == len(tokens) == len(scores) == shape[0]
    assert tokens.shape[:2] == scores.shape == (shape[0], beam_size) and not scores.isnan().any()
    assert greedy.dtype == tokens.dtype == torch.long
    alone = beam_search(model, torch.zeros(1, 1, dtype=torch.long), beam_size, max_length=6)
    for b in range(shape[0]):
        assert torch.equal(tokens[b], alone.tokens[0])
        assert_close(scores[b], alone.scores[0])
        assert beam_size > 1 or torch.equal(greedy[b], tokens[b, 0])


def test_searches_leave_no_graph_and_no_trace_in_the_model():
    model = make_model(**DROPPING)
    before = copy.deepcopy(model.state_dict())
    found = [greedy_search(model, SRC, 5), *beam_search(model, SRC, 3, max_length=5)]
    assert not any(tensor.requires_grad for tensor in found)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert torch.equal(found[0], greedy_search(model.eval(), SRC, 5))
