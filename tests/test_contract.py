"""What the whole package promises, one clause after the other, and numbers that others published.

Where a clause has tests of its own in another file, a comment names them; here stands what they leave open:
the whole model of any configuration, searches at their edges, printed results of other libraries.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import random
import re
import shutil
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call

import transformer
from transformer import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    UNK_ID,
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    FeedForward,
    KeyValueCache,
    LayerConfig,
    LayerNorm,
    MultiHeadAttention,
    PositionalEncoding,
    TokenBatches,
    TokenEmbedding,
    Trainer,
    TrainingConfig,
    Transformer,
    TransformerConfig,
    accelerate,
    accumulate_gradients,
    beam_search,
    causal_mask,
    evaluate_loss,
    greedy_search,
    label_smoothed_cross_entropy,
    length_norm,
    padding_mask,
    quantize,
    r_drop_loss,
    reversal_batch,
    reversal_batches,
    reverse_and_mark,
    scaled_dot_product_attention,
    sinusoidal_encoding,
    teacher_forced_loss,
    token_accuracy,
    toy_config,
)

INF = math.inf
SIZES = {"d_model": 12, "n_heads": 3, "n_layers": 2, "d_ff": 20, "max_length": 12}
DROPPING = {"dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.1}
NORM_ORDERS = pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
# B 2, S 7, T 5: no two sizes are equal.
SRC = torch.tensor([[4, 9, 6, 1, 5, 7, 3], [8, 5, 10, 3, 0, 0, 0]])
TGT = torch.tensor([[2, 10, 4, 1, 6], [2, 7, 9, 3, 0]])


def make_model(vocab_size: int = 11, seed: int = 0, **changes) -> Transformer:
    """An untrained model in float64, with no parameter left at 0 or 1."""
    torch.manual_seed(seed)
    options = SIZES | {"dropout": 0.0} | changes
    return scrambled(Transformer(TransformerConfig(vocab_size, vocab_size, **options)).double())


def lively_model(seed: int, **changes) -> Transformer:
    """An untrained model whose next token depends on source and beginning."""
    torch.manual_seed(seed)
    model = Transformer(TransformerConfig(11, 11, **SIZES, **changes)).double()
    with torch.no_grad():
        model.src_embedding.weight *= 3
    return model


def scrambled(module: nn.Module, std: float = 0.5) -> nn.Module:
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=std)
    return module


def assert_close(found, wanted, atol: float = 1e-9) -> None:
    torch.testing.assert_close(found, wanted, atol=atol, rtol=0)


def ids(*shape: int, low: int = 1, high: int = 11) -> Tensor:
    return torch.randint(low, high, shape)


# -------------------------------------------------------------------------------------------------
# Letters: the paper's, for names and for the shapes in docstrings
# -------------------------------------------------------------------------------------------------

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
    "quantize": "model",
    "reversal_batch": "batch_size, length, n_digits=10, generator=None",
    "Translator.load": "path",
    "Translator.translate": "sentences",
    "from_torch": "module",
    "to_torch": "module",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_public_names_have_the_signatures_of_the_contract(name):
    owner, _, method = name.partition(".")
    thing = getattr(transformer, owner)
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
    assert owner in transformer.__all__


def test_names_without_a_signature_in_the_contract_are_there():
    names = {"KeyValueCache", "Translator", "FastTransformer", "BeamResult", "AttentionMaps"}
    assert names <= set(transformer.__all__)


@pytest.mark.parametrize("name", SIGNATURES)
def test_docstrings_of_the_contract_are_one_sentence_and_name_every_argument(name):
    """See also test_package.py: test_public_name_is_typed_and_described."""
    owner, _, method = name.partition(".")
    thing = getattr(transformer, owner)
    thing = getattr(thing, method) if method else thing
    text = inspect.getdoc(thing)
    summary = text.split("\n\n")[0]
    assert summary[-1] in ".:" and ". " not in summary, summary
    arguments = [name for name in inspect.signature(thing).parameters if name != "self"]
    unnamed = [name for name in arguments if not re.search(rf"\b{name}\b", text)]
    inherited = {"mask", "memory", "self_mask", "memory_mask", "cache"}  # "as in `EncoderLayer`"
    if "fields of `LayerConfig`" in text:
        inherited |= {field.name for field in dataclasses.fields(LayerConfig)}
    unnamed = set(unnamed) - (inherited if "as in" in text or "fields of" in text else set())
    assert len(unnamed) <= ("Args:" not in text), unnamed  # a single sentence may describe what it takes


@pytest.mark.parametrize("name", sorted(transformer.__all__))
def test_docstrings_describe_no_argument_that_is_not_there(name):
    thing = getattr(transformer, name)
    described = re.search(r"^Args:\n((?:    .*\n|\n)*)", (inspect.getdoc(thing) or "") + "\n", re.M)
    if described:
        named = re.findall(r"^    (\*{0,2}\w+(?:, \w+)*):", described[1], re.M)
        named = [argument.lstrip("*") for group in named for argument in group.split(", ")]
        parameters = set(inspect.signature(thing).parameters)
        if "**others: the fields of `LayerConfig`" in described[1]:
            parameters.add("others")
        assert named and set(named) <= parameters


# -------------------------------------------------------------------------------------------------
# Tensors are batch first, ids are long: the whole model, of any configuration
# -------------------------------------------------------------------------------------------------


@st.composite
def cases(draw, smallest: int = 1) -> tuple[Transformer, Tensor, Tensor]:
    """A random model in float64, plain or accelerated, and a padded batch; some sources are padding alone."""
    n_heads = draw(st.integers(1, 3))
    d_k = draw(st.integers(-(-smallest // n_heads), 5))
    tied = draw(st.booleans())
    src_size = draw(st.integers(4, 9))
    tgt_size = src_size if tied else draw(st.integers(4, 9))
    pad_id, bos_id, eos_id = draw(st.permutations(range(min(src_size, tgt_size))))[:3]
    config = TransformerConfig(
        src_size,
        tgt_size,
        d_model=n_heads * d_k,
        n_heads=n_heads,
        n_layers=draw(st.integers(1, 2)),
        d_ff=draw(st.integers(1, 9)),
        dropout=0.0,
        activation=draw(st.sampled_from(["relu", "gelu"])),
        bias=draw(st.booleans()),
        norm_first=draw(st.booleans()),
        final_norm=draw(st.sampled_from([None, False, True])),
        tie_embeddings=tied,
        pad_id=pad_id,
        bos_id=bos_id,
        eos_id=eos_id,
        max_length=12,
    )
    torch.manual_seed(draw(st.integers(0, 2**32)))
    model = scrambled(Transformer(config).double())
    if draw(st.booleans()):
        model = accelerate(model)
    batch, source, target = (draw(st.integers(1, n)) for n in (3, 6, 5))
    src, tgt = ids(batch, source, low=0, high=src_size), ids(batch, target, low=0, high=tgt_size)
    src[src == pad_id] = (pad_id + 1) % src_size
    lengths = torch.tensor(draw(st.lists(st.integers(0, source), min_size=batch, max_size=batch)))
    src[torch.arange(source) >= lengths[:, None]] = pad_id
    tgt[:, 0] = bos_id
    return model, src, tgt


class ByHand:
    """The paper's model for one sentence at a time, without batch, padding or mask.

    A position sees what it may see because nothing else is there; all weights come by name from a state dict.
    """

    def __init__(self, model: Transformer):
        self.state, self.config = model.state_dict(keep_vars=True), model.config

    def linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self.state[f"{name}.weight"].T + self.state.get(f"{name}.bias", 0.0)

    def norm(self, x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return scaled * self.state[f"{name}.weight"] + self.state.get(f"{name}.bias", 0.0)

    def attention(self, x: Tensor, memory: Tensor, name: str, causal: bool) -> Tensor:
        heads = self.config.n_heads
        d_k = self.config.d_model // heads
        q, k, v = (self.linear(y, f"{name}.w_{part}") for y, part in ((x, "q"), (memory, "k"), (memory, "v")))
        rows = []
        for t in range(len(x)):
            seen = t + 1 if causal else len(memory)
            parts = []
            for h in range(heads):
                own = slice(h * d_k, (h + 1) * d_k)
                powers = (k[:seen, own] @ q[t, own] / math.sqrt(d_k)).exp()
                parts.append((powers / powers.sum()) @ v[:seen, own] if seen else v.new_zeros(d_k))
            rows.append(torch.cat(parts))
        return self.linear(torch.stack(rows), f"{name}.w_o")

    def feed_forward(self, x: Tensor, name: str) -> Tensor:
        hidden = self.linear(x, f"{name}.w_1")
        if self.config.activation == "relu":
            hidden = hidden * (hidden > 0)
        else:
            hidden = hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2
        return self.linear(hidden, f"{name}.w_2")

    def residual(self, x: Tensor, sublayer, name: str) -> Tensor:
        if self.config.norm_first:
            return x + sublayer(self.norm(x, f"{name}.norm"))
        return self.norm(x + sublayer(x), f"{name}.norm")

    def embed(self, tokens: list[int], table: str) -> Tensor:
        d_model = self.config.d_model
        angles = [[p / 10000 ** (2 * (i // 2) / d_model) for i in range(d_model)] for p in range(len(tokens))]
        waves = [[(math.cos if i % 2 else math.sin)(a) for i, a in enumerate(row)] for row in angles]
        waves = torch.tensor(waves, dtype=torch.float64).view(len(tokens), d_model)
        return self.state[table][tokens] * math.sqrt(d_model) + waves

    def stack(self, x: Tensor, side: str, memory: Tensor | None = None) -> Tensor:
        for number in range(self.config.n_layers):
            name = f"{side}.layers.{number}"
            attend = partial(self.attention, name=f"{name}.self_attention", causal=memory is not None)
            x = self.residual(x, lambda y, attend=attend: attend(y, y), f"{name}.self_residual")
            if memory is not None:
                cross = partial(self.attention, memory=memory, name=f"{name}.cross_attention", causal=False)
                x = self.residual(x, cross, f"{name}.cross_residual")
            network = partial(self.feed_forward, name=f"{name}.feed_forward")
            x = self.residual(x, network, f"{name}.feed_residual")
        wanted = self.config.norm_first if self.config.final_norm is None else self.config.final_norm
        return self.norm(x, f"{side}.norm") if wanted else x

    def __call__(self, src: list[int], tgt: list[int]) -> Tensor:
        memory = self.state["encoder.layers.0.feed_forward.w_1.weight"].new_zeros(0, self.config.d_model)
        if src:
            memory = self.stack(self.embed(src, "src_embedding.weight"), "encoder")
        hidden = self.stack(self.embed(tgt, "tgt_embedding.weight"), "decoder", memory)
        return hidden @ self.state["output.weight"].T


@settings(max_examples=40)
@given(cases(), st.booleans())
def test_any_model_equals_the_formulas_one_sentence_at_a_time_with_gradients(case, training):
    model, src, tgt = case
    model.train(training)  # every rate is 0: the mode must not matter
    logits = model(src, tgt)
    by_hand, pad_id = ByHand(model), model.config.pad_id
    wanted = torch.stack(
        [by_hand([i for i in s if i != pad_id], t) for s, t in zip(src.tolist(), tgt.tolist())]
    )
    assert_close(logits, wanted)

    weights, parameters = torch.randn_like(logits), list(model.parameters())
    ours = torch.autograd.grad((logits * weights).sum(), parameters, materialize_grads=True)
    theirs = torch.autograd.grad((wanted * weights).sum(), parameters, materialize_grads=True)
    size = max(1.0, *(float(gradient.abs().max()) for gradient in theirs))
    tables = {model.src_embedding.weight, model.tgt_embedding.weight}
    for parameter, gradient, expected in zip(parameters, ours, theirs):
        if parameter in tables:  # of the padding's row, the part that comes from being looked up is left out
            kept = [row for row in range(len(gradient)) if row != pad_id]
            gradient, expected = gradient[kept], expected[kept]
        assert_close(gradient / size, expected / size)


@settings(max_examples=40)
@given(cases(smallest=4), st.booleans(), st.data())
def test_no_gradient_crosses_future_padding_or_batch_in_any_model(case, training, data):
    model, src, tgt = case
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.2
        if isinstance(module, MultiHeadAttention):
            module.dropout = 0.2
    model.train(training)
    vectors: list[Tensor] = []

    def keep(module, arguments, output):
        vectors.append(output.detach().requires_grad_())
        return vectors[-1]

    with model.positions.register_forward_hook(keep):
        logits = model(src, tgt)
    b = data.draw(st.integers(0, len(tgt) - 1))
    t = data.draw(st.integers(0, tgt.size(1) - 1))
    weights = torch.randn_like(logits[b, t])
    source, target = torch.autograd.grad((logits[b, t] * weights).sum(), vectors, materialize_grads=True)

    others = torch.arange(len(src)) != b
    assert (source[others] == 0).all() and (target[others] == 0).all()
    assert (target[b, t + 1 :] == 0).all()
    assert (source[b][src[b] == model.config.pad_id] == 0).all()
    assert target[b, : t + 1].abs().sum() > 0
    if not training and (src[b] != model.config.pad_id).any():
        assert source[b].abs().sum() > 0


@settings(max_examples=25)
@given(cases(), st.data())
def test_any_model_gives_the_same_for_permuted_batches_longer_padding_and_pieces(case, data):
    model, src, tgt = case
    pad_id = model.config.pad_id
    logits = model(src, tgt)
    order = data.draw(st.permutations(range(len(src))))
    assert_close(model(src[order], tgt[order]), logits[order])
    more = [data.draw(st.integers(0, 4)) for _ in range(2)]
    padded = model(F.pad(src, (0, more[0]), value=pad_id), F.pad(tgt, (0, more[1]), value=pad_id))
    assert_close(padded[:, : tgt.size(1)], logits)
    memory, mask, cache = model.encode(src), model.src_mask(src), KeyValueCache()
    pieces = [model.decode(column, memory, mask, cache) for column in tgt.split(1, dim=1)]
    assert_close(model.project(torch.cat(pieces, dim=1)), logits)


@settings(max_examples=15)
@given(cases(), st.data())
def test_stacks_on_vectors_know_no_order(case, data):
    """Without positions an encoder permutes with its input, and a decoder does not see its memory's order."""
    model, src, tgt = case
    batch, source, target = *src.shape, tgt.size(1)
    x, z = (torch.randn(batch, length, model.config.d_model).double() for length in (source, target))
    mask = model.src_mask(src)
    order = data.draw(st.permutations(range(source)))
    encoded = model.encoder(x, mask)
    assert_close(model.encoder(x[:, order], mask[..., order]), encoded[:, order])
    decoded = model.decoder(z, encoded, causal_mask(target), mask)
    assert_close(model.decoder(z, encoded[:, order], causal_mask(target), mask[..., order]), decoded)
    rows = data.draw(st.permutations(range(target)))  # and with everything allowed, no order of its own
    assert_close(
        model.decoder(z[:, rows], encoded, None, mask), model.decoder(z, encoded, None, mask)[:, rows]
    )


