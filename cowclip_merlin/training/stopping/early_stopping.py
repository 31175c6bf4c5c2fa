"""Stop a run whose validation score no longer improves, and keep its best weights.

`checkpoints/best/ckpt-K` is a copy of the checkpoint after scoring K. The one with the largest K is
the best. The folder may also hold the one that was best a scoring earlier: a resumption needs it if
the last checkpoint is damaged.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from cowclip_merlin.errors import InputError
from cowclip_merlin.system.files import atomic_write
from cowclip_merlin.training.checkpoint import Checkpoints
from cowclip_merlin.training.stopping.best_epoch import (
    Rows,
    best_folder,
    best_index,
    kept_scorings,
)
from cowclip_merlin.training.stopping.plateau import scorings_without_better
from cowclip_merlin.workers.agreement import numbers_of_all, wait_for_all

if TYPE_CHECKING:
    from cowclip_merlin.training.run_settings import RunSettings
    from cowclip_merlin.workers import Workers

_FILE = re.compile(r"ckpt-(\d+)\.(?:index|data-.*)")


class EarlyStopping:
    """Keeps the best weights of a run and tells when it stops; without patience, does nothing.

    A scoring is better only if its validation AUC is higher (or its log loss lower), as in Keras's
    `EarlyStopping` with `restore_best_weights=True`. If the first target is a number, its root mean
    squared error must be lower. All workers follow worker 0.

    Args:
        run: the run folder.
        settings: of the run.
        checkpoints: the last checkpoints of the run.
        group: this process and the others.
    """

    def __init__(
        self, run: Path, settings: RunSettings, checkpoints: Checkpoints, group: Workers | None
    ) -> None:
        self._run, self._settings = run, settings
        self._patience = settings.early_stopping
        self._checkpoints, self._workers = checkpoints, group
        self._is_first = group is None or group.is_first

    def stops(self, rows: Rows) -> bool:
        """Return whether a run with these rows of metrics trains no further."""
        if self._patience is None or not rows:
            return False
        waited = scorings_without_better(rows, self._settings)
        return numbers_of_all(self._workers, waited)[0] >= self._patience

    def keep(self, rows: Rows) -> None:
        """Copy the checkpoint just saved if it is the best; then remove older copies.

        Raises:
            OSError: if the disk is full, or the folder is not writable.
        """
        if self._patience is None:
            return
        best = self._best(rows)
        if best == len(rows):
            self._copy_saved(best)
        if self._is_first:
            before = [self._best_of(rows[:-1])] if rows[:-1] else []
            _remove_all_but(best_folder(self._run), [best, *before])

    def resume(self, rows: Rows, scored: int, *, at_scoring: bool) -> None:
        """Check that a run can continue from a checkpoint, and that it has its best weights.

        Args:
            rows: the rows of metrics up to the checkpoint.
            scored: scorings up to the checkpoint.
            at_scoring: whether the checkpoint is that of the last of them.

        Raises:
            InputError: if the metrics of a scoring or the best checkpoint is missing.
        """
        if self._patience is None and self._settings.lr_schedule != "plateau":
            return
        if len(rows) != scored:
            raise InputError(
                f"{self._run / 'metrics.csv'}: early stopping and a plateau need the metrics of "
                f"all {scored} scorings so far; restore a copy, or train again with another `out`"
            )
        if self._patience is None:
            return
        if self._is_first:
            _remove_all_but(best_folder(self._run), range(scored + 1))
        if not rows:
            return
        best = self._best(rows)
        if numbers_of_all(self._workers, best in kept_scorings(self._run))[0]:
            return
        if best != scored or not at_scoring:
            raise InputError(
                f"{best_folder(self._run)}: no checkpoint of epoch {rows[best - 1]['epoch']:.6g}, "
                "the best so far; restore a copy, or train again with another `out`"
            )
        self._checkpoints.save()  # the run was killed before it had copied this checkpoint
        self._copy_saved(best)

    def _best_of(self, rows: Rows) -> int:
        return best_index(rows, "validation", self._settings.monitor) + 1

    def _best(self, rows: Rows) -> int:
        """Return the number of the best scoring, from 1, that worker 0 has found."""
        return int(numbers_of_all(self._workers, self._best_of(rows))[0])

    def _copy_saved(self, scoring: int) -> None:
        """Copy what this worker has just saved; the files of worker 0 make the others valid."""
        if not self._is_first:
            self._copy_own(scoring)
        wait_for_all(self._workers)
        if self._is_first:
            self._copy_own(scoring)

    def _copy_own(self, scoring: int) -> None:
        if self._checkpoints.saved is None:  # only worker 0 saves
            return
        saved, folder = Path(self._checkpoints.saved), best_folder(self._run)
        target = folder / saved.parent.relative_to(folder.parent)
        target.mkdir(parents=True, exist_ok=True)
        # The index comes last: without it, there is no checkpoint.
        for file in sorted(saved.parent.glob(f"{glob.escape(saved.name)}.*")):
            _copy(file, target / f"ckpt-{scoring}{file.suffix}")


def _copy(file: Path, target: Path) -> None:
    """Copy a file of a checkpoint, without using more of the disk if it is a large one."""
    target.unlink(missing_ok=True)  # left by a process that was killed
    if file.suffix != ".index":  # TensorFlow may write an index in place, but no data
        try:
            os.link(file, target)
        except OSError:  # a disk without hard links
            pass
        else:
            return
    with atomic_write(target) as temporary:
        shutil.copyfile(file, temporary)


def _remove_all_but(folder: Path, scorings: Collection[int]) -> None:
    """Remove the checkpoints of other scorings, those of worker 0 first."""
    files = sorted(folder.rglob("ckpt-*"), key=lambda x: (len(x.parts), x.suffix != ".index"))
    for file in files:
        found = _FILE.fullmatch(file.name)
        if found and int(found[1]) not in scorings:
            file.unlink()
