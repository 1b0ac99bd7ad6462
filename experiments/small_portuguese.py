"""The grammar that wrote Small Portuguese, the corpus of the package.

    python -c "from experiments.small_portuguese import write_phrases as w; w('phrases.tsv.gz')"
"""

import gzip
import random
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from transformer.validation import check_type

__all__ = ["conjugate", "contract", "attach_clitic", "phrase_stream", "accepts", "split_of", "write_phrases"]


_ENDINGS = {  # eu, tu, ele/ela, nós, eles/elas
    ("present", "ar"): "o as a amos am",
    ("present", "er"): "o es e emos em",
    ("present", "ir"): "o es e imos em",
    ("perfect", "ar"): "ei aste ou ámos aram",
    ("perfect", "er"): "i este eu emos eram",
    ("perfect", "ir"): "i iste iu imos iram",
    ("imperfect", "ar"): "ava avas ava ávamos avam",
    ("imperfect", "er"): "ia ias ia íamos iam",
    ("imperfect", "ir"): "ia ias ia íamos iam",
}
_FUTURE_ENDINGS = "ei ás á emos ão"
_FUTURE_STEMS = {"fazer": "far", "trazer": "trar", "pôr": "por"}


_IRREGULAR = {
    ("ser", "present"): "sou és é somos são",
    ("ser", "perfect"): "fui foste foi fomos foram",
    ("ser", "imperfect"): "era eras era éramos eram",
    ("estar", "present"): "estou estás está estamos estão",
    ("estar", "perfect"): "estive estiveste esteve estivemos estiveram",
    ("ter", "present"): "tenho tens tem temos têm",
    ("ter", "perfect"): "tive tiveste teve tivemos tiveram",
    ("ter", "imperfect"): "tinha tinhas tinha tínhamos tinham",
    ("ir", "present"): "vou vais vai vamos vão",
    ("ir", "perfect"): "fui foste foi fomos foram",
    ("vir", "present"): "venho vens vem vimos vêm",
    ("vir", "perfect"): "vim vieste veio viemos vieram",
    ("vir", "imperfect"): "vinha vinhas vinha vínhamos vinham",
    ("ver", "present"): "vejo vês vê vemos veem",
    ("ver", "perfect"): "vi viste viu vimos viram",
    ("dar", "present"): "dou dás dá damos dão",
    ("dar", "perfect"): "dei deste deu demos deram",
    ("fazer", "present"): "faço fazes faz fazemos fazem",
    ("fazer", "perfect"): "fiz fizeste fez fizemos fizeram",
    ("trazer", "present"): "trago trazes traz trazemos trazem",
    ("trazer", "perfect"): "trouxe trouxeste trouxe trouxemos trouxeram",
    ("pôr", "present"): "ponho pões põe pomos põem",
    ("pôr", "perfect"): "pus puseste pôs pusemos puseram",
    ("pôr", "imperfect"): "punha punhas punha púnhamos punham",
    ("querer", "present"): "quero queres quer queremos querem",
    ("querer", "perfect"): "quis quiseste quis quisemos quiseram",
    ("poder", "present"): "posso podes pode podemos podem",
    ("poder", "perfect"): "pude pudeste pôde pudemos puderam",
    ("ler", "present"): "leio lês lê lemos leem",
    ("ouvir", "present"): "ouço ouves ouve ouvimos ouvem",
    ("perder", "present"): "perco perdes perde perdemos perdem",
    ("dormir", "present"): "durmo dormes dorme dormimos dormem",
}


def conjugate(infinitive: str, tense: str, person: int) -> str:
    """Inflect a Portuguese verb of this grammar.

    An irregular verb that the tables lack comes out as if it were regular: ``dizer`` gives ``dizo``.

    Args:
        infinitive: The dictionary form, such as ``"comer"``.
        tense: ``"present"``, ``"perfect"`` (pretérito perfeito), ``"imperfect"`` or ``"future"``.
        person: 0 eu, 1 tu, 2 ele/ela, 3 nós, 4 eles/elas.

    Returns:
        The form, such as ``"comemos"``.

    Raises:
        ValueError: An unknown tense or person, or a verb of no known class.

    Example:
        >>> conjugate("comer", "present", 3), conjugate("tocar", "perfect", 0)
        ('comemos', 'toquei')
    """
    if not isinstance(infinitive, str) or len(infinitive) < 2:
        raise ValueError(f"infinitive must be a verb, got {infinitive!r}")
    if person not in range(5):
        raise ValueError(f"person must be 0, 1, 2, 3 or 4, got {person!r}")
    if tense == "future":
        return _FUTURE_STEMS.get(infinitive, infinitive) + _FUTURE_ENDINGS.split()[person]
    if (infinitive, tense) in _IRREGULAR:
        return _IRREGULAR[infinitive, tense].split()[person]
    stem, conjugation = infinitive[:-2], infinitive[-2:]
    if (tense, conjugation) not in _ENDINGS:
        raise ValueError(f"no endings for the {tense!r} of {infinitive!r}")
    ending = _ENDINGS[tense, conjugation].split()[person]
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


_MELTS = """
de: o do, a da, os dos, as das, este deste, esta desta, estes destes, estas destas, aquele daquele,
    aquela daquela, aqueles daqueles, aquelas daquelas, isto disto, isso disso, ele dele, ela dela,
    eles deles, elas delas
em: o no, a na, os nos, as nas, um num, uma numa, este neste, esta nesta, estes nestes, estas nestas,
    aquele naquele, aquela naquela, aqueles naqueles, aquelas naquelas, isto nisto, isso nisso,
    ele nele, ela nela, eles neles, elas nelas
a: o ao, a à, os aos, as às, aquele àquele, aquela àquela, aqueles àqueles, aquelas àquelas
por: o pelo, a pela, os pelos, as pelas
com: mim comigo, ti contigo, nós connosco
"""


def _rows(text: str) -> list[tuple[str, str]]:
    """Read ``"fome hungry, pressa in a hurry"`` as pairs of a word and what is said of it."""
    rows = (row.split(maxsplit=1) for row in text.replace("\n", " ").split(", "))
    return [(word, said) for word, said in rows]


_CONTRACTIONS = {
    (preposition, word): melted
    for preposition, rows in re.findall(r"^(\w+): ((?:.|\n )+)", _MELTS, re.MULTILINE)
    for word, melted in _rows(rows)
}


def contract(preposition: str, phrase: str) -> str:
    """Put a preposition before a phrase, contracted with its first word where Portuguese does so.

    Args:
        preposition: Such as ``"de"``; the empty string leaves the phrase alone.
        phrase: Such as ``"o gato preto"``.

    Returns:
        Both in one, such as ``"do gato preto"``.

    Raises:
        TypeError: An argument is not a string.

    Example:
        >>> contract("de", "o gato preto"), contract("a", "a praia")
        ('do gato preto', 'à praia')
    """
    check_type(str, preposition=preposition, phrase=phrase)
    first, space, others = phrase.partition(" ")
    if (preposition, first) in _CONTRACTIONS:
        return _CONTRACTIONS[preposition, first] + space + others
    return f"{preposition} {phrase}".strip()


_BEFORE_L = {"ar": "á", "er": "ê", "or": "ô", "ôr": "ô", "ir": "i", "az": "á", "ez": "ê", "ens": "em"}


