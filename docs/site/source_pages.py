"""Sphinx extension that makes links to source files lead to a page with that file.

A link such as [`clip_rows`](../cowclip_merlin/kernels/reference.py) works unchanged on a code
host. On the site it leads to the line that defines the name. A missing name causes a warning,
which ends a build with -W.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from definitions import line_of
from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx import addnodes
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
log = logging.getLogger(__name__)


class LinkToSource(SphinxTransform):
    """Replace a download link by a link to the file's page."""

    default_priority = 400

    def apply(self, **_: Any) -> None:
        """Replace all links of one page."""
        for node in list(self.document.findall(addnodes.download_reference)):
            file = (Path(self.env.doc2path(self.env.docname)).parent / node["reftarget"]).resolve()
            name = file.relative_to(ROOT).as_posix()
            link = nodes.reference(refuri=page(name) + ".html" + self._line_anchor(node, file))
            link["source_file"] = name
            link += node.children
            node.replace_self(link)

    def _line_anchor(self, node: nodes.Node, file: Path) -> str:
        """Return `#line-N` of the definition that the link's text names, if its text is code."""
        name = node.astext()
        is_code = next(node.findall(nodes.literal), None) is not None
        if not is_code or file.suffix != ".py" or name.endswith(".py"):
            return ""
        line = line_of(name, file)
        if line is None:
            log.warning("%s is not defined in %s", name, file.name, location=node)
        return f"#line-{line}"


def page(name: str) -> str:
    """Return the name of the page of one file."""
    return f"source/{name}"


def source_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield one page for every linked file."""
    linked: set[str] = set()
    for docname in app.env.found_docs:
        for node in app.env.get_doctree(docname).findall(nodes.reference):
            linked.update({node["source_file"]} if "source_file" in node else ())
    for name in sorted(linked):
        body = f"<h1>{name}</h1>\n{highlighted(ROOT / name)}"
        yield page(name), {"title": name, "body": body, "parents": []}, "page.html"


def highlighted(file: Path) -> str:
    """Convert the file to HTML with an anchor on every line."""
    try:
        lexer = get_lexer_for_filename(file.name)
    except ClassNotFound:
        lexer = TextLexer()
    formatter = HtmlFormatter(linespans="line", cssclass="highlight")
    return highlight(file.read_text(encoding="utf-8"), lexer, formatter)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.add_transform(LinkToSource)
    app.connect("html-collect-pages", source_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