def test_ids_need_not_lie_in_memory_in_order():
    model = make_model()
    wide = torch.stack([TGT, TGT], dim=2)[:, :, 0]  # every other number of a tensor
    assert not wide.is_contiguous()
    assert torch.equal(model(SRC.T.contiguous().T, wide), model(SRC, TGT))


# -------------------------------------------------------------------------------------------------
# Masks: boolean, True = may attend, broadcastable; nothing to attend gives zeros in every dtype
# -------------------------------------------------------------------------------------------------

# test_attention.py: test_padding_mask_is_true_where_a_token_stands,
# test_causal_mask_is_true_up_to_the_position_itself, test_every_mask_that_broadcasts_means_its_expansion,
# test_a_row_with_nothing_gets_zeros_and_no_gradient (four dtypes); test_model.py:
# test_a_source_of_padding_alone_gives_numbers (four dtypes, both norm orders).


def test_masks_are_those_of_torchs_function():
    q, k, v = torch.randn(2, 3, 4, 6), torch.randn(2, 3, 5, 6), torch.randn(2, 3, 5, 7)
    mask = padding_mask(torch.tensor([[5, 6, 7, 0, 0], [5, 6, 7, 8, 9]])) & (torch.rand(4, 5) < 0.7)
    mask[..., 0] = True
    context, _ = scaled_dot_product_attention(q, k, v, mask)
    assert_close(context, F.scaled_dot_product_attention(q, k, v, attn_mask=mask), 1e-6)
    assert torch.equal(
        causal_mask(5)[0, 0],
        torch.nn.Transformer.generate_square_subsequent_mask(5) == 0,
    )


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


# -------------------------------------------------------------------------------------------------
# Special ids
# -------------------------------------------------------------------------------------------------


def test_special_ids_are_defined_once():
    """See also test_text.py: test_special_ids_are_the_models; the toy's own are tested below."""
    assert (PAD_ID, UNK_ID, BOS_ID, EOS_ID) == (0, 1, 2, 3)
    config = TransformerConfig(9, 9)
    assert (config.pad_id, config.bos_id, config.eos_id) == (PAD_ID, BOS_ID, EOS_ID)
    for function in (padding_mask, label_smoothed_cross_entropy, token_accuracy, transformer.pad):
        assert inspect.signature(function).parameters["pad_id"].default == PAD_ID


@torch.no_grad()
def greedy_by_hand(model: Transformer, source: list[int], max_length: int) -> list[int]:
    tokens, config = [], model.config
    while len(tokens) < max_length and config.eos_id not in tokens:
        tgt = torch.tensor([[config.bos_id, *tokens]])
        tokens.append(int(model.eval()(torch.tensor([source]), tgt)[0, -1].argmax()))
    return tokens


