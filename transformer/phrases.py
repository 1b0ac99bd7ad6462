"""transformer.phrases, from book/10-text.ipynb, "Text".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = ["conjugate", "contract", "attach_clitic", "phrase_stream", "phrase_pairs"]


# %% book/10-text.ipynb · Text · [phrases-verbs]
import random
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

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
    """Inflect a Portuguese verb.

    Args:
        infinitive: The dictionary form, as ``"comer"``.
        tense: ``"present"``, ``"perfect"`` (pretérito perfeito), ``"imperfect"`` or ``"future"``.
        person: 0 eu, 1 tu, 2 ele/ela, 3 nós, 4 eles/elas.

    Returns:
        The form, as ``"comemos"``.

    Raises:
        ValueError: An unknown tense or person, or a verb of no known class.
    """
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
    # The sound of the stem stays, so its spelling changes: tocar, toquei; conhecer, conheço.
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


# %% book/10-text.ipynb · Text · [phrases-words]
_CONTRACTIONS = {
    "de": "o do a da os dos as das este deste esta desta estes destes estas destas aquele daquele aquela daquela "
    "aqueles daqueles aquelas daquelas ele dele ela dela eles deles elas delas isto disto isso disso",
    "em": "o no a na os nos as nas um num uma numa este neste esta nesta estes nestes estas nestas aquele naquele "
    "aquela naquela aqueles naqueles aquelas naquelas ele nele ela nela eles neles elas nelas isto nisto isso nisso",
    "a": "o ao a à os aos as às aquele àquele aquela àquela aqueles àqueles aquelas àquelas",
    "por": "o pelo a pela os pelos as pelas",
    "com": "mim comigo ti contigo nós connosco",
}
_CONTRACTED = {
    preposition: dict(zip(words.split()[::2], words.split()[1::2], strict=True))
    for preposition, words in _CONTRACTIONS.items()
}


def contract(preposition: str, phrase: str) -> str:
    """Put a preposition before a phrase, melted into its first word where Portuguese does so.

    Args:
        preposition: As ``"de"``; the empty string leaves the phrase alone.
        phrase: As ``"o gato preto"``.

    Returns:
        As ``"do gato preto"``.
    """
    first, space, others = phrase.partition(" ")
    melted = _CONTRACTED.get(preposition, {}).get(first)
    return f"{preposition} {phrase}".strip() if melted is None else melted + space + others


def attach_clitic(form: str, clitic: str) -> str:
    """Hang an object pronoun onto the end of a verb form.

    Args:
        form: A finite form or an infinitive, as ``"comer"``.
        clitic: ``o a os as``, ``me te nos``.

    Returns:
        As ``"comê-lo"``.
    """
    if clitic in ("o", "a", "os", "as"):
        if form[-1] in "rsz":
            stems = {"faz": "fá", "fez": "fê", "traz": "trá"}
            accent = {"ar": "á", "er": "ê", "or": "ô", "ôr": "ô", "ir": "i"}
            stem = stems.get(form) or (form[:-2] + accent[form[-2:]] if form[-1] == "r" else form[:-1])
            return f"{stem}-l{clitic}"
        if form[-1] == "m" or form.endswith(("ão", "õe")):
            return f"{form}-n{clitic}"
    elif clitic == "nos" and form.endswith("mos"):
        form = form[:-1]
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


# %% book/10-text.ipynb · Text · [phrases-english]
_IRREGULAR_PAST = dict(
    zip(
        "eat drink make buy sell read write see know meet find lose sing speak have bring take put draw think "
        "run swim sleep give go come teach let be feel".split(),
        "ate drank made bought sold read wrote saw knew met found lost sang spoke had brought took put drew thought "
        "ran swam slept gave went came taught let was felt".split(),
        strict=True,
    )
)
_IRREGULAR_PLURAL = {
    "woman": "women", "man": "men", "child": "children", "fish": "fish", "sheep": "sheep", "mouse": "mice",
    "knife": "knives",
}  # fmt: skip
_BE = {
    "present": {"i": "am", "he": "is", "she": "is", "it": "is"},
    "past": {"i": "was", "he": "was", "she": "was", "it": "was"},
}
_OBJECT_FORM = {"i": "me", "he": "him", "she": "her", "we": "us", "they": "them"}
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


# %% book/10-text.ipynb · Text · [phrases-lexicon]
class _Noun(NamedTuple):
    pt: str
    feminine: bool
    en: str
    kind: str


_NOUN_TABLE = {
    "person": "menina f girl, menino m boy, mulher f woman, homem m man, criança f child",
    "acquaintance": "amigo m friend, amiga f friend, vizinho m neighbour, vizinha f neighbour, professor m teacher, "
    "professora f teacher, médico m doctor, médica f doctor, aluno m student, aluna f student",
    "trade": "enfermeiro m nurse, enfermeira f nurse, escritor m writer, escritora f writer, cantor m singer, "
    "cantora f singer, cozinheiro m cook, cozinheira f cook",
    "kin": "pai m father, mãe f mother, irmão m brother, irmã f sister, avô m grandfather, avó f grandmother, "
    "tio m uncle, tia f aunt, filho m son, filha f daughter, primo m cousin, prima f cousin",
    "animal": "gato m cat, cão m dog, cavalo m horse, pássaro m bird, coelho m rabbit, vaca f cow, "
    "galinha f hen, ovelha f sheep, burro m donkey, pato m duck",
    "food": "maçã f apple, laranja f orange, bolo m cake, ovo m egg, pera f pear, banana f banana, batata f potato, "
    "tomate m tomato, salada f salad",
    "mass": "pão m bread, queijo m cheese, chocolate m chocolate, gelado m ice cream",
    "dish": "arroz m rice, sopa f soup, carne f meat, peixe m fish",
    "hot": "leite m milk, café m coffee, chá m tea",
    "cool": "água f water, vinho m wine, sumo m juice, cerveja f beer",
    "reading": "livro m book, carta f letter, jornal m newspaper, poema m poem, história f story, "
    "revista f magazine, mensagem f message",
    "song": "canção f song",
    "clothes": "camisa f shirt, casaco m coat, vestido m dress, chapéu m hat, saia f skirt",
    "thing": "chave f key, caneta f pen, caderno m notebook, relógio m watch, telemóvel m phone, bola f ball, "
    "caixa f box, mala f suitcase, saco m bag",
    "table": "copo m glass, prato m plate, faca f knife, garrafa f bottle",
    "object": "fotografia f photo, prenda f gift, flor f flower, mapa m map, quadro m painting, árvore f tree",
    "large": "carro m car, bicicleta f bicycle, barco m boat, mesa f table, cadeira f chair, cama f bed, "
    "porta f door, janela f window",
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
}  # fmt: skip

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


def _rows(text: str) -> list[tuple[str, str]]:
    """``"fome hungry, pressa in a hurry" -> [("fome", "hungry"), ("pressa", "in a hurry")]``."""
    return [(row.split(maxsplit=1)[0], row.split(maxsplit=1)[1]) for row in text.split(", ")]


def _places(text: str) -> list[tuple[str, str, str]]:
    """``"a praia: on the beach" -> [("a praia", "on", "the beach")]``."""
    rows = [row.split(": ") for row in text.split(", ")]
    return [(pt, *english.split(maxsplit=1)) for pt, english in rows]


_PLACES = _places(
    "o jardim: in the garden, a escola: at school, o mercado: at the market, a cozinha: in the kitchen, "
    "a praia: on the beach, o parque: in the park, a rua: in the street, a biblioteca: in the library, "
    "o hospital: in the hospital, a estação: at the station, o restaurante: in the restaurant, "
    "o museu: in the museum, o cinema: at the cinema, o escritório: in the office"
)
_HOMES = _places(
    "lisboa: in lisbon, o porto: in porto, coimbra: in coimbra, portugal: in portugal, o brasil: in brazil, "
    "frança: in france, itália: in italy, angola: in angola, os açores: in the azores, a cidade: in the city, "
    "a aldeia: in the village, esta casa: in this house, esta rua: in this street"
)
_TRANSPORT = _rows("carro by car, autocarro by bus, comboio by train, bicicleta by bicycle")
_FIXED = {  # objects without an article in Portuguese, whatever English has
    "language": "português portuguese, inglês english, francês french, alemão german, italiano italian",
    "subject": "matemática mathematics, biologia biology, música music",
    "music": "música music",
    "instrument": "piano the piano, guitarra the guitar, violino the violin",
    "game": "futebol football, ténis tennis, xadrez chess",
}


# %% book/10-text.ipynb · Text · [phrases-nominals]
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


def _nominal(noun: _Noun, plural: bool, determiner: _Determiner, adjective: tuple[str, str] | None = None) -> _Nominal:
    """Noun, determiner and adjective made to agree: o gato preto, as maçãs pequenas, a minha irmã."""
    article = determiner.forms.split()[noun.feminine + 2 * plural].replace("_", " ").strip()
    pt = [article, _plural(noun.pt) if plural else noun.pt, determiner.after]
    en = _english_plural(noun.en) if plural else noun.en
    if adjective:
        position = 1 if adjective[0] in ("bom", "mau") else 2  # um bom livro, but um livro caro
        pt.insert(position, _agree(adjective[0], noun.feminine, plural))
        en = f"{adjective[1]} {en}"
    if not plural and determiner.singular == "a":
        en = _article(en)
    else:
        en = f"{determiner.plural if plural else determiner.singular} {en}".strip()
    someone = noun.kind in _HUMANS
    pronoun = "they" if plural else "it" if not someone or noun.pt == "criança" else "she" if noun.feminine else "he"
    pt_text = " ".join(word for word in pt if word)
    return _Nominal(pt_text, en, noun.pt, pronoun, 4 if plural else 2, noun.feminine, plural)


def _name(name: str) -> _Nominal:
    feminine = _NAMES[name]
    return _Nominal(("a " if feminine else "o ") + name, name, name, "she" if feminine else "he", 2, feminine)


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
_ATTRACTING = ("quem", "ninguém", "toda a gente")  # subjects that pull an object pronoun in front of the verb


# %% book/10-text.ipynb · Text · [phrases-clause]
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
    """The auxiliary, what follows it, and the one form that stands for both where nothing parts them."""
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
    """A sentence in both languages without its final mark: subject, verb and the rest, affirmed, denied or asked."""
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
    pt = [opening[0], "" if silent else subject.pt, before, finite, after, infinitive, *(pair[0] for pair in rest)]

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
        en = [subject.en, _SHORT.get(aux, aux) if subject.en == subject.pronoun else aux, adverb, remainder]
    en += [pair[1] for pair in rest]
    return " ".join(word for word in pt if word), " ".join(word for word in en if word)


# %% book/10-text.ipynb · Text · [phrases-frames]
class _Frame(NamedTuple):
    """What a verb may be said of: its English, its objects, its tenses, where and when."""

    verb: str
    en: str
    objects: str = ""  # kinds of nouns, single nouns, "names", or the kinds of fixed objects
    preposition: str = ""
    tenses: str = "action"
    known: bool = False  # the object is a definite one: we like the book, not a book
    clitic: bool = False
    places: str = ""
    manners: str = ""  # adverbs that suit the verb


_PEOPLE = "person acquaintance trade kin names"
_FRAMES = [
    _Frame("comer", "eat", "food mass dish", clitic=True, places="jardim parque restaurante cozinha escola praia", manners="bem well, muito a lot, pouco very little"),
    _Frame("beber", "drink", "hot cool", clitic=True, places="jardim restaurante cozinha praia"),
    _Frame("cozinhar", "cook", "arroz carne peixe batata sopa ovo", clitic=True, manners="bem well, mal badly"),
    _Frame("fazer", "make", "bolo sopa salada café chá sumo prenda"),
    _Frame("comprar", "buy", "food mass dish cool clothes thing livro jornal revista flor mapa quadro casa carro "
           "bicicleta barco mesa cadeira cama prenda", clitic=True),
    _Frame("vender", "sell", "food queijo peixe pão leite vinho livro jornal clothes carro bicicleta barco mesa casa "
           "quadro mapa relógio flor galinha vaca", clitic=True),
    _Frame("ler", "read", "reading", clitic=True, places="biblioteca jardim parque praia escola escritório", manners="bem well, muito a lot, devagar slowly"),
    _Frame("escrever", "write", "livro carta poema história mensagem canção", manners="bem well, mal badly"),
    _Frame("ver", "see", "person acquaintance trade animal names casa jardim barco carro árvore quadro fotografia flor",
           clitic=True, tenses="event"),
    _Frame("conhecer", "know", _PEOPLE, tenses="know", known=True, clitic=True),
    _Frame("visitar", "visit", "acquaintance kin names", clitic=True, known=True),
    _Frame("ajudar", "help", _PEOPLE, clitic=True, known=True, manners="muito a lot"),
    _Frame("convidar", "invite", _PEOPLE, clitic=True, known=True),
    _Frame("abrir", "open", "porta janela caixa garrafa mala carta prenda saco", clitic=True),
    _Frame("fechar", "close", "porta janela caixa garrafa mala livro", clitic=True),
    _Frame("lavar", "wash", "clothes table carro maçã pera janela tomate bicicleta", clitic=True),
    _Frame("limpar", "clean", "building mesa janela carro porta quadro prato", clitic=True),
    _Frame("perder", "lose", "thing chapéu casaco livro carta fotografia mapa faca", clitic=True, tenses="event"),
    _Frame("encontrar", "find", "thing chapéu casaco livro carta fotografia mapa gato cão", clitic=True, tenses="event"),
    _Frame("procurar", "look for", "thing animal chapéu casaco livro carta fotografia mapa names", clitic=True),
    _Frame("ouvir", "listen to", "canção história music", places="jardim escritório cozinha parque"),
    _Frame("cantar", "sing", "canção", clitic=True, places="jardim escola rua praia", manners="bem well, mal badly, muito a lot"),
    _Frame("tocar", "play", "instrument", manners="bem well, mal badly"),
    _Frame("jogar", "play", "game", places="parque praia escola jardim", manners="bem well, mal badly"),
    _Frame("estudar", "study", "language subject", places="biblioteca escola jardim", manners="muito a lot, pouco very little"),
    _Frame("aprender", "learn", "language", manners="depressa fast, devagar slowly"),
    _Frame("ensinar", "teach", "language subject", manners="bem well"),
    _Frame("falar", "speak", "language", manners="bem well, devagar slowly"),
    _Frame("ter", "have", "animal clothes thing large object reading casa jardim amigo amiga", tenses="state"),
    _Frame("querer", "want", "food mass dish hot cool clothes thing reading object gato cão", tenses="state"),
    _Frame("trazer", "bring", "food mass dish hot cool thing reading object", clitic=True),
    _Frame("desenhar", "draw", "animal casa flor barco árvore carro mapa", clitic=True, manners="bem well, mal badly"),
    _Frame("gostar", "like", "person acquaintance trade animal food mass dish hot cool reading song clothes thing object "
           "large building names", "de", "like", known=True),
    _Frame("precisar", "need", "thing table clothes livro mapa carro bicicleta mesa cadeira cama casa água leite café pão names",
           "de", "state"),
    _Frame("cuidar", "take care of", "person animal kin names jardim casa flor", "de", known=True),
    _Frame("falar", "talk about", _PEOPLE + " animal livro história canção quadro", "de", known=True),
    _Frame("falar", "talk to", _PEOPLE, "com", known=True),
    _Frame("brincar", "play with", "criança menina menino gato cão coelho bola kin names", "com", known=True, places="jardim parque praia rua escola"),
    _Frame("esperar", "wait for", _PEOPLE + " carta barco mensagem", "por", known=True, places="estação escola rua cinema museu restaurante hospital mercado"),
    _Frame("pensar", "think about", _PEOPLE + " casa história prenda", "em", known=True),
    _Frame("dormir", "sleep", places="jardim praia parque", manners="bem well, mal badly, muito a lot, pouco very little"),
    _Frame("correr", "run", places="parque praia rua jardim", manners="depressa fast, devagar slowly, muito a lot"),
    _Frame("nadar", "swim", manners="bem well, mal badly, depressa fast"),
    _Frame("dançar", "dance", places="praia rua restaurante jardim", manners="bem well, mal badly, muito a lot"),
    _Frame("trabalhar", "work", places="hospital escritório restaurante mercado museu escola biblioteca estação jardim", manners="bem well, muito a lot, pouco very little, devagar slowly"),
    _Frame("chegar", "arrive", tenses="event", manners="cedo early, tarde late"),
    _Frame("viajar", "travel", manners="muito a lot, pouco very little"),
    _Frame("descansar", "rest", places="jardim praia parque", manners="muito a lot, pouco very little"),
    _Frame("viver", "live", tenses="live"),
]

_TENSES = {  # each as often as it stands here
    "action": "present present present perfect perfect perfect imperfect progressive progressive going future can want "
    "must start past_progressive",
    "event": "present perfect perfect perfect going future can",
    "state": "present present present imperfect future",
    "know": "present present perfect perfect imperfect want",
    "like": "present present present perfect imperfect",
    "live": "present present imperfect perfect want going future",
    "go": "present present perfect perfect future can want must",
}
_TIMES = {
    "present": [("todos os dias", "every day"), ("às vezes", "sometimes")],
    "perfect": [("ontem", "yesterday"), ("hoje de manhã", "this morning"), ("ontem à noite", "last night"),
                ("na semana passada", "last week")],
    "imperfect": [("todos os dias", "every day"), ("às vezes", "sometimes")],
    "progressive": [("agora", "now")],
    "past progressive": [("ontem", "yesterday"), ("hoje de manhã", "this morning")],
    "going": [("amanhã", "tomorrow"), ("hoje à noite", "tonight"), ("na próxima semana", "next week")],
    "future": [("amanhã", "tomorrow"), ("um dia", "one day")],
    "want": [("hoje", "today"), ("amanhã", "tomorrow")],
    "must": [("hoje", "today"), ("amanhã", "tomorrow")],
    "start": [("ontem", "yesterday"), ("hoje de manhã", "this morning")],
}  # fmt: skip


# %% book/10-text.ipynb · Text · [phrases-choice]
class _Dice:
    """Reproducible choices: only ``random()``, whose sequence Python promises never to change, decides them."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def pick(self, items: Sequence):
        return items[int(self._random() * len(items))]


