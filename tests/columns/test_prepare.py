"""What `prepare` and `read_log` make of every role, from every format, against plain Python."""

import json
import sys
from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data import KINDS, LISTS, PLAIN, ROLES, VECTORS, as_text, frame, settings_of, write

from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.models import Columns
from cowclip_merlin.targets import Target
from cowclip_merlin.workflows import PreparedData, PrepareSettings, prepare, read_log
from cowclip_merlin.workflows.prepared.counts import id_to_value, read_counts, value_to_id

CASES = {
    f"{role.name}-{kind}-{i}": (kind, *case)
    for role in ROLES.values()
    for i, (kinds, *case) in enumerate(role.damage)
    for kind in kinds.split()
}
REFUSED = {
    f"{role.name}-{i}": case for role in ROLES.values() for i, case in enumerate(role.refused)
}


def rows_of(data, splits=("train", "test")):
    """The rows of a folder; lists, and ids as their texts."""
    files = [file for split in splits for file in data.files(split)]
    table = pa.concat_tables(map(pq.read_table, files))
    found = {name: table[name].to_pylist() for name in table.column_names}
    for name in data.categorical:
        value = id_to_value(data, name)
        found[name] = [
            [value[i] for i in x] if isinstance(x, list) else value[x] for x in found[name]
        ]
    return found


def assert_equal(found, wanted):
    """Compare columns; None, NaN and pandas' missing values are one."""
    for name, column in wanted.items():
        kinds = {type(x) for x in column} - {type(None)}
        if kinds <= {int, float}:
            given = (np.array(x, np.float32) for x in (found[name], column))
            np.testing.assert_array_equal(*given, err_msg=name)
        else:
            assert [none(x) for x in found[name]] == column, name


def none(x):
    return x if isinstance(x, str) else [*x] if np.ndim(x) else None if pd.isna(x) else x


class TestValues:
    """What is in a folder, by role."""

    @pytest.mark.parametrize("kind", KINDS)
    def test_all_formats_give_the_values_of_the_log(self, data_of, role, kind):
        found = data_of(kind=kind)
        assert_equal(rows_of(found), role.expected(frame()))
        assert found.vocabulary == data_of().vocabulary

    def test_a_role_alone_adds_only_its_own_columns(self, data_of, plain, role):
        found = data_of((*PLAIN, role.name)) if role.name not in PLAIN else plain
        rows, before = rows_of(found), rows_of(plain)
        assert {*rows} == {*before, *role.columns}
        assert_equal(rows, role.expected(frame()) | {n: before[n] for n in ("user", "age")})
        described, usual = (
            {*made["settings"]}
            for made in (json.loads((x.path / "dataset.json").read_text()) for x in (found, plain))
        )
        assert {*role.words} <= described and not {*role.words} & usual
        assert (found.fingerprint == plain.fingerprint) == (role.name in PLAIN)
        if role.name == "weight":  # it decides no id and scales no number
            assert found.vocabulary == plain.vocabulary

    def test_ids_of_a_table_are_counted_in_all_its_columns(self, data, role):
        rows = rows_of(data, ["train"])
        for name in {*role.columns} & {*data.categorical}:
            table = data.log_format.table_of(name)
            counted = Counter()
            for other in data.categorical:
                if data.log_format.table_of(other) == table:
                    for x in rows[other]:
                        counted.update(x if isinstance(x, list) else [x])
            found = read_counts(data, name).to_pydict()
            known = dict(zip(found["value"][3:], found["count"][3:], strict=True))
            missing = counted.pop(None, 0)
            assert known == counted and found["count"][:3] == [0, missing, 0]
            by_rank = sorted(counted, key=lambda value: (-counted[value], value))
            assert found["value"][3:] == by_rank and found["id"] == [*range(len(by_rank) + 3)]
            assert value_to_id(data, name) == value_to_id(data, table)

    @pytest.mark.parametrize("kind", KINDS)
    def test_read_log(self, data, logs, role, kind):
        file, labels = logs / f"log.{kind}", role.name in ("labels", "weight")
        found = read_log(file, data, labels=labels)
        assert_equal(found, role.read(frame()))
        assert {"click", "bought it", "seconds", "w"} & {*found} == (
            {"click", "bought it", "seconds", "w"} if labels else set()
        )


