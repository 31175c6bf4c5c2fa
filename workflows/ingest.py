"""One pass over the input of `prepare`: rows are read, checked, split, encoded and staged.

Rows are split by their position alone, so that the split can stream. Only a split by a column of
times reads this column first.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin import choices
from cowclip_merlin.addresses import FilePath, size_of
from cowclip_merlin.checks import check_whole, one_of
from cowclip_merlin.errors import InputError
from cowclip_merlin.targets import Target
from cowclip_merlin.types import Array, JsonObject
from cowclip_merlin.workflows.parallel import Threads, cpu_threads
from cowclip_merlin.workflows.prepared.row_numbers import RowNumbers
from cowclip_merlin.workflows.raw.file_formats import PARQUET, TEXT, format_of, write_staged
from cowclip_merlin.workflows.raw.log_format import LogFormat
from cowclip_merlin.workflows.raw.parsed_rows import ParsedRows, Quarantine
from cowclip_merlin.workflows.raw.readers import (
    open_parquet,
    read_rows,
    reading_bar,
    staged_columns,
)
from cowclip_merlin.workflows.raw.text_lines import count_lines
from cowclip_merlin.workflows.raw.values.multi_values import beyond

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from cowclip_merlin.workflows.encoder import Encoder
    from cowclip_merlin.workflows.prepared.changes import ValueCounts


@dataclass(frozen=True, kw_only=True)
class Split:
    """How to split rows into train and test.

    Attributes:
        how: "random": by a seeded hash of the position; "time": the last rows are the test rows,
            by the log's column of times if it has one.
        test_fraction: share of test rows, in [0, 1); 0: all rows are training rows.
        seed: seed of the hash.

    Raises:
        InputError: if a value is unknown or out of range.
    """

    how: str = "random"
    test_fraction: float = 0.1
    seed: int = 1234

    def __post_init__(self) -> None:
        """Reject values that would leave no training rows."""
        one_of("split", self.how, choices.SPLIT_METHODS)
        if not 0 <= self.test_fraction < 1:
            raise InputError(f"`test_fraction` is {self.test_fraction}; give 0 or more, below 1")
        check_whole({"`seed`": self.seed})
        if self.seed < 0:
            raise InputError(f"`seed` is {self.seed}; it must not be negative")


def position_hash(position: Array, seed: int) -> Array:
    """Hash each row position to 64 random bits: splitmix64 (Steele et al., OOPSLA 2014)."""
    with np.errstate(over="ignore"):
        x = position + np.uint64(seed % 2**64) * np.uint64(0x9E3779B97F4A7C15)
        x = (x + np.uint64(0x9E3779B97F4A7C15)).astype(np.uint64)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def is_test(position: Array, split: Split, *, total: int | None = None) -> Array:
    """Return which rows are test rows, bool [n].

    >>> is_test(np.arange(5, dtype=np.uint64), Split(how="time", test_fraction=0.4), total=5)
    array([False, False, False,  True,  True])
    """
    if split.how == "time":
        return position >= np.uint64(round(total * (1 - split.test_fraction)))
    return position_hash(position, split.seed) < np.uint64(int(split.test_fraction * 2**64))


def first_test_time(times: npt.NDArray[np.int64], split: Split) -> int:
    """Return the time from which on rows are test rows: their share is nearest to that of `split`.

    Rows of one time stay together.

    Args:
        times: of all rows, in any order, [n].
        split: the share.

    Raises:
        InputError: if all times are equal.

    >>> first_test_time(np.array([5, 1, 3, 3, 3]), Split(how="time", test_fraction=0.4))
    5
    """
    found, counts = np.unique(times, return_counts=True)
    if len(found) < 2:
        raise InputError("all rows have the same time; use `split` random")
    before = np.cumsum(counts)[:-1]  # training rows, if the test rows begin with `found[i + 1]`
    wanted = len(times) * (1 - split.test_fraction)
    return int(found[1 + np.abs(before - wanted).argmin()])


@dataclass
class LabelCounts:
    """What is known of the labels of one target so far.

    Attributes:
        rows: split -> rows with a label.
        total: sum of the labels; of labels of 0 and 1 the number of ones.
        mean: of the training rows.
        squares: sum of the squared distances from this mean.
    """

    rows: Counter[str] = field(default_factory=Counter)
    total: float = 0.0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, split: str, labels: Array) -> None:
        """Count the labels of rows of a split, [n]; a missing one is NaN."""
        known = labels[~np.isnan(labels)].astype(np.float64)
        before = self.rows[split]
        self.rows[split] += len(known)
        self.total += known.sum().item()
        if split == "train" and len(known):  # as Chan et al. (1979), without large squares
            mean = known.mean().item()
            apart, share = mean - self.mean, len(known) / self.rows[split]
            self.mean += apart * share
            self.squares += np.square(known - mean).sum().item() + apart**2 * before * share

    @property
    def spread(self) -> float:
        """Standard deviation of the labels of the training rows; 1 if all are equal."""
        return math.sqrt(self.squares / max(self.rows["train"], 1)) or 1.0

    def check(self, target: Target, file: FilePath) -> None:
        """Check that a target can be learned."""
        every = sum(self.rows.values())
        if target.regression:
            wrong = "" if every else "has a label"
        else:
            ones = {"has label 1": self.total, "has label 0": every - self.total}
            wrong = next((words for words, count in ones.items() if not count), "")
        if wrong:
            needed = "numbers" if target.regression else "positive labels (1) and negative ones (0)"
            raise InputError(
                f"{file}: no row {wrong} in column {target.name!r}; a target needs {needed}"
            )

    def as_dict(self) -> JsonObject:
        """Return plain values for JSON."""
        rows = sum(self.rows.values())
        return {"rows": rows, "mean": self.total / rows if rows else None}


class Ingest:
    """One pass over the input files: rows are read, checked, split, encoded and staged.

    Args:
        log_format: columns of the log.
        split: how to split the rows; None puts every row into the test split.
        block_bytes: bytes of text per staged file.
        stage: folder for the staged files.
        numbers: gets the number of each row.
        encoder: encodes the rows to stage, in Arrow files; None stages text, in parquet.
        quarantine: the damaged lines.
        splits: names of all splits.
        counted: the split whose rows `values` counts.
        values: counts them.

    Attributes:
        inputs: name, bytes and SHA-256 of each input file.
        files: split -> staged files, in order.
        rows: split -> number of rows.
        clicks: rows with label 1, the first one of several; 0 if it is a number.
        targets: label -> counts, if there are several, or one is a number.
        total: rows in the input, without header lines.
        cut: multi-valued column -> values left out because their row had more than `max_values`.
        whole_floats: number of a block -> `whole_floats` of `staged_columns`.
        since: seconds since 1970 from which on rows are test rows; None: another split.
        in_order: whether the rows are in the order of their times, if `since` is known.
    """

    def __init__(
        self,
        log_format: LogFormat,
        split: Split | None,
        *,
        block_bytes: int,
        stage: Path,
        numbers: RowNumbers,
        encoder: Encoder | None,
        quarantine: Quarantine,
        splits: Sequence[str],
        counted: str,
        values: ValueCounts,
    ) -> None:
        self._format, self._split = log_format, split
        self._counted, self.values = counted, values
        self._block_bytes, self._stage, self._encoder = block_bytes, stage, encoder
        self.quarantine, self.numbers = quarantine, numbers
        self._first: dict[str | None, int] = {}  # split of its own -> rows before its first file
        self.inputs: list[JsonObject] = []
        self.files: dict[str, list[Path]] = {name: [] for name in splits}
        self.rows = dict.fromkeys(splits, 0)
        self._weights: Counter[str] = Counter()  # split -> rows with a weight above 0
        self.clicks = self.total = 0
        counted = log_format.labels if log_format.float_labels else ()
        self.targets = {name: LabelCounts() for name in counted}
        self.cut: Counter[str] = Counter()
        self.whole_floats: dict[int, dict[str, str]] = {}
        self.since: int | None = None
        self.in_order = True

    def run(
        self,
        files: Sequence[FilePath],
        given: Mapping[str, Sequence[FilePath]],
        meanwhile: Callable[[], object],
    ) -> None:
        """Read all files."""
        by_time = self._split is not None and self._split.how == "time"
        lines = None
        if by_time and self._format.time and self._split.test_fraction:
            self._find_first_test_time(files)
        if by_time and self.since is None:
            lines = sum(map(self._lines_of, files))
        for name in self.files:
            (self._stage / name).mkdir(parents=True)
        own = [(split, file) for split, some in given.items() for file in some]
        every, digests = [*((None, file) for file in files), *own], []
        with (
            Threads(cpu_threads()) as threads,
            Threads(1) as other,
            self.numbers.writing(),
            reading_bar([file for _, file in every]) as bar,
        ):
            for split, file in every:
                self._first.setdefault(split, self.total)
                digests.append(hashlib.sha256())
                how = {"coded": self._encoder is not None, "digest": digests[-1], "bar": bar}
                for parsed in read_rows(file, self._format, self._block_bytes, threads, **how):
                    if self.total == 0:
                        other.start(meanwhile)
                    self._add(parsed, file, split, lines, threads)
                if format_of(file) == PARQUET:  # which is not read in order
                    other.start(_hash_file, file, digests[-1])
            threads.finish()
            other.finish()
        self.inputs = [
            {"name": file.name, "bytes": size_of(file), "sha256": digest.hexdigest()}
            for (_, file), digest in zip(every, digests)
        ]
        self._check_end(files, given)

    def _find_first_test_time(self, files: Sequence[FilePath]) -> None:
        """Read the times of all files."""
        name, parts = self._format.time, []
        only = self._format.only(time=name)
        with Threads(cpu_threads()) as threads:
            for file in files:
                for rows in read_rows(file, only, self._block_bytes, threads):
                    known = rows.table[name].drop_null()
                    parts.append(np.asarray(known.cast("int64")))
        times = np.concatenate([np.empty(0, np.int64), *parts])
        parts.clear()  # 8 bytes a row
        if not len(times):  # all rows are damaged, as reading them will tell
            return
        try:
            self.since = first_test_time(times, self._split)
        except InputError as error:
            raise InputError(f"{files[0]}: column {name!r}: {error}") from None
        self.in_order = bool((times[1:] >= times[:-1]).all())

    def _lines_of(self, file: FilePath) -> int:
        kind = format_of(file)
        if kind == PARQUET:
            return open_parquet(file).metadata.num_rows
        return count_lines(file) - (kind == TEXT and self._format.header)

    def _add(
        self,
        parsed: ParsedRows,
        file: FilePath,
        split: str | None,
        lines: int | None,
        threads: Threads,
    ) -> None:
        """Count the rows of one block of a split, or split them; stage them on a thread."""
        position = parsed.positions + np.uint64(self.total)
        if split is None and self._split is not None:
            if self.since is None:
                test = is_test(position, self._split, total=lines)
            else:
                times = parsed.table[self._format.time].cast("int64")
                test = np.asarray(times.fill_null(self.since - 1)) >= self.since
            masks = {"train": ~test, "test": test}
        else:
            masks = {split or "test": np.ones(len(position), bool)}
        files = {}
        for name, mask in masks.items():
            count = int(np.count_nonzero(mask))
            self.rows[name] += count
            if count:
                self.numbers.add(name, (position - np.uint64(self._first[split]))[mask])
                suffix = "parquet" if self._encoder is None else "arrow"
                part = f"part-{len(self.files[name]):05d}.{suffix}"
                files[name] = self._stage / name / part
                self.files[name].append(files[name])
            if self._format.weight:
                weights = np.asarray(parsed.table[self._format.weight])[mask]
                self._weights[name] += int((weights.astype(np.float32) > 0).sum())
            for label, counts in self.targets.items():
                given = parsed.table[label].cast("float64").fill_null(np.nan)
                counts.add(name, np.asarray(given)[mask])
        if files:
            block = len(self.whole_floats)
            self.whole_floats[block] = {}
            threads.start(self._write, parsed.table, masks, files, block)
        first = self._format.label
        if not self.targets:
            self.clicks += int(np.asarray(parsed.table[first]).sum())
        elif first not in self._format.regression:
            self.clicks = int(self.targets[first].total)
        most = self._format.max_values
        for name in self._format.multi if most else ():
            self.cut[name] += beyond(parsed.table[name], most)
        self.total += parsed.lines
        self.quarantine.add(parsed.bad)
        self.quarantine.check(file, self.total)

    def _write(
        self,
        table: pa.Table,
        masks: Mapping[str, npt.NDArray[np.bool_]],
        files: Mapping[str, Path],
        block: int,
    ) -> None:
        """Write the rows of each mask, bool [n], to the file of its split."""
        import pyarrow as pa

        coded = self._encoder is not None
        table = staged_columns(table, self._format, self.whole_floats[block], coded=coded)
        if self._counted in files:
            self.values.add(table, masks[self._counted])
        if self._encoder:
            table = self._encoder.encode(table, masks, block)
        for split, path in files.items():
            write_staged(table.filter(pa.array(masks[split])), path)

    def _check_end(
        self, files: Sequence[FilePath], given: Mapping[str, Sequence[FilePath]]
    ) -> None:
        damaged = self.quarantine.count
        self.quarantine.check(files[-1], self.total, at_end=True)
        kept = sum(self.rows.values())
        if kept + damaged != self.total:
            raise RuntimeError(f"{self.total} rows in, but {kept} kept and {damaged} damaged")
        if kept == 0:
            raise InputError(f"{files[0]}: no rows; give a log with at least one row")
        for name, own in given.items():
            if not self.rows[name]:
                raise InputError(f"{own[0]}: no {name} rows; give a log with at least one row")
        for name, count in self.rows.items():
            if self._format.weight and count and not self._weights[name]:
                raise InputError(
                    f"{given.get(name, files)[0]}: all weights of the {name} rows are 0, in column "
                    f"{self._format.weight!r}; give rows with weights above 0"
                )
        if self._split is None:
            return
        for target in self._format.targets if self.targets else ():
            self.targets[target.name].check(target, files[0])
        for what, count in (("1", self.clicks), ("0", kept - self.clicks)):
            if count == 0 and not self.targets:
                raise InputError(
                    f"{files[0]}: no row has label {what}; a click log needs positive labels (1) "
                    "and negative ones (0)"
                )
        for name, count in self.rows.items():
            if count == 0 and (name == "train" or self._split.test_fraction):
                raise InputError(
                    f"{files[0]}: the {name} split is empty; change `test_fraction` or add rows"
                )


def _hash_file(file: FilePath, digest: hashlib._Hash) -> None:
    with file.open("rb") as stream:
        while part := stream.read(1 << 22):
            digest.update(part)
