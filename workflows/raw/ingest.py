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
from cowclip_merlin.workflows.raw.text_blocks import Block, count_lines, read_blocks
from cowclip_merlin.workflows.raw.text_lines import BadLine, LineParser, ParsedRows, read_header
from cowclip_merlin.workflows.raw.train_test_split import Split, is_test

SHOWN_BAD_LINES = 20
_MIN_ROWS_TO_JUDGE = 1000  # rows to read before the share of damaged rows is checked


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
        self.max_bad_fraction, self.block_bytes = max_bad_fraction, block_bytes
        self.stage, self.quarantine = stage, quarantine
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
        return self._text(file)

    def _text(self, file: Path) -> Iterator[ParsedRows]:
        parser = None
        for block in read_blocks(file, self.block_bytes):
            if parser is None:
                columns, block = self._columns(file, block)
                parser = LineParser(self.log_format, file, columns)
            if not block.text:
                continue
            lines = block.text.count(b"\n")
            table, positions, bad = parser.parse(block, self._allowed_bad_lines(lines))
            yield ParsedRows(table, positions.astype(np.uint64), lines, bad)

    def _allowed_bad_lines(self, lines: int) -> int | None:
        """Return how many of the next lines may be damaged before reading stops at once."""
        total = self.result.total + lines
        if total < _MIN_ROWS_TO_JUDGE:
            return None
        return max(0, int(self.max_bad_fraction * total) - self.result.quarantined)

    def _columns(self, file: Path, block: Block) -> tuple[list[str], Block]:
        """Return the columns of the file, and the block without its header."""
        first, _, rest = block.text.partition(b"\n")
        if self.log_format.header:
            columns = read_header(first.removesuffix(b"\r"), self.log_format, file)
            return columns, Block(block.first_line + 1, rest)
        columns = list(self.log_format.file_columns)
        found = first.count(self.log_format.separator.encode()) + 1
        if found != len(columns) and not any(
            line.count(self.log_format.separator.encode()) + 1 == len(columns)
            for line in rest.split(b"\n", 100)[:100]
        ):
            raise InputError(
                f"{file}: line 1 has {found} columns, but a {self.log_format.kind} log has "
                f"{len(columns)}; check the kind and the file"
            )
        return columns, block

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
        self._write_quarantine(parsed.bad)
        if result.total >= _MIN_ROWS_TO_JUDGE:
            self._check_bad_fraction(file)

    def _write(self, split: str, table: Any) -> None:
        import pyarrow.parquet as pq

        if table.num_rows == 0:
            return
        files = self.result.files[split]
        path = self.stage / split / f"part-{len(files):05d}.parquet"
        pq.write_table(_as_floats(table, self.log_format), path)
        files.append(path)
        self.result.rows[split] += table.num_rows

    def _write_quarantine(self, bad: list[BadLine]) -> None:
        if not bad:
            return
        self.quarantine.parent.mkdir(exist_ok=True)
        with self.quarantine.open("ab") as file:
            for line in bad:
                head = f"{line.file}\t{line.line}\t{line.reason}\t".encode()
                file.write(head + line.text + b"\n")
        self.result.quarantined += len(bad)
        room = SHOWN_BAD_LINES - len(self.result.first_bad)
        self.result.first_bad += bad[:room]

    def _check_bad_fraction(self, file: Path) -> None:
        result = self.result
        if result.quarantined > self.max_bad_fraction * result.total:
            first = result.first_bad[0]
            raise InputError(
                f"{file}: {result.quarantined} or more of {result.total} rows are damaged, above "
                f"{self.max_bad_fraction:.2%}; the first is {first.file}:{first.line}: "
                f"{first.reason}; repair the file or raise --max-bad-fraction"
            )

    def _check_end(self, files: Sequence[Path]) -> None:
        result = self.result
        self._check_bad_fraction(files[-1])
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
