"""What a training sends to servers is the model, also after kills and with other layers."""

import numpy as np
import pytest
from streams import EVENTS, FEATURES, Killed, killed_at, messages, stream_trainer
from tiers import thorough

from cowclip_merlin.errors import InputError
from cowclip_merlin.online import FileLog
from cowclip_merlin.online.events.messages import encode_messages
from cowclip_merlin.online.logs import message_log
from cowclip_merlin.online.logs.message_log import LogUnavailable
from cowclip_merlin.online.run_config import CONFIG, online_config
from cowclip_merlin.online.served_model import DenseScorer
from cowclip_merlin.online.sync import served_changes, sync_message
from cowclip_merlin.online.sync.publisher import last_sync
from cowclip_merlin.online.sync.sync_message import SyncMessage, changes_of
from cowclip_merlin.online.training.run_snapshots import RunSnapshots
from cowclip_merlin.online.training.trainer import OnlineTrainer
from cowclip_merlin.serving.live.follower import Follower
from cowclip_merlin.system.files import write_json
from cowclip_merlin.tables.serving_table import ServingTable
from cowclip_merlin.tables.snapshot import load_snapshot, numbers


class Server:
    """Applies all messages of a log, one after the other."""

    def __init__(self, trainer):
        dims = [table.shape[1] for table in trainer.tables]
        self.table = ServingTable(2, trainer.table.capacity, dims)
        self.scorer = DenseScorer(trainer.settings.run, trainer.features)
        self.kinds, self.infos = [], []

    def apply_all(self, log):
        position, last = log.start(), (0, -1)
        while found := log.read(position, most=7):
            for each in found:
                message = SyncMessage.decode(each.value)
                here = (message.generation, message.seq)
                assert here in ((last[0], last[1] + 1), (last[0] + 1, 0))
                last = here
                self.apply(message)
            position = found[-1].after

    def apply(self, message):
        self.kinds.append(message.kind)
        self.infos.append(message.info)
        if message.kind in (sync_message.GONE, sync_message.ROWS):
            self.table.apply(*changes_of(message))
        if message.kind == sync_message.DENSE:
            for i, variable in enumerate(self.scorer.variables):
                variable.assign(message.arrays[f"dense{i}"])

    def predict(self, batch):
        return self.scorer.score(self.table.read(batch.ids), batch.numbers)


@pytest.mark.parametrize("kills", [0, thorough(2)])
def test_servers_get_the_model(tmp_path, settings, events, kills, monkeypatch):
    sync = FileLog(tmp_path / "sync")
    for seed in range(kills):
        with monkeypatch.context() as patch:
            killed_at(patch, 40 + seed)
            with pytest.raises(Killed):
                stream_trainer(tmp_path / "run", settings, events, sync, snapshot_every=0.05).run()
    work = stream_trainer(tmp_path / "run", settings, events, sync, dense_every=3600)
    work.run()
    server = Server(work.trainer)
    server.apply_all(sync)
    batch, _ = encode_messages(messages(range(EVENTS - 200, EVENTS + 200)), FEATURES)
    np.testing.assert_allclose(
        server.predict(batch), work.trainer.predict(batch), atol=1e-6, rtol=0
    )
    assert len(server.table) == work.trainer.table.num_rows
    last = server.infos[-1]
    assert server.kinds[-1] == sync_message.SYNCED and last["dense"]
    assert last["trained"] == EVENTS and last["lag"] == 0
    assert tuple(last["position"]) == events.end()
    assert last_sync(sync).generation == kills + 1


