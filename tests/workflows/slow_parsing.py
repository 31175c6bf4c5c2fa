"""Lines of a text log, the slow and obvious way: Arrow reads each one alone, or refuses it."""

import math

import pyarrow as pa
from pyarrow import csv

from cowclip_merlin.workflows.raw.values.multi_values import vector_damage
from cowclip_merlin.workflows.raw.values.numbers import LABEL_VALUES


def row_of(line, columns, log_format):
    """The row of a line without its line end, column -> value; None if it is damaged."""
    try:
        text = line.removesuffix(b"\r").decode()
    except UnicodeDecodeError:
        return None
    if "\r" in text or not text:
        return None
    row = _read(line, columns, log_format)
    if row is None:
        return None
    cells = dict(zip(columns, log_format.cells(text)))
    if any("x" in cells[name].lower() for name in log_format.integer):
        return None
    if any(row[x] is not None and not math.isfinite(row[x]) for x in log_format.continuous):
        return None
    given = [row[name] for name, _ in log_format.targets]
    for name, is_number in log_format.targets:
        value = row[name]
        if not is_number:
            row[name] = LABEL_VALUES.get((value or "").lower())
        wrong = not abs(value or 0.0) <= 3.4028235e38 if is_number else row[name] is None
        if wrong and not (log_format.float_labels and value is None):
            return None
    if given and all(value is None for value in given):
        return None
    if log_format.weight:
        weight = row[log_format.weight]
        if weight is None or not 0 <= weight <= 3.4028235e38:
            return None
    for name, length in log_format.vectors.items():
        separator = log_format.vector_separator
        if vector_damage(name, row[name], separator, length):
            return None
        row[name] = [float(number) for number in row[name].split(separator)]
    for name, separator in log_format.multi.items():
        row[name] = [value for value in (row[name] or "").split(separator) if value]
    return row


def _read(line, columns, log_format):
    """The texts and numbers of a line; None if it has other columns, wrong numbers or a quote."""
    types = dict.fromkeys(log_format.columns, pa.string())
    numbers = [*log_format.continuous, *log_format.regression, log_format.weight]
    types |= {name: pa.float64() for name in numbers if name}
    types |= {name: pa.int64() for name in log_format.integer}
    # With an open quote, the line would take in the one after it: there would not be two rows.
    after = log_format.separator * (len(columns) - 1)
    try:
        table = csv.read_csv(
            pa.py_buffer(line + b"\n" + after.encode() + b"\n"),
            csv.ReadOptions(column_names=columns, block_size=1 << 20),
            csv.ParseOptions(
                delimiter=log_format.separator,
                quote_char='"' if log_format.quotes else False,
                ignore_empty_lines=False,
            ),
            csv.ConvertOptions(
                column_types=types, include_columns=list(types), strings_can_be_null=True,
                null_values=[""],
            ),
        )  # fmt: skip
    except pa.ArrowInvalid:
        return None
    return table.to_pylist()[0] if table.num_rows == 2 else None