def attach_clitic(form: str, clitic: str) -> str:
    """Attach an object pronoun to the end of a verb form of this grammar.

    The grammar has no infinitives in ``-air`` or ``-uir``, which would need an accent: ``construí-lo``.

    Args:
        form: A finite form or an infinitive, such as ``"comer"``.
        clitic: One of ``o a os as``, ``me te nos``.

    Returns:
        The two together, such as ``"comê-lo"``.

    Raises:
        TypeError: `form` is not a string.
        ValueError: An unknown clitic, or a form that does not end like a verb.

    Example:
        >>> attach_clitic("comer", "o"), attach_clitic("comem", "a"), attach_clitic("vejo", "os")
        ('comê-lo', 'comem-na', 'vejo-os')
    """
    check_type(str, form=form)
    if clitic not in ("o", "a", "os", "as", "me", "te", "nos"):
        raise ValueError(f"clitic must be one of o, a, os, as, me, te, nos, got {clitic!r}")
    if not form or (form[-1] == "r" and form[-2:] not in _BEFORE_L):
        raise ValueError(f"form must be one of a verb, got {form!r}")
    if clitic in ("me", "te", "nos"):
        return f"{form[:-1] if clitic == 'nos' and form.endswith('mos') else form}-{clitic}"
    if form == "quer":
        return f"quere-{clitic}"
    if form[-1] in "rsz":
        ending = next((ending for ending in _BEFORE_L if form.endswith(ending)), form[-1])
        return f"{form.removesuffix(ending)}{_BEFORE_L.get(ending, '')}-l{clitic}"
    if form[-1] == "m" or form.endswith(("ão", "õe")):
        return f"{form}-n{clitic}"
    return f"{form}-{clitic}"


def _plural(noun: str) -> str:
    irregular = {"pão": "pães", "cão": "cães", "irmão": "irmãos", "telemóvel": "telemóveis"}
    if noun in irregular:
        return irregular[noun]
    for ending, replacement in (("ão", "ões"), ("m", "ns"), ("l", "is"), ("r", "res"), ("z", "zes")):
        if noun.endswith(ending):
            return noun[: -len(ending)] + replacement
    return noun + "s"


def _agree(adjective: str, feminine: bool, plural: bool) -> str:
    if feminine:
        adjective = {"bom": "boa", "mau": "má"}.get(adjective) or (
            adjective[:-1] + "a" if adjective[-1] == "o" else adjective
        )
    return _plural(adjective) if plural else adjective


_IRREGULAR_PAST = dict(
    zip(
        "eat drink make buy sell read write see know meet find lose sing speak have bring take put "
        "draw think run swim sleep give go come teach".split(),
        "ate drank made bought sold read wrote saw knew met found lost sang spoke had brought took put "
        "drew thought ran swam slept gave went came taught".split(),
        strict=True,
    )
)
_IRREGULAR_PLURAL = {
    "woman": "women", "man": "men", "child": "children", "fish": "fish", "sheep": "sheep", "knife": "knives",
}
_BE = {
    "present": {"i": "am", "he": "is", "she": "is", "it": "is"},
    "past": {"i": "was", "he": "was", "she": "was", "it": "was"},
}
_OBJECT_FORM = {"he": "him", "she": "her", "they": "them"}
_NEGATED = {"can": "ca n't", "will": "wo n't", "am": "'m not"}
_SHORT = {"am": "'m", "are": "'re", "is": "'s", "will": "'ll"}


def _english_s(word: str) -> str:
    if word.endswith(("s", "sh", "ch", "x", "z", "o")) and word != "piano":
        return word + "es"
    return word[:-1] + "ies" if word.endswith("y") and word[-2] not in "aeiou" else word + "s"


def _english_plural(noun: str) -> str:
    first, space, last = noun.rpartition(" ")
    last = _IRREGULAR_PLURAL.get(last) or ({"photo": "photos"}.get(last) or _english_s(last))
    return first + space + last


def _inflect(verb: str, ending: str) -> str:
    """``("look for", "ing") -> "looking for"``."""
    verb, space, particle = verb.partition(" ")
    short_vowel = verb in ("run", "swim", "put", "travel", "stop")
    if ending == "s":
        form = {"have": "has"}.get(verb) or _english_s(verb)
    elif ending == "ed" and verb in _IRREGULAR_PAST:
        form = _IRREGULAR_PAST[verb]
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


class _Noun(NamedTuple):
    pt: str
    feminine: bool
    en: str
    kind: str


_NOUN_TABLE = {
    "person": "menina f girl, menino m boy, mulher f woman, homem m man, criança f child",
    "acquaintance": "amigo m friend, amiga f friend, vizinho m neighbour, vizinha f neighbour, "
    "professor m teacher, professora f teacher, médico m doctor, médica f doctor, aluno m "
    "student, aluna f student",
    "trade": "enfermeiro m nurse, enfermeira f nurse, escritor m writer, escritora f writer, "
    "cantor m singer, cantora f singer, cozinheiro m cook, cozinheira f cook",
    "kin": "pai m father, mãe f mother, irmão m brother, irmã f sister, avô m grandfather, avó "
    "f grandmother, tio m uncle, tia f aunt, filho m son, filha f daughter, primo m cousin, "
    "prima f cousin",
    "animal": "gato m cat, cão m dog, cavalo m horse, pássaro m bird, coelho m rabbit, vaca f "
    "cow, galinha f hen, ovelha f sheep, burro m donkey, pato m duck",
    "food": "maçã f apple, laranja f orange, bolo m cake, ovo m egg, pera f pear, banana f "
    "banana, batata f potato, tomate m tomato, salada f salad",
    "mass": "pão m bread, queijo m cheese, chocolate m chocolate, gelado m ice cream",
    "dish": "arroz m rice, sopa f soup, carne f meat, peixe m fish",
    "hot": "leite m milk, café m coffee, chá m tea",
    "cool": "água f water, vinho m wine, sumo m juice, cerveja f beer",
    "reading": "livro m book, carta f letter, jornal m newspaper, poema m poem, história f "
    "story, revista f magazine, mensagem f message",
    "song": "canção f song",
    "clothes": "camisa f shirt, casaco m coat, vestido m dress, chapéu m hat, saia f skirt",
    "thing": "chave f key, caneta f pen, caderno m notebook, relógio m watch, telemóvel m "
    "phone, bola f ball, caixa f box, mala f suitcase, saco m bag",
    "table": "copo m glass, prato m plate, faca f knife, garrafa f bottle",
    "object": "fotografia f photo, prenda f gift, flor f flower, mapa m map, quadro m painting, "
    "árvore f tree",
    "large": "carro m car, bicicleta f bicycle, barco m boat, mesa f table, cadeira f chair, "
    "cama f bed, porta f door, janela f window",
    "building": "casa f house, cozinha f kitchen, quarto m bedroom, jardim m garden",
}
_NOUNS = {
    pt: _Noun(pt, gender == "f", english, kind)
    for kind, rows in _NOUN_TABLE.items()
    for pt, gender, english in (row.split(maxsplit=2) for row in rows.split(", "))
}
_HUMANS = ("person", "acquaintance", "trade", "kin")
_MASS = ("mass", "dish", "hot", "cool")
_NAMES = {
    "ana": True, "maria": True, "joana": True, "rita": True, "sofia": True,
    "pedro": False, "joão": False, "tiago": False, "miguel": False, "luís": False,
}


