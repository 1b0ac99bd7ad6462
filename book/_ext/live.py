"""Models that live in the page: the directive that places them, and the files that they are read from.

`:::{live} toy`, which `plain.py` writes, puts the figure `toy` on a page. Its first paragraph is for where it
cannot run, the rest is the caption. Without JavaScript, and on paper, the page shows both, and between them
an answer of the figure's model, computed when the book is built, and the figure as it first appears, from
`stills/`; of the translator, whose words are no picture, the build draws what it attended to. A page that has
a live figure loads the scripts of `_static/live/`, and the weights of its model when a reader comes near.
They are written here, in float16, as scripts, because a page that is opened from the disk may load scripts
and no other data.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import torch
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from experiments import small_portuguese as phrases
from transformer import Transformer, Translator, greedy_search, load_toy_model
from transformer.exchange.translators import Speaker
from transformer.language.corpora import load_corpus, tokenize
from transformer.language.translator import by_words
from transformer.language.vocabulary import BOS_ID, EOS_ID
from transformer.modern.language_model import LanguageModel
from transformer.study.checks import CHECKS, NEEDED
from transformer.training import load_record, record_path

SCRIPTS = ("transformer", "weights", "vocabulary", "page")
BOOK = Path(__file__).parents[1]


class LiveModel(NamedTuple):
    """A model with an example: what it is given, what it makes of it, and both as a person reads them."""

    model: Transformer | LanguageModel
    src: list[int]
    tgt: list[int]
    example: tuple[str, str]
    more: dict[str, Any] = {}


# The models ------------------------------------------------------------------------------------------


def toy() -> LiveModel:
    """The toy model of Chapter 9."""
    model, digits = load_toy_model(), [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
    answer = greedy_search(model, torch.tensor([digits]), len(digits))[0].tolist()
    mark = model.config.bos_id - 1
    given, made = (" ".join("X" if id == mark else str(id) for id in ids) for ids in (digits, answer))
    return LiveModel(model, digits, [model.config.bos_id, *answer[:-1]], (given, made))


def small_portuguese() -> LiveModel:
    """The translator of small Portuguese, with its vocabulary and with words to make sentences of."""
    translator, sentence = Translator.load("phrases", "cpu"), "a menina gosta do gato preto ."
    model, vocabulary = translator.model, translator.vocabulary
    src = [*vocabulary.encode(sentence), model.config.eos_id]
    answer = greedy_search(model, torch.tensor([src]), 20)[0].tolist()
    words = {"pieces": vocabulary.pieces, "merges": vocabulary.merges}
    read = sorted({word for source, _ in load_corpus("phrases", "train") for word in source.split()})
    more = {"vocabulary": words, "words": words_of_grammar(), "sentence": sentence, "read": " ".join(read)}
    return LiveModel(
        model, src, [model.config.bos_id, *answer[:-1]], (sentence, vocabulary.decode(answer)), more
    )


def speaker() -> LiveModel:
    """The small Llama of Chapter 15, with its vocabulary."""
    found, prompt = Speaker(record_path("speaker")), "a menina"
    model, ids = found.model.float(), found.encode(prompt)
    tokenizer = record_path("speaker") / "tokenizer.json"
    settings = json.loads(tokenizer.read_text(encoding="utf8"))["model"]
    numbers = settings["vocab"]
    more = {
        "vocabulary": {"pieces": sorted(numbers, key=numbers.__getitem__), "merges": settings["merges"]},
        "bos_id": BOS_ID,
        "eos_id": EOS_ID,
        "prompt": prompt,
    }
    return LiveModel(model, ids, [], (prompt, found.speak(prompt).removeprefix(prompt).strip()), more)


# Those with an encoder, and what speaks without one.
MODELS: dict[str, Callable[[], LiveModel]] = {"toy": toy, "phrases": small_portuguese}
SPEAKERS: dict[str, Callable[[], LiveModel]] = {"speaker": speaker}
# The figures, each with the model that it runs, if it runs one.
FIGURES: dict[str, str | None] = {
    **dict.fromkeys("attention positions order schedule smoothing gradient roofline merges learner".split()),
    **dict.fromkeys("rotary examination switch kills descent bleu warmup reversing".split()),
    **dict.fromkeys("masks bootstrap shards plus hundred".split()),
    **dict.fromkeys(("phrases", "beam", "anatomy", "stream", "shift"), "phrases"),
    "toy": "toy",
    "speaker": "speaker",
}
# What a figure needs beside what all of them share.
RUN = ("learning", "learner", "trial")
MORE_SCRIPTS = {
    "learner": ("learning", "recorded"),
    "plus": ("learning",),
    "bootstrap": ("learning",),
    "warmup": RUN,
    "reversing": RUN,
    "speaker": ("language_model",),
}


@lru_cache
def live_model(name: str) -> LiveModel:
    return {**MODELS, **SPEAKERS}[name]()


# Words to choose from --------------------------------------------------------------------------------

SUBJECTS = "menina homem amigo professora vizinho".split()
NAMES = "ana pedro".split()
VERBS = "gostar comer beber comprar ver ler procurar lavar desenhar querer".split()
TENSES = ("present", "perfect", "progressive", "going", "can")


def words_of_grammar() -> dict[str, Any]:
    """Subjects, verbs and objects of Small Portuguese, inflected, for the page to put together.

    Returns:
        `"subjects"`: words and grammatical person; `"verbs"`: infinitive, preposition, the nouns that it may
        have for an object, and for each tense the five forms; `"nouns"`: for each noun what it is with each
        adjective, and alone; `"contractions"`: preposition and article, and what they become.
    """
    the = phrases.DETERMINERS["the"]
    some = [phrases.noun_phrase(phrases.NOUNS[word], False, the) for word in SUBJECTS]
    several = [phrases.noun_phrase(phrases.NOUNS["criança"], True, the)]
    subjects = [*map(phrases.named, NAMES), *some, *several, *phrases.PRONOUNS]
    frames = {frame.verb: frame for frame in phrases.FRAMES}
    verbs: list[dict[str, Any]] = []
    nouns: dict[str, dict[str, str]] = {}
    for verb in VERBS:
        frame = frames[verb]
        objects = [noun for noun in phrases.nouns_of(frame.objects) if noun.kind not in phrases.HUMANS]
        possible = [tense for tense in TENSES if tense in phrases.TENSES[frame.tenses].split()]
        forms = {tense: forms_of(verb, tense) for tense in possible}
        names = [noun.pt for noun in objects]
        verbs.append({"verb": verb, "preposition": frame.preposition, "forms": forms, "nouns": names})
        for noun in objects:
            alone = {"": phrases.noun_phrase(noun, False, the).pt}
            pairs = phrases.read_rows(phrases.QUALITIES[noun.kind])
            nouns[noun.pt] = alone | {
                pair[0]: phrases.noun_phrase(noun, False, the, pair).pt for pair in pairs
            }
    unique = {nominal.pt: {"pt": nominal.pt, "person": nominal.person} for nominal in subjects}
    contractions = {f"{before} {word}": melted for (before, word), melted in phrases.CONTRACTIONS.items()}
    return {"subjects": list(unique.values()), "verbs": verbs, "nouns": nouns, "contractions": contractions}


def forms_of(verb: str, tense: str) -> list[str]:
    return [" ".join(phrases.portuguese_verb(verb, tense, person)).strip() for person in range(5)]


# What the book has measured --------------------------------------------------------------------------


def examination() -> dict[str, Any]:
    """What `check_model` found on models with faults, from the record of Chapter 16.

    Returns:
        `"checks"`: of each, in their order, what it asks and whom it suspects; `"needed"`: the checks without
        which later ones are not made; `"models"`: library, name, what is skipped, and for each fault, and for
        none, the checks that fail; `"unseen"`: faults that no look from outside can find.
    """
    record = load_record("clinic")
    faults: dict[str, dict[str, list[str]]] = {}
    for row in record["faults"]:
        faults.setdefault(row["model"], {})[row["fault"]] = row["failures"]
    return {
        "checks": {
            name: [(check.run.__doc__ or "").replace("`", ""), check.suspects]
            for name, check in CHECKS.items()
        },
        "needed": NEEDED,
        "models": [
            [
                model["library"],
                model["model"],
                model["skipped"],
                {"": model["failures"], **faults[model["model"]]},
            ]
            for model in record["models"]
        ],
        "unseen": sorted({row["fault"] for row in record["faults"] if not row["visible"]}),
    }


class Case(NamedTuple):
    """A fault of `experiments/case_book.py`, and where Chapter 16 has it."""

    fault: str
    name: str
    section: str
    cell: str
    line: str  # how the line that differs begins
    meant: str = ""  # where the line does not say so itself


CASES = (
    Case("counted from one", "counted from one", "case-loading", "faults", "speed = base"),
    Case("base 100000", "base 100000", "case-loading", "faults", "speed = 100000"),
    Case(
        *("no positions", "no positions", "case-loading", "faults", "return torch.zeros"),
        meant="sines and cosines",
    ),
    Case(
        *("added late", "mask added late", "case-mask-softmax", "attention-wrong", "weights = weights"),
        meant="added to the scores",
    ),
    Case(
        *("multiplied late", "mask multiplied late", "case-mask-softmax", "attention-wrong"),
        *("return (weights if", "a mask of the scores"),
    ),
    Case(
        *("over the queries", "softmax over the queries", "case-mask-softmax", "attention-wrong"),
        line="return scores.softmax",
    ),
    Case("over the words", "norm over the words", "case-loading", "faults", "mean = x"),
    Case(
        *("unbiased norm", "unbiased norm", "case-loading", "faults", "deviation = x"),
        meant="a mean over d squares",
    ),
    Case("wrong stream", "wrong stream", "case-loading", "faults", "return y +"),
)


def switch() -> dict[str, Any]:
    """The trials of Chapter 16, from its record, and the lines of its cells that make the faults.

    Returns:
        `"updates"`: of the points of a curve; `"right"`: the trials of the right model, each its losses, its
        share of right tokens, and its share of right sentences; `"faults"`: name, section, line, what was
        meant, and the trials.
    """
    trials = {
        fault: [[[loss for _, loss in trial["losses"]], trial["teacher"], trial["free"]] for trial in runs]
        for fault, runs in load_record("case-book")["trials"].items()
    }
    chapter = json.loads((BOOK / "16-clinic.ipynb").read_text(encoding="utf8"))
    cells = {cell["id"]: "".join(cell["source"]).splitlines() for cell in chapter["cells"]}
    faults = []
    for case in CASES:
        line = next(line.strip() for line in cells[case.cell] if line.strip().startswith(case.line))
        code, _, comment = line.partition("  # ")
        meant = case.meant or comment.removeprefix("meant: ")
        faults.append([case.name, case.section, code, meant, trials[case.fault]])
    return {"updates": list(range(10, 301, 10)), "right": trials["right"], "faults": faults}


def bootstrap() -> list[list[int]]:
    """The counts of Chapter 13's hundred sentences: n-grams found and written, n to 4, and both lengths."""
    rows = []
    for entry in load_record("ted-best")["sentences"]:
        texts = [tokenize(entry[side]).split() for side in ("translation", "target")]
        grams = [[Counter(zip(*(words[i:] for i in range(n)))) for words in texts] for n in range(1, 5)]
        found = [(ours & theirs).total() for ours, theirs in grams]
        rows.append([*found, *(ours.total() for ours, _ in grams), *map(len, texts)])
    return rows