def _nouns(kinds: str) -> list[_Noun]:
    wanted = kinds.split()
    return [noun for noun in _NOUNS.values() if noun.kind in wanted or noun.pt in wanted]


def _owner(dice: _Dice) -> _Determiner:
    """Whose it is: my, her, or Ana's, or my father's."""
    if dice.chance(0.7):
        return _DETERMINERS[dice.pick(_OWNED)]
    person = _name(dice.pick(tuple(_NAMES)))
    if dice.chance(0.4):
        person = _nominal(dice.pick(_nouns("kin")), False, _DETERMINERS[dice.pick(("my", "your", "our"))])
    return _Determiner("o a os as", f"{person.en} 's", f"{person.en} 's", contract("de", person.pt))


def _thing(dice: _Dice, noun: _Noun, known: bool = False) -> _Nominal:
    """A noun with a determiner that suits it, and perhaps an adjective."""
    mass, person = noun.kind in _MASS, noun.kind in ("person", "trade")
    plural = not mass and noun.kind != "kin" and dice.chance(0.25)
    if noun.kind == "kin" or (not mass and not person and dice.chance(0.25)):
        determiner = _owner(dice)
    elif mass and dice.chance(0.5):
        determiner = _DETERMINERS[""]
    elif plural and not known:
        determiner = _DETERMINERS[dice.pick((*_COUNTED, "the", "this", "that"))]
    elif not plural and not mass and not known and dice.chance(0.5):
        determiner = _DETERMINERS["a"]
    else:
        determiner = _DETERMINERS[dice.pick(_POINTING)]
    adjective = None
    if noun.kind != "kin" and not determiner.after and dice.chance(0.25):
        adjective = dice.pick(_rows(_QUALITIES[noun.kind]))
    return _nominal(noun, plural, determiner, adjective)


