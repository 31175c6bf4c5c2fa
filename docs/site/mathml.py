"""Sphinx extension that writes equations as MathML, which browsers render without scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from docutils import nodes
from latex2mathml.converter import convert

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.writers.html5 import HTML5Translator


def inline(writer: HTML5Translator, node: nodes.Node) -> None:
    """Write `$...$` within a line."""
    writer.body.append(convert(node.astext()))
    raise nodes.SkipNode


def block(writer: HTML5Translator, node: nodes.Node) -> None:
    """Write `$$...$$` on separate lines, with its number at the right if it has a `\\tag`."""
    text, tag, number = node.astext().partition(r"\tag{")
    math = convert(text.strip(), display="block")
    number = f"<span>({number.strip().removesuffix('}')})</span>" if tag else ""
    writer.body.append(f'<div class="equation"><div>{math}</div>{number}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
