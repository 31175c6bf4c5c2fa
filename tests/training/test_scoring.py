"""New rows, with or without labels, get the scores that `evaluate` gives them."""

import io
import json
import re
import shutil
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cowclip_merlin as cc
from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.training import Scorer, score_files
from cowclip_merlin.training.scoring import predicting

COUNTRIES = ["NA", "null", "", '"x', "DE"]
HEADER = "y,user,country,price,request"


def rows(n, seed):
    """Rows of text; users above 30 are only in seed 2."""
    draw = np.random.default_rng(seed)
    users, prices = draw.integers(1, 20 + 20 * seed, n), draw.random(n).round(3)
    return [
        [str(i % 2), str(user), COUNTRIES[i % 5], "" if i % 6 == 0 else str(price), f"r{i}"]
        for i, (user, price) in enumerate(zip(users, prices, strict=True))
    ]


def write(path, found, *, separator=",", header=HEADER):
    """Write rows as text, without the columns that the header lacks."""
    used = [HEADER.split(",").index(name) for name in header.split(",")]
    lines = [header.split(","), *([row[i] for i in used] for row in found)]
    if separator == ",":
        lines = [[cell.replace('"x', '"""x"') for cell in line] for line in lines]
    path.write_text("\n".join(map(separator.join, lines)) + "\n")
    return path


@pytest.fixture(scope="module")
def made(make_once):
    """DATA, RUN, and the rows of new.tsv with the scores that `evaluate` gives them."""

    def make(folder):
        write(folder / "log.tsv", rows(400, 1), separator="\t")
        write(folder / "new.tsv", rows(150, 2), separator="\t")
        data, run, new = (str(folder / name) for name in ("DATA", "RUN", "NEW"))
        what = ["--label", "y", "--categorical", "user,country", "--continuous", "price", "--log"]
        small = ["--model", "deepfm", "--batch-size", "64", "--base-batch-size", "32", "--mlp", "8"]
        for command in (
            ["prepare", "table", str(folder / "log.tsv"), "--out", data, *what],
            ["train", data, "--out", run, *small, "--embedding-lr", "1e-2", "--epochs", "1"],
            ["prepare", "table", str(folder / "new.tsv"), "--out", new, "--like", data],
            ["evaluate", run, new, "--predictions", str(folder / "expected.parquet")],
        ):
            assert main(command) == 0

    return make_once("scored-table", make)


@pytest.fixture(scope="module")
def expected(made):
    found = pd.read_parquet(made / "expected.parquet").probability.to_numpy()
    assert len(np.unique(found)) > 100
    return found


@pytest.fixture(scope="module")
def scorer(made):
    return Scorer(made / "RUN")


def new_frame():
    """The rows of new.tsv as a program may have them: numbers, and NaN for missing ones."""
    frame = pd.DataFrame(rows(150, 2), columns=HEADER.split(","))
    frame["price"] = pd.to_numeric(frame["price"])
    return frame.astype({"user": "int64"}).replace({"country": {"": None}})


@pytest.mark.parametrize("name", ["new.tsv", "new.csv", "new.parquet", "unlabeled.csv"])
def test_files_are_scored_as_evaluate_does_to_the_bit(scorer, made, expected, tmp_path, name):
    header = HEADER.removeprefix("y,") if name == "unlabeled.csv" else HEADER
    if name.endswith("csv"):
        write(tmp_path / name, rows(150, 2), header=header)
    elif name.endswith("tsv"):
        shutil.copy(made / name, tmp_path / name)
    else:
        pq.write_table(pa.Table.from_pandas(new_frame()), tmp_path / name)
    assert (scorer.score(tmp_path / name) == expected).all()


def test_a_frame_is_scored_likewise(scorer, made, expected):
    frame = new_frame().drop(columns=["y"])
    assert (cc.score(made / "RUN", frame) == expected).all()
    shuffled = frame.astype({"user": "float64"}).set_index("request")[["price", "country", "user"]]
    assert (scorer.score(shuffled) == expected).all()
    assert scorer.score(frame[:0]).shape == (0,)


