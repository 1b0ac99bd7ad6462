"""transformer.language.hub, from book/F-translator.ipynb, "Workshop F: The translator".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = ["pretrained_folder", "asking_hub", "model_card"]


# %% book/F-translator.ipynb · On a hub · [hub-imports]
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformer.language.folder import SUMS, translator_folder
from transformer.language.wording import AS_IT_IS, Preparation
from transformer.model import TransformerConfig
from transformer.validation import check_type, optional_import


# %% book/F-translator.ipynb · On a hub · [hub-folder]
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
        raise FileNotFoundError(f"the hub's {name} holds no weights in the format safetensors")
    return folder


@contextmanager
def asking_hub(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the library and those beneath it raise some fifty types of error
        kind = type(error).__name__
        said = _REFUSALS.get(kind) or f"{kind}: {str(error).strip():.200}"
        raise OSError(f"{name} on the Hugging Face hub: {said}") from error


# %% book/F-translator.ipynb · A model card · [card-text]
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


# %% book/F-translator.ipynb · A model card · [model-card]
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
