"""Sphinx extension that adds site-only parts to the plain Markdown pages."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

LINK = re.compile(r"\]\((\w[\w-]*)\.md\)")

REFERENCE = """
## Arguments

```{{eval-rst}}
{directives}
```
"""


def contents(text: str) -> str:
    """Add to each section of the index the pages that it links to."""
    begin, *sections = text.split("\n## ")
    return "\n## ".join([begin, *map(_with_pages, sections)])


def _with_pages(section: str) -> str:
    caption = f":caption: {section.splitlines()[0]}"
    pages = dict.fromkeys(LINK.findall(section))
    return "\n".join([section, "", "```{toctree}", ":hidden:", caption, "", *pages, "```", ""])


def reference(text: str) -> str:
    """Add the docstring of each public name below the tables."""
    names = re.findall(r"^\| \[`cc\.([\w.]+)`\]", text, re.MULTILINE)
    directives = "\n\n".join(directive(f"cowclip_merlin.{name}") for name in names)
    return text + REFERENCE.format(directives=directives)


def directive(name: str) -> str:
    """Return the Sphinx directive for one public name, chosen by its spelling."""
    last = name.rpartition(".")[2]
    if last.isupper():
        return f".. autodata:: {name}\n   :no-value:"
    if last[0].isupper():
        return f".. autoclass:: {name}\n   :members:"
    return f".. autofunction:: {name}"


ADDED = {"index": contents, "reference": reference}
OUTSIDE = re.compile(r"\]\((\.\./[^)#\s]+\.md)\)")


def complete(app: Sphinx, docname: str, source: list[str]) -> None:
    """Add the site-only parts to one page, and link to Markdown elsewhere as to a source file."""
    text = ADDED[docname](source[0]) if docname in ADDED else source[0]
    source[0] = OUTSIDE.sub(r"](path:\1)", text)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.connect("source-read", complete)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