def test_batches_and_pieces_do_not_matter(scorer, made, expected, tmp_path, monkeypatch):
    module = sys.modules["cowclip_merlin.workflows.read_log"]  # the package has the function
    monkeypatch.setattr(module, "BLOCK_BYTES", 500)
    monkeypatch.setattr(module, "_FRAME_ROWS", 7)
    monkeypatch.setattr(predicting, "PREDICTION_BATCH_SIZE", 64)
    out = tmp_path / "scores.parquet"
    score_files(made / "RUN", made / "new.tsv", out=out)
    groups = pq.ParquetFile(out).metadata
    assert [groups.row_group(i).num_rows for i in range(groups.num_row_groups)] == [64, 64, 22]
    evaluation_run = tmp_path / "p.parquet"
    cc.training.evaluate_run(made / "RUN", made / "NEW", predictions=evaluation_run)
    wanted = pd.read_parquet(evaluation_run).probability
    assert (pd.read_parquet(out).probability == wanted).all()
    assert (scorer.score(new_frame()) == wanted).all()
    np.testing.assert_allclose(wanted, expected, atol=1e-6)


def test_the_command_keeps_columns_and_tells_what_is_unknown(made, expected, tmp_path, capsys):
    out = tmp_path / "scores.parquet"
    command = ["score", str(made / "RUN"), str(made / "new.tsv"), "--out", str(out)]
    assert main([*command, "--keep", "request,user,y,price"]) == 0
    found, given = pd.read_parquet(out), rows(150, 2)
    assert list(found) == ["row", "request", "user", "y", "price", "probability"]
    assert found["row"].tolist() == list(range(150))
    for name, at in {"y": 0, "user": 1, "request": 4}.items():
        assert found[name].tolist() == [row[at] for row in given]
    assert (found["probability"] == expected).all()
    known = cc.workflows.value_to_id(cc.workflows.PreparedData.load(made / "DATA"), "user")
    share = sum(row[1] not in known for row in given) / 150
    assert 0.1 < share < 0.9
    lines = capsys.readouterr().out.splitlines()[-2:]
    told = f"unknown values: user {share:.2%}; none in 1 other column"
    assert lines == [f"{out}: 150 rows", told]


def changed(path, column, value):
    """New rows with a column that is written otherwise: a function of the text."""
    place, found = HEADER.split(",").index(column), rows(150, 1)
    for row in found:
        row[place] = value(row[place])
    return write(path, found)


OTHERWISE = [
    ("user", lambda x: f"{int(x):03d}", r"'user': \d+\.\d% .*: '0\d+' is '\d+' there"),
    ("user", lambda x: f"u{x}", r"'user': 100\.0% .*, in the test rows 0\.0%: such as 'u\d+', but"),
    ("country", lambda x: x and f"{x} ", r"'country': 100\.0%.*: 'NA ' is 'NA' there"),
]


@pytest.mark.parametrize(("column", "value", "words"), OTHERWISE, ids=["zeros", "other", "case"])
def test_a_column_written_otherwise_ends_the_scoring(
    made, scorer, tmp_path, capsys, column, value, words
):
    file, out = changed(tmp_path / "new.csv", column, value), tmp_path / "s.parquet"
    command = ["score", str(made / "RUN"), str(file), "--out", str(out)]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert re.search(words, error) and f"--allow-unknown {column} scores" in error
    assert list(tmp_path.iterdir()) == [file]
    with pytest.raises(InputError, match=words):
        scorer.score(file)
    assert main([*command, "--allow-unknown", column]) == 0
    assert len(scorer.score(file, allow_unknown=[column])) == len(pd.read_parquet(out)) == 150


def test_a_new_user_and_a_few_rows_are_scored(made, scorer, caplog):
    """Such as candidates for one user: many rows, but one unknown value."""
    frame = new_frame()
    assert len(scorer.score(frame.assign(user="somebody"))) == 150
    assert len(scorer.score(frame[:5].assign(user=[f"u{i}" for i in range(5)]))) == 5
    assert not caplog.messages
    with pytest.raises(InputError, match="has no categorical column 'price'; it has user, country"):
        cc.score(made / "RUN", frame, allow_unknown=["price"])


def test_a_column_of_few_values_that_are_all_unknown_is_told(scorer, caplog):
    """Such as countries as names, where the training had the ids of an NVTabular workflow."""
    assert len(scorer.score(new_frame().assign(country=["X", "Y"] * 75))) == 150
    (line,) = caplog.messages
    assert "column 'country': 100.0% of the values are unknown, in the test rows" in line


