"""The grammar that wrote Small Portuguese, the corpus of the package; small_portuguese.toml has its words.

Write it: python -c "from experiments.small_portuguese import write_phrases as w; w('phrases.tsv.gz')"
"""

import gzip
import random
import re
import tomllib
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

with open(Path(__file__).with_suffix(".toml"), "rb") as _file:
    LEXICON: dict[str, Any] = tomllib.load(_file)


def read_rows(text: str) -> list[tuple[str, str]]:
    """Read ``"fome hungry, pressa in a hurry"`` as pairs of a word and what is said of it."""
    rows = (row.split(maxsplit=1) for row in text.replace("\n", " ").strip().split(", "))
    return [(word, said) for word, said in rows]


def _spaced(text: str) -> tuple[tuple[str, str], ...]:
    """The same where the word itself has blanks, written "_"."""
    return tuple((word.replace("_", " "), said) for word, said in read_rows(text))


def conjugate(infinitive: str, tense: str, person: int) -> str:
    """The form of a verb for a person, 0 eu, 1 tu, 2 ele, 3 nós, 4 eles: ``("comer", "present", 3)`` gives
    ``"comemos"``."""
    if tense == "future":
        stem = LEXICON["future_stems"].get(infinitive, infinitive)
        return stem + LEXICON["endings"]["future"]["all"].split()[person]
    irregular = LEXICON["irregular"].get(infinitive, {})
    if tense in irregular:
        return irregular[tense].split()[person]
    stem, conjugation = infinitive[:-2], infinitive[-2:]
    ending = LEXICON["endings"][tense][conjugation].split()[person]
    # The sound of the stem stays the same, so its spelling changes: tocar, toquei; conhecer, conheço.
    if conjugation == "ar" and ending[0] == "e":
        stem = stem[:-1] + {"c": "qu", "g": "gu", "ç": "c"}.get(stem[-1:], stem[-1:])
    elif conjugation != "ar" and ending[0] == "o":
        stem = stem[:-1] + {"c": "ç", "g": "j"}.get(stem[-1:], stem[-1:])
    return stem + ending


def _identifies_person(infinitive: str, tense: str, person: int) -> bool:
    forms = [conjugate(infinitive, tense, other) for other in range(5)]
    return person in (0, 1, 3) and forms.count(forms[person]) == 1


def _past_looks_present(infinitive: str, person: int) -> bool:
    return conjugate(infinitive, "present", person) == conjugate(infinitive, "perfect", person)


CONTRACTIONS = {
    (preposition, word): melted
    for preposition, rows in LEXICON["contractions"].items()
    for word, melted in read_rows(rows)
}


def contract(preposition: str, phrase: str) -> str:
    """A preposition, perhaps none, and a phrase: ``("de", "o gato")`` gives ``"do gato"``."""
    first, space, others = phrase.partition(" ")
    if (preposition, first) in CONTRACTIONS:
        return CONTRACTIONS[preposition, first] + space + others
    return f"{preposition} {phrase}".strip()


def attach_clitic(form: str, clitic: str) -> str:
    """A verb form with an object pronoun at its end: ``("comer", "o")`` gives ``"comê-lo"``."""
    if clitic in ("me", "te", "nos"):
        return f"{form[:-1] if clitic == 'nos' and form.endswith('mos') else form}-{clitic}"
    if form == "quer":
        return f"quere-{clitic}"
    before_l = LEXICON["before_l"]
    if form[-1] in "rsz":
        ending = next((ending for ending in before_l if form.endswith(ending)), form[-1])
        return f"{form.removesuffix(ending)}{before_l.get(ending, '')}-l{clitic}"
    if form[-1] == "m" or form.endswith(("ão", "õe")):
        return f"{form}-n{clitic}"
    return f"{form}-{clitic}"


def plural_of(noun: str) -> str:
    """The plural of a Portuguese noun or adjective."""
    if noun in LEXICON["plurals"]:
        return LEXICON["plurals"][noun]
    for ending, replacement in (("ão", "ões"), ("m", "ns"), ("l", "is"), ("r", "res"), ("z", "zes")):
        if noun.endswith(ending):
            return noun[: -len(ending)] + replacement
    return noun + "s"


def agree(adjective: str, feminine: bool, plural: bool) -> str:
    """The form of an adjective beside such a noun."""
    if feminine:
        adjective = {"bom": "boa", "mau": "má"}.get(adjective) or (
            adjective[:-1] + "a" if adjective[-1] == "o" else adjective
        )
    return plural_of(adjective) if plural else adjective


_PAST, _PLURAL, _OBJECT_FORM, _NEGATED, _SHORT = (
    dict(read_rows(LEXICON["english"][name])) for name in ("past", "plurals", "objects", "negated", "short")
)
_BE = {
    "present": {"i": "am", "he": "is", "she": "is", "it": "is"},
    "past": {"i": "was", "he": "was", "she": "was", "it": "was"},
}


def _english_s(word: str) -> str:
    if word.endswith(("s", "sh", "ch", "x", "z", "o")) and word != "piano":
        return word + "es"
    return word[:-1] + "ies" if word.endswith("y") and word[-2] not in "aeiou" else word + "s"


def _english_plural(noun: str) -> str:
    first, space, last = noun.rpartition(" ")
    last = _PLURAL.get(last) or _english_s(last)
    return first + space + last


