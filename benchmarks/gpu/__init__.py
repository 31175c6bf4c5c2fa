"""The project's operations on a GPU without TensorFlow: built, checked against NumPy, timed."""

from typing import NamedTuple


class Sizes(NamedTuple):
    """Sizes of a run."""

    tiny: bool = False  # for an emulated GPU, or for a sanitizer
    many_ids: int = 33_800_000  # of all fields together
    few_ids: int = 1_000_000
    large: int = 131_072  # rows of a step
    small: int = 1024
    check: int = 512  # rows, ids and steps of a training that is compared with NumPy
    check_ids: int = 20_000
    steps: int = 40
    many_steps: int = 300  # of such a training with an eighth of the rows: ids miss more steps
    repeats: int = 5  # of the groups of a batch
    widths: tuple[int, ...] = (400, 400, 400)  # of the hidden layers


TINY = Sizes(True, 3000, 300, 160, 32, 64, 500, 6, 10, 1, (24, 16, 16))