def test_unknown_values_are_told_without_test_rows_too(scorer, monkeypatch, caplog):
    """As after `prepare --test-fraction 0`."""
    without = replace(scorer.data.baseline, values={}, unknown={})
    monkeypatch.setattr(scorer, "data", replace(scorer.data, baseline=without))
    users, frame = [f"new{i}" for i in range(150)], new_frame()
    scorer.score(frame.assign(user=users))
    words = "column 'user': 100.0% of the values are unknown, and there are no test rows to compare"
    assert [line for line in caplog.messages if words in line]
    with pytest.raises(InputError, match=words):  # one that only looks otherwise
        scorer.score(frame.assign(user=" " + frame.user.astype(str)))


def test_what_changed_is_logged_by_score_and_by_prepare(made, scorer, tmp_path, caplog):
    frame = new_frame().assign(country=None, user=[str(i % 40 + 20) for i in range(150)])
    frame["price"] = 100 * frame["price"] + 5
    known = set(cc.workflows.value_to_id(scorer.data, "user"))
    assert 0.2 < frame.user.isin(known).mean() <= 0.6
    scorer.score(frame, allow_unknown=["user"])
    expected = [
        r"warning: column 'user': \d\d\.\d% of the values are unknown, in the test rows 0\.0%",
        r"warning: column 'country': 100\.0% of the rows have no value, but 2\d\.\d% of the trai",
        r"warning: column 'price': 100\.0% of the numbers are outside .*, 0 to 0\.99\d; check its",
    ]
    for pattern, line in zip(expected, caplog.messages, strict=True):
        assert re.match(pattern, line)
    new = write(
        tmp_path / "new.csv", [[*r[:3], str(i + 7), r[4]] for i, r in enumerate(rows(60, 1))]
    )
    caplog.clear()
    command = ["prepare", "table", str(new), "--out", str(tmp_path / "NEW")]
    assert main([*command, "--like", str(made / "DATA")]) == 0
    assert len(caplog.messages) == 1 and re.match(expected[2], caplog.messages[0])


def test_shares_are_those_of_the_values_that_are_there(made, tmp_path, capsys):
    """In `score` as in `prepare --like`; missing countries do not count."""
    found = [[*r[:2], "FR" if r[2] == "DE" else r[2], *r[3:]] for r in rows(150, 1)]
    new, out = write(tmp_path / "new.csv", found), str(tmp_path / "s.parquet")
    assert main(["score", str(made / "RUN"), str(new), "--out", out]) == 0
    assert "country 25.00%" in capsys.readouterr().out
    like = ["--out", str(tmp_path / "NEW"), "--like", str(made / "DATA")]
    assert main(["prepare", "table", str(new), *like]) == 0
    assert "country 25.0%" in capsys.readouterr().out


def test_columns_of_parquet_keep_their_types(made, tmp_path):
    frame = new_frame().assign(when=pd.Timestamp("2020-01-01"), tags=[["a"]] * 150)
    pq.write_table(pa.Table.from_pandas(frame), tmp_path / "new.parquet")
    out, keep = tmp_path / "scores.parquet", ["when", "tags", "user", "y"]
    files = [tmp_path / "new.parquet", tmp_path / "copy.parquet"]
    shutil.copy(*files)
    score_files(made / "RUN", files, out=out, keep=keep)
    found = pq.read_table(out).select(keep).to_pandas()
    pd.testing.assert_frame_equal(found, pd.concat([frame[keep]] * 2, ignore_index=True))
    with pytest.raises(InputError, match="`keep` user: one file has int64 and another string"):
        files = [tmp_path / "new.parquet", made / "new.tsv"]
        score_files(made / "RUN", files, out=tmp_path / "other.parquet", keep=["user"])
    assert not (tmp_path / "other.parquet").exists()


def test_a_missing_column_is_found_before_the_model_is_loaded(made, tmp_path, monkeypatch):
    monkeypatch.setattr("cowclip_merlin.training.scoring.scorer.Scorer", None)
    new = write(tmp_path / "new.csv", rows(9, 1), header="user,price")
    with pytest.raises(InputError, match="no column 'country'"):
        score_files(made / "RUN", new, out=tmp_path / "scores.csv")


def test_rows_in_place_of_the_run_are_refused(made):
    for call in (cc.score, lambda run, _: cc.load(run)):
        with pytest.raises(InputError, match="`run` is a DataFrame; give the path of a run"):
            call(new_frame(), made / "RUN")


