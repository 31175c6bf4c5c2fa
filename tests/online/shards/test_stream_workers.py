"""A stream that several workers train: as one process does, after kills, and with other numbers."""

import json

import numpy as np
import pytest
import stream_runs

from cowclip_merlin.errors import LOST_ANOTHER, WRONG_INPUT
from cowclip_merlin.online.events.features import load_features
from cowclip_merlin.online.events.messages import encode_requests
from cowclip_merlin.online.logs.file_log import FileLog
from cowclip_merlin.online.sync.sync_message import SYNCED, SyncMessage, changes_of

pytestmark = pytest.mark.system

BOUND = 1e-4


@pytest.fixture(scope="module")
def runs(make_once):
    return make_once("streams_of_workers", stream_runs.make)


def assert_close(found, wanted):
    number, state = found
    assert number == wanted[0]
    assert state.keys() == wanted[1].keys()
    for name, x in wanted[1].items():
        if name.startswith("repeats.") or x.dtype.kind in "iu":
            np.testing.assert_array_equal(state[name], x, err_msg=name)
        else:
            np.testing.assert_allclose(state[name], x, atol=BOUND, err_msg=name)


def test_two_workers_train_what_one_trains(runs):
    number, _ = found = stream_runs.state(runs / "two")
    assert number == stream_runs.FIRST
    assert_close(found, stream_runs.state(runs / "one_at_first"))


def test_all_end_when_one_is_killed(runs):
    codes, outputs = json.loads((runs / "killed.json").read_text())
    assert codes == [LOST_ANOTHER, -9]
    assert "lost worker 1" in outputs[0]


def test_all_end_when_one_cannot_write_its_snapshot(runs):
    codes, outputs = json.loads((runs / "full.json").read_text())
    assert codes == [LOST_ANOTHER, WRONG_INPUT]
    assert "lost worker 1" in outputs[0] and "Traceback" not in outputs[0] + outputs[1]
    assert "no space left on the disk; free some space" in outputs[1]


def test_a_restart_gives_the_bits_of_an_uninterrupted_run(runs):
    assert stream_runs.parts(runs / "killed", 2) == stream_runs.parts(runs / "two", 2)


@pytest.mark.parametrize("name", ["by_one", "by_three"])
def test_another_number_of_workers_goes_on(runs, name):
    number, _ = found = stream_runs.state(runs / name)
    assert number == stream_runs.LAST
    assert_close(found, stream_runs.state(runs / "one"))


def test_workers_give_a_new_column_its_rows(runs):
    number, (_, state) = stream_runs.NEWEST, stream_runs.state(runs / "more_by_two")
    assert_close((number, state), stream_runs.state(runs / "more_by_one"))
    assert (state["trainer.table.fields"] == 2).sum() == 9 + 1  # and the missing one


@pytest.mark.parametrize("name", ["two", "killed"])
def test_servers_get_the_rows_of_all_workers(runs, name):
    features = load_features(runs / "f.yaml")
    _, state = stream_runs.state(runs / name)
    rows, generation = {}, 0
    log = FileLog(runs / f"{name}-sync")
    for each in log.read(log.start(), most=10_000):
        message = SyncMessage.decode(each.value)
        generation = max(generation, message.generation)
        if message.kind in ("rows", "gone"):
            changes, values = changes_of(message)
            for pair in zip(*(x.tolist() for x in changes.gone)):
                rows.pop(pair, None)
            own = changes.rows >= len(features.tables)
            for field, id_, row in zip(changes.fields[own], changes.ids[own], values[0][own]):
                rows[int(field), int(id_)] = row
    assert message.kind == SYNCED and message.info["rows"] == len(state["trainer.table.ids"])
    pairs = zip(state["trainer.table.fields"].tolist(), state["trainer.table.ids"].tolist())
    wanted = dict(zip(pairs, state["trainer.table.table0.w"]))
    assert rows.keys() == wanted.keys()
    for pair, row in wanted.items():
        np.testing.assert_array_equal(rows[pair], row)
    assert generation == 1 + (name == "killed")


def test_a_server_loads_all_parts(runs):
    from cowclip_merlin.online.served_model import ServedModel, Version

    number, state = stream_runs.state(runs / "two")
    version = Version(generation=1, seq=0, info={})
    model = ServedModel.from_snapshot(runs / "two", number, version)
    assert len(model) == len(state["trainer.table.ids"])
    users = [{"user": u, "item": "i30", "price": 0.5} for u in range(60)]
    events = encode_requests(users, load_features(runs / "f.yaml")).events
    assert len(set(model.predict(events).probabilities.tolist())) > 20
