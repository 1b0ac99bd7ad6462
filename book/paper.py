"""What a PDF of the whole book needs of it: its order, its titles, its cover, and the browser."""

from __future__ import annotations

import base64
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml
from bs4 import BeautifulSoup, Tag
from playwright.sync_api import Browser, sync_playwright
from tasks import BROWSERS, HTML, ROOT

COVER = ROOT / "book" / "_static" / "cover.svg"
LIVE = re.compile(
    r"/_static/(live/[^/]*|predict)\.js"
)  # a live figure is its first picture, and nothing is veiled


class Section(NamedTuple):
    """A section of a page, by the id of its place."""

    anchor: str
    title: str


class Page(NamedTuple):
    """A page of the book, its sections in order, and the part that begins with it."""

    name: str
    title: str
    sections: list[Section]
    part: str | None
    folder: str = "."  # in the book

    @property
    def path(self) -> Path:
        return HTML / "book" / self.folder / f"{self.name}.html"


@cache
def settings() -> dict:
    """Return what `_config.yml` says."""
    return yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf8"))


@cache
def typeface() -> str:
    """Return a style sheet with the font of the book, for pages that stand nowhere and can load nothing."""
    font = base64.b64encode((COVER.parent / "fonts" / "source-sans-3.woff2").read_bytes()).decode()
    return f"""@font-face {{ font-family: 'Source Sans 3'; font-weight: 200 900;
        src: url(data:font/woff2;base64,{font}) format('woff2') }}"""


@cache
def version() -> str:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]["version"]


def order() -> Iterator[tuple[str, str | None]]:
    """Yield the pages' places in the book in reading order, each with the caption of the part it begins."""
    contents = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf8"))
    yield Path(contents["root"]).relative_to("book").as_posix(), None
    for part in contents["parts"]:
        for number, chapter in enumerate(part["chapters"]):
            place = Path(chapter["file"]).relative_to("book").as_posix()
            yield place, None if number else part["caption"]


def title_of(heading: Tag) -> str:
    """Return the text of a heading, with its number and without the sign that links to it."""
    text = "".join(part for part in heading.strings if not part.find_parent(class_="headerlink"))
    return " ".join(text.split())


def read_page(place: str, part: str | None) -> Page:
    """Read the titles of a built page."""
    soup = BeautifulSoup((HTML / "book" / f"{place}.html").read_text(encoding="utf8"), "html.parser")
    article = soup.select_one("article.bd-article")
    headings = [heading for heading in article.find_all("h2") if heading.parent.name == "section"]
    sections = [Section(heading.parent["id"], title_of(heading)) for heading in headings]
    return Page(Path(place).name, title_of(article.h1), sections, part, Path(place).parent.as_posix())


def pages() -> list[Page]:
    """Return the pages of the built book in reading order."""
    return [read_page(place, part) for place, part in order()]


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start Chromium, or end the program where there is none."""
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None:
        sys.exit("There is no Chromium: make browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield browser
        browser.close()