def hundred() -> list[list[Any]]:
    """Chapter 13's hundred sentences: kind, source, translation, a person's, and chrF2."""
    parts = "category source translation target chrF2".split()
    return [[entry[part] for part in parts] for entry in load_record("ted-best")["sentences"]]


# Figures that show records: what their scripts find in `live.data`.
RECORDED = examination, switch, bootstrap, hundred
DATA: dict[str, Callable[[], Any]] = {read.__name__: read for read in RECORDED}


# Drawn when the book is built -------------------------------------------------------------------------

WIDE, HIGH, LETTER = 380, 132, 7.8  # of the drawing, and how wide a letter is
FAINT = 0.05  # up to here a weight has no line, as in `phrases.js`


def sentences() -> str:
    """The example of small Portuguese above its translation, and what each English word attended to."""
    found = by_words(Translator.load("phrases", "cpu").align(live_model("phrases").example[0], beam_size=1))
    source, target = [*found.source[:-1], "end"], found.target[:-1]
    above, below = boxes(source, 17), boxes(target, HIGH - 17)
    lines, words = [], []
    for word, (x, _), row in zip(target, below, found.weights[-1].mean(0).tolist()):
        ends = [
            (weight, other, top) for weight, other, (top, _) in zip(row, source, above) if weight >= FAINT
        ]
        lines += [
            f'<path d="M{x:.1f} {HIGH - 34}C{x:.1f} {HIGH / 2} {top:.1f} {HIGH / 2} {top:.1f} 34" '
            f'class="live-now" stroke-width="{1 + 3 * weight:.2f}" stroke-opacity="{weight:.2f}"></path>'
            for weight, _, top in ends
        ]
        words.append(f"{word} to " + ", ".join(f"{other} {weight:.0%}" for weight, other, _ in ends))
    label = f"Each English word has lines to what it attended to: {'; '.join(words)}."
    drawn = "".join([*lines, *(box for _, box in (*above, *below))])
    head = f'<svg class="live-drawing live-sentences" viewBox="0 0 {WIDE} {HIGH}" role="img"'
    return f'{head} aria-label="{escape(label)}">{drawn}</svg>'