def _somebody(dice: _Dice, asked: bool = False, kinds: str = "person acquaintance trade kin") -> _Nominal:
    """A subject that can act; of those whom one asks, never oneself."""
    if dice.chance(0.5):
        return dice.pick(_PRONOUNS[2:6] + _PRONOUNS[8:] if asked else _PRONOUNS)
    if dice.chance(0.35):
        first = _name(dice.pick(tuple(_NAMES)))
        second = _name(dice.pick(tuple(_NAMES)))
        if first == second or dice.chance(0.7):
            return first
        both = f"{first.pt} e {second.pt}", f"{first.en} and {second.en}"
        return _Nominal(*both, first.lemma, "they", 4, first.feminine and second.feminine, True)
    if not asked and dice.chance(0.08):
        return dice.pick(_ANYBODY)
    return _thing(dice, dice.pick(_nouns(kinds)), known=True)


def _object(dice: _Dice, frame: _Frame) -> tuple[str, str, str]:
    """An object of the frame: Portuguese with the preposition, English, and the word that it is about."""
    pool = [noun.pt for noun in _nouns(frame.objects)]
    pool += [pt for kind in frame.objects.split() for pt in _FIXED_PT.get(kind, ())]
    pool += tuple(_NAMES) if "names" in frame.objects else ()
    word = dice.pick(pool)
    if word in _FIXED_EN:
        return contract(frame.preposition, word), _FIXED_EN[word], word
    nominal = _name(word) if word in _NAMES else _thing(dice, _NOUNS[word], frame.known)
    return contract(frame.preposition, nominal.pt), nominal.en, word


