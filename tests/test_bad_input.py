"""What comes in by an entry and cannot work is refused there, by name: one table for each module.

Entries are the configuration, the model's methods, the searches, the trainer, what loads text and
translators, interchange and the programs. Layers, losses and kernels are no entries: what they cannot compute
is torch's to refuse. Files are in test_files.py, the command line in commands/test_cli.py.
"""

from __future__ import annotations

import math
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import everything as t
from helpers import make_config, make_model
from torch import nn

import transformer

D, V = 12, 11  # of the models that the helpers make
NAN, INF = math.nan, math.inf
X = torch.zeros(2, 5, D, dtype=torch.float64)
IDS = torch.ones(2, 5, dtype=torch.long)
LONG = IDS.repeat(1, 3)  # longer than the model's 12 positions
TOO_LONG = [(LONG, ValueError, "at most max_length = 12 tokens, but has 15")]
MODEL = make_model().eval()
VOCABULARY = t.Vocabulary.train(["o gato preto", "a casa branca"] * 3, 30)
SIZE = len(VOCABULARY)
TRANSLATOR = t.Translator(make_model(SIZE, dtype=torch.float32).eval(), VOCABULARY)
PAIRS = [([1], [1])]

# Values that are wrong, what they raise, and what the message says of them beside the argument's name.
COUNTS = [
    (True, TypeError, "int, not bool (True)"),
    (2.5, TypeError, "int, not float (2.5)"),
    (np.int64(4), TypeError, "int, not int64"),
    (-1, ValueError, "at least"),
]
SIZES = [*COUNTS, (None, TypeError, "int, not NoneType")]
TOKENS = [(value, TypeError, "int, not ") for value in (True, 2.5, None, np.int64(4))]
TOKENS += [(value, ValueError, f"[0, {V}), but is {value}") for value in (-1, V)]
RATES = [(value, ValueError, f"[0, 1), but is {value}") for value in (1.0, -0.1, NAN)]
RATES += [(value, TypeError, f"number, not {type(value).__name__}") for value in ("x", True)]
NUMBERS = [(value, ValueError, f"finite and at least 0, but is {value}") for value in (-0.1, INF, NAN)]
NUMBERS += [(value, TypeError, f"number, not {type(value).__name__}") for value in (None, True)]
FLAGS = [(value, TypeError, f"bool, not {type(value).__name__}") for value in ("no", None)]
TEXTS = [(value, TypeError, f"str, not {type(value).__name__}") for value in (None, b"x")]
TENSORS = [
    *((value, TypeError, "torch.long tensor, not ") for value in (None, [[1]], IDS.numpy(), IDS.int(), X)),
    (IDS[0], ValueError, "[batch, length], not [5]"),
    (IDS[None], ValueError, "[batch, length], not [1, 2, 5]"),
    (torch.full_like(IDS, V), IndexError, f"[0, {V}), but holds {V}"),
    (-IDS, IndexError, f"[0, {V}), but holds -1"),
]
FEATURES = [
    *((value, TypeError, "floating-point tensor, not ") for value in (None, X.tolist(), X.numpy(), X.long())),
    *((x, ValueError, f"[batch, length, {D}] with the batch of tgt") for x in (X[0], X[..., 1:], X[:1])),
]
NO_MODEL = [(None, TypeError, "Module, not NoneType")]
NO_VOCABULARY = [(None, TypeError, "Vocabulary, not NoneType"), ({}, TypeError, "Vocabulary, not dict")]
DEVICES = [(value, ValueError, f"{value!r} cannot be used here") for value in ("nowhere", -5, [])]


def train(**changes) -> None:
    given = dict(
        model=make_model(),
        loss=t.teacher_forced_loss,
        batches=lambda epoch: [(IDS, IDS + 1)],  # 2 is the start token
        schedule=lambda step: 1e-3,
        config=t.TrainingConfig(1),
    )
    t.Trainer(**given | changes).fit()


def stream(**changes) -> None:
    next(t.reversal_batches(**{"epoch": 0} | changes))


settings = partial(t.TrainingConfig, steps=1)
recipe = partial(t.changed, t.RECIPES["phrases"])
greedy = partial(t.greedy_search, model=MODEL, src=IDS, max_length=3)
beams = partial(t.beam_search, model=MODEL, src=IDS, max_length=3)
decode = partial(MODEL.decode, tgt=IDS, memory=X, src_mask=None)
batches = partial(t.TokenBatches, pairs=PAIRS, max_tokens=9)
drawn = partial(t.BPEDropout, pairs=[("a", "o")], vocabulary=VOCABULARY)
translators = partial(t.Translator, vocabulary=VOCABULARY)
translate = partial(TRANSLATOR.translate, beam_size=1)
encode = partial(t.encode_pairs, vocabulary=VOCABULARY)
scores = partial(t.corpus_scores, hypotheses=["a"])

