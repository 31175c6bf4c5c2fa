"""One generated log with a column of each role; what each role promises, in plain Python.

A role says which columns it has, how they are named to each command, what `prepare` must make of
them, and which values are damaged. The tests in tests/columns/ hold each door to it.
"""

# ruff: noqa: RUF012, a role is no instance that could change

import functools
import gzip
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

ROWS, TEST_ROWS, ITEMS, MOST = 1200, 120, 12, 3
LISTS, VECTORS = ("tags seen", "liked"), {"image": 3, "old one": 2}
KINDS = ("csv", "csv.gz", "jsonl", "parquet")


@functools.cache
def frame(rows: int = ROWS) -> pd.DataFrame:
    """Rows whose clicks depend on every input; Python values, None where one is missing."""
    rng = np.random.default_rng(3)
    draw = rng.integers
    user = [None if u == 19 else f"{u}.0" if u % 5 == 0 else f"{u}" for u in draw(0, 20, rows)]
    item, image, old = draw(0, ITEMS, rows), rng.normal(size=(rows, 3)), rng.normal(size=(rows, 2))
    tags = [[f"t{t}" for t in draw(0, 8, size)] for size in draw(0, 6, rows)]
    liked = [[f"i{i}" for i in draw(0, ITEMS, size)] for size in draw(0, 6, rows)]
    note = rng.choice(["47", "47.0", "5.50", "nan", "a b"], rows)
    age = [None if a > 88 else float(a.round(2)) for a in rng.random(rows) * 90]
    z = 2 * image[:, 1] + [1.5 * ("t1" in t[-MOST:]) for t in tags] + (note == "47")
    z += [1.5 * (f"i{i}" in each[-MOST:]) - 1.5 for i, each in zip(item, liked)]
    click = (rng.random(rows) < 1 / (1 + np.exp(-z))).astype(int)
    bought = [None if m else int(c * b) for c, b, m in zip(click, item % 2, rng.random(rows) < 0.3)]
    seconds = np.where(rng.random(rows) < 0.4, np.nan, 30 + 5 * old[:, 0] + rng.normal(size=rows))
    columns = {"click": click, "bought it": pd.Series(bought, dtype=object)}
    columns |= {"seconds": [None if np.isnan(s) else float(s) for s in seconds.round(3)]}
    columns |= {"w": draw(0, 4, rows) / 2, "time": 1_700_000_000 + 200 * np.arange(rows)}
    columns |= {"key": [f"r{i}" for i in range(rows)], "user": user}
    columns |= {"item": [f"i{i}" for i in item], "note": note, "tags seen": tags, "liked": liked}
    vectors = {"image": [*image.astype("f4").tolist()], "old one": [*old.astype("f4").tolist()]}
    return pd.DataFrame(
        {name: pd.Series(x, dtype=object) for name, x in (columns | {"age": age} | vectors).items()}
    )


TYPES = {
    "click": pa.int64(), "bought it": pa.int64(), "seconds": pa.float64(), "w": pa.float64(),
    "time": pa.int64(), "age": pa.float64(), "tags seen": pa.list_(pa.string()),
    "liked": pa.large_list(pa.string()), "image": pa.list_(pa.float32()),
    "old one": pa.list_(pa.float64()),
}  # fmt: skip


def write(file: Path, rows: pd.DataFrame) -> Path:
    """Write rows in the format that the file's name says."""
    if file.suffix == ".parquet":
        types = {name: TYPES.get(name, pa.string()) for name in rows}
        arrays = {name: pa.array([*rows[name]], kind, from_pandas=False)
                  for name, kind in types.items()}  # fmt: skip
        pq.write_table(pa.table(arrays), file)
        return file
    if file.suffix == ".jsonl":
        text = "".join(f"{json.dumps(row, default=float)}\n" for row in rows.to_dict("records"))
    else:
        text = rows.applymap(as_text).to_csv(index=False)
    packed = gzip.compress(text.encode()) if file.suffix == ".gz" else text.encode()
    file.write_bytes(packed)
    return file


def as_text(value: object) -> str:
    """A value as a CSV file has it."""
    if isinstance(value, list):
        return "|".join(map(as_text, value))
    return "" if value is None else str(value)


