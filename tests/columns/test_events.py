"""Events of every role: each door gives the same ids, numbers, labels and weights."""

import json
from hashlib import blake2b

import numpy as np
import pytest
from data import PLAIN, ROLES, VECTORS, features_of, frame, write

from cowclip_merlin.errors import InputError
from cowclip_merlin.online import FileLog
from cowclip_merlin.online.events.event_log import EventLog, RawLog
from cowclip_merlin.online.events.events import Events
from cowclip_merlin.online.events.features import load_features
from cowclip_merlin.online.events.messages import encode_messages, encode_requests
from cowclip_merlin.online.events.values import MISSING
from cowclip_merlin.online.joining.loop import join_logs
from cowclip_merlin.online.joining.settings import JoinSettings
from cowclip_merlin.online.producing.producer import Producer, ProduceSettings
from cowclip_merlin.online.run_config import load_online_config, online_config, refuse_difference
from cowclip_merlin.system.files import write_json

SOME = 60  # rows
FORMATS = ("csv", "csv.gz", "parquet")
DOORS = (*FORMATS, *(f"sent {kind}" for kind in FORMATS), "messages", "requests", "texts", "joined")
WRONG = {
    f"{role.name}-{i}": case for role in ROLES.values() for i, case in enumerate(role.messages)
}
FILES = {
    f"{role.name}-{kind}-{i}": (kind, *case)
    for role in ROLES.values()
    for i, (kinds, *case) in enumerate(role.damage)
    for kind in kinds.split()
    if role.name != "number"
}
HEAD = features_of(*PLAIN)
FEATURE_FILES = {
    "vectors: v": "vectors is 'v'; give a list of columns",
    "vectors: [v]": "length of 'v' is None; give how many numbers each vector has, ",
    "vectors:\n- {name: v, length: 0}": "length of 'v' is 0; .*, from 1 to 65,536",
    "vectors: [{name: v, length: 65537}]": "length of 'v' is 65537; ",
    "vectors: [{name: v, length: true}]": "length of 'v' is True; ",
    "vectors: [{name: v, length: '3'}]": "length of 'v' is '3'; ",
    "vectors: [{name: v, width: 3}]": "unknown 'width'; there are name, length",
    "vectors: [{name: item, length: 3}]": "column 'item' is also categorical; give each",
    "vectors: [{name: time, length: 3}]": "column 'time' is also time; give each",
    "vector_separator: ' '": "vector_separator has no effect without vectors",
    "vector_separator: ''\nvectors: [{name: v, length: 3}]": "vector_separator is ''; give text",
    "weight: item": "also weight|also categorical|one role",
    "weight: [w]": "weight is",
    "weight: cowclip_late": "cowclip online join adds",
    "regression: time": "`regression` 'time' is no label",
    "regression: [click]": "the first label 'click' is a number",
    "regression: [[sec]]": r"regression 1 is \['sec'\]; give a",
    "label: []": r"label is \[\]; name at least one column",
    "label: [click, 7]": "label 2 is 7; give a column's name",
    "label: [click, sec, click]": "'click' is also label; give each",
    "label: [click, sec, user]": "'user' is also label; give each",
}
TABLES = {
    "{name: a, table: b}": "table of 'a' is 'b'; name a .* of its own: ",
    "{name: a, table: 7}": "table of 'a' is 7; ",
    "{name: a, table: [item]}": r"table of 'a' is \['item'\]; ",
    "{name: a, table: a}": "table of 'a' is 'a'; ",
    "{name: a, table: b}\n- {name: b, table: item}": "table of 'a' is 'b'; ",
    "{name: a, table: item, ttl: 1d}": "ttl of 'a' has no effect, .* of 'item'; give it",
    "{name: a, table: item, buckets: 9}": "buckets of 'a' has no effect",
}


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    """Reads a features file of some roles, or of a text."""

    def get(*names, text=None):
        file = tmp_path_factory.mktemp("features") / "f.yaml"
        file.write_text(text or features_of(*names or ROLES), encoding="utf-8")
        return load_features(file)

    return get


def message(row, **change):
    return json.dumps({**row, **change}, default=float).encode()


def good(encoded):
    events, damage = encoded
    assert not damage.reasons
    return events


