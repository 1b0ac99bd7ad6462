"""Translators on the Hugging Face hub."""

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, Self
import torch
from transformer.files import atomic_file
from transformer.language.folder import SUMS, translator_folder
from transformer.language.vocabulary import Vocabulary
from transformer.language.wording import AS_IT_IS, Preparation
from transformer.model import Transformer, TransformerConfig
from transformer.validation import check_type, optional_import

__all__ = ["pretrained_folder", "asking_hub", "model_card", "OnHub"]


_FETCHED = ("*.json", "*.safetensors", "*.spm", SUMS)  # reading them executes nothing
_REFUSALS = {
    "RepositoryNotFoundError": "there is none of that name, or it is private",
    "GatedRepoError": "its owner has to admit you first",
    "RevisionNotFoundError": "it has no such revision",
    "LocalEntryNotFoundError": "the hub cannot be reached, and the model was not fetched before",
    "OfflineModeIsEnabled": "the library was told to work offline",
}


def pretrained_folder(name: Path | str, **download: Any) -> Path:
    """The folder of a model: one that is here, or a copy of what the Hugging Face hub has under that name.

    Args:
        name: a folder, the name of a translator that the package carries, or `"OWNER/NAME"`.
        **download: as in `huggingface_hub.snapshot_download`, such as `revision`, `token`,
            `cache_dir` or `local_files_only`.

    Raises:
        TypeError: `name` is neither a string nor a `Path`.
        OSError: there is no such folder, and no such name on the hub; the hub has no safetensors
            for it, or cannot be reached.
        ImportError: huggingface_hub is missing.
    """
    check_type((str, Path), name=name)
    on_hub = isinstance(name, str) and re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name)
    if not on_hub or Path(name).is_dir():
        return translator_folder(name)
    hub = optional_import("huggingface_hub")
    with asking_hub(str(name)):
        folder = Path(hub.snapshot_download(name, allow_patterns=_FETCHED, **download))
    if not any(folder.glob("*.safetensors")):
        kinds = "(t.AutoModelForSeq2SeqLM, t.AutoTokenizer)"
        once = f"[kind.from_pretrained('{name}').save_pretrained('FOLDER') for kind in {kinds}]"
        raise FileNotFoundError(
            f"the hub's {name} holds no weights in the format safetensors; where it has them in another, "
            f'convert them once, and name FOLDER instead: python -c "import transformers as t; {once}"'
        )
    return folder


@contextmanager
def asking_hub(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the library and those beneath it raise some fifty types of error
        kind = type(error).__name__
        said = _REFUSALS.get(kind) or f"{kind}: {str(error).strip():.200}"
        raise OSError(f"{name} on the Hugging Face hub: {said}") from error


_CARD = """\
---
{language}library_name: transformer-book
pipeline_tag: translation
---

# A translator{between}

An encoder-decoder Transformer. The package `transformer-book`, with its extra `text`, runs it:

```python
from transformer import Translator

Translator.from_pretrained("{name}").translate(["{example}"])
```

It reads single sentences of up to {max_length} tokens, {form}.

| setting | value |
| --- | --- |
"""
_FORMS = {
    "as it is": "as they are written",
    "lower case": "which it brings to lower case; translations are in lower case",
    "tokenized": "which it brings to lower case and splits into tokens; translations are in lower case",
}
_TRAINED = """
## Training

| | |
| --- | --- |
| command | `{command}` |
| commit | `{commit}` |
| date | {date} |
| device | {device} |
| corpus | {corpus} |

## Scores

On {scored}:

```text
{scores}
```
"""


def model_card(
    config: TransformerConfig,
    record: Mapping[str, Any] | None,
    name: str,
    preparation: Preparation = AS_IT_IS,
) -> str:
    """The text of a translator's `README.md` on the Hugging Face hub.

    Args:
        config: the model's.
        record: what was noted of its training, as `translation_record` returns it, or `None`.
        name: what the card's example loads it by.
        preparation: the translator's. The card names languages only if it does.

    Raises:
        TypeError, ValueError: `record` is not that of a translator.
    """
    check_type(TransformerConfig, config=config)
    check_type((Mapping, type(None)), record=record)
    check_type(Preparation, preparation=preparation)
    facts = {"language": "", "between": "", "example": "…"}
    if preparation.languages:
        source, target = preparation.languages
        facts["language"] = f"language: {json.dumps(preparation.languages)}\n"
        facts["between"] = f" from {source} to {target}"
        facts["example"] = "Gosto disto." if source == "pt" else "…"
    facts |= {"name": name, "max_length": str(config.max_length - 1), "form": _FORMS[preparation.name]}
    rows = [f"| {setting} | {value} |\n" for setting, value in asdict(config).items()]
    card = "".join([_CARD.format(**facts), *rows])
    if record is None:
        return card
    try:
        facts = {fact: record[fact] for fact in ("command", "commit", "date", "device")}
        facts["corpus"], scores = record["recipe"]["data"]["corpus"], record["scores"]
        if own := scores.get("held out"):
            facts["scored"] = f"{own['pairs']:,} pairs that training did not show"
            measured = own["beam 4"]
        else:
            facts["scored"], measured = "the test split of the corpus", scores["test"]["tuned"]
        facts["scores"] = "\n".join(score["line"] for score in measured.values())
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"record is not that of a translator: {error!r}") from error
    return card + _TRAINED.format(**facts)