@pytest.mark.parametrize(
    "special",
    [{"bos_id": 0}, {"bos_id": 3}, {"pad_id": 7, "bos_id": 0, "eos_id": 5}],
    ids=["start is padding (Marian)", "start is end (fairseq)", "all elsewhere"],
)
@pytest.mark.parametrize("seed", range(3))
def test_start_may_be_the_token_for_padding_or_end(seed, special):
    model = lively_model(seed, **special)
    pad_id, eos_id = model.config.pad_id, model.config.eos_id
    src = ids(3, 5).masked_fill_(torch.arange(5) >= torch.tensor([[5], [3], [1]]), pad_id)
    src[:, 0] = 1
    found = greedy_search(model, src, max_length=8)
    beams = beam_search(model, src, beam_size=1, max_length=8).tokens[:, 0]
    assert torch.equal(beams, found)
    for row, source in zip(found.tolist(), src.tolist()):
        expected = greedy_by_hand(model, [i for i in source if i != pad_id], max_length=8)
        assert row[: len(expected)] == expected and set(row[len(expected) :]) <= {pad_id}
    assert len(set(found.flatten().tolist()) - {pad_id, eos_id}) > 1


def test_padding_and_end_must_differ():
    with pytest.raises(ValueError, match="pad_id and eos_id must differ, but both are 3"):
        TransformerConfig(9, 9, pad_id=3)


# -------------------------------------------------------------------------------------------------
# Errors: refused at the entries, by name, with value and bound
# -------------------------------------------------------------------------------------------------

# All files have tests that end in …refuses…: configurations, ids, lengths, checkpoints, folders. What
# follows are entries that those leave out.

MEMORY = torch.zeros(2, 7, 12).double()
REFUSALS = {  # what is done, and how the message has to name it
    "infinite length penalty": (
        lambda: beam_search(make_model(), SRC, length_penalty=INF, max_length=3),
        ValueError,
        r"\blength_penalty\b.*\binf\b",
    ),
    "length penalty as text": (
        lambda: beam_search(make_model(), SRC, length_penalty="0.6", max_length=3),
        TypeError,
        r"\blength_penalty\b.*\bstr\b",
    ),
    "a flag that is none": (
        lambda: TransformerConfig(9, 9, tie_embeddings="no"),
        TypeError,
        r"\btie_embeddings\b.*\bstr\b",
    ),
    "no configuration": (lambda: Transformer({"d_model": 12}), TypeError, r"\bconfig\b.*\bdict\b"),
    "a target that is too long": (
        lambda: make_model()(SRC, torch.full((2, 13), 4)),
        ValueError,
        r"\bpositions 0 to 12\b.*\b12$",
    ),
    "ids of another type": (
        lambda: make_model()(SRC.int(), TGT),
        TypeError,
        r"^src must be a torch.long tensor, not torch.int32$",
    ),
    "ids as a list": (lambda: make_model()(SRC, TGT.tolist()), TypeError, r"^tgt must be .*, not list$"),
    "a single sentence": (
        lambda: make_model()(SRC[0], TGT),
        ValueError,
        r"^src must have shape .*, not \[7\]$",
    ),
    "a memory of another width": (
        lambda: make_model().decode(TGT, MEMORY[..., :11], None),
        ValueError,
        r"^memory must have 3 axes, the last of size 12, not shape \[2, 7, 11\]$",
    ),
    "a memory that is none": (
        lambda: make_model().decode(TGT, SRC, None),
        TypeError,
        r"^memory must be a floating-point tensor, not torch\.int64$",
    ),
    "attention maps": (
        lambda: make_model().attention_maps(SRC, TGT + 1),
        IndexError,
        r"^tgt must lie in \[0, 11\), but holds 11$",
    ),
    "encode": (
        lambda: make_model().encode(SRC - 1),
        IndexError,
        r"^src must lie in \[0, 11\), but holds -1$",
    ),
    "batch": (
        lambda: teacher_forced_loss(make_model(), (SRC, TGT[:1])),
        ValueError,
        "^tgt and memory must have the same batch size, not 1 and 2$",
    ),
    "accelerate": (lambda: accelerate(nn.Linear(2, 2)), TypeError, r"\bmodel\b.*\bLinear\b"),
    "quantize": (lambda: quantize(make_model()), TypeError, "(?=.*float32)"),
}


