"""Write the report page from results folders."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.report.results_folder import ResultsFolder, read_results_folder
from cowclip_merlin.experiments.report.run_rows import REPLAY_COLUMNS, RUN_COLUMNS
from cowclip_merlin.experiments.report.section import Section, make_section
from cowclip_merlin.experiments.tables.table import NOISE
from cowclip_merlin.system.files import atomic_write, check_writable

_TEMPLATES = Path(__file__).parent


def write_report(folders: Sequence[str | Path], out: str | Path, *, overwrite: bool = False) -> str:
    """Write one self-contained page from one or more results folders.

    The same folders make the same file.

    Args:
        folders: results folders of `cowclip experiment`, usually one per data set.
        out: file of the page.
        overwrite: replace `out` if the file exists.

    Returns:
        A summary of the page in one line.

    Raises:
        InputError: if a folder or a file in it cannot be read, or the page cannot be written.
    """
    out = Path(out)
    if out.is_dir():
        raise InputError(f"{out}: is a folder; give `out` a file, such as {out / 'report.html'}")
    if not out.parent.is_dir():
        raise InputError(f"{out.parent}: no such folder for the report; create it first")
    check_writable(out, overwrite=overwrite)
    read = distinguish([read_results_folder(path) for path in folders])
    sections = [make_section(folder, f"d{n}") for n, folder in enumerate(read, 1)]
    page = render(sections)
    with atomic_write(out) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return summary(sections, len(page.encode()))


def distinguish(folders: Sequence[ResultsFolder]) -> list[ResultsFolder]:
    """Add the path to the titles of results folders that have the same title."""
    times = Counter(folder.title for folder in folders)
    return [
        replace(folder, title=f"{folder.title} ({folder.path})")
        if times[folder.title] > 1
        else folder
        for folder in folders
    ]


def render(sections: Sequence[Section]) -> str:
    """Render the whole page."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["prose"] = prose
    return environment.get_template("page.html").render(
        sections=sections,
        style=(_TEMPLATES / "page.css").read_text(encoding="utf-8"),
        noise=NOISE,
        run_columns=RUN_COLUMNS,
        replay_columns=REPLAY_COLUMNS,
        papers=papers(sections),
    )


def papers(sections: Sequence[Section]) -> list[str]:
    """Return the papers that the results belong to: CowClip, Monolith or both."""
    cowclip = any(section.folder.has_data_tables for section in sections)
    monolith = any(section.folder.replays or section.folder.log_tables for section in sections)
    return ["CowClip"] * cowclip + ["Monolith"] * monolith


def prose(text: str) -> str:
    """Convert text to HTML, with text between backticks as code.

    >>> prose("`exact` < `dense`")
    '<code>exact</code> &lt; <code>dense</code>'
    """
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def summary(sections: Sequence[Section], size: int) -> str:
    """Summarize the page in one line."""
    tables = sum(len(s.tables) for s in sections)
    figures = sum(len(s.folder.figures) for s in sections)
    runs = sum(len(s.runs) + len({row[0] for row in s.replays}) for s in sections)
    parts = [
        (len(sections), "results folder"),
        (tables, "table"),
        (figures, "figure"),
        (runs, "run"),
    ]
    counted = ", ".join(f"{n:,} {name}{'s' * (n != 1)}" for n, name in parts)
    return f"{counted}, {size / 1000:,.0f} kB"