def _inflect(verb: str, ending: str) -> str:
    """``("look for", "ing") -> "looking for"``."""
    verb, space, particle = verb.partition(" ")
    short_vowel = verb in ("run", "swim", "put", "travel", "stop")
    if ending == "s":
        form = {"have": "has"}.get(verb) or _english_s(verb)
    elif ending == "ed" and verb in _PAST:
        form = _PAST[verb]
    elif short_vowel:
        form = verb + verb[-1] + ending
    elif verb.endswith("e") and verb not in ("see", "be"):
        form = verb[:-1] + ending
    elif ending == "ed" and verb.endswith("y") and verb[-2] not in "aeiou":
        form = verb[:-1] + "ied"
    else:
        form = verb + ending
    return form + space + particle


def _article(phrase: str) -> str:
    return ("an " if phrase[0] in "aeiou" and not phrase.startswith("uni") else "a ") + phrase


class Noun(NamedTuple):
    pt: str
    feminine: bool
    en: str
    kind: str


NOUNS = {
    pt: Noun(pt, gender == "f", english, kind)
    for kind, rows in LEXICON["nouns"].items()
    for pt, said in read_rows(rows)
    for gender, english in read_rows(said)
}
HUMANS = ("person", "acquaintance", "trade", "kin")
MASS = ("mass", "dish", "hot", "cool")
NAMES = {name: gender == "feminine" for gender, names in LEXICON["names"].items() for name in names.split()}
QUALITIES, STATES, TENSES = LEXICON["qualities"], LEXICON["states"], LEXICON["tenses"]
PLACES = {
    pt: (article, *said.split(maxsplit=1))
    for article, place in read_rows(LEXICON["places"]["all"])
    for pt, said in read_rows(place)
}
_ONTO, _TRANSPORT = (_spaced(LEXICON["places"][name]) for name in ("onto", "transport"))
FIXED = {kind: dict(read_rows(rows)) for kind, rows in LEXICON["fixed"].items()}
FIXED_ENGLISH = {pt: english for rows in FIXED.values() for pt, english in rows.items()}


class Nominal(NamedTuple):
    """A noun phrase in both languages, with what the words around it must agree with."""

    pt: str
    en: str
    lemma: str
    pronoun: str  # the English one that would replace it: decides the English verb
    person: int = 2  # eu, tu, ele, nós, eles: decides the Portuguese verb
    feminine: bool = False
    plural: bool = False

    @property
    def clitic(self) -> str:
        return ("a" if self.feminine else "o") + ("s" if self.plural else "")


class _Determiner(NamedTuple):
    forms: str  # o a os as; "-" where there is none
    singular: str
    plural: str = ""
    after: str = ""  # what follows the noun: o gato dela


DETERMINERS = {name: _Determiner(*row) for name, row in LEXICON["determiners"].items()}
_POINTING, _OWNED = ("the", "the", "the", "this", "that"), ("my", "your", "our", "his", "her", "their")
_COUNTED = ("two", "three", "many", "some")


def noun_phrase(
    noun: Noun, plural: bool, determiner: _Determiner, adjective: tuple[str, str] | None = None,
    before: bool = False,
) -> Nominal:  # fmt: skip
    """Noun, determiner and adjective made to agree: o gato preto, as maçãs pequenas, a minha irmã."""
    article = determiner.forms.split()[noun.feminine + 2 * plural].replace("_", " ").strip()
    pt = [article, plural_of(noun.pt) if plural else noun.pt, determiner.after]
    en = _english_plural(noun.en) if plural else noun.en
    if adjective:
        place = 1 if before or adjective[0] in ("bom", "mau") else 2  # um bom livro, but um livro caro
        pt.insert(place, agree(adjective[0], noun.feminine, plural))
        en = f"{adjective[1]} {en}"
    en = f"{determiner.plural if plural else determiner.singular} {en}".strip()
    en = _article(en.removeprefix("a ")) if determiner.singular == "a" and not plural else en
    pronoun = "they" if plural else "it"
    if noun.kind in HUMANS and not plural:
        pronoun = "she" if noun.feminine else "he"
    person = 4 if plural else 2
    return Nominal(" ".join(filter(None, pt)), en, noun.pt, pronoun, person, noun.feminine, plural)


def named(name: str) -> Nominal:
    """Somebody with a name: a Ana, o Pedro."""
    feminine = NAMES[name]
    article, pronoun = ("a", "she") if feminine else ("o", "he")
    return Nominal(f"{article} {name}", name, name, pronoun, 2, feminine)


def _both(first: Nominal, second: Nominal) -> Nominal:
    feminine = first.feminine and second.feminine  # one man among them makes them "eles"
    pt, en = f"{first.pt} e {second.pt}", f"{first.en} and {second.en}"
    return Nominal(pt, en, first.lemma, "they", 4, feminine, True)


PRONOUNS = [
    Nominal("eu", "i", "eu", "i", 0),
    Nominal("eu", "i", "eu", "i", 0, True),
    Nominal("tu", "you", "tu", "you", 1),
    Nominal("tu", "you", "tu", "you", 1, True),
    Nominal("ele", "he", "ele", "he", 2),
    Nominal("ela", "she", "ela", "she", 2, True),
    Nominal("nós", "we", "nós", "we", 3, False, True),
    Nominal("nós", "we", "nós", "we", 3, True, True),
    Nominal("vocês", "you", "vocês", "you", 4, False, True),
    Nominal("eles", "they", "eles", "they", 4, False, True),
    Nominal("elas", "they", "elas", "they", 4, True, True),
]
_ANYBODY = [
    Nominal("alguém", "somebody", "alguém", "he"),
    Nominal("toda a gente", "everybody", "toda a gente", "he"),
    Nominal("ninguém", "nobody", "ninguém", "he"),
]
_WHO = Nominal("quem", "who", "quem", "he")
_ATTRACTING = ("quem", *(somebody.pt for somebody in _ANYBODY))  # draw an object pronoun before the verb