class TestNewRows:
    """Rows that `prepare` reads by the ids of a folder: `like` and `extend`."""

    @pytest.fixture(scope="class")
    def new(self, tmp_path_factory):
        """A log of 40 rows with values that the folder does not know."""
        rows = frame().head(40).copy()
        rows.loc[3, ["user", "item", "note"]] = "new"
        rows.at[5, "liked"], rows.at[5, "tags seen"] = ["i1", "new"], ["new"]
        return rows, write(tmp_path_factory.mktemp("new") / "new.csv", rows)

    @pytest.fixture(scope="class")
    def alike(self, data, new):
        settings = {"files": (new[1],), "out": new[1].parent / "LIKE", "kind": "table"}
        return prepare(PrepareSettings(**settings, like=data.path))

    @pytest.fixture(scope="class")
    def extended(self, data, new):
        settings = {"files": (new[1],), "out": new[1].parent / "EXTEND", "kind": "table"}
        return prepare(PrepareSettings(**settings, extend=data.path, split="time"))

    def test_like_has_the_ids_of_the_folder(self, data, new, alike, role):
        def known(x):
            return [*map(known, x)] if isinstance(x, list) else None if x == "new" else x

        wanted = {name: known(x) for name, x in role.expected(new[0]).items()}
        assert_equal(rows_of(alike), wanted)
        assert alike.vocabulary == data.vocabulary and alike.targets == data.targets
        assert alike.tables == data.tables and alike.rows["test"] == 40

    def test_extend_adds_values_and_counts(self, data, extended, role):
        before, added = rows_of(data, ["train"]), rows_of(extended, ["train"])
        for name in {*role.columns} & {*data.categorical}:
            assert value_to_id(extended, name).items() >= value_to_id(data, name).items()
            assert "new" in value_to_id(extended, name)
            column = [x for rows in (before, added) for x in rows[name]]
            if name in ("user", "note", "tags seen"):  # the others share a table
                counts = Counter(
                    v for x in column for v in (x if isinstance(x, list) else [x]) if v is not None
                )
                found = read_counts(extended, name).to_pydict()
                assert dict(zip(found["value"][3:], found["count"][3:])) == counts
        if not {*role.columns} & {*data.categorical}:
            assert_equal(added, role.expected(frame().head(extended.rows["train"])))

    @pytest.mark.parametrize("base", ["like", "extend"])
    def test_they_need_the_same_columns(self, data, new, role, base, tmp_path):
        given = {"files": (new[1],), "out": tmp_path / "N", "kind": "table", base: data.path}
        if role.other:
            with pytest.raises(
                InputError, match=f"`{next(iter(role.other))}`: .* has other columns; om"
            ):
                prepare(PrepareSettings(**given, **role.other))
        for name in role.columns:
            less = write(tmp_path / "less.csv", new[0].drop(columns=name))
            with pytest.raises(InputError, match=f"no column '{name}' in the header"):
                prepare(PrepareSettings(**given | {"files": (less,)}))
        assert not (tmp_path / "N").exists()

    def test_vectors_of_another_length(self, data, new, tmp_path):
        longer = new[0].assign(image=[[1.0] * 4] * 40)
        files = (write(tmp_path / "log.csv", longer),)
        with pytest.raises(InputError, match="image has 4 numbers, not 3"):
            prepare(PrepareSettings(files=files, out=tmp_path / "N", kind="table", like=data.path))

    def test_unknown_values_are_counted(self, data, new, tmp_path, capsys):
        words = ["prepare", "table", str(new[1]), "--out", str(tmp_path / "N")]
        assert main([*words, "--like", str(data.path)]) == 0
        said = capsys.readouterr().out
        for name in data.categorical:
            (column,) = (r.expected(new[0])[name] for r in ROLES.values() if name in r.columns)
            values = [v for x in column for v in (x if isinstance(x, list) else [x]) if v]
            assert f"{name} {100 * values.count('new') / len(values):.1f}%" in said

    @pytest.mark.parametrize("split", [False, True], ids=["text", "lists"])
    def test_the_workflow_takes_text_and_lists(self, data, split):
        rows = frame().head(3).drop(columns=["time", "key", *ROLES["labels"].columns, "w"])
        for name in LISTS:
            rows[name] = [["t1", "i1"], None, ["zzz"]] if split else ["t1|i1", None, "zzz"]
        out = data.workflow().remove_inputs([*ROLES["labels"].columns, "w"]).transform(rows)
        for name in LISTS:
            ids = value_to_id(data, name)
            wanted = [[ids.get("t1", 2), ids.get("i1", 2)], [], [2]]
            assert [[*x] for x in out[name]] == wanted


