"""A recurrent encoder and decoder with additive attention, trained and searched as the Transformer is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from transformer.attention import padding_mask
from transformer.decoding import DecoderState, decoder_state


@dataclass(frozen=True)
class RecurrentConfig:
    """What a `Recurrent` is built from.

    Args:
        vocab_size: tokens of the vocabulary that both languages share.
        d_embedding: width of the token vectors, and of what is compared with them at the end.
        d_state: width of a state of the decoder, and of both directions of the encoder together.
        dropout: on embeddings, between layers and before the output.
    """

    vocab_size: int
    d_embedding: int = 256
    d_state: int = 480
    dropout: float = 0.2
    pad_id: int = 0
    bos_id: int = 2
    eos_id: int = 3
    max_length: int = 512

    @property
    def src_vocab_size(self) -> int:
        """The number of source tokens, as searches ask for it."""
        return self.vocab_size


class Recurrent(nn.Module):
    """Two bidirectional GRUs read the source; a GRU, additive attention and a second GRU write the target.

    The attention asks with the states of the first decoder layer, and the second layer reads what was found,
    so in training each layer runs over the whole target at once. Embeddings and output are tied.

    Args:
        config: its sizes.

    Source: Bahdanau et al. (2015); Wu et al. (2016), section 3.
    """

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config, d, h = config, config.d_embedding, config.d_state
        self.embedding = nn.Embedding(config.vocab_size, d, config.pad_id)
        self.encoder = nn.GRU(d, h // 2, 2, batch_first=True, dropout=config.dropout, bidirectional=True)
        self.asking = nn.GRU(d, h, batch_first=True)
        self.query, self.key = nn.Linear(h, d), nn.Linear(h, d, bias=False)
        self.score = nn.Linear(d, 1, bias=False)
        self.writing = nn.GRU(2 * h, h, batch_first=True)
        self.output = nn.Linear(2 * h, d)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.dropout = nn.Dropout(config.dropout)
        nn.init.normal_(self.embedding.weight, std=d**-0.5)

    def src_mask(self, src: Tensor) -> Tensor:
        """True where a source token is, `[B, 1, 1, S]`."""
        return padding_mask(src, self.config.pad_id)

    def encode(self, src: Tensor) -> Tensor:
        """The states of the encoder in both directions, `[B, S, h]`."""
        lengths = (src != self.config.pad_id).sum(dim=1).clamp(min=1).cpu()
        x = self.dropout(self.embedding(src))
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        states, _ = self.encoder(packed)
        return nn.utils.rnn.pad_packed_sequence(states, batch_first=True, total_length=src.size(1))[0]

    def attend(self, queries: Tensor, memory: Tensor, keys: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """What the queries `[B, T, h]` find in the memory `[B, S, h]`: contexts, and weights `[B, T, S]`."""
        scores = self.score(torch.tanh(self.query(queries)[:, :, None] + keys[:, None]))[..., 0]
        weights = scores.masked_fill(~mask[:, 0], -torch.inf).softmax(dim=-1)
        return weights @ memory, weights

    def decode(
        self,
        tgt: Tensor,
        memory: Tensor,
        mask: Tensor,
        keys: Tensor,
        states: tuple[Tensor | None, Tensor | None],
    ) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor]:
        """Read target tokens `[B, T]`; return logits `[B, T, V]`, the layers' last states and the weights."""
        asked, first = self.asking(self.dropout(self.embedding(tgt)), states[0])
        context, weights = self.attend(asked, memory, keys, mask)
        found = self.dropout(torch.cat([asked, context], dim=-1))
        written, second = self.writing(found, states[1])
        hidden = torch.tanh(self.output(self.dropout(torch.cat([written, context], dim=-1))))
        logits = nn.functional.linear(self.dropout(hidden), self.embedding.weight, self.bias)
        return logits, (first, second), weights

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        """Logits `[B, T, V]` of the tokens that follow those of `tgt`."""
        memory = self.encode(src)
        return self.decode(tgt, memory, self.src_mask(src), self.key(memory), (None, None))[0]


class RecurrentState(DecoderState):
    """What a search asks of a `Recurrent`."""

    def __init__(self, model: Recurrent, src: Tensor, beam_size: int = 1) -> None:
        self.recurrent = model
        memory, mask = model.encode(src), model.src_mask(src)
        self.memory, self.mask, self.keys = (
            x.repeat_interleave(beam_size, dim=0) for x in (memory, mask, model.key(memory))
        )
        self.states: tuple[Tensor | None, Tensor | None] = (None, None)

    def step(self, last: Tensor) -> Tensor:
        """Read one more token in every row, `last` `[N]`; return the logits of the next, `[N, V]`."""
        logits, self.states, _ = self.recurrent.decode(
            last[:, None], self.memory, self.mask, self.keys, self.states
        )
        return logits[:, -1]

    def keep(self, rows: Tensor) -> None:
        """Go on with the rows `rows` `[N]` in that order, each as often as it is named."""
        self.memory, self.mask, self.keys = self.memory[rows], self.mask[rows], self.keys[rows]
        self.states = tuple(x[:, rows] for x in self.states)


@decoder_state.register
def _recurrent_state(model: Recurrent, src: Tensor, beam_size: int = 1) -> DecoderState:
    return RecurrentState(model, src, beam_size)