_FIXED_PT = {kind: [pt for pt, _ in _rows(rows)] for kind, rows in _FIXED.items()}
_FIXED_EN = {pt: en for rows in _FIXED.values() for pt, en in _rows(rows)}
_WITH_OBJECT = [frame for frame in _FRAMES if frame.objects]
_WITH_CLITIC = [frame for frame in _FRAMES if frame.clitic]
_ALONE = [frame for frame in _FRAMES if frame.manners]


def _tense(dice: _Dice, tenses: str) -> str:
    return dice.pick(_TENSES[tenses].split()).replace("_", " ")


def _polarity(dice: _Dice, tense: str, always: bool = True) -> str:
    if tense == "start" or dice.chance(0.65):
        return ""
    if tense in ("present", "perfect", "future") and dice.chance(0.3):
        return "sempre" if always and tense == "present" and dice.chance(0.5) else "nunca"
    return "não"


def _denial(dice: _Dice, subject: _Nominal, tense: str) -> str:
    return "não" if subject not in _ANYBODY and tense != "start" and dice.chance(0.27) else ""


def _english_of(frame: _Frame, tense: str, pronoun: str) -> tuple[str, str, str]:
    """The English verb of a frame; having and knowing have no "used to", and in Portuguese one "knew" whom one met."""
    verb = frame.en
    if frame.tenses == "know" and tense in ("perfect", "want"):
        verb = "meet"
    elif frame.tenses in ("state", "know") and tense == "imperfect":
        tense = "perfect"
    return _english_verb(verb, tense, pronoun)


def _time(dice: _Dice, verb: str, tense: str, subject: _Nominal, polarity: str, wanted: float) -> list[tuple[str, str]]:
    """Perhaps when it happens; always where the verb alone leaves open whether it is over: comemos, comemos ontem."""
    if tense == "perfect" and subject.person == 3 and _past_looks_present(verb, 3):
        return [dice.pick(_TIMES["perfect"])]
    if polarity not in ("nunca", "sempre") and tense in _TIMES and dice.chance(wanted):
        return [dice.pick(_TIMES[tense])]
    return []


def _mark(combination: str, sentence: tuple[str, str], question: bool = False) -> tuple[str, tuple[str, str]]:
    mark = " ?" if question else " ."
    return combination, (sentence[0] + mark, sentence[1] + mark)


# %% book/10-text.ipynb · Text · [phrases-sentences]
_Marked = tuple[str, tuple[str, str]]  # the combination that a sentence is about, and the sentence in both languages
_QUESTION_WORDS = (("porque é que", "why"), ("quando é que", "when"))


