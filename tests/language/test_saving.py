"""What was trained can be kept: a model with the parameters of its configuration, whatever hangs on it."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from helpers import PAIRS, contents, refuses
from torch import Tensor, nn

from transformer import (
    Trainer,
    TrainingConfig,
    Transformer,
    TransformerConfig,
    Translator,
    Vocabulary,
    accelerate,
    encode_pairs,
    evaluate_loss,
    fit,
    greedy_search,
    load_model,
    save_model,
    teacher_forced_loss,
)
from transformer.language.batches import TokenBatches
from transformer.language.corpora import CORPORA
from transformer.runs.loop import load_checkpoint, save_checkpoint
from transformer.weights import is_compiled, load_weights, original, plain_transformer, save_weights

# PyTorch's own, of what a compiled part is given.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")

SENTENCES = ["O gato vê a casa.", "Gosto disto."]
SRC, TGT = torch.tensor([[5, 7, 3], [6, 3, 0]]), torch.tensor([[2, 9, 4], [2, 8, 3]])


class Own(Transformer):
    """Nothing of its own."""


class Louder(Transformer):
    """A forward of its own."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return 1.5 * super().forward(src, tgt)


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.train((text for pair in PAIRS for text in pair), 90, preparation=CORPORA)


def model_for(vocabulary: Vocabulary, kind: type = Transformer, **changes) -> Transformer:
    """A model for these words; those with the same settings are equal."""
    torch.manual_seed(0)
    size = len(vocabulary)
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 24, "max_length": 30, "dropout": 0.0}
    return kind(TransformerConfig(size, size, **sizes | changes))


def after(change, model):
    """The model, once something was done to it."""
    change(model)
    return model


def compiled(module: nn.Module) -> nn.Module:
    torch._dynamo.reset()  # each test compiles what no other has compiled
    return torch.compile(module, backend="eager")


def in_place(module: nn.Module) -> None:
    torch._dynamo.reset()
    module.compile(backend="eager")


def layer_compiled(model):
    model.encoder.layers[0] = compiled(model.encoder.layers[0])
    in_place(model.decoder.layers[0])


def noted(model):
    model.calls, model.encoder.layers[0].note, model.norm_of_last = [], "mine", torch.ones(3)


KINDS = {
    "plain": lambda m: m,
    "torch.compile asked for, and not used": lambda m: after(compiled, m),
    "torch.compile, uncalled": compiled,
    "torch.compile, called": lambda m: after(lambda c: c(SRC, TGT), compiled(m)),
    "model.compile()": partial(after, in_place),
    "layers compiled": lambda m: after(layer_compiled, m),
    "accelerated": accelerate,
    "accelerated and compiled": lambda m: compiled(accelerate(m)),
    "compiled and accelerated": lambda m: accelerate(compiled(m)),
    "forward hook": lambda m: after(lambda m: m.encoder.register_forward_hook(lambda *given: None), m),
    "forward pre-hook": lambda m: after(lambda m: m.register_forward_pre_hook(lambda *given: None), m),
    "attributes": lambda m: after(noted, m),
    "empty subclass": lambda m: after(lambda m: setattr(m, "__class__", Own), m),
    "subclass with a forward": lambda m: after(lambda m: setattr(m, "__class__", Louder), m),
}
kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def traced_once(request):
    """What is compiled computes as it is, which is seconds faster; in one kind, it is traced."""
    kind = request.node.callspec.params.get("kind") if hasattr(request.node, "callspec") else None
    with torch.compiler.set_stance("default" if kind == "torch.compile, called" else "force_eager"):
        yield


@pytest.fixture
def saying(kind):
    """Expects that a model is said to run as it is, or what no file holds of it; and no other warning."""
    is_own, is_hooked = "subclass" in kind, "hook" in kind

    def expect(said: str):
        return (
            pytest.warns(UserWarning, match=said)
            if is_own or is_hooked and "as it is" in said
            else nullcontext()
        )

    return expect


# What is kept ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@kinds
def test_a_file_keeps_the_parameters_whatever_hangs_on_the_model(kind, saying, vocabulary, tmp_path):
    model, plain = KINDS[kind](model_for(vocabulary)), model_for(vocabulary)
    with saying("is of .*, which no file holds: loading gives a plain Transformer"):
        save_model(model, tmp_path / "model")
    save_model(plain, tmp_path / "plain")
    assert (tmp_path / "model").read_bytes() == (tmp_path / "plain").read_bytes()
    again = load_model(tmp_path / "model")
    assert type(again) is Transformer and torch.equal(again(SRC, TGT), plain.eval()(SRC, TGT))