@pytest.mark.parametrize("call, error, message", REFUSALS.values(), ids=REFUSALS)
def test_entries_that_others_leave_out_refuse_by_name(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("kind", [lambda model: model, accelerate], ids=["plain", "accelerated"])
def test_a_training_step_reads_nothing_back_from_its_device(kind):
    """On the meta device nothing has a value: whoever asks for one, and makes a GPU wait, fails."""
    with torch.device("meta"):
        model = kind(Transformer(TransformerConfig(11, 11, **SIZES, **DROPPING)))
        batches = [(SRC.to("meta"), TGT.to("meta"))] * 2
    with pytest.raises((NotImplementedError, RuntimeError)):
        bool(batches[0][0].sum() > 0)  # so it does

    loss, parameters = partial(teacher_forced_loss, model), list(model.parameters())
    total, tokens = accumulate_gradients(loss, batches, parameters)
    norm = nn.utils.clip_grad_norm_(parameters, 1.0)
    assert total.is_meta and tokens.is_meta and norm.is_meta
    assert all(parameter.grad.is_meta for parameter in parameters)
    logits = model(*batches[0])
    assert logits.is_meta and logits.shape == (2, 5, 11)
    assert token_accuracy(logits, batches[0][1]).is_meta
    assert all(maps.is_meta for maps in model.attention_maps(*batches[0]))


@pytest.mark.parametrize("search", [greedy_search, beam_search])
def test_searches_look_at_the_values_of_ids_wherever_they_are(search):
    """So the meta device, which has none, is an error at the door."""
    model = make_model().to("meta")
    with pytest.raises((NotImplementedError, RuntimeError, ValueError)) as refusal:
        search(model, SRC.to("meta"), max_length=3)
    assert any(entry.name == "check_ids" for entry in refusal.traceback)


def test_the_loader_looks_at_the_values_of_ids():
    with pytest.raises((IndexError, ValueError)):
        next(TokenBatches([([5, -1, 3], [2, 5, 3])], max_tokens=10)(0))


# -------------------------------------------------------------------------------------------------
# Randomness: a seed or a generator for every choice, and torch's own for dropout
# -------------------------------------------------------------------------------------------------

# test_toy.py: test_stream_depends_on_seed_and_epoch_and_on_nothing_else; test_text.py:
# test_order_depends_on_seed_and_epoch_alone; test_training.py: test_two_runs_are_equal_but_for_the_seed;
# test_model.py: test_dropout_only_in_training_and_only_by_torchs_generator.

PAIRS = [([5] * n, [2, *[6] * n, 3]) for n in range(1, 30)]


@pytest.mark.parametrize(
    "draw",
    [
        lambda: reversal_batch(3, 4, generator=torch.Generator().manual_seed(1)),
        lambda: next(reversal_batches(0, 3, 4, seed=1)),
        lambda: next(TokenBatches(PAIRS, max_tokens=40, seed=1)(0)),
        lambda: sinusoidal_encoding(3, 4),
        lambda: greedy_search(make_model.cached, SRC, 4),
        lambda: beam_search(make_model.cached, SRC, max_length=4),
        lambda: evaluate_loss(make_model.cached, [(SRC, TGT)]),
        lambda: make_model.cached.eval()(SRC, TGT),
    ],
    ids=["digits", "stream", "batches", "positions", "greedy", "beam", "evaluation", "model"],
)
def test_what_has_its_own_seed_or_none_leaves_the_global_generators_alone(draw):
    make_model.cached = make_model(**DROPPING)
    before, python = torch.get_rng_state(), random.getstate()
    draw()
    assert torch.equal(torch.get_rng_state(), before) and random.getstate() == python


def test_weights_and_dropout_follow_torchs_seed():
    def run(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return Transformer(TransformerConfig(11, 11, **SIZES, **DROPPING))(SRC, TGT)

    assert torch.equal(run(3), run(3)) and not torch.equal(run(3), run(4))


# -------------------------------------------------------------------------------------------------
# Dtype and device: nothing hard-coded, float64 everywhere, softmax in float32 under half precision
# -------------------------------------------------------------------------------------------------

# test_attention.py: test_softmax_of_half_precision_is_computed_in_float32,
# test_module_runs_in_half_precision; test_loss.py: test_half_precision_is_summed_in_float32;
# test_decoding.py: test_scores_are_summed_in_float32_at_least; test_training.py:
# test_half_precision_is_in_the_products_only.


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


def test_a_trainer_stays_in_float64():
    model = make_model(**DROPPING)
    before = copy.deepcopy(model.state_dict())
    trainer = Trainer(
        model,
        teacher_forced_loss,
        lambda epoch: [(SRC, TGT)] * 4,
        lambda step: 1e-3,
        TrainingConfig(2, accumulate=2),
        evaluate=lambda model: evaluate_loss(model, [(SRC, TGT)]),
    ).fit()
    changed = [not torch.equal(weight, before[name]) for name, weight in model.state_dict().items()]
    assert all(changed) and {weight.dtype for weight in model.state_dict().values()} == {torch.float64}
    state = trainer.optimizer.state.values()
    assert {entry["exp_avg"].dtype for entry in state} == {torch.float64}
    assert math.isfinite(trainer.history[-1]["loss"])


def test_a_model_made_in_float64_is_the_one_that_is_turned_into_it():
    torch.set_default_dtype(torch.float64)
    try:
        made = Transformer(TransformerConfig(11, 11, **SIZES, dropout=0.0))
    finally:
        torch.set_default_dtype(torch.float32)
    turned = Transformer(TransformerConfig(11, 11, **SIZES, dropout=0.0)).double()
    turned.load_state_dict(made.state_dict())
    assert torch.equal(made(SRC, TGT), turned(SRC, TGT))


def empty_weights(config: TransformerConfig) -> Transformer:
    with torch.device("meta"):
        return Transformer(config)


def test_a_model_without_memory_can_take_over_weights():
    """With to_empty() it can: test_copies_stay_tied_and_equal[meta] in test_model.py."""
    model = make_model().float()
    fresh = empty_weights(model.config)
    fresh.load_state_dict(model.state_dict(), assign=True)
    assert torch.equal(fresh(SRC, TGT), model(SRC, TGT))


# -------------------------------------------------------------------------------------------------
# Public names, one after the other: numbers that others have published
# -------------------------------------------------------------------------------------------------


def test_sinusoids_are_those_that_roformers_tests_print():
    """Hugging Face transformers, tests/models/roformer/test_modeling_roformer.py.

    There all sines come first, then all cosines: column i is our column 2i, column d/2 + i our column 2i + 1.
    """
    narrow = [[0.0, 0.0, 0.0, 1.0, 1.0, 1.0], [0.8415, 0.0464, 0.0022, 0.5403, 0.9989, 1.0]]
    wide = [[0.0] * 5, [0.8415, 0.8219, 0.8020, 0.7819, 0.7617], [0.9093, 0.9364, 0.9581, 0.9749, 0.9870]]
    table = sinusoidal_encoding(2, 6, torch.float64)
    assert_close(torch.cat([table[:, 0::2], table[:, 1::2]], dim=1), torch.tensor(narrow).double(), 6e-5)
    table = sinusoidal_encoding(3, 512, torch.float64)
    assert_close(table[:, 0:10:2], torch.tensor(wide).double(), 6e-5)


# pytorch/pytorch, test/cpp/api/transformer.cpp and test/test_transformers.py: d_model 4, two heads, d_ff
# 16, every parameter filled with cos(0), cos(1), …, sequences first. What they print:

IN_ENCODER = [
    [[0.7462, 0.6653, 0.5679, 0.4891], [0.5387, 0.1655, 0.3565, 0.0471]],
    [[0.8335, 0.2799, 0.5031, 0.2947], [0.1402, 0.0318, 0.7636, 0.1346]],
    [[0.6333, 0.9344, 0.1376, 0.9938], [0.8924, 0.2872, 0.6692, 0.2944]],
    [[0.9897, 0.6915, 0.3154, 0.1733], [0.8645, 0.3513, 0.3064, 0.0767]],
    [[0.8117, 0.2366, 0.4838, 0.7881], [0.3718, 0.4945, 0.9511, 0.0864]],
]
IN_DECODER = [
    [[0.4517, 0.6793, 0.5313, 0.0034], [0.2678, 0.3677, 0.4459, 0.7166]],
    [[0.8100, 0.3716, 0.4096, 0.1976], [0.6958, 0.8844, 0.6081, 0.8315]],
    [[0.0494, 0.9343, 0.5955, 0.3830], [0.5404, 0.3464, 0.9378, 0.6200]],
]
ENCODER_LAYER = {
    "one position": ([[[20, 30, 40, 50]]], "relu", None, [[[2.258703, 0.127985, -0.697881, 0.170862]]]),
    "one position, gelu": ([[[20, 30, 40, 50]]], "gelu", None, [[[2.249815, 0.131006, -0.702199, 0.177868]]]),
    "two positions": (
        [[[1, 2, 3, 4]], [[5, 6, 7, 8]]],
        "relu",
        None,
        [[[2.272644, 0.119035, -0.691669, 0.153486]]] * 2,
    ),
    "two positions, gelu": (
        [[[1, 2, 3, 4]], [[5, 6, 7, 8]]],
        "gelu",
        None,
        [[[2.264103, 0.121417, -0.696012, 0.159724]]] * 2,
    ),
    "the first position hidden": (
        [[[1, 2, 3, 4]], [[5, 6, 7, 8]]],
        "relu",
        [[0, 0]],
        [[[2.301516, 0.092249, -0.679101, 0.103088]]] * 2,
    ),
    "a batch": (
        IN_ENCODER,
        "relu",
        None,
        [
            [[2.428589, 0.020835, -0.602055, -0.085249], [2.427987, 0.021213, -0.602496, -0.084103]],
            [[2.424689, 0.019155, -0.604793, -0.085672], [2.413863, 0.022211, -0.612486, -0.072490]],
            [[2.433774, 0.021598, -0.598343, -0.087548], [2.425104, 0.019748, -0.604515, -0.084839]],
            [[2.436185, 0.022682, -0.596625, -0.087261], [2.433556, 0.021891, -0.598509, -0.086832]],
            [[2.416246, 0.017512, -0.610712, -0.082961], [2.422901, 0.024187, -0.606178, -0.074929]],
        ],
    ),
    "a batch with hidden positions": (
        IN_ENCODER,
        "relu",
        [[0, 1], [1, 3], [1, 4]],
        [
            [[2.429026, 0.020793, -0.601741, -0.085642], [2.428811, 0.021445, -0.601912, -0.084252]],
            [[2.425009, 0.019155, -0.604566, -0.085899], [2.415408, 0.02249, -0.611415, -0.073]],
            [[2.434199, 0.021682, -0.598039, -0.087699], [2.42598, 0.019941, -0.603896, -0.085091]],
            [[2.436457, 0.022736, -0.59643, -0.08736], [2.434021, 0.022093, -0.598179, -0.08679]],
            [[2.416531, 0.017498, -0.610513, -0.083181], [2.4242, 0.024653, -0.605266, -0.074959]],
        ],
    ),
    "a batch, gelu": (
        IN_ENCODER,
        "gelu",
        None,
        [
            [
                [2.42163188, 0.03227153, -0.60714219, -0.05908082],
                [2.42151276, 0.03302179, -0.60722523, -0.05762651],
            ],
            [
                [2.41926761, 0.02974034, -0.60879519, -0.0621269],
                [2.41626395, 0.03539356, -0.61087842, -0.04978623],
            ],
            [
                [2.42382808, 0.03218872, -0.6055963, -0.06073591],
                [2.41983477, 0.03085259, -0.60840145, -0.06046414],
            ],
            [
                [2.42500749, 0.03328855, -0.60476388, -0.0595334],
                [2.4237977, 0.03290575, -0.60561789, -0.05940082],
            ],
            [
                [2.41383916, 0.02686345, -0.61256377, -0.06380707],
                [2.42000277, 0.03800944, -0.60824798, -0.04754947],
            ],
        ],
    ),
}
SEEN_ALL = [
    [[2.430065, 0.027862, -0.601136, -0.073096], [2.431935, 0.028907, -0.599809, -0.072488]],
    [[2.428457, 0.027053, -0.602275, -0.073462], [2.431970, 0.029387, -0.599789, -0.071621]],
    [[2.431934, 0.028196, -0.599802, -0.073809], [2.432306, 0.028858, -0.599542, -0.072846]],
]
DECODER_LAYER = {  # x, memory, activation, hidden positions of x, of the memory, result
    "one position": (
        [[[20, 30, 40, 50]]],
        [[[60, 70, 80, 90]]],
        "relu",
        None,
        None,
        [[[2.314351, 0.094805, -0.671322, 0.101977]]],
    ),
    "one position, gelu": (
        [[[20, 30, 40, 50]]],
        [[[60, 70, 80, 90]]],
        "gelu",
        None,
        None,
        [[[2.306435, 0.095946, -0.675796, 0.10687]]],
    ),
    "a shorter memory": (
        [[[9, 10, 11, 12]], [[11, 12, 13, 14]]],
        [[[1, 2, 3, 4]]],
        "relu",
        None,
        None,
        [[[2.422245, 0.051716, -0.606338, -0.024756]]] * 2,
    ),
    "two positions, gelu": (
        [[[1, 2, 3, 4]], [[5, 6, 7, 8]]],
        [[[9, 10, 11, 12]], [[11, 12, 13, 14]]],
        "gelu",
        None,
        None,
        [[[2.338531, 0.087709, -0.65776, 0.080646]]] * 2,
    ),
    "a batch": (IN_DECODER, IN_ENCODER, "relu", None, None, SEEN_ALL),
    "hidden positions": (
        IN_DECODER,
        IN_ENCODER,
        "relu",
        [[0, 2], [1, 1], [1, 2]],
        None,
        [
            [[2.430025, 0.027643, -0.601164, -0.073476], [2.4323, 0.029375, -0.599553, -0.071881]],
            [[2.428523, 0.026838, -0.602226, -0.07391], [2.432634, 0.029842, -0.599318, -0.071253]],
            [[2.432278, 0.028152, -0.599555, -0.074139], [2.432659, 0.029244, -0.599294, -0.072382]],
        ],
    ),
    "hidden memory": (
        IN_DECODER,
        IN_ENCODER,
        "relu",
        None,
        [[0, 4], [1, 3], [1, 4]],
        [
            [[2.429757, 0.027358, -0.601351, -0.073816], [2.432692, 0.028583, -0.599263, -0.073634]],
            [[2.428247, 0.02662, -0.602419, -0.074123], [2.432657, 0.029055, -0.599293, -0.072732]],
            [[2.431515, 0.027687, -0.600096, -0.074459], [2.433075, 0.028543, -0.598987, -0.073985]],
        ],
    ),
    "a batch, gelu": (
        IN_DECODER,
        IN_ENCODER,
        "gelu",
        None,
        None,
        [
            [
                [2.42049104, 0.03443088, -0.60793706, -0.05436271],
                [2.42210631, 0.03546578, -0.60679895, -0.05357488],
            ],
            [
                [2.41907674, 0.0336104, -0.60892977, -0.05490462],
                [2.42216881, 0.03586554, -0.6067524, -0.05289126],
            ],
            [
                [2.42205716, 0.03488046, -0.60683681, -0.05460596],
                [2.42240309, 0.0354595, -0.60659063, -0.05378816],
            ],
        ],
    ),
}
HIDDEN = [[0, 1], [1, 3], [1, 4]]  # (sentence, position)
ENCODERS = {  # number of layers and norm on top
    (2, False): [
        [[2.419051, 0.017446, -0.608738, -0.085003], [2.419102, 0.017452, -0.608703, -0.085026]],
        [[2.419043, 0.017445, -0.608744, -0.084999], [2.419052, 0.017446, -0.608738, -0.085004]],
        [[2.419067, 0.017448, -0.608727, -0.085010], [2.419098, 0.017452, -0.608706, -0.085024]],
        [[2.419072, 0.017449, -0.608724, -0.085012], [2.419119, 0.017455, -0.608691, -0.085034]],
        [[2.419019, 0.017442, -0.608761, -0.084989], [2.419075, 0.017449, -0.608722, -0.085014]],
    ],
    (6, False): [[[2.419101, 0.017453, -0.608703, -0.085025]] * 2] * 5,
    (2, True): [
        [[1.695949, -0.357635, -0.893077, -0.445238], [1.695955, -0.357639, -0.893050, -0.445266]],
        [[1.695948, -0.357634, -0.893082, -0.445233], [1.695950, -0.357635, -0.893077, -0.445238]],
        [[1.695951, -0.357636, -0.893069, -0.445246], [1.695955, -0.357639, -0.893052, -0.445264]],
        [[1.695952, -0.357636, -0.893066, -0.445249], [1.695957, -0.357641, -0.893041, -0.445276]],
        [[1.695946, -0.357632, -0.893095, -0.445220], [1.695952, -0.357637, -0.893065, -0.445251]],
    ],
    (6, True): [[[1.695955, -0.357639, -0.893051, -0.445265]] * 2] * 5,
}
DECODERS = {
    (6, False, "relu"): [
        [[2.42794, 0.026164, -0.60263, -0.0747591], [2.43113, 0.0279516, -0.600376, -0.0736896]]
    ]
    * 3,
    (6, True, "relu"): [
        [[1.69559, -0.357291, -0.894741, -0.443553], [1.69571, -0.357363, -0.894154, -0.444196]]
    ]
    * 3,
    (6, False, "gelu"): [
        [[2.41859, 0.0328114, -0.609269, -0.0560386], [2.42138, 0.034598, -0.607316, -0.0546574]]
    ]
    * 3,
    (6, True, "gelu"): [
        [[1.69298, -0.355163, -0.906375, -0.431439], [1.69305, -0.355195, -0.906062, -0.431791]]
    ]
    * 3,
}
PRINTED = 3e-6  # six decimals, of numbers computed in float32


def sequence_first(rows) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64).transpose(0, 1)


def cosines(module: nn.Module) -> nn.Module:
    """Fill every parameter as torch's tests do; there, queries, keys and values have one matrix."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.arange(parameter.numel()).double().cos().view_as(parameter))
        for attention in module.modules():
            if isinstance(attention, MultiHeadAttention):
                parts = attention.w_q, attention.w_k, attention.w_v
                for kind in ("weight", "bias"):
                    packed = torch.arange(3 * getattr(parts[0], kind).numel()).double().cos()
                    for part, values in zip(parts, packed.chunk(3)):
                        getattr(part, kind).copy_(values.view_as(getattr(part, kind)))
    return module.double()


def visible(hidden: list[list[int]] | None, batch: int, length: int) -> Tensor | None:
    """torch hides by True, we show by True."""
    if hidden is None:
        return None
    mask = torch.ones(batch, 1, 1, length, dtype=torch.bool)
    for sentence, position in hidden:
        mask[sentence, 0, 0, position] = False
    return mask


@pytest.mark.parametrize("inputs, activation, hidden, printed", ENCODER_LAYER.values(), ids=ENCODER_LAYER)
def test_encoder_layer_gives_the_numbers_in_torchs_tests(inputs, activation, hidden, printed):
    layer = cosines(
        EncoderLayer(LayerConfig(d_model=4, n_heads=2, d_ff=16, dropout=0.0, activation=activation))
    )
    x = sequence_first(inputs)
    assert_close(layer(x, visible(hidden, *x.shape[:2])), sequence_first(printed), PRINTED)


@pytest.mark.parametrize(
    "inputs, memory, activation, hidden, hidden_memory, printed", DECODER_LAYER.values(), ids=DECODER_LAYER
)
def test_decoder_layer_gives_the_numbers_in_torchs_tests(
    inputs, memory, activation, hidden, hidden_memory, printed
):
    layer = cosines(
        DecoderLayer(LayerConfig(d_model=4, n_heads=2, d_ff=16, dropout=0.0, activation=activation))
    )
    x, memory = sequence_first(inputs), sequence_first(memory)
    masks = visible(hidden, *x.shape[:2]), visible(hidden_memory, *memory.shape[:2])
    assert_close(layer(x, memory, *masks), sequence_first(printed), PRINTED)


def stack_config(n_layers: int, final_norm: bool, activation: str = "relu") -> TransformerConfig:
    sizes = {"d_model": 4, "n_heads": 2, "d_ff": 16, "dropout": 0.0, "n_layers": n_layers}
    return TransformerConfig(9, 9, **sizes, final_norm=final_norm, activation=activation)


def with_fresh_norm(stack: nn.Module) -> nn.Module:
    """There the norm on top is added after the layers were filled, and starts as 1 and 0."""
    if isinstance(stack.norm, LayerNorm):
        nn.init.ones_(stack.norm.weight)
        nn.init.zeros_(stack.norm.bias)
    return stack


@pytest.mark.parametrize("n_layers, final_norm", ENCODERS)
def test_encoder_gives_the_numbers_in_torchs_tests(n_layers, final_norm):
    encoder = with_fresh_norm(cosines(Encoder(stack_config(n_layers, final_norm))))
    found = encoder(sequence_first(IN_ENCODER), visible(HIDDEN, 2, 5))
    assert_close(found, sequence_first(ENCODERS[n_layers, final_norm]), PRINTED)


@pytest.mark.parametrize("n_layers, final_norm, activation", DECODERS)
def test_decoder_gives_the_numbers_in_torchs_tests(n_layers, final_norm, activation):
    decoder = with_fresh_norm(cosines(Decoder(stack_config(n_layers, final_norm, activation))))
    found = decoder(sequence_first(IN_DECODER), sequence_first(IN_ENCODER))
    assert_close(found, sequence_first(DECODERS[n_layers, final_norm, activation]), 2 * PRINTED)


def test_encoder_with_a_mask_of_its_own_gives_the_number_in_torchs_tests():
    """There test_transformerencoder_square_input: as many sentences as positions."""
    encoder = cosines(Encoder(stack_config(2, final_norm=False)))
    x = torch.arange(16, dtype=torch.float64).view(2, 2, 4)
    found = encoder(x, torch.tensor([[True, False], [True, True]]))
    first = [2.420306205749512, 0.017629241570830, -0.607857942581177, -0.085519507527351]
    second = [2.419836044311523, 0.017548924311996, -0.608187675476074, -0.085347734391689]
    assert_close(found, torch.tensor([[first, first], [second, second]]).double(), PRINTED)


@pytest.mark.parametrize("hidden", [False, True], ids=["all", "with hidden positions"])
def test_two_stacks_give_the_numbers_in_torchs_tests(hidden):
    """Two encoder layers and one decoder layer, a norm on top of each: `torch.nn.Transformer`."""
    encoder = cosines(Encoder(stack_config(2, final_norm=True)))
    decoder = cosines(Decoder(stack_config(1, final_norm=True)))
    src = torch.arange(1, 25, dtype=torch.float64).view(3, 2, 4).transpose(0, 1)
    tgt = torch.arange(1, 17, dtype=torch.float64).view(2, 2, 4).transpose(0, 1)
    rows = [[2.695875, 0.347114, -0.044355, -0.549541], [2.696091, 0.347015, -0.044770, -0.548522]]
    if hidden:
        rows[0] = [2.696114, 0.347004, -0.044813, -0.548417]
    memory = encoder(src, causal_mask(3))
    found = decoder(tgt, memory, visible([[0, 0], [1, 1]], 2, 2) if hidden else None)
    assert_close(found, sequence_first([rows, rows]), PRINTED)


# Vaswani et al. (2017), table 3: millions of parameters, where they are printed.
TABLE_3 = {
    "base": ({}, 65),
    "C, two layers": ({"n_layers": 2}, 36),
    "C, four layers": ({"n_layers": 4}, 50),
    "C, eight layers": ({"n_layers": 8}, 80),
    "C, d_model 256": ({"d_model": 256}, 28),
    "C, d_model 1024": ({"d_model": 1024}, 168),
    "C, d_ff 1024": ({"d_ff": 1024}, 53),
    "C, d_ff 4096": ({"d_ff": 4096}, 90),
    "big": ({"d_model": 1024, "d_ff": 4096, "n_heads": 16}, 213),
}


@pytest.mark.parametrize("changes, printed", TABLE_3.values(), ids=TABLE_3)
def test_parameters_are_as_many_as_the_paper_prints(changes, printed):
    """The vocabulary's size is "about 37,000". Where the width is the base's, it cancels out."""

    def millions(**changes) -> float:
        model = empty_weights(TransformerConfig(37_000, 37_000, **changes))
        return sum(parameter.numel() for parameter in model.parameters()) / 1e6

    assert millions(**changes) == pytest.approx(printed, rel=0.07)
    if "d_model" not in changes:
        assert millions(**changes) - millions() == pytest.approx(printed - 65, abs=1.0)


# test_training.py: test_noam_rate_has_the_known_peaks, …_is_a_line_up_to_the_peak_and_a_root_after_it.


class PrefixModel(nn.Module):
    """A model whose next token depends on sentence and beginning, by tables of probabilities.

    The beginning is kept where a model keeps it, in the cache, so that the search has to reorder it.
    """

    def __init__(self, tables: list[dict[tuple, dict[int, float]]], vocab_size: int = 7):
        super().__init__()
        self.config = TransformerConfig(
            vocab_size, vocab_size, d_model=1, n_heads=1, n_layers=1, max_length=20
        )
        self.tables = tables

    def encode(self, src: Tensor) -> Tensor:
        return src[:, :1, None].double()

    def src_mask(self, src: Tensor) -> Tensor:
        return torch.ones(len(src), 1, 1, 1, dtype=torch.bool)

    def decode(self, tgt: Tensor, memory: Tensor, src_mask: Tensor, cache: KeyValueCache) -> Tensor:
        last = tgt[:, None, :, None].double()
        beginnings, _ = cache.append(self, lambda: (last, last))
        rows = []
        for sentence, beginning in zip(
            memory[:, 0, 0].long().tolist(), beginnings[:, 0, 1:, 0].long().tolist()
        ):
            row = self.tables[sentence].get(tuple(beginning), {self.config.eos_id: 1.0})
            rows.append([row.get(token, 0.0) for token in range(self.config.tgt_vocab_size)])
        return torch.tensor(rows, dtype=torch.float64)[:, None]

    def project(self, hidden: Tensor) -> Tensor:
        return hidden.log()


E, W1, W2 = EOS_ID, 4, 5
# facebookresearch/fairseq, tests/utils.py, sequence_generator_setup: two sentences, a beam of two.
FAIRSEQ = [
    {
        (): {W1: 0.9, W2: 0.1},
        (W1,): {E: 1.0},
        (W2,): {W1: 0.9, W2: 0.1},
        (W2, W1): {W1: 0.1, W2: 0.9},
        (W2, W2): {E: 0.6, W1: 0.2, W2: 0.2},
    },
    {
        (): {W1: 0.7, W2: 0.3},
        (W1,): {E: 0.25, W1: 0.35, W2: 0.4},
        (W2,): {W1: 0.1, W2: 0.9},
        (W1, W2): {E: 0.6, W1: 0.4},
        (W2, W2): {E: 0.01, W2: 0.99},
        (W2, W2, W2): {E: 0.1, W1: 0.5, W2: 0.4},
    },
]


@pytest.mark.parametrize("alpha, swapped", [(0.0, []), (0.6, []), (3.0, [1]), (13.0, [0, 1])])
def test_beam_search_finds_what_fairseqs_tests_expect(alpha, swapped):
    """tests/test_sequence_generator.py: without normalisation, and with penalties that favour short and long.

    Its penalty is another (the length to the power of α): the same order needs a larger exponent here.
    """
    expected = [
        [((W1, E), [0.9, 1.0]), ((W2, W1, W2, E), [0.1, 0.9, 0.9, 1.0])],
        [((W1, W2, E), [0.7, 0.4, 0.6]), ((W1, W2, W1, E), [0.7, 0.4, 0.4, 1.0])],
    ]
    tokens, scores = beam_search(PrefixModel(FAIRSEQ), torch.tensor([[0], [1]]), 2, alpha, max_length=8)
    for sentence, hypotheses in enumerate(expected):
        if sentence in swapped:
            hypotheses = hypotheses[::-1]
        for rank, (hypothesis, probabilities) in enumerate(hypotheses):
            row = tokens[sentence, rank].tolist()
            assert tuple(row[: len(hypothesis)]) == hypothesis and set(row[len(hypothesis) :]) <= {PAD_ID}
            score = sum(map(math.log, probabilities)) / ((5 + len(hypothesis)) / 6) ** alpha
            assert scores[sentence, rank].item() == pytest.approx(score)


# -------------------------------------------------------------------------------------------------
# The loss and the searches, at their edges
# -------------------------------------------------------------------------------------------------

# test_loss.py: test_equals_torch_for_any_shape_with_gradients, test_nothing_to_count_is_zero,
# test_empty_batches; test_decoding.py: test_length_norm_is_the_formula_of_wu_et_al,
# test_a_beam_of_one_is_greedy_search, test_a_beam_that_drops_nothing_is_exhaustive_search (far wider than
# the vocabulary, max_length from 1, unfinished ones, absent ones),
# test_beam_search_equals_lists_that_are_searched_by_hand,
# test_results_have_one_form_and_scores_are_what_they_say, test_batch_mates_have_no_influence.


def test_the_loss_is_torchs_and_zero_where_every_target_is_padding():
    logits, targets = torch.randn(2, 5, 11).double(), TGT % 4
    theirs = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), label_smoothing=0.1, ignore_index=0)
    assert_close(label_smoothed_cross_entropy(logits, targets), theirs)
    assert label_smoothed_cross_entropy(logits, torch.zeros_like(targets)) == 0


def test_the_length_penalty_counts_the_end_token():
    model, src = PrefixModel([{(): {E: 0.5, 4: 0.5}, (4,): {E: 1.0}}]), torch.tensor([[0]])
    result = beam_search(model, src, beam_size=2, length_penalty=1.0, max_length=5)
    assert result.tokens[0].tolist() == [[4, E], [E, PAD_ID]]
    assert result.scores[0].tolist() == pytest.approx([math.log(0.5) / (7 / 6), math.log(0.5)])
    assert length_norm(1, 5.0) == 1.0


@pytest.mark.parametrize("beam_size", [1, 3, 30])
def test_an_end_at_once_ends_the_search_at_once(beam_size):
    model, src = PrefixModel([{(): {E: 1.0}}]), torch.zeros(2, 1, dtype=torch.long)
    assert greedy_search(model, src, max_length=9).tolist() == [[E]] * 2
    tokens, scores = beam_search(model, src, beam_size, max_length=9)
    assert tokens[:, 0].tolist() == [[E, *[PAD_ID] * (tokens.size(2) - 1)]] * 2
    assert (tokens[:, 1:] == PAD_ID).all() and (scores[:, 1:] == -INF).all() and (scores[:, 0] == 0).all()
    assert tokens.size(2) == 1


@pytest.mark.parametrize("beam_size", [1, 4, 11, 50])
@pytest.mark.parametrize("seed", range(3))
def test_one_token_is_the_first_of_all_sorted(seed, beam_size):
    model = lively_model(seed).eval()
    assert greedy_search(model, SRC, max_length=1).shape == (2, 1)
    tokens, scores = beam_search(model, SRC, beam_size, max_length=1)
    log_probs = model(SRC, TGT[:, :1])[:, 0].log_softmax(-1)
    best, order = log_probs.sort(descending=True)
    found = min(beam_size, 11)
    assert torch.equal(tokens[:, :found, 0], order[:, :found])
    assert_close(scores[:, :found], best[:, :found].detach())
    assert (scores[:, found:] == -INF).all() and (tokens[:, found:] == PAD_ID).all()


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


@settings(max_examples=12)
@given(cases(), st.integers(1, 12), st.floats(0, 2))
def test_searches_of_any_model_do_not_depend_on_what_shares_the_batch(case, beam_size, alpha):
    model, src, _ = case
    greedy = greedy_search(model, src, max_length=5)
    together = beam_search(model, src, beam_size, alpha, max_length=5)
    pad_id, eos_id = model.config.pad_id, model.config.eos_id
    for b, source in enumerate(src):
        source = source[source != pad_id][None]
        alone = beam_search(model, source, beam_size, alpha, max_length=5)
        present = alone.scores[0] > -INF
        assert torch.equal(together.scores[b] > -INF, present)
        assert_close(together.scores[b][present], alone.scores[0][present])
        length = alone.tokens.size(2)
        assert torch.equal(together.tokens[b, :, :length], alone.tokens[0])
        assert (together.tokens[b, :, length:] == pad_id).all()
        expected = greedy_by_hand(model, source[0].tolist(), 5) if source.numel() else greedy[b].tolist()
        assert greedy[b].tolist()[: len(expected)] == expected
        for row in together.tokens[b].tolist():
            if eos_id in row:
                assert set(row[row.index(eos_id) + 1 :]) <= {pad_id}


def test_searches_leave_no_graph_and_no_trace_in_the_model():
    model = make_model(**DROPPING)
    before = copy.deepcopy(model.state_dict())
    found = [greedy_search(model, SRC, 5), *beam_search(model, SRC, 3, max_length=5)]
    assert not any(tensor.requires_grad for tensor in found)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert torch.equal(found[0], greedy_search(model.eval(), SRC, 5))


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("name", ["logits", "sum"])
def test_derivatives_of_the_loss_agree_with_finite_differences(smoothing, name):
    logits = torch.randn(2, 5, 6, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([[1, 5, 2, 0, 0], [3, 4, 1, 1, 2]])
    reduction = "sum" if name == "sum" else "mean"
    loss = partial(label_smoothed_cross_entropy, targets=targets, smoothing=smoothing, reduction=reduction)
    assert torch.autograd.gradcheck(loss, logits) and torch.autograd.gradgradcheck(loss, logits)


@pytest.mark.parametrize(
    "shapes", [((0, 3), (0, 4)), ((2, 3), (2, 1)), ((2, 3), (2, 0)), ((2, 0), (2, 4))], ids=str
)
def test_a_batch_with_nothing_in_it_has_a_loss_with_a_gradient(shapes):
    model = make_model()
    src, tgt = (torch.full(shape, 4) for shape in shapes)
    total, count = teacher_forced_loss(model, (src, tgt))
    total.backward()
    assert count == max(0, tgt[:, 1:].numel()) and total.isfinite()
    assert (total == 0) == (count == 0)
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0)], ids=str)
def test_vectors_that_are_not_there_pass_every_module(shape):
    """Every public module has an empty result for an empty batch or sequence."""
    x, memory = torch.zeros(*shape, 12), torch.zeros(shape[0], 5, 12)
    assert PositionalEncoding(12, 0.1, 9)(x).shape == x.shape
    assert LayerNorm(12)(x).shape == FeedForward(12, 7)(x).shape == x.shape
    config = LayerConfig(d_model=12, n_heads=3, d_ff=7)
    assert EncoderLayer(config)(x).shape == DecoderLayer(config)(x, memory).shape == x.shape
    assert Encoder(TransformerConfig(9, 9, **SIZES))(x).shape == x.shape
    assert Decoder(TransformerConfig(9, 9, **SIZES))(x, memory).shape == x.shape
    assert padding_mask(torch.zeros(shape, dtype=torch.long)).shape == (shape[0], 1, 1, shape[1])
    assert reverse_and_mark(torch.zeros(shape, dtype=torch.long), 5).shape == shape
    assert evaluate_loss(make_model(), []) == {"loss": 0.0, "accuracy": 0.0}


# -------------------------------------------------------------------------------------------------
# Embeddings, tables and norms
# -------------------------------------------------------------------------------------------------

# test_embedding.py: test_lookup_is_a_product_with_one_hot_rows (√d_model),
# test_positions_are_added_from_the_offset_on; test_model.py: test_logits_and_gradients_equal_torch (three
# values of final_norm), test_final_norm_follows_norm_first, test_shared_gradient_is_the_sum_of_three,
# test_copies_stay_tied_and_equal, test_config_refuses (both vocabularies).


def test_embeddings_are_multiplied_by_the_root_of_the_width_and_positions_are_not():
    model = make_model()
    vectors = []
    with model.positions.register_forward_hook(lambda module, arguments, output: vectors.append(output)):
        model(SRC, TGT)
    for tokens, found in zip((SRC, TGT), vectors, strict=True):
        positions = sinusoidal_encoding(tokens.size(1), 12, torch.float64)
        assert_close(found, model.src_embedding.weight[tokens] * 12**0.5 + positions)


@pytest.mark.parametrize("tied", [True, False])
def test_one_table_or_three(tied):
    model = make_model(tie_embeddings=tied)
    modules = model.src_embedding, model.tgt_embedding, model.output
    assert len({module.weight.data_ptr() for module in modules}) == (1 if tied else 3)
    tables = [parameter for parameter in model.parameters() if parameter.shape == (11, 12)]
    assert len(tables) == (1 if tied else 3)


def test_torchs_transformer_has_the_weights_of_two_stacks_with_final_norm():
    """And computes the same: test_two_stacks_give_the_numbers_in_torchs_tests."""

    def count(final_norm: bool | None) -> int:
        config = TransformerConfig(9, 9, d_model=12, n_heads=2, n_layers=2, d_ff=20, final_norm=final_norm)
        return sum(p.numel() for stack in (Encoder(config), Decoder(config)) for p in stack.parameters())

    theirs = nn.Transformer(12, 2, 2, 2, 20, batch_first=True)
    assert count(True) == sum(parameter.numel() for parameter in theirs.parameters())
    assert count(None) == count(False) == count(True) - 2 * 2 * 12


def names_of(config: TransformerConfig) -> list[str]:
    """The names of a model's weights, which files that were saved depend on."""

    def affine(name: str) -> list[str]:
        return [f"{name}.weight", f"{name}.bias"] if config.bias else [f"{name}.weight"]

    names = ["src_embedding.weight", "tgt_embedding.weight", "output.weight"]
    for side in ("encoder", "decoder"):
        kinds = ["self", "cross"] if side == "decoder" else ["self"]
        for number in range(config.n_layers):
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


# -------------------------------------------------------------------------------------------------
# Where a model starts, and what captures it
# -------------------------------------------------------------------------------------------------

# test_model.py: test_linear_layers_start_xavier_uniform_and_biases_at_zero,
# test_tables_start_with_rows_of_length_one, test_untrained_loss_is_near_ln_v, test_parameter_count
# (63,082,496), test_forward_is_captured_by_compile, test_forward_is_captured_by_export_for_any_lengths;
# test_loss.py: test_batch_loss_is_captured_by_compile.


@pytest.mark.slow
@NORM_ORDERS
def test_the_base_model_starts_near_ln_v(norm_first):
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(37_000, 37_000, norm_first=norm_first))
    src, tgt = ids(4, 17, low=4, high=37_000), ids(4, 20, low=4, high=37_000)
    with torch.no_grad():
        for training in (True, False):
            total, count = teacher_forced_loss(model.train(training), (src, tgt), smoothing=0.0)
            assert abs(total / count - math.log(37_000)) < 0.7