COMPOUNDS: dict[str, tuple[str, str, str]] = {
    tense: tuple(row) for tense, row in LEXICON["compounds"].items()
}


def portuguese_verb(verb: str, tense: str, person: int) -> tuple[str, str]:
    """The finite form and what follows it: ``("vão", "comer")``."""
    if tense not in COMPOUNDS:
        return conjugate(verb, tense, person), ""
    auxiliary, its_tense, link = COMPOUNDS[tense]
    return conjugate(auxiliary, its_tense, person), f"{link} {verb}".strip()


def _english_verb(verb: str, tense: str, pronoun: str) -> tuple[str, str, str]:
    """The auxiliary, what follows it, and the one form that replaces both if nothing separates them."""
    third = pronoun in ("he", "she", "it")
    present, past = _BE["present"].get(pronoun, "are"), _BE["past"].get(pronoun, "were")
    if verb == "be":
        auxiliary = {"present": present, "future": "will"}.get(tense, past)
        return auxiliary, "be" if tense == "future" else "", ""
    if tense in ("want", "must"):
        modal = {"want": "want", "must": "have"}[tense]
        tense, verb = "present", f"{modal} to {verb}"
    elif tense == "start":
        tense, verb = "perfect", f"start to {verb}"
    match tense:
        case "present":
            return ("does" if third else "do"), verb, _inflect(verb, "s") if third else verb
        case "perfect":
            return "did", verb, _inflect(verb, "ed")
        case "imperfect":
            return "did", f"use to {verb}", f"used to {verb}"
        case "progressive":
            return present, _inflect(verb, "ing"), ""
        case "past progressive":
            return past, _inflect(verb, "ing"), ""
        case "going":
            return present, f"going to {verb}", ""
        case "future":
            return "will", verb, ""
    return tense, verb, ""  # can


def _clause(
    subject: Nominal, verb: str, english: tuple[str, str, str], tense: str,
    rest: Sequence[tuple[str, str]] = (), polarity: str = "", question: bool = False,
    opening: tuple[str, str] = ("", ""), clitic: str = "", drop: bool = False,
) -> tuple[str, str]:  # fmt: skip
    """A sentence in both languages, affirmed, denied or asked; only its final mark is missing."""
    finite, infinitive = portuguese_verb(verb, tense, subject.person)
    auxiliary = COMPOUNDS[tense][:2] if tense in COMPOUNDS else (verb, tense)
    silent = drop and _identifies_person(*auxiliary, subject.person)
    if clitic and infinitive:
        infinitive = infinitive.rpartition(verb)[0] + attach_clitic(verb, clitic)
    elif clitic and (polarity in ("não", "nunca") or opening[0] or subject.lemma in _ATTRACTING):
        finite = f"{clitic} {finite}"
    elif clitic:
        finite = attach_clitic(finite, clitic)
    before, after = (polarity, "") if polarity in ("não", "nunca") else ("", polarity)
    spoken = "" if silent else subject.pt
    pt = [opening[0], spoken, before, finite, after, infinitive, *(pair[0] for pair in rest)]

    aux, remainder, fused = english
    adverb = {"nunca": "never", "sempre": "always"}.get(polarity, "")
    denied = _NEGATED.get(aux, f"{aux} n't") if polarity == "não" else ""
    if question and subject is not _WHO:
        en = [opening[1], denied or aux, subject.en, adverb, remainder]
    elif denied:
        en = [subject.en, denied, remainder]
    elif fused:
        en = [subject.en, adverb, fused]
    else:
        aux = _SHORT.get(aux, aux) if subject.en == subject.pronoun else aux
        en = [subject.en, aux, adverb, remainder]
    en += [pair[1] for pair in rest]
    return " ".join(word for word in pt if word), " ".join(word for word in en if word)


class Frame(NamedTuple):
    """What a verb may be said of: its English, its objects, its tenses, how and where."""

    verb: str
    preposition: str
    en: str
    objects: tuple[str, ...]  # kinds of nouns, single nouns, "names", kinds of fixed objects
    tenses: str
    known: bool  # the object is a definite one: we like the book, not a book
    clitic: bool  # the object may be a pronoun attached to the verb
    manners: tuple[str, ...]
    places: tuple[str, ...]


def _frame(row: str) -> Frame:
    for group, members in LEXICON["groups"].items():
        row = row.replace(group, members)
    verbs, objects, traits, manners, places = (part.split() for part in row.replace("=", "= ").split(":"))
    equals = verbs.index("=")
    return Frame(
        verb=verbs[0],
        preposition=" ".join(verbs[1:equals]),
        en=" ".join(verbs[equals + 1 :]),
        objects=tuple(objects),
        tenses=traits[0],
        known="known" in traits,
        clitic="clitic" in traits,
        manners=tuple(manners),
        places=tuple(places),
    )


FRAMES = [_frame(row) for row in re.findall(r"^\w.*(?:\n .*)*", LEXICON["verbs"]["frames"], re.MULTILINE)]


_TIMES = {tense: _spaced(rows) for tense, rows in LEXICON["times"].items()}