@pytest.mark.slow
@kinds
def test_a_translator_is_kept_whatever_hangs_on_its_model(kind, saying, vocabulary, tmp_path):
    plain = Translator(model_for(vocabulary).eval(), vocabulary)
    with saying("runs as it is"):
        translator = Translator(KINDS[kind](model_for(vocabulary)).eval(), vocabulary)
    assert translator.translate(SENTENCES) == plain.translate(SENTENCES)
    with saying("which no file holds"):
        translator.save(tmp_path / "kept")
    plain.save(tmp_path / "plain")
    assert contents(tmp_path / "kept") == contents(tmp_path / "plain")
    again, wanted = (Translator.load(tmp_path / name).translate(SENTENCES) for name in ("kept", "plain"))
    assert again == wanted


def trainer_of(model, pairs, folder=None, steps=4):
    batches = list(TokenBatches(pairs, max_tokens=60)(0))[:1]
    config = TrainingConfig(steps=steps, evaluate_every=2, average=0.5)
    evaluate = partial(evaluate_loss, batches=batches)
    return Trainer(model, teacher_forced_loss, batches, lambda step: 1e-3, config, folder, evaluate)


@pytest.fixture(scope="module")
def plain(vocabulary) -> Transformer:
    """What a run without any of this learns."""
    trainer_of(model := model_for(vocabulary), encode_pairs(PAIRS, vocabulary)).fit()
    return model


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "torch.compile, called"])
def test_a_run_is_resumed_and_its_model_kept_whatever_hangs_on_it(kind, saying, vocabulary, plain, tmp_path):
    pairs = encode_pairs(PAIRS, vocabulary)
    for steps in (2, 4):
        model = KINDS[kind](model_for(vocabulary))
        with saying("runs as it is"):
            trainer = trainer_of(model, pairs, tmp_path, steps)
        assert is_compiled(trainer.model) == is_compiled(model)  # who compiles has chosen what computes
        trainer.fit()
        for path in (tmp_path / f"checkpoint-0000000{steps}.pt", tmp_path / "best.pt"):
            assert list(load_checkpoint(path)["model"]) == list(plain.state_dict())
    assert trainer.history[-1]["step"] == 4
    with saying("which no file holds"):
        save_model(model, tmp_path / "model")
    kept = load_model(tmp_path / "model").state_dict()
    wanted, untrained = original(model) if type(original(model)) is Louder else plain, model_for(vocabulary)
    for (name, x), before in zip(wanted.state_dict().items(), untrained.state_dict().values(), strict=True):
        assert torch.allclose(kept[name], x, atol=1e-5) and not torch.equal(x, before), name
    trainer.load_best()


PLAIN, WHOLE, LAYERS, OLD = "plain", "torch.compile, uncalled", "layers compiled", "as version 0.2.0 had it"


@pytest.mark.slow
@pytest.mark.parametrize(
    "before, now", [(PLAIN, WHOLE), (WHOLE, LAYERS), (LAYERS, PLAIN), (OLD, PLAIN), (OLD, WHOLE)]
)
def test_a_run_goes_on_compiled_or_not_whatever_it_was_before(before, now, vocabulary, tmp_path):
    pairs, other = encode_pairs(PAIRS, vocabulary), model_for(vocabulary, dropout=0.1)
    first = trainer_of(KINDS.get(before, KINDS["plain"])(model_for(vocabulary)), pairs, tmp_path, 2).fit()
    if before == OLD:
        path = tmp_path / "checkpoint-00000002.pt"
        state = load_checkpoint(path)
        state["model"] = {f"_orig_mod.{name}": x for name, x in state["model"].items()}
        save_checkpoint(path, state)
    model = model_for(vocabulary)
    nn.init.zeros_(model.output.weight)
    trainer = trainer_of(KINDS[now](model), pairs, tmp_path, 2).fit()  # which makes no further update
    one, two = (dict(plain_transformer(run.model).named_parameters()) for run in (first, trainer))
    assert all(torch.equal(one[name], x) for name, x in two.items())
    save_weights(trainer.model, tmp_path / "weights")
    load_weights(KINDS[now](other), tmp_path / "weights")
    assert all(torch.equal(one[name], x) for name, x in plain_transformer(other).named_parameters())


@pytest.mark.parametrize(
    ("change", "said"),
    {
        "a setting": (lambda m: setattr(m.decoder.norm, "eps", 0.1), "decoder.norm has another eps"),
        "a method": (lambda m: setattr(m, "project", lambda x: x), "the model has another project"),
        "a layer's class": (
            lambda m: setattr(m.output, "__class__", Doubled),
            "output is of Doubled, not of Linear",
        ),
        "a buffer": (
            lambda m: m.encoder.register_buffer("seen", torch.ones(1)),
            "encoder has other buffers: seen",
        ),
    }.values(),
)
def test_of_what_computes_otherwise_the_plain_part_is_kept_and_one_warning_says_so(
    change, said, vocabulary, tmp_path
):
    model, plain = (model_for(vocabulary, norm_first=True) for _ in range(2))
    change(model)
    with pytest.warns(UserWarning) as warned:
        save_model(model, tmp_path / "model")
    assert [str(one.message) for one in warned] == [
        f"{said}, which no file holds: loading gives a plain Transformer"
    ]
    assert warned[0].filename == __file__
    save_model(plain, tmp_path / "plain")
    assert (tmp_path / "model").read_bytes() == (tmp_path / "plain").read_bytes()