@NORM_ORDERS
def test_derivatives_of_layers_agree_with_finite_differences(norm_first):
    config = LayerConfig(d_model=4, n_heads=2, d_ff=3, dropout=0.0, norm_first=norm_first, activation="gelu")
    encoder_layer, decoder_layer = (scrambled(kind(config).double()) for kind in (EncoderLayer, DecoderLayer))
    x, memory = (torch.randn(2, length, 4).double().requires_grad_() for length in (3, 4))
    mask = padding_mask(torch.tensor([[1, 1, 1, 0], [0, 0, 0, 0]]))  # one sentence has nothing to attend to
    assert torch.autograd.gradcheck(lambda y: encoder_layer(y, mask), memory)
    assert torch.autograd.gradcheck(lambda y, z: decoder_layer(y, z, causal_mask(3), mask), (x, memory))


@NORM_ORDERS
def test_derivatives_of_the_whole_model_agree_with_finite_differences(norm_first):
    """By every parameter, with padding on both sides."""
    sizes = {"d_model": 4, "n_heads": 2, "n_layers": 1, "d_ff": 3}
    model = make_model(5, **sizes, norm_first=norm_first, activation="gelu", tie_embeddings=False)
    src, tgt = torch.tensor([[4, 1, 3], [3, 0, 0]]), torch.tensor([[2, 4, 3], [2, 3, 0]])
    names = [name for name, _ in model.named_parameters()]
    parameters = [parameter.detach().requires_grad_() for parameter in model.parameters()]

    def loss(*values):
        logits = functional_call(model, dict(zip(names, values)), (src, tgt[:, :-1]))
        return label_smoothed_cross_entropy(logits, tgt[:, 1:], 0.1)

    frozen = {name for name in names if "embedding" in name}  # a row for padding gets no gradient by design
    free = [name not in frozen for name in names]
    for parameter, wanted in zip(parameters, free):
        parameter.requires_grad_(wanted)
    assert torch.autograd.gradcheck(loss, parameters)


