"""Read and write the values that sweeps chose: `tuned.json` of a results folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.definitions.checks import check_rates
from cowclip_merlin.system.files import read_json, write_json
from cowclip_merlin.types import Json, JsonObject

TunedValues = Mapping[str, Mapping[str, float]]
"""Group of lines -> name -> value at the base batch."""


def read_tuned(out: Path, key: str) -> TunedValues:
    """Read the values that sweeps chose for one data set and sizing; empty before a sweep.

    Args:
        out: results folder.
        key: see `Session.tuned_key`: the data's fingerprint, a space, the sizes.

    Raises:
        InputError: the file is damaged.
    """
    return _read_all(out / "tuned.json").get(key, {})


def tuned_by_size(out: Path, fingerprint: str) -> dict[str, TunedValues]:
    """Read the values that sweeps chose for this data set, by sizing.

    Raises:
        InputError: if the file is damaged.
    """
    every = _read_all(out / "tuned.json").items()
    parts = ((*key.partition(" "), tuned) for key, tuned in every)
    return {sizes: tuned for data, _, sizes, tuned in parts if data == fingerprint}


def _read_all(path: Path) -> dict[str, dict[str, dict[str, float]]]:
    """Read the values of all data sets and sizings, by key; empty without a file."""
    every = read_json(path) if path.exists() else {}
    for of_data in _mapping(path, every).values():
        for values in _mapping(path, of_data).values():
            check_rates(path, "tuned values", _mapping(path, values))
    return every


def _mapping(path: Path, value: Json) -> JsonObject:
    if not isinstance(value, dict):
        raise InputError(
            f"{path}: has {value!r:.40} instead of a mapping; delete the file and sweep again"
        )
    return value


def write_tuned(out: Path, key: str, group: str, values: Mapping[str, float]) -> None:
    """Add the values of a sweep to those of other sweeps of its group."""
    path = out / "tuned.json"
    every = _read_all(path)
    mine = every.setdefault(key, {})
    mine[group] = {**mine.get(group, {}), **values}
    write_json(path, every)