@pytest.fixture(scope="session")
def damaged(tmp_path_factory):
    """Prepares, once for each format, a log that has all damaged values of this format."""
    made = {}

    def get(kind):
        if kind not in made:
            folder = tmp_path_factory.mktemp("damaged")
            rows = frame().head(300).copy()
            cases = [name for name, case in CASES.items() if case[0] == kind]
            for place, name in enumerate(cases):
                _, column, value, _ = CASES[name]
                for each in [column] if isinstance(column, str) else column:
                    rows.at[40 + 3 * place, each] = value
            file = write(folder / f"log.{kind}", rows)
            settings = {"files": (file,), "out": folder / "DATA", "max_bad_fraction": 0.5}
            data = prepare(PrepareSettings(**settings, **settings_of(*ROLES)))
            lines = (data.path / "damaged" / "lines.tsv").read_text(encoding="utf-8").splitlines()
            first = 2 if kind == "csv" else 1  # the number of the first row's line
            reasons = {}
            for name, number, reason, _ in (line.split("\t") for line in lines):
                assert name == str(file)
                reasons[int(number) - first] = reason
            made[kind] = cases, data, rows, reasons
        return made[kind]

    return get


class TestDamage:
    """A damaged value sets its row aside, with the reason; no other row changes."""

    @pytest.mark.parametrize("name", CASES)
    def test_a_damaged_value_has_a_reason(self, damaged, name):
        kind, *_, reason = CASES[name]
        cases, _, _, reasons = damaged(kind)
        assert reasons[40 + 3 * cases.index(name)].startswith(reason)

    @pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
    def test_the_other_rows_stay(self, damaged, kind):
        cases, data, rows, reasons = damaged(kind)
        assert {*reasons} == {40 + 3 * i for i in range(len(cases))}
        kept = rows.drop(index=[*reasons]).reset_index(drop=True)
        for role in ROLES.values():
            if role.name != "number":  # its scale is that of the whole log
                assert_equal(rows_of(data), role.expected(kept))


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_meant_is_refused(logs, tmp_path, capsys, case):
    options, message = REFUSED[case]
    table = pq.read_table(logs / "log.parquet").slice(0, 40)
    more = {"nested": [[["x"]], []] * 20, "shown": ["['a', 'b']", '["c"]'] * 20}
    more |= {"empty": pa.nulls(40), "short first": [[1.0, 2.0]] + [[1.0, 2.0, 3.0]] * 39}
    for name, column in more.items():
        table = table.append_column(name, pa.array(column) if isinstance(column, list) else column)
    pq.write_table(table, tmp_path / "log.parquet")
    words = ["prepare", "table", str(tmp_path / "log.parquet"), "--out", str(tmp_path / "DATA")]
    usual = {"--label": "click", "--categorical": "user,item", "--continuous": "age"}
    given = [x for name, x in usual.items() if name not in options for x in [name, x]]
    assert main([*words, *given, *options]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "DATA").exists()


@pytest.mark.parametrize("option", ["--weight w", "--vector v", "--label a,b", "--text a"])
def test_roles_are_for_tables(tmp_path, capsys, option):
    (tmp_path / "log.txt").write_text("")
    words = ["prepare", "criteo", str(tmp_path / "log.txt"), "--out", str(tmp_path / "DATA")]
    assert main([*words, *option.split()]) == 2
    assert option.split()[0] in capsys.readouterr().err


NOTHING = {
    "click": (1, "no row has label 0 in column 'click'"),
    "bought it": (0, "no row has label 1 in column 'bought it'"),
    "seconds": (None, "no row has a label in column 'seconds'"),
    "w": (0.0, "all weights of the train rows are 0, in column 'w'"),
}


@pytest.mark.parametrize("name", NOTHING)
def test_a_split_needs_something_to_learn_from(tmp_path, name):
    value, message = NOTHING[name]
    files = (write(tmp_path / "log.csv", frame().head(40).assign(**{name: value})),)
    with pytest.raises(InputError, match=message):
        prepare(PrepareSettings(files=files, out=tmp_path / "DATA", **settings_of(*ROLES)))
    assert not (tmp_path / "DATA").exists()


def test_test_rows_need_a_weight_above_0(tmp_path):
    files = (write(tmp_path / "log.csv", frame().head(40).assign(w=[1.0] * 36 + [0.0] * 4)),)
    with pytest.raises(InputError, match="all weights of the test rows are 0, in column 'w'"):
        prepare(PrepareSettings(files=files, out=tmp_path / "DATA", **settings_of("id", "weight")))