# What is refused -------------------------------------------------------------------------------------------


class Doubled(nn.Linear):
    pass


class Adapted(nn.Module):
    """A dense layer with a correction of low rank, as LoRA has it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, d_out, d_in = base.requires_grad_(False), *base.weight.shape
        self.a, self.b = nn.Parameter(torch.ones(2, d_in)), nn.Parameter(torch.zeros(d_out, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.a.T @ self.b.T


def adapt(model):
    attention = model.decoder.layers[1].self_attention
    attention.w_q = Adapted(attention.w_q)


def untie(model):
    model.output.weight = nn.Parameter(model.output.weight.detach().clone())


MISFITS = {
    "a shape": (
        lambda m: setattr(m.encoder.layers[0].feed_forward, "w_1", nn.Linear(16, 20)),
        "encoder.layers.0.feed_forward.w_1.weight must have shape [24, 16], not [20, 16]",
    ),
    "untied": (untie, "its parameters are not shared as configured"),
    "a layer too few": (
        lambda m: m.decoder.layers.pop(1),
        "no tensor stands for decoder.layers.1.cross_attention.w_k.bias of ours",
    ),
    "an adapter": (adapt, "decoder.layers.1.self_attention.w_q.a has no place in this model"),
    "another configuration": (
        lambda m: setattr(m, "config", TransformerConfig(7, 7, d_model=16, n_heads=2)),
        "src_embedding.weight must have shape [7, 16], not [{size}, 16]",
    ),
}
WAY_OUT = "fit and the searches take it as it is, and torch.save keeps its state_dict"


@pytest.mark.parametrize("name", MISFITS)
def test_other_parameters_are_trained_with_a_warning_and_not_written(name, vocabulary, tmp_path):
    change, said = MISFITS[name]
    model, pairs = model_for(vocabulary, n_layers=2), encode_pairs(PAIRS, vocabulary)
    change(model)
    said = said.format(size=len(vocabulary))
    message = "model must have the parameters that its configuration makes, or no file could hold it, but"
    for make in (lambda: Translator(model, vocabulary), lambda: save_model(model, tmp_path / "model")):
        with refuses(TypeError, f"{message} {said}: {WAY_OUT}"):
            make()
    assert list(tmp_path.iterdir()) == []
    for _ in range(2):  # begin, and go on
        refusal = re.escape(f"will refuse it: {message} {said}")
        with pytest.warns(UserWarning, match="runs as it is"), pytest.warns(UserWarning, match=refusal):
            trainer = trainer_of(model, pairs, tmp_path / "run")
        if name == "an adapter":
            assert "decoder.layers.1.self_attention.w_q.a" in trainer.fit().model.state_dict()


class Holding(nn.Module):
    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model, self.config = model, model.config

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.model(src, tgt)


def test_an_adapter_has_the_ways_out_that_the_message_and_the_book_name(vocabulary, tmp_path):
    model, pairs = model_for(vocabulary, n_layers=2), encode_pairs(PAIRS, vocabulary)
    adapt(model)
    fit(model, teacher_forced_loss, TokenBatches(pairs, max_tokens=60), lambda step: 1e-3, steps=1)
    assert greedy_search(model, SRC, 5).shape[0] == 2
    torch.save(model.state_dict(), tmp_path / "state.pt")
    model.load_state_dict(torch.load(tmp_path / "state.pt"))
    for steps in (2, 4):
        trainer = trainer_of(Holding(model), pairs, tmp_path / "run", steps).fit()
    assert trainer.history[-1]["step"] == 4


def test_a_transformer_without_its_configuration_is_refused_by_name(vocabulary, tmp_path):
    model = model_for(vocabulary)
    for config in (None, "missing"):
        model.config = config
        if config:
            del model.config
        for make in (lambda: Translator(model, vocabulary), lambda: save_model(model, tmp_path / "model")):
            with refuses(TypeError, "model.config must be a TransformerConfig, not NoneType (None)"):
                make()


def test_settings_of_a_subclass_of_the_configuration_stay_out_of_the_file(vocabulary, tmp_path):
    model = model_for(vocabulary)
    model.config = Special(**vars(model.config), flavor="sour")
    with pytest.warns(UserWarning, match="the model has another config, which no file holds"):
        save_model(model, tmp_path / "model")
    assert load_model(tmp_path / "model").config == model_for(vocabulary).config


@dataclass(frozen=True)
class Special(TransformerConfig):
    flavor: str = "sweet"
