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
import csv
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cowclip_merlin import InputError
from cowclip_merlin.errors import error_message
from cowclip_merlin.system.files import atomic_write, check_writable

LABEL, TIME, HISTORY = "click", "time", "liked"
MORE_LABELS = ("favorite", "rating")
FIELDS = ("user", "item", "age", "gender", "occupation", "genres")
PARTS = (*FIELDS, "genre")  # of a crossed column; genre is the first of the genres
CROSSES = ("user_genre", "item_age", "item_occupation")


@dataclass(frozen=True, kw_only=True)
class Source:
    """Format of the three tables in one edition.

    Attributes:
        ratings: name of the file: user, item, rating, seconds, separated by tabs.
        users: name of the file: user, age, gender, occupation, and more.
        items: name of the file: item, and its genres after the first columns.
        separator: between the columns of users and items.
        header: whether the first line of a file names its columns.
        flags: whether genres are 0/1 columns (from the sixth on), or words in the fourth column.
    """

    ratings: str
    users: str
    items: str
    separator: str
    header: bool
    flags: bool


SOURCES = (
    Source(
        ratings="u.data", users="u.user", items="u.item", separator="|", header=False, flags=True
    ),
    Source(
        ratings="ml-100k.inter",
        users="ml-100k.user",
        items="ml-100k.item",
        separator="\t",
        header=True,
        flags=False,
    ),
)


def find_source(folder: Path) -> Source:
    """Find the edition in this folder.

    Raises:
        InputError: if the folder has no known edition.
    """
    for source in SOURCES:
        if all((folder / name).is_file() for name in (source.ratings, source.users, source.items)):
            return source
    raise InputError(
        f"{folder}: has neither u.data, u.user, u.item nor ml-100k.inter, .user, .item; "
        "give the folder with MovieLens-100K's files"
    )


def rows_of(file: Path, separator: str, header: bool, columns: int) -> Iterator[list[str]]:
    """Read the rows of one file as lists of cells.

    Raises:
        InputError: if a row has fewer than `columns` columns.
    """
    with file.open(encoding="latin-1", newline="") as lines:
        for row_number, line in enumerate(lines, start=1):
            row = line.rstrip("\r\n").split(separator)
            if header and row_number == 1:
                continue
            if len(row) < columns:
                raise InputError(
                    f"{file}, line {row_number}: {len(row)} columns, need at least {columns}; "
                    "download the file again"
                )
            yield row


def genres_of(row: Sequence[str], source: Source) -> list[str]:
    """Return the genres of one item, in the files' order; "none" if it has no genre.

    >>> genres_of(["1", "Toy Story", "", "", "", "0", "0", "1", "1"], SOURCES[0])
    ['2', '3']
    >>> genres_of(["1", "Toy Story", "1995", "Animation Comedy"], SOURCES[1])
    ['Animation', 'Comedy']
    """
    if source.flags:
        found = [str(number) for number, flag in enumerate(row[5:]) if flag == "1"]
    else:
        found = row[3].split()
    return found or ["none"]


