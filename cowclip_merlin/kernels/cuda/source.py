"""The CUDA C++ of the kernels, which NVRTC compiles on the machine that runs them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent
"""Folder of the sources. `shared.h` is also included by the operations that launch the kernels."""

TILES = (1, 2, 4, 8, 16, 32)
SEGMENT = 128
"""As in shared.h: most occurrences of an id that one tile sums."""


@cache
def program(*names: str) -> str:
    """Return shared.h, common.cuh and files after them as one source.

    Args:
        names: of the files, without `.cuh`; each says what it follows.
    """
    files = ("shared.h", *(f"{name}.cuh" for name in ("common", *names)))
    return "\n".join((FOLDER / file).read_text(encoding="utf-8") for file in files)


def tile_of(d: int) -> int:
    """Return the lanes per row: the smallest tile for a row of length d, at most a warp.

    >>> [tile_of(d) for d in (1, 3, 16, 33, 128)]
    [1, 4, 16, 32, 32]
    """
    return next((tile for tile in TILES if tile >= d), TILES[-1])


def options(d: int, tile: int, *, bfloat16: bool = False) -> tuple[str, ...]:
    """Return the compiler options, which NVRTC and nvcc share.

    Products and sums are not fused, so each operation of Adam rounds as on the CPU. But CuPy adds
    `-ftz=true`: numbers below 1.2e-38 are 0.

    Args:
        d: length of a row.
        tile: lanes per row.
        bfloat16: whether gradients are bfloat16.

    >>> options(100, 32)
    ('--fmad=false', '-DTILE=32', '-DPER=4', '-DBFLOAT16=0')
    """
    per = max(1, -(-d // tile))
    return ("--fmad=false", f"-DTILE={tile}", f"-DPER={per}", f"-DBFLOAT16={int(bfloat16)}")