def _doing(dice: _Dice) -> _Marked:
    """a menina gosta do gato preto . | the girl likes the black cat ."""
    frame, question = dice.pick(_WITH_OBJECT), dice.chance(0.2)
    subject = _WHO if question and dice.chance(0.15) else _somebody(dice, question)
    tense = _tense(dice, frame.tenses)
    pt, en, word = _object(dice, frame)
    if word == subject.lemma:
        return _doing(dice)
    polarity = "" if subject in (*_ANYBODY, _WHO) else _polarity(dice, tense, frame.tenses == "action" and not question)
    if question and polarity == "nunca":
        polarity = ""
    opening = ("", "")
    when = _time(dice, frame.verb, tense, subject, polarity, 0.2 if frame.tenses in ("action", "event") else 0)
    where = []
    if frame.places and dice.chance(0.2):
        where = [_where(dice.pick(frame.places.split()))]
    if question and subject is not _WHO and not when and dice.chance(0.4):
        ask_when = frame.tenses in ("action", "event") and tense in ("perfect", "going", "future") and not polarity
        opening = dice.pick(_QUESTION_WORDS if ask_when else _QUESTION_WORDS[:1])
    english = _english_of(frame, tense, subject.pronoun)
    rest = [(pt, en), *where, *when]
    sentence = _clause(subject, frame.verb, english, tense, rest, polarity, question, opening, drop=dice.chance(0.6))
    return _mark(f"{frame.verb} {frame.preposition} {word}", sentence, question)


def _where(place: str) -> tuple[str, str]:
    row = next(row for row in _PLACES if row[0].split()[-1] == place)
    return contract("em", row[0]), f"{row[1]} {row[2]}"


def _doing_alone(dice: _Dice) -> _Marked:
    """o cavalo corre depressa . | the horse runs fast ."""
    frame, question = dice.pick(_ALONE), dice.chance(0.2)
    kinds = "person acquaintance trade kin" + (" animal animal" if frame.verb in ("dormir", "correr", "nadar") else "")
    subject = _somebody(dice, question, kinds)
    tense = _tense(dice, frame.tenses)
    polarity = _denial(dice, subject, tense)
    rest = [dice.pick(_rows(frame.manners))] if dice.chance(0.8) or not frame.places else []
    if rest and rest[0][0] in ("mal", "pouco") and (polarity or tense not in ("present", "perfect", "imperfect")):
        return _doing_alone(dice)  # nobody plans to dance badly
    if frame.places and (not rest or dice.chance(0.2)):
        rest.append(_where(dice.pick(frame.places.split())))
    rest += _time(dice, frame.verb, tense, subject, polarity, 0.2)
    english = _english_of(frame._replace(en=frame.en.split()[0]), tense, subject.pronoun)
    sentence = _clause(subject, frame.verb, english, tense, rest, polarity, question, drop=dice.chance(0.6))
    return _mark(f"{frame.verb} {subject.lemma}", sentence, question)


def _pronoun_object(dice: _Dice) -> _Marked:
    """o livro é novo , mas a ana não o lê . | the book is new , but ana does n't read it ."""
    frame = dice.pick(_WITH_CLITIC)
    noun = dice.pick([noun for noun in _nouns(frame.objects) if noun.pt != "criança"])
    determiner = _owner(dice) if noun.kind == "kin" else _DETERMINERS[dice.pick(_POINTING)]
    topic = _nominal(noun, noun.kind not in (*_MASS, "kin") and dice.chance(0.3), determiner)
    subject = _somebody(dice)
    human = "acquaintance" in frame.objects or "names" in frame.objects and frame.verb == "ajudar"
    if subject.lemma == noun.pt or (human and topic.clitic == "os" and subject.person == 4):
        return _pronoun_object(dice)  # ajudam-nos would be "they help us" as well
    joint = dice.pick(("", "", ("e", "and"), ("e", "and"), ("mas", "but"), ("mas", "but")))
    before = dice.pick(("present", "present", "imperfect")) if joint else "present"
    now, past = ("present", "perfect", "going", "want", "must"), ("perfect", "past progressive")
    tense = dice.pick(past if before == "imperfect" else now)
    tense = {"know": "present", "event": "perfect"}.get(frame.tenses, tense)
    polarity = "não" if subject not in _ANYBODY and joint != ("e", "and") and dice.chance(0.4) else ""
    pronoun = topic.pronoun
    if not joint and pronoun != "they":  # nothing says what it stands for: one helps people, one eats things
        pronoun = ("she" if topic.feminine else "he") if human else "it"
    rest = [("", _OBJECT_FORM.get(pronoun, pronoun).replace("they", "them"))]
    rest += _time(dice, frame.verb, tense, subject, polarity, 0.1 if frame.tenses == "action" else 0)
    english = _english_of(frame, tense, subject.pronoun)
    pt, en = _clause(subject, frame.verb, english, tense, rest, polarity, clitic=topic.clitic, drop=dice.chance(0.6))
    if not joint:
        return _mark(f"{frame.verb} -{topic.clitic}", (pt, en))
    topic_pt, topic_en = _being(dice, topic, before)
    return _mark(f"{frame.verb} -{noun.pt}", (f"{topic_pt} , {joint[0]} {pt}", f"{topic_en} , {joint[1]} {en}"))


def _being(dice: _Dice, subject: _Nominal, tense: str, polarity: str = "", question: bool = False, drop: bool = False):
    """Ser for what one is, estar for how one is, be for both."""
    kind = _NOUNS[subject.lemma].kind if subject.lemma in _NOUNS else "person"
    verb = "estar" if kind in _STATES and dice.chance(0.5) else "ser"
    pt, en = dice.pick(_rows((_STATES if verb == "estar" else _QUALITIES)[kind]))
    pt = _agree(pt, subject.feminine, subject.plural)
    if not polarity and dice.chance(0.25):
        pt, en = f"muito {pt}", f"very {en}"
    english = _english_verb("be", tense, subject.pronoun)
    return _clause(subject, verb, english, tense, [(pt, en)], polarity, question, drop=drop)


def _definite(dice: _Dice, kinds: str) -> _Nominal:
    noun = dice.pick(_nouns(kinds))
    determiner = _owner(dice) if noun.kind == "kin" or dice.chance(0.2) else _DETERMINERS[dice.pick(_POINTING)]
    if noun.kind in ("person", "trade", *_MASS):
        determiner = _DETERMINERS[dice.pick(_POINTING)]
    return _nominal(noun, noun.kind not in (*_MASS, "kin") and dice.chance(0.3), determiner)


_DESCRIBED = " ".join(_QUALITIES)


