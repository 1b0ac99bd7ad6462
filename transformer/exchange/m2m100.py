"""M2M-100 and NLLB-200, read and written."""

from pathlib import Path
from typing import Any
import torch
from torch import Tensor
from transformer.embedding import PositionalEncoding
from transformer.exchange.marian import FIELDS, Family, read_model, write_model
from transformer.model import Transformer, TransformerConfig
from transformer.validation import check_choice, check_size

__all__ = ["M2M100Positions", "M2M100Transformer", "from_m2m100", "to_m2m100"]


_FIRST = 2  # the position of the first token, as padding, token 1, has the one before


class M2M100Positions(PositionalEncoding):
    """Adds the positions of M2M-100 to a sequence of vectors, then applies dropout.

    Arguments as in `PositionalEncoding`. All sines come before all cosines.
    """

    @staticmethod
    def _compute(length: int, d_model: int, dtype: torch.dtype | None = None) -> Tensor:
        n = d_model // 2
        numbers = torch.arange(max(n, _FIRST + length), dtype=torch.float64, device="cpu")
        angle = numbers[_FIRST : _FIRST + length, None] * 10000.0 ** (-numbers[:n] / (n - 1))  # [length, n]
        return torch.cat([angle.sin(), angle.cos()], dim=1).to(dtype or torch.get_default_dtype())


class M2M100Transformer(Transformer):
    """A `Transformer` with the positions of M2M-100.

    Args:
        config: as in `Transformer`; with an even width, at least 4, and padding as token 1.

    Raises:
        TypeError, ValueError: as in `Transformer`, or M2M-100 has no such model.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        check_size(minimum=4, d_model=config.d_model)
        check_choice([0], **{"d_model % 2": config.d_model % 2})
        check_choice([_FIRST - 1], pad_id=config.pad_id)
        if config.bos_id == config.pad_id:
            raise ValueError(f"pad_id and bos_id must differ here, but both are {config.pad_id}")
        self.positions = M2M100Positions(config.d_model, config.dropout, config.max_length)


_M2M100 = Family(
    "M2M100", "m2m_100", "M2M100ForConditionalGeneration", M2M100Transformer, True,
    FIELDS, "embed_positions.weights", _FIRST, False,
)  # fmt: skip


def from_m2m100(model: Any) -> M2M100Transformer:
    """Make a `Transformer` that computes what an M2M-100 or NLLB-200 model does, with copies of its weights.

    Args:
        model: a `transformers.M2M100ForConditionalGeneration`, or the path of a folder that holds one as
            safetensors, for which `transformers` is not needed.

    Returns:
        A `Transformer` with their positions, of the same dtype, device and mode; that of a folder is in
        evaluation mode. No layer is dropped in training. Its start token is their
        `decoder_start_token_id`; that a language comes next is for `Constrained`, and `M2M100Translator`
        has it.

    Raises:
        TypeError, ValueError, OSError, CheckpointError, ImportError: as in `from_marian`.
    """
    ours: M2M100Transformer = read_model(model, _M2M100)
    return ours


def to_m2m100(model: M2M100Transformer, folder: str | Path) -> None:
    """Write a folder from which Hugging Face's transformers loads an M2M-100 model with the weights of ours.

    Args:
        model: an `M2M100Transformer`, pre-norm with norms on top, with biases and one table.
        folder: where `config.json`, `generation_config.json` and `model.safetensors` are written.

    Raises:
        TypeError: `model`, or a part of it, is of another type, such as a `Transformer`, whose positions
            M2M-100 does not have.
        ValueError, OSError, ImportError: as in `to_marian`.
    """
    write_model(model, folder, _M2M100)
