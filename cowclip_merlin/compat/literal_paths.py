"""Paths that TensorFlow takes as they are.

TensorFlow looks for the files of a checkpoint by a pattern, as a shell does. So it does not find
those in a folder `sweep[lr=1e-3]`, and Keras cannot save there.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from tempfile import TemporaryDirectory

_WILD = re.compile(r"[*?\[\]\\]")


def literal_path(path: str | Path) -> Path:
    """Return a path without characters that have a meaning in patterns, for the same file.

    If the path has some, this is a path through a link to its folder, which exists as long as this
    process.

    Args:
        path: of a file or folder; the folder that it is in exists.

    >>> literal_path("runs/lr=1e-3")
    PosixPath('runs/lr=1e-3')
    >>> _WILD.search(str(literal_path("/tmp/[a]*?/b[1]/ckpt-1"))) is None
    True
    """
    path = Path(path)
    if not _WILD.search(str(path)):
        return path
    if _WILD.search(path.name):
        return _link_to(path.absolute())
    return _link_to(path.parent.absolute()) / path.name


@functools.cache
def _links() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="cowclip-links-")


@functools.cache
def _link_to(folder: Path) -> Path:
    links = Path(_links().name)
    link = links / str(len(list(links.iterdir())))
    link.symlink_to(folder)
    return link