def _english_of(verb: str, tense: str, tenses: str = "action") -> tuple[str, str]:
    """English verb and tense: "had" for "used to have", and "met" for a "knew" that is over."""
    if tenses == "know" and tense in ("perfect", "want"):
        return "meet", tense
    if tenses in ("state", "know") and tense == "imperfect":
        return verb, "perfect"
    return verb, tense


T = TypeVar("T")


class Dice:
    """Reproducible choices: only ``random()``, whose sequence Python promises to keep, decides them."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def pick(self, items: Sequence[T]) -> T:
        return items[int(self._random() * len(items))]

    def tense(self, tenses: str) -> str:
        return self.pick(TENSES[tenses].split()).replace("_", " ")

    def said(self, nominal: Nominal) -> Nominal:
        return nominal

    def again(self, sentence: Callable[[Any], T]) -> T:
        return sentence(self)

    def denial(self, subject: Nominal, tense: str = "present") -> str:
        possible = subject not in _ANYBODY and subject is not _WHO and tense != "start"
        return "não" if possible and self.chance(0.27) else ""


@lru_cache
def nouns_of(kinds: tuple[str, ...]) -> tuple[Noun, ...]:
    return tuple(noun for noun in NOUNS.values() if noun.kind in kinds or noun.pt in kinds)


def _owner(dice: Dice) -> _Determiner:
    """Whose it is: my, her, or Ana's, or my father's."""
    if dice.chance(0.7):
        return DETERMINERS[dice.pick(_OWNED)]
    person = named(dice.pick(tuple(NAMES)))
    if dice.chance(0.4):
        determiner = DETERMINERS[dice.pick(("my", "your", "our"))]
        person = noun_phrase(dice.pick(nouns_of(("kin",))), False, determiner)
    return _Determiner("o a os as", f"{person.en} 's", f"{person.en} 's", contract("de", person.pt))


def _thing(dice: Dice, noun: Noun, known: bool = False) -> Nominal:
    """A noun with a determiner that suits it, and perhaps an adjective."""
    if noun.kind == "kin":
        return dice.said(noun_phrase(noun, False, _owner(dice)))
    mass = noun.kind in MASS
    plural = not mass and dice.chance(0.25)
    determiner = DETERMINERS[dice.pick(_POINTING)]
    if mass and dice.chance(0.5):
        determiner = DETERMINERS[""]
    elif noun.kind not in ("person", "trade", *MASS) and dice.chance(0.25):
        determiner = _owner(dice)
    elif plural and not known and dice.chance(0.6):
        determiner = DETERMINERS[dice.pick(_COUNTED)]
    elif not plural and not mass and not known and dice.chance(0.5):
        determiner = DETERMINERS["a"]
    described = not determiner.after and dice.chance(0.25)
    adjective = dice.pick(read_rows(QUALITIES[noun.kind])) if described else None
    return dice.said(noun_phrase(noun, plural, determiner, adjective))


def _definite(dice: Dice, *kinds: str) -> Nominal:
    """Something that the listener knows: the cat, these books, my uncle."""
    noun = dice.pick(nouns_of(kinds))
    if noun.kind == "kin":
        return dice.said(noun_phrase(noun, False, _owner(dice)))
    owned = noun.kind not in ("person", "trade", *MASS) and dice.chance(0.2)
    determiner = _owner(dice) if owned else DETERMINERS[dice.pick(_POINTING)]
    return dice.said(noun_phrase(noun, noun.kind not in MASS and dice.chance(0.3), determiner))


def _somebody(dice: Dice, asked: bool = False, *more: str) -> Nominal:
    """A subject that can act; people do not ask questions about themselves."""
    if dice.chance(0.5):
        return dice.pick([pronoun for pronoun in PRONOUNS if not (asked and pronoun.person in (0, 3))])
    if dice.chance(0.35):
        first, second = (named(dice.pick(tuple(NAMES))) for _ in range(2))
        return dice.said(first if first == second or dice.chance(0.7) else _both(first, second))
    if not asked and dice.chance(0.08):
        return dice.pick(_ANYBODY)
    return _thing(dice, dice.pick(nouns_of((*HUMANS, *more))), known=True)


def _object(dice: Dice, frame: Frame) -> tuple[str, str, str]:
    """An object of the frame: Portuguese with the preposition, English, and the word that it is about."""
    pool = [noun.pt for noun in nouns_of(frame.objects)]
    pool += [pt for kind in frame.objects if kind in FIXED for pt in FIXED[kind]]
    pool += NAMES if "names" in frame.objects else ()
    word = dice.pick(pool)
    if word in FIXED_ENGLISH:
        return contract(frame.preposition, word), FIXED_ENGLISH[word], word
    nominal = named(word) if word in NAMES else _thing(dice, NOUNS[word], frame.known)
    return contract(frame.preposition, nominal.pt), nominal.en, word


def _at(place: str) -> tuple[str, str]:
    article, preposition, english = PLACES[place]
    return contract("em", f"{article} {place}"), f"{preposition} {english}"


_Marked = tuple[str, str, str]  # what a sentence is about, its Portuguese, its English


def _mark(about: str, sentence: tuple[str, str], question: bool = False) -> _Marked:
    mark = " ?" if question else " ."
    return about, sentence[0] + mark, sentence[1] + mark


def _time(dice: Dice, verb: str, tense: str, subject: Nominal, often: float) -> list[tuple[str, str]]:
    """Perhaps when it happens; always where the verb alone leaves open whether it is over."""
    if tense == "perfect" and subject.person == 3 and _past_looks_present(verb, 3):
        return [dice.pick(_TIMES["perfect"])]
    return [dice.pick(_TIMES[tense])] if tense in _TIMES and dice.chance(often) else []


def _say(
    dice: Dice, about: str, subject: Nominal, verb: str, english: tuple[str, str], tense: str,
    rest: Sequence[tuple[str, str]] = (), often: float = 0.0, question: bool = False, **manner: Any,
) -> _Marked:  # fmt: skip
    """Finish a sentence: the time, the subject that need not be said, the mark at the end."""
    rest = [*rest, *_time(dice, verb, tense, subject, often)]
    words = _english_verb(*english, subject.pronoun)
    drop = dice.chance(0.6)
    sentence = _clause(subject, verb, words, tense, rest, question=question, drop=drop, **manner)
    return _mark(about, sentence, question)


_WITH_OBJECT = [frame for frame in FRAMES if frame.objects]
_WHY, _WHEN = ("porque é que", "why"), ("quando é que", "when")


def doing(dice: Dice) -> _Marked:
    """a menina gosta do gato preto . | the girl likes the black cat ."""
    frame, question = dice.pick(_WITH_OBJECT), dice.chance(0.2)
    subject = _WHO if question and dice.chance(0.15) else _somebody(dice, question)
    tense = dice.tense(frame.tenses)
    pt, en, word = _object(dice, frame)
    if word == subject.lemma:
        return dice.again(doing)
    dated = frame.tenses in ("action", "event")
    polarity, often, opening = dice.denial(subject, tense), 0.2 if dated else 0.0, ("", "")
    if not question and subject not in _ANYBODY and tense in ("present", "perfect") and dice.chance(0.1):
        polarity, often = "sempre" if dated and tense == "present" and dice.chance(0.5) else "nunca", 0.0
    if question and subject is not _WHO and dice.chance(0.4):
        opening, often = _WHY, 0.0
        if dated and tense in ("perfect", "going", "future") and not polarity and dice.chance(0.5):
            opening = _WHEN
    rest = [(pt, en)]
    if frame.places and dice.chance(0.2):
        rest.append(_at(dice.pick(frame.places)))
    about = f"{frame.verb} {frame.preposition} {word}"
    english = _english_of(frame.en, tense, frame.tenses)
    manner = {"polarity": polarity, "opening": opening}
    return _say(dice, about, subject, frame.verb, english, tense, rest, often, question, **manner)


_ALONE = [frame for frame in FRAMES if frame.manners]


def doing_alone(dice: Dice) -> _Marked:
    """o cavalo corre depressa . | the horse runs fast ."""
    frame, question = dice.pick(_ALONE), dice.chance(0.2)
    manners = dict(read_rows(LEXICON["small"]["manners"]))
    animals = ("animal",) if frame.verb in ("dormir", "correr", "nadar") else ()
    subject, tense = _somebody(dice, question, *animals), dice.tense(frame.tenses)
    manner, polarity = dice.pick(frame.manners), dice.denial(subject, tense)
    rest = [(manner, manners[manner])]
    if manner in ("mal", "pouco") and (polarity or tense not in ("present", "perfect", "imperfect")):
        return dice.again(doing_alone)  # nobody plans to dance badly
    if frame.places and dice.chance(0.4):
        rest = rest[: dice.chance(0.5)] + [_at(dice.pick(frame.places))]
    english = _english_of(frame.en.split()[0], tense)
    about = f"{frame.verb} {subject.lemma}"
    return _say(dice, about, subject, frame.verb, english, tense, rest, 0.2, question, polarity=polarity)


def _quality(dice: Dice, subject: Nominal, plain: bool = False) -> tuple[str, tuple[str, str]]:
    """Ser for what somebody is, estar for the state of the moment; English has "be" for both."""
    kind = NOUNS[subject.lemma].kind if subject.lemma in NOUNS else "person"
    verb = "estar" if kind in STATES and dice.chance(0.5) else "ser"
    pt, en = dice.pick(read_rows((STATES if verb == "estar" else QUALITIES)[kind]))
    pt = agree(pt, subject.feminine, subject.plural)
    return verb, (f"muito {pt}", f"very {en}") if not plain and dice.chance(0.25) else (pt, en)


def being(dice: Dice) -> _Marked:
    """a sopa não está quente . | the soup is n't hot ."""
    question, tense = dice.chance(0.2), dice.tense("be")
    subject = _somebody(dice, question) if dice.chance(0.4) else _definite(dice, *QUALITIES)
    if subject in _ANYBODY:
        return dice.again(being)
    polarity = dice.denial(subject)
    verb, quality = _quality(dice, subject, plain=bool(polarity))
    about = f"ser {subject.lemma} {quality[0].split()[-1][:-1]}"
    english = "be", tense
    return _say(dice, about, subject, verb, english, tense, [quality], 0.0, question, polarity=polarity)


