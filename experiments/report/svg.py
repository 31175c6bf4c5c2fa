"""Embed figures as SVG elements in a page, checked and cleaned."""

from __future__ import annotations

import html
import re
from xml.etree import ElementTree

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.figures.files import FigureFile, with_prefix

# Elements that matplotlib uses. Other elements could run scripts or load files.
_ELEMENTS = frozenset(
    ("svg", "g", "defs", "path", "use", "rect", "circle", "line", "polyline", "polygon", "clipPath",
     "text", "tspan", "image", "linearGradient", "stop", "pattern")
)  # fmt: skip
_DROPPED = frozenset(("metadata", "style", "title", "desc"))
_PIXELS_PER_POINT = 96 / 72
# Below this share of its natural width, the text of a figure is not readable.
_LEAST = 0.75


def inline_svg(figure: FigureFile, *, prefix: str, where: str) -> str:
    """Convert a figure to an `svg` element with title and description, and add a prefix to its ids.

    Args:
        figure: the figure, as read from its files.
        prefix: prefix of the ids, unique on the page.
        where: path of the SVG, for error messages.

    Raises:
        InputError: if the file is not SVG, or has elements such as scripts that figures do not use.
    """
    try:
        root = ElementTree.fromstring(with_prefix(figure.svg, prefix))
    except ElementTree.ParseError as error:
        raise InputError(f"{where}: damaged SVG ({error}); write it again") from None
    if _local(root.tag) != "svg" or "viewBox" not in root.attrib:
        raise InputError(f"{where}: not an SVG with a viewBox; write it again")
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
        raise InputError(
            f"{where}: viewBox is {box!r:.40}, not four numbers; write it again"
        ) from None
    return width


def _clean(element: ElementTree.Element, where: str) -> None:
    """Remove metadata, and XML's namespaces, which HTML does not support."""
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
        raise InputError(
            f"{where}: has a <{element.tag}>, which figures do not use; write it again"
        )
    for name, value in element.attrib.items():
        outside = name == "href" and not value.startswith(("#", "data:image/png;"))
        # A backslash escape could hide any of these words.
        outside = outside or bool(re.search(r"url\(\s*[^#\s]|expression|@import|\\", value))
        if outside or name.lower().startswith("on"):
            raise InputError(f"{where}: {name}={value!r:.40} is not allowed; write it again")
