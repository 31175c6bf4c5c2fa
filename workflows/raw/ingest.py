"""Convert raw files to checked and split parquet files, one bounded block at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cowclip_merlin.errors import InputError
from cowclip_merlin.workflows.raw.log_format import LogFormat
from cowclip_merlin.workflows.raw.parquet_rows import count_rows, read_parquet_rows
from cowclip_merlin.workflows.raw.parsed_rows import BadLine, ParsedRows
from cowclip_merlin.workflows.raw.quarantine import Quarantine
from cowclip_merlin.workflows.raw.text_blocks import count_lines
from cowclip_merlin.workflows.raw.text_rows import read_text_rows
from cowclip_merlin.workflows.raw.train_test_split import Split, is_test


@dataclass
class IngestResult:
    """Counts of input and output rows, and the staged files.

    Attributes:
        files: split -> staged parquet files, in order.
        rows: split -> number of rows.
        clicks: rows with label 1.
        total: rows in the input, without header lines.
        quarantined: number of damaged rows.
        first_bad: the first damaged rows.
    """

    files: dict[str, list[Path]] = field(default_factory=lambda: {"train": [], "test": []})
    rows: dict[str, int] = field(default_factory=lambda: {"train": 0, "test": 0})
    clicks: int = 0
    total: int = 0
    quarantined: int = 0
    first_bad: list[BadLine] = field(default_factory=list)


class Ingest:
    """One pass over the input files.

    Args:
        log_format: columns of the log.
        split: how to split the rows; None puts every row into the test split.
        max_bad_fraction: stop if the share of damaged rows exceeds this.
        block_bytes: bytes of text per staged file.
        stage: folder for the staged files.
        quarantine: file for the damaged lines.
    """

    def __init__(
        self,
        log_format: LogFormat,
        split: Split | None,
        *,
        max_bad_fraction: float,
        block_bytes: int,
        stage: Path,
        quarantine: Path,
    ) -> None:
        self.log_format, self.split = log_format, split
        self.block_bytes, self.stage = block_bytes, stage
        self.quarantine = Quarantine(quarantine, max_bad_fraction=max_bad_fraction)
        self.result = IngestResult()

    def run(self, files: Sequence[Path]) -> IngestResult:
        """Read all files.

        Raises:
            InputError: if a file is missing, empty or damaged, has other columns or too many
                damaged rows, or if all labels are equal.
        """
        from tqdm import tqdm

        total = sum(map(self._count, files)) if self._splits_by_time else None
        for name in ("train", "test"):
            (self.stage / name).mkdir(parents=True)
        with tqdm(desc="read", unit="row", disable=None, leave=False) as bar:
            for file in files:
                for parsed in self._read_rows(file):
                    self._stage_rows(parsed, file, total)
                    bar.update(parsed.lines)
        self._check_end(files)
        return self.result

    @property
    def _splits_by_time(self) -> bool:
        return self.split is not None and self.split.how == "time"

    def _count(self, file: Path) -> int:
        if file.suffix == ".parquet":
            return count_rows(file)
        return count_lines(file) - self.log_format.header

    def _read_rows(self, file: Path) -> Iterator[ParsedRows]:
        if file.suffix == ".parquet":
            return read_parquet_rows(file, self.log_format, max(1, self.block_bytes // 256))
        return read_text_rows(file, self.log_format, self.block_bytes, self._allowed_bad_lines)

    def _allowed_bad_lines(self, lines: int) -> int | None:
        """Return how many of the next `lines` may be damaged; None: no limit yet."""
        return self.quarantine.allowed(self.result.total + lines)

    def _stage_rows(self, parsed: ParsedRows, file: Path, total: int | None) -> None:
        """Split, stage and count the rows of one block."""
        result = self.result
        position = parsed.positions + np.uint64(result.total)
        test = (
            np.ones(len(position), bool)
            if self.split is None
            else is_test(position, self.split, total=total)
        )
        for name, mask in (("train", ~test), ("test", test)):
            self._write(name, parsed.table.filter(mask))
        result.clicks += int(np.asarray(parsed.table[self.log_format.label]).sum())
        result.total += parsed.lines
        self.quarantine.add(parsed.bad)
        result.quarantined, result.first_bad = self.quarantine.count, self.quarantine.first
        self.quarantine.check(file, result.total)

    def _write(self, split: str, table: Any) -> None:
        import pyarrow.parquet as pq

        if table.num_rows == 0:
            return
        files = self.result.files[split]
        path = self.stage / split / f"part-{len(files):05d}.parquet"
        pq.write_table(_as_floats(table, self.log_format), path)
        files.append(path)
        self.result.rows[split] += table.num_rows

    def _check_end(self, files: Sequence[Path]) -> None:
        result = self.result
        self.quarantine.check(files[-1], result.total, at_end=True)
        kept = sum(result.rows.values())
        if kept + result.quarantined != result.total:
            raise RuntimeError(
                f"{result.total} rows in, but {kept} kept and {result.quarantined} quarantined"
            )
        if kept == 0:
            raise InputError(f"{files[0]}: no rows; give a log with at least one row")
        if self.split is None:
            return
        for what, count in (("1", result.clicks), ("0", kept - result.clicks)):
            if count == 0:
                raise InputError(
                    f"{files[0]}: no row has label {what}; a click log needs positive labels (1) "
                    "and negative ones (0)"
                )
        for name, count in result.rows.items():
            if count == 0:
                raise InputError(
                    f"{files[0]}: the {name} split is empty; change --test-fraction or add rows"
                )


def _as_floats(table: Any, log_format: LogFormat) -> Any:
    """Cast numbers to float64, as pandas would do with Arrow's nullable integers.

    Integers above 2**53 lose their last digits.
    """
    import pyarrow as pa

    names = [log_format.label, *log_format.categorical, *log_format.continuous]
    types = {log_format.label: pa.int8()} | dict.fromkeys(log_format.continuous, pa.float64())
    types |= dict.fromkeys(log_format.categorical, pa.string())
    schema = pa.schema([(name, types[name]) for name in names])
    return table.select(names).cast(schema, safe=False)