def test_text_without_a_header_and_with_own_separators(tmp_path):
    rows = frame().head(40)
    text = rows.applymap(as_text).replace({r"\|": "; "}, regex=True)
    text.to_csv(tmp_path / "log.csv", index=False, header=False)
    given = {"files": (tmp_path / "log.csv",), "columns": tuple(rows), "multi_separator": "; "}
    given |= settings_of(*ROLES) | {"vector_separator": "; "}
    found = rows_of(prepare(PrepareSettings(out=tmp_path / "DATA", **given)))
    for role in ROLES.values():
        if role.name != "number":  # its scale is that of the whole log
            assert_equal(found, role.expected(rows))


def test_the_folder_and_merlin_name_the_roles(data, plain):
    from merlin.schema.io.tensorflow_metadata import TensorflowMetadata

    folder = data.path / "train" / ".merlin"
    read = TensorflowMetadata.from_json_file(str(folder), "schema.json").to_merlin_schema()
    for schema in (data.schema, read):
        columns = Columns.from_schema(schema)
        assert columns.widths == {"age": 1, **VECTORS} and columns.vectors == VECTORS
        assert [tag.value for tag in schema["w"].tags] == []
        assert sorted(tag.value for tag in schema["bought it"].tags) == [
            "binary_classification", "target",
        ]  # fmt: skip
        assert sorted(tag.value for tag in schema["seconds"].tags) == ["regression", "target"]
        assert schema["liked"].is_list and schema["liked"].is_ragged and not schema["user"].is_list
        assert schema["liked"].int_domain.name == schema["item"].int_domain.name == "item"
        assert schema["image"].is_list and not schema["image"].is_ragged
        assert schema["image"].dtype.name == "float32"
        counts = {"liked": {"min": 0, "max": 3}, "image": {"min": 3, "max": 3}}
        for name, wanted in counts.items():
            assert schema[name].properties["value_count"] == wanted
    types = {"w": pa.float32(), "click": pa.float32(), "bought it": pa.float32()}
    types |= {name: pa.list_(pa.int32()) for name in LISTS} | {"image": pa.list_(pa.float32())}
    for name, kind in types.items():
        assert pq.read_schema(data.files("test")[0]).field(name).type == kind
    assert pq.read_schema(plain.files("test")[0]).field("click").type == pa.int8()
    assert data.targets == (Target("click"), Target("bought it"), Target("seconds", True))
    assert PreparedData.load(data.path) == data
    assert data.tables == {"user": 3 + 19, "item": 3 + 12, "note": 3 + 5, "tags seen": 3 + 8}
    assert data.cardinalities == data.tables | {"liked": 15}
    page, bought = (
        (data.path / "summary.md").read_text(),
        frame()["bought it"].dropna().astype(float),
    )
    assert f"- label bought it: {len(bought)} rows, {bought.mean():.2%} 1" in page
    assert "- label seconds: " in page and "- liked has the ids of item" in page
    assert {file.stem for file in (data.path / "counts").iterdir()} == {*data.tables}


def test_values_beyond_the_most_are_counted(logs, tmp_path, capsys):
    words = [
        "prepare",
        "table",
        str(logs / "log.csv"),
        "--label",
        "click",
        "--keep-values",
        "first",
    ]
    words += ["--multi", "tags seen", "--max-values", "2", "--out", str(tmp_path / "DATA")]
    assert main([*words, "--split", "time"]) == 0
    left = sum(max(len(tags) - 2, 0) for tags in frame()["tags seen"])
    assert f"tags seen: left out {left:,} values, those beyond 2 per row" in capsys.readouterr().out
    found = rows_of(PreparedData.load(tmp_path / "DATA"))["tags seen"]
    assert found == [tags[:2] for tags in frame()["tags seen"]]


def test_a_gpu_does_not_prepare_vectors(logs, tmp_path, monkeypatch):
    module = sys.modules["cowclip_merlin.workflows.prepare"]  # the function hides its module
    monkeypatch.setattr(module, "use_gpu", lambda device: True)
    settings = settings_of("id", "vector") | {"files": (logs / "log.csv",)}
    with pytest.raises(InputError, match="'image' has vectors, which a GPU does not prepare"):
        prepare(PrepareSettings(out=tmp_path / "DATA", **settings))