_WITH_CLITIC = [frame for frame in FRAMES if frame.clitic]


def pronoun_object(dice: Dice) -> _Marked:
    """o livro é novo , mas a ana não o lê . | the book is new , but ana does n't read it ."""
    frame, subject = dice.pick(_WITH_CLITIC), _somebody(dice)
    noun = dice.pick([noun for noun in nouns_of(frame.objects) if noun.pt != "criança"])
    determiner = _owner(dice) if noun.kind == "kin" else DETERMINERS[dice.pick(_POINTING)]
    topic = noun_phrase(noun, noun.kind not in (*MASS, "kin") and dice.chance(0.3), determiner)
    of_people = "acquaintance" in frame.objects
    if subject.lemma == noun.pt or (of_people and topic.clitic == "os" and subject.person == 4):
        return dice.again(pronoun_object)  # ajudam-nos would be "they help us" as well
    joint = dice.pick((None, None, ("e", "and"), ("e", "and"), ("mas", "but"), ("mas", "but")))
    before = dice.tense("be") if joint else "present"
    past, now = ("perfect", "past progressive"), ("present", "perfect", "going", "want", "must")
    tense = dice.pick(past if before == "imperfect" else now)
    tense = {"know": "present", "event": "perfect"}.get(frame.tenses, tense)
    polarity = "" if joint == ("e", "and") else dice.denial(subject, tense)
    pronoun = topic.pronoun
    if not joint and not topic.plural:  # nothing says what it stands for: people are helped, things eaten
        pronoun = ("she" if topic.feminine else "he") if of_people else "it"
    about = f"{frame.verb} -{noun.pt if joint else topic.clitic}"
    english, rest = _english_of(frame.en, tense, frame.tenses), [("", _OBJECT_FORM.get(pronoun, pronoun))]
    often = 0.1 if frame.tenses == "action" else 0.0
    about, pt, en = _say(
        dice, about, subject, frame.verb, english, tense, rest, often, polarity=polarity, clitic=topic.clitic
    )
    if joint:
        verb, quality = _quality(dice, topic)
        first = _clause(topic, verb, _english_verb("be", before, topic.pronoun), before, [quality])
        pt, en = f"{first[0]} , {joint[0]} {pt}", f"{first[1]} , {joint[1]} {en}"
    return about, pt, en


