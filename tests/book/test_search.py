"""The search as a reader uses it: what comes first for a query, and the box that answers while one types."""
# ruff: noqa: F811 (a fixture has the name under which it is imported)

from __future__ import annotations

from urllib.parse import urldefrag

import pytest
from playwright.sync_api import Page
from test_book import AXE, COLORS, HTML, TOO_WIDE, axe, chromium, reads_pages, show, tab  # noqa: F401

# What is typed, and the section that comes first; of several, each stands among the first five.
FIRST = {
    "KV cache": "08-decoding#the-kv-cache",
    "warmup": "07-training#warm-up-why-a-high-rate-must-rise-first",
    "RoPE": "15-since-2017#rotary-positions-rope",
    "int8": "10-speed#a-decoding-step-reads-the-weights",
    "checkpoint": "11-long-runs#killed-and-resumed",
    "BPE": "12-text#byte-pair-encoding",
    "SDPA": "03-attention#scaled-dot-product-attention",
    "why divide by sqrt": "03-attention#why-divide-by-a-square-root",
    "multi-head attention": "03-attention#multi-head-attention",
    "LayerNorm": "04-layers#layer-normalization",
    "pre-norm": "04-layers#where-the-norm-goes",
    "dropout": "04-layers#dropout",
    "skip connection": "04-layers#residual-connections",
    "teacher forcing": "05-model#teacher-forcing-read-one-step-behind",
    "gradient clipping": "07-training#gradient-clipping",
    "Adam": "07-training#the-step-of-adam",
    "beam search": "08-decoding#beam-search",
    "length penalty": "08-decoding#the-length-penalty",
    "gradient accumulation": "07-training#gradient-accumulation",
    "GQA": "15-since-2017#grouped-query-attention-gqa",
    "mixture of experts": "15-since-2017#mixture-of-experts-moe",
    "BLEU": "13-translation#bleu-how-good-is-a-translation",
    "ablation": "14-looking-inside#what-a-head-is-worth-ablation",
    "LoRA": "15-since-2017#what-else-to-know-scaling-laws-serving-lora",
    "FSDP": "17-many-machines#zero-and-fsdp-nothing-held-twice",
    "my own corpus": "commands#recipes",
    "beam_search": "api#transformer.beam_search",
    "transformer.fit": "api#transformer.fit",
    # Typing errors, and what is half typed
    "softmx": "03-attention#why-a-softmax",
    "roatry": "15-since-2017#rotary-positions-rope",
    "quantizaton": "10-speed#a-decoding-step-reads-the-weights",
    "flash atention": "03-attention#the-fused-kernel-flashattention",
    "flash att": "03-attention#the-fused-kernel-flashattention",
    "perplex": "06-loss#accuracy-and-perplexity",
}


def ask(tab: Page, query: str) -> list[str]:
    """Type a query on the open search page, and return the places of the results, as `page#section`."""
    tab.locator("main input[name=q]").fill(query)
    tab.wait_for_function(
        "q => document.querySelector('#search-results [role=status]').textContent.includes(q)", arg=query
    )
    links = tab.locator("#search-results a").evaluate_all("links => links.map(link => link.href)")
    parts = (urldefrag(link) for link in links)
    return [f"{page.partition('.html')[0].rpartition('/')[2]}#{anchor}" for page, anchor in parts]


@pytest.fixture
def search(tab: Page) -> Page:
    tab.goto((HTML / "search.html").as_uri())
    return tab


@reads_pages
def test_what_a_query_finds_first(search):
    wrong = {}
    for query, wanted in FIRST.items():
        first, *others = wanted.split()
        found = ask(search, query)
        if found[:1] != [first] or not set(others) <= set(found[:5]):
            wrong[query] = found[:5]
    assert wrong == {}


@reads_pages
def test_a_query_that_nothing_answers_says_so_and_one_that_parts_of_do(search):
    assert ask(search, "xyzzy") == []
    assert search.locator("#search-results").text_content() == "No sections hold “xyzzy”."
    assert len(ask(search, "softmax xyzzy")) > 5
    assert "No section holds all of" in search.locator("#search-results [role=status]").text_content()
    ask(search, "softmx")
    assert "hold “softmax”, for “softmx”" in search.locator("#search-results [role=status]").text_content()


@reads_pages
def test_the_box_answers_while_one_types(tab, axe):
    """Its index comes when the box is opened; arrows walk through the results, and Enter follows one."""
    loaded, width = [], 390
    tab.on("request", lambda request: loaded.append(request.url.rpartition("/")[2]))
    tab.set_viewport_size({"width": width, "height": 844})
    tab.goto((HTML / "book" / "06-loss.html").as_uri())
    assert "sections.js" not in loaded
    tab.keyboard.press("Control+k")
    tab.locator("#pst-search-dialog input:focus").wait_for()  # what is typed before goes nowhere
    tab.keyboard.type("kv cach")
    results = tab.locator("#pst-search-dialog li a")
    said = tab.locator("#pst-search-dialog [role=status]")
    said.filter(has_text="sections hold “kv cach”").wait_for()  # a letter before, it says “kv cac”
    assert "sections.js" in loaded
    assert results.first.text_content() == "The KV cache"
    assert tab.evaluate(TOO_WIDE) <= 0
    box = tab.locator("#pst-search-dialog").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= width and box["y"] + box["height"] <= 844
    tab.evaluate("() => document.querySelector('.bd-container').remove()")
    tab.evaluate(axe)
    for scheme in ("light", "dark"):
        show(tab, width, scheme)
        assert tab.evaluate(AXE) == [] and tab.evaluate(AXE, COLORS) == []
    for key, focused in (("ArrowDown", 0), ("ArrowDown", 1), ("ArrowUp", 0)):
        tab.keyboard.press(key)
        assert results.nth(focused).evaluate("link => link === document.activeElement")
    tab.keyboard.press("ArrowUp")
    assert tab.evaluate("() => document.activeElement.name") == "q"
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("Enter")
    tab.wait_for_url("**/08-decoding.html*#the-kv-cache", timeout=60_000)


@reads_pages
def test_excerpts_read_as_text():
    """Where a page has a number or a name, so has what is quoted of it."""
    quoted = (HTML / "_static" / "sections.js").read_text(encoding="utf8")
    assert "by eq-" not in quoted and '"By (1.4), a small step' in quoted
    assert "Further reading" in quoted and "Vaswani 2017" in quoted
