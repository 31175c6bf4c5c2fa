"""Convert MovieLens-100K to a click log: a CSV file for `cowclip prepare table`.

    python examples/movielens.py FOLDER --out ratings.csv

FOLDER has u.data, u.user and u.item as GroupLens publishes them, or the same data in atomic files
(ml-100k.inter, .user, .item). A rating of 4 or 5 is a click. Rows are sorted by time. The log has
the columns of the files and three crossed columns (user x genre, item x age, item x occupation).
These have many ids, most of them rare, for which the clip is made. To cross other columns, use
`--crosses user_genres,item_gender`.

With `--history 20`, the column `liked` has the last 20 items that the user liked before, separated
by "|", for `cowclip prepare --multi liked`.

With `--labels`, the log also has the labels `favorite` (a rating of 5) and `rating`, for
`cowclip prepare --label click,favorite,rating --regression rating`.

With `--time`, the log also has the time of each rating, and the features file `ratings.csv.yaml` is
written beside it, for `cowclip online`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from cowclip_merlin import InputError
from cowclip_merlin.errors import exit_code
from cowclip_merlin.settings import Settings, add_options, option, settings_from
from cowclip_merlin.system.files import atomic_write, check_writable

LABEL, TIME, HISTORY = "click", "time", "liked"
MORE_LABELS = ("favorite", "rating")
FIELDS = ("user", "item", "age", "gender", "occupation", "genres")
PARTS = (*FIELDS, "genre")  # of a crossed column; genre is the first of the genres
CROSSES = ("user_genre", "item_age", "item_occupation")


@dataclass(frozen=True, kw_only=True)
class Source:
    """Names and format of the three tables in one edition."""

    ratings: str  # user, item, rating, seconds, separated by tabs
    users: str  # user, age, gender, occupation, and more
    items: str  # item, and its genres after the first columns
    separator: str  # between the columns of users and items
    header: int  # number of lines before the rows
    flags: bool  # genres are 0/1 columns from the sixth on, or words in the fourth column


SOURCES = (
    Source(ratings="u.data", users="u.user", items="u.item", separator="|", header=0, flags=True),
    Source(
        ratings="ml-100k.inter",
        users="ml-100k.user",
        items="ml-100k.item",
        separator="\t",
        header=1,
        flags=False,
    ),
)


def find_source(folder: Path) -> Source:
    """Find the edition in this folder."""
    for source in SOURCES:
        if all((folder / name).is_file() for name in (source.ratings, source.users, source.items)):
            return source
    raise InputError(
        f"{folder}: has neither u.data, u.user, u.item nor ml-100k.inter, .user, .item; "
        "give the folder with MovieLens-100K's files"
    )


def read(file: Path, separator: str, header: int, columns: int) -> pd.DataFrame:
    """Read a file as a table of text whose columns are numbered, at least so many."""
    with file.open(encoding="latin-1") as lines:
        rows = [line.rstrip("\n").split(separator) for line in lines][header:]
    for line, row in enumerate(rows, start=1 + header):
        if len(row) < columns:
            raise InputError(
                f"{file}, line {line}: {len(row)} columns, need at least {columns}; "
                "download the file again"
            )
    if not rows:
        raise InputError(f"{file}: has no rows; download the file again")
    return pd.DataFrame(rows)


def numbers(texts: pd.Series, file: Path) -> pd.Series:
    """Convert texts of one file to finite numbers."""
    found = pd.to_numeric(texts, errors="coerce")
    wrong = texts[~np.isfinite(found)]
    if len(wrong):
        raise InputError(f"{file}: {wrong.iloc[0]!r} is not a number; download the file again")
    return found


def read_users(folder: Path, source: Source) -> pd.DataFrame:
    """Read age (in tens of years), gender and occupation of each user."""
    file = folder / source.users
    found = read(file, source.separator, source.header, 4).drop_duplicates(0, keep="last")
    found[1] = (numbers(found[1], file) // 10).map("{:.0f}0s".format)
    return found[[0, 1, 2, 3]].set_axis(["user", "age", "gender", "occupation"], axis=1)


def read_items(folder: Path, source: Source) -> pd.DataFrame:
    """Read all genres of each item in the files' order, and the first genre; "none" without one."""
    columns = 6 if source.flags else 4
    found = read(folder / source.items, source.separator, source.header, columns)
    found = found.drop_duplicates(0, keep="last")
    if source.flags:
        genres = [
            [str(number) for number, flag in enumerate(row) if flag == "1"]
            for row in found.iloc[:, 5:].to_numpy()
        ]
    else:
        genres = found[3].str.split().tolist()
    genres = [each or ["none"] for each in genres]
    joined = ["+".join(each) for each in genres]
    return pd.DataFrame({"item": found[0], "genres": joined, "genre": [g[0] for g in genres]})


def parse_crosses(text: str) -> tuple[str, ...]:
    """Split and check the names of crossed columns.

    >>> parse_crosses("user_genres,item_gender")
    ('user_genres', 'item_gender')

    Raises:
        InputError: if a name is not two or more columns, joined by _, or occurs twice.
    """
    names = tuple(filter(None, text.split(",")))
    for name in names:
        parts = name.split("_")
        if len(parts) < 2 or not set(parts) <= set(PARTS) or names.count(name) > 1:
            raise InputError(
                f"--crosses: {name!r} must be two or more of {', '.join(PARTS)}, joined by _, and "
                "occur once"
            )
    return names