_GIVING = (("dar", "give"), ("mostrar", "show"), ("trazer", "bring"))
_GIFTS = ("thing", "reading", "object", "clothes", "maçã", "laranja", "bolo", "água", "café", "chá")
_RECEIVERS = (("me", "me", ("i", "we")), ("te", "you", ("you",)), ("nos", "us", ("i", "we")))


def giving(dice: Dice) -> _Marked:
    """ela dá-me um livro . | she gives me a book ."""
    (verb, en), question = dice.pick(_GIVING), dice.chance(0.2)
    subject, tense = _somebody(dice, question), dice.tense("action")
    gift, polarity = _thing(dice, dice.pick(nouns_of(_GIFTS))), dice.denial(subject, tense)
    clitic, receiver, givers = dice.pick(_RECEIVERS)
    if dice.chance(0.4):
        person = named(dice.pick(tuple(NAMES))) if dice.chance(0.4) else _definite(dice, *HUMANS)
        rest, clitic = [(gift.pt, gift.en), (contract("a", person.pt), f"to {person.en}")], ""
        impossible = person.lemma == subject.lemma
    else:  # in the future the pronoun would stand inside the verb: dar-me-á
        rest = [(gift.pt, f"{receiver} {gift.en}")]
        impossible = subject.pronoun in givers or tense == "future"
    if impossible:
        return dice.again(giving)
    about, manner = f"{verb} {gift.lemma}", {"polarity": polarity, "clitic": clitic}
    return _say(dice, about, subject, verb, (en, tense), tense, rest, 0.15, question, **manner)


_PUT = tuple("caneta caderno relógio telemóvel chave livro carta revista copo prato faca".split())


def putting(dice: Dice) -> _Marked:
    """a joana pôs as chaves na mala . | joana put the keys in the suitcase ."""
    thing, place, question = _thing(dice, dice.pick(nouns_of(_PUT)), True), dice.pick(_ONTO), dice.chance(0.2)
    subject, tense = _somebody(dice, question), dice.tense("action")
    rest, polarity = [(thing.pt, thing.en), place], dice.denial(subject, tense)
    about, english = f"pôr {thing.lemma} {place[0]}", ("put", tense)
    return _say(dice, about, subject, "pôr", english, tense, rest, 0.2, question, polarity=polarity)


_NOT_ASKED = ("conhecer", "visitar", "ajudar", "convidar", "tocar", "jogar", "falar")
_ASKED = [frame for frame in _WITH_OBJECT if not frame.preposition and frame.verb not in _NOT_ASKED]


def asking(dice: Dice) -> _Marked:
    """o que é que a menina come ? | what does the girl eat ?"""
    frame, subject = dice.pick(_ASKED), _somebody(dice, True)
    tense = dice.tense(frame.tenses)
    about, english = f"o que {frame.verb} {subject.lemma}", _english_of(frame.en, tense, frame.tenses)
    often, opening = 0.2 if frame.tenses == "action" else 0.0, ("o que é que", "what")
    return _say(dice, about, subject, frame.verb, english, tense, (), often, True, opening=opening)


_WAYS = (("ir", "a", "go", "to"), ("ir", "a", "go", "to"), ("vir", "de", "come", "from"))


def travelling(dice: Dice) -> _Marked:
    """vamos à praia de carro . | we go to the beach by car ."""
    question, (verb, preposition, en, to) = dice.chance(0.25), dice.pick(_WAYS)
    subject, tense = _somebody(dice, question), dice.tense("go")
    tense = tense if verb == "ir" or tense in ("present", "perfect") else "present"
    place = dice.pick([place for place in PLACES if place != "rua"])
    article, _, english_place = PLACES[place]
    rest = [(contract(preposition, f"{article} {place}"), f"{to} {english_place}")]
    if place not in ("jardim", "cozinha") and dice.chance(0.25):
        rest.append(dice.pick(_TRANSPORT))
    about, polarity = f"{verb} {subject.lemma} {place}", dice.denial(subject)
    return _say(dice, about, subject, verb, (en, tense), tense, rest, 0.25, question, polarity=polarity)


