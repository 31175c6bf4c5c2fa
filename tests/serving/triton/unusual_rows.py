"""Rows of a table with unusual names."""

import random

CATEGORICAL = ["user id", 'a "b" \\', "Größe", "probability"]
CONTINUOUS = ["price", "self", "flat"]


def raw_rows(rows, seed, *, values=40):
    """Column -> value, with missing ones; more `values` than were trained are unknown."""
    draw = random.Random(seed)

    def text():
        whole = f"{draw.randrange(9)}{draw.choice(['', '.0'])}"
        others = (f"v{draw.randrange(values)}" for _ in range(7))
        return draw.choice([None, "", "ü\n", whole, *others])

    def number():
        return draw.choice([None, 0.0, -3.5, draw.random(), 1e9 + draw.random()])

    flat = {"flat": 7.0}
    return [
        {name: text() for name in CATEGORICAL} | {name: number() for name in CONTINUOUS} | flat
        for _ in range(rows)
    ]


def as_request(row):
    """A row as a client sends it: "" and NaN are missing values."""
    texts = {name: row[name] or "" for name in CATEGORICAL}
    return texts | {n: float("nan") if row[n] is None else row[n] for n in CONTINUOUS}