@pytest.fixture(scope="module")
def events_of(features, tmp_path_factory):
    """The events of a door, read once."""
    made, folder = {}, tmp_path_factory.mktemp("events")

    def read(door):
        if door == "joined":  # for one label
            one = features(*[name for name in ROLES if name != "labels"])
            file = write(folder / "joined.csv", frame().head(SOME))
            logs = {name: FileLog(folder / name) for name in ("impressions", "actions")}
            Producer(one, ProduceSettings(), **logs).run(RawLog([file], one))
            shown = values_of(logs["impressions"])
            assert not any("click" in json.loads(m) for m in shown)
            examples, _ = joined(shown, one, folder / "join")
            found = good(encode_messages(examples, one))
            np.testing.assert_allclose(np.exp(found.offsets), 0.5, rtol=1e-6)
            return found
        columns = features()
        if door == "messages":
            return good(encode_messages([message(row) for row in records()], columns))
        if door in ("requests", "texts"):
            rows = json.loads(json.dumps(records(), default=float))
            if door == "texts":
                lists = (*VECTORS, "tags seen", "liked")
                rows = [row | {n: "|".join(map(str, row[n])) for n in lists} for row in rows]
            done = encode_requests(rows, columns)
            assert not done.damaged
            return done.events
        kind = door.removeprefix("sent ")
        file = folder / f"log.{kind}"
        if not file.exists():
            write(file, frame().head(SOME))
        if door == kind:
            return Events.concatenate(list(EventLog([file], columns, block_bytes=3000)))
        log = FileLog(folder / door)
        Producer(columns, ProduceSettings(), examples=log).run(RawLog([file], columns))
        return good(encode_messages(values_of(log), columns))

    def get(door):
        if door not in made:
            made[door] = read(door)
        return made[door]

    return get


def joined(impressions, columns, folder):
    """What a join makes of impressions with a click each: examples, and what is damaged and why."""
    keys = [json.loads(m).get("key", "") for m in impressions]
    times = [json.loads(m).get("time", 0) for m in impressions]
    clicks = [message({"key": key, "time": at}) for key, at in zip(keys, times)]
    logs = [str(folder / name) for name in ("impressions", "clicks", "examples")]
    for name, values in zip(logs, (impressions, clicks)):
        FileLog(name).append(values)
    settings = JoinSettings(window=60, negatives=0.5)
    join_logs(*logs, columns, settings, state=folder / "state", until_end=True)
    damaged = folder / "state.damaged-impressions.jsonl"
    lines = damaged.read_text().splitlines() if damaged.exists() else []
    return values_of(FileLog(logs[2])), [json.loads(line)["reason"] for line in lines]


def values_of(log):
    return [m.value for m in log.read(log.start(), 1000)]


def records():
    return frame().head(SOME).to_dict("records")


def ids_of(values):
    """A whole number is its own id, another text has the hash of its bytes."""
    return [MISSING if value is None else id_of(str(value)) for value in values]


def id_of(text):
    if text.isdigit() and text == str(int(text)):
        return int(text)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def column_of(ids, name, columns):
    """The ids of a column, row by row."""
    values, found = iter(ids.values.tolist()), []
    for lengths in ids.lengths:
        row = [[next(values) for _ in range(n)] for n in lengths]
        found.append(row[columns.index(name)])
    return found


