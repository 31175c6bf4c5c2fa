"""Figures as SVG elements inside a page, checked and cleaned."""

from __future__ import annotations

import html
import re
from xml.etree import ElementTree

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.figures.files import FigureFile, with_prefix

# The elements that matplotlib uses. Others could run or load something.
_ELEMENTS = frozenset(
    ("svg", "g", "defs", "path", "use", "rect", "circle", "line", "polyline", "polygon", "clipPath",
     "text", "tspan", "image", "linearGradient", "stop", "pattern")
)  # fmt: skip
_DROPPED = frozenset(("metadata", "style", "title", "desc"))
_PIXELS_PER_POINT = 96 / 72
# Narrower than this share of its natural width, a figure's text can no longer be read.
_LEAST = 0.75


def inline_svg(figure: FigureFile, *, prefix: str, where: str) -> str:
    """A figure as an `svg` element with a title and a description, its ids behind a prefix.

    Args:
        figure: as read from its files.
        prefix: unique on the page.
        where: path of the SVG, for messages.

    Raises:
        InputError: the file is not SVG, or holds something that no figure needs, such as a script.
    """
    try:
        root = ElementTree.fromstring(with_prefix(figure.svg, prefix))
    except ElementTree.ParseError as error:
        raise InputError(f"{where}: damaged SVG ({error}); make it again") from None
    if _local(root.tag) != "svg" or "viewBox" not in root.attrib:
        raise InputError(f"{where}: no SVG with a viewBox; make it again")
    _clean(root, where)
    width = _width(root.attrib["viewBox"], where) * _PIXELS_PER_POINT
    root.attrib = {
        "viewBox": root.attrib["viewBox"],
        "role": "img",
        "aria-labelledby": f"{prefix}title {prefix}alt",
        "style": f"width:{width:.0f}px;min-width:{_LEAST * width:.0f}px",
    }
    body = ElementTree.tostring(root, encoding="unicode")
    names = (
        f'<title id="{prefix}title">{html.escape(figure.title)}</title>'
        f'<desc id="{prefix}alt">{html.escape(figure.alt)}</desc>'
    )
    return re.sub(r"^(<svg[^>]*>)", lambda m: m[1] + names, body)


def _width(box: str, where: str) -> float:
    try:
        _, _, width, _ = map(float, re.split(r"[\s,]+", box.strip()))
    except ValueError:
        raise InputError(f"{where}: viewBox is {box!r:.40}, no four numbers; redo it") from None
    return width


def _clean(element: ElementTree.Element, where: str) -> None:
    """Drop metadata, and XML's name spaces, which HTML does not know."""
    element.tag = _local(element.tag)
    element.attrib = {_local(name): value for name, value in element.attrib.items()}
    _check(element, where)
    for child in list(element):
        if _local(child.tag) in _DROPPED:
            element.remove(child)
        else:
            _clean(child, where)


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _check(element: ElementTree.Element, where: str) -> None:
    if element.tag not in _ELEMENTS:
        raise InputError(f"{where}: holds a <{element.tag}>, which no figure needs; make it again")
    for name, value in element.attrib.items():
        outside = name == "href" and not value.startswith(("#", "data:image/png;"))
        # A backslash could spell any of these words in another way.
        outside = outside or bool(re.search(r"url\(\s*[^#\s]|expression|@import|\\", value))
        if outside or name.lower().startswith("on"):
            raise InputError(f"{where}: {name}={value!r:.40} is not allowed; make it again")
