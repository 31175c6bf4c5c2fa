"""The files that the documentation's commands read, tiny and made up."""

from __future__ import annotations

import gzip
import math
import random
import shutil
from pathlib import Path

from cowclip_merlin.workflows.raw.log_format import AVAZU

AGES = ["25", "31", "47", "52"]
JOBS = ["artist", "lawyer"]
DAY = 881_250_949


def write_logs(criteo: Path) -> None:
    """All of them, into the working folder."""
    for name in ("train.txt", "new.txt"):
        shutil.copy(criteo, name)
    write_avazu(Path("train"), rows=300)
    with gzip.open("train.gz", "wb") as file:
        file.write(Path("train").read_bytes())
    write_table(Path("log.csv"), rows=3000)
    write_movielens(Path("ml-100k"), ratings=300)


def write_avazu(file: Path, *, rows: int) -> None:
    draw = random.Random(1)
    lines = [",".join(AVAZU.file_columns or ("id", AVAZU.label, *AVAZU.categorical))]
    for i in range(rows):
        values = {name: f"{draw.randrange(9):x}" for name in lines[0].split(",")}
        values |= {"id": str(i), AVAZU.label: str(draw.randrange(2)), "hour": "14102100"}
        lines.append(",".join(values.values()))
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_table(file: Path, *, rows: int) -> None:
    """Users and items have tastes, so that a model has something to learn."""
    draw = random.Random(2)
    of_user, of_item = ([draw.gauss(0, 2) for _ in range(n)] for n in (30, 9))
    lines = []
    for _ in range(rows):
        user, item, age = draw.randrange(30), draw.randrange(9), draw.randrange(18, 90)
        clicked = draw.random() < 1 / (1 + math.exp(-of_user[user] - of_item[item]))
        lines.append(f"{int(clicked)},u{user},i{item},{age}")
    file.write_text("\n".join(["y,user,item,age", *lines]) + "\n", encoding="utf-8")


def write_movielens(folder: Path, *, ratings: int) -> None:
    """The format of ml-100k.zip: tabs in u.data, bars in u.user and u.item, latin-1 titles."""
    draw = random.Random(3)
    folder.mkdir()
    users = [
        f"{u}|{draw.choice(AGES)}|{draw.choice('FM')}|{draw.choice(JOBS)}|00000"
        for u in range(1, 21)
    ]
    items = [
        f"{i}|Été {i}|01-Jan-1995||http://example.org/|" + "|".join(draw.choices("01", k=19))
        for i in range(1, 13)
    ]
    rows = [
        f"{draw.randrange(1, 21)}\t{draw.randrange(1, 13)}\t{draw.randrange(1, 6)}\t"
        f"{DAY + draw.randrange(10**6)}"
        for _ in range(ratings)
    ]
    for name, lines in (("u.user", users), ("u.item", items), ("u.data", rows)):
        (folder / name).write_text("\n".join(lines) + "\n", encoding="latin-1")