def boxes(words: list[str], y: float) -> list[tuple[float, str]]:
    """Words side by side in the middle of the drawing: where the middle of each is, and its box."""
    widths = [LETTER * len(word) + 12 for word in words]
    found, left = [], (WIDE - sum(widths) - 6 * (len(words) - 1)) / 2
    for word, width in zip(words, widths):
        x = left + width / 2
        box = f'<rect x="{left:.1f}" y="{y - 15}" width="{width:.1f}" height="30" rx="5"></rect>'
        text = f'<text x="{x:.1f}" y="{y + 4.5}" class="live-word-token">{escape(word)}</text>'
        found.append((x, f'<g class="live-box">{box}{text}</g>'))
        left += width + 6
    return found


DRAWN: dict[str, Callable[[], str]] = {"phrases": sentences}


# Their files -----------------------------------------------------------------------------------------


def script_of(name: str, found: LiveModel) -> str:
    """A script that sets `live.models[name]`: configuration, weights, and logits to be compared with.

    Args:
        name: of the figure.
        found: its model, with an example.
    """
    model = found.model
    parameters = {key: value.detach() for key, value in model.named_parameters()}  # a shared table once
    read = [torch.tensor([ids]) for ids in (found.src, found.tgt) if ids]  # a speaker has no target
    with torch.no_grad():
        logits = model(*read)
    record = {
        "kind": type(model).__name__,
        "config": asdict(model.config),
        "sizes": [(key, value.numel()) for key, value in parameters.items()],
        "weights": base64_of(torch.cat([value.flatten() for value in parameters.values()]).half()),
        "check": {"src": found.src, "tgt": found.tgt, "logits": base64_of(logits)},
        **found.more,
    }
    content = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
    return f"((globalThis.live ??= {{}}).models ??= {{}}).{name} = {content};\n"