@pytest.mark.thorough
def test_servers_that_begin_at_a_snapshot_get_the_model(tmp_path, settings, events):
    """The log is trimmed; the first messages that are left name a snapshot that is there."""
    sync = FileLog(tmp_path / "sync", segment_bytes=1)
    for _ in range(3):  # each of them writes a snapshot at its end
        events.append(messages(range(events.end()[0], events.end()[0] + 64)))
        work = stream_trainer(tmp_path / "run", settings, events, sync, snapshot_every=1e-9)
        work.run()
    position, snapshots, seen = sync.start(), [], []
    while found := sync.read(position, most=100):
        seen += [SyncMessage.decode(each.value) for each in found]
        position = found[-1].after
    assert seen[0].kind in (sync_message.GENERATION, sync_message.SNAPSHOT)
    snapshots = [m for m in seen if m.kind == sync_message.SNAPSHOT]
    assert len(snapshots) == 1 and seen[0].generation == 3
    assert snapshots[-1].info["snapshot"] in numbers(tmp_path / "run" / "snapshots")
    assert snapshots[-1].info["run"] == str(tmp_path / "run")
    after = seen[seen.index(snapshots[-1]) + 1 :]
    assert after[-1].kind == sync_message.SYNCED


def test_a_snapshot_that_takes_long_is_announced_with_what_changed_meanwhile(
    tmp_path, settings, events
):
    """Two snapshots overlap: the first is announced after the second has begun."""
    from cowclip_merlin.online.sync.publisher import Publisher
    from cowclip_merlin.online.training.trainer import OnlineTrainer

    trainer, log = OnlineTrainer(settings, FEATURES), FileLog(tmp_path / "sync")
    publisher = Publisher(log, trainer)
    publisher.begin(1, "run", 0)
    states, place = {}, {}
    for step in range(6):
        batch, _ = encode_messages(messages(range(32 * step, 32 * step + 32)), FEATURES)
        trainer.train(batch)
        if step in (1, 3):
            states[step] = {name: np.array(x) for name, x in trainer.state().items()}
            publisher.snapshot_begins(step)
        if step in (4, 5):
            publisher.wait()
            assert publisher.snapshot_ends("run", {4: 1, 5: 3}[step])
            publisher.wait()
            place[{4: 1, 5: 3}[step]] = log.end()
        publisher.wait()
        assert publisher.sync({"position": []}, dense=True)
    publisher.wait()
    publisher.close()
    batch, _ = encode_messages(messages(range(300)), FEATURES)
    for number, state in states.items():
        server, position = Server(trainer), place[number]
        used = {f"table{i}": state[f"table.table{i}.w"] for i in range(len(trainer.tables))}
        names = ("ids", "fields", "free")
        server.table.restore({name: state[f"table.{name}"] for name in names} | used)
        while found := log.read(position, most=10):
            for each in found:
                server.apply(SyncMessage.decode(each.value))
            position = found[-1].after
        np.testing.assert_allclose(server.predict(batch), trainer.predict(batch), atol=1e-6, rtol=0)


class AwayLog(FileLog):
    """A sync log that is away while a condition holds; a server reads each message at once."""

    def __init__(self, folder):
        super().__init__(folder)
        self.is_away, self.server = lambda: False, Follower(lambda: FileLog(folder))

    def append(self, values):
        if self.is_away():
            raise LogUnavailable("redis://h: does not answer")
        after = super().append(values)
        while self.server.step():
            pass
        return after


