"""Convert raw files to checked, split and staged files, one bounded block at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin.addresses import FilePath
from cowclip_merlin.errors import InputError
from cowclip_merlin.workflows.parallel import Threads, cpu_threads
from cowclip_merlin.workflows.raw.file_formats import (
    JSON_LINES,
    PARQUET,
    TEXT,
    format_of,
    write_staged,
)
from cowclip_merlin.workflows.raw.json_rows import read_json_rows
from cowclip_merlin.workflows.raw.log_format import LogFormat
from cowclip_merlin.workflows.raw.parquet_rows import count_rows, read_parquet_rows
from cowclip_merlin.workflows.raw.parsed_rows import BadLine, ParsedRows, Quarantine
from cowclip_merlin.workflows.raw.text_lines import count_lines
from cowclip_merlin.workflows.raw.text_rows import read_text_rows
from cowclip_merlin.workflows.raw.values.labels import LabelCounts
from cowclip_merlin.workflows.raw.values.multi_values import beyond
from cowclip_merlin.workflows.train_test_split import Split, is_test

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from cowclip_merlin.workflows.encoding.encoder import Encoder
    from cowclip_merlin.workflows.encoding.value_counts import ValueCounts


@dataclass
class IngestResult:
    """Counts of input and output rows, and the staged files.

    Attributes:
        files: split -> staged files, in order: Arrow files with codes, or parquet with text.
        rows: split -> number of rows.
        weights: split -> number of rows with a weight above 0, if the log has weights.
        clicks: rows with label 1, the first one of several; 0 if it is a number.
        targets: label -> counts, if there are several, or one is a number.
        total: rows in the input, without header lines.
        damaged: number of damaged rows.
        first_bad: the first damaged rows.
        cut: multi-valued column -> values left out because their row had more than `max_values`.
        whole_floats: number of a block -> `whole_floats` of `staged_columns`.
    """

    files: dict[str, list[Path]]
    rows: dict[str, int]
    weights: Counter[str] = field(default_factory=Counter)
    clicks: int = 0
    targets: dict[str, LabelCounts] = field(default_factory=dict)
    total: int = 0
    damaged: int = 0
    first_bad: list[BadLine] = field(default_factory=list)
    cut: Counter[str] = field(default_factory=Counter)
    whole_floats: dict[int, dict[str, str]] = field(default_factory=dict)


def check_input_files(files: Sequence[FilePath]) -> None:
    """Check before long work that input files exist.

    Raises:
        InputError: if one is a folder, or does not exist.
    """
    for file in files:
        if file.is_file():
            continue
        if file.is_dir():
            raise InputError(f"{file}: is a folder; give the files in it, such as {file}/*.parquet")
        raise InputError(f"{file}: no such file; check the path")


def read_rows(
    file: FilePath,
    log_format: LogFormat,
    block_bytes: int,
    threads: Threads,
    *,
    coded: bool = False,
    keep: Sequence[str] = (),
) -> Iterator[ParsedRows]:
    """Read and check a file of any kind in blocks.

    Args:
        file: text or JSON lines, plain or compressed, or parquet.
        log_format: columns of the log.
        block_bytes: about so many bytes of rows per block.
        threads: parse text on these.
        coded: whether text of ids gets a dictionary.
        keep: columns to return as they are, as `ParsedRows.kept`; those of text are in the table.

    Raises:
        InputError: if the file is missing, empty or damaged, or has other columns.
    """
    kind = format_of(file)
    if kind == JSON_LINES:
        return read_json_rows(file, log_format, block_bytes, keep=keep)
    if kind == PARQUET:
        of_vectors = 16 * sum(log_format.vectors.values())  # bytes, with their copies
        rows = max(1, block_bytes // (256 + of_vectors))
        return read_parquet_rows(file, log_format, rows, keep=keep)
    return read_text_rows(file, log_format.of_file(file), block_bytes, threads, coded=coded)


class Ingest:
    """One pass over the input files.

    Args:
        log_format: columns of the log.
        split: how to split the rows; None puts every row into the test split.
        max_bad_fraction: stop if the share of damaged rows exceeds this.
        block_bytes: bytes of text per staged file.
        stage: folder for the staged files.
        encoder: encodes the rows to stage, in Arrow files; None stages text, in parquet.
        quarantine: file for the damaged lines.
        meanwhile: call this on a thread of its own after the first rows are read.
        values: split -> counts its rows.
    """

    def __init__(
        self,
        log_format: LogFormat,
        split: Split | None,
        *,
        max_bad_fraction: float,
        block_bytes: int,
        stage: Path,
        encoder: Encoder | None,
        quarantine: Path,
        meanwhile: Callable[[], object],
        values: Mapping[str, ValueCounts],
    ) -> None:
        self.values = values
        self.log_format, self.split = log_format, split
        self.block_bytes, self.stage, self.encoder = block_bytes, stage, encoder
        self.meanwhile = meanwhile
        self._blocks = 0
        self.quarantine = Quarantine(quarantine, max_bad_fraction=max_bad_fraction)
        counted = log_format.labels if log_format.float_labels else ()
        self.result = IngestResult(
            files={split: [] for split in values},
            rows=dict.fromkeys(values, 0),
            targets={name: LabelCounts() for name in counted},
        )

    def run(
        self, files: Sequence[FilePath], given: Mapping[str, Sequence[FilePath]]
    ) -> IngestResult:
        """Read all files.

        Args:
            files: those to split.
            given: split -> files whose rows are all of this split.

        Raises:
            InputError: if a file is missing, empty or damaged, has other columns or too many
                damaged rows, or if all labels are equal.
        """
        from tqdm import tqdm

        total = sum(map(self._count, files)) if self._splits_by_time else None
        for name in self.values:
            (self.stage / name).mkdir(parents=True)
        with (
            Threads(cpu_threads()) as threads,
            Threads(1) as other,
            tqdm(desc="read", unit="row", disable=None, leave=False) as bar,
        ):
            for split, file in [
                *((None, file) for file in files),
                *((split, file) for split, own in given.items() for file in own),
            ]:
                coded = self.encoder is not None
                for parsed in read_rows(
                    file, self.log_format, self.block_bytes, threads, coded=coded
                ):
                    if self.result.total == 0:
                        other.start(self.meanwhile)
                    self._stage_rows(parsed, file, self._masks(parsed, split, total), threads)
                    bar.update(parsed.lines)
            threads.finish()
            other.finish()
        self._check_end(files, given)
        return self.result

    @property
    def _splits_by_time(self) -> bool:
        return self.split is not None and self.split.how == "time"

    def _count(self, file: FilePath) -> int:
        kind = format_of(file)
        if kind == PARQUET:
            return count_rows(file)
        return count_lines(file) - (kind == TEXT and self.log_format.header)

    def _masks(
        self, parsed: ParsedRows, split: str | None, total: int | None
    ) -> dict[str, npt.NDArray[np.bool_]]:
        """Return split -> its rows of a block, bool [n]; `split` has all, unless it is None."""
        position = parsed.positions + np.uint64(self.result.total)
        if split is not None:
            return {split: np.ones(len(position), bool)}
        if self.split is None:
            return {"test": np.ones(len(position), bool)}
        test = is_test(position, self.split, total=total)
        return {"train": ~test, "test": test}

    def _stage_rows(
        self,
        parsed: ParsedRows,
        file: FilePath,
        masks: Mapping[str, npt.NDArray[np.bool_]],
        threads: Threads,
    ) -> None:
        """Count the rows of one block; stage them on a thread."""
        result = self.result
        files = {name: self._next_file(name) for name, mask in masks.items() if mask.any()}
        if files:
            table, block = parsed.table, self._blocks
            whole = result.whole_floats[block] = {}
            more = (self.log_format, self.encoder, self.values, block, whole)
            threads.start(_write, table, masks, files, *more)
            self._blocks += 1
        for name, mask in masks.items():
            result.rows[name] += int(mask.sum())
            if self.log_format.weight:
                weights = np.asarray(parsed.table[self.log_format.weight])[mask]
                result.weights[name] += int((weights.astype(np.float32) > 0).sum())
            for label, counts in result.targets.items():
                given = parsed.table[label].cast("float64").fill_null(np.nan)
                counts.add(name, np.asarray(given)[mask])
        first = self.log_format.label
        if result.targets:
            number = first in self.log_format.regression
            result.clicks = 0 if number else int(result.targets[first].total)
        else:
            result.clicks += int(np.asarray(parsed.table[first]).sum())
        most = self.log_format.max_values
        for name in self.log_format.multi if most else ():
            result.cut[name] += beyond(parsed.table[name], most)
        result.total += parsed.lines
        self.quarantine.add(parsed.bad)
        result.damaged, result.first_bad = self.quarantine.count, self.quarantine.first
        self.quarantine.check(file, result.total)

    def _next_file(self, split: str) -> Path:
        files = self.result.files[split]
        suffix = "parquet" if self.encoder is None else "arrow"
        files.append(self.stage / split / f"part-{len(files):05d}.{suffix}")
        return files[-1]

    def _check_end(
        self, files: Sequence[FilePath], given: Mapping[str, Sequence[FilePath]]
    ) -> None:
        result = self.result
        self.quarantine.check(files[-1], result.total, at_end=True)
        kept = sum(result.rows.values())
        if kept + result.damaged != result.total:
            raise RuntimeError(
                f"{result.total} rows in, but {kept} kept and {result.damaged} damaged"
            )
        if kept == 0:
            raise InputError(f"{files[0]}: no rows; give a log with at least one row")
        for name, own in given.items():
            if not result.rows[name]:
                raise InputError(f"{own[0]}: no {name} rows; give a log with at least one row")
        for name, count in result.rows.items():
            if self.log_format.weight and count and not result.weights[name]:
                raise InputError(
                    f"{given.get(name, files)[0]}: all weights of the {name} rows are 0, in column "
                    f"{self.log_format.weight!r}; give rows with weights above 0"
                )
        if self.split is None:
            return
        for target in self.log_format.targets if result.targets else ():
            result.targets[target.name].check(target, files[0])
        for what, count in (("1", result.clicks), ("0", kept - result.clicks)):
            if count == 0 and not result.targets:
                raise InputError(
                    f"{files[0]}: no row has label {what}; a click log needs positive labels (1) "
                    "and negative ones (0)"
                )
        for name, count in result.rows.items():
            if count == 0 and (name == "train" or self.split.test_fraction):
                raise InputError(
                    f"{files[0]}: the {name} split is empty; change `test_fraction` or add rows"
                )


def _write(
    table: pa.Table,
    masks: Mapping[str, npt.NDArray[np.bool_]],
    files: Mapping[str, Path],
    log_format: LogFormat,
    encoder: Encoder | None,
    values: Mapping[str, ValueCounts],
    block: int,
    whole_floats: dict[str, str],
) -> None:
    """Write the rows of each mask to its file.

    Args:
        table: the rows.
        masks: split -> its rows, bool [n].
        files: split -> its file, if it has rows.
        log_format: columns of the log.
        encoder: encodes the rows; None writes text.
        values: split -> counts its rows.
        block: number of the block.
        whole_floats: as of `staged_columns`.
    """
    import pyarrow as pa

    table = staged_columns(table, log_format, whole_floats, coded=encoder is not None)
    for split in files:
        values[split].add(table, masks[split])
    if encoder:
        table = encoder.encode(table, masks, block)
    for split, path in files.items():
        write_staged(table.filter(pa.array(masks[split])), path)


def staged_columns(
    table: pa.Table, log_format: LogFormat, whole_floats: dict[str, str], *, coded: bool
) -> pa.Table:
    """Return the columns with the types to stage; with `coded`, categories have a dictionary.

    Texts such as "47.0" become "47", unless the log keeps the text of the column. `whole_floats`
    gets the first one of each such column.

    Numbers become float64, as pandas would do with Arrow's nullable integers. Integers above 2**53
    lose their last digits. The weight becomes float32; so do other labels than one of 0 and 1.
    Vectors stay as they are.
    """
    import pyarrow as pa

    table = table.unify_dictionaries().combine_chunks()
    return pa.table(
        {
            each.name: each.staged(table[each.name], coded=coded, whole=whole_floats)
            for each in log_format.roles
        }
    )
