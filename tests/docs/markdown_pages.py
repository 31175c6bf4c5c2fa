"""The Markdown pages of the repository, and what is in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
READMES = ("containers", "benchmarks", "benchmarks/results")
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(ROOT.glob("docs/*.md")),
    ROOT / "benchmarks/not-adopted.md",
    *(ROOT / folder / "README.md" for folder in READMES),
]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@cache
def blocks(page: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))


def inline(page: Path) -> Iterator[Token]:
    for block in blocks(page):
        yield from block.children or ()


def links(page: Path) -> Iterator[tuple[str, str, bool]]:
    """Target and text of every link and image, and whether the text is code."""
    tokens = list(inline(page))
    for i, token in enumerate(tokens):
        if token.type == "image":
            yield str(token.attrs["src"]), token.content, False
        if token.type == "link_open":
            text = tokens[i + 1]
            yield str(token.attrs["href"]), text.content, text.type == "code_inline"


def anchors(page: Path) -> set[str]:
    """Anchors of the headings, as code hosts and the site make them."""
    found = blocks(page)
    headings = [found[i + 1].content for i, b in enumerate(found) if b.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}