def derivative(model: Transformer, name: str, step: float = 1e-6) -> tuple[Tensor, Tensor]:
    """The loss' gradient for a table, by autograd and by differences; of all rows but the padding's."""
    weight = model.get_parameter(name)
    loss = lambda: teacher_forced_loss(model, (SRC, TGT))[0]
    (gradient,) = torch.autograd.grad(loss(), weight)
    differences = torch.zeros_like(weight)
    with torch.no_grad():
        for index in range(weight.numel()):
            values = []
            for side in (step, -step):
                weight.view(-1)[index] += side
                values.append(loss())
                weight.view(-1)[index] -= side
            differences.view(-1)[index] = (values[0] - values[1]) / (2 * step)
    return gradient[1:], differences[1:]


def test_derivatives_of_the_tables_agree_with_finite_differences():
    model = make_model(d_model=6, n_layers=1, tie_embeddings=False)
    for name in ("src_embedding.weight", "tgt_embedding.weight"):
        gradient, differences = derivative(model, name)
        assert_close(gradient, differences, 1e-5 * float(gradient.abs().max()))


# Torch's own warnings, which come and go with the versions of torch and Python, are no fault here.
CAPTURES = pytest.mark.filterwarnings("default")


@CAPTURES
@pytest.mark.parametrize(
    "training, options",
    [(False, {"norm_first": True, "bias": False, "tie_embeddings": False}), (True, DROPPING)],
    ids=["eval", "train"],
)
def test_loss_and_gradients_are_captured_whole(training, options):
    """In both modes, with dropout in one of them; a second shape must not break what the first captured."""
    model = make_model(n_layers=1, **options).train(training)
    compiled = torch.compile(partial(teacher_forced_loss, model), fullgraph=True, backend="eager")
    for src, tgt in ((SRC, TGT), (SRC[:, :6], TGT[:, :4])):
        results = []
        for loss in (partial(teacher_forced_loss, model), compiled):
            torch.manual_seed(1)
            total, count = loss((src, tgt))
            results.append([total, count, *torch.autograd.grad(total, list(model.parameters()))])
        assert_close(results[1], results[0])


