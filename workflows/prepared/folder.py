"""A prepared folder and its description, in JSON and parquet without pickle."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cowclip_merlin import compat
from cowclip_merlin.addresses import Address, local_folder
from cowclip_merlin.errors import InputError
from cowclip_merlin.settings.json_dataclass import dataclass_from_json
from cowclip_merlin.system.checksums import checksum
from cowclip_merlin.system.files import read_json, reading_parquet, write_json
from cowclip_merlin.system.folders import RESULTS, holds, inside
from cowclip_merlin.targets import Target
from cowclip_merlin.types import Json, JsonObject
from cowclip_merlin.workflows import nvtabular_graph
from cowclip_merlin.workflows.nvtabular_graph import Recipe, Statistics
from cowclip_merlin.workflows.prepared.changes import Baseline
from cowclip_merlin.workflows.prepared.counts import FieldCounts
from cowclip_merlin.workflows.prepared.row_numbers import ROWS
from cowclip_merlin.workflows.raw.log_format import TABLE, LogFormat

if TYPE_CHECKING:
    import nvtabular as nvt
    from merlin.schema import Schema

    from cowclip_merlin.workflows.ingest import Split
    from cowclip_merlin.workflows.prepare_settings import PrepareSettings


def write_schema(folders: Iterable[Path], log_format: LogFormat, statistics: Statistics) -> None:
    """Write `.merlin/schema.json` of splits, as Merlin would write `folder.merlin_schema`."""
    schema = schema_json(log_format, statistics)
    for folder in folders:
        (folder / ".merlin").mkdir(parents=True, exist_ok=True)
        write_json(folder / ".merlin" / "schema.json", schema)


def schema_json(log_format: LogFormat, statistics: Statistics) -> JsonObject:
    """Return the schema of a prepared folder's columns in the JSON of TensorFlow Metadata."""
    features = [each.feature(statistics) for each in log_format.roles]
    labels = len(log_format.targets)  # which come last
    return {"feature": features[labels:] + features[:labels]}


FORMAT_VERSION = 1
DATASET = "dataset.json"
"""File that a prepared folder has when it is whole."""
DATA = "data"
"""Folder in a run folder with the rows that were prepared for it."""
SPLITS = ("train", "test")
"""Splits of every folder; one may also have a split "validation"."""
VALIDATION = "validation"