class OnHub(Protocol):
    """A model with its vocabulary that can `save` and `load` a folder, and so be kept on a hub."""

    model: Transformer
    vocabulary: Vocabulary
    engine: str

    @classmethod
    def load(
        cls, path: Path | str, device: torch.device | str | None = None, engine: str = "pytorch"
    ) -> Self:
        """Read it from a folder."""

    def save(self, path: Path | str) -> None:
        """Write it into a folder."""

    @property
    def preparation(self) -> Preparation:
        """What is done to every sentence, and to every translation."""
        return self.vocabulary.preparation

    @classmethod
    def from_pretrained(
        cls, name: Path | str, *, device: torch.device | str | None = None, engine: str = "pytorch",
        **download: Any,
    ) -> Self:
        """`load`, which fetches a translator from the Hugging Face hub where no folder has that name.

        Args:
            name: as in `load`, or `"OWNER/NAME"`.
            device: to translate on; `None` for the `best_device`.
            engine: what runs the searches, as in `Translator`.
            **download: as in `pretrained_folder`.

        Raises:
            TypeError, OSError, CheckpointError, ValueError, ImportError: as in `load` and
                `pretrained_folder`.
        """
        return cls.load(pretrained_folder(name, **download), device, engine)

    def save_pretrained(
        self, path: Path | str, *, record: Mapping[str, Any] | None = None,
        repo_id: str = "OWNER/NAME",
    ) -> None:
        """`save`, with a model card beside it.

        Args:
            path: the folder.
            record: what was noted of the training, as `translation_record` returns it.
            repo_id: the model's name on the hub, for the card's example.

        Raises:
            TypeError, ValueError, OSError: as in `save` and `model_card`.
        """
        card = model_card(self.model.config, record, repo_id, self.preparation)
        self.save(path)
        with atomic_file(Path(path) / "README.md") as part:
            part.write_text(card, encoding="utf8")

    def push_to_hub(
        self, repo_id: str, *, record: Mapping[str, Any] | None = None,
        commit_message: str = "Add a translator", private: bool | None = None,
        token: str | None = None,
    ) -> str:
        """Upload what `save_pretrained` writes, as one commit; the repository is made if missing.

        Args:
            repo_id: its name, `"OWNER/NAME"`.
            record: as in `save_pretrained`.
            commit_message: of the commit.
            private: whether a new repository is; `None` for its owner's default.
            token: of an account; `None` for the one that has logged in.

        Returns:
            the address of the commit.

        Raises:
            TypeError, ValueError: as in `save_pretrained`.
            OSError: the hub refuses, or cannot be reached.
            ImportError: huggingface_hub is missing.
        """
        hub = optional_import("huggingface_hub").HfApi(token=token)
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder, record=record, repo_id=repo_id)
            with asking_hub(repo_id):
                hub.create_repo(repo_id, private=private, exist_ok=True)
                what = {"folder_path": folder, "commit_message": commit_message}
                return str(hub.upload_folder(repo_id=repo_id, **what))
