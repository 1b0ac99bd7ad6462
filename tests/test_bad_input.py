"""What comes in by an entry and cannot work is refused there, by name: one table for all entries.

Entries are the configuration, the model's methods, the searches, the trainer, what loads text and
translators, interchange and the programs. Layers, losses and kernels are no entries: what they cannot compute
is torch's to refuse. What the tests of a chapter refuse already is not repeated here; files are in
test_files.py.
"""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import transformer as t

D, V = 8, 10
NAN, INF = math.nan, math.inf
X = torch.zeros(2, 5, D)
IDS = torch.ones(2, 5, dtype=torch.long)


def make_config(**changes) -> t.TransformerConfig:
    sizes = dict(d_model=D, n_heads=2, n_layers=2, d_ff=16, max_length=6)
    return t.TransformerConfig(V, V, **sizes | changes)


def make_model(**changes) -> t.Transformer:
    return t.Transformer(make_config(**changes)).eval()


MODEL = make_model()
VOCABULARY = t.Vocabulary.train(["o gato preto", "a casa branca"] * 3, 30)


def pairs_of_two(corpus: str, split: str) -> list[t.Pair]:
    return [t.Pair("o gato preto", "the black cat"), t.Pair("a casa", "the house")] * 2


def train(**changes) -> None:
    given = dict(
        model=make_model(),
        loss=t.teacher_forced_loss,
        batches=lambda epoch: [(IDS, IDS)],
        schedule=lambda step: 1e-3,
        config=t.TrainingConfig(1),
    )
    t.Trainer(**given | changes).fit()


def refuse_sizes(door, name: str, none_is_fine: bool = False):
    wrong = {True: "bool (True)", 2.5: "float (2.5)", "4": "str ('4')", np.int64(4): "int64 (np.int64(4))"}
    if not none_is_fine:
        wrong[None] = "NoneType (None)"
    for value, given in wrong.items():
        yield door, {name: value}, TypeError, f"{name} must be an int, not {given}"
    yield door, {name: torch.tensor(4)}, TypeError, f"{name} must be an int, not Tensor (tensor(4))"
    yield door, {name: -1}, ValueError, f"{name} must be at least "


def refuse_rates(door, name: str):
    for value in (-0.1, 1.0, NAN, INF):
        yield door, {name: value}, ValueError, f"{name} must lie in [0, 1), but is {value}"
    for value in ("x", None, True, [0.1], torch.tensor(0.5)):
        yield door, {name: value}, TypeError, f"{name} must be a number, not {type(value).__name__}"


def refuse_numbers(door, name: str):
    for value in (-0.1, NAN, INF):
        yield door, {name: value}, ValueError, f"{name} must be finite and at least 0, but is {value}"
    for value in ("x", None, True, [1.0]):
        yield door, {name: value}, TypeError, f"{name} must be a number, not {type(value).__name__}"


def refuse_flags(door, name: str):
    for value in ("no", 3, None):
        yield door, {name: value}, TypeError, f"{name} must be a bool, not {type(value).__name__}"


def refuse_features(door, name: str, good: torch.Tensor):
    floating = f"{name} must be a floating-point tensor, not "
    for value in (None, "x", [[1.0]]):
        yield door, {name: value}, TypeError, floating + type(value).__name__
    yield door, {name: good.numpy()}, TypeError, floating
    for dtype in (torch.long, torch.bool, torch.complex64):
        yield door, {name: good.to(dtype)}, TypeError, floating + str(dtype)
    for value in (good[0], good[..., 1:]):
        yield door, {name: value}, ValueError, f"{name} must have 3 axes, the last of size {good.size(-1)}"


