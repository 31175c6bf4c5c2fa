"""Stop a run whose validation AUC no longer rises, and keep the weights of its best epoch.

`checkpoints/best/ckpt-K` is a copy of the checkpoint after epoch K. The one with the largest K is
the best. The folder may also hold the one that was best an epoch earlier: a resumption needs it if
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
from cowclip_merlin.training.stopping.best_epoch import Rows, best_folder, best_row, kept_epochs
from cowclip_merlin.workers.agreement import numbers_of_all, wait_for_all

if TYPE_CHECKING:
    from cowclip_merlin.workers import Workers

_FILE = re.compile(r"ckpt-(\d+)\.(?:index|data-.*)")


class EarlyStopping:
    """Keeps the best epoch of a run and tells when the run stops; without patience, does nothing.

    An epoch is better only if its validation AUC is higher, as in Keras's `EarlyStopping` with
    `mode="max"` and `restore_best_weights=True`. If the first target is a number, its root mean
    squared error must be lower. All workers follow worker 0.

    Args:
        run: the run folder.
        patience: epochs without a better one after which the run stops; None: it does not.
        checkpoints: the last checkpoints of the run.
        group: this process and the others.
    """

    def __init__(
        self, run: Path, patience: int | None, checkpoints: Checkpoints, group: Workers | None
    ) -> None:
        self._run, self._patience = run, patience
        self._checkpoints, self._workers = checkpoints, group
        self._is_first = group is None or group.is_first

    def stops(self, rows: Rows) -> bool:
        """Return whether a run with these rows of metrics trains no further epoch."""
        if self._patience is None or not rows:
            return False
        return rows[-1]["epoch"] - self._best(rows) >= self._patience

    def keep(self, rows: Rows) -> None:
        """Copy the checkpoint just saved if its epoch is the best; then remove older copies.

        Raises:
            OSError: if the disk is full, or the folder is not writable.
        """
        if self._patience is None:
            return
        best = self._best(rows)
        if best == rows[-1]["epoch"]:
            self._copy_saved(best)
        if self._is_first:
            before = [best_row(rows[:-1], "validation")["epoch"]] if rows[:-1] else []
            _remove_all_but(best_folder(self._run), [best, *before])

    def resume(self, rows: Rows, done: int, step: int) -> None:
        """Check that a run can continue from a checkpoint, and that it has its best epoch.

        Args:
            rows: the rows of metrics up to the checkpoint.
            done: epochs finished.
            step: steps done in the next epoch.

        Raises:
            InputError: if the metrics of an epoch or the checkpoint of the best one is missing.
        """
        if self._patience is None:
            return
        if [row["epoch"] for row in rows] != list(range(1, done + 1)):
            raise InputError(
                f"{self._run / 'metrics.csv'}: early stopping needs the metrics of all {done} "
                "finished epochs; restore a copy, or train again with another `out`"
            )
        if self._is_first:
            _remove_all_but(best_folder(self._run), range(done + 1))
        if not rows:
            return
        best = self._best(rows)
        if numbers_of_all(self._workers, best in kept_epochs(self._run))[0]:
            return
        if (best, 0) != (done, step):
            raise InputError(
                f"{best_folder(self._run)}: no checkpoint of epoch {best}, the best so far; "
                "restore a copy, or train again with another `out`"
            )
        self._checkpoints.save()  # the run was killed before it had copied this checkpoint
        self._copy_saved(best)

    def _best(self, rows: Rows) -> int:
        return int(numbers_of_all(self._workers, best_row(rows, "validation")["epoch"])[0])

    def _copy_saved(self, epoch: int) -> None:
        """Copy what this worker has just saved; the files of worker 0 make the others valid."""
        if not self._is_first:
            self._copy_own(epoch)
        wait_for_all(self._workers)
        if self._is_first:
            self._copy_own(epoch)

    def _copy_own(self, epoch: int) -> None:
        if self._checkpoints.saved is None:  # only worker 0 saves
            return
        saved, folder = Path(self._checkpoints.saved), best_folder(self._run)
        target = folder / saved.parent.relative_to(folder.parent)
        target.mkdir(parents=True, exist_ok=True)
        # The index comes last: without it, there is no checkpoint.
        for file in sorted(saved.parent.glob(f"{glob.escape(saved.name)}.*")):
            _copy(file, target / f"ckpt-{epoch}{file.suffix}")


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


def _remove_all_but(folder: Path, epochs: Collection[int]) -> None:
    """Remove the checkpoints of other epochs, those of worker 0 first."""
    files = sorted(folder.rglob("ckpt-*"), key=lambda x: (len(x.parts), x.suffix != ".index"))
    for file in files:
        found = _FILE.fullmatch(file.name)
        if found and int(found[1]) not in epochs:
            file.unlink()
