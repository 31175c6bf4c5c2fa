"""The project's operations on a GPU without TensorFlow: built, checked against NumPy, timed."""

from typing import NamedTuple


class Sizes(NamedTuple):
    """Sizes of a run.

    Attributes:
        tiny: whether they are for an emulated GPU, or for a sanitizer.
        many_ids, few_ids: ids of all fields together.
        large, small: rows of a step.
        check, check_ids, steps: rows, ids and steps of a training that is compared with NumPy.
        many_steps: steps of such a training with an eighth of the rows: ids miss more steps.
        repeats: how often a batch is grouped.
        widths: of the hidden layers.
    """

    tiny: bool = False
    many_ids: int = 33_800_000
    few_ids: int = 1_000_000
    large: int = 131_072
    small: int = 1024
    check: int = 512
    check_ids: int = 20_000
    steps: int = 40
    many_steps: int = 300
    repeats: int = 5
    widths: tuple[int, ...] = (400, 400, 400)


TINY = Sizes(True, 3000, 300, 160, 32, 64, 500, 6, 10, 1, (24, 16, 16))