_SIZE, _AGE, _LOOK = "grande big, pequeno small", "novo new, velho old", "bonito beautiful"
_PAINT = "preto black, branco white, vermelho red, azul blue, verde green"
_PRICE = "bom good, mau bad, caro expensive, barato cheap"
_HUMAN = "alto tall, simpático nice, inteligente intelligent, famoso famous"
_QUALITIES = {  # what a noun of this kind is for good: "ser"
    "person": "alto tall, simpático nice, inteligente intelligent, jovem young",
    "acquaintance": _HUMAN,
    "trade": _HUMAN,
    "kin": _HUMAN,
    "animal": f"{_SIZE}, {_LOOK}, velho old, preto black, branco white, castanho brown",
    "food": f"{_SIZE}, {_PRICE}",
    "mass": _PRICE,
    "dish": _PRICE,
    "hot": _PRICE,
    "cool": _PRICE,
    "reading": f"interessante interesting, {_AGE}",
    "song": f"{_AGE}, {_LOOK}, triste sad",
    "clothes": f"{_PAINT}, {_AGE}, {_LOOK}, caro expensive, barato cheap",
    "thing": f"{_SIZE}, {_PAINT}, {_AGE}",
    "table": f"{_SIZE}, {_AGE}, {_LOOK}",
    "object": f"{_SIZE}, {_LOOK}",
    "large": f"{_SIZE}, {_PAINT}, {_AGE}",
    "building": f"{_SIZE}, {_LOOK}",
}
_MOOD = "cansado tired, feliz happy, triste sad, doente ill, preocupado worried, atrasado late"
_STATES = {  # what it is at the moment: "estar"
    "person": _MOOD,
    "acquaintance": _MOOD,
    "trade": _MOOD,
    "kin": _MOOD,
    "animal": "cansado tired, doente ill, sujo dirty, molhado wet",
    "dish": "frio cold, quente hot",
    "hot": "frio cold, quente hot",
    "clothes": "sujo dirty, limpo clean, molhado wet",
    "table": "sujo dirty, limpo clean",
    "large": "sujo dirty, limpo clean",
    "building": "sujo dirty, limpo clean",
}
_COMPARATIVES = "alto taller, velho older, novo younger, rápido faster, forte stronger, simpático nicer"
_FEELINGS = "fome hungry, sede thirsty, sono sleepy, frio cold, pressa in a hurry, razão right"


_PLACES = {
    pt: (article, english.split()[0], english.split(maxsplit=1)[1])
    for article, pt, english in (row.split(maxsplit=2) for row in (
        "o jardim in the garden, a escola at school, o mercado at the market, a cozinha in the kitchen, "
        "a praia on the beach, o parque in the park, a rua in the street, a biblioteca in the library, "
        "o hospital in the hospital, a estação at the station, o restaurante in the restaurant, "
        "o museu in the museum, o cinema at the cinema, o escritório in the office").split(", "))
}
_HOMES = _rows(
    "em_lisboa lisbon, no_porto porto, em_coimbra coimbra, em_portugal portugal, no_brasil brazil, "
    "em_frança france, em_itália italy, em_angola angola, nos_açores the azores, na_cidade the city, "
    "na_aldeia the village, nesta_casa this house, nesta_rua this street"
)
_FIXED = {  # objects without an article in Portuguese, whatever English has
    "language": "português portuguese, inglês english, francês french, alemão german, italiano "
    "italian",
    "subject": "matemática mathematics, biologia biology, música music",
    "music": "música music",
    "instrument": "piano the piano, guitarra the guitar, violino the violin",
    "game": "futebol football, ténis tennis, xadrez chess",
}
_FIXED_ENGLISH = {pt: english for rows in _FIXED.values() for pt, english in _rows(rows)}


class _Nominal(NamedTuple):
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


_DETERMINERS = {
    "the": _Determiner("o a os as", "the", "the"),
    "a": _Determiner("um uma - -", "a"),
    "this": _Determiner("este esta estes estas", "this", "these"),
    "that": _Determiner("aquele aquela aqueles aquelas", "that", "those"),
    "my": _Determiner("o_meu a_minha os_meus as_minhas", "my", "my"),
    "your": _Determiner("o_teu a_tua os_teus as_tuas", "your", "your"),
    "our": _Determiner("o_nosso a_nossa os_nossos as_nossas", "our", "our"),
    "his": _Determiner("o a os as", "his", "his", "dele"),
    "her": _Determiner("o a os as", "her", "her", "dela"),
    "their": _Determiner("o a os as", "their", "their", "deles"),
    "two": _Determiner("- - dois duas", "", "two"),
    "three": _Determiner("- - três três", "", "three"),
    "many": _Determiner("- - muitos muitas", "", "many"),
    "some": _Determiner("- - alguns algumas", "", "some"),
    "": _Determiner("_ _ _ _", "", ""),
}
_POINTING, _OWNED = ("the", "the", "the", "this", "that"), ("my", "your", "our", "his", "her", "their")
_COUNTED = ("two", "three", "many", "some")


def _nominal(
    noun: _Noun,
    plural: bool,
    determiner: _Determiner,
    adjective: tuple[str, str] | None = None,
    before: bool = False,
) -> _Nominal:
    """Noun, determiner and adjective made to agree: o gato preto, as maçãs pequenas, a minha irmã."""
    article = determiner.forms.split()[noun.feminine + 2 * plural].replace("_", " ").strip()
    pt = [article, _plural(noun.pt) if plural else noun.pt, determiner.after]
    en = _english_plural(noun.en) if plural else noun.en
    if adjective:
        place = 1 if before or adjective[0] in ("bom", "mau") else 2  # um bom livro, but um livro caro
        pt.insert(place, _agree(adjective[0], noun.feminine, plural))
        en = f"{adjective[1]} {en}"
    en = f"{determiner.plural if plural else determiner.singular} {en}".strip()
    en = _article(en.removeprefix("a ")) if determiner.singular == "a" and not plural else en
    pronoun = "they" if plural else "it"
    if noun.kind in _HUMANS and not plural:
        pronoun = "she" if noun.feminine else "he"
    person = 4 if plural else 2
    return _Nominal(" ".join(filter(None, pt)), en, noun.pt, pronoun, person, noun.feminine, plural)


def _name(name: str) -> _Nominal:
    feminine = _NAMES[name]
    article, pronoun = ("a", "she") if feminine else ("o", "he")
    return _Nominal(f"{article} {name}", name, name, pronoun, 2, feminine)


def _both(first: _Nominal, second: _Nominal) -> _Nominal:
    feminine = first.feminine and second.feminine  # one man among them makes them "eles"
    pt, en = f"{first.pt} e {second.pt}", f"{first.en} and {second.en}"
    return _Nominal(pt, en, first.lemma, "they", 4, feminine, True)


_PRONOUNS = [
    _Nominal("eu", "i", "eu", "i", 0),
    _Nominal("eu", "i", "eu", "i", 0, True),
    _Nominal("tu", "you", "tu", "you", 1),
    _Nominal("tu", "you", "tu", "you", 1, True),
    _Nominal("ele", "he", "ele", "he", 2),
    _Nominal("ela", "she", "ela", "she", 2, True),
    _Nominal("nós", "we", "nós", "we", 3, False, True),
    _Nominal("nós", "we", "nós", "we", 3, True, True),
    _Nominal("vocês", "you", "vocês", "you", 4, False, True),
    _Nominal("eles", "they", "eles", "they", 4, False, True),
    _Nominal("elas", "they", "elas", "they", 4, True, True),
]
_ANYBODY = [
    _Nominal("alguém", "somebody", "alguém", "he"),
    _Nominal("toda a gente", "everybody", "toda a gente", "he"),
    _Nominal("ninguém", "nobody", "ninguém", "he"),
]
_WHO = _Nominal("quem", "who", "quem", "he")
_ATTRACTING = ("quem", *(somebody.pt for somebody in _ANYBODY))  # draw an object pronoun before the verb


_COMPOUNDS = {  # tense: (auxiliary, its tense, what joins it to the infinitive)
    "progressive": ("estar", "present", "a"),
    "past progressive": ("estar", "imperfect", "a"),
    "going": ("ir", "present", ""),
    "can": ("poder", "present", ""),
    "want": ("querer", "present", ""),
    "must": ("ter", "present", "de"),
    "start": ("começar", "perfect", "a"),
}


