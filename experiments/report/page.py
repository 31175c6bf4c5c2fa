"""The page, from results folders."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.definitions import experiment_names, load_experiment
from cowclip_merlin.experiments.figures.files import FigureFile
from cowclip_merlin.experiments.report.cells import TableView, view
from cowclip_merlin.experiments.report.claims import count, judged
from cowclip_merlin.experiments.report.drawing import inline
from cowclip_merlin.experiments.report.folder import Folder, load_folder
from cowclip_merlin.experiments.report.headline import Headline, headline
from cowclip_merlin.experiments.report.runs import RUN_COLUMNS, environment, run_rows
from cowclip_merlin.experiments.tables.table import NOISE, Table
from cowclip_merlin.system.files import refuse_no_file, replacing

_TEMPLATES = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A figure as it stands on the page.

    Attributes:
        anchor: its id.
        text: title, caption and the like.
        svg: the element.
    """

    anchor: str
    text: FigureFile
    svg: str


@dataclass(frozen=True, kw_only=True)
class Section:
    """All of one results folder, ready for the template.

    Attributes:
        anchor: id of the section.
        folder: what was read.
        headline: what it shows.
        glance: per table: view, numbers better, within noise, worse (none of the three where
            nothing is compared), measured, and not run.
        tables: as text, each with the figures that are drawn from it.
        figures: the others.
        missing: heading, and what was not run.
        environment: heading and text.
        runs: one list of texts per run.
    """

    anchor: str
    folder: Folder
    headline: Headline
    glance: Sequence[tuple[TableView, Sequence[int | str]]]
    tables: Sequence[tuple[TableView, Sequence[Drawing]]]
    figures: Sequence[Drawing]
    missing: Sequence[tuple[str, Sequence[str]]]
    environment: Sequence[tuple[str, str]]
    runs: Sequence[Sequence[str]]


def write_report(folders: Sequence[str | Path], out: str | Path, *, overwrite: bool = False) -> str:
    """Write one page that needs nothing else, from one or more results folders.

    The same folders make the same file.

    Args:
        folders: what `cowclip experiment` wrote, usually one per data set.
        out: the page.
        overwrite: replace `out` if the file is there.

    Returns:
        What is on it, in one line.

    Raises:
        InputError: a folder or a file in it cannot be read, or there is no place for the page.
    """
    out = Path(out)
    if out.is_dir():
        raise InputError(f"{out}: is a folder; give --out a file, such as {out / 'report.html'}")
    if not out.parent.is_dir():
        raise InputError(f"{out.parent}: no such folder for the report; make it first")
    refuse_no_file(out, overwrite=overwrite)
    sections = [section(load_folder(path), f"d{n}") for n, path in enumerate(folders, 1)]
    page = render(sections)
    with replacing(out) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return summary(sections, len(page.encode()))


def section(folder: Folder, anchor: str) -> Section:
    """What the template needs of one folder."""
    tables = [view(table, anchor=f"{anchor}-{table.name}") for table in folder.tables]
    drawings = [_drawing(folder, figure, anchor) for figure in folder.figures]
    owners = [owner(drawing.text.name, folder.tables) for drawing in drawings]
    mine = {
        name: [drawing for drawing, its in zip(drawings, owners) if its == name]
        for name in dict.fromkeys(owners)
    }
    return Section(
        anchor=anchor,
        folder=folder,
        headline=headline(folder),
        glance=[(table, _counts(table.table)) for table in tables],
        tables=[(table, mine.get(table.table.name, [])) for table in tables],
        figures=mine.get(None, []),
        missing=_missing(folder),
        environment=environment(folder),
        runs=run_rows(folder.results),
    )


def owner(figure: str, tables: Sequence[Table]) -> str | None:
    """The table that a figure is drawn from, as its name says; None for a figure of its own.

    >>> one = Table(
    ...     name="table1", title="", claim="", unit="", corner="", columns=(), rows=()
    ... )
    >>> owner("table1_auc", [one]), owner("table12_auc", [one])
    ('table1', None)
    """
    names = [table.name for table in tables if f"{figure}_".startswith(f"{table.name}_")]
    return max(names, key=len, default=None)


def _drawing(folder: Folder, figure: FigureFile, anchor: str) -> Drawing:
    where = str(folder.path / "figures" / f"{figure.name}.svg")
    name = f"{anchor}-figure-{figure.name}"
    return Drawing(anchor=name, text=figure, svg=inline(figure, prefix=f"{name}-", where=where))


def _missing(folder: Folder) -> list[tuple[str, Sequence[str]]]:
    """What tables lack, and the experiments that have neither table nor figure in the folder."""
    lacking = [(table.title, table.missing) for table in folder.tables if table.missing]
    made = {one.name for one in (*folder.tables, *folder.figures)}
    absent = [load_experiment(name).title for name in experiment_names() if name not in made]
    return [*lacking, ("Experiments that were not made", absent)] if absent else lacking


def _counts(table: Table) -> list[int | str]:
    numbers = list(judged(table))
    verdicts = [count(numbers, k) if numbers else "" for k in ("better", "noise", "worse")]
    cells = [cell for _, row in table.rows for cell in row]
    measured = sum(cell.mean is not None for cell in cells)
    absent = sum(cell.mean is None and cell.text == "not run" for cell in cells)
    return [*verdicts, measured, absent]


def render(sections: Sequence[Section]) -> str:
    """The whole page."""
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
    )


def prose(text: str) -> str:
    """Text as HTML, with what stands between backticks as code.

    >>> prose("`exact` < `dense`")
    '<code>exact</code> &lt; <code>dense</code>'
    """
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def summary(sections: Sequence[Section], size: int) -> str:
    """What is on the page, in one line."""
    tables = sum(len(s.tables) for s in sections)
    figures = sum(len(s.folder.figures) for s in sections)
    runs = sum(len(s.runs) for s in sections)
    parts = [(len(sections), "data set"), (tables, "table"), (figures, "figure"), (runs, "run")]
    counted = ", ".join(f"{n:,} {name}{'s' * (n != 1)}" for n, name in parts)
    return f"{counted}, {size / 1000:,.0f} kB"