def read_ratings(folder: Path, source: Source) -> pd.DataFrame:
    """Read the ratings with their users and items, sorted by time; ties keep the file's order."""
    users, items = read_users(folder, source), read_items(folder, source)
    file = folder / source.ratings
    found = read(file, "\t", source.header, 4)[[0, 1, 2, 3]]
    found.columns = ["user", "item", "stars", "time"]
    unknown = found[~(found.user.isin(users.user) & found.item.isin(items.item))]
    if len(unknown):
        user, item = unknown.iloc[0][["user", "item"]]
        raise InputError(
            f"{file}: user {user} or item {item} is not in its table; "
            "use all three files of one edition"
        )
    for name in ("time", "stars"):
        found[name] = numbers(found[name], file)
    found = found.merge(users, "left", on="user").merge(items, "left", on="item")
    return found.sort_values("time", kind="stable", ignore_index=True)


def histories(ratings: pd.DataFrame, most: int) -> list[str]:
    """Return the last items that the user of each rating liked before, the latest at the end.

    Ratings of the same second do not count: a user may enter several at once, in any order.

    >>> rows = [("a", 5, 1), ("b", 1, 2), ("c", 4, 3), ("d", 5, 3), ("e", 2, 4)]
    >>> rows = pd.DataFrame(rows, columns=["item", "stars", "time"]).assign(user="u")
    >>> histories(rows, 2)
    ['', 'a', 'a', 'a', 'c|d']
    """
    found, liked = [], {}
    for user, item, stars, time in ratings[["user", "item", "stars", "time"]].to_numpy():
        before = [each for each, since in liked.get(user, []) if since < time]
        found.append("|".join(before[-most:]))
        if stars >= 4:
            liked.setdefault(user, []).append((item, time))
    return found


def log_of(ratings: pd.DataFrame, crosses: Sequence[str], history: int) -> pd.DataFrame:
    """Make the log with all columns, as text."""
    log = pd.DataFrame({LABEL: (ratings.stars >= 4).astype(int)})
    log["favorite"] = (ratings.stars >= 5).astype(int)
    log["rating"] = ratings.stars.map("{:g}".format)
    log[TIME] = ratings.time.map("{:.0f}".format)
    log[list(FIELDS)] = ratings[list(FIELDS)]
    for name in crosses:
        log[name] = ["x".join(row) for row in zip(*(ratings[part] for part in name.split("_")))]
    return log.assign(**{HISTORY: histories(ratings, history)}) if history else log


def features_text(name: str, columns: Sequence[str]) -> str:
    """Text of the features file of a log of this name, with these categorical columns."""
    lines = [f"# The columns of {name}: a features file for cowclip online.", f"label: {LABEL}"]
    return "\n".join([*lines, f"time: {TIME}", "categorical:", *(f"- {c}" for c in columns), ""])


@dataclass(frozen=True, kw_only=True)
class Conversion(Settings):
    """What is converted, and where to."""

    folder: Path = option(help="folder of MovieLens-100K", flag="folder", metavar="FOLDER")
    out: Path = option(help="log to write", metavar="FILE")
    crosses: tuple[str, ...] = option(
        CROSSES,
        f"crossed columns: two or more of {', '.join(PARTS)}, joined by _; empty: none",
        metavar="A_B,C_D",
        convert=parse_crosses,
    )
    history: int = option(
        0, f"also write {HISTORY}: N items that the user liked before; 0: do not", at_least=0
    )
    labels: bool = option(False, f"also write the labels {' and '.join(MORE_LABELS)}")
    time: bool = option(False, "also write times, and FILE.yaml for `cowclip online`")
    overwrite: bool = option(False, "replace FILE if it exists")


def convert(given: Conversion) -> int:
    """Write the log, completely or not at all, and return its number of rows."""
    out, features = given.out, given.out.with_name(given.out.name + ".yaml")
    for file in (out, features) if given.time else (out,):
        check_writable(file, overwrite=given.overwrite)
    ratings = read_ratings(given.folder, find_source(given.folder))
    log = log_of(ratings, given.crosses, given.history)
    log = log.drop(
        columns=[*([] if given.labels else MORE_LABELS), *([] if given.time else [TIME])]
    )
    with atomic_write(out) as temporary:
        log.to_csv(temporary, index=False, lineterminator="\n")
    if given.time:
        text = features_text(out.name, [*FIELDS, *given.crosses])
        with atomic_write(features) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return len(log)


def main(argv: Sequence[str] | None = None) -> int:
    """Convert the files; return 2 if the input is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, Conversion)
    args = parser.parse_args(argv)

    def run() -> None:
        given = settings_from(args, Conversion)
        columns = len(FIELDS) + len(given.crosses)
        print(f"{given.out}: {convert(given):,} rows, {columns} categorical columns")

    return exit_code("movielens", run)


if __name__ == "__main__":
    sys.exit(main())
