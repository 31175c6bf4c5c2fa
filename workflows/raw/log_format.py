"""Describe the columns of a raw log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class LogFormat:
    """Columns of one kind of click log.

    Attributes:
        kind: "criteo", "avazu" or "table".
        label: name of the 0/1 column; "" to read rows without their labels.
        categorical: names of the categorical columns, in model order.
        continuous: names of the numeric columns, in model order.
        file_columns: all columns of a text file, in file order; empty to read them from the
            header.
        header: whether the first line of a text file names the columns.
        separator: one character between columns of a text file.
        integer: continuous columns that must hold whole numbers.
    """

    kind: str
    label: str
    categorical: tuple[str, ...]
    continuous: tuple[str, ...] = ()
    file_columns: tuple[str, ...] = ()
    header: bool = True
    separator: str = ","
    integer: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns to read."""
        labels = (self.label,) if self.label else ()
        return (*labels, *self.categorical, *self.continuous)


CRITEO = LogFormat(
    kind="criteo",
    label="label",
    categorical=tuple(f"C{i}" for i in range(1, 27)),
    continuous=tuple(f"I{i}" for i in range(1, 14)),
    file_columns=(
        "label",
        *(f"I{i}" for i in range(1, 14)),
        *(f"C{i}" for i in range(1, 27)),
    ),
    header=False,
    separator="\t",
    integer=tuple(f"I{i}" for i in range(1, 14)),
)
"""Criteo Kaggle display advertising challenge, `train.txt`."""

AVAZU = LogFormat(
    kind="avazu",
    label="click",
    categorical=(
        "hour",
        "C1",
        "banner_pos",
        "site_id",
        "site_domain",
        "site_category",
        "app_id",
        "app_domain",
        "app_category",
        "device_id",
        "device_ip",
        "device_model",
        "device_type",
        "device_conn_type",
        *(f"C{i}" for i in range(14, 22)),
    ),
)
"""Avazu click-through rate prediction, `train`: `id` is dropped, `hour` is a category."""


def separator_of(file: Path) -> str:
    """Separator of columns by file name: tabs in .tsv and .txt, else commas."""
    return "\t" if file.name.removesuffix(".gz").endswith((".tsv", ".txt")) else ","