def number(text: str, file: Path) -> float:
    """Convert a text of one file to a finite number.

    Raises:
        InputError: if it is not a finite number.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{file}: {text!r} is not a number; download the file again")
    return value


def read_users(folder: Path, source: Source) -> dict[str, dict[str, str]]:
    """Read age (in tens of years), gender and occupation of each user."""
    file = folder / source.users
    rows = rows_of(file, source.separator, source.header, 4)
    return {
        user: {
            "age": f"{number(age, file) // 10:.0f}0s",
            "gender": gender,
            "occupation": occupation,
        }
        for user, age, gender, occupation, *_ in rows
    }


def read_items(folder: Path, source: Source) -> dict[str, dict[str, str]]:
    """Read all genres of each item, and the first genre."""
    columns = 6 if source.flags else 4
    items = {}
    for row in rows_of(folder / source.items, source.separator, source.header, columns):
        genres = genres_of(row, source)
        items[row[0]] = {"genres": "+".join(genres), "genre": genres[0]}
    return items


@dataclass(frozen=True, kw_only=True)
class Rating:
    """One line of the ratings.

    Attributes:
        user: who rated.
        item: what was rated.
        stars: 1 to 5.
        time: seconds since 1970.
    """

    user: str
    item: str
    stars: float
    time: float


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


def click(
    rating: Rating,
    users: Mapping[str, Mapping[str, str]],
    items: Mapping[str, Mapping[str, str]],
    crosses: Sequence[str],
) -> dict[str, str]:
    """Make one row of the log."""
    user, item = rating.user, rating.item
    row = {"user": user, "item": item, **users[user], **items[item]}
    crossed = {name: "x".join(row[part] for part in name.split("_")) for name in crosses}
    values = {name: row[name] for name in FIELDS}
    labels = {LABEL: str(int(rating.stars >= 4)), "favorite": str(int(rating.stars >= 5))}
    labels["rating"] = f"{rating.stars:g}"
    return {**labels, TIME: f"{rating.time:.0f}", **values, **crossed}


def read_ratings(
    folder: Path,
    source: Source,
    users: Mapping[str, Mapping[str, str]],
    items: Mapping[str, Mapping[str, str]],
) -> list[Rating]:
    """Read the ratings, sorted by time; ties keep the file's order.

    Raises:
        InputError: if a user or an item is not in its table.
    """
    file, ratings = folder / source.ratings, []
    for user, item, stars, time, *_ in rows_of(file, "\t", source.header, 4):
        if user not in users or item not in items:
            raise InputError(
                f"{file}: user {user} or item {item} is not in its table; "
                "use all three files of one edition"
            )
        seconds, count = number(time, file), number(stars, file)
        ratings.append(Rating(user=user, item=item, stars=count, time=seconds))
    return sorted(ratings, key=lambda rating: rating.time)


def histories(ratings: Sequence[Rating], most: int) -> Iterator[str]:
    """Yield the last items that the user of each rating has liked before, the latest at the end.

    Ratings of the same second do not count: a user may enter several at once, in any order.

    Args:
        ratings: sorted by time.
        most: number of items.

    >>> times = [("a", 5, 1), ("b", 1, 2), ("c", 4, 3), ("d", 5, 3), ("e", 2, 4)]
    >>> rows = [Rating(user="u", item=i, stars=s, time=t) for i, s, t in times]
    >>> list(histories(rows, 2))
    ['', 'a', 'a', 'a', 'c|d']
    """
    liked: dict[str, list[Rating]] = {}
    for rating in ratings:
        before = [each for each in liked.get(rating.user, []) if each.time < rating.time]
        yield "|".join(each.item for each in before[-most:])
        if rating.stars >= 4:
            liked.setdefault(rating.user, []).append(rating)


def features_text(name: str, columns: Sequence[str]) -> str:
    """Text of the features file of a log of this name, with these categorical columns."""
    lines = [f"# The columns of {name}: a features file for cowclip online.", f"label: {LABEL}"]
    return "\n".join([*lines, f"time: {TIME}", "categorical:", *(f"- {c}" for c in columns), ""])


def convert(
    folder: Path,
    out: Path,
    *,
    crosses: Sequence[str] = CROSSES,
    history: int = 0,
    labels: bool = False,
    time: bool = False,
    overwrite: bool = False,
) -> int:
    """Write the log, completely or not at all, and return its number of rows.

    Args:
        folder: with the files of MovieLens-100K.
        out: the log to write.
        crosses: names of the crossed columns: the columns that they cross, joined by _.
        history: also write the column with so many items that the user liked before; 0: do not.
        labels: also write the columns with further labels.
        time: also write the column with the times, and the features file.
        overwrite: replace files that are there.
    """
    features = out.with_name(out.name + ".yaml")
    for file in (out, features) if time else (out,):
        check_writable(file, overwrite=overwrite)
    source = find_source(folder)
    users, items = read_users(folder, source), read_items(folder, source)
    ratings = read_ratings(folder, source, users, items)
    with atomic_write(out) as temporary, temporary.open("w", newline="", encoding="utf-8") as log:
        more = [HISTORY] if history else []
        first = [LABEL, *(MORE_LABELS if labels else ()), *([TIME] if time else [])]
        columns = [*first, *FIELDS, *crosses, *more]
        writer = csv.DictWriter(log, columns, lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        for rating, liked in zip(ratings, histories(ratings, history), strict=True):
            writer.writerow({HISTORY: liked, **click(rating, users, items, crosses)})
    if time:
        with atomic_write(features) as temporary:
            temporary.write_text(features_text(out.name, [*FIELDS, *crosses]), encoding="utf-8")
    return len(ratings)


def main(argv: Sequence[str] | None = None) -> int:
    """Convert the files; return 2 if the input is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument(
        "--crosses",
        default=",".join(CROSSES),
        metavar="A_B,C_D",
        help=f"crossed columns: two or more of {', '.join(PARTS)}, joined by _; "
        "empty: none (default: %(default)s)",
    )
    parser.add_argument(
        "--history",
        type=int,
        default=0,
        metavar="N",
        help=f"also write the column {HISTORY}: N items that the user liked before; 0: do not",
    )
    also = f"also write the labels {' and '.join(MORE_LABELS)}"
    parser.add_argument("--labels", action="store_true", help=also)
    parser.add_argument(
        "--time", action="store_true", help="also write times, and FILE.yaml for `cowclip online`"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace FILE if it exists")
    args = parser.parse_args(argv)
    try:
        if args.history < 0:
            raise InputError(f"--history is {args.history}; give 1 or more, or 0 for no column")
        options = {name: getattr(args, name) for name in ("history", "labels", "time", "overwrite")}
        crosses = parse_crosses(args.crosses)
        rows = convert(args.folder, args.out, crosses=crosses, **options)
    except (InputError, OSError) as error:
        words = error_message(error)
        if words is None:
            raise
        print(f"movielens: error: {words}", file=sys.stderr)
        return 2
    print(f"{args.out}: {rows:,} rows, {len(FIELDS) + len(crosses)} categorical columns")
    return 0


if __name__ == "__main__":
    sys.exit(main())