def base64_of(numbers: torch.Tensor) -> str:
    """The tensor's bytes, lowest first on every machine that PyTorch runs on."""
    return b64encode(numbers.contiguous().numpy().tobytes()).decode()


@lru_cache
def script_of_model(name: str) -> bytes:
    return script_of(name, live_model(name)).encode()


def script_of_data(name: str) -> str:
    """A script that sets `live.data[name]`."""
    content = json.dumps(DATA[name](), ensure_ascii=False, separators=(",", ":"))
    return f"((globalThis.live ??= {{}}).data ??= {{}}).{name} = {content};\n"


def write_models(app: Sphinx) -> None:
    """Write models and data where the pages find them."""
    if app.builder.format != "html":
        return
    folder = Path(app.outdir, "_static", "live")
    folder.mkdir(parents=True, exist_ok=True)
    for name in (*MODELS, *SPEAKERS):
        (folder / f"{name}-model.js").write_bytes(script_of_model(name))
    for name in DATA:
        (folder / f"{name}-data.js").write_text(script_of_data(name), encoding="utf8")


def address_of(name: str) -> str:
    """Where the scripts of the page find a model; another content has another address, as a cache expects."""
    return f"{name}-model.js?v={crc32(script_of_model(name)):08x}"


# The page --------------------------------------------------------------------------------------------


