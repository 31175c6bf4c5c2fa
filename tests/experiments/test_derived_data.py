"""Changed data sets: which rows and ids are kept, and that the rest is untouched."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_experiment import experiment

from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.on_data.derived_data import derive_data, renumbered_ids
from cowclip_merlin.experiments.on_data.plan import DataVariant
from cowclip_merlin.loading import read_columns
from cowclip_merlin.workflows import PreparedData, read_counts
from cowclip_merlin.workflows.prepared.folder import checksums


@given(
    cnt=st.lists(st.integers(0, 20), min_size=3, max_size=30),
    keep_top=st.none() | st.integers(1, 10),
    min_count=st.none() | st.integers(1, 10),
)
def test_renumbering(cnt, keep_top, min_count):
    new = renumbered_ids(np.array(cnt), DataVariant(keep_top=keep_top, min_count=min_count))
    assert new[:3].tolist() == [0, 1, 2]
    values = [(-c, old) for old, c in enumerate(cnt) if old >= 3 and c >= (min_count or 1)]
    kept = [old for _, old in sorted(values)][:keep_top]
    expected = {old: 3 + index for index, old in enumerate(kept)}
    assert [expected.get(old, 2) for old in range(3, len(cnt))] == new[3:].tolist()


@pytest.mark.parametrize(
    "variant", [DataVariant(keep_top=3), DataVariant(min_count=5), DataVariant(fraction=0.25)]
)
def test_a_derived_folder(data, tmp_path, variant):
    whole = PreparedData.load(data)
    made = derive_data(whole, variant, tmp_path)
    assert made.fingerprint != whole.fingerprint
    before, after = read_columns(whole, "train"), read_columns(made, "train")
    if variant.fraction == 1:
        np.testing.assert_array_equal(before.continuous, after.continuous)
        np.testing.assert_array_equal(before.label, after.label)
    else:
        assert 0.2 < len(after) / len(before) < 0.3
    for j, name in enumerate(made.categorical):
        cnt = np.bincount(after.ids[:, j], minlength=made.cardinalities[name])
        counted = read_counts(made, name)["count"].to_numpy()
        np.testing.assert_array_equal(counted, cnt)
        assert (cnt[3:] >= (variant.min_count or 1)).all()
        assert (np.diff(cnt[3:]) <= 0).all()
        assert len(cnt) - 3 <= (variant.keep_top or len(cnt))
    assert read_columns(made, "test").ids.max() < max(made.cardinalities.values())


def test_the_same_ids_before_and_after(data, tmp_path):
    """Two rows share an id afterwards if and only if they did, or both are out of vocabulary."""
    whole = PreparedData.load(data)
    made = derive_data(whole, DataVariant(min_count=3), tmp_path)
    before, after = read_columns(whole, "train").ids, read_columns(made, "train").ids
    for j in range(before.shape[1]):
        pairs = {(b, a) for b, a in zip(before[:, j].tolist(), after[:, j].tolist())}
        assert len(pairs) == len({b for b, _ in pairs})
        assert len({a for _, a in pairs if a >= 3}) == len([b for b, a in pairs if a >= 3])


def test_made_once_and_nothing_is_made_for_no_change(data, tmp_path):
    whole = PreparedData.load(data)
    assert derive_data(whole, DataVariant(), tmp_path / "none") is whole
    assert not (tmp_path / "none").exists()
    made = derive_data(whole, DataVariant(keep_top=2), tmp_path)
    stamp = (made.path / "dataset.json").stat().st_mtime_ns
    again = derive_data(whole, DataVariant(keep_top=2), tmp_path)
    assert (again.path / "dataset.json").stat().st_mtime_ns == stamp
    assert [p.name for p in tmp_path.iterdir()] == [made.path.name]


def test_a_share_without_rows_leaves_no_folder(data, tmp_path):
    with pytest.raises(InputError, match="no train rows"):
        derive_data(PreparedData.load(data), DataVariant(fraction=1e-9), tmp_path)
    assert list(tmp_path.iterdir()) == []


def a_strange_id(folder):
    (file,) = (folder / "train").glob("*.parquet")
    table = pq.read_table(file)
    ids = table["C2"].to_numpy().copy()
    ids[0] = 10_000_000
    index = table.column_names.index("C2")
    pq.write_table(table.set_column(index, "C2", pa.array(ids)), file)
    description = json.loads((folder / "dataset.json").read_text())
    description["checksums"] = checksums(folder)
    (folder / "dataset.json").write_text(json.dumps(description))


def cut(name):
    def short(folder):
        (file,) = folder.glob(name)
        file.write_bytes(file.read_bytes()[:-100])

    return short


@pytest.mark.parametrize(
    ("damage", "name", "words"),
    [
        (a_strange_id, "mine.yaml", "column 'C2' contains id 10000000,"),
        (cut("test/*.parquet"), "mine.yaml", "damaged parquet"),
        (cut("counts/C2.parquet"), "figure3", "C2.parquet: damaged parquet"),
        (lambda folder: (folder / "counts" / "C2.parquet").unlink(), "figure3", "no such file"),
    ],
)
def test_a_damaged_data_folder_is_one_line(
    data, tmp_path, capsys, monkeypatch, damage, name, words
):
    shutil.copytree(data, tmp_path / "data")
    damage(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    line = "{label: a, keep_top: 3, multipliers: [1]}"
    (tmp_path / "mine.yaml").write_text(f"title: t\nclaim: c\nlines: [{line}]")
    assert main(["experiment", name, "--data", "data", "--max-multiplier", "4"]) == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1


@pytest.fixture(scope="module")
def with_lists(tmp_path_factory):
    """A table with two columns of lists, of which some are empty."""
    folder, rng = tmp_path_factory.mktemp("lists"), np.random.default_rng(4)
    lists = {
        name: [[f"v{i}" for i in rng.zipf(1.4, n) % 40] for n in rng.integers(0, 5, 900)]
        for name in ("tags", "seen")
    }
    columns = {"user": rng.integers(0, 50, 900), "x": rng.random(900), "y": rng.integers(0, 2, 900)}
    pq.write_table(pa.table(columns | lists), folder / "log.parquet")
    words = ["--label", "y", "--categorical", "user", "--multi", "tags,seen", "--continuous", "x"]
    data = folder / "DATA"
    assert main(["prepare", "table", str(folder / "log.parquet"), "--out", str(data), *words]) == 0
    return data


@pytest.mark.parametrize(
    "variant", [DataVariant(keep_top=3), DataVariant(min_count=5, fraction=0.5)]
)
def test_lists_keep_their_lengths(with_lists, tmp_path, variant):
    """Against a slow count; ids that are dropped become out of vocabulary."""
    whole = PreparedData.load(with_lists)
    made = derive_data(whole, variant, tmp_path)
    if variant.fraction == 1:
        np.testing.assert_array_equal(
            *(read_columns(each, "train").lengths for each in (whole, made))
        )
    for f, name in enumerate(made.categorical):
        ids = read_columns(made, "train").column(f)[0].tolist()
        counted = read_counts(made, name)["count"].to_pylist()
        assert counted == [ids.count(i) for i in range(len(counted))]
        assert min(counted[3:]) >= (variant.min_count or 1)
        assert len(counted) - 3 <= (variant.keep_top or len(counted))
    tags = [read_columns(each, "train").column(1)[0].tolist() for each in (whole, made)]
    if variant.fraction == 1:
        pairs = set(zip(*tags, strict=True))
        assert len(pairs) == len({before for before, _ in pairs})


@pytest.mark.thorough
@pytest.mark.runs
def test_the_remedy_for_damaged_derived_data_is_to_delete_it(with_lists, tmp_path, capsys):
    """Then the experiment runs, also on lists."""
    out, mine = tmp_path / "results", tmp_path / "mine.yaml"
    lines = "[{label: all, multipliers: [1]}, {label: top, keep_top: 3, multipliers: [1]}]"
    mine.write_text(f"title: t\nclaim: c\nlines: {lines}")
    for damage in (
        lambda folder: (folder / "dataset.json").write_text("{"),
        lambda folder: (folder / "dataset.json").unlink(),
        cut("train/*.parquet"),
    ):
        whole = PreparedData.load(with_lists)
        made = derive_data(whole, DataVariant(keep_top=3), out / "data").path
        damage(made)
        assert experiment(mine, with_lists, out, "--lines", "top") == 2
        said = capsys.readouterr().err
        assert f"; delete {made}, " in said and said.count("\n") == 1
        shutil.rmtree(made)
    assert experiment(mine, with_lists, out, "--seeds", "1") == 0
    assert (out / "results.csv").read_text(encoding="utf-8").count("\n") == 3
