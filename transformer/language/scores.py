"""transformer.language.scores, from book/13-translation.ipynb, "Portuguese to English".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = ["corpus_scores"]


# %% book/13-translation.ipynb · BLEU: how good is a translation? · [translation-imports]
import json
import re
from collections.abc import Sequence
from typing import Any

from transformer.language.corpora import AS_IT_IS, Preparation
from transformer.validation import check_size, check_type, optional_import


# %% book/13-translation.ipynb · BLEU: how good is a translation? · [corpus-scores]
def corpus_scores(
    hypotheses: Sequence[str],
    references: Sequence[str],
    n_bootstrap: int = 0,
    preparation: Preparation = AS_IT_IS,
) -> dict[str, dict[str, Any]]:
    """BLEU, chrF and exact match of translations, each with the signature that says how.

    Args:
        hypotheses: translations in the form that training showed.
        references: one reference translation for each, in the same form.
        n_bootstrap: how many corpora to draw from this one for a 95% interval; 0 or 1 for none.
        preparation: what gave both sides their form, such as the `CORPORA` of this book. Case counts
            where it keeps case.

    Returns:
        for `"BLEU-tok"` (on the tokens as they are, of a preparation that separates them), `"BLEU-detok"`
        (both sides as one types them, then sacreBLEU's own tokenization: `13a`, `zh` for Chinese, or
        `char` for other scripts without spaces between words), `"chrF2"` (as one types them) and
        `"exact"` (equal sentences) the `"score"` from 0 to 100, the `"signature"`, and sacreBLEU's
        `"line"` to print. With an `n_bootstrap` of at least 2 also the `"mean"` over the corpora drawn
        and the `"margin"`: the interval is mean ± margin.

    Raises:
        TypeError, ValueError: they are not lists of strings, equally many and at least one; or
            another argument is of the wrong type, or negative.

    Source: Papineni et al. (2002); Post (2018); Popović (2015); Koehn (2004) for the interval.
    """
    check_type((list, tuple), hypotheses=hypotheses, references=references)
    if not references or len(hypotheses) != len(references):
        given = f"{len(hypotheses)} and {len(references)}"
        raise ValueError(f"hypotheses and references must be equally many and at least one, not {given}")
    check_size(minimum=0, n_bootstrap=n_bootstrap)
    check_type(Preparation, preparation=preparation)
    metrics = optional_import("sacrebleu.metrics")
    fold, restore = preparation.name != AS_IT_IS.name, preparation.restore
    typed = [restore(text) for text in hypotheses], [restore(text) for text in references]
    cut = _bleu_tokenization(typed[1])
    measured = {
        "BLEU-tok": (metrics.BLEU(lowercase=fold, tokenize="none", force=True), (hypotheses, references)),
        "BLEU-detok": (metrics.BLEU(lowercase=fold, tokenize=cut), typed),
        "chrF2": (metrics.CHRF(lowercase=fold), typed),
    }
    if preparation.name != "tokenized" or cut != "13a":  # spaces separate no tokens
        del measured["BLEU-tok"]
    scores = {name: _measured(metric, *sides, n_bootstrap) for name, (metric, sides) in measured.items()}
    return scores | {"exact": _equal(hypotheses, references, n_bootstrap, fold)}


# %% book/13-translation.ipynb · BLEU: how good is a translation? · [measured]
_HAN = r"[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
_UNSPACED = (  # kana, Thai, Lao, Tibetan, Burmese, Khmer, Tai, Javanese, Balinese
    r"[\u0e00-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf\u1b00-\u1b7f\u3040-\u30ff\u31f0-\u31ff"
    r"\ua980-\ua9ff\uaa60-\uaa7f\uff66-\uff9f]"
)


def _bleu_tokenization(references: Sequence[str]) -> str:
    # Where words have no spaces between them, BLEU needs another cut than at spaces.
    text = "".join(references)
    han, others = (len(re.findall(script, text)) for script in (_HAN, _UNSPACED))
    if 4 * (han + others) <= len(text):
        return "13a"
    return "char" if 10 * others > han else "zh"  # Japanese has kana between its Han characters


def _measured(
    metric: Any, hypotheses: Sequence[str], references: Sequence[str], n_bootstrap: int
) -> dict[str, Any]:
    result = metric.corpus_score(list(hypotheses), [list(references)], n_bootstrap=n_bootstrap)
    signature = str(metric.get_signature())
    facts = json.loads(result.format(signature=signature, is_json=True))
    line = result.format(signature=signature)
    score = {"score": facts["score"], "signature": signature, "line": line}
    if n_bootstrap > 1:  # the library says nothing about a mean of 0
        score["mean"] = facts.get("confidence_mean", 0.0)
        score["margin"] = facts.get("confidence_var", 0.0)
    return score


def _equal(
    hypotheses: Sequence[str], references: Sequence[str], n_bootstrap: int, fold: bool
) -> dict[str, Any]:
    if fold:
        hypotheses, references = ([text.lower() for text in side] for side in (hypotheses, references))
    n, right = len(references), sum(map(str.__eq__, hypotheses, references))
    share, signature = right / n, f"nrefs:1|case:{'lc' if fold else 'mixed'}"
    line = f"exact|{signature} = {100 * share:.1f} ({right:,} of {n:,})"
    score: dict[str, Any] = {"score": 100 * share, "signature": signature}
    if n_bootstrap > 1:  # what the interval would be in the limit of many corpora
        score["mean"], score["margin"] = 100 * share, 196 * (share * (1 - share) / n) ** 0.5
        line += f" ± {score['margin']:.1f}"
    return score | {"line": line}