def test_damaged_rows_are_told_and_leave_a_gap(made, scorer, expected, tmp_path, capsys):
    given = rows(150, 2)
    given[0][0] = given[1][0] = "maybe"  # labels do not matter
    given.insert(7, ["1", "3", "DE", "cheap", "r"])
    file, out = write(tmp_path / "new.tsv", given, separator="\t"), tmp_path / "scores.parquet"
    command = ["score", str(made / "RUN"), str(file), "--out", str(out)]
    assert main(command) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert "new.tsv:9: price is 'cheap'" in told
    assert [path.name for path in tmp_path.iterdir()] == ["new.tsv"]
    assert main([*command, "--max-bad-fraction", "0.1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("new.tsv:9: price is 'cheap', not a number")
    assert lines[1] == f"{out}: 150 rows; damaged and left out: 1"
    found = pd.read_parquet(out)
    assert found["row"].tolist() == [*range(7), *range(8, 151)]
    assert (found["probability"] == expected).all()
    with pytest.raises(InputError, match=r"new\.tsv:9: price is 'cheap'"):
        scorer.score(file)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"price": np.inf}, "the frame: row 0,.* price is inf,"),
        ({"price": [1.0] * 9 + [1e308] * 141}, "row 9,.* price is 1e.308, too large"),
        ({"price": "cheap"}, "the frame: column 'price' is string"),
        ({"price": [1, "2"] * 75}, "column 'price' is object"),
        ({"user": 0.5}, "column 'user' has 0.5"),
        ({"user": pd.Timestamp("2020-01-01")}, "column 'user' is timestamp"),
    ],
)
def test_values_of_a_frame_that_are_refused(scorer, change, reason):
    with pytest.raises(InputError, match=reason):
        scorer.score(new_frame().assign(**change))


def test_columns_of_a_frame_that_are_missing_or_repeated(scorer):
    frame = new_frame()
    with pytest.raises(InputError, match=r"the frame .*no column 'user'"):
        scorer.score(frame.drop(columns=["user"]))
    with pytest.raises(InputError, match=r"the frame .*2 columns 'user'"):
        scorer.score(pd.concat([frame, frame["user"]], axis=1))


def test_data_that_moved_are_asked_for(made, expected, tmp_path):
    shutil.copytree(made / "RUN", tmp_path / "RUN")
    config = json.loads((tmp_path / "RUN/config.json").read_text())
    assert config["data_path"] == str(made / "DATA")
    (tmp_path / "RUN/config.json").write_text(json.dumps(config | {"data_path": "gone"}))
    with pytest.raises(InputError, match=r"gone: no such folder.*RUN.*as `data`$"):
        Scorer(tmp_path / "RUN")
    out = tmp_path / "scores.parquet"
    command = ["score", str(tmp_path / "RUN"), str(made / "new.tsv"), "--out", str(out)]
    assert main([*command, "--data", str(made / "DATA")]) == 0
    assert (pd.read_parquet(out).probability == expected).all()


@pytest.mark.parametrize("end", ["csv", "csv.gz", "CSV"])
def test_the_name_of_the_file_says_what_is_written(made, expected, tmp_path, monkeypatch, end):
    monkeypatch.setattr(predicting, "PREDICTION_BATCH_SIZE", 64)
    scores, predictions = tmp_path / f"s.{end}", tmp_path / f"p.{end}"
    score_files(made / "RUN", made / "new.tsv", out=scores, keep=["country"])
    cc.training.evaluate_run(made / "RUN", made / "NEW", predictions=predictions)
    for file in (scores, predictions):
        found = pd.read_csv(file, keep_default_na=False, compression="infer")
        np.testing.assert_allclose(found.probability, expected, atol=1e-6)
        assert found["row"].tolist() == list(range(150))
    countries = pd.read_csv(scores, keep_default_na=False).country
    assert countries.tolist() == [row[2] for row in rows(150, 2)]
    with pytest.raises(InputError, match=r"p\.txt: ends neither in \.parquet nor in \.csv"):
        cc.training.evaluate_run(made / "RUN", made / "NEW", predictions=tmp_path / "p.txt")


def test_lists_do_not_fit_into_csv(made, tmp_path):
    frame = new_frame().assign(tags=[["a"]] * 150)
    pq.write_table(pa.Table.from_pandas(frame), tmp_path / "new.parquet")
    with pytest.raises(
        InputError, match=r"s\.csv\.gz: column 'tags' is list<.*>, which CSV cannot"
    ):
        score_files(
            made / "RUN", tmp_path / "new.parquet", out=tmp_path / "s.csv.gz", keep=["tags"]
        )
    assert not list(tmp_path.glob("*s.csv*"))


