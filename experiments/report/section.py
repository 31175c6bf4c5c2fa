"""Make one section of the page, which shows one results folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cowclip_merlin.experiments.definitions import (
    LogExperiment,
    experiment_names,
    load_experiment,
)
from cowclip_merlin.experiments.figures.files import FigureFile
from cowclip_merlin.experiments.report.environment import environment
from cowclip_merlin.experiments.report.headline import Headline, headline
from cowclip_merlin.experiments.report.results_folder import ResultsFolder
from cowclip_merlin.experiments.report.run_rows import replay_rows, run_rows
from cowclip_merlin.experiments.report.svg import inline_svg
from cowclip_merlin.experiments.report.table_view import TableView, view_table
from cowclip_merlin.experiments.report.verdicts import count_verdicts, gain_cells, judged_cells
from cowclip_merlin.experiments.tables.table import Table


@dataclass(frozen=True, kw_only=True)
class PageFigure:
    """A figure on the page.

    Attributes:
        anchor: id of the element.
        text: title, caption and so on.
        svg: the drawing as an element.
    """

    anchor: str
    text: FigureFile
    svg: str


@dataclass(frozen=True, kw_only=True)
class Section:
    """One results folder, ready for the template.

    Attributes:
        anchor: id of the section.
        folder: the results folder.
        headline: the answer for its data set.
        overview: for each table, its view and the numbers of cells: better, within noise, worse
            (empty without a comparison), measured, and not run.
        tables: tables as text, each with the figures of the same results.
        figures: the other figures.
        missing: heading and list of experiments or lines that were not run.
        environment: heading and text.
        runs: one list of texts per run on prepared data.
        replays: one list of texts per replay of a log and sync interval.
    """

    anchor: str
    folder: ResultsFolder
    headline: Headline
    overview: Sequence[tuple[TableView, Sequence[int | str]]]
    tables: Sequence[tuple[TableView, Sequence[PageFigure]]]
    figures: Sequence[PageFigure]
    missing: Sequence[tuple[str, Sequence[str]]]
    environment: Sequence[tuple[str, str]]
    runs: Sequence[Sequence[str]]
    replays: Sequence[Sequence[str]]


def make_section(folder: ResultsFolder, anchor: str) -> Section:
    """Make the section of one results folder."""
    tables = [view_table(table, anchor=f"{anchor}-{table.name}") for table in folder.tables]
    figures = [_figure(folder, figure, anchor) for figure in folder.figures]
    sources = [source_table(figure.text.name, folder.tables) for figure in figures]
    by_table = {
        name: [figure for figure, source in zip(figures, sources) if source == name]
        for name in dict.fromkeys(sources)
    }
    return Section(
        anchor=anchor,
        folder=folder,
        headline=headline(folder),
        overview=[(table, _counts(table.table)) for table in tables],
        tables=[(table, by_table.get(table.table.name, [])) for table in tables],
        figures=by_table.get(None, []),
        missing=_missing(folder),
        environment=environment(folder),
        runs=run_rows(folder.results),
        replays=replay_rows(folder.replays),
    )


def source_table(figure: str, tables: Sequence[Table]) -> str | None:
    """Return the name of the table with the same results as a figure; None if there is none.

    >>> one = Table(
    ...     name="table1", title="", claim="", unit="", corner="", columns=(), rows=()
    ... )
    >>> source_table("table1_auc", [one]), source_table("table12_auc", [one])
    ('table1', None)
    """
    names = [table.name for table in tables if f"{figure}_".startswith(f"{table.name}_")]
    return max(names, key=len, default=None)


def _figure(folder: ResultsFolder, figure: FigureFile, anchor: str) -> PageFigure:
    where = str(folder.path / "figures" / f"{figure.name}.svg")
    name = f"{anchor}-figure-{figure.name}"
    return PageFigure(
        anchor=name, text=figure, svg=inline_svg(figure, prefix=f"{name}-", where=where)
    )


def _missing(folder: ResultsFolder) -> list[tuple[str, Sequence[str]]]:
    """List missing runs of tables, and experiments without a table or figure in the folder.

    A folder of a log lists experiments on logs only, and one of prepared data the others.
    """
    missing = [(table.title, table.missing) for table in folder.tables if table.missing]
    made = {one.name for one in (*folder.tables, *folder.figures)}
    known = [load_experiment(name) for name in experiment_names() if name not in made]
    fit = {True: bool(folder.replays or folder.log_tables), False: folder.has_data_tables}
    absent = [each.title for each in known if fit[isinstance(each, LogExperiment)]]
    return [*missing, ("Experiments that were not run", absent)] if absent else missing


def _counts(table: Table) -> list[int | str]:
    numbers = list(gain_cells(table) if table.on_log else judged_cells(table))
    verdicts = [count_verdicts(numbers, k) if numbers else "" for k in ("better", "noise", "worse")]
    cells = [cell for _, row in table.rows for cell in row]
    measured = sum(cell.mean is not None for cell in cells)
    absent = sum(cell.mean is None and cell.text == "not run" for cell in cells)
    return [*verdicts, measured, absent]