def _describing(dice: _Dice) -> _Marked:
    """a sopa não está quente . | the soup is n't hot ."""
    question, tense = dice.chance(0.2), dice.pick(("present", "present", "imperfect"))
    subject = _somebody(dice, question) if dice.chance(0.4) else _definite(dice, _DESCRIBED)
    if subject in _ANYBODY:
        return _describing(dice)
    polarity = "não" if dice.chance(0.3) else ""
    pt, en = _being(dice, subject, tense, polarity, question, drop=dice.chance(0.6))
    quality = en.split()[-1]
    return _mark(f"ser {subject.lemma} {quality}", (pt, en), question)


def _comparing(dice: _Dice) -> _Marked:
    """o pedro é mais alto do que a ana . | pedro is taller than ana ."""
    pt, en = dice.pick(_rows(_COMPARATIVES))
    one, other = (_name(dice.pick(tuple(_NAMES))) if dice.chance(0.5) else _definite(dice, "kin") for _ in range(2))
    if dice.chance(0.4):
        one = dice.pick(_PRONOUNS)
    if one.lemma == other.lemma:
        return _comparing(dice)
    question = one.person != 0 and dice.chance(0.2)
    compared = f"mais {_agree(pt, one.feminine, one.plural)} {contract('de', 'o')} que {other.pt}", f"{en} than {other.en}"
    english = _english_verb("be", "present", one.pronoun)
    return _mark(f"mais {pt} {other.lemma}",
                 _clause(one, "ser", english, "present", [compared], question=question, drop=dice.chance(0.6)),
                 question)  # fmt: skip


_TRADES = "trade professor professora médico médica aluno aluna"


def _profession(dice: _Dice) -> _Marked:
    """a ana é médica . | ana is a doctor ."""
    subject = dice.pick(_PRONOUNS) if dice.chance(0.5) else dice.pick(
        [_name(dice.pick(tuple(_NAMES))), _definite(dice, "kin")])  # fmt: skip
    trades = [noun for noun in _nouns(_TRADES) if noun.feminine == subject.feminine]
    trade = dice.pick(trades)
    praise = dice.pick((None, None, ("bom", "good"), ("grande", "great")))
    determiner = _DETERMINERS["a"] if praise and not subject.plural else _DETERMINERS[""]
    what = _nominal(trade, subject.plural, determiner)
    pt, en = what.pt, what.en
    if praise:  # before the noun, "grande" says how good; behind it, how big
        first, noun = (pt.split() if " " in pt else ("", pt))
        pt = f"{first} {_agree(praise[0], subject.feminine, subject.plural)} {noun}".strip()
        en = f"{'' if subject.plural else 'a '}{praise[1]} {en.split()[-1]}"
    elif not subject.plural:
        en = _article(en)
    question = subject.person != 0 and dice.chance(0.2)
    tense, polarity = dice.pick(("present", "present", "imperfect", "future")), "não" if dice.chance(0.25) else ""
    if subject.pt == "vocês":
        question = False
    sentence = _clause(subject, "ser", _english_verb("be", tense, subject.pronoun), tense, [(pt, en)], polarity,
                       question, drop=dice.chance(0.6))  # fmt: skip
    return _mark(f"ser {subject.lemma} {trade.pt}", sentence, question)


def _feeling(dice: _Dice) -> _Marked:
    """tenho fome . | i 'm hungry ."""
    question, tense = dice.chance(0.25), dice.pick(("present", "present", "imperfect"))
    subject = _somebody(dice, question)
    feeling = dice.pick(_rows(_FEELINGS))
    if dice.chance(0.25) and tense == "present" and not subject.plural:
        years = dice.pick(_rows("dez ten, doze twelve, vinte twenty, trinta thirty, quarenta forty"))
        feeling = f"{years[0]} anos", f"{years[1]} years old"
    polarity = _denial(dice, subject, tense)
    english = _english_verb("be", tense, subject.pronoun)
    sentence = _clause(subject, "ter", english, tense, [feeling], polarity, question, drop=dice.chance(0.6))
    return _mark(f"ter {subject.lemma} {feeling[0]}", sentence, question)


_ANYWHERE = " ".join(row[0].split()[-1] for row in _PLACES)
_INSIDE = {"person": _ANYWHERE, "acquaintance": _ANYWHERE, "trade": _ANYWHERE, "kin": _ANYWHERE, "animal": "jardim cozinha rua parque mercado",
           "thing": "cozinha escritório jardim escola biblioteca restaurante", "table": "cozinha jardim restaurante",
           "food": "cozinha", "mass": "cozinha", "cool": "cozinha", "hot": "cozinha", "dish": "cozinha restaurante",
           "reading": "cozinha escritório biblioteca escola"}  # fmt: skip


def _standing(dice: _Dice) -> _Marked:
    """o gato está no jardim . | the cat is in the garden ."""
    subject = dice.pick(_PRONOUNS) if dice.chance(0.3) else _definite(dice, " ".join(_INSIDE))
    tense, asked = dice.pick(("present", "present", "imperfect")), dice.chance(0.25)
    english = _english_verb("be", tense, subject.pronoun)
    if asked and subject.person != 0 and dice.chance(0.6):
        pt = f"onde {conjugate('estar', tense, subject.person)} {subject.pt}"
        return _mark(f"onde {subject.lemma}", (pt, f"where {english[0]} {subject.en}"), True)
    where = _where(dice.pick(_INSIDE[_NOUNS[subject.lemma].kind if subject.lemma in _NOUNS else "person"].split()))
    asked = asked and subject.person not in (0, 3)
    polarity = "não" if dice.chance(0.25) else ""
    sentence = _clause(subject, "estar", english, tense, [where], polarity, asked, drop=dice.chance(0.6))
    return _mark(f"estar {subject.lemma} {where[0]}", sentence, asked)


def _existing(dice: _Dice) -> _Marked:
    """há dois gatos no jardim . | there are two cats in the garden ."""
    noun = dice.pick([noun for noun in _nouns(" ".join(_INSIDE)) if noun.kind != "kin"])
    mass, plural = noun.kind in _MASS, noun.kind not in _MASS and dice.chance(0.5)
    where = _where(dice.pick(_INSIDE[noun.kind].split()))
    question, tense = dice.chance(0.25), dice.pick(("present", "present", "imperfect"))
    polarity = "não" if (mass or plural) and dice.chance(0.4) else ""
    open_ended = mass or plural and bool(question or polarity)  # there is n't any bread; are there any apples ?
    determiner = "" if open_ended else dice.pick(_COUNTED) if plural else "a"
    thing = _nominal(noun, plural, _DETERMINERS[determiner])
    be = _english_verb("be", tense, thing.pronoun)[0]
    en = f"any {thing.en}" if open_ended and (question or polarity) else thing.en
    there = f"{be} n't" if polarity else be
    there = f"{there} there" if question else "there 's" if there == "is" else f"there {there}"
    pt = f"{polarity} {'há' if tense == 'present' else 'havia'} {thing.pt} {where[0]}".strip()
    return _mark(f"haver {noun.pt} {where[0]}", (pt, f"{there} {en} {where[1]}"), question)