@dataclass(frozen=True, kw_only=True)
class PreparedData:
    """A prepared folder as described by its `dataset.json`.

    Attributes:
        path: the folder.
        log_format: its columns.
        recipe: how they were transformed.
        statistics: cardinalities and ranges that fitting learned.
        rows: split -> number of rows.
        clicks: rows with label 1 in all splits, the first one of several; 0 if it is a number.
        fingerprint: hash of the input files and all settings.
        vocabulary: hash of the meaning of ids and scaled numbers. A folder prepared with `like`
            has the hash of that folder.
        description: the full content of `dataset.json`.
        checksums: file -> checksum that `prepare` wrote.
        baseline: what the rows are like; with `like`, those of the other folder.
        counts: how often each value came, by table, as `prepare` has written them; None if the
            folder was loaded, as `read_counts` tells.
    """

    path: Path
    log_format: LogFormat = field(repr=False)
    recipe: Recipe = field(repr=False)
    statistics: Statistics = field(repr=False)
    rows: dict[str, int]
    clicks: int
    fingerprint: str = field(repr=False)
    vocabulary: str = field(repr=False)
    description: Mapping[str, Json] = field(repr=False)
    checksums: Mapping[str, str] = field(repr=False)
    baseline: Baseline = field(repr=False)
    counts: FieldCounts | None = field(default=None, repr=False, compare=False)

    @classmethod
    def load(cls, path: str | Path | Address) -> PreparedData:
        """Read a folder that `prepare` wrote; one at an address is copied to `TMPDIR` once.

        Raises:
            InputError: if the folder is missing, damaged, not a prepared folder, or of another
                format version.
        """
        path = local_folder(path, DATASET)
        if path.is_file():
            raise InputError(f"{path}: is a file; make a folder of it with cowclip prepare")
        if not path.is_dir():
            raise InputError(f"{path}: no such folder; create it with cowclip prepare")
        if not (path / DATASET).is_file():
            of_run = (path / DATA / DATASET).is_file()
            remedy = f"give {path / DATA}" if of_run else "create it with cowclip prepare"
            raise InputError(f"{path}: has no dataset.json; {remedy}")
        value = read_json(path / DATASET)
        version = value.get("format_version") if isinstance(value, dict) else None
        if version != FORMAT_VERSION:
            raise InputError(
                f"{path}: has format {version}, but this version reads format {FORMAT_VERSION}; "
                "prepare it again"
            )
        try:
            return cls(path=path, description=value, **_parse(value))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path}: damaged dataset.json ({error}); prepare again") from error

    @property
    def fitted_rows(self) -> int:
        """Number of rows that ids were counted in; with `like`, those of the other folder."""
        return self.description["fitted_rows"]

    @property
    def by_time(self) -> bool:
        """Whether the test rows are the last rows of the log, whose rows are in order of time."""
        settings = self.description.get("settings", {})
        in_order = settings.get("in_order", True)
        return in_order and (settings.get("split") or {}).get("how") == "time"

    @property
    def kind(self) -> str:
        """ "criteo", "avazu" or "table"."""
        return self.log_format.kind

    @property
    def label(self) -> str:
        """Name of the label, the first one of several."""
        return self.log_format.label

    @property
    def targets(self) -> tuple[Target, ...]:
        """What models of these rows predict."""
        return self.log_format.targets

    @property
    def categorical(self) -> tuple[str, ...]:
        """Names of the id columns, in model order."""
        return self.log_format.categorical

    @property
    def continuous(self) -> tuple[str, ...]:
        """Names of the float columns, in model order."""
        return self.log_format.continuous

    @property
    def cardinalities(self) -> dict[str, int]:
        """Field -> rows of its embedding table."""
        return self.statistics.cardinalities

    @property
    def tables(self) -> dict[str, int]:
        """Embedding table -> its rows; a table that columns share has the name of one of them."""
        return {name: self.cardinalities[name] for name in self.log_format.tables}

    @property
    def schema(self) -> Schema:
        """Merlin schema with tags and integer domains, which the models read."""
        return merlin_schema(self.log_format, self.statistics)

    def files(self, split: str) -> list[Path]:
        """Return the parquet files of a split, in order.

        Raises:
            InputError: if the split has rows but no files.
            OSError: if the folder is not readable; `glob` would report it as empty.
        """
        folder = self.path / split
        names = os.listdir(folder) if folder.is_dir() else []
        found = sorted(folder / name for name in names if name.endswith(".parquet"))
        if not found and self.rows[split]:
            raise InputError(f"{self.path / split}: no parquet files; prepare the data again")
        return found

    def verify(self, file: Path) -> None:
        """Reject a file that has changed since `prepare` wrote it.

        Raises:
            InputError: if its checksum differs from that in `dataset.json`.
        """
        expected = self.checksums.get(file.relative_to(self.path).as_posix())
        with reading_parquet(file):
            if expected is not None and checksum(file) != expected:
                raise InputError(
                    f"{file}: damaged parquet (its checksum differs from dataset.json); prepare "
                    "the data again"
                )

    def workflow(self) -> nvt.Workflow:
        """Return the fitted `nvtabular.Workflow` for raw columns of text and numbers.

        Raises:
            InputError: if a vocabulary is damaged.
        """
        self.verify_categories()
        return nvtabular_graph.load_workflow(
            self.log_format, self.recipe, self.statistics, self.path
        )

    def verify_categories(self) -> None:
        """Reject vocabularies of which a file has changed or is gone."""
        for file in self.checksums:
            if file.startswith("categories/"):
                self.verify(self.path / file)


@dataclass(frozen=True, kw_only=True)
class _Totals:
    """The plain values of `dataset.json` that the package reads."""

    rows: dict[str, int]
    clicks: int
    fingerprint: str
    fitted_rows: int
    vocabulary: str
    checksums: dict[str, str]


def _parse(value: Mapping[str, Json]) -> dict[str, Any]:
    """Return the attributes of `PreparedData` that `dataset.json` gives."""
    names = [each.name for each in fields(_Totals) if each.name in value]
    totals = dataclass_from_json(_Totals, {name: value[name] for name in names})
    log_format = dataclass_from_json(LogFormat, value["layout"])
    statistics = dataclass_from_json(Statistics, value["statistics"])
    splits = (*SPLITS, *({VALIDATION} & set(totals.rows)))
    columns = {"rows": splits, "cardinalities": log_format.categorical}
    columns |= dict.fromkeys(("minimum", "maximum"), log_format.continuous)
    columns |= dict.fromkeys(("mean", "spread"), log_format.regression)
    for name, known in ({"rows": totals.rows} | asdict(statistics)).items():
        if set(known) != set(columns[name]):
            raise ValueError(f"{name} has other names than the columns or splits")
    for pair in log_format.share_embedding.items():
        rows = {statistics.cardinalities.get(name) for name in pair}
        if None in rows or len(rows) > 1:
            raise ValueError(f"the columns {' and '.join(pair)} cannot share a table")
    kept = ("rows", "clicks", "fingerprint", "vocabulary", "checksums")
    return {name: getattr(totals, name) for name in kept} | {
        "log_format": log_format,
        "recipe": dataclass_from_json(Recipe, value["recipe"]),
        "statistics": statistics,
        "baseline": _baseline(value["baseline"], log_format),
    }


def _baseline(value: Json, log_format: LogFormat) -> Baseline:
    baseline = dataclass_from_json(Baseline, value)
    columns = {"missing": {*log_format.categorical, *log_format.continuous}}
    columns |= {key: {*log_format.categorical} for key in ("values", "unknown")}
    for name, known in columns.items():
        if set(getattr(baseline, name)) != known:
            raise ValueError(f"{name} of the baseline has other names than the columns")
    return baseline