class Role:
    """What one kind of column promises; the attributes are those of most roles."""

    name = ""
    columns: tuple[str, ...] = ()
    settings: dict = {}  # of `PrepareSettings`
    words: tuple[str, ...] = ()  # in the settings of a dataset.json that has the role
    features = ""  # lines of a features file
    damage: tuple = ()  # (kinds, column, value, the start of the reason)
    messages: tuple = ()  # (column, value, the start of the reason) of an event
    refused: tuple = ()  # (options of `cowclip prepare table`, words of the message)
    other: dict = {}  # settings that another folder with `like` refuses

    def expected(self, rows: pd.DataFrame) -> dict[str, list]:
        """Column -> what `prepare` writes; ids as their texts."""
        return {name: rows[name].tolist() for name in self.columns}

    def read(self, rows: pd.DataFrame) -> dict[str, list]:
        """Column -> what `read_log` returns."""
        return self.expected(rows)


class IdColumns(Role):
    """One id per row; whole floats are whole numbers."""

    name, columns = "id", ("user", "item")
    settings = {"categorical": ("user", "item")}
    features = "categorical:\n- user\n- item\n"
    messages = (
        ("user", 0.5, "user is 0.5 (float); give text or a whole number"),
        ("user", [1], "user is [1] (list); give text or a whole number"),
        ("user", 2.0**53, "user is 9007199254740992.0 (float); "),
        ("user", np.nan, "user is nan (float); "),
        ("user", 10**400, "user has hundreds of digits"),
        ("item", "\ud800", r"item is '\ud800', which UTF-8 cannot express"),
    )

    def expected(self, rows):
        users = [each and each.removesuffix(".0") for each in rows.user]
        return {"user": users, "item": rows.item.tolist()}


class TextColumns(Role):
    """Ids whose text stays as it is."""

    name, columns, words = "text", ("note",), ("text",)
    settings = {"categorical": ("note",), "text": ("note",)}
    features = "- {name: note, text: true}\n"
    refused = (
        (["--text", "age"], "'age' is not among the columns of --categorical and --multi"),
        (["--multi", "liked", "--share-embedding", "liked=item", "--text", "liked"], "give item"),
    )


class ListColumns(Role):
    """Several ids per row, of which the last few stay."""

    name, columns = "list", ("tags seen",)
    settings = {"multi": ("tags seen",), "max_values": MOST, "keep_values": "last"}
    features = f'- {{name: tags seen, separator: "|", max_values: {MOST}, keep: last}}\n'
    messages = (
        ("tags seen", 7, "tags seen is 7 (int); give a list, or text with '|' between the values"),
        ("tags seen", {"a": 1}, "tags seen is {'a': 1} (dict); give a list"),
        ("tags seen", [0.5], "tags seen is 0.5 (float); give text or a whole number"),
        ("tags seen", [[7]], "tags seen is [7] (list); give text or a whole number"),
        ("tags seen", ["\ud800"], r"tags seen is '\ud800', which UTF-8 cannot express"),
    )
    tags = ("--multi", "tags seen")
    refused = (
        (["--max-values", "2"], "--max-values has no effect without --multi"),
        ([*tags, "--max-values", "-1"], "--max-values is -1; it must be at least 0"),
        ([*tags, "--multi-separator", ""], "--multi-separator is empty"),
        ([*tags, "--keep-values", "last"], "--keep-values has no effect without"),
        (["--multi", "time"], "column 'time' is int64, but holds several values per row by"),
        (["--categorical", "tags seen"], "column 'tags seen' is list"),
        (["--multi", "nested"], "lists of lists; give one list"),
        (["--multi", "shown"], "column 'shown' has text such as ['a', 'b'], the print of a list"),
    )

    def expected(self, rows):
        return {name: [each[-MOST:] for each in rows[name]] for name in self.columns}


class SharedColumns(ListColumns):
    """A list with the ids of another column, in whose table they are counted, too."""

    name, columns = "shared", ("liked",)
    words = ("share_embedding",)
    settings = {"multi": ("liked",), "share_embedding": ("liked=item",)}
    settings |= {"max_values": MOST, "keep_values": "last"}
    features = f'- {{name: liked, separator: "|", max_values: {MOST}, keep: last, table: item}}\n'
    messages = ()
    other = {"share_embedding": ("liked=user",)}
    several = ("--multi", "tags seen,liked", "--share-embedding")
    refused = (
        ([*several, "liked"], "--share-embedding: 'liked' does not name two columns; give such as"),
        ([*several, "liked=liked"], "does not name two columns"),
        ([*several, "liked=item,liked=user"], "has column 'liked' twice"),
        ([*several, "seen=item"], "'seen' is not among the columns of --categorical and --multi"),
        ([*several, "liked=thing"], "'thing' is not among"),
        ([*several, "user=liked,liked=item"], "'liked' has the ids of 'item' itself; give user="),
        (["--share-embedding", "user=item", "--hugectr"], "--hugectr needs a table for each"),
    )


