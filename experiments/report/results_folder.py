"""Read and check a results folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cowclip_merlin import addresses
from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.figures.files import FigureFile, read_figure
from cowclip_merlin.experiments.results.folder import TunedValues, tuned_by_size
from cowclip_merlin.experiments.results.result import (
    ReplayResult,
    Result,
    read_replays,
    read_results,
)
from cowclip_merlin.experiments.tables.table import Table, read_table
from cowclip_merlin.system.files import read_json


@dataclass(frozen=True, kw_only=True)
class ResultsFolder:
    """Content of a results folder.

    Attributes:
        path: path of the folder.
        title: names of the data sets in it.
        results: the runs on prepared data, in the order in which they ended.
        replays: the replays of logs, in the same order; one for each sync interval.
        tables: tables in natural order of their names, "table2" before "table10".
        figures: figures in the same order.
        versions: package -> versions that the runs used.
        tuned: values that sweeps chose for the data: sizes -> group -> name -> base value.
    """

    path: Path
    title: str
    results: Sequence[Result]
    replays: Sequence[ReplayResult]
    tables: Sequence[Table]
    figures: Sequence[FigureFile]
    versions: dict[str, list[str]]
    tuned: Mapping[str, TunedValues]

    @property
    def log_tables(self) -> list[Table]:
        """The tables of experiments on a log."""
        return [table for table in self.tables if table.on_log]

    @property
    def has_data_tables(self) -> bool:
        """Whether there are runs or tables of experiments on prepared data, or nothing of a log."""
        of_log = bool(self.replays or self.log_tables)
        return bool(self.results) or len(self.log_tables) < len(self.tables) or not of_log


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
    tables = [read_table(file) for file in _files(path / "tables")]
    figures = [read_figure(file) for file in _figure_files(path / "figures")]
    if not (results or replays or tables or figures):
        raise InputError(f"{path}: has no results; create them with cowclip experiment")
    return ResultsFolder(
        path=path,
        title=_title([*results, *replays]) or path.resolve().name,
        results=results,
        replays=replays,
        tables=tables,
        figures=figures,
        versions=_versions(path, results) or _replay_versions(replays),
        tuned=_tuned(path, results),
    )


def _tuned(path: Path, results: Sequence[Result]) -> Mapping[str, TunedValues]:
    """Return the tuned values of the last run's data; other values belong to other data sets."""
    return tuned_by_size(path, results[-1].data_fingerprint) if results else {}


def _title(results: Sequence[Result | ReplayResult]) -> str:
    """Return the names of the data sets; if a data set has several names, the last."""
    names = {result.data_fingerprint: result.data for result in results if result.data}
    return ", ".join(dict.fromkeys(names.values()))


def _files(folder: Path, pattern: str = "*.json") -> list[Path]:
    return sorted(folder.glob(pattern), key=lambda file: natural_order(file.stem))


def _figure_files(folder: Path) -> list[Path]:
    """Return the text files of all figures, also missing ones, which then fail to read."""
    stems = {file.stem for pattern in ("*.json", "*.svg") for file in _files(folder, pattern)}
    return [folder / f"{stem}.json" for stem in sorted(stems, key=natural_order)]


def natural_order(name: str) -> tuple[object, ...]:
    """Return a sort key: the paper's tables and figures first, by their numbers.

    >>> sorted(["updates", "table10", "table2", "figure3"], key=natural_order)
    ['table2', 'table10', 'figure3', 'updates']
    """
    group = [name.startswith("table"), name.startswith("figure"), True].index(True)
    return group, *addresses.natural_order(name)


def _versions(path: Path, results: Sequence[Result]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for result in results:
        config = path / "runs" / result.run_id / "config.json"
        if not config.exists():
            continue
        described = read_json(config)
        versions = described.get("versions", {}) if isinstance(described, dict) else None
        if not isinstance(versions, dict) or not all(isinstance(v, str) for v in versions.values()):
            raise InputError(f"{config}: does not have versions by name; delete the file")
        for package, version in versions.items():
            # The revision has a separate line, from the results.
            if package != "git_revision" and version not in found.setdefault(package, []):
                found[package].append(version)
    return found


def _replay_versions(replays: Sequence[ReplayResult]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for text in dict.fromkeys(replay.versions for replay in replays):
        for package, _, version in (each.partition(" ") for each in text.split(", ")):
            if version not in found.setdefault(package, []):
                found[package].append(version)
    return found