def _travelling(dice: _Dice) -> _Marked:
    """vamos à praia de carro . | we go to the beach by car ."""
    question, tense = dice.chance(0.25), _tense(dice, "go")
    subject = _somebody(dice, question)
    place, _, english_place = dice.pick([row for row in _PLACES if row[0] != "a rua"])
    verb, preposition, en, to = dice.pick((("ir", "a", "go", "to"), ("ir", "a", "go", "to"), ("vir", "de", "come", "from")))
    if verb == "vir":
        tense = dice.pick(("present", "perfect"))
    rest = [(contract(preposition, place), f"{to} {english_place}")]
    if place not in ("o jardim", "a cozinha") and dice.chance(0.25):
        by_pt, by_en = dice.pick(_TRANSPORT)
        rest.append((f"de {by_pt}", by_en))
    polarity = _polarity(dice, tense) if subject not in _ANYBODY and not question else ""
    if not question or dice.chance(0.5):
        rest += _time(dice, verb, tense, subject, polarity, 0.25)
    english = _english_verb(en, tense, subject.pronoun)
    sentence = _clause(subject, verb, english, tense, rest, polarity, question, drop=dice.chance(0.6))
    return _mark(f"{verb} {subject.lemma} {place}", sentence, question)


def _living(dice: _Dice) -> _Marked:
    """vivemos nos açores . | we live in the azores ."""
    question, tense = dice.chance(0.3), _tense(dice, "live")
    subject = _somebody(dice, question, "acquaintance trade kin")
    if tense == "perfect" and subject.person == 3 or subject in _ANYBODY:
        return _living(dice)
    english = _english_verb("live", tense, subject.pronoun)
    if question and dice.chance(0.4):
        sentence = _clause(subject, "viver", english, tense, question=True, opening=("onde é que", "where"),
                           drop=dice.chance(0.6))  # fmt: skip
        return _mark(f"onde viver {subject.lemma}", sentence, True)
    place, preposition, english_place = dice.pick(_HOMES)
    polarity = "não" if dice.chance(0.25) else ""
    rest = [(contract("em", place), f"{preposition} {english_place}")]
    sentence = _clause(subject, "viver", english, tense, rest, polarity, question, drop=dice.chance(0.6))
    return _mark(f"viver {subject.lemma} {place}", sentence, question)


_GIVING = _rows("dar give, mostrar show, trazer bring")
_GIFTS = "thing reading object clothes maçã laranja bolo água café chá"
_RECEIVERS = _rows("me me, te you, nos us")


def _giving(dice: _Dice) -> _Marked:
    """ela dá-me um livro . | she gives me a book ."""
    verb, en = dice.pick(_GIVING)
    question = dice.chance(0.2)
    subject, tense = _somebody(dice, question), _tense(dice, "action")
    polarity = _denial(dice, subject, tense)
    gift = _thing(dice, dice.pick(_nouns(_GIFTS)))
    english = _english_verb(en, tense, subject.pronoun)
    when = _time(dice, verb, tense, subject, polarity, 0.15)
    drop = dice.chance(0.6)
    if dice.chance(0.6):
        clitic, receiver = dice.pick(_RECEIVERS)
        if subject.pronoun in {"me": ("i", "we"), "te": ("you",), "nos": ("i", "we")}[clitic]:
            return _giving(dice)
        if tense == "future":  # the pronoun would stand inside the verb: dar-me-á
            return _giving(dice)
        rest = [(gift.pt, f"{receiver} {gift.en}"), *when]
        sentence = _clause(subject, verb, english, tense, rest, polarity, question, clitic=clitic, drop=drop)
        return _mark(f"{verb} -{clitic} {gift.lemma}", sentence, question)
    receiver = _name(dice.pick(tuple(_NAMES))) if dice.chance(0.4) else _definite(dice, "person acquaintance trade kin")
    if receiver.lemma == subject.lemma:
        return _giving(dice)
    rest = [(gift.pt, gift.en), (contract("a", receiver.pt), f"to {receiver.en}"), *when]
    sentence = _clause(subject, verb, english, tense, rest, polarity, question, drop=drop)
    return _mark(f"{verb} a {receiver.lemma} {gift.lemma}", sentence, question)


def _putting(dice: _Dice) -> _Marked:
    """a joana pôs as chaves na mala . | joana put the keys in the suitcase ."""
    thing = _thing(dice, dice.pick(_nouns("caneta caderno relógio telemóvel chave livro carta revista copo prato faca")), True)
    place, english_place = dice.pick((("a mesa", "on the table"), ("a cadeira", "on the chair"), ("a mala", "in the suitcase"),
                                      ("a caixa", "in the box"), ("o saco", "in the bag"), ("a cama", "on the bed")))  # fmt: skip
    question = dice.chance(0.2)
    subject, tense = _somebody(dice, question), _tense(dice, "action")
    polarity = _denial(dice, subject, tense)
    rest = [(thing.pt, thing.en), (contract("em", place), english_place)]
    # "puts" but "put": only the date tells the past of an English sentence, never that of a Portuguese one.
    rest += _time(dice, "pôr", tense, subject, polarity, 0.2)
    english = _english_verb("put", tense, subject.pronoun)
    sentence = _clause(subject, "pôr", english, tense, rest, polarity, question, drop=dice.chance(0.6))
    return _mark(f"pôr {thing.lemma} {place}", sentence, question)


_ASKED_WHAT = [frame for frame in _FRAMES if frame.objects and not frame.preposition
               and frame.tenses in ("action", "event", "state") and frame.verb not in ("ajudar", "visitar", "convidar")
               and frame.verb not in ("jogar", "tocar", "falar")]  # fmt: skip


