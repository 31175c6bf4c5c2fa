"""Write snapshots of a training while it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cowclip_merlin.tables.snapshot import save_snapshot

Array = npt.NDArray[Any]


class SnapshotWriter:
    """Copies a state at once, and writes it to the disk in a thread.

    Args:
        folder: of the snapshots.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="snapshot")
        self._writing: Future[Path] | None = None

    @property
    def busy(self) -> bool:
        """Whether a snapshot was begun that `finished` has not returned."""
        return self._writing is not None

    def begin(self, number: int, arrays: Mapping[str, Array], extra: Any) -> None:
        """Begin to write a snapshot; `finished` tells when it is on the disk.

        Args:
            number: of the snapshot.
            arrays: by name; they may change when this returns.
            extra: JSON.
        """
        copies = {name: np.array(x) for name, x in arrays.items()}
        self._writing = self._threads.submit(save_snapshot, self._folder, number, copies, extra)

    def finished(self, *, wait: bool = False) -> int | None:
        """Return the number of a snapshot that is on the disk since the last call, or None.

        Raises:
            InputError, OSError: it could not be written.
        """
        if self._writing is None or not (wait or self._writing.done()):
            return None
        writing, self._writing = self._writing, None
        return int(writing.result().name)

    def close(self) -> None:
        """End the thread when it has written what it began."""
        self._threads.shutdown(wait=True)
