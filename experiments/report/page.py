"""One self-contained page from results folders: headlines, tables, figures, and every run."""

from __future__ import annotations

import base64
import html
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.definitions import LogExperiment
from cowclip_merlin.experiments.figures import FigureFile, read_figure
from cowclip_merlin.experiments.files import experiment_names, load_experiment, natural_order
from cowclip_merlin.experiments.report.verdicts import (
    MINUS,
    count_verdicts,
    counted,
    headline,
    judged_cells,
    reference_cell,
)
from cowclip_merlin.experiments.results import (
    ReplayResult,
    Result,
    TunedValues,
    read_replays,
    read_results,
    tuned_by_size,
)
from cowclip_merlin.experiments.tables import NOISE, Cell, Table, read_table
from cowclip_merlin.system.files import atomic_write, check_writable


@dataclass(frozen=True, kw_only=True)
class ResultsFolder:
    """Content of a results folder."""

    path: Path
    title: str  # names of the data sets
    results: Sequence[Result]  # on prepared data, in the order in which they ended
    replays: Sequence[ReplayResult]  # of logs; one for each sync interval
    tables: Sequence[Table]
    figures: Sequence[FigureFile]
    tuned: Mapping[str, TunedValues]  # by sizes

    @property
    def of_log(self) -> bool:
        """Whether there are replays or tables of experiments on a log."""
        return bool(self.replays) or any(table.on_log for table in self.tables)

    @property
    def of_data(self) -> bool:
        """Whether there are runs or tables on prepared data, or nothing of a log."""
        tables = any(not table.on_log for table in self.tables)
        return bool(self.results) or tables or not self.of_log


def read_results_folder(path: str | Path) -> ResultsFolder:
    """Read a results folder.

    Raises:
        InputError: if it is missing, has no results, or a file in it is damaged.
    """
    path = Path(path)
    if not path.is_dir():
        raise InputError(f"{path}: no such folder; give a results folder of cowclip experiment")
    if (path / "config.json").is_file():
        raise InputError(
            f"{path}: is one run, which cowclip inspect shows; give a results folder of experiments"
        )
    results, replays = read_results(path), read_replays(path)
    tables = [read_table(file) for file in _files(path / "tables", "*.json")]
    # The texts of all figures, also missing ones, which then fail to read.
    figures = _files(path / "figures", "*.json", "*.svg")
    drawn = [read_figure(file) for file in dict.fromkeys(x.with_suffix(".json") for x in figures)]
    if not (results or replays or tables or drawn):
        raise InputError(f"{path}: has no results; create them with cowclip experiment")
    # If a data set has several names, the last.
    names = {each.data_fingerprint: each.data for each in (*results, *replays) if each.data}
    return ResultsFolder(
        path=path,
        title=", ".join(dict.fromkeys(names.values())) or path.resolve().name,
        results=results,
        replays=replays,
        tables=tables,
        figures=drawn,
        # Of the last run's data; other values belong to other data sets.
        tuned=tuned_by_size(path, results[-1].data_fingerprint) if results else {},
    )


def _files(folder: Path, *patterns: str) -> list[Path]:
    found = [file for pattern in patterns for file in folder.glob(pattern)]
    return sorted(found, key=lambda file: natural_order(file.stem))


def _versions(runs: Iterable[Result | ReplayResult]) -> str:
    """Return the packages of all runs, each with its versions."""
    found: dict[str, list[str]] = {}
    for text in dict.fromkeys(run.versions for run in runs if run.versions):
        for package, _, version in (each.partition(" ") for each in text.split(", ")):
            if version not in found.setdefault(package, []):
                found[package].append(version)
    return "; ".join(f"{package} {', '.join(each)}" for package, each in found.items())


def _environment(folder: ResultsFolder) -> list[tuple[str, str]]:
    """Return heading and text of each fact about the machine and the software."""
    runs = [*folder.results, *folder.replays]
    if not runs:
        return []
    starts = sorted(run.started for run in runs)
    loads = sorted(run.load for run in runs if math.isfinite(run.load))
    tuned = [
        f"{group}{f' ({size})' if len(folder.tuned) > 1 else ''}: "
        + ", ".join(f"{name} {value:.3g}" for name, value in values.items())
        for size, groups in folder.tuned.items()
        for group, values in groups.items()
    ]
    found = {
        "hardware": _distinct(run.hardware for run in runs),
        "runs started (UTC)": _span(starts),
        "revision": _distinct(run.revision for run in runs),
        "TensorFlow": _distinct(run.tensorflow for run in runs),
        "running processes before a run": _span([f"{load:g}" for load in loads]),
        "data fingerprint": _distinct(run.data_fingerprint for run in runs),
        "scores of": _distinct(run.split for run in folder.results),
        "versions": _versions(runs),
        "base values that sweeps chose": "; ".join(tuned),
    }
    return [(name, text) for name, text in found.items() if text]


def _distinct(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(value for value in values if value))


def _span(ordered: Sequence[str]) -> str:
    return " to ".join(dict.fromkeys((ordered[0], ordered[-1]))) if ordered else ""