def refuse_ids(door, name: str, good: torch.Tensor):
    for value in (None, "x", [[1]], good.numpy(), good.float(), good.int(), good.bool()):
        yield door, {name: value}, TypeError, f"{name} must be a torch.long tensor, not "
    for value in (good[0], good[None], good[0, 0]):
        yield (
            door,
            {name: value},
            ValueError,
            f"{name} must have shape [batch, length], not {list(value.shape)}",
        )
    yield door, {name: good.clone().fill_(V)}, IndexError, f"{name} must lie in [0, {V}), but holds {V}"
    yield door, {name: good.clone().fill_(-1)}, IndexError, f"{name} must lie in [0, {V}), but holds -1"


def partly(function, **good):
    """`function` with arguments that work, of which a case replaces one."""

    def door(**changes):
        return function(**good | changes)

    door.__name__ = getattr(function, "__qualname__", type(function).__name__)
    return door


def cases():
    # Numbers, sizes and flags of everything that is made from them.
    config, rate = make_config, partly(t.noam_rate, step=1, d_model=D, warmup_steps=4)
    training = partly(t.TrainingConfig, steps=1)
    recipe = partly(lambda **fields: t.train_toy(t.ToyRecipe(**fields)), steps=1)
    sizes = {
        config: ("d_model", "n_heads", "n_layers", "d_ff", "max_length", "pad_id", "bos_id", "eos_id"),
        partly(t.TransformerConfig, src_vocab_size=V, tgt_vocab_size=V): ("src_vocab_size", "tgt_vocab_size"),
        rate: ("step", "d_model", "warmup_steps"),
        partly(t.cooldown, step=1, steps=4, fraction=0.5): ("step", "steps"),
        training: ("steps", "accumulate", "log_every", "evaluate_every", "keep", "seed"),
        partly(t.greedy_search, model=MODEL, src=IDS, max_length=3): ("max_length",),
        partly(t.beam_search, model=MODEL, src=IDS, max_length=3): ("beam_size",),
        partly(t.reverse_and_mark, digits=IDS): ("mark",),
        partly(t.reversal_batch, batch_size=2, length=3): ("batch_size", "length", "n_digits"),
        partly(t.toy_config): ("n_digits",),
        partly(lambda **given: next(t.reversal_batches(**given)), epoch=0): ("epoch", "seed", "per_epoch"),
        partly(t.exact_match, model=MODEL, n_sequences=1): ("n_sequences", "length", "seed"),
        recipe: ("seed",),
        partly(t.Vocabulary.train, sentences=["a b"], size=9): ("size", "min_frequency"),
        partly(t.TokenBatches, pairs=[([1], [1])], max_tokens=4): ("max_tokens", "seed"),
        partly(t.TokenBatches([([1], [1])], 4).indices): ("epoch",),
        partly(lambda max_tokens: list(t.by_length([[1, 2]], max_tokens))): ("max_tokens",),
    }
    for door, names in sizes.items():
        for name in names:
            yield from refuse_sizes(door, name)
    yield from refuse_sizes(partly(t.beam_search, model=MODEL, src=IDS), "max_length", none_is_fine=True)
    for name in ("dropout", "attention_dropout", "activation_dropout"):
        yield from refuse_rates(config, name)
    for name in ("norm_first", "tie_embeddings", "bias"):
        yield from refuse_flags(config, name)
    yield from refuse_flags(partly(t.TokenBatches, pairs=[([1], [1])], max_tokens=4), "shuffle")
    for value in (None, 3, "tanh", ["relu"]):
        yield config, {"activation": value}, ValueError, "activation must be one of ['gelu', 'relu'], not "
    yield config, {"final_norm": "no"}, TypeError, "final_norm must be a bool or NoneType, not str ('no')"
    yield config, {"n_heads": 3}, ValueError, "n_heads must divide d_model, but 3 does not divide 8"
    yield config, {"eos_id": 0}, ValueError, "pad_id and eos_id must differ, but both are 0"
    yield config, {"pad_id": V}, ValueError, f"pad_id must lie in [0, {V}), but is {V}"
    yield (
        partly(t.TransformerConfig, src_vocab_size=V),
        {"tgt_vocab_size": V + 1},
        ValueError,
        f"tie_embeddings needs equal vocabularies, but src_vocab_size is {V} and tgt_vocab_size is {V + 1}",
    )
    yield from refuse_numbers(rate, "factor")
    yield from refuse_numbers(partly(t.beam_search, model=MODEL, src=IDS, max_length=3), "length_penalty")
    yield (
        partly(t.save_weights, model=MODEL, path="no"),
        {"dtype": torch.long},
        ValueError,
        "dtype must be floating-point, but is torch.int64",
    )
    yield (
        training,
        {"precision": ["float32"]},
        ValueError,
        "precision must be one of ['float32', 'bfloat16', 'float16', 'auto']",
    )
    yield training, {"clip_norm": "x"}, TypeError, "clip_norm must be a number, not str ('x')"
    yield training, {"clip_norm": NAN}, ValueError, "clip_norm must be greater than 0, but is nan"
    yield training, {"monitor": None}, TypeError, "monitor must be a str, not NoneType (None)"

    # The model and its searches.
    yield (
        partly(t.Transformer),
        {"config": None},
        TypeError,
        "config must be a TransformerConfig, not NoneType",
    )
    for door, names in (
        (partly(MODEL, src=IDS, tgt=IDS), ("src", "tgt")),
        (partly(MODEL.attention_maps, src=IDS, tgt=IDS), ("src", "tgt")),
        (partly(MODEL.encode), ("src",)),
        (partly(MODEL.decode, tgt=IDS, memory=X, src_mask=None), ("tgt",)),
        (partly(t.greedy_search, model=MODEL, src=IDS, max_length=3), ("src",)),
        (partly(t.beam_search, model=MODEL, src=IDS, max_length=3), ("src",)),
    ):
        for name in names:
            yield from refuse_ids(door, name, IDS)
    yield partly(MODEL, tgt=IDS), {"src": IDS[:1]}, ValueError, "tgt and memory must have the same batch size"
    yield (
        partly(MODEL, tgt=IDS),
        {"src": IDS.repeat(1, 2)},
        ValueError,
        "positions 0 to 9 do not fit into 6",
    )
    decode = partly(MODEL.decode, tgt=IDS[:, :3], memory=X, src_mask=None)
    yield from refuse_features(decode, "memory", X)
    yield decode, {"memory": X[:1]}, ValueError, "tgt and memory must have the same batch size, not 2 and 1"
    for search in (t.check_search, t.greedy_search, t.beam_search):
        door = partly(search, model=MODEL, src=IDS, max_length=3)
        yield door, {"src": IDS.to("meta")}, ValueError, "src must have values, but lies on the meta device"
        yield door, {"src": IDS.repeat(1, 2)}, ValueError, "src must have at most 6 tokens, but has 10"
        yield door, {"model": None}, TypeError, "model must be a Module, not NoneType"

    for door in (t.accelerate, t.quantize):
        for value, given in ((None, "NoneType"), (nn.Linear(2, 2), "Linear")):
            yield partly(door), {"model": value}, TypeError, f"model must be a Transformer, not {given}"

    # The loss, the batch, the loop.
    evaluate = partly(t.evaluate_loss, batches=[(IDS, IDS)])
    yield evaluate, {"model": None}, TypeError, "model must be a Module, not NoneType"
    for batch in ((IDS.int(), IDS), (IDS, IDS.int())):
        door, said = partly(t.evaluate_loss, model=MODEL), " must be a torch.long tensor, not torch.int32"
        yield door, {"batches": [batch]}, TypeError, said
    yield (
        partly(t.accumulate_gradients, loss=len, batches=[]),
        {"parameters": []},
        ValueError,
        "parameters must hold",
    )
    for name in ("loss", "batches", "schedule"):
        yield train, {name: None}, TypeError, f"{name} must be a Callable, not NoneType"
    yield train, {"evaluate": 3}, TypeError, "evaluate must be a Callable or NoneType, not int (3)"
    yield (
        train,
        {"evaluate": lambda model: 3.0},
        TypeError,
        "evaluate(model) must be a Mapping, not float (3.0)",
    )
    yield train, {"config": None}, TypeError, "config must be a TrainingConfig, not NoneType"
    yield train, {"model": None}, TypeError, "model must be a Module, not NoneType"
    for model in (nn.ReLU(), nn.Linear(2, 2).requires_grad_(False)):
        yield (
            train,
            {"model": model},
            ValueError,
            "model must have a parameter that can be trained, but has none",
        )
    for rate in (NAN, INF, -1.0):
        said = f"schedule(1) must be finite and at least 0, but is {rate}"
        yield train, {"schedule": lambda step, rate=rate: rate}, ValueError, said
    yield train, {"schedule": lambda step: None}, TypeError, "schedule(1) must be a number, not NoneType"
    yield (
        partly(t.autocast, precision="float32"),
        {"device": "cpu"},
        TypeError,
        "device must be a device, not str",
    )
    yield partly(t.evaluating(None).__enter__), {}, TypeError, "model must be a Module, not NoneType"
    for function in (t.monitored,):
        yield (
            partly(function, monitor="loss"),
            {"metrics": None},
            TypeError,
            "metrics must be a Mapping, not NoneType",
        )
        yield (
            partly(function, metrics={}),
            {"monitor": None},
            TypeError,
            "monitor must be a str, not NoneType",
        )
    for device in ("nowhere", -5, []):
        toy, load = partly(t.train_toy, recipe=t.ToyRecipe()), partly(t.Translator.load, path="phrases")
        for door in (partly(t.run_facts), toy, load):
            yield door, {"device": device}, ValueError, f"device {device!r} cannot be used here: "

    # The toy, the text, the translator.
    yield (
        partly(t.reverse_and_mark, digits=IDS * 5),
        {"mark": 5},
        IndexError,
        "digits must lie in [0, 5), but holds 5",
    )
    yield (
        partly(t.reversal_batch, batch_size=2, length=3),
        {"generator": 3},
        TypeError,
        "generator must be a Generator",
    )
    yield partly(t.train_toy), {"recipe": None}, TypeError, "recipe must be a ToyRecipe, not NoneType"
    for door in (
        t.train_translator,
        t.recipe_loss,
        partly(t.recipe_batches, pairs=[], vocabulary=VOCABULARY),
    ):
        yield partly(door), {"recipe": None}, TypeError, "recipe must be a Recipe, not NoneType"
    for name, value, said in (
        ("r_drop", -1.0, "r_drop must be finite and at least 0, but is -1.0"),
        ("bpe_dropout", 1.0, "bpe_dropout must lie in [0, 1), but is 1.0"),
        ("weight_decay", -1.0, "weight_decay must be finite and at least 0, but is -1.0"),
    ):
        recipe = t.Recipe("phrases", vocab_size=50, d_model=8, d_ff=8, n_layers=1, steps=1, **{name: value})
        yield partly(t.train_translator, load=pairs_of_two), {"recipe": recipe}, ValueError, said
    yield (
        partly(t.conjugate, tense="present", person=0),
        {"infinitive": ""},
        ValueError,
        "infinitive must be a verb",
    )
    yield (
        partly(t.attach_clitic, form="comer"),
        {"clitic": "xx"},
        ValueError,
        "clitic must be one of o, a, os, as",
    )
    yield (
        partly(t.attach_clitic, clitic="o"),
        {"form": "xur"},
        ValueError,
        "form must be one of a verb, got 'xur'",
    )
    for function, name in (
        (t.normalize, "text"),
        (t.tokenize, "text"),
        (t.detokenize, "text"),
        (t.split_of, "about"),
    ):
        for value in (None, 3, b"x", ["x"]):
            yield (
                partly(function),
                {name: value},
                TypeError,
                f"{name} must be a str, not {type(value).__name__}",
            )
    known = partly(t.Vocabulary, pieces=VOCABULARY.pieces, merges=VOCABULARY.merges)
    yield known, {"pieces": "x"}, TypeError, "pieces must be a list or tuple, not str ('x')"
    yield known, {"merges": None}, TypeError, "merges must be a list or tuple, not NoneType"
    yield known, {"pieces": ["a"]}, ValueError, "the first entries of a vocabulary must be "
    yield partly(VOCABULARY.encode), {"text": "\ud800"}, ValueError, "surrogates not allowed"
    yield (
        partly(VOCABULARY.encode_batch),
        {"texts": "abc"},
        TypeError,
        "texts must be several strings, got one",
    )
    for value in (3, "x", None, [1.5], [None], [True], ["a"], torch.tensor([1.5]), torch.zeros(2, 2).long()):
        said = (
            "must be an int, not "
            if isinstance(value, (list, str, torch.Tensor))
            else "ids must be a Iterable"
        )
        yield partly(VOCABULARY.decode), {"ids": value}, TypeError, said.replace("a Iterable", "an Iterable")
    yield partly(t.encode_pairs, pairs=[]), {"vocabulary": None}, TypeError, "vocabulary must be a Vocabulary"
    encode = partly(t.encode_pairs, vocabulary=VOCABULARY)
    yield encode, {"pairs": ["ab"]}, TypeError, "pairs[0] must be a tuple, not str ('ab')"
    yield encode, {"pairs": [("a",)]}, ValueError, "pairs[0] must be a source and a target, not 1 things"
    for value in ([1.5], ["a"], [None], [True], [[1], [2]]):
        yield partly(t.pad), {"sequences": [value]}, TypeError, "sequences must hold ids, not "
    yield partly(t.pad), {"sequences": [[3, -1]]}, IndexError, "sequences must lie in "
    yield partly(t.pad), {"sequences": None}, TypeError, "sequences must be a Sequence, not NoneType"
    sampler = partly(t.BPEDropout, pairs=[("a", "o")], vocabulary=VOCABULARY)
    drawn = partly(t.sampled_batches, pairs=[("a", "o")], vocabulary=VOCABULARY, max_tokens=9)
    for door in (sampler, drawn):
        yield from refuse_rates(door, "dropout")
        yield from refuse_sizes(door, "seed")
        yield door, {"vocabulary": None}, TypeError, "vocabulary must be a Vocabulary"
        yield door, {"pairs": ["ab"]}, TypeError, "pairs[0] must be a tuple, not str ('ab')"
    yield from refuse_sizes(sampler, "max_tokens", none_is_fine=True)
    yield from refuse_sizes(drawn, "max_tokens")
    yield from refuse_sizes(partly(sampler()), "epoch")
    batches = partly(t.TokenBatches, max_tokens=9)
    yield batches, {"pairs": [([1],)]}, ValueError, "pairs[0] must be a source and a target, not 1 things"
    yield batches, {"pairs": [3]}, TypeError, "pairs[0] must be a tuple or list, not int (3)"
    yield batches, {"pairs": iter([])}, TypeError, "pairs must be a Sequence, not list_iterator"
    yield partly(t.padding_waste), {"batches": [3]}, TypeError, "batch must be a tuple or list, not int (3)"
    yield (
        partly(t.corpus_scores, references=["a"]),
        {"hypotheses": "a"},
        TypeError,
        "hypotheses must be a list or tuple",
    )
    scores = partly(t.corpus_scores, hypotheses=["a"], references=["a"])
    yield from refuse_sizes(scores, "n_bootstrap")
    for door in (t.sentence_scores, partly(t.scores_in_ranges, values=[1], edges=[2])):
        door = partly(door, hypotheses=["a"])
        yield door, {"references": "a"}, TypeError, "references must be a list or tuple"
        yield door, {"references": []}, ValueError, "equally many and at least one, not 1 and 0"
    yield partly(t.recalled, wanted=[]), {"hypotheses": "a"}, TypeError, "hypotheses must be a list or tuple"
    door = partly(t.analyse_translations, pairs=[t.Pair("a", "b")], train=[])
    yield door, {"hypotheses": []}, ValueError, "equally many and at least one, not 0 and 1"
    for door in (t.tune_search, t.examine_translator):
        other = {"pairs": []} if door is t.tune_search else {"corpus": "phrases"}
        said = "translator must be a Translator, not NoneType"
        yield partly(door, **other), {"translator": None}, TypeError, said
    for door in (t.by_words, partly(t.crosses_over, source=("a", "b"), target=("c", "d"))):
        yield partly(door), {"found": (["a"], ["b"])}, TypeError, "found must be an Alignment, not tuple"
    size = len(VOCABULARY)
    small = dict(d_model=D, n_heads=2, d_ff=16, n_layers=1)
    fitting = t.Transformer(t.TransformerConfig(size, size, **small, max_length=6)).eval()
    elsewhere = t.Transformer(t.TransformerConfig(size, size, **small, pad_id=5)).eval()
    yield partly(t.Translator, vocabulary=VOCABULARY), {"model": None}, TypeError, "model must be a Module"
    yield (
        partly(t.Translator, model=fitting),
        {"vocabulary": {}},
        TypeError,
        "vocabulary must be a Vocabulary",
    )
    said = "the model has padding, start and end at (5, 2, 3), the vocabulary at (0, 2, 3)"
    yield partly(t.Translator, vocabulary=VOCABULARY), {"model": elsewhere}, ValueError, said
    translator = t.Translator(fitting, VOCABULARY)
    for beam_size in (1, 2):
        for sentences in ([], ["o gato"]):
            door = partly(translator.translate, sentences=sentences, beam_size=beam_size)
            yield from refuse_numbers(door, "length_penalty")
    yield from refuse_sizes(partly(translator.translate, sentences=[]), "beam_size")
    for sentences in ([1], [None], [b"x"]):
        yield partly(translator.translate), {"sentences": sentences}, TypeError, "text must be a str, not "
    yield (
        partly(translator.translate_tokenized),
        {"sentences": "o gato"},
        TypeError,
        "sentences must be a list of strings, not one string",
    )
    yield partly(translator.align), {"sentence": ["o gato"]}, TypeError, "sentence must be a str, not list"
    door = partly(t.translation_record, translator=translator, recipe=t.RECIPES["phrases"])
    yield door, {"trainer": None}, TypeError, "trainer must be a Trainer, not NoneType"
    yield partly(t.Translator.load), {"path": None}, TypeError, "path must be a str or Path, not NoneType"
    for name in ("../model.py", "/etc/passwd", "", ".", "..", "a\0b", "phrases/config.json"):
        yield partly(t.record_path), {"name": name}, FileNotFoundError, f"there is no recorded file {name!r}"


CASES = list(cases())


def name_of(case) -> str:
    door, given, *_ = case
    shown = ", ".join(f"{name}={str(value)[:20]!r}" for name, value in given.items())
    return re.sub(r"[^\w=.,()'-]+", " ", f"{door.__name__}({shown})")


@pytest.mark.parametrize("door, given, error, message", CASES, ids=map(name_of, CASES))
def test_refused_by_name(door, given, error, message):
    with pytest.raises(error, match=re.escape(message)) as refusal:
        door(**given)
    raised = refusal.traceback[-1]
    ours = Path(str(raised.path)).parent == Path(t.__file__).parent
    assert ours or isinstance(refusal.value, UnicodeEncodeError)  # not from the depths of a library


def test_a_program_in_a_pipe_that_is_closed_ends_silently():
    """Like other tools, by the status that a closed pipe has in the shell, and without a word."""
    command = [sys.executable, "-m", "transformer", "info"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        program.stdout.close()
        complaint = program.stderr.read()
    assert (program.returncode, complaint) == (141, b"")
