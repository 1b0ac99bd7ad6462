"""Whether the grammar of Small Portuguese could have drawn a sentence: its rules, with dice that are told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from experiments.small_portuguese import (
    COMPOUNDS,
    CONTRACTIONS,
    DETERMINERS,
    FIXED_ENGLISH,
    FRAMES,
    MASS,
    NAMES,
    NOUNS,
    PLACES,
    SENTENCES,
    Dice,
    Frame,
    Nominal,
    Noun,
    T,
    agree,
    attach_clitic,
    comparing,
    conjugate,
    feeling,
    plural_of,
    pointing,
    profession,
    pronoun_object,
)

_VERBS = {
    *(frame.verb for frame in FRAMES),
    *(auxiliary for auxiliary, _, _ in COMPOUNDS.values()),
    *"ser dar mostrar pôr vir viver".split(),
}
_SIMPLE, _PERSONS = ("present", "perfect", "imperfect", "future"), range(5)


@lru_cache
def _forms_of(verbs: frozenset[str], tenses: tuple[str, ...], persons: Sequence[int]) -> frozenset[str]:
    """What verbs look like in some tenses and persons, with and without a pronoun at the end."""
    forms = {conjugate(verb, tense, person) for verb in verbs for tense in tenses for person in persons}
    if len(verbs) == 1 and len(tenses) > 1:
        forms |= verbs  # the infinitive, after an auxiliary
    clitics = ("o", "a", "os", "as", "me", "te", "nos")
    return frozenset(forms | {attach_clitic(form, clitic) for form in forms for clitic in clitics})


@lru_cache
def _words_of(item: Any) -> frozenset[str]:
    """Words of which a sentence has at least one if its dice chose this; empty where nothing can be told."""
    if isinstance(item, Frame):
        return _forms_of(frozenset([item.verb]), _SIMPLE, _PERSONS)
    if isinstance(item, Noun):
        return frozenset((item.pt, plural_of(item.pt)))
    if isinstance(item, Nominal):  # a subject, perhaps one that only the verb names
        named = _forms_of(frozenset(_VERBS), _SIMPLE, (item.person,)) if item.person in (0, 1, 3) else ()
        return frozenset([item.pt.split()[0], *named])
    if isinstance(item, str):
        return _words_of_name(item)
    if not isinstance(item, tuple) or len(item) != 2:
        return frozenset()
    first, *others = item[0].replace("_", " ").split() or [""]
    if first in _VERBS:
        return _forms_of(frozenset([first]), _SIMPLE, _PERSONS)
    agreeing = {agree(first, feminine, plural) for feminine in (False, True) for plural in (False, True)}
    return frozenset([*others[-1:]] if others else agreeing if first else [])


def _words_of_name(name: str) -> frozenset[str]:
    """The same for a tense, a determiner, a noun, a place, or somebody's name."""
    tense = name.replace("_", " ")
    if tense in COMPOUNDS:
        auxiliary, its_tense, _ = COMPOUNDS[tense]
        return frozenset(conjugate(auxiliary, its_tense, person) for person in _PERSONS)
    if tense in _SIMPLE:
        there = {"present": ["há"], "imperfect": ["havia"]}.get(tense, [])
        return _forms_of(frozenset(_VERBS), (tense,), _PERSONS).union(there)
    if name in DETERMINERS:
        return frozenset(form.split("_")[-1] for form in DETERMINERS[name].forms.split() if form != "_")
    if name in NOUNS:
        return _words_of(NOUNS[name])
    return frozenset([name] if name in NAMES or name in PLACES or name in FIXED_ENGLISH else [])


_OVERRIDDEN = {*_SIMPLE, *COMPOUNDS, *DETERMINERS, *NAMES}  # chosen at times before it is needed
_UNSAID: dict[Any, tuple[type, ...]] = {  # of what kind a choice may be that is not said after all
    profession: (Nominal, Noun),
    comparing: (Noun,),
    pointing: (Noun,),
    feeling: (tuple,),
}


class _NoSuchSentence(Exception):
    """What the dice were told to choose leads elsewhere."""


class _Undecided(Exception):
    """The script has ended; holds how many choices there are."""


class _Scripted(Dice):
    """Dice that choose by a script, and only what can lead to the sentence."""

    def __init__(
        self, sentence: str, words: frozenset[str], kind: Callable[..., Any], script: tuple[int, ...]
    ) -> None:
        self._sentence, self._words, self._script, self._thrown = f" {sentence} ", words, script, 0
        self._unsaid = _UNSAID.get(kind, ())
        if kind is pronoun_object and "," not in words:
            self._unsaid = (Noun,)
        self._hidden = kind in (profession, comparing)  # where a whole noun phrase may be unsaid

    def _throw(self, n_choices: int) -> int:
        if n_choices < 2:
            return 0
        if self._thrown == len(self._script):
            raise _Undecided(n_choices)
        self._thrown += 1
        return self._script[self._thrown - 1]

    def _possible(self, item: Any) -> bool:
        words = _words_of(item)
        return not words or not words.isdisjoint(self._words)

    def chance(self, probability: float) -> bool:
        return 0 < probability and bool(self._throw(2))

    def pick(self, items: Sequence[T]) -> T:
        kept = list(dict.fromkeys(item for item in items if self._possible(item)))
        first = items[0]
        if type(first) is Noun and Noun in self._unsaid:
            others: list[Any] = [item for item in items if not self._possible(item)]
            others.sort(key=lambda noun: noun.kind not in (*MASS, "kin"))  # last what has a plural
            kept += {noun.feminine: noun for noun in others}.values()
        known = isinstance(first, str) and first.replace("_", " ") in _OVERRIDDEN
        if not kept and (known or type(first) in self._unsaid):
            kept = [first]  # another choice takes its place
        if not kept:
            raise _NoSuchSentence
        return kept[self._throw(len(kept))]

    def said(self, nominal: Nominal) -> Nominal:
        _, _, rest = nominal.pt.partition(" ")  # its first word may have contracted
        if f" {rest or nominal.pt} " not in self._sentence and not self._hidden:
            raise _NoSuchSentence
        return nominal

    def again(self, sentence: Callable[[Any], T]) -> T:
        raise _NoSuchSentence  # to begin anew finds nothing new

    def denial(self, subject: Nominal, tense: str = "present") -> str:
        return super().denial(subject, tense) if "não" in self._words else ""


def accepts(sentence: str) -> bool:
    """Whether `phrase_stream` can draw a sentence, written as in the stream: ``"gosto do gato ."``."""
    tokens = sentence.split()
    melted = {word for (_, word), form in CONTRACTIONS.items() if form in tokens}
    words = frozenset(tokens) | melted
    if not tokens or tokens[-1] not in (".", "?"):
        return False
    kinds = dict.fromkeys(SENTENCES)
    for kind in [pronoun_object] if "," in tokens else kinds:  # no other kind has a comma
        scripts: list[tuple[int, ...]] = [()]
        while scripts:
            script = scripts.pop()
            try:
                if kind(_Scripted(sentence, words, kind, script))[1] == sentence:
                    return True
            except _Undecided as undecided:
                scripts += [(*script, choice) for choice in range(undecided.args[0])]
            except _NoSuchSentence:
                pass
    return False