def _portuguese_verb(verb: str, tense: str, person: int) -> tuple[str, str]:
    """The finite form and what follows it: ``("vão", "comer")``."""
    if tense not in _COMPOUNDS:
        return conjugate(verb, tense, person), ""
    auxiliary, its_tense, link = _COMPOUNDS[tense]
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
    subject: _Nominal,
    verb: str,
    english: tuple[str, str, str],
    tense: str,
    rest: Sequence[tuple[str, str]] = (),
    polarity: str = "",
    question: bool = False,
    opening: tuple[str, str] = ("", ""),
    clitic: str = "",
    drop: bool = False,
) -> tuple[str, str]:
    """A sentence in both languages, affirmed, denied or asked; only its final mark is missing."""
    finite, infinitive = _portuguese_verb(verb, tense, subject.person)
    auxiliary = _COMPOUNDS[tense][:2] if tense in _COMPOUNDS else (verb, tense)
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


class _Frame(NamedTuple):
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


_MANNERS = dict(_rows(
    "bem well, mal badly, muito a lot, pouco very little, depressa fast, devagar slowly, "
    "cedo early, tarde late"
))
_GROUPS = {
    "PEOPLE": "person acquaintance trade kin names",
    "EDIBLE": "food mass dish",
    "DRINKABLE": "hot cool",
    "PRINTED": "livro jornal revista",
    "OUTSIDE": "jardim praia parque",
    "LOSABLE": "thing chapéu casaco livro carta fotografia mapa",
    "VEHICLE": "carro bicicleta barco",
}
# verb (preposition) = English : objects : tenses, known, clitic : manners : places
_FRAME_TABLE = """
comer = eat : EDIBLE : action clitic : bem muito pouco : OUTSIDE restaurante cozinha escola
beber = drink : DRINKABLE : action clitic : : OUTSIDE restaurante cozinha
cozinhar = cook : dish batata ovo : action clitic : bem mal :
fazer = make : bolo sopa salada café chá sumo prenda : action : :
comprar = buy : EDIBLE cool clothes thing PRINTED VEHICLE flor mapa quadro casa mesa cama prenda :
    action clitic : :
vender = sell : food queijo peixe pão leite vinho clothes PRINTED VEHICLE mesa casa quadro flor
    vaca : action clitic : :
ler = read : reading : action clitic : bem muito devagar : OUTSIDE biblioteca escola escritório
escrever = write : livro carta poema história mensagem canção : action : bem mal :
ver = see : PEOPLE animal VEHICLE casa jardim árvore quadro fotografia flor : event clitic : :
conhecer = know : PEOPLE : know known clitic : :
visitar = visit : acquaintance kin names : action known clitic : :
ajudar = help : PEOPLE : action known clitic : muito :
convidar = invite : PEOPLE : action known clitic : :
abrir = open : porta janela caixa garrafa mala carta prenda saco : action clitic : :
fechar = close : porta janela caixa garrafa mala livro : action clitic : :
lavar = wash : clothes table carro maçã pera janela tomate bicicleta : action clitic : :
limpar = clean : building mesa janela carro porta quadro prato : action clitic : :
perder = lose : LOSABLE faca : event clitic : :
encontrar = find : LOSABLE gato cão : event clitic : :
procurar = look for : LOSABLE animal names : action clitic : :
ouvir = listen to : canção história music : action : : jardim escritório cozinha parque
cantar = sing : canção : action clitic : bem mal muito : jardim escola rua praia
tocar = play : instrument : action : bem mal :
jogar = play : game : action : bem mal : OUTSIDE escola
estudar = study : language subject : action : muito pouco : biblioteca escola jardim
aprender = learn : language : action : depressa devagar :
ensinar = teach : language subject : action : bem :
falar = speak : language : action : bem devagar :
ter = have : animal clothes thing large object reading casa jardim amigo amiga : state : :
querer = want : EDIBLE DRINKABLE clothes thing reading object gato cão : state : :
trazer = bring : EDIBLE DRINKABLE thing reading object : action clitic : :
desenhar = draw : animal VEHICLE casa flor árvore mapa : action clitic : bem mal :
gostar de = like : PEOPLE animal EDIBLE DRINKABLE reading song clothes thing object large building
    : like known : :
precisar de = need : thing table clothes livro mapa carro mesa cadeira casa água leite café pão
    names : state : :
cuidar de = take care of : person animal kin names jardim casa flor : action known : :
falar de = talk about : PEOPLE animal livro história canção quadro : action known : :
falar com = talk to : PEOPLE : action known : :
brincar com = play with : criança menina menino gato cão coelho bola kin names : action known : :
    OUTSIDE rua escola
esperar por = wait for : PEOPLE carta barco mensagem : action known : : estação escola rua cinema
    museu mercado
pensar em = think about : PEOPLE casa história prenda : action known : :
dormir = sleep : : action : bem mal muito pouco : OUTSIDE
correr = run : : action : depressa devagar muito : OUTSIDE rua
nadar = swim : : action : bem mal depressa :
dançar = dance : : action : bem mal muito : praia rua restaurante jardim
trabalhar = work : : action : bem muito pouco devagar : hospital escritório restaurante mercado
    museu estação
viajar = travel : : action : muito pouco :
descansar = rest : : action : muito pouco : OUTSIDE
chegar = arrive : : event : cedo tarde :
"""