RUN_COLUMNS: Mapping[str, str] = {
    "run": "{run_id}",
    "variant": "{variant}",
    "model": "{model}, {optimizer}",
    "batch": "{batch_size:,}",
    "rule": "{rule}",
    "clip": "{clip}",
    "update": "{update}",
    "embedding lr": "{embedding_lr:.4g}",
    "dense lr": "{dense_lr:.4g}",
    "L2": "{l2:.4g}",
    "r, zeta": "{r:g}, {zeta:g}",
    "init, warm-up": "{init_std:g}, {warmup_epochs:g}",
    "epochs": "{epochs}",
    "seed": "{seed}",
    "AUC %": "{auc}",
    "its standard error": "{auc_error}",
    "best AUC % (epoch)": "{best}",
    "log loss": "{log_loss}",
    "rows/s": "{rows_per_second:,.0f}",
    "minutes": "{minutes:.1f}",
}
"""Heading of a column of all runs -> the form of its cells."""

REPLAY_COLUMNS: Mapping[str, str] = {
    "run": "{run_id}",
    "synced every": "{sync}",
    "log": "{data}",
    "admit": "{admit}",
    "ttl, s": "{ttl}",
    "model": "{model}, {mlp}",
    "batch": "{batch_size:,}",
    "rule": "{rule}",
    "clip": "{clip}",
    "embedding lr": "{embedding_lr:.4g}",
    "dense lr": "{dense_lr:.4g}",
    "L2": "{l2:.4g}",
    "r, zeta": "{r:g}, {zeta:g}",
    "init": "{init_std:g}",
    "seed": "{seed}",
    "AUC %": "{auc}",
    "log loss": "{log_loss}",
    "scored": "{scored:,}",
    "ids kept": "{ids_kept:,}",
    "expired": "{expired:,}",
    "rows/s": "{rows_per_second:,.0f}",
    "minutes": "{minutes:.1f}",
}
"""The same of all replays and sync intervals."""


def _cells_of(run: Result | ReplayResult, columns: Mapping[str, str]) -> list[str]:
    """Return the cells of a run; a diverged one has no scores."""

    def percent(auc: float | None) -> str:
        return f"{100 * auc:.3f}" if auc is not None and math.isfinite(auc) else ""

    done, shown = run.status == "done", dict(vars(run))
    shown["auc"] = percent(run.auc) if done else "diverged"
    shown["log_loss"] = f"{run.log_loss:.5f}" if done else ""
    shown["minutes"] = run.seconds / 60
    if isinstance(run, Result):
        shown["auc_error"] = percent(run.auc_error)
        best = f"{percent(run.best_auc)} ({run.best_epoch})"
        shown["best"] = best if run.best_epoch else ""
    return [form.format_map(shown) for form in columns.values()]


View = Mapping[str, Any]
"""What the template shows of a folder, table, cell or figure, by the name that it has there."""


def make_section(folder: ResultsFolder, anchor: str) -> View:
    """Make the section of one results folder."""
    by_table: dict[str | None, list[View]] = {}
    for figure in folder.figures:
        source = source_table(figure.name, folder.tables)
        by_table.setdefault(source, []).append(_figure(folder, figure, anchor))
    runs = folder.results
    if len({run.data_fingerprint for run in runs}) > 1:
        runs = [replace(run, variant=f"{run.data} {run.variant}") for run in runs]
    head = (folder.title, folder.tables, folder.results, folder.replays)
    return {
        "anchor": anchor,
        "folder": folder,
        "headline": headline(*head, of_data=folder.of_data),
        "tables": [_view(table, anchor, by_table.get(table.name, [])) for table in folder.tables],
        "figures": by_table.get(None, []),  # those of no table
        "missing": _missing(folder),
        "environment": _environment(folder),
        "runs": [_cells_of(run, RUN_COLUMNS) for run in runs],
        "replays": [_cells_of(each, REPLAY_COLUMNS) for each in folder.replays],
    }


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


def _figure(folder: ResultsFolder, figure: FigureFile, anchor: str) -> View:
    """Put a drawing into an address of data, in which no script runs and nothing is loaded."""
    try:
        ElementTree.fromstring(figure.svg)
    except ElementTree.ParseError as error:
        where = folder.path / "figures" / f"{figure.name}.svg"
        raise InputError(f"{where}: damaged SVG ({error}); write it again") from None
    data = base64.b64encode(figure.svg.encode()).decode()
    return {
        "anchor": f"{anchor}-figure-{figure.name}",
        "text": figure,
        "source": f"data:image/svg+xml;base64,{data}",
    }


def _missing(folder: ResultsFolder) -> list[tuple[str, Sequence[str]]]:
    """List missing runs of tables, and experiments without a table or figure in the folder.

    A folder of a log lists experiments on logs only, and one of prepared data the others.
    """
    missing = [(table.title, table.missing) for table in folder.tables if table.missing]
    made = {one.name for one in (*folder.tables, *folder.figures)}
    known = [load_experiment(name) for name in experiment_names() if name not in made]
    fit = {True: folder.of_log, False: folder.of_data}
    absent = [each.title for each in known if fit[isinstance(each, LogExperiment)]]
    return [*missing, ("Experiments that were not run", absent)] if absent else missing


