"""The Transformer as its book builds it: what users import, in reading order.

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

# Modules that tangle has written, and removes once no chapter exports them:
#     embedding
#     attention
#     plots
#     layers
#     validation
#     model
#     loss
#     training
#     decoding
#     toy
#     speed/chunked_loss
#     speed/kernels
#     speed/int8
#     speed/fast
#     runs/folder
#     runs/precision
#     runs/checkpoints
#     runs/accumulation
#     runs/distributed
#     runs/averaging
#     runs/update
#     runs/stream
#     runs/journal
#     runs/trainer
#     language/wording
#     language/batches
#     language/vocabulary
#     language/corpora
#     language/scores
#     study/inspection
#     exchange/marian
#     exchange/foreign
#     exchange/ctranslate2
#     exchange/onnx
#     exchange/torch
#     modern/language_model
#     modern/generate
#     exchange/llama
#     modern/parts
#     study/checks
#     study/phrases
#     commands/recipes
#     commands/serve
#     commands/terminal
#     commands/translate
#     commands/evaluate
#     commands/info
#     commands/check
#     commands/options
#     __main__
#     commands/train
#     language/translator
#     language/folder
#     language/hub

# ruff: noqa: I001 (the order is that of the chapters)
__version__ = "0.3.0.dev0"
__book__ = "https://github.com/example/transformer-book"

# A program that is interrupted while it is imported ends at once and silently; `main` takes over.
import signal
import sys

_module = sys.argv[:1] == ["-m"] and ("-m", __name__) in zip(sys.orig_argv, sys.orig_argv[1:])
_script = "".join(sys.argv[:1]).endswith(("transformer-book", "transformer-book.exe"))
if (_module or _script) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from transformer.embedding import TokenEmbedding, sinusoidal_encoding, PositionalEncoding
from transformer.attention import padding_mask, causal_mask, scaled_dot_product_attention, MultiHeadAttention
from transformer.plots import plot_attention, plot_curves
from transformer.layers import LayerNorm, FeedForward, LayerConfig, EncoderLayer, DecoderLayer
from transformer.model import TransformerConfig, Encoder, Decoder, Transformer, attention_tap, AttentionMaps
from transformer.loss import (
    label_smoothed_cross_entropy,
    token_accuracy,
    perplexity,
    teacher_forced_loss,
    r_drop_loss,
)
from transformer.training import noam_rate, cooldown, evaluate_loss, fit, load_record
from transformer.decoding import greedy_search, beam_search
from transformer.toy import reverse_and_mark, reversal_batch, toy_config, load_toy_model
from transformer.speed.int8 import quantize
from transformer.speed.fast import FastTransformer, accelerate
from transformer.runs.checkpoints import save_weights, load_weights
from transformer.runs.distributed import process_group
from transformer.runs.update import TrainingConfig
from transformer.runs.trainer import Trainer
from transformer.language.wording import Preparation
from transformer.language.batches import encode_pairs, pad, TokenBatches, BPEDropout
from transformer.language.vocabulary import Vocabulary
from transformer.language.corpora import load_corpus, read_pairs, held_out
from transformer.language.scores import corpus_scores
from transformer.exchange.torch import from_torch, to_torch
from transformer.study.checks import check_model
from transformer.commands.recipes import Recipe, RECIPES, recipe_for, train_translator
from transformer.language.translator import Alignment, Translator

__all__ = [
    "TokenEmbedding",
    "sinusoidal_encoding",
    "PositionalEncoding",
    "padding_mask",
    "causal_mask",
    "scaled_dot_product_attention",
    "MultiHeadAttention",
    "plot_attention",
    "plot_curves",
    "LayerNorm",
    "FeedForward",
    "LayerConfig",
    "EncoderLayer",
    "DecoderLayer",
    "TransformerConfig",
    "Encoder",
    "Decoder",
    "Transformer",
    "attention_tap",
    "AttentionMaps",
    "label_smoothed_cross_entropy",
    "token_accuracy",
    "perplexity",
    "teacher_forced_loss",
    "r_drop_loss",
    "noam_rate",
    "cooldown",
    "evaluate_loss",
    "fit",
    "load_record",
    "greedy_search",
    "beam_search",
    "reverse_and_mark",
    "reversal_batch",
    "toy_config",
    "load_toy_model",
    "quantize",
    "FastTransformer",
    "accelerate",
    "save_weights",
    "load_weights",
    "process_group",
    "TrainingConfig",
    "Trainer",
    "Preparation",
    "encode_pairs",
    "pad",
    "TokenBatches",
    "BPEDropout",
    "Vocabulary",
    "load_corpus",
    "read_pairs",
    "held_out",
    "corpus_scores",
    "from_torch",
    "to_torch",
    "check_model",
    "Recipe",
    "RECIPES",
    "recipe_for",
    "train_translator",
    "Alignment",
    "Translator",
]