def _frame(row: str) -> _Frame:
    for group, members in _GROUPS.items():
        row = row.replace(group, members)
    verbs, objects, traits, manners, places = (part.split() for part in row.replace("=", "= ").split(":"))
    equals = verbs.index("=")
    return _Frame(
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


_FRAMES = [_frame(row) for row in re.findall(r"^\w.*(?:\n .*)*", _FRAME_TABLE, re.MULTILINE)]


_TENSES = {  # each as often as it stands here
    "action": "present present present perfect perfect perfect imperfect progressive "
    "progressive past_progressive going future can want must start",
    "event": "present perfect perfect perfect going future can",
    "state": "present present present imperfect future",
    "know": "present present perfect perfect imperfect want",
    "like": "present present present perfect imperfect",
    "live": "present present imperfect perfect want going future",
    "go": "present present perfect perfect future can want must",
    "be": "present present imperfect",
}
_OFTEN = (("todos os dias", "every day"), ("às vezes", "sometimes"))
_JUST = (("ontem", "yesterday"), ("hoje de manhã", "this morning"))
_BEFORE = (*_JUST, ("ontem à noite", "last night"), ("na semana passada", "last week"))
_SOON = (("amanhã", "tomorrow"), ("hoje à noite", "tonight"), ("na próxima semana", "next week"))
_TIMES = {
    "present": _OFTEN,
    "imperfect": _OFTEN,
    "perfect": _BEFORE,
    "start": _JUST,
    "past progressive": _JUST,
    "progressive": (("agora", "now"),),
    "going": _SOON,
    "future": (("amanhã", "tomorrow"), ("um dia", "one day")),
    "want": (("hoje", "today"), ("amanhã", "tomorrow")),
    "must": (("hoje", "today"), ("amanhã", "tomorrow")),
}


def _english_of(verb: str, tense: str, tenses: str = "action") -> tuple[str, str]:
    """English verb and tense: "had" for "used to have", and "met" for a "knew" that is over."""
    if tenses == "know" and tense in ("perfect", "want"):
        return "meet", tense
    if tenses in ("state", "know") and tense == "imperfect":
        return verb, "perfect"
    return verb, tense


_T = TypeVar("_T")


class _Dice:
    """Reproducible choices: only ``random()``, whose sequence Python promises to keep, decides them."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def pick(self, items: Sequence[_T]) -> _T:
        return items[int(self._random() * len(items))]

    def tense(self, tenses: str) -> str:
        return self.pick(_TENSES[tenses].split()).replace("_", " ")

    def said(self, nominal: _Nominal) -> _Nominal:
        return nominal

    def again(self, sentence: Callable[[Any], _T]) -> _T:
        return sentence(self)

    def denial(self, subject: _Nominal, tense: str = "present") -> str:
        possible = subject not in _ANYBODY and subject is not _WHO and tense != "start"
        return "não" if possible and self.chance(0.27) else ""


@lru_cache
def _nouns(kinds: tuple[str, ...]) -> tuple[_Noun, ...]:
    return tuple(noun for noun in _NOUNS.values() if noun.kind in kinds or noun.pt in kinds)


def _owner(dice: _Dice) -> _Determiner:
    """Whose it is: my, her, or Ana's, or my father's."""
    if dice.chance(0.7):
        return _DETERMINERS[dice.pick(_OWNED)]
    person = _name(dice.pick(tuple(_NAMES)))
    if dice.chance(0.4):
        determiner = _DETERMINERS[dice.pick(("my", "your", "our"))]
        person = _nominal(dice.pick(_nouns(("kin",))), False, determiner)
    return _Determiner("o a os as", f"{person.en} 's", f"{person.en} 's", contract("de", person.pt))


def _thing(dice: _Dice, noun: _Noun, known: bool = False) -> _Nominal:
    """A noun with a determiner that suits it, and perhaps an adjective."""
    if noun.kind == "kin":
        return dice.said(_nominal(noun, False, _owner(dice)))
    mass = noun.kind in _MASS
    plural = not mass and dice.chance(0.25)
    determiner = _DETERMINERS[dice.pick(_POINTING)]
    if mass and dice.chance(0.5):
        determiner = _DETERMINERS[""]
    elif noun.kind not in ("person", "trade", *_MASS) and dice.chance(0.25):
        determiner = _owner(dice)
    elif plural and not known and dice.chance(0.6):
        determiner = _DETERMINERS[dice.pick(_COUNTED)]
    elif not plural and not mass and not known and dice.chance(0.5):
        determiner = _DETERMINERS["a"]
    described = not determiner.after and dice.chance(0.25)
    adjective = dice.pick(_rows(_QUALITIES[noun.kind])) if described else None
    return dice.said(_nominal(noun, plural, determiner, adjective))


def _definite(dice: _Dice, *kinds: str) -> _Nominal:
    """Something that the listener knows: the cat, these books, my uncle."""
    noun = dice.pick(_nouns(kinds))
    if noun.kind == "kin":
        return dice.said(_nominal(noun, False, _owner(dice)))
    owned = noun.kind not in ("person", "trade", *_MASS) and dice.chance(0.2)
    determiner = _owner(dice) if owned else _DETERMINERS[dice.pick(_POINTING)]
    return dice.said(_nominal(noun, noun.kind not in _MASS and dice.chance(0.3), determiner))


def _somebody(dice: _Dice, asked: bool = False, *more: str) -> _Nominal:
    """A subject that can act; people do not ask questions about themselves."""
    if dice.chance(0.5):
        return dice.pick([pronoun for pronoun in _PRONOUNS if not (asked and pronoun.person in (0, 3))])
    if dice.chance(0.35):
        first, second = (_name(dice.pick(tuple(_NAMES))) for _ in range(2))
        return dice.said(first if first == second or dice.chance(0.7) else _both(first, second))
    if not asked and dice.chance(0.08):
        return dice.pick(_ANYBODY)
    return _thing(dice, dice.pick(_nouns((*_HUMANS, *more))), known=True)


def _object(dice: _Dice, frame: _Frame) -> tuple[str, str, str]:
    """An object of the frame: Portuguese with the preposition, English, and the word that it is about."""
    pool = [noun.pt for noun in _nouns(frame.objects)]
    pool += [pt for kind in frame.objects if kind in _FIXED for pt, _ in _rows(_FIXED[kind])]
    pool += _NAMES if "names" in frame.objects else ()
    word = dice.pick(pool)
    if word in _FIXED_ENGLISH:
        return contract(frame.preposition, word), _FIXED_ENGLISH[word], word
    nominal = _name(word) if word in _NAMES else _thing(dice, _NOUNS[word], frame.known)
    return contract(frame.preposition, nominal.pt), nominal.en, word


def _at(place: str) -> tuple[str, str]:
    article, preposition, english = _PLACES[place]
    return contract("em", f"{article} {place}"), f"{preposition} {english}"


_Marked = tuple[str, str, str]  # what a sentence is about, its Portuguese, its English


def _mark(about: str, sentence: tuple[str, str], question: bool = False) -> _Marked:
    mark = " ?" if question else " ."
    return about, sentence[0] + mark, sentence[1] + mark


def _time(dice: _Dice, verb: str, tense: str, subject: _Nominal, often: float) -> list[tuple[str, str]]:
    """Perhaps when it happens; always where the verb alone leaves open whether it is over."""
    if tense == "perfect" and subject.person == 3 and _past_looks_present(verb, 3):
        return [dice.pick(_BEFORE)]
    return [dice.pick(_TIMES[tense])] if tense in _TIMES and dice.chance(often) else []


def _say(
    dice: _Dice,
    about: str,
    subject: _Nominal,
    verb: str,
    english: tuple[str, str],
    tense: str,
    rest: Sequence[tuple[str, str]] = (),
    often: float = 0.0,
    question: bool = False,
    **manner: Any,
) -> _Marked:
    """Finish a sentence: the time, the subject that need not be said, the mark at the end."""
    rest = [*rest, *_time(dice, verb, tense, subject, often)]
    words = _english_verb(*english, subject.pronoun)
    drop = dice.chance(0.6)
    sentence = _clause(subject, verb, words, tense, rest, question=question, drop=drop, **manner)
    return _mark(about, sentence, question)


_WITH_OBJECT = [frame for frame in _FRAMES if frame.objects]
_WHY, _WHEN = ("porque é que", "why"), ("quando é que", "when")


def _doing(dice: _Dice) -> _Marked:
    """a menina gosta do gato preto . | the girl likes the black cat ."""
    frame, question = dice.pick(_WITH_OBJECT), dice.chance(0.2)
    subject = _WHO if question and dice.chance(0.15) else _somebody(dice, question)
    tense = dice.tense(frame.tenses)
    pt, en, word = _object(dice, frame)
    if word == subject.lemma:
        return dice.again(_doing)
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
    return _say(dice, about, subject, frame.verb, english, tense, rest, often, question,
                polarity=polarity, opening=opening)


_ALONE = [frame for frame in _FRAMES if frame.manners]


def _doing_alone(dice: _Dice) -> _Marked:
    """o cavalo corre depressa . | the horse runs fast ."""
    frame, question = dice.pick(_ALONE), dice.chance(0.2)
    animals = ("animal",) if frame.verb in ("dormir", "correr", "nadar") else ()
    subject, tense = _somebody(dice, question, *animals), dice.tense(frame.tenses)
    manner, polarity = dice.pick(frame.manners), dice.denial(subject, tense)
    rest = [(manner, _MANNERS[manner])]
    if manner in ("mal", "pouco") and (polarity or tense not in ("present", "perfect", "imperfect")):
        return dice.again(_doing_alone)  # nobody plans to dance badly
    if frame.places and dice.chance(0.4):
        rest = rest[: dice.chance(0.5)] + [_at(dice.pick(frame.places))]
    english = _english_of(frame.en.split()[0], tense)
    about = f"{frame.verb} {subject.lemma}"
    return _say(dice, about, subject, frame.verb, english, tense, rest, 0.2, question, polarity=polarity)


def _quality(dice: _Dice, subject: _Nominal, plain: bool = False) -> tuple[str, tuple[str, str]]:
    """Ser for what somebody is, estar for the state of the moment; English has "be" for both."""
    kind = _NOUNS[subject.lemma].kind if subject.lemma in _NOUNS else "person"
    verb = "estar" if kind in _STATES and dice.chance(0.5) else "ser"
    pt, en = dice.pick(_rows((_STATES if verb == "estar" else _QUALITIES)[kind]))
    pt = _agree(pt, subject.feminine, subject.plural)
    return verb, (f"muito {pt}", f"very {en}") if not plain and dice.chance(0.25) else (pt, en)


def _being(dice: _Dice) -> _Marked:
    """a sopa não está quente . | the soup is n't hot ."""
    question, tense = dice.chance(0.2), dice.tense("be")
    subject = _somebody(dice, question) if dice.chance(0.4) else _definite(dice, *_QUALITIES)
    if subject in _ANYBODY:
        return dice.again(_being)
    polarity = dice.denial(subject)
    verb, quality = _quality(dice, subject, plain=bool(polarity))
    about = f"ser {subject.lemma} {quality[0].split()[-1][:-1]}"
    english = "be", tense
    return _say(dice, about, subject, verb, english, tense, [quality], 0.0, question, polarity=polarity)


_WITH_CLITIC = [frame for frame in _FRAMES if frame.clitic]


def _pronoun_object(dice: _Dice) -> _Marked:
    """o livro é novo , mas a ana não o lê . | the book is new , but ana does n't read it ."""
    frame, subject = dice.pick(_WITH_CLITIC), _somebody(dice)
    noun = dice.pick([noun for noun in _nouns(frame.objects) if noun.pt != "criança"])
    determiner = _owner(dice) if noun.kind == "kin" else _DETERMINERS[dice.pick(_POINTING)]
    topic = _nominal(noun, noun.kind not in (*_MASS, "kin") and dice.chance(0.3), determiner)
    of_people = "acquaintance" in frame.objects
    if subject.lemma == noun.pt or (of_people and topic.clitic == "os" and subject.person == 4):
        return dice.again(_pronoun_object)  # ajudam-nos would be "they help us" as well
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
    about, pt, en = _say(dice, about, subject, frame.verb, english, tense, rest, often,
                         polarity=polarity, clitic=topic.clitic)
    if joint:
        verb, quality = _quality(dice, topic)
        first = _clause(topic, verb, _english_verb("be", before, topic.pronoun), before, [quality])
        pt, en = f"{first[0]} , {joint[0]} {pt}", f"{first[1]} , {joint[1]} {en}"
    return about, pt, en


_GIVING = (("dar", "give"), ("mostrar", "show"), ("trazer", "bring"))
_GIFTS = ("thing", "reading", "object", "clothes", "maçã", "laranja", "bolo", "água", "café", "chá")
_RECEIVERS = (("me", "me", ("i", "we")), ("te", "you", ("you",)), ("nos", "us", ("i", "we")))


def _giving(dice: _Dice) -> _Marked:
    """ela dá-me um livro . | she gives me a book ."""
    (verb, en), question = dice.pick(_GIVING), dice.chance(0.2)
    subject, tense = _somebody(dice, question), dice.tense("action")
    gift, polarity = _thing(dice, dice.pick(_nouns(_GIFTS))), dice.denial(subject, tense)
    clitic, receiver, givers = dice.pick(_RECEIVERS)
    if dice.chance(0.4):
        person = _name(dice.pick(tuple(_NAMES))) if dice.chance(0.4) else _definite(dice, *_HUMANS)
        rest, clitic = [(gift.pt, gift.en), (contract("a", person.pt), f"to {person.en}")], ""
        impossible = person.lemma == subject.lemma
    else:  # in the future the pronoun would stand inside the verb: dar-me-á
        rest = [(gift.pt, f"{receiver} {gift.en}")]
        impossible = subject.pronoun in givers or tense == "future"
    if impossible:
        return dice.again(_giving)
    about, manner = f"{verb} {gift.lemma}", {"polarity": polarity, "clitic": clitic}
    return _say(dice, about, subject, verb, (en, tense), tense, rest, 0.15, question, **manner)


_PUT = tuple("caneta caderno relógio telemóvel chave livro carta revista copo prato faca".split())
_ONTO = (("na mesa", "on the table"), ("na cadeira", "on the chair"), ("na cama", "on the bed"),
         ("na mala", "in the suitcase"), ("na caixa", "in the box"), ("no saco", "in the bag"))


def _putting(dice: _Dice) -> _Marked:
    """a joana pôs as chaves na mala . | joana put the keys in the suitcase ."""
    thing, place, question = _thing(dice, dice.pick(_nouns(_PUT)), True), dice.pick(_ONTO), dice.chance(0.2)
    subject, tense = _somebody(dice, question), dice.tense("action")
    rest, polarity = [(thing.pt, thing.en), place], dice.denial(subject, tense)
    about, english = f"pôr {thing.lemma} {place[0]}", ("put", tense)
    return _say(dice, about, subject, "pôr", english, tense, rest, 0.2, question, polarity=polarity)


_NOT_ASKED = ("conhecer", "visitar", "ajudar", "convidar", "tocar", "jogar", "falar")
_ASKED = [frame for frame in _WITH_OBJECT if not frame.preposition and frame.verb not in _NOT_ASKED]


def _asking(dice: _Dice) -> _Marked:
    """o que é que a menina come ? | what does the girl eat ?"""
    frame, subject = dice.pick(_ASKED), _somebody(dice, True)
    tense = dice.tense(frame.tenses)
    about, english = f"o que {frame.verb} {subject.lemma}", _english_of(frame.en, tense, frame.tenses)
    often, opening = 0.2 if frame.tenses == "action" else 0.0, ("o que é que", "what")
    return _say(dice, about, subject, frame.verb, english, tense, (), often, True, opening=opening)


_TRANSPORT = (("de carro", "by car"), ("de autocarro", "by bus"), ("de comboio", "by train"),
              ("de bicicleta", "by bicycle"))
_WAYS = (("ir", "a", "go", "to"), ("ir", "a", "go", "to"), ("vir", "de", "come", "from"))


def _travelling(dice: _Dice) -> _Marked:
    """vamos à praia de carro . | we go to the beach by car ."""
    question, (verb, preposition, en, to) = dice.chance(0.25), dice.pick(_WAYS)
    subject, tense = _somebody(dice, question), dice.tense("go")
    tense = tense if verb == "ir" or tense in ("present", "perfect") else "present"
    place = dice.pick([place for place in _PLACES if place != "rua"])
    article, _, english_place = _PLACES[place]
    rest = [(contract(preposition, f"{article} {place}"), f"{to} {english_place}")]
    if place not in ("jardim", "cozinha") and dice.chance(0.25):
        rest.append(dice.pick(_TRANSPORT))
    about, polarity = f"{verb} {subject.lemma} {place}", dice.denial(subject)
    return _say(dice, about, subject, verb, (en, tense), tense, rest, 0.25, question, polarity=polarity)


def _living(dice: _Dice) -> _Marked:
    """vivemos nos açores . | we live in the azores ."""
    question, tense = dice.chance(0.3), dice.tense("live")
    subject, polarity = _somebody(dice, question), ""
    if tense == "perfect" and subject.person == 3 or subject in _ANYBODY:
        return dice.again(_living)
    if question and dice.chance(0.4):
        about, opening, rest = f"onde viver {subject.lemma}", ("onde é que", "where"), []
    else:
        place, english_place = dice.pick(_HOMES)
        about, opening, polarity = f"viver {subject.lemma} {place}", ("", ""), dice.denial(subject, tense)
        rest = [(place.replace("_", " "), f"in {english_place}")]
    manner = {"polarity": polarity, "opening": opening}
    return _say(dice, about, subject, "viver", ("live", tense), tense, rest, 0.0, question, **manner)


_INSIDE = {
    **dict.fromkeys(_HUMANS, tuple(_PLACES)),
    "animal": ("jardim", "cozinha", "rua", "parque", "mercado"),
    "thing": ("cozinha", "escritório", "jardim", "escola", "biblioteca", "restaurante"),
    "table": ("cozinha", "jardim", "restaurante"),
    **dict.fromkeys(("food", "dish", *_MASS), ("cozinha",)),
    "reading": ("cozinha", "escritório", "biblioteca", "escola"),
}


def _standing(dice: _Dice) -> _Marked:
    """o gato está no jardim . | the cat is in the garden ."""
    subject = dice.pick(_PRONOUNS) if dice.chance(0.3) else _definite(dice, *_INSIDE)
    tense, question = dice.tense("be"), subject.person not in (0, 3) and dice.chance(0.25)
    if question and dice.chance(0.6):
        where = f"onde {conjugate('estar', tense, subject.person)} {subject.pt}"
        be = _english_verb("be", tense, subject.pronoun)[0]
        return _mark(f"onde {subject.lemma}", (where, f"where {be} {subject.en}"), True)
    place = dice.pick(_INSIDE[_NOUNS[subject.lemma].kind if subject.lemma in _NOUNS else "person"])
    about, rest, polarity = f"estar {subject.lemma} {place}", [_at(place)], dice.denial(subject)
    return _say(dice, about, subject, "estar", ("be", tense), tense, rest, 0.0, question, polarity=polarity)


def _existing(dice: _Dice) -> _Marked:
    """há dois gatos no jardim . | there are two cats in the garden ."""
    noun = dice.pick([noun for noun in _nouns(tuple(_INSIDE)) if noun.kind != "kin"])
    place, question, tense = dice.pick(_INSIDE[noun.kind]), dice.chance(0.25), dice.tense("be")
    mass = noun.kind in _MASS
    plural = not mass and dice.chance(0.5)
    denied = (mass or plural) and dice.chance(0.3)
    whether = question or denied  # there is n't any bread; are there any apples ?
    determiner = "" if mass or plural and whether else dice.pick(_COUNTED) if plural else "a"
    thing = _nominal(noun, plural, _DETERMINERS[determiner])
    en = f"any {thing.en}" if whether and (mass or plural) else thing.en
    be = _english_verb("be", tense, thing.pronoun)[0] + " n't" * denied
    there = f"{be} there" if question else "there 's" if be == "is" else f"there {be}"
    (pt_place, en_place), verb = _at(place), "há" if tense == "present" else "havia"
    pt = f"{'não ' * denied}{verb} {thing.pt} {pt_place}"
    return _mark(f"haver {noun.pt} {place}", (pt, f"{there} {en} {en_place}"), question)


_TRADES = ("trade", "professor", "professora", "médico", "médica", "aluno", "aluna")


def _profession(dice: _Dice) -> _Marked:
    """a ana é médica . | ana is a doctor ."""
    subject = dice.pick((dice.pick(_PRONOUNS), _name(dice.pick(tuple(_NAMES))), _definite(dice, "kin")))
    trade = dice.pick([noun for noun in _nouns(_TRADES) if noun.feminine == subject.feminine])
    praise = dice.pick((None, None, ("bom", "good"), ("grande", "great")))
    article = _DETERMINERS["a" if praise and not subject.plural else ""]
    what = _nominal(trade, subject.plural, article, praise, before=True)
    en = what.en if praise or subject.plural else _article(what.en)
    question = subject.person not in (0, 3) and dice.chance(0.2)
    tense, polarity = dice.pick(("present", "imperfect", "future")), dice.denial(subject)
    about, rest = f"ser {subject.lemma} {trade.pt}", [(what.pt, en)]
    return _say(dice, about, subject, "ser", ("be", tense), tense, rest, 0.0, question, polarity=polarity)


def _comparing(dice: _Dice) -> _Marked:
    """o pedro é mais alto do que a ana . | pedro is taller than ana ."""
    pt, en = dice.pick(_rows(_COMPARATIVES))
    names = tuple(_NAMES)
    one, other = (_name(dice.pick(names)) if dice.chance(0.5) else _definite(dice, "kin") for _ in range(2))
    one = dice.pick(_PRONOUNS) if dice.chance(0.4) else one
    if one.lemma == other.lemma:
        return dice.again(_comparing)
    compared = f"mais {_agree(pt, one.feminine, one.plural)} do que {other.pt}", f"{en} than {other.en}"
    about, question = f"mais {pt} {other.lemma}", one.person not in (0, 3) and dice.chance(0.2)
    return _say(dice, about, one, "ser", ("be", "present"), "present", [compared], 0.0, question)


def _feeling(dice: _Dice) -> _Marked:
    """tenho fome . | i 'm hungry ."""
    question, tense = dice.chance(0.25), dice.tense("be")
    subject, feeling = _somebody(dice, question), dice.pick(_rows(_FEELINGS))
    if tense == "present" and not subject.plural and subject not in _ANYBODY and dice.chance(0.25):
        pt, en = dice.pick(_rows("dez ten, doze twelve, vinte twenty, trinta thirty, quarenta forty"))
        feeling = f"{pt} anos", f"{en} years old"
    about, polarity, english = f"ter {subject.lemma} {feeling[0]}", dice.denial(subject), ("be", tense)
    return _say(dice, about, subject, "ter", english, tense, [feeling], 0.0, question, polarity=polarity)


_POINTED = [
    next(frame for frame in _WITH_OBJECT if frame.verb == verb)
    for verb in "gostar gostar gostar querer querer precisar ver comprar comer fazer vender ler trazer "
    "limpar beber pensar lavar escrever".split()
]


def _pointing(dice: _Dice) -> _Marked:
    """gosto disto . | i like this ."""
    this, english_this = dice.pick((("isto", "this"), ("isso", "that")))
    if dice.chance(0.05):
        return _mark(f"o que {this}", (f"o que é {this}", f"what 's {english_this}"), True)
    question = dice.chance(0.25)
    if dice.chance(0.3):
        noun = dice.pick(_nouns(("thing", "table", "object", "food", "reading", "clothes")))
        thing = _nominal(noun, False, dice.pick((_owner(dice), _DETERMINERS["a"])))
        subject = _Nominal(this, english_this, this, "it")
        about, rest, polarity = f"{this} {noun.pt}", [(thing.pt, thing.en)], dice.denial(subject)
        english = "be", "present"
        return _say(dice, about, subject, "ser", english, "present", rest, 0.0, question, polarity=polarity)
    frame, subject = dice.pick(_POINTED), _somebody(dice, question)
    tense = dice.tense(frame.tenses)
    about, rest = f"{frame.verb} {this} {subject.lemma}", [(contract(frame.preposition, this), english_this)]
    english, polarity = _english_of(frame.en, tense, frame.tenses), dice.denial(subject, tense)
    return _say(dice, about, subject, frame.verb, english, tense, rest, 0.0, question, polarity=polarity)


_TOGETHER = _rows("mim me, ti you, ele him, ela her, nós us, eles them, elas them")
_SOCIAL = [
    frame for frame in _WITH_OBJECT
    if frame.preposition and "names" in frame.objects and frame.verb != "precisar"
]


def _with_somebody(dice: _Dice) -> _Marked:
    """queres falar comigo ? | do you want to talk to me ?"""
    frame, question = dice.pick(_SOCIAL), dice.chance(0.25)
    subject, tense, (pt, en) = _somebody(dice, question), dice.tense(frame.tenses), dice.pick(_TOGETHER)
    if en in {"i": ("me", "us"), "we": ("me", "us"), "you": ("you",)}.get(subject.pronoun, ()):
        return dice.again(_with_somebody)
    rest, often = [(contract(frame.preposition, pt), en)], 0.1 if frame.tenses == "action" else 0.0
    about = f"{frame.verb} {frame.preposition} {pt} {subject.lemma}"
    english, polarity = _english_of(frame.en, tense, frame.tenses), dice.denial(subject, tense)
    return _say(dice, about, subject, frame.verb, english, tense, rest, often, question, polarity=polarity)


_SENTENCES = (
    *(_doing,) * 10, *(_pronoun_object,) * 4, *(_being,) * 3,
    *(_doing_alone, _giving, _travelling, _feeling, _pointing) * 2,
    _asking, _putting, _living, _standing, _existing, _profession, _comparing, _with_somebody,
)


def phrase_stream(seed: int = 0) -> Iterator[tuple[str, str, str]]:
    """Draw sentences of the phrases grammar without end, repetitions included.

    Args:
        seed: Where the sequence begins; equal seeds give equal sequences on every machine.

    Yields:
        The combination of words that the sentence is about, its Portuguese and its English.
    """
    dice = _Dice(seed)
    while True:
        yield dice.pick(_SENTENCES)(dice)


_VERBS = {*(frame.verb for frame in _FRAMES), *(auxiliary for auxiliary, _, _ in _COMPOUNDS.values()),
          *"ser dar mostrar pôr vir viver".split()}
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
    if isinstance(item, _Frame):
        return _forms_of(frozenset([item.verb]), _SIMPLE, _PERSONS)
    if isinstance(item, _Noun):
        return frozenset((item.pt, _plural(item.pt)))
    if isinstance(item, _Nominal):  # a subject, perhaps one that only the verb names
        named = _forms_of(frozenset(_VERBS), _SIMPLE, (item.person,)) if item.person in (0, 1, 3) else ()
        return frozenset([item.pt.split()[0], *named])
    if isinstance(item, str):
        return _words_of_name(item)
    if not isinstance(item, tuple) or len(item) != 2:
        return frozenset()
    first, *others = item[0].replace("_", " ").split() or [""]
    if first in _VERBS:
        return _forms_of(frozenset([first]), _SIMPLE, _PERSONS)
    agreeing = {_agree(first, feminine, plural) for feminine in (False, True) for plural in (False, True)}
    return frozenset([*others[-1:]] if others else agreeing if first else [])


def _words_of_name(name: str) -> frozenset[str]:
    """The same for a tense, a determiner, a noun, a place, or somebody's name."""
    tense = name.replace("_", " ")
    if tense in _COMPOUNDS:
        auxiliary, its_tense, _ = _COMPOUNDS[tense]
        return frozenset(conjugate(auxiliary, its_tense, person) for person in _PERSONS)
    if tense in _SIMPLE:
        there = {"present": ["há"], "imperfect": ["havia"]}.get(tense, [])
        return _forms_of(frozenset(_VERBS), (tense,), _PERSONS).union(there)
    if name in _DETERMINERS:
        return frozenset(form.split("_")[-1] for form in _DETERMINERS[name].forms.split() if form != "_")
    if name in _NOUNS:
        return _words_of(_NOUNS[name])
    return frozenset([name] if name in _NAMES or name in _PLACES or name in _FIXED_ENGLISH else [])


_OVERRIDDEN = {*_SIMPLE, *_COMPOUNDS, *_DETERMINERS, *_NAMES}  # chosen at times before it is needed
_UNSAID: dict[Any, tuple[type, ...]] = {  # of what kind a choice may be that is not said after all
    _profession: (_Nominal, _Noun),
    _comparing: (_Noun,),
    _pointing: (_Noun,),
    _feeling: (tuple,),
}


class _NoSuchSentence(Exception):
    """What the dice were told to choose leads elsewhere."""


class _Undecided(Exception):
    """The script has ended; holds how many choices there are."""


class _Scripted(_Dice):
    """Dice that choose by a script, and only what can lead to the sentence."""

    def __init__(
        self, sentence: str, words: frozenset[str], kind: Callable[..., Any], script: tuple[int, ...]
    ) -> None:
        self._sentence, self._words, self._script, self._thrown = f" {sentence} ", words, script, 0
        self._unsaid = _UNSAID.get(kind, ())
        if kind is _pronoun_object and "," not in words:
            self._unsaid = (_Noun,)
        self._hidden = kind in (_profession, _comparing)  # where a whole noun phrase may be unsaid

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

    def pick(self, items: Sequence[_T]) -> _T:
        kept = list(dict.fromkeys(item for item in items if self._possible(item)))
        first = items[0]
        if type(first) is _Noun and _Noun in self._unsaid:
            others: list[Any] = [item for item in items if not self._possible(item)]
            others.sort(key=lambda noun: noun.kind not in (*_MASS, "kin"))  # last what has a plural
            kept += {noun.feminine: noun for noun in others}.values()
        named = isinstance(first, str) and first.replace("_", " ") in _OVERRIDDEN
        if not kept and (named or type(first) in self._unsaid):
            kept = [first]  # another choice takes its place
        if not kept:
            raise _NoSuchSentence
        return kept[self._throw(len(kept))]

    def said(self, nominal: _Nominal) -> _Nominal:
        _, _, rest = nominal.pt.partition(" ")  # its first word may have contracted
        if f" {rest or nominal.pt} " not in self._sentence and not self._hidden:
            raise _NoSuchSentence
        return nominal

    def again(self, sentence: Callable[[Any], _T]) -> _T:
        raise _NoSuchSentence  # to begin anew finds nothing new

    def denial(self, subject: _Nominal, tense: str = "present") -> str:
        return super().denial(subject, tense) if "não" in self._words else ""


def accepts(sentence: str) -> bool:
    """Whether `phrase_stream` can draw a sentence.

    Args:
        sentence: Portuguese, as the stream has it, such as ``"gosto do gato ."``.

    Raises:
        TypeError: `sentence` is not a string.

    Example:
        >>> accepts("a menina gosta do gato ."), accepts("a menina gosto do gato .")
        (True, False)
    """
    check_type(str, sentence=sentence)
    tokens = sentence.split()
    melted = {word for (_, word), form in _CONTRACTIONS.items() if form in tokens}
    words = frozenset(tokens) | melted
    if not tokens or tokens[-1] not in (".", "?"):
        return False
    kinds = dict.fromkeys(_SENTENCES)
    for kind in [_pronoun_object] if "," in tokens else kinds:  # no other kind has a comma
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


_SIZES = {"train": 30_000, "dev": 500, "test": 1_000}


def split_of(about: str) -> str:
    """The split that every sentence about a combination of words belongs to.

    Args:
        about: The combination, as `phrase_stream` names it.

    Returns:
        By a checksum of the words, ``"test"`` for 8 in 100 combinations, ``"dev"`` for 4, else ``"train"``.

    Raises:
        TypeError: `about` is not a string.

    Example:
        >>> split_of("gostar de gato"), split_of("gostar de vaca")
        ('test', 'train')
    """
    check_type(str, about=about)
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
