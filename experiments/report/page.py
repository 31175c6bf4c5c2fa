"""Write the report page: sections of results folders, the machine, and all runs."""

from __future__ import annotations

import html
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.definitions import (
    LogExperiment,
    experiment_names,
    load_experiment,
)
from cowclip_merlin.experiments.figures.files import FigureFile
from cowclip_merlin.experiments.report.results_folder import ResultsFolder, read_results_folder
from cowclip_merlin.experiments.report.svg import inline_svg
from cowclip_merlin.experiments.report.table_view import Headline, TableView, headline, view_table
from cowclip_merlin.experiments.report.verdicts import count_verdicts, gain_cells, judged_cells
from cowclip_merlin.experiments.results.result import ReplayResult, Result
from cowclip_merlin.experiments.tables.table import NOISE, Table
from cowclip_merlin.system.files import atomic_write, check_writable


def environment(folder: ResultsFolder) -> list[tuple[str, str]]:
    """Return heading and text of each fact about the machine and the software."""
    runs = [*folder.results, *folder.replays]
    if not runs:
        return []
    starts = sorted(run.started for run in runs)
    loads = [run.load for run in runs if math.isfinite(run.load)]
    found = [
        ("hardware", _distinct(run.hardware for run in runs)),
        ("runs started (UTC)", _span(starts[0], starts[-1])),
        ("revision", _distinct(run.revision for run in runs)),
        ("TensorFlow", _distinct(run.tensorflow for run in runs)),
        ("running processes before a run", _range(loads)),
        ("data fingerprint", _distinct(run.data_fingerprint for run in runs)),
        ("scores of", _distinct(run.split for run in folder.results)),
    ]
    packages = [f"{name} {', '.join(v)}" for name, v in folder.versions.items()]
    found += [("versions", "; ".join(packages)), ("base values that sweeps chose", _tuned(folder))]
    return [(k, v) for k, v in found if v]


def _tuned(folder: ResultsFolder) -> str:
    """Format values by group: "cowclip" and "baseline" apply to all lines, others to one."""
    return "; ".join(
        f"{group}{f' ({size})' if len(folder.tuned) > 1 else ''}: "
        + ", ".join(f"{name} {value:.3g}" for name, value in values.items())
        for size, tuned in folder.tuned.items()
        for group, values in tuned.items()
    )


def _distinct(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(value for value in values if value))


def _span(first: str, last: str) -> str:
    return first if first == last else f"{first} to {last}"


def _range(loads: Sequence[float]) -> str:
    return _span(f"{min(loads):g}", f"{max(loads):g}") if loads else ""


RUN_COLUMNS = (
    "run", "variant", "model", "batch", "rule", "clip", "update", "embedding lr", "dense lr", "L2",
    "r, zeta", "init, warm-up", "epochs", "seed", "AUC %", "its standard error",
    "best AUC % (epoch)", "log loss", "rows/s", "minutes",
)  # fmt: skip

REPLAY_COLUMNS = (
    "run", "synced every", "log", "admit", "ttl, s", "model", "batch", "rule", "clip",
    "embedding lr", "dense lr", "L2", "r, zeta", "init", "seed", "AUC %", "log loss", "scored",
    "ids kept", "expired", "rows/s", "minutes",
)  # fmt: skip


def run_rows(runs: Sequence[Result]) -> list[list[str]]:
    """Format every run as text, in the order of `RUN_COLUMNS`."""
    several = len({run.data_fingerprint for run in runs}) > 1
    return [_row(run, f"{run.data} {run.variant}" if several else run.variant) for run in runs]


def _row(run: Result, variant: str) -> list[str]:
    best = f"{_percent(run.best_auc)} ({run.best_epoch})" if run.best_epoch else ""
    ended = run.status != "diverged"
    return [
        run.run_id,
        variant,
        f"{run.model}, {run.optimizer}",
        f"{run.batch_size:,}",
        run.rule,
        run.clip,
        run.update,
        f"{run.embedding_lr:.4g}",
        f"{run.dense_lr:.4g}",
        f"{run.l2:.4g}",
        f"{run.r:g}, {run.zeta:g}",
        f"{run.init_std:g}, {run.warmup_epochs:g}",
        str(run.epochs),
        str(run.seed),
        _percent(run.auc) if ended else "diverged",
        "" if run.auc_error is None else _percent(run.auc_error),
        best,
        f"{run.log_loss:.5f}" if ended and math.isfinite(run.log_loss) else "",
        f"{run.rows_per_second:,.0f}",
        f"{run.seconds / 60:.1f}",
    ]


def _percent(auc: float) -> str:
    return f"{100 * auc:.3f}" if math.isfinite(auc) else ""


def replay_rows(replays: Sequence[ReplayResult]) -> list[list[str]]:
    """Format every replay and sync interval as text, in the order of `REPLAY_COLUMNS`."""
    return [_replay_row(replay) for replay in replays]


def _replay_row(replay: ReplayResult) -> list[str]:
    ended = replay.status == "done"
    return [
        replay.run_id,
        replay.sync,
        replay.data,
        replay.admit,
        replay.ttl,
        f"{replay.model}, {replay.mlp}",
        f"{replay.batch_size:,}",
        replay.rule,
        replay.clip,
        f"{replay.embedding_lr:.4g}",
        f"{replay.dense_lr:.4g}",
        f"{replay.l2:.4g}",
        f"{replay.r:g}, {replay.zeta:g}",
        f"{replay.init_std:g}",
        str(replay.seed),
        _percent(replay.auc) if ended else "diverged",
        f"{replay.log_loss:.5f}" if ended else "",
        f"{replay.scored:,}",
        f"{replay.ids_kept:,}",
        f"{replay.expired:,}",
        f"{replay.rows_per_second:,.0f}",
        f"{replay.seconds / 60:.1f}",
    ]


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
