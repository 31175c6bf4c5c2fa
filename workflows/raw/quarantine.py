"""Damaged lines: counted, written to a file, and refused when they are too many."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cowclip_merlin.errors import InputError
from cowclip_merlin.workflows.raw.parsed_rows import BadLine

SHOWN_BAD_LINES = 20
_MIN_ROWS_TO_JUDGE = 1000  # rows before the share of bad ones is judged


class Quarantine:
    """The damaged lines of a log.

    Args:
        file: where to append them; None only counts them.
        max_bad_fraction: share of damaged rows above which `check` raises.
        written: rows that an earlier pass over the same log wrote, which are not written again.

    Attributes:
        count: damaged rows so far.
        first: the first of them.
        written: rows of the log that are in the file.
    """

    def __init__(self, file: Path | None, *, max_bad_fraction: float, written: int = 0) -> None:
        self.file, self.max_bad_fraction = file, max_bad_fraction
        self.count, self.first, self.written = 0, [], written

    def add(self, bad: Sequence[BadLine]) -> None:
        """Count these lines and write them."""
        new = bad[max(self.written - self.count, 0) :]
        self.count += len(bad)
        self.first += bad[: SHOWN_BAD_LINES - len(self.first)]
        if not new or self.file is None:
            return
        self.file.parent.mkdir(exist_ok=True)
        with self.file.open("ab") as stream:
            for line in new:
                head = f"{line.file}\t{line.line}\t{line.reason}\t".encode()
                stream.write(head + line.text + b"\n")
        self.written = self.count

    def allowed(self, total: int) -> int | None:
        """Damaged lines that may come until there are `total` rows; None before it is judged."""
        if total < _MIN_ROWS_TO_JUDGE:
            return None
        return max(0, int(self.max_bad_fraction * total) - self.count)

    def check(self, file: Path, total: int, *, at_end: bool = False) -> None:
        """Refuse too large a share of damaged rows.

        Args:
            file: that is read, for the message.
            total: rows so far; few are judged only at the end.
            at_end: whether these are all rows.

        Raises:
            InputError: there are too many.
        """
        if total < _MIN_ROWS_TO_JUDGE and not at_end:
            return
        if self.count > self.max_bad_fraction * total:
            first = self.first[0]
            raise InputError(
                f"{file}: {self.count} or more of {total} rows are damaged, above "
                f"{self.max_bad_fraction:.2%}; the first is {first.file}:{first.line}: "
                f"{first.reason}; repair the file or raise --max-bad-fraction"
            )