@CAPTURES
def test_forward_is_captured_by_export_as_it_is():
    model = make_model(n_layers=1, **DROPPING).eval()
    program = torch.export.export(model, (SRC, TGT))
    other = SRC.flip(0), TGT.flip(0)
    assert_close(program.module()(*other), model(*other))
    program = torch.export.export(make_model(n_layers=1, **DROPPING), (SRC, TGT))  # in training
    assert any("dropout" in str(node.target) for node in program.graph.nodes)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch's compiler needs one for C++")
@CAPTURES
def test_the_compiled_model_computes_the_same():
    model = make_model(n_layers=1, norm_first=True).float()  # torch 2.11's fused backward is for float32
    compiled = torch.compile(model, fullgraph=True)
    weights = torch.randn(2, 5, 11)
    results = []
    for module in (model, compiled):
        logits = module(SRC, TGT)
        results.append([logits, *torch.autograd.grad((logits * weights).sum(), list(model.parameters()))])
    assert_close(results[1], results[0], atol=1e-4)


# -------------------------------------------------------------------------------------------------
# The shell: accelerate gives the same numbers in less time, quantize nearly the same
# -------------------------------------------------------------------------------------------------

# All tests of "any model" above draw plain and accelerated models. test_decoding.py:
# test_accelerated_searches_find_the_same; test_loss.py:
# test_batch_losses_of_the_accelerated_model_are_the_same_with_gradients.