class NumberColumns(Role):
    """A number, scaled to the range of the training rows; a missing one counts as 0."""

    name, columns = "number", ("age",)
    settings = {"continuous": ("age",)}
    features = "continuous: [{name: age, transform: none, minimum: 0, maximum: 90}]\n"
    damage = (("csv jsonl", "age", "old", "age is 'old'"),)
    messages = (
        ("age", "old", "age is 'old'"),
        ("age", np.nan, "age is 'nan', not a finite"),
        ("age", True, "age is 'true', "),
        ("age", {}, "age is {} (dict); "),
    )

    def expected(self, rows):
        age, train = (each.age.fillna(0).astype(float) for each in (rows, frame()[:-TEST_ROWS]))
        return {"age": np.float32((age - train.min()) / (train.max() - train.min())).tolist()}

    def read(self, rows):
        return {"age": rows.age.astype(float).tolist()}


class VectorColumns(Role):
    """Vectors, which stay as they are."""

    name, columns, words = "vector", tuple(VECTORS), ("vectors",)
    settings = {"vector": tuple(VECTORS)}
    features = "vectors: [{name: image, length: 3}, {name: old one, length: 2}]\n"
    other = {"vector": ("age",)}
    damage = (
        ("csv jsonl parquet", "image", [1.0, 2.0], "image has 2 numbers, not 3"),
        ("csv jsonl parquet", "image", [1.0] * 4, "image has 4 numbers, not 3"),
        ("csv jsonl parquet", "image", None, "image is missing; a vector needs its 3 numbers"),
        ("csv parquet", "image", [1.0, np.nan, 2.0], "image[1] is "),
        ("csv jsonl", "old one", ["1", "x"], "old one[1] is 'x', not a finite number"),
        ("csv jsonl", "old one", [1e39, 1.0], "old one[0] is "),
        ("jsonl parquet", "old one", [1.0, None], "old one[1] is missing, not a finite number"),
        ("parquet", "image", [1.0, 2.0, -np.inf], "image[2] is -inf, not a finite number"),
    )
    messages = (
        ("image", [1, 2], "image has 2 numbers, not 3"),
        ("image", None, "image is missing; a vector needs its 3 numbers"),
        ("image", [], "image is missing; a vector needs its 3 numbers"),
        ("image", "", "image is missing; a vector needs its 3 numbers"),
        ("image", [1, "a", 2], "image[1] is 'a', not a finite number"),
        ("image", [1, None, 2], "image[1] is missing, not a finite number"),
        ("image", [1, 2, np.nan], "image[2] is 'nan', not a finite number"),
        ("image", [-np.inf, 1, 2], "image[0] is '-inf', not a finite number"),
        ("image", [1e39, 1, 2], "image[0] is '1e+39', not a finite number"),
        ("image", [10**400, 1, 2], "image[0] has hundreds of digits; give it as text"),
        ("image", [True, 1, 2], "image[0] is 'true', not a finite number"),
        ("image", [[1], 1, 2], "image[0] is [1] (list); give a number"),
        ("image", "1|2", "image has 2 numbers, not 3"),
        ("image", 0.5, "image is 0.5 (float); give a list of 3 numbers, or text with '|'"),
    )
    refused = (
        (["--vector", "age"], "'age' is given twice"),
        (["--vector-separator", " "], "--vector-separator has no effect without --vector"),
        (["--vector", "image", "--vector-separator", ""], "--vector-separator is empty"),
        (["--vector", "image", "--hugectr"], "--hugectr writes no vectors, but column 'image' has"),
        (["--vector", "none"], "no column 'none'"),
        (["--vector", "time"], "column 'time' has no vector in its first 40 rows"),
        (["--vector", "tags seen"], "column 'tags seen' has no vector in its first 40 rows"),
        (["--vector", "empty"], "column 'empty' has no vector in its first 40 rows"),
        (["--vector", "short first"], "short first has 3 numbers, not 2"),
    )