def _view(table: Table, anchor: str, figures: Sequence[View]) -> View:
    """Return a table as text, with the figures of the same results."""
    cells = [cell for _, row in table.rows for cell in row]
    runs = Counter(cell.runs for cell in cells if cell.mean is not None)
    seeds = runs.most_common(1)[0][0] if runs else 0  # that most measured cells have
    letters = _note_letters(cells)
    reference = reference_cell(table)
    # The table's note is "line, x8: note" where that of its cell is "note".
    repeated = tuple(f": {note}" for note in letters)
    others = [("", note) for note in table.notes if not f": {note}".endswith(repeated)]
    judged = judged_cells(table)
    verdicts = count_verdicts(judged) if judged else ("", "", "")
    measured = sum(cell.mean is not None for cell in cells)
    absent = sum(cell.mean is None and cell.text == "not run" for cell in cells)
    return {
        "table": table,
        "anchor": f"{anchor}-{table.name}",
        "rows": [
            (
                heading,
                [
                    _cell(cell, decimals, letters, seeds, cell is reference)
                    for cell, decimals in zip(row, table.column_decimals(), strict=True)
                ],
            )
            for heading, row in table.rows
        ],
        "notes": [*((letter, note) for note, letter in letters.items()), *others],
        "legend": _legend(table, cells, seeds),
        "counts": [*verdicts, measured, absent],
        "figures": figures,
    }


_SIGNS = {"better": "+", "worse": MINUS, "noise": "=", "": ""}
_WORDS = {"better": "better", "worse": "worse", "noise": "within noise", "": ""}


def _cell(
    cell: Cell, decimals: int, letters: Mapping[str, str], seeds: int, is_reference: bool
) -> View:
    """Return one cell as text; `words` are for screen readers."""

    def number(value: float | None) -> str:
        return "" if value is None else f"{value:.{decimals}f}".replace("-", MINUS)

    measured = cell.mean is not None
    kind = "absent" if cell.text in ("", "not run", "diverged") else "text"
    if measured:
        kind = "reference" if is_reference else cell.verdict
    return {
        "kind": kind,  # CSS class of its color
        "value": number(cell.mean) if measured else cell.text,
        "spread": "" if cell.spread is None else f"±{number(cell.spread)}",
        "sign": _SIGNS[cell.verdict],
        "words": "the reference" if is_reference else _WORDS[cell.verdict],
        "published": number(cell.published),
        "seeds": counted(cell.runs, "seed") if measured and cell.runs != seeds else "",
        "note": letters.get(cell.note, ""),
    }


def _note_letters(cells: Sequence[Cell]) -> dict[str, str]:
    """Return note -> letter; equal notes share one letter, and the 27th note has two letters."""

    def letters(index: int) -> str:
        rest, last = divmod(index, 26)
        return (letters(rest - 1) if rest else "") + chr(ord("a") + last)

    notes = dict.fromkeys(cell.note for cell in cells if cell.note)
    return {note: letters(index) for index, note in enumerate(notes)}


def _legend(table: Table, cells: Sequence[Cell], seeds: int) -> str:
    parts = [table.unit]
    if seeds > 1:
        parts.append(f"mean ± standard deviation over {counted(seeds, 'seed')}")
    elif seeds == 1 and table.reference:
        parts.append("one seed, so no spread and no verdict")
    if any(cell.published is not None for cell in cells):
        parts.append("“paper”: the published number")
    text = "; ".join(parts) + "."
    return text[0].upper() + text[1:]


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
    read = [read_results_folder(path) for path in folders]
    times = Counter(folder.title for folder in read)
    read = [
        replace(each, title=f"{each.title} ({each.path})") if times[each.title] > 1 else each
        for each in read
    ]
    sections = [make_section(folder, f"d{n}") for n, folder in enumerate(read, 1)]
    page = _render(sections)
    with atomic_write(out) as temporary:
        temporary.write_text(page, encoding="utf-8")
    counts = {
        "results folder": len(sections),
        "table": sum(len(each.tables) for each in read),
        "figure": sum(len(each.figures) for each in read),
        "run": sum(len(each.results) + len({x.run_id for x in each.replays}) for each in read),
    }
    found = ", ".join(counted(number, name) for name, number in counts.items())
    return f"{found}, {len(page.encode()) / 1000:,.0f} kB"


def _render(sections: Sequence[View]) -> str:
    import jinja2

    templates = Path(__file__).parent
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["prose"] = prose
    cowclip = any(section["folder"].of_data for section in sections)
    monolith = any(section["folder"].of_log for section in sections)
    return environment.get_template("page.html").render(
        sections=sections,
        style=(templates / "page.css").read_text(encoding="utf-8"),
        noise=NOISE,
        run_columns=list(RUN_COLUMNS),
        replay_columns=list(REPLAY_COLUMNS),
        papers=["CowClip"] * cowclip + ["Monolith"] * monolith,
    )


def prose(text: str) -> str:
    """Convert text to HTML, with text between backticks as code.

    >>> prose("`exact` < `dense`")
    '<code>exact</code> &lt; <code>dense</code>'
    """
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))