def _asking(dice: _Dice) -> _Marked:
    """o que é que a menina come ? | what does the girl eat ?"""
    frame, subject = dice.pick(_ASKED_WHAT), _somebody(dice, True)
    tense = _tense(dice, frame.tenses)
    english = _english_of(frame, tense, subject.pronoun)
    when = _time(dice, frame.verb, tense, subject, "", 0.2 if frame.tenses == "action" else 0)
    sentence = _clause(subject, frame.verb, english, tense, when, "", True, ("o que é que", "what"), drop=dice.chance(0.6))
    return _mark(f"o que {frame.verb} {subject.lemma}", sentence, True)


def _pointing(dice: _Dice) -> _Marked:
    """gosto disto . | i like this ."""
    this, english_this = dice.pick((("isto", "this"), ("isso", "that")))
    if dice.chance(0.1):
        return _mark(f"o que {this}", (f"o que é {this}", f"what 's {english_this}"), True)
    if dice.chance(0.3):
        thing = _thing(dice, dice.pick(_nouns("thing table object food reading clothes")))
        if not thing.plural and "este" not in thing.pt and "aquel" not in thing.pt and "esta" not in thing.pt:
            polarity, question = "não" if dice.chance(0.3) else "", dice.chance(0.25)
            subject = _Nominal(this, english_this, this, "it")
            sentence = _clause(subject, "ser", _english_verb("be", "present", "it"), "present",
                               [(thing.pt, thing.en)], polarity, question)  # fmt: skip
            return _mark(f"{this} {thing.lemma}", sentence, question)
        return _pointing(dice)
    frame = dice.pick([frame for frame in _FRAMES if frame.verb in ("gostar", "precisar", "querer", "ver", "comprar",
                       "comer", "fazer", "vender", "ler", "trazer", "limpar", "beber", "pensar", "lavar", "escrever")])  # fmt: skip
    question, tense = dice.chance(0.25), _tense(dice, frame.tenses)
    subject = _somebody(dice, question)
    polarity = _denial(dice, subject, tense)
    rest = [(contract(frame.preposition, this), english_this), *_time(dice, frame.verb, tense, subject, polarity, 0)]
    english = _english_of(frame, tense, subject.pronoun)
    sentence = _clause(subject, frame.verb, english, tense, rest, polarity, question, drop=dice.chance(0.6))
    return _mark(f"{frame.verb} {this} {subject.lemma}", sentence, question)


_TOGETHER = {"eu": ("mim", "me"), "tu": ("ti", "you"), "ele": ("ele", "him"), "ela": ("ela", "her"),
             "nós": ("nós", "us"), "eles": ("eles", "them"), "elas": ("elas", "them")}  # fmt: skip


def _with_somebody(dice: _Dice) -> _Marked:
    """queres falar comigo ? | do you want to talk to me ?"""
    frame = dice.pick([frame for frame in _WITH_OBJECT if frame.preposition and "kin" in frame.objects or frame.verb == "gostar"])
    question = dice.chance(0.25)
    subject, tense = _somebody(dice, question), _tense(dice, frame.tenses)
    who = dice.pick(tuple(_TOGETHER))
    pt, en = _TOGETHER[who]
    if en in (_OBJECT_FORM.get(subject.pronoun), subject.pronoun) or (who in ("eu", "nós") and subject.person in (0, 3)):
        return _with_somebody(dice)
    polarity = _denial(dice, subject, tense)
    often = 0.1 if frame.tenses == "action" else 0
    rest = [(contract(frame.preposition, pt), en), *_time(dice, frame.verb, tense, subject, polarity, often)]
    english = _english_of(frame, tense, subject.pronoun)
    sentence = _clause(subject, frame.verb, english, tense, rest, polarity, question, drop=dice.chance(0.6))
    return _mark(f"{frame.verb} {frame.preposition} {pt} {subject.lemma}", sentence, question)


# %% book/10-text.ipynb · Text · [phrases-pairs]
_SENTENCES = (
    *(_doing,) * 10, *(_pronoun_object,) * 4, *(_describing,) * 3, *(_doing_alone,) * 2, *(_giving,) * 2, *(_asking,) * 1,
    *(_travelling,) * 2, _standing, _existing, _living, _feeling, _profession, _comparing, _putting, _pointing, _with_somebody,
)  # fmt: skip
_SPLIT_SIZES = {"train": 30_000, "dev": 500, "test": 1_000}


def _split_of(combination: str) -> str:
    """The split that a combination of words belongs to, whatever sentence it stands in."""
    bucket = zlib.crc32(combination.encode()) % 100
    return "test" if bucket < 8 else "dev" if bucket < 12 else "train"


def phrase_stream(seed: int = 0) -> Iterator[tuple[str, str, str]]:
    """Draw sentences of the phrases grammar without end, repetitions included.

    Args:
        seed: Where the sequence begins; equal seeds give equal sequences on every machine.

    Yields:
        The split that the sentence belongs to, its Portuguese and its English.
    """
    dice = _Dice(seed)
    while True:
        combination, (source, target) = dice.pick(_SENTENCES)(dice)
        yield _split_of(combination), source, target


@lru_cache(maxsize=1)
def _phrase_corpus() -> dict[str, tuple[tuple[str, str], ...]]:
    corpus: dict[str, dict[str, str]] = {split: {} for split in _SPLIT_SIZES}
    for split, source, target in phrase_stream():
        if len(corpus[split]) < _SPLIT_SIZES[split]:
            corpus[split][source] = target
        elif all(len(corpus[name]) == size for name, size in _SPLIT_SIZES.items()):
            return {name: tuple(pairs.items()) for name, pairs in corpus.items()}


def phrase_pairs(split: str) -> list[tuple[str, str]]:
    """The sentences of one split of the phrases corpus.

    No combination of words that a test sentence is about, as *to drink* and *coffee*, occurs in training, though
    each of the words does.

    Args:
        split: ``"train"`` (30,000 pairs), ``"dev"`` (500) or ``"test"`` (1,000).

    Returns:
        Pairs (Portuguese, English), each Portuguese sentence once, always in the same order.

    Raises:
        ValueError: An unknown split.
    """
    if split not in _SPLIT_SIZES:
        raise ValueError(f"split must be one of {', '.join(_SPLIT_SIZES)}, got {split!r}")
    return list(_phrase_corpus()[split])