@pytest.mark.parametrize("door", DOORS)
def test_a_door_gives_the_values_of_the_log(events_of, features, role, door):
    events, rows, columns = events_of(door), frame().head(SOME), features()
    names = [column.name for column in columns.categorical]
    numbers = np.split(events.numbers, np.cumsum([1, *VECTORS.values()]), axis=1)
    for name, wanted in role.expected(rows).items():
        if name in names:
            lists = [x if isinstance(x, list) else [x] for x in wanted]
            assert column_of(events.ids, name, names) == [ids_of(each) for each in lists]
        elif name == "age":
            known = rows.age.notna().to_numpy()
            wanted = np.float32(rows.age[known].astype(float) / 90)
            np.testing.assert_allclose(numbers[0][known, 0], wanted, rtol=1e-6)
        elif name in VECTORS:
            found = numbers[1 + [*VECTORS].index(name)]
            np.testing.assert_array_equal(found, np.float32(wanted))
        elif name == "w" and door not in ("requests", "texts"):
            assert events.weights.dtype == np.float32 and events.weights.tolist() == wanted
        elif role.name == "labels" and door not in ("requests", "texts", "joined"):
            found = events.labels[:, role.columns.index(name)]
            np.testing.assert_array_equal(found, np.float32(wanted))
    if door in ("requests", "texts"):
        assert events.weights is None and events.labels is None
    if door == "joined":
        assert events.labels.tolist() == [1] * SOME and events.labels.dtype == np.int8


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_value_is_one_line(features, case):
    """In messages, before a join, and in requests."""
    column, value, reason = WRONG[case]
    columns, row = features(), json.loads(message(records()[0]))
    names = [column] if isinstance(column, str) else column
    wrong = row | dict.fromkeys(names, value)
    _, damage = encode_messages([message(row), message(wrong), message(row)], columns)
    assert [*damage.reasons] == [1] and damage.reasons[1].startswith(reason)
    assert "\n" not in damage.reasons[1]
    if names[0] in columns.inputs:
        done = encode_requests([row, wrong], columns)
        assert [*done.damaged] == [1] and done.damaged[1].startswith(reason)
        assert len(done.events) == 1


def test_weights_may_be_text(features):
    row, given = json.loads(message(records()[0])), [1, 0, 2.5, "0.5", 1e-3, " 3 "]
    events = good(encode_messages([message(row, w=w) for w in given], features()))
    np.testing.assert_array_equal(events.weights, np.float32([1, 0, 2.5, 0.5, 1e-3, 3]))


def test_a_missing_column_is_named(features, role, tmp_path):
    columns, row = features(), json.loads(message(records()[0]))
    for name in role.columns:
        less = {key: value for key, value in row.items() if key != name}
        numbers = f"its {VECTORS.get(name)} numbers" if name in VECTORS else "null for a missing"
        usual = f"no '{name}'; give {numbers}" if name != "w" else "no 'w'"
        assert encode_messages([message(less)], columns)[1].reasons[0].startswith(usual)
        if name in columns.inputs:
            assert encode_requests([less], columns).damaged[0].startswith(usual)
            one = features(*[name for name in ROLES if name != "labels"])
            _, (reason,) = joined([message(row), message(less)], one, tmp_path / name)
            assert reason.startswith(usual)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_damaged_rows_of_a_file_are_set_aside(features, tmp_path, kind):
    """With the reasons that `prepare` has; the other rows are whole."""
    cases = [case for case in FILES.values() if case[0] == kind]
    rows = frame().head(len(cases) + 9).copy()
    for place, (_, column, value, _) in enumerate(cases):
        for name in [column] if isinstance(column, str) else column:
            rows.at[place, name] = value
    log = EventLog([write(tmp_path / f"log.{kind}", rows)], features(), max_bad_fraction=1)
    events = Events.concatenate(list(log))
    assert events.keys.tolist() == ids_of(rows.key[len(cases) :])
    assert log.damaged.count == len(cases)
    for bad in log.damaged.first:
        place = bad.line - (2 if kind == "csv" else 1)
        assert bad.reason.startswith(cases[place][-1])


@pytest.mark.parametrize("line", FEATURE_FILES)
def test_a_wrong_line_of_a_features_file(features, line):
    text = HEAD.replace("label: click\n", "") if line.startswith("label") else HEAD
    with pytest.raises(InputError, match=FEATURE_FILES[line]) as error:
        features(text=f"{text}{line}\n")
    assert "f.yaml: " in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("column", TABLES)
def test_a_wrong_table_of_a_features_file(features, column):
    with pytest.raises(InputError, match=TABLES[column]) as error:
        features(text=HEAD.replace("- item\n", f"- item\n- {column}\n"))
    assert "f.yaml: " in str(error.value) and "\n" not in str(error.value)


def test_a_run_keeps_the_role(features, settings_of, role, tmp_path):
    plain, columns = features(*PLAIN), features(*PLAIN, role.name)
    for each in (plain, columns, features()):
        write_json(tmp_path / "config.json", online_config(settings_of(), each))
        assert load_online_config(tmp_path)[1] == each
    if columns != plain:
        with pytest.raises(InputError, match="another "):
            refuse_difference(
                tmp_path, *(online_config(settings_of(), f) for f in (plain, columns))
            )
