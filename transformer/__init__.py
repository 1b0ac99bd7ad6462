"""The Transformer of a book whose chapters are its modules: what users import, in reading order."""

# ruff: noqa: I001 (the order is that of the chapters)
__version__ = "0.3.0.dev0"
__book__ = "https://github.com/example/transformer-book"

from transformer.embedding import TokenEmbedding, sinusoidal_encoding, PositionalEncoding
from transformer.attention import padding_mask, causal_mask, scaled_dot_product_attention, MultiHeadAttention
from transformer.plots import plot_attention
from transformer.layers import LayerNorm, FeedForward, LayerConfig, EncoderLayer, DecoderLayer
from transformer.model import TransformerConfig, Encoder, Decoder, Transformer, attention_tap
from transformer.loss import label_smoothed_cross_entropy, token_accuracy, perplexity
from transformer.loss import teacher_forced_loss, r_drop_loss
from transformer.training import best_device, noam_rate, evaluate_loss, fit
from transformer.decoding import greedy_search, beam_search
from transformer.toy import reversal_batch, toy_config, load_toy_model
from transformer.speed.fast import accelerate
from transformer.runs.trainer import TrainingConfig, Trainer
from transformer.language.vocabulary import Vocabulary
from transformer.language.batches import bucket_lengths, encode_pairs, pad, TokenBatches
from transformer.language.corpora import Preparation, load_corpus, read_pairs
from transformer.language.scores import corpus_scores
from transformer.language.translator import Search, Translator
from transformer.language.folder import save_model, load_model
from transformer.commands.recipes import Recipe, RECIPES, recipe_for, train_translator
from transformer.exchange.torch import from_torch, to_torch
from transformer.exchange.translators import load_translator
from transformer.study.model_checks import check_model
from transformer.study.training_checks import check_training

__all__ = [
    "TokenEmbedding", "sinusoidal_encoding", "PositionalEncoding", "padding_mask", "causal_mask",
    "scaled_dot_product_attention", "MultiHeadAttention", "plot_attention", "LayerNorm", "FeedForward",
    "LayerConfig", "EncoderLayer", "DecoderLayer", "TransformerConfig", "Encoder", "Decoder",
    "Transformer", "attention_tap", "label_smoothed_cross_entropy", "token_accuracy", "perplexity",
    "teacher_forced_loss", "r_drop_loss", "best_device", "noam_rate", "evaluate_loss", "fit",
    "greedy_search", "beam_search", "reversal_batch", "toy_config", "load_toy_model", "accelerate",
    "TrainingConfig", "Trainer", "Vocabulary", "bucket_lengths", "encode_pairs", "pad", "TokenBatches",
    "Preparation", "load_corpus", "read_pairs", "corpus_scores", "Search", "Translator", "save_model",
    "load_model", "Recipe", "RECIPES", "recipe_for", "train_translator", "from_torch", "to_torch",
    "load_translator", "check_model", "check_training",
]  # fmt: skip
