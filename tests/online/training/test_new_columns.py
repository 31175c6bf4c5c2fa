"""A run that gets new columns at a restart: its rows, its weights, its servers, and kills."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from streams import (
    FEATURES,
    LABELS,
    Killed,
    event,
    final_state,
    killed_at,
    log_of,
    messages,
    stream_trainer,
)
from tiers import thorough

from cowclip_merlin.errors import InputError
from cowclip_merlin.online import FileLog
from cowclip_merlin.online.events.columns import (
    CategoricalColumn,
    ContinuousColumn,
    ListRules,
    VectorColumn,
)
from cowclip_merlin.online.events.messages import encode_messages
from cowclip_merlin.online.events.values import NumberScaling
from cowclip_merlin.online.run_config import load_online_config
from cowclip_merlin.online.training import stream_folder
from cowclip_merlin.online.training.loop import StreamTrainer
from cowclip_merlin.online.training.run_snapshots import roll_back
from cowclip_merlin.online.training.stream_folder import train_stream
from cowclip_merlin.online.training.trainer import OnlineTrainer
from cowclip_merlin.serving.live.follower import Follower
from cowclip_merlin.tables import FieldRules
from cowclip_merlin.tables.snapshot import load_snapshot, numbers

pytestmark = pytest.mark.runs

COLOR = CategoricalColumn(name="color", rules=FieldRules(ttl=500, admit=2), optional=True)
AGE = ContinuousColumn(name="age", optional=True)
SEEN = CategoricalColumn(name="seen", table="item", lists=ListRules(separator="|"))
LIKED = replace(SEEN, name="liked")
TO_END = stream_folder.StreamSettings(until_end=True, snapshot_every=0.0, sync_every=0.0)


def with_columns(features, *categorical, age=True):
    """The columns, and new ones; those that were there are the same."""
    return replace(
        features,
        categorical=(*features.categorical, *categorical),
        continuous=(*features.continuous, *[AGE] * age),
    )


def colored(indices):
    """Messages with the new columns."""

    def more(i):
        lists = {"text": [i % 3, i % 4], "seen": [f"i{i // 9}"], "liked": ["i1"]}
        return lists | {"color": i % 7, "age": i % 90}

    return [json.dumps(event(i, **more(i))).encode() for i in indices]


def kept_places(before, now, dim):
    """The places of the old inputs of a first layer among the new ones, one by one."""

    def inputs(features):
        embedded = [(column.name, j) for column in features.categorical for j in range(dim)]
        numbers = [(column.name, 0) for column in features.continuous]
        return embedded + numbers + [(each.name, j) for each in features.vectors for j in (0, 1)]

    return [inputs(now).index(each) for each in inputs(before)]


def rows_of(trainer):
    """Everything that an id has, by field and id; and the shared rows, by field."""
    table = trainer.table
    arrays = {k: np.array(x) for k, x in table.state().items()}
    names = [k for k in arrays if k.startswith("table") or k == "last_seen"]
    found = {}
    for row in range(len(arrays["ids"])):
        owner = (row, "absent") if row < table.num_fields else table.owner_of(row)
        if owner is not None:
            found[owner] = [arrays[name][row].tobytes() for name in names]
    return found


@pytest.mark.parametrize(
    ("model", "numbers_before"),
    [("deepfm", True), ("din", True), thorough("dcn", True),
     thorough("wide_and_deep", False), thorough("dcnv2", False)],
)  # fmt: skip
def test_a_restart_changes_no_prediction_no_row_and_no_moment(settings_of, model, numbers_before):
    """The first number of `continuous: all` makes a layer that was not there."""
    how = {"batch_size": 32, "table": {"capacity": 3000}, "mlp": (12, 4)}
    settings = settings_of(model, **how, **{} if numbers_before else {"continuous": "all"})
    before = replace(FEATURES, vectors=(VectorColumn(name="text", length=2),))
    before = before if numbers_before else replace(FEATURES, continuous=())
    columns = (COLOR,)
    if model == "din":
        before = replace(before, categorical=(*before.categorical, SEEN))
        columns = (COLOR, LIKED)
    now, values = with_columns(before, *columns), colored(range(200))
    old, new = OnlineTrainer(settings, before), OnlineTrainer(settings, now)
    events, _ = encode_messages(values, before)
    for _ in range(3):
        old.train(events)
    state = {name: np.array(x) for name, x in old.state().items()}
    new.restore(state, lacking=[column.name for column in (*columns, AGE)])
    asked, _ = encode_messages(values, now)
    np.testing.assert_allclose(new.predict(asked), old.predict(events), atol=1e-7)

    known = rows_of(old)
    found = {owner: x for owner, x in rows_of(new).items() if owner in known}
    assert found == known and len(known) >= 50
    kept = kept_places(before, now, settings.run.embedding_dim)
    fresh = np.setdiff1d(np.arange(len(parts_of_first_layer(new)[0])), kept)
    for mine, theirs in zip(parts_of_first_layer(new), parts_of_first_layer(old), strict=True):
        np.testing.assert_array_equal(mine[kept], theirs)
        assert theirs.any() and not mine[fresh].any()

    for _ in range(2):
        new.train(asked)
    kernel = parts_of_first_layer(new)[0]
    assert (np.abs(kernel[fresh]).sum(axis=1) > 0).all()
    assert new.table.statistics().rows[len(before.tables)] == 7


@pytest.mark.thorough
def test_a_restart_changes_no_prediction_of_several_labels(settings_of):
    """Gates and experts read the columns; the output layers of DCN read the cross layers."""
    more = {"model": "dcn", "continuous": "all", "multi_task": "mmoe"}
    settings = settings_of(batch_size=32, table={"capacity": 3000}, **more)
    now, values = with_columns(LABELS, COLOR), colored(range(200))
    values = [
        json.dumps(json.loads(x) | {"buy": i % 2, "sec": 1}).encode() for i, x in enumerate(values)
    ]
    old, new = OnlineTrainer(settings, LABELS), OnlineTrainer(settings, now)
    events, _ = encode_messages(values, LABELS)
    for _ in range(3):
        old.train(events)
    state = {name: np.array(x) for name, x in old.state().items()}
    new.restore(state, lacking=["color", "age"])
    asked, _ = encode_messages(values, now)
    np.testing.assert_allclose(new.predict(asked), old.predict(events), atol=1e-6)


def parts_of_first_layer(trainer):
    """The kernel of the first hidden layer, and its moments."""
    kernel = trainer.model.blocks[0].hidden[0].trainable_variables[0]
    slots = [trainer.optimizer.get_slot(kernel, name) for name in "mv"]
    return [x.numpy() for x in (kernel, *slots)]


def test_a_column_that_makes_another_one_a_history_is_refused(settings_of):
    settings = settings_of(batch_size=32, table={"capacity": 3000}, model="din")
    tags = CategoricalColumn(name="tags", lists=ListRules(separator="|"))
    before = replace(FEATURES, categorical=(*FEATURES.categorical, SEEN, tags))
    tag = CategoricalColumn(name="tag", table="tags")
    trainer = OnlineTrainer(settings, with_columns(before, tag, age=False))
    with pytest.raises(InputError, match="makes a column that was there a history"):
        trainer.new_weights(["tag"])


def test_columns_are_not_added_to_a_stream_with_adagrad(settings_of):
    """Its new dense weights would begin with accumulators of 0."""
    settings = settings_of(batch_size=32, optimizer="rowwise_adagrad", rule="none")
    with pytest.raises(InputError, match=r"cannot be added .* 'rowwise_adagrad': begin a new"):
        OnlineTrainer(settings, with_columns(FEATURES)).new_weights([AGE.name])


def test_a_larger_batch_of_the_rule_sde_needs_adam(settings_of):
    settings = settings_of(batch_size=32, optimizer="adagrad", rule="sde")
    OnlineTrainer(settings, FEATURES)
    with pytest.raises(InputError, match=r"catch_up 4 with rule 'sde' needs Adam, .*'adagrad'"):
        OnlineTrainer(settings, FEATURES, catch_up=4)


@pytest.fixture(scope="module")
def old_run(tmp_path_factory, settings):
    """A run of 600 events with `FEATURES`, whose servers follow `sync`."""
    folder = tmp_path_factory.mktemp("old_run")
    log_of(folder / "events", messages(range(600)))
    train(folder, FEATURES, settings)
    return folder


def train(folder, features, settings, **more):
    """Train to the end of the log; the files of a run name the log, so it has one place."""
    stream = replace(TO_END, **more)
    events, sync = str(folder / "events"), str(folder / "sync")
    return train_stream(events, features, settings, stream, out=folder / "run", servers=sync)


def copy_of(folder, to):
    """A copy of a run and its logs, as if it had been made there."""
    shutil.copytree(folder, to)
    shutil.rmtree(to / "sync")
    file = to / "run/config.json"
    file.write_text(file.read_text().replace(str(folder), str(to)))
    return to


def test_a_run_goes_on_with_new_columns(tmp_path, settings, old_run, capsys):
    folder, now = copy_of(old_run, tmp_path / "copy"), with_columns(FEATURES, COLOR)
    log = FileLog(folder / "events")
    log.append(messages(range(600, 664)))  # which the trainer had not read
    with pytest.raises(InputError, match="categorical column 2 of the run is 'item', but 'color'"):
        train(folder, replace(now, categorical=now.categorical[::2]), settings)
    needed = with_columns(FEATURES, replace(COLOR, optional=False))
    with pytest.raises(InputError, match=r"'color' is new, .* add `optional: true` to it in the"):
        train(folder, needed, settings)
    assert train(folder, now, settings) == 664
    said = capsys.readouterr().out
    assert "changed since the start before: categorical column 'color' is new" in said
    assert "changed since the start before: continuous column 'age' is new" in said
    assert "new in the model: color, age" in said
    log.append(colored(range(664, 760)))
    assert train(folder, now, settings) == 760
    assert "changed" not in (said := capsys.readouterr().out) and "new in" not in said
    kept = {
        n: load_snapshot(folder / "run/snapshots", n) for n in numbers(folder / "run/snapshots")
    }
    assert kept[760].extra["columns"] == list(now.inputs)
    colors = kept[760].arrays["trainer.table.fields"] == 2
    assert colors.sum() == 8  # 7 and the missing one
    assert load_online_config(folder / "run")[1] == now
    log.append(messages(range(760, 761)))  # an optional column may be missing, and then be needed
    assert train(folder, now, settings) == 761
    log.append(messages(range(761, 762)))
    assert train(folder, needed, settings) == 761
    assert [json.loads(line)["reason"] for line in (folder / "run/damaged.jsonl").open()] == [
        "no 'color'; give null for a missing value"
    ]
    said = capsys.readouterr().out
    assert "changed since the start before: optional of 'color' (True, now False)" in said
    with pytest.raises(InputError, match="categorical column 3 of the run is 'color', but missing"):
        train(folder, FEATURES, settings)


def killed(trainer):
    raise Killed


def served(folder):
    """The model of a server that starts now."""
    follower = Follower(lambda: FileLog(folder / "sync"))
    while follower.step():
        pass
    return follower.model


def test_servers_follow_the_new_columns(tmp_path, settings, old_run, monkeypatch):
    """Also one that starts when the trainer was killed before it told them of the new columns."""
    folder, now = copy_of(old_run, tmp_path / "copy"), with_columns(FEATURES, COLOR)
    follower = Follower(lambda: FileLog(folder / "sync"))
    FileLog(folder / "events").append(messages(range(600, 632)))
    train(folder, FEATURES, settings)
    while follower.step():
        pass
    assert follower.model.features.inputs == FEATURES.inputs
    FileLog(folder / "events").append(colored(range(632, 700)))
    with monkeypatch.context() as patch:
        patch.setattr(StreamTrainer, "run", killed)
        with pytest.raises(Killed):
            train(folder, now, settings)
    assert load_online_config(folder / "run")[1].inputs == now.inputs
    assert served(folder).features.inputs == FEATURES.inputs
    train(folder, now, settings)
    assert served(folder).features.inputs == now.inputs
    while follower.step():
        pass
    assert follower.model.features.inputs == now.inputs and follower.counts.damaged == 0
    asked, _ = encode_messages(colored(range(500, 700)), now)
    trainer = OnlineTrainer(settings, now)
    state = load_snapshot(folder / "run/snapshots").arrays
    trainer.restore({k.removeprefix("trainer."): x for k, x in state.items()})
    np.testing.assert_allclose(
        follower.model.predict(asked).probabilities, trainer.predict(asked), atol=1e-6
    )


@pytest.fixture(scope="module")
def grown(tmp_path_factory, settings, old_run):
    """Trains the old run with new columns, as if it had begun with its first snapshot only."""
    now, base = with_columns(FEATURES, COLOR), tmp_path_factory.mktemp("grown")

    def train(name, before=lambda work: None):
        folder = copy_of(old_run, base / name)
        shutil.rmtree(folder / "run/snapshots/600")
        log = FileLog(folder / "events")
        log.append(colored(range(600, 800)))

        def work(**more):
            return stream_trainer(folder / "run", settings, log, features=now, **more)

        before(work)
        work().run()
        return final_state(folder / "run")

    return train, train("whole")


@pytest.mark.parametrize("calls", [24, *map(thorough, (0, 9))])
def test_killed_in_a_restart_with_new_columns_it_ends_the_same(grown, monkeypatch, calls):
    """From the snapshot before the first event, so that the journal is trained again, too."""
    train, whole = grown

    def kill(work):
        with monkeypatch.context() as patch:
            killed_at(patch, calls)
            with pytest.raises(Killed):
                work(snapshot_every=1e-9).run()

    assert train(f"killed-{calls}", kill) == whole and whole[0] == 800


def test_a_rollback_to_before_the_change_allows_both_features_files(
    tmp_path, settings, old_run, capsys
):
    folder, now = copy_of(old_run, tmp_path / "copy"), with_columns(FEATURES, COLOR)
    FileLog(folder / "events").append(colored(range(600, 664)))
    train(folder, now, settings)
    roll_back(folder / "run", 600)
    assert train(folder, now, settings) == 664
    assert "new in the model: color, age" in capsys.readouterr().out
    roll_back(folder / "run", 600)
    assert train(folder, FEATURES, settings) == 664
    said = capsys.readouterr().out
    assert "column 'color' is gone, which the newest snapshot does not have" in said
    assert load_online_config(folder / "run")[1] == FEATURES
    plain = copy_of(old_run, tmp_path / "plain")
    FileLog(plain / "events").append(colored(range(600, 664)))
    train(plain, FEATURES, settings)
    assert final_state(folder / "run") == final_state(plain / "run")
    assert served(folder).features.inputs == FEATURES.inputs


def test_a_wrong_value_of_a_new_column_does_not_stop_the_replay(tmp_path, settings, old_run):
    """It was an event before, so the journal counts it."""
    folder = copy_of(old_run, tmp_path / "copy")
    log = FileLog(folder / "events")
    log.append([json.dumps(event(i, age="old")).encode() for i in range(600, 664)])
    train(folder, FEATURES, settings)
    shutil.rmtree(folder / "run/snapshots/664")
    assert train(folder, with_columns(FEATURES), settings) == 600


def test_after_a_shorter_replay_the_journal_has_what_was_trained(tmp_path, settings, old_run):
    folder, now = copy_of(old_run, tmp_path / "copy"), with_columns(FEATURES)
    log = FileLog(folder / "events")
    ages = [i if i < 610 else "old" for i in range(600, 664)]
    log.append([json.dumps(event(600 + i, age=age)).encode() for i, age in enumerate(ages)])
    train(folder, FEATURES, settings)
    roll_back(folder / "run", 600)
    assert train(folder, now, settings) == 610
    log.append(colored(range(664, 674)))
    assert train(folder, now, settings) == 620
    shutil.rmtree(folder / "run/snapshots/620")
    assert train(folder, now, settings) == 620


def test_a_column_that_no_snapshot_has_may_be_another_one(tmp_path, settings, old_run, capsys):
    folder = copy_of(old_run, tmp_path / "copy")
    FileLog(folder / "events").append(colored(range(600, 664)))
    train(folder, with_columns(FEATURES, COLOR), settings)
    roll_back(folder / "run", 600)
    other = replace(AGE, scaling=NumberScaling(transform="none"))
    now = with_columns(FEATURES, COLOR, age=False)
    now = replace(now, continuous=(*FEATURES.continuous, other))
    assert train(folder, now, settings) == 664
    said = capsys.readouterr().out
    assert "continuous column 'age' is new" in said and "is gone" not in said
    assert load_online_config(folder / "run")[1].continuous == now.continuous


def test_a_new_column_that_shares_a_table_is_told(settings_of, tmp_path, caplog):
    caplog.set_level("INFO")
    settings = settings_of(batch_size=32, table={"capacity": 3000})
    log = log_of(tmp_path / "events", messages(range(64)))
    stream_trainer(tmp_path / "run", settings, log).run()
    now = with_columns(FEATURES, CategoricalColumn(name="last", table="item"), age=False)
    stream_trainer(tmp_path / "run", settings, log, features=now).run()
    assert "'last' reads the trained rows of 'item' at once" in caplog.text
