"""What the real programs compute with the same weights: `python -m experiments.agreement`, some minutes.

It writes transformer/records/book/agreement.json, from which Chapter 15 makes its table. Each row is a
library and a trained model that both have: `torch.nn`, Hugging Face's Marian, M2M-100 and Llama,
CTranslate2 and ONNX Runtime. On 200 test sentences of Small Portuguese it holds the largest difference of the
logits, and how many tokens and whole sentences of their searches are equal. It needs transformers,
ctranslate2, onnx, onnxscript and onnxruntime. `python -m experiments.agreement m2m100` measures that row
alone, and writes beside it when and where.

The packaged translator is pre-norm, and Marian is post-norm. So a small post-norm model is trained for it
here, and one with M2M-100's positions and more layers that read than write; the Llama is trained by
transformers' own code, before ours reads it. Three classes of transformers round some of their own numbers to
float32 in a model of float64: they are compared as they are and without these roundings.
"""

from __future__ import annotations

import copy
import math
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transformer import (
    TokenBatches,
    Transformer,
    TransformerConfig,
    Translator,
    beam_search,
    causal_mask,
    encode_pairs,
    fit,
    greedy_search,
    load_corpus,
    sinusoidal_encoding,
    teacher_forced_loss,
    to_torch,
)
from transformer.exchange.ctranslate2 import to_ctranslate2
from transformer.exchange.llama import from_llama
from transformer.exchange.m2m100 import M2M100Transformer, to_m2m100
from transformer.exchange.marian import to_marian
from transformer.exchange.onnx import to_onnx
from transformer.files import read_record, write_record
from transformer.language.batches import pad
from transformer.language.corpora import Pair
from transformer.language.vocabulary import EOS_ID
from transformer.modern.generate import generate
from transformer.runs.folder import run_facts

RECORD = Path(__file__).resolve().parents[1] / "transformer" / "records" / "book" / "agreement.json"
SENTENCES, STEPS, LONGEST, BEAM, ADDED, SHOWN = 200, 600, 40, 4, 20, 4

Row = dict[str, Any]
Ids = list[list[int]]


class Data:
    """Sentences of the test split as ids, one batch, with the translator whose subwords they are."""

    def __init__(self, n_sentences: int = SENTENCES) -> None:
        self.translator = Translator.load("phrases", "cpu")
        self.vocabulary = self.translator.vocabulary
        self.train = self._encoded(load_corpus("phrases", "train"))
        test = self._encoded(load_corpus("phrases", "test")[:n_sentences])
        self.sources = [source for source, _ in test]
        self.targets = [target for _, target in test]  # with start and end
        self.src, tgt = pad(self.sources), pad(self.targets)
        self.tgt, self.real = tgt[:, :-1], tgt[:, 1:] != 0  # what is read, and where a logit counts
        self.pad_id, self.numbers = 0, torch.arange(len(self.vocabulary))  # of the tokens in a model

    def logits(self, model: nn.Module) -> Tensor:
        """The logits of all target tokens `[N, V]`, of a model that reads source and target."""
        return model(self.src, self.tgt)[self.real]

    def with_padding_as_token_1(self) -> Data:
        """The same, with the numbers of padding and of the unknown token exchanged, as M2M-100 has them."""
        other = copy.copy(self)
        other.pad_id, other.numbers = 1, torch.tensor([1, 0, *range(2, len(self.vocabulary))])
        other.src, other.tgt = other.numbers[self.src], other.numbers[self.tgt]
        return other

    def _encoded(self, pairs: Sequence[Pair]) -> list[tuple[list[int], list[int]]]:
        return encode_pairs(pairs, self.vocabulary)


# -------------------------------------------------------------------------------------------------
# Comparing
# -------------------------------------------------------------------------------------------------