@pytest.mark.parametrize(
    "changes",
    [{}, {"norm_first": True}, {"bias": False, "activation": "gelu"}, {"tie_embeddings": False}],
    ids=str,
)
@pytest.mark.parametrize("dtype, atol", [(torch.float64, 1e-9), (torch.float32, 2e-4)], ids=str)
def test_the_accelerated_model_is_the_model(changes, dtype, atol):
    """The same parameters under the same names; the same logits, maps, losses and gradients."""
    model = lively_model(0, dropout=0.0, **changes).to(dtype)
    fast, parameters = accelerate(model), list(model.parameters())
    assert [*fast.state_dict()] == [*model.state_dict()]
    assert [id(p) for p in fast.parameters()] == [id(p) for p in parameters]
    assert_close(fast(SRC, TGT), model(SRC, TGT), atol)
    for ours, theirs in zip(fast.attention_maps(SRC, TGT), model.attention_maps(SRC, TGT), strict=True):
        assert_close(ours, theirs, atol)
    for loss in (teacher_forced_loss, r_drop_loss):
        results = []
        for kind in (model, fast):
            total, count = loss(kind, (SRC, TGT))
            results.append([total, count, *torch.autograd.grad(total, parameters)])
        assert_close(results[1], results[0], atol)
    assert accelerate(fast) is fast


def test_what_is_trained_is_the_model_itself():
    model = make_model()
    fast, before = accelerate(model), copy.deepcopy(model.state_dict())
    total, _ = teacher_forced_loss(fast, (SRC, TGT))
    total.backward()
    torch.optim.SGD(fast.parameters(), lr=0.1).step()
    assert not torch.equal(model.src_embedding.weight, before["src_embedding.weight"])
    assert_close(fast(SRC, TGT), model(SRC, TGT))


def test_the_accelerated_loss_never_holds_all_logits_and_is_the_same():
    """Many logits are made a few rows at a time: none are kept for the backward pass."""
    torch.manual_seed(0)
    size = 4000
    model = Transformer(TransformerConfig(size, size, **SIZES, dropout=0.0))
    src, tgt = ids(40, 8, high=size), ids(40, 12, high=size)
    kept, results = [], []
    for kind in (model, accelerate(model)):
        widths = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x, w=widths: w.append(x.shape) or x, lambda x: x
        ):
            total, count = teacher_forced_loss(kind, (src, tgt))
        kept.append([shape for shape in widths if shape[-1:] == (size,)])
        results.append([total / count, *torch.autograd.grad(total / count, list(model.parameters()))])
    assert kept[0] and not kept[1]
    torch.testing.assert_close(results[1], results[0], atol=1e-5, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:this PyTorch has no product of bytes")
@pytest.mark.parametrize("norm_first", [False, True])
def test_the_quantized_model_is_near_and_can_be_searched(norm_first):
    torch.manual_seed(0)
    sizes = {"d_model": 32, "n_heads": 4, "n_layers": 2, "d_ff": 64, "max_length": 12}
    model = Transformer(TransformerConfig(30, 30, **sizes, norm_first=norm_first)).eval()
    before = copy.deepcopy(model.state_dict())
    light = quantize(model)
    assert not light.training and not any(p.requires_grad for p in light.parameters())
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())
    exact, logits = model(SRC, TGT).detach(), light(SRC, TGT)
    assert 1e-4 < (logits - exact).norm() / exact.norm() < 0.05
    greedy = greedy_search(light, SRC, 8)
    tokens, scores = beam_search(light, SRC, 3, 0.0, 8)
    assert torch.equal(beam_search(light, SRC, 1, 0.0, 8).tokens[:, 0], greedy)
    assert tokens.shape[:2] == scores.shape == (2, 3) and scores.isfinite().all()


# -------------------------------------------------------------------------------------------------
# The toy's ids
# -------------------------------------------------------------------------------------------------

# test_toy.py: test_rule_is_the_loop, test_ids_follow_the_digits, test_batch_has_its_form.


@given(st.integers(1, 5), st.integers(1, 9), st.integers(1, 12), st.integers(0, 2**32))
def test_toy_batches_hold_the_ids_of_the_contract(batch_size, length, n_digits, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs, outputs = reversal_batch(batch_size, length, n_digits, generator)
    config = toy_config(n_digits, d_model=8)
    mark, start, end, padding = range(n_digits, n_digits + 4)
    assert (config.bos_id, config.eos_id, config.pad_id) == (start, end, padding)
    assert config.src_vocab_size == config.tgt_vocab_size == n_digits + 4
    assert inputs.shape == (batch_size, length) and outputs.shape == (batch_size, length + 1)
    assert set(inputs.flatten().tolist()) <= set(range(n_digits))
    assert (outputs[:, 0] == start).all()
    assert set(outputs[:, 1:].flatten().tolist()) <= {*range(n_digits), mark}
    for digits, answer in zip(inputs.tolist(), outputs[:, 1:].tolist()):
        expected = [mark if digits[: i + 1].count(d) % 2 == 0 else d for i, d in enumerate(digits)]
        assert answer == expected[::-1]


def test_embeddings_of_the_contract_take_their_padding_from_the_toy():
    table = Transformer(toy_config(4, d_model=8, n_heads=2)).src_embedding
    assert isinstance(table, TokenEmbedding) and table.pad_id == 7 and table.weight.shape == (8, 8)