@pytest.mark.parametrize("most", [4, 1 << 20])
def test_servers_load_a_snapshot_if_too_many_ids_went_while_the_log_was_away(
    tmp_path, settings, events, monkeypatch, caplog, most
):
    monkeypatch.setattr(served_changes, "MOST_GONE", most)
    monkeypatch.setattr(message_log, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(message_log, "LONGEST_PAUSE", 0.001)
    sync = AwayLog(tmp_path / "sync")
    work = stream_trainer(tmp_path / "run", settings, events, sync, dense_every=0.0)
    write_json(tmp_path / "run" / CONFIG, online_config(settings, FEATURES))
    (log,), remembered = work.trainer.table._changes, []
    sync.is_away = lambda: remembered.append(log._num_gone) or 200 < work.trained < 800
    work.run()
    breaks = most == 4
    assert bool(log.breaks) == breaks and max(remembered) <= 2 * most and not log.is_broken
    model = sync.server.model
    assert model.generation == last_sync(sync).generation == 1 + breaks
    assert len(model) == work.trainer.table.num_rows
    batch, _ = encode_messages(messages(range(EVENTS - 200, EVENTS + 200)), FEATURES)
    found = model.predict(batch).probabilities.reshape(-1)
    np.testing.assert_allclose(found, work.trainer.predict(batch).reshape(-1), atol=1e-6, rtol=0)
    assert ("too many ids have gone since the last sync" in caplog.text) == breaks


def test_a_snapshot_whose_copy_failed_is_forgotten(tmp_path, settings, events, monkeypatch):
    def copy(_, number):
        if number:
            raise InputError("s3://bucket: cannot be reached")

    monkeypatch.setattr(RunSnapshots, "copy", copy)
    sync = AwayLog(tmp_path / "sync")
    work = stream_trainer(tmp_path / "run", settings, events, sync, snapshot_every=1e-9)
    changes, kept = work._servers._publisher._changes, []
    sync.is_away = lambda: kept.append(len(changes._since))
    work.run()
    assert work._saved == EVENTS and len(kept) > 5
    assert max(kept) <= 1 and changes._since == {}


def test_logs_and_generations_that_do_not_belong_to_the_run(tmp_path, settings, events):
    """A new log of servers does; its generation grows, although it is empty."""
    for generation in (1, 2):
        sync = FileLog(tmp_path / f"sync{generation}")
        work = stream_trainer(tmp_path / "run", settings, events, sync)
        work.run()
        assert last_sync(sync).generation == generation
    more = {"trainer": work.trainer}
    with pytest.raises(InputError, match=r"has the model of .*run; "):
        stream_trainer(tmp_path / "other", settings, events, sync, **more)
    for text in ('"x"', "[1]", "true", "-1"):
        (tmp_path / "run/generation.json").write_text(text)
        with pytest.raises(InputError, match=r"generation\.json: .* is no number"):
            stream_trainer(tmp_path / "run", settings, events, sync, **more)


def test_a_header_that_cannot_be_read_is_no_message():
    arrays = b'"arrays": [["a", "<f4", [%s]]]' % (b"9" * 30)
    for header in (b"[" * 100_000, b"{" + arrays + b"}"):
        with pytest.raises(InputError, match="not a message"):
            SyncMessage.decode(len(header).to_bytes(4, "little") + header)


LAYERS = {"activation": "dice", "batch_norm": True, "dropout": 0.3}


@pytest.mark.runs
@pytest.mark.parametrize(
    ("model", "how"),
    [
        ("deepfm", LAYERS),
        thorough("dcn", LAYERS | {"precision": "bfloat16"}),
        thorough("wide_and_deep", LAYERS | {"jit_compile": True}),
    ],
)
def test_servers_have_the_inference_form(tmp_path, settings_of, events, model, how):
    settings = settings_of(model, batch_size=32, table={"capacity": 3000}, **how)
    work = stream_trainer(tmp_path / "run", settings, events, FileLog(tmp_path / "sync"))
    work.run()
    server, batch = Server(work.trainer), encode_messages(messages(range(EVENTS)), FEATURES)[0]
    wanted = work.trainer.predict(batch)
    server.apply_all(FileLog(tmp_path / "sync"))
    np.testing.assert_allclose(server.predict(batch), wanted, atol=1e-6)
    np.testing.assert_array_equal(server.predict(batch), server.predict(batch))
    begun = DenseScorer(settings.run, FEATURES)  # a server that starts with a snapshot
    begun.restore(load_snapshot(tmp_path / "run/snapshots").arrays, "trainer.dense")
    for mine, theirs in zip(begun.variables, server.scorer.variables, strict=True):
        np.testing.assert_array_equal(mine, theirs, err_msg=mine.name)
    moving = [x.numpy() for x in begun.variables if "moving_mean" in x.name]
    assert len(moving) == 1 + (how["activation"] == "dice") and all(map(np.any, moving))
    new = OnlineTrainer(settings, FEATURES)
    new.restore({name: x.copy() for name, x in work.trainer.state().items()})
    np.testing.assert_array_equal(new.predict(batch), wanted)
    for variable in new.dense_variables:  # so scores need the moving statistics
        if "moving_" in variable.name:
            variable.assign(np.full(variable.shape, float("variance" in variable.name)))
    assert np.abs(new.predict(batch) - wanted).max() > 1e-3