def living(dice: Dice) -> _Marked:
    """vivemos nos açores . | we live in the azores ."""
    question, tense = dice.chance(0.3), dice.tense("live")
    subject, polarity = _somebody(dice, question), ""
    if tense == "perfect" and subject.person == 3 or subject in _ANYBODY:
        return dice.again(living)
    if question and dice.chance(0.4):
        about, opening, rest = f"onde viver {subject.lemma}", ("onde é que", "where"), []
    else:
        place, english_place = dice.pick(read_rows(LEXICON["places"]["homes"]))
        about, opening, polarity = f"viver {subject.lemma} {place}", ("", ""), dice.denial(subject, tense)
        rest = [(place.replace("_", " "), f"in {english_place}")]
    manner = {"polarity": polarity, "opening": opening}
    return _say(dice, about, subject, "viver", ("live", tense), tense, rest, 0.0, question, **manner)


_INSIDE = dict.fromkeys(HUMANS, tuple(PLACES)) | {
    kind: tuple(places.split()) for kind, places in LEXICON["inside"].items()
}


def standing(dice: Dice) -> _Marked:
    """o gato está no jardim . | the cat is in the garden ."""
    subject = dice.pick(PRONOUNS) if dice.chance(0.3) else _definite(dice, *_INSIDE)
    tense, question = dice.tense("be"), subject.person not in (0, 3) and dice.chance(0.25)
    if question and dice.chance(0.6):
        where = f"onde {conjugate('estar', tense, subject.person)} {subject.pt}"
        be = _english_verb("be", tense, subject.pronoun)[0]
        return _mark(f"onde {subject.lemma}", (where, f"where {be} {subject.en}"), True)
    place = dice.pick(_INSIDE[NOUNS[subject.lemma].kind if subject.lemma in NOUNS else "person"])
    about, rest, polarity = f"estar {subject.lemma} {place}", [_at(place)], dice.denial(subject)
    return _say(dice, about, subject, "estar", ("be", tense), tense, rest, 0.0, question, polarity=polarity)


def existing(dice: Dice) -> _Marked:
    """há dois gatos no jardim . | there are two cats in the garden ."""
    noun = dice.pick([noun for noun in nouns_of(tuple(_INSIDE)) if noun.kind != "kin"])
    place, question, tense = dice.pick(_INSIDE[noun.kind]), dice.chance(0.25), dice.tense("be")
    mass = noun.kind in MASS
    plural = not mass and dice.chance(0.5)
    denied = (mass or plural) and dice.chance(0.3)
    whether = question or denied  # there is n't any bread; are there any apples ?
    determiner = "" if mass or plural and whether else dice.pick(_COUNTED) if plural else "a"
    thing = noun_phrase(noun, plural, DETERMINERS[determiner])
    en = f"any {thing.en}" if whether and (mass or plural) else thing.en
    be = _english_verb("be", tense, thing.pronoun)[0] + " n't" * denied
    there = f"{be} there" if question else "there 's" if be == "is" else f"there {be}"
    (pt_place, en_place), verb = _at(place), "há" if tense == "present" else "havia"
    pt = f"{'não ' * denied}{verb} {thing.pt} {pt_place}"
    return _mark(f"haver {noun.pt} {place}", (pt, f"{there} {en} {en_place}"), question)


_TRADES = ("trade", "professor", "professora", "médico", "médica", "aluno", "aluna")


def profession(dice: Dice) -> _Marked:
    """a ana é médica . | ana is a doctor ."""
    subject = dice.pick((dice.pick(PRONOUNS), named(dice.pick(tuple(NAMES))), _definite(dice, "kin")))
    trade = dice.pick([noun for noun in nouns_of(_TRADES) if noun.feminine == subject.feminine])
    praise = dice.pick((None, None, ("bom", "good"), ("grande", "great")))
    article = DETERMINERS["a" if praise and not subject.plural else ""]
    what = noun_phrase(trade, subject.plural, article, praise, before=True)
    en = what.en if praise or subject.plural else _article(what.en)
    question = subject.person not in (0, 3) and dice.chance(0.2)
    tense, polarity = dice.pick(("present", "imperfect", "future")), dice.denial(subject)
    about, rest = f"ser {subject.lemma} {trade.pt}", [(what.pt, en)]
    return _say(dice, about, subject, "ser", ("be", tense), tense, rest, 0.0, question, polarity=polarity)


def comparing(dice: Dice) -> _Marked:
    """o pedro é mais alto do que a ana . | pedro is taller than ana ."""
    pt, en = dice.pick(read_rows(LEXICON["small"]["comparatives"]))
    names = tuple(NAMES)
    one, other = (named(dice.pick(names)) if dice.chance(0.5) else _definite(dice, "kin") for _ in range(2))
    one = dice.pick(PRONOUNS) if dice.chance(0.4) else one
    if one.lemma == other.lemma:
        return dice.again(comparing)
    compared = f"mais {agree(pt, one.feminine, one.plural)} do que {other.pt}", f"{en} than {other.en}"
    about, question = f"mais {pt} {other.lemma}", one.person not in (0, 3) and dice.chance(0.2)
    return _say(dice, about, one, "ser", ("be", "present"), "present", [compared], 0.0, question)