@pytest.mark.parametrize("split", ["random", "time"])
def test_all_rows_may_be_training_rows(tmp_path, capsys, split):
    """Then validation rows say how good the model is; nothing compares new rows with test rows."""
    log = str(write(tmp_path / "log.tsv", rows(400, 1), separator="\t"))
    data, run = str(tmp_path / "DATA"), str(tmp_path / "RUN")
    what = ["--label", "y", "--categorical", "user,country", "--continuous", "price"]
    what += ["--split", split, "--test-fraction", "0"]
    assert main(["prepare", "table", log, "--out", data, *what]) == 0
    assert "400 rows in = 400 train + 0 test + 0 " in capsys.readouterr().out
    train = ["train", data, "--model", "deepfm", "--batch-size", "64", "--mlp", "8", "--out", run]
    assert main([*train, "--epochs", "1"]) == 2
    error = capsys.readouterr().err
    assert "no test rows to score after each epoch; add --validation-fraction 0.001 for" in error
    if split == "time":  # once is enough
        return
    assert main([*train, "--epochs", "1", "--validation-fraction", "0.01"]) == 0
    assert main(["evaluate", run, data]) == 2
    assert "no rows in the test split; choose the other split" in capsys.readouterr().err
    assert main(["score", run, log, "--out", str(tmp_path / "s.csv")]) == 0


@pytest.mark.parametrize("labels", [True, False])
def test_a_blank_line_is_damaged_with_and_without_labels(made, tmp_path, labels):
    header = HEADER if labels else HEADER.removeprefix("y,")
    file = write(tmp_path / "new.csv", rows(9, 1), header=header)
    lines = file.read_text().splitlines()
    for end in ("\n", "\r\n"):
        file.write_bytes(end.join([*lines[:3], "", *lines[3:], ""]).encode())
        with pytest.raises(InputError, match=r"new\.csv:4: a blank line; repair this row"):
            cc.workflows.read_log(file, cc.workflows.PreparedData.load(made / "DATA"))
        out = tmp_path / "s.parquet"
        found = score_files(made / "RUN", file, out=out, max_bad_fraction=0.2, overwrite=True)
        assert (found.rows, found.damaged) == (9, 1)
        assert pd.read_parquet(out)["row"].tolist() == [0, 1, *range(3, 10)]


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_rows_of_standard_input_score_alike(made, expected, tmp_path, monkeypatch, capsys, kind):
    frame = pd.DataFrame(rows(150, 2), columns=HEADER.split(","))
    frame = frame.where(frame != "", None).astype({"price": float})
    if kind == "jsonl":
        frame.to_json(tmp_path / "new", orient="records", lines=True)
    elif kind == "parquet":
        frame.to_parquet(tmp_path / "new")
    else:
        write(tmp_path / "new", rows(150, 2), separator="\t" if kind == "tsv" else ",")
    stdin = io.TextIOWrapper((tmp_path / "new").open("rb"), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", stdin)
    words = ["score", str(made / "RUN"), "-", "--out", str(tmp_path / "s.parquet"), "--json"]
    assert main([*words, "--allow-unknown", "user"]) == 0
    np.testing.assert_array_equal(pd.read_parquet(tmp_path / "s.parquet").probability, expected)
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert (found["rows"], found["damaged"], [*found["unknown"]]) == (150, 0, ["user", "country"])


def test_errors_name_the_standard_input(made, tmp_path, monkeypatch, capsys):
    words = ["score", str(made / "RUN"), "-", "--out", str(tmp_path / "s.csv")]
    for text, says in (("", "the file is empty"), ("a,b\n", "no column")):
        stdin = io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8")
        monkeypatch.setattr(sys, "stdin", stdin)
        assert main(words) == 2
        assert f"error: standard input: {says}" in capsys.readouterr().err
    write(tmp_path / "new.csv", rows(150, 2))
    with (tmp_path / "new.csv").open("a") as file:
        file.write("one cell\n")
    stdin = io.TextIOWrapper((tmp_path / "new.csv").open("rb"), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", stdin)
    assert main([*words, "--max-bad-fraction", "0.1", "--allow-unknown", "user"]) == 0
    assert "damaged: standard input:152: 1 columns" in capsys.readouterr().out


def test_metrics_as_json(made, capsys):
    words = ["evaluate", str(made / "RUN"), str(made / "NEW"), "--json"]
    assert main(words) == 0
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert found["rows"] == 150 and found["split"] == "test" and found["difference"] is None
    assert main(words[:-1]) == 0
    assert f"AUC {found['auc']:.6f} (standard error" in capsys.readouterr().out