# Module: the call, its argument, and the rows of wrong values for it.
TABLES = {
    "model": [
        *((make_config, name, SIZES) for name in ("d_model", "n_heads", "n_layers", "d_ff", "max_length")),
        *((make_config, name, SIZES) for name in ("src_vocab_size", "tgt_vocab_size")),
        *((make_config, name, TOKENS) for name in ("pad_id", "bos_id", "eos_id")),
        *((make_config, name, RATES) for name in ("dropout", "attention_dropout", "activation_dropout")),
        *((make_config, name, FLAGS) for name in ("norm_first", "tie_embeddings", "bias")),
        (make_config, "activation", [("tanh", ValueError, "one of ['gelu', 'relu', 'silu'], not 'tanh'")]),
        (make_config, "activation", [(["relu"], ValueError, "one of ['gelu', 'relu', 'silu']")]),
        (make_config, "final_norm", [("no", TypeError, "bool or NoneType, not str ('no')")]),
        (make_config, "n_heads", [(5, ValueError, f"must divide d_model, but 5 does not divide {D}")]),
        (make_config, "eos_id", [(0, ValueError, "pad_id and eos_id must differ, but both are 0")]),
        (make_config, "tgt_vocab_size", [(9, ValueError, f"tgt_vocab_size, but {V} is not 9")]),
        (t.Transformer, "config", [({"d_model": 8}, TypeError, "TransformerConfig, not dict")]),
        *((partial(MODEL, src=IDS, tgt=IDS), name, TENSORS) for name in ("src", "tgt")),
        *((partial(MODEL, src=IDS, tgt=IDS), name, TOO_LONG) for name in ("src", "tgt")),
        (MODEL.encode, "src", TOO_LONG),
        *((partial(MODEL.attention_maps, src=IDS, tgt=IDS), name, TENSORS) for name in ("src", "tgt")),
        (MODEL.encode, "src", TENSORS),
        (decode, "tgt", TENSORS),
        (decode, "memory", FEATURES),
        (partial(MODEL, src=IDS, tgt=IDS), "tgt", [(IDS[:1], ValueError, "the batch of tgt, 1, not [2,")]),
    ],
    "decoding": [
        (greedy, "max_length", SIZES),
        (beams, "max_length", COUNTS),
        (beams, "beam_size", SIZES),
        (beams, "beam_size", [(size, ValueError, f"at most 100, but is {size}") for size in (101, 10**6)]),
        (beams, "length_penalty", NUMBERS),
        (beams, "length_penalty", [(at, ValueError, f"at most 10, but is {at}") for at in (10.1, 100, 1e4)]),
        *((search, "src", TENSORS) for search in (greedy, beams)),
        *((search, "src", TOO_LONG) for search in (greedy, beams)),
        *((search, "max_length", [(13, ValueError, "at most the model's 12")]) for search in (greedy, beams)),
        *((search, "model", [(None, TypeError, "be a Transformer")]) for search in (greedy, beams)),
    ],
    "fast": [
        (t.accelerate, "model", [(value, TypeError, f"Transformer, not {type(value).__name__}")])
        for value in (None, nn.Linear(2, 2))
    ],
    "training": [
        *((settings, name, SIZES) for name in ("steps", "accumulate", "seed")),
        *((settings, name, SIZES) for name in ("log_every", "evaluate_every", "keep")),
        (settings, "precision", [("half", ValueError, "one of ['float32', 'bfloat16', 'float16', 'auto']")]),
        (settings, "clip_norm", [("x", TypeError, "number, not str ('x')"), (NAN, ValueError, "nan")]),
        (settings, "monitor", [(None, TypeError, "str, not NoneType")]),
        *(
            (train, name, [(None, TypeError, f"{name} must be a Callable")])
            for name in ("loss", "batches", "schedule")
        ),
        (train, "evaluate", [(3, TypeError, "Callable or NoneType, not int (3)")]),
        (train, "evaluate", [(lambda model: 3.0, TypeError, "Mapping, not float (3.0)")]),
        (train, "config", [(None, TypeError, "TrainingConfig, not NoneType")]),
        (train, "model", NO_MODEL),
        (train, "model", [(nn.ReLU(), ValueError, "a parameter that can be trained")]),
        (train, "schedule", [(lambda step: NAN, ValueError, "schedule(1) must be finite and at least 0")]),
        (train, "schedule", [(lambda step: None, TypeError, "schedule(1) must be a number, not NoneType")]),
    ],
    "toy": [*((stream, name, SIZES) for name in ("epoch", "seed", "per_epoch", "batch_size", "length"))],
    "text": [
        *((partial(t.Vocabulary.train, ["a b"], size=9), name, SIZES) for name in ("size", "min_frequency")),
        (VOCABULARY.encode, "text", TEXTS),
        (VOCABULARY.encode_batch, "texts", [("abc", TypeError, "several strings, got one")]),
        (partial(t.encode_pairs, pairs=[]), "vocabulary", NO_VOCABULARY),
        (encode, "pairs", [(["ab"], TypeError, "pairs[0] must be a tuple")]),
        *((batches, name, SIZES) for name in ("max_tokens", "seed")),
        (drawn, "dropout", RATES),
        (drawn, "vocabulary", NO_VOCABULARY),
    ],
    "translation": [
        (t.pad, "sequences", [(ids, TypeError, "whole numbers") for ids in ([], [[]], [[1.5]], [[True]])]),
        (translators, "model", [(None, TypeError, "Transformer, not NoneType")]),
        (translators, "model", [(make_model(SIZE, pad_id=5), ValueError, "(5, 2, 3), the vocabulary at")]),
        (partial(t.Translator, model=TRANSLATOR.model), "vocabulary", NO_VOCABULARY),
        (t.Translator.load, "path", [(None, TypeError, "str or Path, not NoneType")]),
        (partial(t.Translator.load, path="phrases"), "device", DEVICES),
        (translate, "sentences", [([value], TypeError, "[0] must be a str, not ") for value in (1, None)]),
        (TRANSLATOR.translate_tokenized, "sentences", [("o gato", TypeError, "strings, not one string")]),
        (translate, "sentences", [(iter(["o"]), TypeError, "a list of strings, not list_iterator")]),
        (scores, "references", [("a", TypeError, "list or tuple"), ([], ValueError, "not 1 and 0")]),
    ],
    "recipes": [
        *(
            (call, "recipe", [(None, TypeError, "Recipe, not NoneType")])
            for call in (t.train_recipe, t.train_translator)
        ),
        (partial(t.train_translator, recipe=t.RECIPES["phrases"]), "device", DEVICES),
        (t.train_recipe, "recipe", [(t.recipe_for([("a", "b")] * 2), ValueError, "pairs must be given")]),
        (recipe, "r_drop", [(-1.0, ValueError, "finite and at least 0, but is -1.0")]),
        (recipe, "source", [("\udcff", ValueError, "names of files must be UTF-8 without control")]),
        (recipe, "bpe_dropout", [(1.0, ValueError, "[0, 1), but is 1.0")]),
        (recipe, "weight_decay", [(-1.0, ValueError, "finite and at least 0, but is -1.0")]),
    ],
    "interop": [
        (convert, "module", [(value, TypeError, type(value).__name__)])
        for convert in (t.from_torch, t.to_torch)
        for value in (None, nn.Linear(2, 2), "x")
    ],
    "files": [
        (t.record_path, "name", [(name, FileNotFoundError, f"there is no recorded file {name!r}")])
        for name in ("../model.py", "/etc/passwd", "", ".", "..", "a\0b", "phrases/config.json")
    ],
}
CASES = [
    (module, call, argument, *row)
    for module, table in TABLES.items()
    for call, argument, rows in table  # type: ignore[attr-defined]
    for row in rows
]


def name_of(case) -> str:
    module, call, argument, value, *_ = case
    call = getattr(call, "func", call)
    shown = f"{module}: {getattr(call, '__qualname__', type(call).__name__)}({argument}={str(value)[:20]!r})"
    return re.sub(r"[^\w=.,:()'-]+", " ", shown)


@pytest.mark.parametrize("module, call, argument, value, error, said", CASES, ids=map(name_of, CASES))
def test_refused_by_name(module, call, argument, value, error, said):
    with pytest.raises(error, match=re.escape(said)) as refusal:
        call(**{argument: value})
    message = str(refusal.value)  # it names the argument, where the row does not give it from the beginning
    assert argument in message or message.startswith(said)
    raised = Path(str(refusal.traceback[-1].path))
    assert Path(transformer.__file__).parent in raised.parents  # and not the depths of a library


@pytest.mark.slow
def test_a_program_in_a_pipe_that_is_closed_ends_silently():
    """Like other tools, by the status that a closed pipe has in the shell, and without a word."""
    command = [sys.executable, "-m", "transformer", "info"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        program.stdout.close()
        complaint = program.stderr.read()
    assert (program.returncode, complaint) == (141, b"")
