"""Models that live in the page: the same numbers as the package's, in Node, and operated in a browser."""
# ruff: noqa: F811 (a fixture has the name under which it is imported)

from __future__ import annotations

import copy
import json
import math
import random
import re
import shutil
import subprocess
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

import live
import pytest
import torch
import torch.nn.functional as F
from helpers import lively_model
from playwright.sync_api import Browser, Locator, Page
from sacrebleu.metrics import BLEU
from test_book import (  # noqa: F401
    HTML,
    PATIENCE,
    PLACES,
    ROOT,
    TOO_WIDE,
    chromium,
    reads_pages,
    show,
    tab,
    visit,
)
from torch.func import grad, grad_and_value

from transformer import (
    Transformer,
    TransformerConfig,
    Translator,
    beam_search,
    corpus_scores,
    greedy_search,
    label_smoothed_cross_entropy,
    load_toy_model,
    scaled_dot_product_attention,
    sinusoidal_encoding,
)
from transformer.commands.recipes import Schedule
from transformer.language.corpora import CORPORA, tokenize
from transformer.modern.parts import rotary_table, rotate
from transformer.training import load_record

SCRIPTS = ROOT / "book" / "_static" / "live"
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="there is no Node")
MODELS = {"toy": load_toy_model, "phrases": lambda: Translator.load("phrases", "cpu").model}
ANSWERING = [*live.MODELS, *live.SPEAKERS]
RUNS = ["warmup", "reversing"]  # a small model is trained, at a chapter's settings
STILLS = ["toy", *(name for name in live.FIGURES if name not in ANSWERING)]
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@lru_cache
def script_of(name: str) -> str:
    return live.script_of(name, live.live_model(name))


def in_node(program: str, *names: str, script: str = "", **values: Any) -> Any:
    """The value of `program`, an expression in JavaScript, after `script` and with models and constants."""
    scripts = [(SCRIPTS / f"{name}.js").read_text(encoding="utf8") for name in live.SCRIPTS if name != "page"]
    scripts += [script_of(name) for name in names]
    scripts += [f"const {name} = {json.dumps(value)};" for name, value in values.items()]
    source = "\n".join([*scripts, script, f"console.log(JSON.stringify({program}));"])
    found = subprocess.run([NODE, "-"], input=source, capture_output=True, text=True, encoding="utf8")
    assert found.returncode == 0, found.stderr[-2000:]
    return json.loads(found.stdout)


# The same numbers ----------------------------------------------------------------------------------


@needs_node
@pytest.mark.parametrize("changes", [
    {},
    {"norm_first": True, "final_norm": False, "bias": False},
    {"final_norm": True, "tie_embeddings": False, "n_layers": (3, 1)},
], ids=str)  # fmt: skip
def test_models_of_every_form_equal_pytorch(changes):
    model = lively_model(0, **changes).half().float().eval()  # what float16 can hold
    src, tgt = [5, 7, 3, 9, 4], [2, 8, 6, 10]
    script = live.script_of("other", live.LiveModel(model, src, tgt, ("", "")))
    program = "live.difference(live.load_model(live.models.other), live.models.other.check)"
    assert in_node(program, script=script) < 1e-4


@torch.no_grad()
def lens_without(model: Transformer, src: list[int], tgt: list[int], silent: set[int]) -> torch.Tensor:
    """What the decoder's stream would say `[1 + sublayers, T, V]`, where some sublayers add nothing."""
    model = copy.deepcopy(model)
    states: list[torch.Tensor] = []
    model.decoder.layers[0].register_forward_pre_hook(lambda module, given: states.append(given[0]))
    residuals = [module for name, module in model.decoder.named_modules() if name.endswith("_residual")]
    for number, residual in enumerate(residuals, start=1):
        if number in silent:
            residual.register_forward_hook(lambda module, given, result: given[0])
        residual.register_forward_hook(lambda module, given, result: states.append(result))
    model(torch.tensor([src]), torch.tensor([tgt]))
    return torch.stack([model.project(model.decoder.norm(state))[0].softmax(-1) for state in states])


@pytest.mark.slow
def test_what_figures_load_is_small():
    for name in ANSWERING:
        assert len(script_of(name).encode()) < (3_000_000 if name in live.MODELS else 1_000_000)
    for name in live.DATA:
        assert len(live.script_of_data(name).encode()) <= 60_000


# The one that learns: batches, gradients and updates.
PAIRS = [([1, 2, 3, 4, 5], [5, 4, 3, 2, 1]), ([7, 7, 2], [2, 10, 7]), ([0, 9, 9, 1], [1, 10, 9, 0])]
LEARNING = (SCRIPTS / "learning.js").read_text(encoding="utf8")
IN_JAVASCRIPT = """(() => {
    const { Learner, Rows, Tape, Adam, batch_of, label_smoothed_cross_entropy, rate_of } = live.learning();
    const mapped = (parts, make) =>
        Object.fromEntries(Object.entries(parts).map(([name, each]) => [name, make(each)]));
    const state = mapped(given, (values) => new Rows(Float32Array.from(values)));
    const { src, tgt, targets, B } = batch_of(pairs);
    const adam = new Adam();
    let loss, first;
    for (let step = 1; step <= 3; step++) {
        for (const { grad } of Object.values(state)) grad.fill(0);
        const tape = new Tape();
        const logits = new Learner(config, state).forward(tape, src, tgt, B);
        loss = label_smoothed_cross_entropy(logits, targets, 0.1);
        tape.backward();
        first ??= { loss, gradients: mapped(state, ({ grad }) => [...grad]) };
        adam.update(state, rate_of(step, { peak: 0.01, warmup: 2 }));
    }
    return { ...first, state: mapped(state, ({ data }) => [...data]) };
})()"""


def padded(rows: list[list[int]]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], True, padding_value=13)


def learned_in_python(model: Transformer) -> dict[str, Any]:
    """What three updates make of a model: the first loss, the first gradients, the parameters at the end."""
    src, tgt = padded([src for src, _ in PAIRS]), padded([[11, *tgt] for _, tgt in PAIRS])
    targets = padded([[*tgt, 12] for _, tgt in PAIRS])
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    schedule = Schedule(warmup_steps=2, peak_rate=0.01)
    found: dict[str, Any] = {}
    for step in (1, 2, 3):
        optimizer.param_groups[0]["lr"] = schedule.rate(step, 3, model.config.d_model)
        model.zero_grad()
        loss = label_smoothed_cross_entropy(model(src, tgt), targets, smoothing=0.1, pad_id=13)
        loss.backward()
        gradients = {name: value.grad.clone() for name, value in model.named_parameters()}
        found = found or {"loss": loss.item(), "gradients": gradients}
        optimizer.step()
    return {**found, "state": dict(model.named_parameters())}


@pytest.fixture(scope="module", params=[False, True], ids=["post-norm", "pre-norm"])
def learner(request: pytest.FixtureRequest) -> tuple[dict[str, Any], dict[str, Any]]:
    """A configuration and weights in the form of the page, and what Python makes of them."""
    torch.manual_seed(0)
    config = {
        "d_model": 16,
        "n_heads": 4,
        "n_layers": 2,
        "d_ff": 32,
        "norm_first": request.param,
        "dropout": 0.0,
    }
    model = Transformer(TransformerConfig(14, 14, **config, max_length=16, bos_id=11, eos_id=12, pad_id=13))
    with torch.no_grad():
        for value in model.parameters():
            value.add_(0.1 * torch.randn_like(value))
    given = {name: value.flatten().tolist() for name, value in model.named_parameters()}
    values = {"config": {**config, "vocab_size": 14}, "given": given, "pairs": PAIRS}
    return values, learned_in_python(model)