def merlin_schema(log_format: LogFormat, statistics: Statistics) -> Schema:
    """Return the Merlin schema of a prepared folder's columns, which Merlin reads from JSON."""
    compat.merlin_schema()
    from merlin.schema.io.tensorflow_metadata import TensorflowMetadata

    text = json.dumps(schema_json(log_format, statistics))
    return TensorflowMetadata.from_json(text).to_merlin_schema()


def checksums(folder: Path) -> dict[str, str]:
    """Return file -> checksum for all parquet files of a prepared folder except the cache."""
    files = [file.relative_to(folder).as_posix() for file in folder.glob("*/*.parquet")]
    return in_order({file: checksum(folder / file) for file in files})


def in_order(checksums: Mapping[str, str]) -> dict[str, str]:
    """Return the checksums of the files that have one in the order of `dataset.json`."""
    kinds = (*SPLITS, VALIDATION, ROWS, "counts", "categories")
    known = sorted(checksums, key=lambda file: file.partition("/")[::2])
    return {f: checksums[f] for kind in kinds for f in known if f.startswith(f"{kind}/")}


def meaning(log_format: LogFormat, recipe: Recipe, statistics: Statistics, values: str) -> str:
    """Return a hash of what ids and scaled numbers mean; `values` is that of `ValuesHash`."""
    scaling = [recipe.log, statistics.minimum, statistics.maximum]
    columns: list[object] = [log_format.categorical, log_format.continuous]
    columns += [dict(log_format.vectors)] if log_format.vectors else []
    columns += [dict(log_format.share_embedding)] if log_format.share_embedding else []
    columns += [statistics.scales] if statistics.scales else []
    return hashlib.sha256(json.dumps([columns, scaling, values]).encode()).hexdigest()


def recorded(
    settings: PrepareSettings,
    log_format: LogFormat,
    split: Split | None,
    base: PreparedData | None,
) -> JsonObject:
    """Return the settings that decide the output, for `dataset.json`.

    `fit_on` and options of text are recorded only if they are not the default. The columns of a
    Criteo or Avazu log follow from its kind.
    """
    recipe = asdict(settings.recipe)
    if recipe["fit_on"] == "train":
        del recipe["fit_on"]
    names: list[str] = []
    if log_format.kind == TABLE:
        rare = ("weight", "more_labels", "regression", "text", "time", "share_embedding")
        names += ("label", "categorical", "continuous")
        names += ["separator"] if log_format.separator_given else []
        names += ["multi", "max_values", "keep_values"] if log_format.multi else []
        names += ["vectors", "vector_separator"] if log_format.vectors else []
        names += [name for name in rare if getattr(log_format, name)]
    chosen = {name: getattr(log_format, name) for name in names}
    if log_format.kind == TABLE and not log_format.header:
        chosen["columns"] = log_format.file_columns
    given = {f"{name}_files": len(getattr(settings, name)) for name in (VALIDATION, "test")}
    chosen |= {name: files for name, files in given.items() if files}
    if base is not None:
        chosen["vocabulary"] = base.vocabulary
    if settings.extend is not None:  # its counts decide which values have ids
        chosen["extend"] = base.fingerprint
    return chosen | {
        "kind": settings.kind,
        "like": None if settings.like is None else settings.like.name,
        "split": None if split is None else asdict(split),
        "recipe": recipe,
        "max_bad_fraction": settings.max_bad_fraction,
        "hugectr": settings.hugectr,
    }


def check_target(settings: PrepareSettings) -> None:
    """Reject an existing target, because replacing a folder deletes all files in it."""
    out = settings.out
    if not out.exists():
        return
    if not settings.overwrite:
        raise InputError(f"{out}: already exists; use `overwrite` to replace it")
    if not (out / DATASET).is_file():
        raise InputError(
            f"{out}: has no dataset.json, so `overwrite` does not delete it; use another `out`"
        )
    if holds(out, RESULTS):  # beside a copy of dataset.json
        raise InputError(
            f"{out}: holds results of experiments, so `overwrite` does not delete it; use another "
            "`out`"
        )
    if other := inside(out):
        raise InputError(
            f"{out}: holds {other[0]} in {other[1]}, which `overwrite` would delete; use another "
            "`out`"
        )
    for file in settings.all_files:
        if isinstance(file, Path) and out.resolve() in file.resolve().parents:
            raise InputError(f"{file}: is inside {out}, which would be replaced; use another `out`")


def check_base_apart(settings: PrepareSettings) -> None:
    """Refuse to write the folder of `like` or `extend`, a folder in it, or one that holds it."""
    if settings.base is None:
        return
    base, out = (Path(os.path.realpath(path)) for path in (settings.base, settings.out))
    if base == out or base in out.parents or out in base.parents:
        name = "like" if settings.extend is None else "extend"
        raise InputError(
            f"{settings.out}: shares files with `{name}` {settings.base}, which must stay as it "
            "is; use another `out`"
        )