class WeightColumn(Role):
    """The weight of a row in the loss and in metrics."""

    name, columns, words = "weight", ("w",), ("weight",)
    settings, features, other = {"weight": "w"}, "weight: w\n", {"weight": "age"}
    damage = tuple(
        (kinds, "w", value, f"w is {shown}" + (shown and ", no weight; give a finite number"))
        for kinds, value, shown in (
            ("csv jsonl parquet", None, ""), ("csv", -1, "'-1'"), ("jsonl parquet", -1.0, ""),
            ("csv parquet", np.nan, ""), ("csv parquet", np.inf, ""), ("csv", "much", "'much'"),
            ("csv jsonl parquet", 1e300, ""), ("jsonl", [1], ""),
        )
    )  # fmt: skip
    messages = (
        ("w", -1, "w is '-1', no weight; give a finite number of 0 or more"),
        *(("w", bad, "w ") for bad in (None, np.nan, np.inf, "x", "", True, 1e300, [1])),
    )
    refused = (
        (["--weight", "click"], "'click' is given twice"),
        (["--weight", "w", "--hugectr"], "--hugectr writes no weights, but column 'w' has some"),
    )


class LabelColumns(Role):
    """Three labels, of which the last is a number; a row needs one of them."""

    name, columns = "labels", ("click", "bought it", "seconds")
    words = ("more_labels", "regression")
    settings = {"label": columns, "regression": ("seconds",)}
    features = "label: [click, bought it, seconds]\nregression: seconds\n"
    other = {"label": ("click", "bought it")}
    nothing = "no label: click, bought it, seconds are missing"
    damage = (
        ("csv jsonl parquet", "bought it", 2, "bought it is "),
        ("csv", "click", "nan", "click is 'nan', neither 0 nor 1"),
        ("csv jsonl", "seconds", "long", "seconds is 'long', no label of a regression; give a"),
        ("csv jsonl parquet", "seconds", 1e300, "seconds is "),
        ("csv parquet", "seconds", np.nan, "seconds is "),
        ("csv parquet", "seconds", np.inf, "seconds is "),
        ("csv jsonl parquet", columns, None, nothing),
    )
    messages = (
        (columns, None, nothing),
        ("click", 2, "click is '2', neither 0 nor 1; write 1, true or yes for a click"),
        ("bought it", "maybe", "bought it is 'maybe', neither 0 nor 1"),
        ("bought it", [1], "bought it is [1] (list); give a number"),
        ("seconds", True, "seconds is 'true', no label of a regression; give a finite number"),
        ("seconds", "long", "seconds is 'long', no label of a regression"),
        ("seconds", np.nan, "seconds is 'nan', no label of a regression"),
        ("seconds", 1e39, "seconds is '1e+39', no label of a regression"),
        ("seconds", 10**400, "seconds has hundreds of digits"),
        ("seconds", "1_000", "seconds is '1_000', no label"),
        ("cowclip_sample_rate", 0.5, "cowclip_sample_rate is 0.5, but there are several labels"),
    )
    refused = (
        (["--label", "click", "--regression", "age"], "--regression 'age' is no label"),
        (["--label", "click,click"], "'click' is given twice"),
        (["--label", "click,user"], "'user' is given twice"),
        (["--label", "click,bought it", "--hugectr"], "writes one label of 0 and 1, not click"),
        (["--label", "click,sold"], "no column 'sold'"),
    )

    def expected(self, rows):
        return {name: np.float32(rows[name].astype(float)).tolist() for name in self.columns}


KINDS_OF_COLUMNS = (
    IdColumns(), TextColumns(), ListColumns(), SharedColumns(), NumberColumns(), VectorColumns(),
    WeightColumn(), LabelColumns(),
)  # fmt: skip
ROLES = {role.name: role for role in KINDS_OF_COLUMNS}
PLAIN = ("id", "number")
FILE = "time: time\nkey: key\n"


def settings_of(*names: str) -> dict:
    """Settings of `prepare` for some roles; the last rows are the test rows."""
    found = {"kind": "table", "split": "time", "label": "click"}
    for name in names:
        for key, value in ROLES[name].settings.items():
            several = isinstance(value, tuple) and key not in ("label", "regression")
            found[key] = found.get(key, ()) + value if several else value
    return found


def features_of(*names: str) -> str:
    """The text of a features file for some roles."""
    roles = [role for name, role in ROLES.items() if name in names]
    label = "" if "labels" in names else "label: click\n"
    return label + FILE + "".join(role.features for role in roles)
