"""Convert the flights of the USA, January to June 2001, to a log to train on.

    python examples/flights.py flights-3m.parquet --out flights.parquet

`cowclip prepare table` and `cowclip online` read the log. The file is data/flights-3m.parquet of
the npm package vega-datasets 3.2.1: 3 million flights with date (to the minute), delay in minutes,
distance, origin and destination, sorted by time. The data are from the US Bureau of
Transportation Statistics. A flight with a delay of more than 15 minutes has the label 1; `--late`
sets another limit. The log has four raw and nine crossed categorical columns. Most of their 2.3
million ids are rare. The features file `flights.parquet.yaml` is written beside it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cowclip_merlin import InputError
from cowclip_merlin.errors import exit_code
from cowclip_merlin.settings import Settings, add_options, option, settings_from
from cowclip_merlin.system.files import atomic_write, check_writable
from cowclip_merlin.workflows.raw.readers import open_parquet

LABEL, TIME, NUMBER = "late", "time", "distance"
LATE_MINUTES = 15
RAW = ("origin", "destination", "hour", "weekday")
CROSSES = MappingProxyType(
    {
        "route": ("origin", "destination"),
        "origin_day": ("origin", "day"),
        "destination_day": ("destination", "day"),
        "origin_hour": ("origin", "hour"),
        "route_hour": ("origin", "destination", "hour"),
        "flight": ("origin", "destination", "minute"),
        "origin_day_hour": ("origin", "day", "hour"),
        "destination_day_hour": ("destination", "day", "hour"),
        "route_day": ("origin", "destination", "day"),
    }
)
CATEGORICAL = (*RAW, *CROSSES)
_CHUNK = 1 << 17  # rows that are converted at a time


@dataclass(frozen=True, kw_only=True)
class Conversion(Settings):
    """What is converted, and where to."""

    flights: Path = option(help="flights-3m.parquet", flag="flights", metavar="FLIGHTS")
    out: Path = option(help="log to write, in parquet", metavar="FILE")
    rows: int | None = option(None, "the first N rows", shown="all", at_least=1)
    late: int = option(LATE_MINUTES, "a larger delay has the label 1", metavar="MINUTES")
    overwrite: bool = option(False, "replace FILE if it exists")


_TYPES: dict[str, tuple[str, Callable[[pa.DataType], bool]]] = {
    "date": ("dates", pa.types.is_timestamp),
    "delay": ("whole numbers", pa.types.is_integer),
    "distance": ("whole numbers", pa.types.is_integer),
    "origin": ("text", lambda t: pa.types.is_string(t) or pa.types.is_large_string(t)),
    "destination": ("text", lambda t: pa.types.is_string(t) or pa.types.is_large_string(t)),
}


def open_flights(file: Path) -> pq.ParquetFile:
    """Open the published file and check its columns."""
    flights = open_parquet(file)
    schema = flights.schema_arrow
    missing = [name for name in _TYPES if name not in schema.names]
    if missing:
        raise InputError(f"{file}: no column {', '.join(missing)}; give flights-3m.parquet")
    for name, (kind, is_right) in _TYPES.items():
        if not is_right(schema.field(name).type):
            found = schema.field(name).type
            raise InputError(f"{file}: {name} is {found}, not {kind}; give flights-3m.parquet")
    return flights


def log_of(flights: pa.Table, *, late_minutes: int = LATE_MINUTES) -> pa.Table:
    """Convert rows of the published file to rows of the log.

    >>> from datetime import datetime
    >>> row = {"date": datetime(2001, 1, 31, 7, 5), "delay": 16, "distance": 404}
    >>> flights = pa.Table.from_pylist([row | {"origin": "SFO", "destination": "LAX"}])
    >>> log = log_of(flights).to_pylist()[0]
    >>> log["late"], log["weekday"], log["route_hour"], log["flight"]
    (1, '3', 'SFO LAX 07', 'SFO LAX 07:05')
    """
    date = flights["date"].cast(pa.timestamp("s"), safe=False)
    parts = {
        "origin": flights["origin"],
        "destination": flights["destination"],
        "hour": pc.strftime(date, "%H"),
        "weekday": pc.strftime(date, "%u"),
        "day": pc.strftime(date, "%m-%d"),
        "minute": pc.strftime(date, "%H:%M"),
    }
    parts = {name: column.cast(pa.string()) for name, column in parts.items()}
    late = pc.greater(flights["delay"], late_minutes).cast(pa.int8())
    columns = {LABEL: late, TIME: date.cast(pa.int64()), **{name: parts[name] for name in RAW}}
    for name, crossed in CROSSES.items():
        columns[name] = pc.binary_join_element_wise(*(parts[part] for part in crossed), " ")
    return pa.table(columns | {NUMBER: flights["distance"]})


def features_text(name: str) -> str:
    """Text of the features file of a log of this name."""
    lines = [f"# The columns of {name}: a features file for cowclip online.", f"label: {LABEL}"]
    lines += [f"time: {TIME}", "categorical:", *(f"- {column}" for column in CATEGORICAL)]
    return "\n".join([*lines, "continuous:", f"- {NUMBER}", ""])


def convert(given: Conversion) -> int:
    """Write the log and its features file; return the number of rows."""
    out, features = given.out, given.out.with_name(given.out.name + ".yaml")
    if out.suffix != ".parquet":
        raise InputError(f"{out}: the log is parquet; give a name that ends in .parquet")
    for file in (out, features):
        check_writable(file, overwrite=given.overwrite)
    flights = open_flights(given.flights)
    with atomic_write(out) as temporary:
        written = _write_log(flights, temporary, given.rows, given.late)
    with atomic_write(features) as temporary:
        temporary.write_text(features_text(out.name), encoding="utf-8")
    return written


def _write_log(flights: pq.ParquetFile, path: Path, rows: int | None, late_minutes: int) -> int:
    left = flights.metadata.num_rows if rows is None else rows
    schema = log_of(flights.schema_arrow.empty_table()).schema
    written = 0
    with pq.ParquetWriter(path, schema) as writer:
        for chunk in flights.iter_batches(_CHUNK, columns=list(_TYPES)):
            log = log_of(pa.table(chunk)[: left - written], late_minutes=late_minutes)
            writer.write_table(log)
            written += len(log)
            if written == left:
                break
    return written


def main(argv: Sequence[str] | None = None) -> int:
    """Convert the file; return 2 if the input is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, Conversion)
    args = parser.parse_args(argv)

    def run() -> None:
        given = settings_from(args, Conversion)
        print(f"{given.out}: {convert(given):,} rows, {len(CATEGORICAL)} categorical columns")

    return exit_code("flights", run)


if __name__ == "__main__":
    sys.exit(main())