def feeling(dice: Dice) -> _Marked:
    """tenho fome . | i 'm hungry ."""
    question, tense = dice.chance(0.25), dice.tense("be")
    subject, felt = _somebody(dice, question), dice.pick(read_rows(LEXICON["small"]["feelings"]))
    if tense == "present" and not subject.plural and subject not in _ANYBODY and dice.chance(0.25):
        pt, en = dice.pick(read_rows(LEXICON["small"]["ages"]))
        felt = f"{pt} anos", f"{en} years old"
    about, polarity, english = f"ter {subject.lemma} {felt[0]}", dice.denial(subject), ("be", tense)
    return _say(dice, about, subject, "ter", english, tense, [felt], 0.0, question, polarity=polarity)


_POINTED = [
    next(frame for frame in _WITH_OBJECT if frame.verb == verb)
    for verb in "gostar gostar gostar querer querer precisar ver comprar comer fazer vender ler trazer "
    "limpar beber pensar lavar escrever".split()
]


def pointing(dice: Dice) -> _Marked:
    """gosto disto . | i like this ."""
    this, english_this = dice.pick((("isto", "this"), ("isso", "that")))
    if dice.chance(0.05):
        return _mark(f"o que {this}", (f"o que é {this}", f"what 's {english_this}"), True)
    question = dice.chance(0.25)
    if dice.chance(0.3):
        noun = dice.pick(nouns_of(("thing", "table", "object", "food", "reading", "clothes")))
        thing = noun_phrase(noun, False, dice.pick((_owner(dice), DETERMINERS["a"])))
        subject = Nominal(this, english_this, this, "it")
        about, rest, polarity = f"{this} {noun.pt}", [(thing.pt, thing.en)], dice.denial(subject)
        english = "be", "present"
        return _say(dice, about, subject, "ser", english, "present", rest, 0.0, question, polarity=polarity)
    frame, subject = dice.pick(_POINTED), _somebody(dice, question)
    tense = dice.tense(frame.tenses)
    about, rest = f"{frame.verb} {this} {subject.lemma}", [(contract(frame.preposition, this), english_this)]
    english, polarity = _english_of(frame.en, tense, frame.tenses), dice.denial(subject, tense)
    return _say(dice, about, subject, frame.verb, english, tense, rest, 0.0, question, polarity=polarity)


_SOCIAL = [
    frame
    for frame in _WITH_OBJECT
    if frame.preposition and "names" in frame.objects and frame.verb != "precisar"
]


def with_somebody(dice: Dice) -> _Marked:
    """queres falar comigo ? | do you want to talk to me ?"""
    frame, question = dice.pick(_SOCIAL), dice.chance(0.25)
    subject, tense, (pt, en) = (
        _somebody(dice, question),
        dice.tense(frame.tenses),
        dice.pick(read_rows(LEXICON["small"]["together"])),
    )
    if en in {"i": ("me", "us"), "we": ("me", "us"), "you": ("you",)}.get(subject.pronoun, ()):
        return dice.again(with_somebody)
    rest, often = [(contract(frame.preposition, pt), en)], 0.1 if frame.tenses == "action" else 0.0
    about = f"{frame.verb} {frame.preposition} {pt} {subject.lemma}"
    english, polarity = _english_of(frame.en, tense, frame.tenses), dice.denial(subject, tense)
    return _say(dice, about, subject, frame.verb, english, tense, rest, often, question, polarity=polarity)


SENTENCES = (
    *(doing,) * 10,
    *(pronoun_object,) * 4,
    *(being,) * 3,
    *(doing_alone, giving, travelling, feeling, pointing) * 2,
    asking,
    putting,
    living,
    standing,
    existing,
    profession,
    comparing,
    with_somebody,
)


def phrase_stream(seed: int = 0) -> Iterator[tuple[str, str, str]]:
    """Draw sentences of the phrases grammar without end, repetitions included.

    Args:
        seed: Where the sequence begins; equal seeds give equal sequences on every machine.

    Yields:
        The combination of words that the sentence is about, its Portuguese and its English.
    """
    dice = Dice(seed)
    while True:
        yield dice.pick(SENTENCES)(dice)


_SIZES = {"train": 30_000, "dev": 500, "test": 1_000}


def split_of(about: str) -> str:
    """The split of every sentence about a combination of words, as `phrase_stream` names it.

    By a checksum of the words, ``"test"`` for 8 in 100 combinations, ``"dev"`` for 4, else ``"train"``.
    """
    bucket = zlib.crc32(about.encode()) % 100
    return "test" if bucket < 8 else "dev" if bucket < 12 else "train"


def _corpus() -> dict[str, dict[str, str]]:
    corpus: dict[str, dict[str, str]] = {split: {} for split in _SIZES}
    for about, source, target in phrase_stream():
        pairs = corpus[split_of(about)]
        if len(pairs) < _SIZES[split_of(about)]:
            pairs[source] = target
        if all(len(corpus[split]) == size for split, size in _SIZES.items()):
            break
    return corpus


def write_phrases(path: str | Path) -> None:
    """Write the phrases corpus as the package has it: a line ``split, Portuguese, English`` for each pair.

    The combinations of words that the test is about, such as *to like* and *cat*, do not occur in training;
    a verb whose object is a pronoun counts as a combination of its own. All English words of the test do
    occur in training, and nearly all Portuguese ones: only a few verb forms are new.

    Args:
        path: The file, of tab-separated lines in UTF-8, compressed by gzip.
    """
    rows = [f"{split}\t{pt}\t{en}\n" for split, pairs in _corpus().items() for pt, en in pairs.items()]
    with open(path, "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        packed.write("".join(rows).encode())