def apart(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference of two tensors of one shape."""
    assert ours.shape == theirs.shape and ours.numel()
    return (ours.double() - theirs.double()).abs().max().item()


def until_end(rows: Tensor, eos_id: int) -> Ids:
    """The tokens of each row up to its end token, which comes last."""
    found = rows.tolist()
    return [row[: row.index(eos_id) + 1] if eos_id in row else row for row in found]


def equal(ours: Ids, theirs: Ids) -> dict[str, int]:
    """How many sentences are equal, and how many tokens at equal places, of those that ours has."""
    assert len(ours) == len(theirs)
    return {
        "sentences": len(ours),
        "equal sentences": sum(a == b for a, b in zip(ours, theirs)),
        "tokens": sum(map(len, ours)),
        "equal tokens": sum(a == b for one, other in zip(ours, theirs) for a, b in zip(one, other)),
    }


def in_float64(model: Transformer) -> Transformer:
    """A copy of a model in float64, positions included."""
    wide = type(model)(model.config).double().eval()
    wide.load_state_dict(model.state_dict())
    return wide


def ours_finds(model: Transformer, data: Data) -> tuple[Ids, Ids]:
    """What our greedy search finds, and our beam search without a length penalty."""
    end = model.config.eos_id
    greedy = greedy_search(model, data.src, LONGEST)
    beam = beam_search(model, data.src, BEAM, length_penalty=0.0, max_length=LONGEST).tokens[:, 0]
    return until_end(greedy, end), until_end(beam, end)


def trained(data: Data, steps: int, kind: type[Transformer] = Transformer, **changes: Any) -> Transformer:
    """A translator, trained for a minute: post-norm and of the paper's form, but for the changes."""
    size = len(data.vocabulary)
    torch.manual_seed(0)
    sizes = {"d_model": 96, "n_heads": 4, "n_layers": 2, "d_ff": 192, "dropout": 0.0, "max_length": 128}
    model = kind(TransformerConfig(size, size, **{**sizes, "pad_id": data.pad_id, **changes}))
    batches = TokenBatches(data.train, max_tokens=1200)
    numbered = lambda epoch: ((data.numbers[src], data.numbers[tgt]) for src, tgt in batches(epoch))
    fit(model, teacher_forced_loss, numbered, lambda step: 2e-3 * min(1.0, step / 100), steps=steps)
    return model.eval()


# -------------------------------------------------------------------------------------------------
# The programs
# -------------------------------------------------------------------------------------------------


class Theirs(nn.Module):
    """A translator of `torch.nn` alone: tables, sinusoids, `torch.nn.Transformer`."""

    def __init__(self, ours: Transformer) -> None:
        super().__init__()
        self.pad_id, self.scale = ours.config.pad_id, math.sqrt(ours.config.d_model)
        self.tables = nn.ModuleList(
            nn.Embedding.from_pretrained(table.weight.detach().clone())
            for table in (ours.src_embedding, ours.tgt_embedding, ours.output)
        )
        self.transformer = to_torch((ours.encoder, ours.decoder))

    def embed(self, table: nn.Module, ids: Tensor) -> Tensor:
        x = table(ids) * self.scale
        return x + sinusoidal_encoding(ids.size(1), x.size(2), x.dtype)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        padding, future = src == self.pad_id, ~causal_mask(tgt.size(1))[0, 0]
        masks = {"src_key_padding_mask": padding, "memory_key_padding_mask": padding, "tgt_mask": future}
        reads, writes, output = self.tables
        hidden = self.transformer(self.embed(reads, src), self.embed(writes, tgt), **masks)
        return hidden @ output.weight.T


def greedily(step: Callable[[Tensor], Tensor], n_rows: int, config: TransformerConfig) -> Ids:
    """Greedy search by a function from all tokens so far `[B, T]` to the next logits `[B, V]`."""
    tokens = torch.full((n_rows, 1), config.bos_id)
    while tokens.size(1) <= LONGEST and not (tokens == config.eos_id).any(1).all():
        tokens = torch.cat([tokens, step(tokens).argmax(-1, keepdim=True)], dim=1)
    return until_end(tokens[:, 1:], config.eos_id)


def torch_nn(data: Data) -> Row:
    """The packaged translator in `torch.nn.Transformer`, whose program has no search."""
    ours = data.translator.model
    theirs = Theirs(ours).eval()
    found = ours_finds(ours, data)[0]
    greedy = greedily(lambda tgt: theirs(data.src, tgt)[:, -1], len(data.src), ours.config)
    expected = data.logits(ours)
    wide = in_float64(ours)
    return {
        "library": "torch.nn", "version": torch.__version__, "model": "phrases", "compared": "logits",
        "largest": expected.abs().max().item(),
        "float32": apart(expected, data.logits(theirs)),
        "float64": apart(data.logits(wide), data.logits(Theirs(wide).eval())),
        "greedy": equal(found, greedy),
        "beam": None,
    }  # fmt: skip


def marian(data: Data, ours: Transformer) -> Row:
    """A trained post-norm model in Hugging Face's `MarianMTModel`."""
    return hugging_face(data, ours, "post-norm", "Marian", to_marian)


def m2m100(data: Data, steps: int) -> Row:
    """A trained model with M2M-100's positions, in `M2M100ForConditionalGeneration`."""
    data = data.with_padding_as_token_1()
    with torch.enable_grad():
        ours = trained(data, steps, M2M100Transformer, norm_first=True, n_layers=(3, 1))
    return hugging_face(data, ours, "its positions, 3 + 1 layers", "M2M-100", to_m2m100)


def hugging_face(
    data: Data, ours: Transformer, name: str, family: str, export: Callable[[Any, str], None]
) -> Row:
    """A model in the class of `transformers` that its export is for."""
    import transformers

    mask, config = (data.src != data.pad_id).long(), ours.config
    with tempfile.TemporaryDirectory() as folder:
        export(ours, folder)
        theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()

    def logits(model: Any) -> Tensor:
        given = {"input_ids": data.src, "attention_mask": mask, "decoder_input_ids": data.tgt}
        return model(**given).logits[data.real]

    given = {"input_ids": data.src, "attention_mask": mask, "max_new_tokens": LONGEST, "do_sample": False}
    with warnings.catch_warnings(action="ignore"):
        greedy = theirs.generate(num_beams=1, **given)
        beam = theirs.generate(num_beams=BEAM, length_penalty=0.0, early_stopping=True, **given)
    found = ours_finds(ours, data)
    row = {
        "library": f"Hugging Face {family}", "version": metadata.version("transformers"), "model": name,
        "compared": "logits",
        "largest": logits(theirs).abs().max().item(),
        "float32": apart(data.logits(ours), logits(theirs)),
        "greedy": equal(found[0], until_end(greedy[:, 1:], config.eos_id)),
        "beam": equal(found[1], until_end(beam[:, 1:], config.eos_id)),
    }  # fmt: skip
    expected = data.logits(in_float64(ours))
    theirs.double()
    row["float64"] = apart(expected, logits(theirs))
    exact = in_float64(ours).positions.table
    for stack in (theirs.model.encoder, theirs.model.decoder):  # their table, without its rounding to float32
        positions = stack.embed_positions
        if isinstance(ours, M2M100Transformer):  # whose first two places are not used
            positions.weights = torch.cat([exact[:2], exact])
        else:
            positions.weight.data = torch.cat([exact[:, 0::2], exact[:, 1::2]], dim=1)
    return row | {"float64, theirs exact": apart(expected, logits(theirs))}


def ctranslate2(data: Data) -> Row:
    """The packaged translator in the engine, which returns log-probabilities."""
    import ctranslate2 as engine

    ours, words = data.translator.model, data.vocabulary.tokens
    numbers = {piece: number for number, piece in enumerate(data.vocabulary.pieces)}
    sources = [words(source[:-1]) for source in data.sources]  # the engine adds the end
    with tempfile.TemporaryDirectory() as folder:
        to_ctranslate2(data.translator, folder)
        theirs = engine.Translator(folder, device="cpu", intra_threads=1, compute_type="float32")
    scored = theirs.score_batch(sources, [words(target[1:-1]) for target in data.targets])
    expected = ours(data.src, data.tgt).log_softmax(-1)
    expected = expected.gather(2, pad(data.targets)[:, 1:, None])[..., 0][data.real]
    given = {"max_decoding_length": LONGEST, "min_decoding_length": 0}
    greedy = theirs.translate_batch(sources, beam_size=1, **given)
    beam = theirs.translate_batch(sources, beam_size=BEAM, length_penalty=0.0, **given)
    theirs_found = [
        [[numbers[piece] for piece in each.hypotheses[0]] for each in rows] for rows in (greedy, beam)
    ]
    ended = ours.config.eos_id  # which its hypotheses leave out
    found = [[[token for token in row if token != ended] for row in rows] for rows in ours_finds(ours, data)]
    return {
        "library": "CTranslate2", "version": metadata.version("ctranslate2"), "model": "phrases",
        "compared": "log-probabilities of the targets",
        "largest": expected.abs().max().item(),
        "float32": apart(expected, torch.tensor([x for each in scored for x in each.log_probs])),
        "greedy": equal(found[0], theirs_found[0]),
        "beam": equal(found[1], theirs_found[1]),
    }  # fmt: skip


def onnx(data: Data) -> Row:
    """The packaged translator as two graphs in ONNX Runtime, which has no search."""
    import onnxruntime

    ours = data.translator.model
    with tempfile.TemporaryDirectory() as folder:
        with warnings.catch_warnings(action="ignore"):  # what an exporter has to say of itself
            to_onnx(ours, folder)
        encoder, decoder = (
            onnxruntime.InferenceSession(f"{folder}/{name}.onnx", providers=["CPUExecutionProvider"])
            for name in ("encoder", "decoder")
        )
    mask, cross = encoder.run(None, {"src": data.src.numpy()})
    kept = {"own": cross[..., :0, :]}

    def step(tokens: Tensor) -> Tensor:
        given = {"last": tokens[:, -1].numpy(), "mask": mask, "cross": cross, "own": kept["own"]}
        logits, kept["own"] = decoder.run(None, given)
        return torch.from_numpy(logits)

    forced = torch.stack([step(data.tgt[:, : t + 1]) for t in range(data.tgt.size(1))], dim=1)[data.real]
    kept["own"] = cross[..., :0, :]
    greedy = greedily(step, len(data.src), ours.config)
    expected = data.logits(ours)
    return {
        "library": "ONNX Runtime", "version": metadata.version("onnxruntime"), "model": "phrases",
        "compared": "logits",
        "largest": expected.abs().max().item(),
        "float32": apart(expected, forced),
        "greedy": equal(ours_finds(ours, data)[0], greedy),
        "beam": None,
    }  # fmt: skip


def llama(data: Data, steps: int) -> Row:
    """A Llama that transformers has trained on the targets of Small Portuguese, and that ours reads."""
    import transformers

    from experiments.llama import in_double

    settings = transformers.LlamaConfig(
        vocab_size=len(data.vocabulary), hidden_size=96, num_attention_heads=6, num_key_value_heads=2,
        head_dim=16, num_hidden_layers=2, intermediate_size=192, max_position_embeddings=128,
        pad_token_id=None, bos_token_id=None, eos_token_id=None, rms_norm_eps=1e-6, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = transformers.LlamaForCausalLM(settings)
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=2e-3)
    texts = [target for _, target in data.train]
    for step in range(steps):
        rows = torch.randint(len(texts), (48,), generator=torch.Generator().manual_seed(step)).tolist()
        ids = pad([texts[row] for row in rows])
        with torch.enable_grad():
            theirs(input_ids=ids, labels=ids.masked_fill(ids == 0, -100)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    theirs.eval()
    ours = from_llama(theirs)
    begun = torch.tensor([target[:3] for target in data.targets])  # the start token and two more
    mask = torch.ones_like(begun)
    continued = theirs.generate(begun, attention_mask=mask, max_new_tokens=ADDED, do_sample=False)
    found, expected = generate(ours, begun, ADDED), theirs(data.tgt).logits[data.real]
    row = {
        "library": "Hugging Face Llama", "version": metadata.version("transformers"),
        "model": "decoder-only, trained by transformers", "compared": "logits",
        "largest": expected.abs().max().item(),
        "float32": apart(ours(data.tgt)[data.real], expected),
        "greedy": equal(found.tolist(), continued[:, begun.size(1) :].tolist()),
        "beam": None,
        "begun": [data.vocabulary.decode(row[1:]) for row in begun[:SHOWN].tolist()],
        "written": [data.vocabulary.decode(row) for row in until_end(found[:SHOWN], EOS_ID)],
    }  # fmt: skip
    theirs.double()
    expected = from_llama(theirs)(data.tgt)[data.real]
    row["float64"] = apart(expected, theirs(data.tgt).logits[data.real])
    exact = in_double(theirs)(data.tgt).logits[data.real]
    return row | {"float64, theirs exact": apart(expected, exact)}


def measured(n_sentences: int = SENTENCES, steps: int = STEPS) -> list[Row]:
    """All rows."""
    data = Data(n_sentences)
    post_norm = trained(data, steps)
    with torch.no_grad():
        engines = [ctranslate2(data), onnx(data)]
        classes = [marian(data, post_norm), m2m100(data, steps)]
        return [torch_nn(data), *classes, *engines, llama(data, steps)]


def main(only: Sequence[str] = ()) -> None:
    """Write the record, or the row of M2M-100 into the one that there is."""
    if list(only) == ["m2m100"]:
        record = read_record(RECORD)
        with torch.no_grad():
            row = {**m2m100(Data(), STEPS), "run": run_facts("cpu")}
        others = [each for each in record["rows"] if each["library"] != row["library"]]
        write_record(RECORD, {**record, "rows": [*others[:2], row, *others[2:]]})
        print(row)
        return
    rows = measured()
    for row in rows:
        print(row)
    write_record(RECORD, {**run_facts("cpu"), "beam": BEAM, "sentences": SENTENCES, "rows": rows})


if __name__ == "__main__":
    main(sys.argv[1:])
