"""Write snapshots beside a training, which waits only until its state is copied.

Where half of the free memory is too small for the copy, it waits until the snapshot is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event

import numpy as np

from cowclip_merlin.errors import InputError
from cowclip_merlin.system.machine import bytes_left
from cowclip_merlin.tables.snapshot import (
    KEEP,
    WORKERS,
    numbers,
    part_folder,
    remove_parts,
    save_snapshot,
)
from cowclip_merlin.types import Array, ArrayOrTensor, Json, JsonObject

_PAUSE = 0.02  # seconds between two looks for parts
_ALL = 1 << 30  # worker 0 removes the parts of others


class SnapshotWriter:
    """Copies a state at once, and writes it to the disk in a thread.

    Args:
        folder: of the snapshots.
        keep: complete snapshots that stay.
        rank: number of this worker.
        workers: how many write parts; worker 0 waits for the parts of the others.
        copy: is called with the number of each snapshot, to copy it; None for none.

    Attributes:
        problem: why the last snapshot could not be copied; None if it was.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep: int = KEEP,
        rank: int = 0,
        workers: int = 1,
        copy: Callable[[int], None] | None = None,
    ) -> None:
        self._folder, self._copy = part_folder(folder, rank, workers), copy
        self._keep, self._workers = _ALL if rank else keep, workers
        self._others = [] if rank else [part_folder(folder, q, workers) for q in range(1, workers)]
        self.problem: InputError | None = None
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="snapshot")
        self._writing: Future[int] | None = None
        self._closed = Event()

    @property
    def busy(self) -> bool:
        """Whether a snapshot was begun that `finished` has not returned."""
        return self._writing is not None

    @property
    def is_writing(self) -> bool:
        """Whether a snapshot was begun that is neither on the disk nor failed."""
        return self._writing is not None and not self._writing.done()

    @property
    def failed(self) -> bool:
        """Whether `finished` will raise the error of the snapshot that was begun."""
        return self.busy and not self.is_writing and self._writing.exception() is not None

    def begin(
        self,
        number: int,
        arrays: Mapping[str, ArrayOrTensor],
        extra: JsonObject,
        then: Callable[[int], None] | None = None,
    ) -> None:
        """Begin to write a snapshot; `finished` tells when it is on the disk.

        Args:
            number: of the snapshot.
            arrays: by name; they may change when this returns.
            extra: JSON.
            then: is called in the thread with the number of the snapshot on the disk.
        """
        extra = extra | ({WORKERS: self._workers} if self._others else {})
        memory = {name: np.asarray(x) for name, x in arrays.items()}
        at_once = 2 * sum(x.nbytes for x in memory.values()) > bytes_left()
        kept = memory if at_once else {name: x.copy() for name, x in memory.items()}
        written = Event()
        self._writing = self._threads.submit(self._save, number, kept, extra, written, then)
        if at_once:
            written.wait()

    def _save(
        self,
        number: int,
        arrays: Mapping[str, Array],
        extra: Json,
        written: Event,
        then: Callable[[int], None] | None,
    ) -> int:
        def wait_for_parts() -> None:
            written.set()
            while not all(number in numbers(part) for part in self._others):
                if self._closed.wait(_PAUSE):
                    problem = f"another worker did not write snapshot {number}"
                    raise InputError(f"{self._folder}: {problem}")

        try:
            keep, wait = self._keep, wait_for_parts
            save_snapshot(self._folder, number, arrays, extra, keep=keep, written=wait)
        finally:
            written.set()
        remove_parts(self._folder, lambda known: known < min(numbers(self._folder)))
        self.problem = None
        if self._copy is not None:
            try:
                self._copy(number)
            except InputError as error:  # the one on the disk is whole
                self.problem = error
        if then is not None:
            then(number)
        return number

    def finished(self, *, wait: bool = False) -> int | None:
        """Return the number of a snapshot that is on the disk since the last call, or None.

        Raises:
            InputError, OSError: it could not be written.
        """
        if self._writing is None or not (wait or self._writing.done()):
            return None
        writing, self._writing = self._writing, None
        return writing.result()

    def close(self) -> None:
        """End the thread when it has written what it began, or waits for other workers."""
        self._closed.set()
        self._threads.shutdown(wait=True)
