"""Generate a log of events with times, drifting effects and a changing set of items.

It is for online training: a model that stops learning gets worse, because effects change and new
items appear every day. The true probability of every click is known, and so is the best AUC.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin.settings import option
from cowclip_merlin.synthetic.drifting_truth import (
    DAY,
    FIELDS,
    ITEM,
    ITEM_LIFE,
    SITE,
    START,
    DriftingTruth,
    DriftSettings,
)
from cowclip_merlin.synthetic.log_writer import (
    GeneratedLog,
    LogChunk,
    LogSize,
    LogWriter,
    auc_or_half,
    lines_of_columns,
)
from cowclip_merlin.synthetic.random_numbers import Words
from cowclip_merlin.system.files import atomic_write, check_writable
from cowclip_merlin.types import Integers
from cowclip_merlin.workflows.raw.log_format import separator_of

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

COLUMNS = ("click", "time", *(field.name for field in FIELDS), "price")
_PREFIXES = {ITEM: "i", SITE: "s"}  # letters of text ids; ids of other fields are integers


@dataclass(frozen=True, kw_only=True)
class DriftingLog(GeneratedLog):
    """Facts about a drifting log.

    Attributes:
        days: number of days that the log covers.
        new_items: number of new items on each day.
        features: name of the features file, in the folder of the log.
        bayes_auc_from_day: day, counted from 0 -> AUC of the true probabilities for the rows from
            the start of the day to the end of the log. It is the best possible AUC on these rows.
    """

    days: int
    new_items: int
    features: str
    bayes_auc_from_day: list[float]


@dataclass(frozen=True, kw_only=True)
class DriftingLogSize(LogSize):
    """Size and seed of a log with times.

    Raises:
        InputError: if a number is out of range.
    """

    days: int = option(7, "days that the log covers", metavar="D", at_least=1, at_most=100)


def generate_drifting(
    path: str | Path,
    *,
    rows: int,
    days: int = 7,
    seed: int = 1234,
    settings: DriftSettings | None = None,
    overwrite: bool = False,
    chunk_rows: int = 1 << 16,
) -> DriftingLog:
    """Write a log with a header, its features file `<name>.yaml`, and its facts `<name>.json`.

    Args:
        path: file to write; tabs separate columns if the name ends in .tsv or .txt, else commas;
            compressed if it ends in .gz after that.
        rows: number of rows.
        days: number of days, which the rows cover evenly.
        seed: seed of all random numbers.
        settings: sizes of the effects.
        overwrite: replace existing files.
        chunk_rows: rows generated at a time; the log does not depend on it.

    Raises:
        InputError: if rows, days or seed are out of range, or a file cannot be written.

    >>> import tempfile
    >>> log = generate_drifting(Path(tempfile.mkdtemp()) / "log.csv", rows=1000, days=2)
    >>> log.rows, log.features, log.bayes_auc > 0.6
    (1000, 'log.csv.yaml', True)
    """
    path = Path(path)
    size = DriftingLogSize(rows=rows, days=days, seed=seed)
    writer = LogWriter(path, size, overwrite=overwrite)
    features_path = path.with_name(path.name + ".yaml")
    check_writable(features_path, overwrite=overwrite)
    truth = DriftingTruth(rows, days, seed, settings or DriftSettings())
    separator = separator_of(path)

    def make(chunk: Words) -> LogChunk:
        times, ids, prices = truth.times(chunk), truth.ids(chunk), truth.prices(chunk)
        probabilities = truth.probabilities(times, ids, prices)
        clicks = truth.clicks(chunk, probabilities)
        text = _lines(clicks, times, ids, prices, separator)
        return LogChunk(clicks, probabilities, ids, text)

    header = f"{separator.join(COLUMNS)}\n".encode()
    log = writer.write(make, truth.sizes, chunk_rows=chunk_rows, header=header)
    with atomic_write(features_path) as temporary:
        # An item occurs on its first day and `ITEM_LIFE` days more.
        text = features_text(path.name, item_ttl=f"{ITEM_LIFE + 1}d")
        temporary.write_text(text, encoding="utf-8")
    facts = DriftingLog(
        **asdict(log),
        days=days,
        new_items=truth.new_items,
        features=features_path.name,
        bayes_auc_from_day=_auc_from_day(writer, truth),
    )
    writer.write_facts(facts)
    return facts


def _lines(
    clicks: npt.NDArray[np.int8], times: Integers, ids: Integers, prices: Integers, separator: str
) -> memoryview:
    import pyarrow as pa

    columns = [pa.array(clicks), pa.array(times)]
    columns += [values_of_ids(f, ids[:, f]) for f in range(len(FIELDS))]
    columns.append(pa.array(prices, mask=prices < 0))
    return lines_of_columns(columns, separator=separator)


def values_of_ids(field: int, ids: Integers) -> pa.Array:
    """Return a field's values as Arrow array: integers, or text of a letter and a number.

    Args:
        field: index in `FIELDS`.
        ids: counted from 1, [n]; 0 is a missing value.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    column, prefix = pa.array(ids, mask=ids == 0), _PREFIXES.get(field)
    if prefix is None:
        return column
    return pc.binary_join_element_wise(prefix, column.cast(pa.string()), "")


def features_text(name: str, *, item_ttl: str | None, key: str | None = None) -> str:
    """Return the features file of a drifting log.

    Args:
        name: of the log, for the first line.
        item_ttl: time after which an item cannot occur any more; None: items do not expire.
        key: column that identifies an event, if there is one.
    """
    lines = [f"# The columns of {name}: a features file for online training.", "label: click"]
    lines += ["time: time", *([f"key: {key}"] if key else []), "categorical:"]
    for f, field in enumerate(FIELDS):
        ttl = f"\n  ttl: {item_ttl}" if f == ITEM and item_ttl else ""
        lines.append(f"- name: {field.name}{ttl}" if ttl else f"- {field.name}")
    return "\n".join([*lines, "continuous:", "- price"]) + "\n"


def _auc_from_day(writer: LogWriter, truth: DriftingTruth) -> list[float]:
    times = truth.times(np.arange(writer.rows, dtype=np.uint64))
    starts = np.searchsorted(times, START + DAY * np.arange(truth.days))
    return [auc_or_half(writer.clicks[i:], writer.probabilities[i:]) for i in starts]
