"""Rows with lists, and weights of a DeepFM on them: what three packages compute from these."""

import numpy as np

ONE_ID = {"a": 7, "b": 4}
LISTS = {"c": 6, "d": 9}
FIELDS = ONE_ID | LISTS  # DeepCTR's order, columns with one id per row first, and Merlin's, by name
NUMBERS = ("x", "y")
DIM, WIDTHS = 4, (8, 5)
ROWS = {
    "a": [1, 6, 1, 0, 3],
    "b": [3, 3, 0, 1, 2],
    "c": [[1, 1, 5], [0], [], [4, 2, 2, 2], [3, 3]],
    "d": [[], [8, 7, 8, 0], [5], [6, 6], [1, 2, 3]],
    "x": [0.5, -1.0, 0.25, 2.0, 0.0],
    "y": [1.0, 0.75, -0.5, 0.0, 1.5],
}
LABELS = np.array([1, 0, 0, 1, 1], np.float32)


def numbers(number, *shape):
    """Weights, other ones for each number, which no random generator changes."""
    places = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    return (0.4 * np.cos(1.3 * places + number)).astype(np.float32)


def weights(continuous=NUMBERS):
    """Tables [rows, DIM] and [rows, 1] of each column, and the dense weights by their names."""
    inputs = (len(FIELDS) * DIM + len(continuous), *WIDTHS)
    return {
        "tables": {c: numbers(f, FIELDS[c], DIM) for f, c in enumerate(FIELDS)},
        "wide": {c: numbers(10 + f, FIELDS[c], 1) for f, c in enumerate(FIELDS)},
        "wide_dense": numbers(20, len(continuous), 1),
        "kernels": [numbers(30 + i, *inputs[i : i + 2]) for i in range(len(WIDTHS))],
        "biases": [numbers(40 + i, width) for i, width in enumerate(WIDTHS)],
        "logit": numbers(50, WIDTHS[-1], 1),
        "bias": numbers(60, 1),
    }