class LiveFigure(nodes.General, nodes.Element):
    """A live figure: what stands in its place where it cannot run, then its caption."""


class LiveCaption(nodes.Part, nodes.Element):
    """The caption of a live figure."""


class Live(SphinxDirective):
    """`:::{live} toy`."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        if name not in FIGURES:
            raise self.error(f"live figures are {', '.join(FIGURES)}, not {name!r}")
        parsed = nodes.Element()
        self.state.nested_parse(self.content, self.content_offset, parsed)
        plain, *caption = parsed.children
        self.env.note_dependency(still_of(name))
        content = (plain, *instead_of(name), LiveCaption("", *caption))
        return [LiveFigure("", *content, name=name, ids=[f"live-{name}"])]


def still_of(name: str) -> Path:
    return Path(__file__).parent / "stills" / f"{name}.svg"


def instead_of(name: str) -> list[nodes.Node]:
    """What a page without scripts shows: an answer of the figure's own model, and its first picture."""
    shown: list[nodes.Node] = []
    if name in (*MODELS, *SPEAKERS):
        given, made = live_model(name).example
        answer = (nodes.literal("", given), nodes.Text(" → "), nodes.literal("", made))
        shown.append(nodes.paragraph("", "", *answer))
    if name in DRAWN or still_of(name).exists():
        picture = DRAWN[name]() if name in DRAWN else still_of(name).read_text(encoding="utf8")
        shown.append(nodes.raw("", f'<div class="live-still">{picture}</div>', format="html"))
    return shown


def visitors(tag: str) -> tuple[Callable[[Any, nodes.Element], None], Callable[[Any, nodes.Element], None]]:
    """What the writer does at the beginning and at the end of a node that becomes a `tag`."""

    def visit(writer: Any, node: nodes.Element) -> None:
        name = {"class": "live", "data-live": node["name"]} if "name" in node else {}
        model = FIGURES[node["name"]] if name else None
        address = {"data-model": address_of(model)} if model else {}
        writer.body.append(writer.starttag(node, tag, **name, **address))

    def depart(writer: Any, node: nodes.Element) -> None:
        writer.body.append(f"</{tag}>\n")

    return visit, depart


def load_scripts(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.Node | None
) -> None:
    """Ask for the scripts of a page's live figures, and for nothing where it has none."""
    names = sorted({figure["name"] for figure in doctree.findall(LiveFigure)}) if doctree else []
    if names:
        app.add_css_file("live/live.css")
    more = [script for name in names for script in MORE_SCRIPTS.get(name, ())]
    more += [f"{name}-data" for name in names if name in DATA]
    for script in (*SCRIPTS, *more, *names) if names else ():
        app.add_js_file(f"live/{script}.js", loading_method="defer")


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_node(LiveFigure, html=visitors("figure"))
    app.add_node(LiveCaption, html=visitors("figcaption"))
    app.add_directive("live", Live)
    app.connect("builder-inited", write_models)
    app.connect("html-page-context", load_scripts)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
