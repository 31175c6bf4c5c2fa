"""examples/movielens.py: both formats give the same log, and it trains."""

import csv
import os
import sys
from pathlib import Path

import pytest

from cowclip_merlin.cli import main as cowclip
from cowclip_merlin.online.events.event_log import EventLog
from cowclip_merlin.online.events.features import load_features
from cowclip_merlin.workflows import PreparedData

ROOT = Path(__file__).parents[2]

U_USER = "1|24|M|artist|00000\n2|53|F|other|00000\n"
U_ITEM = (
    "1|Été (1995)|01-Jan-1995||u|0|0|0|1|1|1" + "|0" * 13 + "\n"
    "2|Zwei|01-Jan-1996||u|0|1|0" + "|0" * 16 + "\n"
    "3|Unknown||||" + "|".join("0" * 19) + "\n"
)
U_DATA = "1\t1\t5\t30\n2\t1\t3\t10\n2\t2\t4\t20\n1\t3\t1\t40\n"
ATOMIC_ITEM = "1\tÉté\t1995\tAnimation Children's Comedy\n2\tZwei\t1996\tAction\n3\tUnknown\t\t\n"


sys.path.insert(0, str(ROOT / "examples"))

import movielens  # noqa: E402


@pytest.fixture
def original(tmp_path):
    folder = tmp_path / "original"
    folder.mkdir()
    for name, text in (("u.user", U_USER), ("u.item", U_ITEM), ("u.data", U_DATA)):
        (folder / name).write_text(text, encoding="latin-1")
    return folder


@pytest.fixture
def atomic(tmp_path):
    folder = tmp_path / "atomic"
    folder.mkdir()
    header = "x:token\n"
    for name, text in (
        ("user", U_USER.replace("|", "\t")), ("item", ATOMIC_ITEM), ("inter", U_DATA),
    ):  # fmt: skip
        (folder / f"ml-100k.{name}").write_text(header + text, encoding="latin-1")
    return folder


def rows_of(folder, out):
    assert movielens.main([str(folder), "--out", str(out)]) == 0
    with out.open(newline="") as file:
        return list(csv.DictReader(file))


def test_rows_are_in_the_order_of_time_with_crossed_columns(original, tmp_path):
    rows = rows_of(original, tmp_path / "out.csv")
    assert [(r["user"], r["item"], r["click"]) for r in rows] == [
        ("2", "1", "0"), ("2", "2", "1"), ("1", "1", "1"), ("1", "3", "0"),
    ]  # fmt: skip
    assert rows[0] == {
        "click": "0", "user": "2", "item": "1", "age": "50s", "gender": "F",
        "occupation": "other", "genres": "3+4+5", "user_genre": "2x3", "item_age": "1x50s",
        "item_occupation": "1xother",
    }  # fmt: skip
    assert rows[3]["genres"] == "none"


def test_with_times_it_is_a_log_for_online_training(original, tmp_path):
    out = tmp_path / "out.csv"
    assert movielens.main([str(original), "--out", str(out), "--time"]) == 0
    features = load_features(tmp_path / "out.csv.yaml")
    assert [column.name for column in features.categorical] == [
        *movielens.FIELDS,
        *movielens.CROSSES,
    ]
    (events,) = EventLog([out], features, max_bad_fraction=0)
    assert events.times.tolist() == [10, 20, 30, 40]
    assert events.labels.tolist() == [0, 1, 1, 0]
    assert events.ids.values[:, :2].tolist() == [[2, 1], [2, 2], [1, 1], [1, 3]]
    assert movielens.main([str(original), "--out", str(tmp_path / "new.csv")]) == 0
    assert "time" not in (tmp_path / "new.csv").read_text().splitlines()[0]


def test_other_columns_are_crossed_on_request(original, tmp_path):
    out = tmp_path / "out.csv"
    crosses = ["--crosses", "user_genres,age_gender_occupation"]
    assert movielens.main([str(original), "--out", str(out), "--time", *crosses]) == 0
    with out.open(newline="") as file:
        row = next(csv.DictReader(file))
    assert list(row)[2:] == [*movielens.FIELDS, "user_genres", "age_gender_occupation"]
    assert (row["user_genres"], row["age_gender_occupation"]) == ("2x3+4+5", "50sxFxother")
    features = load_features(tmp_path / "out.csv.yaml")
    assert [column.name for column in features.categorical] == list(row)[2:]
    plain = tmp_path / "plain.csv"
    assert movielens.main([str(original), "--out", str(plain), "--crosses", ""]) == 0
    assert plain.read_text().splitlines()[0] == "click,user,item,age,gender,occupation,genres"


def test_both_formats_give_the_same_log_but_for_the_names_of_genres(original, atomic, tmp_path):
    one, two = (rows_of(f, tmp_path / f"{f.name}.csv") for f in (original, atomic))
    genres = {"3+4+5": "Animation+Children's+Comedy", "1": "Action", "none": "none"}
    for a, b in zip(one, two, strict=True):
        assert genres[a["genres"]] == b["genres"]
        assert {k: v for k, v in a.items() if "genre" not in k} == {
            k: v for k, v in b.items() if "genre" not in k
        }


def real_folder():
    candidates = [os.environ.get("MOVIELENS"), ROOT.parent / "shared/data/ml-100k"]
    folders = [Path(c) for c in candidates if c]
    found = [f for f in folders if (f / "u.data").is_file() or (f / "ml-100k.inter").is_file()]
    return found[0] if found else None


def test_the_real_log_is_prepared_and_trains(tmp_path, monkeypatch, capsys):
    folder = real_folder()
    if folder is None:
        pytest.skip("MovieLens-100K is not here: set MOVIELENS to its folder")
    monkeypatch.chdir(tmp_path)
    assert len(rows_of(folder, Path("ratings.csv"))) == 100_000
    columns = ",".join([*movielens.FIELDS, *movielens.CROSSES])
    assert cowclip(
        ["prepare", "table", "ratings.csv", "--out", "ML", "--label", "click",
         "--categorical", columns],
    ) == 0  # fmt: skip
    cardinalities = PreparedData.load("ML").cardinalities
    assert cardinalities["user"] == 943 + 3 and sum(cardinalities.values()) == 37_746
    assert cowclip(
        ["train", "ML", "--out", "RUN", "--model", "deepfm", "--batch-size", "1024",
         "--rule", "none", "--embedding-lr", "1e-3", "--dense-lr", "1e-3", "--l2", "1e-4",
         "--epochs", "1", "--update", "exact", "--mlp", "64"],
    ) == 0  # fmt: skip
    with Path("RUN/metrics.csv").open(encoding="utf-8") as file:
        assert float(next(csv.DictReader(file))["test_auc"]) > 0.7


def test_further_labels(original, tmp_path):
    words = [str(original), "--out", str(tmp_path / "log.csv"), "--labels"]
    assert movielens.main(words) == 0
    with (tmp_path / "log.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    labels = [(row["click"], row["favorite"], row["rating"]) for row in rows]
    assert labels == [("0", "0", "3"), ("1", "0", "4"), ("1", "1", "5"), ("0", "0", "1")]