def check_learned(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found["loss"] == pytest.approx(wanted["loss"], abs=1e-5)
    for part, tolerance in (("gradients", 1e-6), ("state", 1e-4)):
        assert found[part].keys() == wanted[part].keys()
        for name, values in found[part].items():
            # What a key's bias adds to a row of scores is lost in the softmax. Its gradient is rounding,
            # and Adam magnifies it.
            if part == "gradients" or not name.endswith("w_k.bias"):
                given, value = torch.tensor(values), wanted[part][name].detach().flatten()
                torch.testing.assert_close(given, value, rtol=0, atol=tolerance)


@pytest.mark.slow
@needs_node
def test_gradients_and_updates_are_those_of_pytorch(learner):
    values, wanted = learner
    check_learned(in_node(IN_JAVASCRIPT, script=LEARNING, **values), wanted)


# Figures without a model: their scripts run in Node, where they find no page to stand on.
NO_PAGE = "globalThis.document = { currentScript: { src: '' }, querySelectorAll: () => [] };\n"


def in_node_as(name: str, program: str, **values: Any) -> Any:
    """The value of `program` with what the script of the figure `name` has put into `live`."""
    scripts = ("page", *live.MORE_SCRIPTS.get(name, ()), name)
    source = "\n".join((SCRIPTS / f"{script}.js").read_text(encoding="utf8") for script in scripts)
    return in_node(program, script=NO_PAGE + source, **values)


def names_of_chapter(chapter: str, *cells: str) -> dict[str, Any]:
    """What some cells of a chapter define."""
    source = {
        cell["id"]: "".join(cell["source"])
        for cell in json.loads((ROOT / "book" / f"{chapter}.ipynb").read_text(encoding="utf8"))["cells"]
    }
    names: dict[str, Any] = {"math": math, "torch": torch, "Counter": Counter, "grad": grad, "F": F}
    names["grad_and_value"] = grad_and_value
    for cell in cells:
        exec(source[cell], names)
    return names


def descended(shift: float, start: list[float], rate: float, method: str) -> torch.Tensor:
    """The chapter's parameters, before the first of its 60 updates and after each: `[61, 2]`, as w and b."""
    chapter = names_of_chapter("01-gradients", "logistic", "stable-loss")
    adam_step = names_of_chapter("07-training", "adam-step")["adam_step"]
    x = torch.tensor(in_node_as("descent", "live.descent.X"), dtype=torch.float64)[:, None] + shift
    y = torch.arange(len(x)) % 2.0

    def loss(params: dict[str, torch.Tensor]) -> torch.Tensor:
        return chapter["log_loss"](chapter["score"](params, x), y)

    params = {"w": torch.tensor(start[:1]).double(), "b": torch.tensor(start[1]).double()}
    m, v = ({name: torch.zeros_like(p) for name, p in params.items()} for _ in range(2))
    path = [params]
    for t in range(1, 61):
        grads = grad(loss)(params)
        if method == "adam":
            for name, g in grads.items():
                step, m[name], v[name] = adam_step(g, m[name], v[name], t, beta2=0.999, eps=1e-8)
                params = {**params, name: params[name] - rate * step}
        else:
            m = {name: (0.9 * m[name] if method == "momentum" else 0) + g for name, g in grads.items()}
            params = {name: p - rate * m[name] for name, p in params.items()}
        path.append(params)
    return torch.stack([torch.cat([params["w"], params["b"][None]]) for params in path])


IN_ROWS = """(() => {
    const { stream, given, layers } = live.plus.stack(sums, 7);
    const numbers = ({ weight, bias }) => [[...weight.data], [...bias.data]];
    return {
        data: stream.map(({ data }) => [...data]), grad: stream.map(({ grad }) => [...grad]),
        given: [...given], layers: layers.map((layer) => layer.map(numbers)),
    };
})()"""


@pytest.mark.slow
@needs_node
def test_gradients_in_a_stack_are_those_of_pytorch():
    sums = [False, True, False, True, True]
    found = in_node_as("plus", IN_ROWS, sums=sums)
    data, gradients = (torch.DoubleTensor(found[name]).view(-1, 8, 32) for name in ("data", "grad"))
    stream = [data[0].requires_grad_()]
    for added, layer in zip(sums, found["layers"], strict=True):
        parts = [torch.nn.Linear(32, 64).double(), torch.nn.Linear(64, 32).double()]
        for part, (weight, bias) in zip(parts, layer, strict=True):
            part.weight.data = torch.DoubleTensor(weight).view_as(part.weight)
            part.bias.data = torch.DoubleTensor(bias)
        x = stream[-1]
        y = parts[1](parts[0](x).relu())
        stream.append(x + y if added else y)
    given = torch.DoubleTensor(found["given"]).view(8, 32)
    wanted = torch.autograd.grad(stream[-1], stream, given)
    torch.testing.assert_close(data, torch.stack(stream), rtol=0, atol=1e-12)
    torch.testing.assert_close(gradients, torch.stack(wanted), rtol=0, atol=1e-12)


@pytest.mark.slow
@needs_node
def test_bleu_in_the_page_is_the_package_s():
    dice = random.Random(0)
    texts = [
        [" ".join(dice.choices(dice.choice(("ab", "abcde")), k=dice.randint(1, 12))) for _ in range(2)]
        for _ in range(300)
    ]
    texts += [[reference, reference] for _, reference in texts[:5]] + [["", "a b"], ["x y", "a b c"]]
    program = "pairs.map(([ours, theirs]) => live.bleu(ours, theirs))"
    pairs = [[text.split() for text in pair] for pair in texts]
    library = BLEU(lowercase=True, tokenize="none", force=True)  # as in corpus_scores, which rounds
    by_hand = names_of_chapter("13-translation", "bleu-by-hand")["bleu_by_hand"]
    exact = 0
    for (ours, theirs), found in zip(texts, in_node_as("bleu", program, pairs=pairs), strict=True):
        assert found["smoothed"] == pytest.approx(library.corpus_score([ours], [[theirs]]).score, abs=1e-9)
        rounded = corpus_scores([ours], [theirs], preparation=CORPORA)["BLEU-tok"]["score"]
        assert found["smoothed"] == pytest.approx(rounded, abs=0.00501), (ours, theirs)
        if found["score"]:
            exact += 1
            assert found["score"] == pytest.approx(by_hand([ours], [theirs]), abs=1e-9)
        else:
            assert min(found["precisions"]) == 0 or not ours
    assert exact > 20


# On the pages --------------------------------------------------------------------------------------


@reads_pages
def test_without_javascript_there_is_an_answer_or_a_picture_and_a_caption(chromium: Browser):
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    for path in sorted(set(PLACES.values())):
        page.goto(path.as_uri())
        for name in (name for name in live.FIGURES if PLACES[name] == path):
            figure = page.locator(f"figure[data-live={name}]")
            section = figure.locator("xpath=ancestor::section[1]").get_attribute("id")
            page.goto(f"{path.as_uri()}#{section}")  # what is far from the screen is not laid out
            figure.locator("figcaption").scroll_into_view_if_needed()
            page.wait_for_timeout(300)
            if name in ANSWERING:
                assert " → ".join(live.live_model(name).example) in figure.inner_text()
            drawn = figure.locator(".live-still > svg").all()
            assert bool(drawn) == (name in (*live.DRAWN, *STILLS))
            assert all(picture.bounding_box()["width"] > 100 for picture in drawn)
            assert all(len(picture.get_attribute("aria-label")) > 30 for picture in drawn[:1])
            assert len(figure.locator("figcaption").inner_text()) > 60
    context.close()


def pictures_of(tab: Page, name: str) -> str:
    if name == "learner":
        tab.emulate_media(reduced_motion="reduce")  # the end of what is recorded
    ready(tab, name)
    if name in RUNS:  # before its run it has axes and nothing in them
        button = tab.locator(f"figure[data-live={name}]").get_by_role("button")
        button.click()
        button.and_(tab.get_by_text("Stop")).wait_for()
        button.and_(tab.get_by_text("Run")).wait_for(timeout=240_000)
    picture = ":is(svg:not(.live-head *, .live-machine *), .live-machine)"
    drawn = tab.locator(f"figure[data-live={name}] {picture}").evaluate_all(
        "all => all.map(picture => picture.outerHTML)"
    )
    return "\n".join([*drawn, ""])


# What the playground opens with: the reports of a run with the first settings, as its worker makes them.
REPORTS = """(() => {
    const messages = [];
    const postMessage = (message) => messages.push(JSON.parse(JSON.stringify(message)));
    Object.assign(globalThis, { onmessage: null, postMessage, setTimeout: (next) => next() });
    live.learner.work(live.learning());
    onmessage({ data: { settings: [live.learner.first] } });
    onmessage({ data: { going: true, until } });
    return { settings: live.learner.first, messages };
})()"""


def reports(until: int = 3000) -> dict[str, Any]:
    found = in_node_as("learner", REPORTS, until=until)
    rounded = json.loads(json.dumps(found["messages"]), parse_float=lambda text: round(float(text), 2))
    return {**found, "messages": rounded}


def write_record() -> None:
    content = json.dumps(reports(), separators=(",", ":"))
    (SCRIPTS / "recorded.js").write_text(f"live.recorded = {content};\n", encoding="utf8")


def write_stills() -> None:
    for browser in chromium.__wrapped__():  # type: ignore[attr-defined]
        for name in STILLS:
            live.still_of(name).write_text(pictures_of(browser.new_page(), name), encoding="utf8")


def slider(tab: Page, label: str) -> Locator:
    return tab.get_by_role("slider", name=label, exact=True)


def slide(tab: Page, label: str, place: int) -> None:
    """Move a slider to its value number `place`, counted from 0."""
    slider(tab, label).fill(str(place))


def check_refused(tab: Page, field: Locator, words: str) -> None:
    """The field is marked, and what is wrong is said in a line that belongs to it."""
    assert field.get_attribute("aria-invalid") == "true"
    note = tab.locator(f"#{field.get_attribute('aria-describedby')}")
    assert words in note.inner_text() and note.is_visible()
    assert tab.evaluate(TOO_WIDE) <= 0


def said(tab: Page, name: str = "") -> str:
    """What the figure of that name says, or the first of the page."""
    figure = f"figure[data-live={name}]" if name else "figure.live"
    return tab.locator(f"{figure} .live-said").first.inner_text().replace("−", "-")


def ready(tab: Page, name: str) -> None:
    visit(tab, PLACES[name])
    tab.locator(".predict .show").evaluate_all("buttons => buttons.forEach(button => button.click())")
    tab.locator(f"figure[data-live={name}]").scroll_into_view_if_needed()
    tab.wait_for_selector(f"figure.live-ready[data-live={name}]")


@pytest.fixture
def toy(tab: Page) -> Page:
    """The page of Chapter 9, with its figure ready."""
    ready(tab, "toy")
    return tab


def take_apart(tab: Page) -> None:
    """Unfold what takes parts of the toy away."""
    assert tab.get_by_text("Take away the counting head").is_hidden()
    tab.locator(".live-toy summary").press("Enter")


@pytest.fixture
def translator(tab: Page) -> Page:
    """The first page, with its figure ready, its words at once."""
    tab.emulate_media(reduced_motion="reduce")
    ready(tab, "phrases")
    return tab


# What a figure writes in letters below 11 pixels. A sign above or below the line of a formula may be smaller.
SMALL_LETTERS = """figure => {
    const texts = document.createTreeWalker(figure, NodeFilter.SHOW_TEXT), found = [];
    while (texts.nextNode()) {
        const element = texts.currentNode.parentElement, words = texts.currentNode.data.trim();
        if (!words || !element.checkVisibility({ visibilityProperty: true })) continue;
        if (element.closest('mjx-container, .live-spoken, option, style')) continue;
        const { a, b } = element.closest('svg')?.getScreenCTM() ?? { a: 1, b: 0 };
        const size = parseFloat(getComputedStyle(element).fontSize) * Math.hypot(a, b);
        if (size < 10.95) found.push(`${size.toFixed(1)} px: ${words}`);
    }
    return found;
}"""

TO_THE_END = """sliders => sliders.forEach(slider => {
    slider.value = slider.max;
    slider.dispatchEvent(new Event('input', { bubbles: true }));
})"""


KEPT = "figure => parseFloat(getComputedStyle(figure).minHeight)"
# Whether a figure fills the place that is kept for it, but for one line: lines break otherwise elsewhere.
FILLS = """figure => {
    const kept = parseFloat(getComputedStyle(figure).minHeight);
    figure.style.minHeight = '0';
    const { height } = figure.getBoundingClientRect();
    figure.style.minHeight = '';
    return Math.abs(kept - height) <= 26;
}"""
MOST = 480  # pixels; what opens a chapter has fewer, by test_budgets.py
HIGHEST = {"smoothing": 484, "anatomy": 640, "learner": 1100}


@reads_pages
@pytest.mark.parametrize("name", live.FIGURES)
def test_a_figure_is_the_one_on_paper_keeps_its_place_and_fits_a_phone(tab, name):
    """Where a still is not the first picture, `python tests/book/test_live.py` writes it anew."""
    ready(tab, name)
    figure = tab.locator(f"figure[data-live={name}]")
    tab.wait_for_function(FILLS, arg=figure.element_handle())  # what a worker finds comes a moment later
    assert figure.evaluate(KEPT) <= HIGHEST.get(name, MOST)
    if name in STILLS and name not in RUNS:
        still, drawn = live.still_of(name).read_text(encoding="utf8"), pictures_of(tab, name)
        assert NUMBER.split(still) == NUMBER.split(drawn)
        shown, wanted = ([float(number) for number in NUMBER.findall(text)] for text in (still, drawn))
        assert shown == pytest.approx(wanted, abs=0.11)  # another processor may round otherwise
    show(tab, 820, "light")
    assert figure.evaluate(SMALL_LETTERS) == []
    show(tab, 390, "light")
    tab.wait_for_function(FILLS, arg=figure.element_handle())
    figure.locator("details").evaluate_all("all => all.forEach(details => (details.open = true))")
    for target in figure.locator(":is(input[type=range], .live-head, button, select):visible").all():
        box = target.bounding_box()
        assert min(box["width"], box["height"]) >= 23.5, target.evaluate("target => target.outerHTML")
    assert figure.evaluate(SMALL_LETTERS) == []
    figure.locator("input[type=range]").evaluate_all(TO_THE_END)
    assert figure.evaluate(SMALL_LETTERS) == [] and tab.evaluate(TOO_WIDE) <= 0


@reads_pages
@pytest.mark.parametrize("name", MODELS)
def test_figures_say_that_they_equal_pytorch(tab, name):
    ready(tab, name)
    model = f"live.load_model(live.models.{name})"
    assert tab.evaluate(f"() => live.difference({model}, live.models.{name}.check)") < 1e-4
    said = tab.locator(".live-check").inner_text()
    parameters = sum(parameter.numel() for parameter in MODELS[name]().parameters())
    assert f"{parameters:,} parameters" in said and re.search(r"\d · 10⁻[⁴⁵⁶⁷⁸]", said)


# The toy -------------------------------------------------------------------------------------------


def digits_of(tab: Page) -> torch.Tensor:
    return torch.tensor([[int(digit) for digit in tab.locator(".live-digits").input_value()]])


def answer_of(tab: Page) -> list[int]:
    texts = tab.locator(".live-tokens > span").all_inner_texts()
    return [10 if text == "X" else int(text) for text in texts]


@reads_pages
def test_toy_answers_as_one_types(toy):
    field = toy.locator(".live-digits")
    for wrong, words in (("", "1 and 10 digits"), ("12345678901", "not 11"), ("12a4", "not “a”")):
        field.fill(wrong)
        check_refused(toy, field, words)
        assert toy.locator(".live-tokens > span, .live-toy svg > *").count() == 0
    field.fill("")
    field.press_sequentially("0159035258")
    assert answer_of(toy) == [8, 5, 2, 10, 3, 10, 9, 5, 1, 0]  # by hand: the second 0 and the second 5
    assert "10 of 10 right" in toy.locator(".live-verdict").inner_text()
    field.press("Home")
    field.press_sequentially("77")  # the field is full, so each digit replaces the next
    assert field.input_value() == "7759035258"
    toy.get_by_text("Shuffle").click()
    assert field.input_value() != "7759035258"
    assert answer_of(toy) == greedy_search(load_toy_model(), digits_of(toy), 10)[0].tolist()


@reads_pages
def test_toy_shows_the_weights_of_every_head_by_keyboard(toy):
    model, digits, slider = load_toy_model(), digits_of(toy), toy.locator(".live-slider input")
    outputs = greedy_search(model, digits, 10)
    with torch.no_grad():
        maps = model.attention_maps(digits, torch.cat([torch.tensor([[11]]), outputs[:, :-1]], dim=1))
    for kind in ("encoder", "decoder", "cross"):
        toy.locator(f"input[value={kind}]").press("Space")
        for layer, head in ((0, 2), (1, 7)):
            toy.get_by_label(f"layer {layer + 1}, head {head + 1}", exact=True).press("Space")
            slider.press("Home")
            for row in range(2):
                weights = getattr(maps, kind)[layer, 0, head, row]
                said = toy.locator(".live-toy .live-said").inner_text()
                share = float(re.search(r"gives ([\d.]+)% of its weight", said)[1]) / 100
                assert abs(share - weights.max().item()) < 0.006
                assert f", token {weights.argmax().item() + 1}." in said
                assert f"head {layer + 1}.{head + 1} of the {kind}" in said.lower()
                assert toy.locator(".live-drawing").get_attribute("aria-label") == said
                slider.press("ArrowRight")


@reads_pages
def test_toy_without_positions_or_scale_answers_as_pytorch_does(toy):
    take_apart(toy)
    toy.locator(".live-digits").fill("7717027383")
    digits, lost, sharp = digits_of(toy), load_toy_model(), load_toy_model()
    lost.positions.table.zero_()
    for name, parameter in sharp.named_parameters():
        if ".w_q." in name:
            parameter.data *= 4.0  # √d_k: as if the scores were not divided by it
    names = {10: "X", 11: "start", 12: "end", 13: "pad"}
    for label, model in (("the positions", lost), ("the scale", sharp)):
        toy.get_by_label(label).check()
        tokens = greedy_search(model, digits, 10)[0].tolist()
        texts = toy.locator(".live-tokens > span").all_inner_texts()
        assert texts == [names.get(token, str(token)) for token in tokens if token != 13], label
        toy.get_by_label(label).uncheck()


# Attention in the plane ----------------------------------------------------------------------------


@reads_pages
@pytest.mark.parametrize("width", [1280, 390])
def test_attention_in_the_plane_is_the_package_s(tab, width):
    ready(tab, "attention")
    show(tab, width, "light")
    check_plane(tab)
    first = said(tab)
    for label in ("q, first number", "v₂, second number"):
        field = tab.get_by_label(label)
        before = field.input_value()
        for wrong in ("-99", "", "3.01"):
            field.fill(wrong)
            check_refused(tab, field, f"{label}: a number from −3 to 3.")
            assert said(tab) == "" and tab.locator(".live-plane .live-output").count() == 0
            assert tab.locator(".live-attention .live-bar").all_inner_texts() == ["–"] * 3
        field.fill(before)
        assert said(tab) == first
    before = tab.get_by_label("q, second number").input_value()
    tab.get_by_label("q, second number").press("ArrowUp")
    assert float(tab.get_by_label("q, second number").input_value()) == pytest.approx(float(before) + 0.1)
    tab.get_by_label("divide by").uncheck()
    check_plane(tab, scale=2**0.5)
    tab.get_by_label("divide by").check()
    tab.get_by_label("k₁, first number").fill("7")  # whoever drags the point mends the field
    for name in ("k₁", "v₃"):
        drag(tab, name, -2, -1)
        tab.mouse.move(2, 2)  # what is let go stays
        fields = [tab.get_by_label(f"{name}, {which} number") for which in ("first", "second")]
        assert [float(field.input_value()) for field in fields] == pytest.approx([-2, -1], abs=0.11)
        assert fields[0].get_attribute("aria-invalid") == "false"
        check_plane(tab)


def drag(tab: Page, name: str, x: float, y: float) -> None:
    """Take the point of that name to a place of its plane."""
    point = tab.locator(".live-handle", has_text=name)
    point.scroll_into_view_if_needed()
    box = point.locator("xpath=ancestor::*[name()='svg']").bounding_box()
    start = point.locator("text").bounding_box()
    reach = point.locator(".live-reach").bounding_box()
    assert min(reach["width"], reach["height"]) >= 24
    tab.mouse.move(start["x"] + start["width"] / 2, start["y"] + start["height"] / 2)
    tab.mouse.down()
    unit = box["width"] / 6.6
    tab.mouse.move(box["x"] + (3.3 + x) * unit, box["y"] + (3.3 - y) * unit)
    tab.mouse.up()


def check_plane(tab: Page, scale: float = 1.0) -> None:
    """What is written and drawn is the package's output for what the fields hold."""

    def numbers(label: str) -> list[float]:
        fields = tab.locator(".live-attention").get_by_label(label)  # as drawings have
        return [float(field.input_value()) for field in fields.all()]

    q, k, v = (
        torch.tensor([numbers(f"{name}, ") for name in names])
        for names in (["q"], ["k₁", "k₂", "k₃"], ["v₁", "v₂", "v₃"])
    )
    context, weights = scaled_dot_product_attention(q * scale, k, v)
    shown = [float(number) for number in re.findall(r"([\d.]+) ·", said(tab))]
    assert shown == pytest.approx(weights[0].tolist(), abs=6e-4)
    written = [float(number) for number in NUMBER.findall(said(tab).split(" = ")[1])]
    assert written == pytest.approx(context[0].tolist(), abs=6e-3)
    dot = tab.locator("circle.live-output")
    drawn = [float(dot.get_attribute("cx")), -float(dot.get_attribute("cy"))]
    assert drawn == pytest.approx(context[0].tolist(), abs=1e-4)


# Beam search ---------------------------------------------------------------------------------------

SENTENCES = (
    "as escritoras convidam a rita .",
    "este médico come pouco .",
    "esta amiga não lia o livro .",
    "vê-os .",
)


@lru_cache
def rounded_translator() -> Translator:
    """The translator with the weights that the page has, in float16."""
    translator = Translator.load("phrases")
    translator.model.half().float()
    return translator


def name_of(token: int) -> str:
    """A token as figures show it."""
    piece = rounded_translator().vocabulary.pieces[token]
    return {"<s>": "start", "</s>": "end"}.get(piece, f"-{piece}".replace("-▁", ""))


def best_of(sentence: str, beam_size: int, alpha: float) -> list[tuple[str, float]]:
    translator = rounded_translator()
    src = [*translator.vocabulary.encode(sentence), 3]
    tokens, scores = beam_search(translator.model, torch.tensor([src]), beam_size, alpha, 2 * len(src) + 10)
    return [
        (translator.vocabulary.decode(row), score)
        for row, score in zip(tokens[0].tolist(), scores[0].tolist(), strict=True)
    ]


def ranking_of(tab: Page) -> list[tuple[str, float]]:
    rows = [row.locator("td").all_inner_texts() for row in tab.locator(".live-ranking tbody tr").all()]
    return [(text.strip(), float(score.replace("−", "-"))) for text, _, _, score in rows]


@reads_pages
def test_beam_in_the_page_ranks_as_the_package_does(tab):
    ready(tab, "beam")
    nodes, whole = tab.locator(".live-node:not(.live-later)"), tab.locator(".live-node").count()
    tab.get_by_role("button", name="First step").press("Enter")
    assert nodes.count() == 1 + 6 and said(tab).startswith("Step 1 of")
    assert ranking_of(tab) == [] and tab.get_by_role("button", name="Back").is_disabled()
    tab.get_by_role("button", name="Forward").press("Enter")
    assert nodes.count() == 1 + 12
    tab.get_by_role("button", name="Last step").click()
    assert nodes.count() == whole and tab.get_by_role("button", name="Forward").is_disabled()
    for sentence, beam_size, tenths in (
        (SENTENCES[0], 3, 6),
        (SENTENCES[0], 5, 0),
        (SENTENCES[1], 2, 20),
        ("", 1, 6),
    ):
        tab.get_by_label("Portuguese").fill(sentence)
        slide(tab, "Beam size K", beam_size - 1)
        slide(tab, "Length penalty α", tenths)
        check_ranking(tab, best_of(sentence, beam_size, tenths / 10))


@reads_pages
@torch.no_grad()
def test_the_decoder_says_what_the_package_s_would_say(tab):
    """Also where the reader has said something else before."""
    ready(tab, "shift")
    candidates, translator = tab.locator(".live-shifted .live-candidate"), rounded_translator()
    model, vocabulary = translator.model, translator.vocabulary
    src = torch.tensor([[*vocabulary.encode("a menina gosta do gato preto ."), model.config.eos_id]])
    next_of = lambda ids: model(src, torch.tensor([[model.config.bos_id, *ids]]))[0, -1].softmax(-1)
    tab.get_by_role("button", name="Start over").click()
    tokens: list[int] = []
    for choice in (0, 1, 0, 3):
        found = next_of(tokens).topk(4)
        shown = [float(text.split()[-1].strip("%")) for text in candidates.all_inner_texts()]
        assert shown == pytest.approx((100 * found.values).tolist(), abs=0.06)
        candidates.nth(choice).press("Enter")
        tokens.append(int(found.indices[choice]))
    tab.get_by_role("button", name="To the end").click()
    while tokens[-1] != model.config.eos_id:
        tokens.append(int(next_of(tokens).argmax()))
    assert said(tab, "shift") == f"All of it: “start {' '.join(map(name_of, tokens))}”."
    assert candidates.count() == 0


def check_ranking(tab: Page, wanted: list[tuple[str, float]]) -> None:
    found = ranking_of(tab)
    assert [text for text, _ in found] == [text for text, _ in wanted]
    assert [score for _, score in found] == pytest.approx([score for _, score in wanted], abs=0.006)
    assert f"“{wanted[0][0]}”" in said(tab)


# Positions -----------------------------------------------------------------------------------------


@reads_pages
def test_clocks_show_the_package_s_positions(tab):
    ready(tab, "positions")
    for place, (d_model, position, offset) in enumerate(
        [(16, 5, 3), (8, 0, 0), (64, 100, 37), (32, 12, 100)]
    ):
        if place:
            slide(tab, "d_model", [8, 16, 32, 64].index(d_model))
            slide(tab, "Position p", position)
            slide(tab, "Offset k", offset)
        table = sinusoidal_encoding(201, d_model, torch.float64)
        for hand, at in (("here", position), ("there", position + offset)):
            ends = tab.locator(f".live-clocks .live-{hand}").evaluate_all(
                "all => all.map(line => [line.getAttribute('x2') / 24, line.getAttribute('y2') / -24])"
            )
            assert (torch.tensor(ends).flatten() - table[at]).abs().max() < 0.003
        product = float(re.search(r"= (-?[\d.]+), of", said(tab, "positions"))[1])
        assert product == pytest.approx((table[position] @ table[position + offset]).item(), abs=6e-4)
    before = said(tab, "positions").split(" = ")[1]
    slider(tab, "Position p").press("Home")
    slider(tab, "Position p").press("ArrowRight")
    assert (
        said(tab, "positions").startswith("PE(1)") and said(tab, "positions").split(" = ")[1] == before
    )  # by the offset alone
    assert slider(tab, "Position p").get_attribute("aria-valuetext") == "1"


# Rotary positions and shared heads --------------------------------------------------------------------


def in_figure(program: str, figure: str, **values: Any) -> Any:
    """The value of `program` after the script of a figure, which finds no page to stand in."""
    script = f"live.mount = () => {{}};\n{(SCRIPTS / f'{figure}.js').read_text(encoding='utf8')}"
    return in_node(program, script=script, **values)


def score_at(t: int, s: int) -> float:
    q, k = in_figure("[live.rotary.QUERY, live.rotary.KEY]", "rotary")
    at = lambda x, place: rotate(torch.tensor(x, dtype=torch.float64).expand(101, 8), rotary_table(101, 8))[
        place
    ]
    return (at(q, t) @ at(k, s)).item()


@reads_pages
@needs_node
def test_a_score_depends_on_the_distance_alone(tab):
    ready(tab, "rotary")
    words = tab.locator("figure.live .live-said").first

    def check(t, s):
        assert [int(slider(tab, name).input_value()) for name in ("Query at t", "Key at s")] == [t, s]
        shown = words.inner_text().replace("−", "-")
        distance, score = re.search(r"t - s = (-?\d+): .*, (-?[\d.]+)\.$", shown).groups()
        assert int(distance) == t - s and float(score) == pytest.approx(score_at(t, s), abs=0.006)
        return shown

    first = check(7, 4)
    slide(tab, "Move both", 60)
    assert check(63, 60) == first  # nothing has changed
    slide(tab, "Query at t", 0)
    slide(tab, "Key at s", 90)
    assert check(0, 90) != first
    slider(tab, "Move both").press("End")
    check(10, 100)
    check_shared_heads(tab)


def check_shared_heads(tab: Page) -> None:
    """They take the bytes that the chapter prints."""
    printed = "".join(cell_of("15-since-2017", "cache-example")["outputs"][0]["text"])
    words = tab.locator("figure.live .live-said").nth(1)
    found = re.findall(r"(\d+) heads: (\d+ KiB) a token, (\d+ GiB) for 131,072 tokens", printed)
    assert [heads for heads, *_ in found] == ["8", "32"]
    slider(tab, "Tokens").press("End")
    for heads, token, text in found:
        slide(tab, "Shared heads", int(heads).bit_length() - 1)
        assert words.inner_text().startswith(f"{heads} heads: {token} a token, {text} for 131,072 tokens")
        assert tab.locator(".live-shared").count() == int(heads)
    slider(tab, "Shared heads").press("Home")
    slider(tab, "Tokens").press("Home")
    assert words.inner_text() == "1 head: 16 KiB a token, 16 KiB for 1 token instead of 512 KiB."


# The examination -------------------------------------------------------------------------------------


def data_of(name: str) -> dict[str, Any]:
    """What a figure shows of the records."""
    return json.loads(live.script_of_data(name).partition(" = ")[2].rstrip(";\n"))


def lamps(tab: Page) -> dict[str, str]:
    shown = tab.locator(".live-lamp").evaluate_all(
        "all => all.map(lamp => [lamp.textContent, lamp.getAttribute('class').split('-').at(-1)])"
    )
    return dict(shown)


@reads_pages
def test_a_fault_lights_up_the_checks_that_notice_it(tab):
    ready(tab, "examination")
    kind, fault = (tab.get_by_role("combobox", name=name) for name in ("Model", "Fault"))
    for row in load_record("clinic")["faults"][::20]:
        kind.select_option(label=row["model"])
        fault.select_option(row["fault"])
        assert [name for name, state in lamps(tab).items() if state == "fail"] == row["failures"]
        assert all(f"{name}. " in tab.locator(".live-found").inner_text() for name in row["failures"])
    kind.select_option(label="Llama")
    fault.select_option("two results")
    assert set(lamps(tab).values()) == {"fail", "skipped"}
    kind.select_option(label="Transformer, pre-norm")
    assert fault.input_value() == "two results"  # the fault stays where the other model has it
    fault.select_option(label="none")
    assert set(lamps(tab).values()) == {"pass"} and said(tab).startswith("Nothing is wrong")


# Faults with their switches --------------------------------------------------------------------------


def cell_of(chapter: str, name: str) -> dict[str, Any]:
    cells = json.loads((ROOT / "book" / f"{chapter}.ipynb").read_text(encoding="utf8"))["cells"]
    return next(cell for cell in cells if cell["id"] == name)


@reads_pages
def test_a_switch_puts_one_fault_into_the_model(tab):
    ready(tab, "switch")
    data = data_of("switch")
    share = lambda x: f"{100 * x:.1f}%".replace("100.0%", "100%")
    words = lambda trial: f"loss {trial[0][-1]:.2f}, tokens {share(trial[1])}, sentences {share(trial[2])}."
    toggle = lambda name: tab.get_by_role("switch", name=name, exact=True)
    for place, (name, section, line, _, trials) in enumerate(data["faults"]):
        slide(tab, "Seed", place)
        if toggle(name).get_attribute("aria-checked") == "false":
            toggle(name).press("Enter")
        assert tab.locator("[role=switch][aria-checked=true]").all_inner_texts() == [name]
        right = data["right"][place]
        assert said(tab, "switch") == f"Right model: {words(right)} With “{name}”: {words(trials[place])}"
        assert tab.locator(".live-line code").inner_text() == line
        assert (
            tab.locator(f".live-line a[href='#{section}']").count() == tab.locator(f"#{section}").count() == 1
        )
    toggle(name).click()
    assert said(tab, "switch").endswith("Switch on a fault.")
    assert tab.locator(".live-plot path.live-main").count() == 0


# A run to be killed ----------------------------------------------------------------------------------

UNHARMED = """(() => {
    const { begin, batch, update, rate } = live.kills;
    const run = begin(), made = { pairs: [], losses: [], rates: [] };
    while (run.step < 40) {
        const pairs = batch(run);
        made.pairs.push(pairs);
        made.losses.push(update(run, pairs));
        made.rates.push(rate(run.step));
    }
    return { ...made, weights: [...run.weights] };
})()"""


@needs_node
def test_the_run_to_be_killed_trains_as_pytorch_does():
    found = in_figure(UNHARMED, "kills")
    weights = torch.zeros(12, 12, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([weights], betas=(0.9, 0.98), eps=1e-9)
    for pairs, loss, rate in zip(*(torch.tensor(found[name]) for name in ("pairs", "losses", "rates"))):
        adam.param_groups[0]["lr"] = rate.item()
        adam.zero_grad()
        mean = torch.nn.functional.cross_entropy(weights[pairs[:, 0]], pairs[:, 1])
        mean.backward()
        adam.step()
        assert mean.item() == pytest.approx(loss.item(), abs=1e-6)
    wanted = torch.tensor(found["weights"], dtype=torch.float64).view(12, 12)
    assert (weights - wanted).abs().max() < 1e-9


KILLED = """forgets.map(forget => {
    const { begin, update, resume, difference } = live.kills, whole = begin();
    let saved = null;
    while (whole.step < 80) {
        if (whole.step === at) saved = structuredClone(whole);
        update(whole);
    }
    const run = resume(at ? saved : null, forget);
    const first = run.step;
    while (run.step < 80) update(run);
    return [first, difference(run, whole)];
})"""


@pytest.mark.slow
@needs_node
@pytest.mark.parametrize("at", [0, 27, 79])
def test_only_a_full_checkpoint_brings_back_every_bit(at):
    forgets = ["", "Adam's averages", "the position in the data"]
    found = in_figure(KILLED, "kills", at=at, forgets=forgets)
    assert [first for first, _ in found] == [at] * 3
    assert found[0][1] == 0
    assert all(off > 0.01 for _, off in found[1:]) if at else found[1:] == found[:1] * 2


@reads_pages
def test_a_run_is_killed_and_resumed_in_the_page(tab):
    tab.emulate_media(reduced_motion="reduce")
    ready(tab, "kills")
    equal = "✓ Equal to the run without a kill, bit for bit."
    killed = "Killed once: 7 updates lost, 7 made again. "
    assert said(tab) == f"Update 45 of 80 after 52 updates of work. {killed}{equal}"
    press = lambda name: tab.get_by_role("button", name=name, exact=True).press("Enter")
    press("Kill")
    assert said(tab).startswith("Update 40 of 80 after 52")
    slider(tab, "Checkpoint").press("Home")
    assert slider(tab, "Checkpoint").get_attribute("aria-valuetext") == "never"
    tab.get_by_label("Forget", exact=True).select_option("Adam's averages")
    press("Kill")
    press("Run")
    tab.wait_for_function("() => document.querySelector('.live-said').innerText.startsWith('Update 80')")
    off, lower = re.search(r"average is ([\d.]+)\. The last 10 losses are ([\d.]+) lower", said(tab)).groups()
    assert float(off) > 0.01 and float(lower) > 0.01  # it looks better, and is another run
    press("Start over")  # and no checkpoint
    assert said(tab) == "Run it, and kill it whenever you like."


# The schedule --------------------------------------------------------------------------------------

SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")


@reads_pages
def test_schedule_in_the_page_is_the_package_s(tab):
    ready(tab, "schedule")
    check_rate(tab, Schedule(4000, 0.2), 512)
    slide(tab, "Warm-up", 3)
    slide(tab, "d_model", 1)
    check_rate(tab, Schedule(400, 0.2), 128)
    slide(tab, "Peak", 20)
    check_rate(tab, Schedule(400, 0.2, peak_rate=0.002), 128)
    slide(tab, "Cool-down", 12)
    slide(tab, "Look at", 77)
    check_rate(tab, Schedule(400, 0.6, peak_rate=0.002), 128)
    slide(tab, "Cool-down", 0)
    slider(tab, "Look at").press("End")
    check_rate(tab, Schedule(400, peak_rate=0.002), 128)


def check_rate(tab: Page, schedule: Schedule, d_model: int) -> None:
    words = re.search(r"Update ([\d,]+) of ([\d,]+) has the rate ([\d.]+) · 10(\S+)\.", said(tab))
    step, steps = (int(number.replace(",", "")) for number in words.groups()[:2])
    shown = float(f"{words[3]}e{words[4].translate(SUPERSCRIPTS)}")
    assert shown == pytest.approx(schedule.rate(step, steps, d_model), rel=6e-3)


# Label smoothing -----------------------------------------------------------------------------------


@reads_pages
def test_smoothed_loss_in_the_page_is_the_package_s(tab):
    ready(tab, "smoothing")
    sizes = [2, 4, 10, 14, 50, 100, 1000, 1200, 8000, 37000]
    for place, (smoothing, V, z) in enumerate(
        [(0.1, 1000, 5.0), (0.5, 2, 0.0), (0.1, 37000, 12.7), (0.02, 14, 20.0)]
    ):
        if place:
            slide(tab, "ε", round(100 * smoothing))
            slide(tab, "Vocabulary V", sizes.index(V))
            slide(tab, "Logit z", round(10 * z))
        words = re.search(
            r"loss is (.+)\. It is least at z = (.+), where (.+) is left", said(tab, "smoothing")
        )
        shown, least_at, least = map(float, words.groups())
        assert shown == pytest.approx(smoothed_loss(z, V, smoothing), abs=6e-4)
        assert least == pytest.approx(smoothed_loss(least_at, V, smoothing), abs=1e-3)
        for other in (least_at - 0.1, least_at + 0.1):
            assert smoothed_loss(other, V, smoothing) > smoothed_loss(least_at, V, smoothing)
    tab.get_by_text("Go to the minimum").click()
    assert int(slider(tab, "Logit z").input_value()) == pytest.approx(10 * least_at, abs=0.51)
    slider(tab, "ε").press("Home")
    assert "falls for ever" in said(tab, "smoothing") and tab.get_by_text("Go to the minimum").is_disabled()


def smoothed_loss(z: float, V: int, smoothing: float) -> float:
    logits = torch.zeros(1, V, dtype=torch.float64)
    logits[0, 1] = z
    return label_smoothed_cross_entropy(logits, torch.tensor([1]), smoothing).item()


# The whole model -----------------------------------------------------------------------------------


@torch.no_grad()
def tensors_of(model: Transformer, src: torch.Tensor, tgt: torch.Tensor) -> list[torch.Tensor]:
    """What the boxes of the drawing hold, in their order."""
    found: list[torch.Tensor] = []
    for name, module in model.named_modules():
        if name.endswith(("_residual", "coder.norm", "positions")):
            module.register_forward_hook(lambda module, given, result: found.append(result[0]))
    ids = iter((src.T, tgt.T))
    model.positions.register_forward_pre_hook(
        lambda module, given: found.extend((next(ids), given[0][0]))  # of the encoder, then of the decoder
    )
    logits = model(src, tgt)
    return [*found, logits[0]]


@reads_pages
def test_boxes_of_the_model_hold_the_package_s_numbers(tab):
    ready(tab, "anatomy")
    found, model = live.live_model("phrases"), rounded_translator().model
    wanted = tensors_of(copy.deepcopy(model), torch.tensor([found.src]), torch.tensor([found.tgt]))
    boxes = tab.locator(".live-part")
    assert boxes.count() == len(wanted)
    for place, tensor in enumerate(wanted):
        slide(tab, "Box", place) if place % 2 else boxes.nth(place).click()
        texts = tab.locator(".live-numbers text").all_text_contents()
        columns = min(8, tensor.size(1))
        shown = [
            float(text.replace("−", "-")) for i, text in enumerate(texts) if i % (columns + 1)
        ]  # the first of a row is its token
        assert shown == pytest.approx(tensor[:, :columns].flatten().tolist(), abs=0.0052)
        assert f"[{', '.join(map(str, tensor.squeeze(1).shape))}]" in said(tab, "anatomy")
    names = map(name_of, wanted[-1].argmax(-1).tolist())
    assert said(tab, "anatomy").endswith(f"stands for: {' '.join(names)}.")


# The residual stream -------------------------------------------------------------------------------


@reads_pages
def test_ladder_says_what_the_package_s_stream_says(tab):
    ready(tab, "stream")
    found, model = live.live_model("phrases"), rounded_translator().model
    taken: set[int] = set()
    tab.locator(".live-sublayer").first.scroll_into_view_if_needed()
    for sublayer, position in ((None, 4), (2, 4), (6, 1), (2, 0)):  # the last one puts it back
        if sublayer:
            taken ^= {sublayer}
            if sublayer == 6:
                tab.locator(".live-sublayer").nth(5).click(position={"x": 20, "y": 20})
            else:
                tab.get_by_role("button", name="cross-attention 1").press("Enter")
        slide(tab, "Position", position)
        wanted = lens_without(model, found.src, found.tgt, taken)[:, position]
        boxes = tab.locator(".live-word-box ~ .live-share").all_text_contents()
        shown = torch.tensor([float(text.replace("%", "")) / 100 for text in boxes]).view(-1, 3)
        assert (shown - wanted.topk(3).values).abs().max() < 0.0052
        words = tab.locator(".live-word-box + text").all_text_contents()
        assert words[::3] == [name_of(token) for token in wanted.argmax(-1).tolist()]
        assert tab.locator(".live-silent").count() == len(taken)
        assert ("Without" in said(tab)) == bool(taken)
    tab.get_by_role("button", name="Put everything back").click()
    assert tab.locator(".live-silent").count() == 0 and "With all sublayers" in said(tab)


# The roofline --------------------------------------------------------------------------------------


@reads_pages
def test_roofline_counts_what_the_record_counts(tab):
    ready(tab, "roofline")
    roofline = load_record("speed")["roofline"]
    peak, bandwidth = roofline["peak"]["flops"], roofline["bandwidth"]["memory"]
    fields = [tab.get_by_role("spinbutton", name=unit) for unit in ("GFLOP/s", "GB/s")]
    shown = [float(field.input_value()) for field in fields]
    assert shown == pytest.approx([peak / 1e9, bandwidth / 1e9], rel=0.01)  # the record's, rounded
    menu = tab.get_by_role("combobox", name="Part")
    options = {"logits": "logits", "attention": "attention", "dense layer, one row": "first layer"}
    for name, option in options.items():
        part = roofline["parts"][name]
        menu.select_option(next(text for text in menu.locator("option").all_inner_texts() if option in text))
        slide(tab, "Rows n", 0 if "one row" in name else 11)
        found = re.findall(r"([\d,.]+) (?:operations on|bytes)", said(tab))
        work, traffic = (float(number.replace(",", "")) for number in found)
        assert [work, traffic] == pytest.approx([part["flops"], part["bytes"]], rel=6e-3)
        bound = "arithmetic" if work / traffic > shown[0] / shown[1] else "memory"
        assert f"Bound by {bound}" in said(tab)
    for wrong in ("", "99999999999", "0"):
        fields[1].fill(wrong)
        check_refused(tab, fields[1], "GB/s from memory: a number from 0.1 to 100,000.")
        assert said(tab) == "" and tab.locator(".live-roofline .live-plot > *").count() == 0


# Masks and the bootstrap ----------------------------------------------------------------------------


@reads_pages
def test_the_gradient_is_that_of_cross_entropy_and_a_step_subtracts_it(tab):
    ready(tab, "gradient")
    figure = tab.locator("figure[data-live=gradient]")
    words, logits, places = "this is a problem".split(), [1.0, -2.0, 0.5, -1.0], [900, 600, 850, 700]
    for word, place in zip(words, places):
        slide(tab, word, place)
    for right in (3, 1):
        figure.get_by_role("combobox").select_option(words[right])
        z = torch.tensor(logits, requires_grad=True)
        loss = F.cross_entropy(z, torch.tensor(right))
        loss.backward()
        told = figure.locator("svg").get_attribute("aria-label").replace("−", "-")
        numbers = torch.tensor([float(number) for number in NUMBER.findall(told)]).view(4, 2)
        assert numbers[:, 0].tolist() == pytest.approx((100 * z.softmax(-1)).tolist(), abs=0.051)
        assert numbers[:, 1].tolist() == pytest.approx(z.grad.tolist(), abs=0.0051)
        assert f"the loss is {loss:.2f} nats" in said(tab, "gradient")
    figure.get_by_role("button", name="One step").click()
    shown = [slider(tab, word).get_attribute("aria-valuetext").replace("−", "-") for word in words]
    assert [float(text) for text in shown] == pytest.approx((z - z.grad).tolist(), abs=0.0051)


@reads_pages
def test_without_positions_attention_loses_the_order_of_words(tab):
    """The numbers are those of the chapter's attention, on the figure's own vectors."""
    ready(tab, "order")
    figure = tab.locator("figure[data-live=order]")
    first, second = "the dog bites the man".split(), "the man bites the dog".split()

    def attended(words, positions):
        numbers = [sum(ord(letter) * (i + 1) for i, letter in enumerate(word)) for word in words]
        x = torch.tensor([[math.sin(number * (j + 1)) for j in range(8)] for number in numbers]).double()
        x = x + positions * sinusoidal_encoding(len(words), 8, torch.float64)
        return scaled_dot_product_attention(x, x, x)[0]

    assert "the order is lost" in said(tab, "order")
    assert torch.allclose(attended(first, 0), attended(second, 0)[[0, 4, 2, 3, 1]])
    figure.get_by_label("add positions").check()
    apart = (attended(first, 1) - attended(second, 1)[[0, 4, 2, 3, 1]]).abs().max()
    assert f"differ by up to {apart:.2f}" in said(tab, "order")
    figure.get_by_label("The same words in another order").fill("the man bites a dog")
    assert "aren't the same words" in said(tab, "order")


@reads_pages
def test_shards_are_what_the_stages_of_zero_leave_and_send(tab):
    """Two bytes of a weight and of its gradient, twelve of Adam's; by ring two or three times the weights."""
    ready(tab, "shards")
    for stage, left, times in [
        ("data parallelism", 16, 2),
        ("ZeRO 1", 4 + 12 / 64, 2),
        ("ZeRO 2", 2 + 14 / 64, 2),
        ("ZeRO 3 (FSDP)", 16 / 64, 3),
    ]:
        tab.locator(".live-shards select").select_option(stage)
        slide(tab, "Parameters", 5)
        slide(tab, "Devices", 6)
        told = said(tab, "shards")
        words = re.search(r"on 64, each device keeps (.+) GB, which (.+), and sends (.+) GB", told)
        assert float(words[1]) == pytest.approx(13 * left, rel=0.005)
        assert (words[2] == "fits") == (13 * left <= 80)
        assert float(words[3]) == pytest.approx(times * 2 * 13 * 63 / 64, rel=0.005)


@reads_pages
def test_masks_make_the_weights_of_the_chapter(tab):
    script = (SCRIPTS / "masks.js").read_text(encoding="utf8")
    scores = torch.tensor(json.loads(re.search(r"SCORES = (.+);", script)[1])).double()
    lows = {"−∞": -math.inf, "−10⁹": -1e9, "this book's": -1e300}
    ready(tab, "masks")
    figure = tab.locator("figure[data-live=masks]")
    real, causal = torch.tensor([[1, 1, 1, 1, 0]]).bool(), torch.ones(5, 5).bool().tril()
    for name, mask in {
        "everything": real | ~real,
        "padding": real,
        "causal": causal,
        "both": real & causal,
    }.items():
        figure.get_by_role("button", name=name).click()
        wanted = scores.masked_fill(~mask, -math.inf).softmax(-1).flatten()
        for way in lows:
            figure.locator("select").select_option(way)
            shown = [float(text.strip("%")) for text in figure.locator(".live-box text").all_text_contents()]
            assert shown == pytest.approx((100 * wanted).tolist(), abs=0.06)
        words = {"causal": "the padding gets weight", "both": "nobody sees the padding"}
        assert words.get(name, "start sees what it is to predict") in said(tab, "masks")
    for word in ("start", "this"):
        figure.get_by_role("checkbox", name=f"this may attend to {word}", exact=True).uncheck()
    for way, text, words in zip(lows, ("NaN", "20.0%", "0"), ("not a number", "everything alike", "all 0")):
        figure.locator("select").select_option(way)
        assert figure.locator(".live-box text").all_text_contents()[5:10] == [text] * 5
        assert said(tab, "masks").startswith("this may attend to nothing") and words in said(tab, "masks")


@reads_pages
def test_the_bootstrap_finds_the_chapter_s_interval(tab):
    ready(tab, "bootstrap")
    printed = "".join(cell_of("13-translation", "bootstrap-by-hand")["outputs"][0]["text"])
    wanted = [float(number) for number in re.search(r"interval ([\d.]+) to ([\d.]+)", printed).groups()]
    found = {}
    for place in (3, 6):
        slide(tab, "Sentences", place)
        found[place] = [
            float(x) for x in re.search(r"between ([\d.]+) and ([\d.]+)", said(tab, "bootstrap")).groups()
        ]
    assert found[3] == pytest.approx(wanted, abs=1.2)
    wide, narrow = (high - low for low, high in found.values())
    assert wide / narrow == pytest.approx(math.sqrt(10), rel=0.2)  # a hundred sentences, and a thousand
    before = said(tab, "bootstrap")
    tab.get_by_text("Draw again").click()
    assert said(tab, "bootstrap") != before


@reads_pages
def test_a_sentence_of_the_hundred_is_shown_with_its_score(tab):
    tab.emulate_media(reduced_motion="reduce")
    ready(tab, "hundred")
    entries = load_record("ted-best")["sentences"]
    for place in (0, 50, 99):
        slide(tab, "Sentence", place)
        source, *answers = tab.locator(".live-heard p").all_inner_texts()
        entry = next(entry for entry in entries if entry["source"] == source)
        assert answers == [entry["translation"], entry["target"]]
        assert f"chrF2 {entry['chrF2']:.0f}, where" in said(tab, "hundred")
    tab.locator(".live-hundred circle").nth(7).click()
    assert slider(tab, "Sentence").input_value() == "7"


# Byte pairs ----------------------------------------------------------------------------------------


@reads_pages
def test_merges_in_the_page_are_the_chapter_s(tab):
    ready(tab, "merges")
    printed = "".join(cell_of("12-text", "bpe-toy")["outputs"][0]["text"])
    wanted = re.findall(r"(\S+) \+ (\S+) +-> \S+ +(\d+) times", printed)
    assert len(wanted) == 10
    for number, (left, right, count) in enumerate(wanted, start=1):
        slide(tab, "Merges", number)
        assert said(tab).startswith(f"Merge {number}: {left} + {right} → {left}{right}, {count} times.")
    slide(tab, "Merges", 0)
    assert said(tab) == "Letters only. The text is 95 pieces long."

    field = tab.get_by_label("Text to learn from")
    field.fill("aaa aaa")
    assert said(tab) == "Merge 3: ▁aa + a → ▁aaa, 2 times. The text is 2 pieces long."
    field.fill("  ")
    assert said(tab) == "Letters only. The text is 0 pieces long." and slider(tab, "Merges").is_disabled()


# Small Portuguese ----------------------------------------------------------------------------------


def english_of(tab: Page) -> str:
    return " ".join(tab.locator(".live-made button").all_inner_texts())


@reads_pages
def test_typed_sentences_are_translated_as_the_package_does(translator):
    package = Translator.load("phrases")
    for text in ("Ele come a sopa.", "não compraram a casa branca .", "Xyz!", "quem lê o livro?"):
        translator.locator(".live-text").fill(text)
        assert english_of(translator) == package.translate_tokenized([tokenize(text)], beam_size=1)[0]
    translator.locator(".live-text").fill("")
    assert english_of(translator) == ""


def bars_of(tab: Page) -> list[tuple[str, float]]:
    rows = [row.locator("span").all_inner_texts() for row in tab.locator(".live-candidate").all()]
    return [(text, float(share.replace("%", "")) / 100) for text, _, share in rows]


@reads_pages
def test_each_word_has_its_candidates_and_leads_to_its_chapters(translator):
    show(translator, 390, "dark")
    words = translator.locator(".live-made button")
    for place in range(3):
        words.nth(place).focus()
        (first, *_), shares = zip(*bars_of(translator))
        assert first == words.nth(place).inner_text()
        assert list(shares) == sorted(shares, reverse=True) and sum(shares) <= 1.001
    words.nth(5).click()
    translator.locator(".live-phrases .live-text").focus()  # what has been clicked stays
    assert said(translator).startswith("cat attended to")
    links = translator.locator(".live-phrases a").evaluate_all("all => all.map(link => link.href)")
    chapters = {ROOT / "book" / Path(link).name.replace(".html", ".ipynb") for link in links}
    assert len(chapters) >= 7 and all(chapter.exists() for chapter in chapters)


@reads_pages
def test_what_the_translator_cannot_know_is_marked(translator):
    show(translator, 390, "light")
    pale = translator.locator(".live-made .live-unsure")
    assert pale.count() == 0 and translator.locator(".live-given .live-unsure, .live-aside").count() == 0
    translator.locator(".live-text").fill("o computador explodiu ontem Ñandú")
    unread = translator.locator(".live-given .live-unsure").all_inner_texts()
    assert unread == ["computador", "explodiu", "ñandú"]
    assert translator.locator(".live-given mark").all_inner_texts() == ["ñ"]
    assert "lacks a letter of “ñandú”" in said(translator) and "not sure" in said(translator)
    words = translator.locator(".live-made button")
    shares = words.evaluate_all("all => all.map(word => parseFloat(word.ariaDescription))")
    states = words.evaluate_all("all => all.map(word => word.matches('.live-unsure'))")
    assert [share < 50 for share in shares] == states and sum(states) >= 3
    translator.get_by_label("subject").select_option("nós")
    assert translator.locator(".live-aside").count() == 0
    assert translator.locator(".live-text").input_value() == "nós gostamos do gato preto ."


# Gradient descent ----------------------------------------------------------------------------------


def check_descent(tab: Page, shift: float, start: list[float], rate: float, method: str) -> None:
    w, b, loss = map(float, re.search(r"w = (\S+), b = (\S+) the loss is ([\d.]+),", said(tab)).groups())
    assert [w, b] == pytest.approx(start)
    end = descended(shift, start, rate, method)[-1]
    x = torch.tensor(tab.evaluate("() => live.descent.X"), dtype=torch.float64) + shift
    wanted = F.binary_cross_entropy_with_logits(end[0] * x + end[1], (torch.arange(200) % 2).double())
    assert loss == pytest.approx(wanted.item(), abs=6e-5)


@needs_node
@reads_pages
def test_descent_in_the_page_goes_where_the_chapter_goes(tab):
    tab.emulate_media(reduced_motion="reduce")
    ready(tab, "descent")
    check_descent(tab, 1.5, [0, 0], 4.5, "plain")
    assert "With η above 5.2" in said(tab)
    slider(tab, "Rate η").press("End")
    check_descent(tab, 1.5, [0, 0], 32, "plain")
    tab.get_by_label("Method").select_option("momentum")
    plane = tab.locator(".live-contours")
    plane.press("ArrowUp")
    plane.press("ArrowLeft")
    check_descent(tab, 1.5, [-0.25, 0.25], 1, "momentum")
    tab.get_by_label("Method").select_option("adam")
    slide(tab, "Inputs moved by", 0)
    check_descent(tab, 0, [-0.25, 0.25], 0.32, "adam")
    assert tab.locator(".live-critical").is_hidden() and "cannot settle" not in said(tab)
    tab.get_by_role("button", name="Reset").click()
    tab.get_by_role("button", name="One update").click()
    assert said(tab).startswith("After 1 updates from w = 0, b = 0")
    tab.get_by_role("button", name="Run").click()  # at once, where motion is not wanted
    check_descent(tab, 1.5, [0, 0], 4.5, "plain")


# A plus sign ---------------------------------------------------------------------------------------


@reads_pages
def test_a_plus_sign_taken_away_costs_its_share_of_the_gradient(tab):
    """As the chapter predicts: a network leaves a 1/√18, with its sum √(19/18)."""
    ready(tab, "plus")
    for name, chains in {"Put all back": 0, "The sum around network 4": 1, "Take all away": 10}.items():
        tab.get_by_role("button", name=name, exact=True).press("Enter")
        digits, power = re.search(r"length ([\d.]+)(?: · 10(\S+))?\.$", said(tab, "plus")).groups()
        shown = float(f"{digits}e{(power or '').translate(SUPERSCRIPTS) or 0}")
        assert shown == pytest.approx((19 / 18) ** (5 - chains / 2) * 18 ** (-chains / 2), rel=0.6)


# The Transformer that learns -----------------------------------------------------------------------


WRAPPED = """() => [...document.querySelectorAll('.live-samples .live-tokens')].filter(row =>
    row.lastElementChild.offsetTop > row.firstElementChild.offsetTop + 8).length"""


@pytest.mark.slow
@needs_node
def test_what_the_playground_opens_with_is_its_own_first_run():
    """`python tests/book/test_live.py` records it anew."""
    recorded = (SCRIPTS / "recorded.js").read_text(encoding="utf8")
    recorded = json.loads(recorded.removeprefix("live.recorded = ").removesuffix(";\n"))
    fresh = reports(until=10)
    assert recorded["settings"] == fresh["settings"]
    for found, wanted in zip(recorded["messages"], fresh["messages"]):
        (found,), (wanted,) = found["reports"], wanted["reports"]
        assert found["unseen"] == wanted["unseen"] and found["step"] == wanted["step"]
        losses = [[loss for _, loss in report["losses"]] for report in (found, wanted)]
        assert losses[0] == pytest.approx(losses[1], abs=0.02)  # another processor may round otherwise
    assert len(json.dumps(recorded)) < 60_000


def test_the_playground_leads_to_chapters_that_exist():
    pages = re.findall(r'"(\d\d-[\w-]+)"', (SCRIPTS / "learner.js").read_text(encoding="utf8"))
    assert len(pages) >= 5
    assert all((ROOT / "book" / f"{page}.ipynb").exists() for page in pages)


def trained(tab: Page) -> str:
    """What is said when the run, which has begun, has ended by itself."""
    tab.get_by_role("button", name="Pause", exact=True).wait_for()
    tab.get_by_role("button", name="Train", exact=True).wait_for(timeout=240_000)
    return said(tab)


def answered(tab: Page) -> str:
    """The answer to the reader's digits, when all of it is written."""
    tab.locator(".live-asked .live-verdict:not(:empty)").wait_for()
    return "".join(tab.locator(".live-asked .live-token").all_inner_texts())


@reads_pages
def test_a_transformer_learns_in_the_page_and_answers_and_is_taken_apart(tab):
    ready(tab, "learner")
    figure = tab.locator("figure[data-live=learner]")
    figure.locator(".live-map").nth(5).wait_for()  # three attentions of two heads
    assert "A recording" in said(tab)
    widths = "all => all.map(cell => Math.round(10 * cell.getBoundingClientRect().width))"
    assert len(set(figure.locator(".live-samples .live-token").evaluate_all(widths))) == 1
    assert tab.evaluate(WRAPPED) == 0
    tab.get_by_role("button", name="Train", exact=True).click()
    words = trained(tab)
    assert "64 of 64 unseen sequences are right. It has learned the task" in words
    assert figure.locator(".live-unlike").count() == 0
    updates = int(re.search(r"After update (\d+)", words)[1])
    assert tab.url.endswith(f"?updates={updates}")

    digits = tab.get_by_label("Your digits")
    digits.fill("90 21")
    assert digits.get_attribute("aria-invalid") == "true"
    assert figure.locator(":is(.live-asked .live-token, .live-looked):visible").count() == 0
    digits.fill("90215")
    assert answered(tab) == "51209■" and "✓" in figure.locator(".live-asked .live-verdict").inner_text()
    figure.locator(".live-asked .live-token").nth(1).press("Enter")
    assert "Step 2 writes 1 (" in figure.locator(".live-looked").inner_text()
    figure.locator(".live-sample").nth(3).press("Enter")
    tab.wait_for_selector(".live-sample:nth-child(4)[aria-pressed=true]")
    tab.get_by_role("slider", name="Back through the updates").fill("0")
    figure.get_by_text("Nothing is trained yet").wait_for()
    assert figure.locator(".live-unlike").count() > 0

    tab.get_by_role("button", name="the mask").click()
    words = trained(tab)
    assert f"Without the mask 0% are right instead of 100% after {updates} updates:" in words
    assert "More in Chapter 3." in words
    assert figure.locator(".live-machine del").inner_text() == "masked"
    address = tab.url
    assert address.endswith(f"?without=mask&updates={updates}")


@reads_pages
def test_an_address_of_the_playground_is_its_run_or_says_what_is_wrong(tab):
    visit(tab, PLACES["learner"])
    address = PLACES["learner"].as_uri()
    tab.goto(f"{address}?heads=1&without=cross&updates=20&utm_source=x&ref=y")
    assert "After update 20 " in trained(tab) and tab.url == f"{address}?heads=1&without=cross&updates=20"
    assert slider(tab, "Heads").get_attribute("aria-valuetext") == "1"
    taken = tab.get_by_role("button", name="cross-attention", exact=True)
    assert taken.get_attribute("aria-pressed") == "true"
    slide(tab, "Seed", 3)  # trains at once
    tab.get_by_role("button", name="Pause", exact=True).click()
    tab.wait_for_url(re.compile(r"seed=3&without=cross"))
    tab.goto(f"{address}?task=xyz&tsk=1")
    words = tab.locator(".live-refused").inner_text()
    assert "task cannot be “xyz”, but “copy”" in words and "no setting is called “tsk”" in words


if __name__ == "__main__":
    write_record()
    write_stills()
