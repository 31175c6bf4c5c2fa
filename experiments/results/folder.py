"""Check a results folder, and read and write the values that sweeps chose: `tuned.json`."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping
from pathlib import Path

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.definitions.parser import check_rates
from cowclip_merlin.system.files import read_json, write_json
from cowclip_merlin.system.folders import PREPARED, RESULTS, RUN, check_out, holds
from cowclip_merlin.types import Json, JsonObject


def check_results_folder(out: Path) -> None:
    """Refuse a path that is a file, prepared data or a run.

    A results folder may hold a copy of `dataset.json`: then it makes its tables without the data.

    Raises:
        InputError: if it is one of them.
    """
    others = () if holds(out, RESULTS) else (PREPARED, RUN)
    check_out(out, others, "use another `out` for the results")


def check_outputs_replaceable(out: Path, name: str, fingerprint: str) -> None:
    """Refuse to replace the table or figure of other data, or a file that is none.

    Args:
        out: the results folder.
        name: name of the experiment.
        fingerprint: fingerprint of the data, or of the share of its rows.

    Raises:
        InputError: if the folder has such a file.
    """
    for path in _outputs(out, name):
        value = _read_output(path)
        before = value.get("fingerprint")
        if before and before != fingerprint:
            raise InputError(
                f"{path}: is of other data ({value.get('data')!s:.60}); use another `out`, or "
                "delete it"
            )


def _read_output(path: Path) -> JsonObject:
    """Read the values of a table or figure, which need not be complete.

    Raises:
        InputError: if it is damaged. "Write it again" is no remedy for the command that does so.
    """
    try:
        value = read_json(path)
    except InputError as error:
        what, _, _ = str(error).rpartition("; ")
        raise InputError(f"{what}; delete it, and run the command again") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: is no table or figure; delete it, or use another `out`")
    return value


def _outputs(out: Path, name: str) -> Iterator[Path]:
    figures = (f"figures/{name}{end}.json" for end in ("", "_auc", "_over_time"))
    files = [out / file for file in (f"tables/{name}.json", *figures)]
    labels = sorted((out / "tables").glob(f"{glob.escape(name)}_label*.json"))
    return (file for file in (*files, *labels) if file.is_file())


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
