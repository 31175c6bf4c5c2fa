"""Read and write `config.json` of a run folder: the run's settings, values and data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from cowclip_merlin.addresses import FilePath, is_address, local_folder, path_of
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading.row_order import NUMPY, ORDERS
from cowclip_merlin.scaling import Hyperparameters
from cowclip_merlin.settings.json_dataclass import dataclass_from_json
from cowclip_merlin.system.files import read_json
from cowclip_merlin.system.machine import versions
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.types import JsonObject
from cowclip_merlin.workflows.prepared.folder import DATA

FORMAT_VERSION = 2
CONFIG = "config.json"
"""File that a run folder has."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The content of a run folder's `config.json`.

    Attributes:
        settings: the settings that the user gave.
        values: the hyper-parameters after scaling.
        fingerprint: fingerprint of the prepared data.
        vocabulary: vocabulary of the prepared data, as in `PreparedData`.
        data: absolute path or address of the prepared folder.
        row_order: generator of the order of the rows, one of `row_order.ORDERS`.
        targets: label -> "binary" or "regression", if there are several.
        start: the run that this one went on from; None: it started from initial values.
        before: what the weights of that run scored on the rows that this one scores, named as in
            `metrics.csv`.
    """

    settings: RunSettings
    values: Hyperparameters
    fingerprint: str
    vocabulary: str
    data: str
    row_order: str = NUMPY
    targets: Mapping[str, str] = field(default_factory=dict)
    start: str | None = None
    before: Mapping[str, float] = field(default_factory=dict)

    def as_dict(self) -> JsonObject:
        """Return plain values for JSON."""
        return {
            "format_version": FORMAT_VERSION,
            "settings": self.settings.as_dict(),
            "hyperparameters": asdict(self.values),
            "data_fingerprint": self.fingerprint,
            "data_vocabulary": self.vocabulary,
            "data_path": self.data,
            "row_order": self.row_order,
            "data_targets": dict(self.targets),
            "start": self.start,
            "before": dict(self.before),
            "versions": versions(),
        }

    @classmethod
    def load(cls, run: Path) -> RunConfig:
        """Read the configuration of a run folder.

        Raises:
            InputError: if the folder is not a run folder, is damaged or has another format.
        """
        if not (run / CONFIG).exists():
            what = "is a file" if run.is_file() else "no config.json"
            raise InputError(f"{run}: {what}; give the run folder that cowclip train wrote")
        config = read_json(run / CONFIG)
        if isinstance(config, dict) and "features" in config:
            raise InputError(
                f"{run}: a run of online training; give one of cowclip train (cowclip online serve "
                "answers with the model of a stream)"
            )
        version = config.get("format_version") if isinstance(config, dict) else None
        if version != FORMAT_VERSION:
            raise InputError(
                f"{run}: run of format {version}; this version reads format {FORMAT_VERSION}; "
                "train again"
            )
        try:
            return cls(**_parse(config))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{run}: damaged config.json ({error}); train again") from error


def local_run(run: str | FilePath) -> Path:
    """Return the path of a run folder; of one at an address that of its copy in `TMPDIR`.

    Raises:
        InputError: if there is no run at the address, or it cannot be reached, or this is no path.
    """
    if not (isinstance(run, str | Path) or is_address(run)):
        raise InputError(f"`run` is a {type(run).__name__}; give the path of a run folder")
    return local_folder(run, CONFIG)


def data_of_run(run: Path, config: RunConfig, *, name: str = "`data`") -> FilePath:
    """Return the folder that a run was trained on.

    Args:
        run: the run folder.
        config: its configuration.
        name: where the user can give the folder, for the error.

    Raises:
        InputError: if the folder is gone.
    """
    path = path_of(config.data)
    if isinstance(path, Path) and not path.is_dir() and (run / DATA).is_dir():
        return run / DATA  # of a run with its rows that was moved
    if isinstance(path, Path) and not path.is_dir():
        raise InputError(
            f"{path}: no such folder, but {run} was trained on it; give its new path as {name}"
        )
    return path


@dataclass(frozen=True, kw_only=True)
class _Data:
    """What `config.json` says of the prepared data, and of the run to go on from."""

    data_fingerprint: str
    data_vocabulary: str
    data_path: str
    row_order: str
    data_targets: Mapping[str, str]
    start: str | None
    before: Mapping[str, float]


def _parse(config: JsonObject) -> dict[str, Any]:
    """Return the attributes of `RunConfig` that `config.json` gives.

    Raises:
        KeyError: if a key is missing.
        TypeError: if a value is missing or has the wrong type.
        ValueError: if a value is unknown or out of range.
    """
    names = [each.name for each in fields(_Data) if each.name in config]
    data = dataclass_from_json(_Data, {name: config[name] for name in names})
    if data.row_order not in ORDERS:
        raise ValueError(f"row_order is {data.row_order!r}")
    return {
        "row_order": data.row_order,
        "settings": RunSettings.from_dict(config["settings"]),
        "values": dataclass_from_json(Hyperparameters, config["hyperparameters"]),
        "fingerprint": data.data_fingerprint,
        "vocabulary": data.data_vocabulary,
        "data": data.data_path,
        "targets": data.data_targets,
        "start": data.start,
        "before": data.before,
    }
