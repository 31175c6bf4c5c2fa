"""`cowclip adopt`: the output of an NVTabular workflow becomes a prepared folder."""

import shutil

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from cowclip_merlin import compat
from cowclip_merlin.cli import main
from cowclip_merlin.workflows import PreparedData, read_counts
from cowclip_merlin.workflows.prepared.counts import OUT_OF_VOCABULARY

ROWS, TRAINING = 600, 480


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    """TRAIN and VALID of a workflow with all kinds of columns."""
    nvt = compat.nvtabular()
    from merlin.schema import Tags
    from nvtabular import ops

    folder, draw = tmp_path_factory.mktemp("output"), np.random.default_rng(0)
    log = pd.DataFrame({"user": draw.integers(0, 9, ROWS), "before": draw.integers(0, 12, ROWS)})
    log["tags"] = [draw.integers(0, 6, n).tolist() for n in draw.integers(1, 4, ROWS)]
    log["price"] = draw.exponential(size=ROWS)
    log["vector"] = draw.normal(size=(ROWS, 2)).tolist()
    log["click"] = draw.integers(0, 2, ROWS).astype("float32")
    log["seconds"] = draw.random(ROWS)
    log["row"] = np.arange(ROWS)
    columns = [["user", "before"], "tags"] >> ops.Categorify(out_path=str(folder))
    columns += ["price"] >> ops.LogOp() >> ops.Normalize(out_dtype="float32")
    columns += ["vector"] >> ops.AddMetadata(tags=[Tags.CONTINUOUS])
    columns += ["click"] >> ops.AddMetadata(tags=[Tags.BINARY_CLASSIFICATION, Tags.TARGET])
    seconds = [Tags.REGRESSION, Tags.TARGET, Tags.CONTINUOUS]  # as after Normalize
    columns += ["seconds"] >> ops.AddMetadata(tags=seconds)
    columns += ["row"]
    workflow = nvt.Workflow(columns)
    with compat.quiet_merlin():
        training = nvt.Dataset(log[:TRAINING])
        workflow.fit(training).transform(training).to_parquet(str(folder / "TRAIN"))
        valid = nvt.Dataset(log[TRAINING:].reset_index(drop=True))
        workflow.transform(valid).to_parquet(str(folder / "VALID"))
        # As NVTabular writes lists of a part of a DataFrame: without their values.
        workflow.transform(nvt.Dataset(log[TRAINING:])).to_parquet(str(folder / "NO-LISTS"))
    return folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Raw rows, TRAIN, VALID and the folder of the workflow: rare, missing and unknown values."""
    compat.nvtabular()
    from nvtabular import ops

    folder, draw = tmp_path_factory.mktemp("saved"), np.random.default_rng(1)
    log = pd.DataFrame({"user": draw.integers(0, 99, ROWS), "before": draw.integers(0, 99, ROWS)})
    log["city"] = draw.choice([None, "", "a", "b", "47", "47.0", "once"], ROWS)
    log["level"] = draw.choice([np.nan, 1, 2, 3], ROWS)
    log["tags"] = [draw.choice(["x", "y", "z"], n).tolist() for n in draw.integers(0, 3, ROWS)]
    log["click"] = draw.integers(0, 2, ROWS).astype("float32")
    ids = [["user", "before"], "city", "level", "tags"]
    write(folder, log, ids >> ops.Categorify(freq_threshold=9, out_path=str(folder)))
    log[:TRAINING].to_parquet(folder / "train.parquet")
    log[TRAINING:].to_parquet(folder / "test.parquet")
    return folder


def write(folder, log, columns):
    """Fit a workflow to the first rows of a log; write TRAIN, VALID and WORKFLOW."""
    import nvtabular as nvt
    from merlin.schema import Tags
    from nvtabular import ops

    tags = [Tags.BINARY_CLASSIFICATION, Tags.TARGET]
    workflow = nvt.Workflow(columns + (["click"] >> ops.AddMetadata(tags=tags)))
    with compat.quiet_merlin():
        rows = {"TRAIN": log[:TRAINING], "VALID": log[TRAINING:].reset_index(drop=True)}
        workflow.fit(nvt.Dataset(rows["TRAIN"]))
        for name, each in rows.items():
            workflow.transform(nvt.Dataset(each)).to_parquet(str(folder / name))
    workflow.save(str(folder / "WORKFLOW"))
    (folder / "WORKFLOW/workflow.pkl").write_bytes(b"nothing reads it")


def adopted(folder, *words):
    assert main(["adopt", str(folder / "TRAIN"), str(folder / "VALID"), *words]) == 0
    return PreparedData.load(words[words.index("--out") + 1])


def rows_of(*files):
    return pd.concat([pq.read_table(file).to_pandas() for file in files], ignore_index=True)


def test_ids_and_numbers_are_those_of_the_output(output, tmp_path, capsys):
    data = adopted(output, "--out", str(tmp_path / "DATA"))
    assert "left out: row, no tag says what it is" in capsys.readouterr().out
    assert data.rows == {"train": TRAINING, "test": ROWS - TRAINING}
    assert data.log_format.labels == ("click", "seconds")
    assert data.log_format.regression == ("seconds",)
    assert data.log_format.share_embedding == {"before": "user"}
    for split, name in (("train", "TRAIN"), ("test", "VALID")):
        given = rows_of(*sorted((output / name).glob("*.parquet")))
        got = rows_of(*data.files(split))
        meant: dict[str, set] = {"user": set(), "tags": set()}
        for table, column in (("user", "user"), ("user", "before")):
            meant[table] |= set(zip(given[column], got[column]))
        for ours, theirs in zip(got["tags"], given["tags"]):
            assert len(ours) == len(theirs)
            meant["tags"] |= set(zip(theirs, ours))
        for pairs in meant.values():  # one id each way
            assert len({a for a, _ in pairs}) == len({b for _, b in pairs}) == len(pairs)
        low, high = data.statistics.minimum["price"], data.statistics.maximum["price"]
        scaled = (given["price"].to_numpy(float) - low) / (high - low)
        np.testing.assert_allclose(got["price"], scaled, atol=1e-6)
        np.testing.assert_allclose(np.stack(got["vector"]), np.stack(given["vector"]), rtol=1e-6)
        np.testing.assert_array_equal(got["click"], given["click"])


def test_another_target_is_no_input(output, tmp_path, capsys):
    data = adopted(output, "--label", "click", "--out", str(tmp_path / "DATA"))
    assert "left out: seconds, a target, but none of the labels" in capsys.readouterr().out
    assert data.continuous == ("price",) and data.log_format.labels == ("click",)


@pytest.mark.runs
def test_every_command_works_on_the_folder(output, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    adopted(output, "--label", "click", "--out", "DATA")
    small = "--model deepfm --batch-size 64 --mlp 8 --epochs 1"
    assert main(f"train DATA --out RUN {small}".split()) == 0
    assert main(["evaluate", "RUN", "DATA", "--predictions", "known.parquet"]) == 0
    files = map(str, sorted((output / "VALID").glob("*.parquet")))
    assert main(["score", "RUN", *files, "--out", "new.parquet"]) == 0
    known, new = rows_of("known.parquet"), rows_of("new.parquet")
    np.testing.assert_array_equal(known["probability"], new["probability"])
    assert main(["export", "RUN", "DATA", "--out", "MODEL"]) == 0


def test_with_the_workflow_ids_are_raw_values(saved, tmp_path):
    """`prepare` gives raw rows the ids that the adopted rows have; 2 and 1 are what they were."""
    data = adopted(saved, "--workflow", str(saved / "WORKFLOW"), "--out", str(tmp_path / "DATA"))
    assert data.log_format.share_embedding == {"before": "user"}
    assert data.log_format.text == ("city", "tags")
    columns = list(data.categorical)
    for split, name in (("train", "TRAIN"), ("test", "VALID")):
        files = ("--out", str(tmp_path / split), "--like", str(data.path))
        assert main(["prepare", "table", str(saved / f"{split}.parquet"), *files]) == 0
        raw = rows_of(*PreparedData.load(tmp_path / split).files("test"))[columns]
        got, given = rows_of(*data.files(split)), rows_of(*saved.glob(f"{name}/*.parquet"))
        assert got[columns].astype(str).equals(raw.astype(str))
        # Ids that stand for no value are as there, but that an empty text is a missing value.
        empty = (pq.read_table(saved / f"{split}.parquet")["city"].to_pandas() == "").to_numpy()
        assert empty.any() and (got["city"][empty] == 1).all()
        for column in ("user", "before", "city", "level"):
            rest = ~empty if column == "city" else np.full(len(got), True)
            for special in (1, 2):
                there = (given[column] == special).to_numpy()
                assert ((got[column] == special).to_numpy() == there)[rest].all()
    assert (got["user"] == 2).any() and (got["level"] == 1).any()
    longer = ("--out", str(tmp_path / "LONGER"), "--extend", str(data.path))
    assert main(["prepare", "table", str(saved / "test.parquet"), *longer]) == 0
    values = read_counts(PreparedData.load(tmp_path / "LONGER"), "user")["value"].to_pylist()
    known = read_counts(data, "user")["value"].to_pylist()
    assert values[: len(known)] == known and OUT_OF_VOCABULARY not in values


@pytest.mark.runs
def test_a_run_scores_raw_rows(saved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    adopted(saved, "--workflow", str(saved / "WORKFLOW"), "--out", "DATA")
    small = "--model deepfm --batch-size 64 --mlp 8 --epochs 1"
    assert main(f"train DATA --out RUN {small}".split()) == 0
    assert main(["evaluate", "RUN", "DATA", "--predictions", "known.parquet"]) == 0
    assert main(["score", "RUN", str(saved / "test.parquet"), "--out", "new.parquet"]) == 0
    known, new = rows_of("known.parquet"), rows_of("new.parquet")
    np.testing.assert_array_equal(known["probability"], new["probability"])


def of_buckets(ops, path):
    return ["user"] >> ops.Categorify(freq_threshold=9, num_buckets=5, out_path=path)


def of_pairs(ops, path):
    return [["user", "before"]] >> ops.Categorify(encode_type="combo", out_path=path)


def of_one_table(ops, path):
    return ["before", "user"] >> ops.Categorify(single_table=True, out_path=path)


def of_hashes(ops, path):
    return (["before"] >> ops.Categorify(out_path=path)) + (["user"] >> ops.HashBucket(5))


@pytest.mark.parametrize(
    "columns, says",
    [
        (of_buckets, "WORKFLOW: column 'user' has 5 buckets, each for many raw values"),
        (of_pairs, "unique.user_before.parquet: ids of 'user_before' stand for several columns"),
        (of_one_table, "unique.user.parquet: ids of 'user' start at 102, and not at 3"),
        (of_hashes, "WORKFLOW: column 'user' has no vocabulary, which only Categorify has"),
    ],
)
def test_ids_of_several_values_are_refused(tmp_path, monkeypatch, capsys, columns, says):
    compat.nvtabular()
    from nvtabular import ops

    monkeypatch.chdir(tmp_path)
    log = pd.DataFrame({"user": np.arange(ROWS) % 99, "before": np.arange(ROWS) % 99})
    log["click"] = (np.arange(ROWS) % 2).astype("float32")
    write(tmp_path, log, columns(ops, str(tmp_path)))
    assert main(["adopt", "TRAIN", "VALID", "--workflow", "WORKFLOW", "--out", "DATA"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert says in error and "omit --workflow" in error and not (tmp_path / "DATA").exists()


def other_order(folder):
    """The vocabulary of a workflow that was fitted to other rows."""
    file = folder / "WORKFLOW/categories/unique.level.parquet"
    table = pq.read_table(file)
    sizes = table["level_size"].to_pylist()[::-1]
    pq.write_table(table.set_column(1, "level_size", [[n - 99 for n in sizes]]), file)


def fewer_values(folder):
    file = folder / "WORKFLOW/categories/unique.level.parquet"
    pq.write_table(pq.read_table(file).slice(0, 2), file)


def no_vocabulary(folder):
    (folder / "WORKFLOW/categories/unique.level.parquet").unlink()


def a_label_of_2(folder):
    (file,) = (folder / "TRAIN").glob("*.parquet")
    rows = pq.read_table(file)
    pq.write_table(
        rows.set_column(rows.schema.get_field_index("click"), "click", [[2.0] * TRAINING]), file
    )


@pytest.mark.parametrize(
    "change, words, says",
    [
        (None, "TRAIN", "TRAIN: has no categories/; give the folder that Workflow.save wrote"),
        (None, "s3://bucket/WORKFLOW", "give the folder that Workflow.save wrote on this machine"),
        (no_vocabulary, "WORKFLOW", "unique.level.parquet: no such file"),
        (fewer_values, "WORKFLOW", "part_0.parquet: column 'level' has id 5, which WORKFLOW lacks"),
        (other_order, "WORKFLOW", "WORKFLOW: column 'level': TRAIN has id 3 in "),
        (a_label_of_2, "WORKFLOW", "TRAIN/part_0.parquet"),
    ],
)
def test_a_wrong_workflow_is_one_line(saved, tmp_path, monkeypatch, capsys, change, words, says):
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    if change:
        change(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert main(["adopt", "TRAIN", "VALID", "--workflow", words, "--out", "DATA"]) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_the_rows_of_three_folders(output, tmp_path):
    shutil.copytree(output / "VALID", tmp_path / "TEST")
    words = ("--test", str(tmp_path / "TEST"), "--out", str(tmp_path / "DATA"))
    rows = ROWS - TRAINING
    assert adopted(output, *words).rows == {"train": TRAINING, "test": rows, "validation": rows}


def schema_of_text(folder):
    (folder / "TRAIN/.merlin/schema.json").write_text("{")


def no_schema(folder):
    shutil.rmtree(folder / "TRAIN/.merlin")
    (folder / "TRAIN/schema.pbtxt").unlink()


def no_rows(folder):
    for file in (folder / "VALID").glob("*.parquet"):
        file.unlink()


@pytest.mark.parametrize(
    "change, words, says",
    [
        (None, "TRAIN nowhere", "nowhere: no such folder, which NVTabular"),
        (None, "TRAIN/schema.pbtxt VALID", "schema.pbtxt: is a file; give its folder"),
        (None, "TRAIN s3://bucket/VALID", "adopt reads folders of this machine"),
        (None, "TRAIN NO-LISTS", "column 'tags' has no value in any row"),
        (None, "TRAIN VALID --label clicks", "TRAIN: has no column 'clicks'; it has tags"),
        (None, "TRAIN VALID --label click,user,before,tags", "no column of Categorify"),
        (schema_of_text, "TRAIN VALID", "schema.json: is no schema of Merlin"),
        (no_schema, "TRAIN VALID", "TRAIN: has neither .merlin/schema.json nor schema.pbtxt"),
        (no_rows, "TRAIN VALID", "VALID: has no *.parquet"),
    ],
)
def test_a_wrong_folder_is_one_line(output, tmp_path, monkeypatch, capsys, change, words, says):
    shutil.copytree(output, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    if change:
        change(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert main(["adopt", *words.split(), "--out", "DATA"]) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before
