"""A run that goes back to an older snapshot, or goes on with other rates and rules of columns."""

import json
from dataclasses import replace

import numpy as np
import pytest
from streams import EVENTS, FEATURES, final_state, log_of, messages, stream_trainer
from tiers import thorough

from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.online import FileLog
from cowclip_merlin.online.events.columns import ListRules
from cowclip_merlin.online.events.messages import encode_messages
from cowclip_merlin.online.run_config import changes_of_run, online_config
from cowclip_merlin.online.training import stream_folder
from cowclip_merlin.online.training.run_snapshots import roll_back
from cowclip_merlin.online.training.stream_folder import train_stream
from cowclip_merlin.serving.live.follower import Follower
from cowclip_merlin.system.folders import lock_folder
from cowclip_merlin.tables import FieldRules
from cowclip_merlin.tables.snapshot import load_snapshot, numbers, part_of

pytestmark = pytest.mark.runs


def trained(folder, settings, events, *, servers=None, **stream):
    """Train on a log of events until its end, with a snapshot after every fifth batch."""
    log = servers and FileLog(folder / "sync")
    stream = {"snapshot_every": 1e-9, "keep_snapshots": 5} | stream
    work = stream_trainer(folder / "run", settings, events, log, **stream)

    def at_fifth_batches():
        return work.trained % 160 == 0

    def finished(*, wait=False, find=work._snapshots.finished):
        return find(wait=True)

    work._is_snapshot_due, work._snapshots.finished = at_fifth_batches, finished
    work.run()
    return work


@pytest.mark.thorough
@pytest.mark.parametrize("on_restart", ["replay", thorough("skip")])
def test_a_rollback_trains_the_events_again_or_leaves_them_out(
    tmp_path, settings, events, whole, on_restart
):
    run, snapshots = tmp_path / "run", tmp_path / "run/snapshots"
    first = trained(tmp_path, settings, events, servers=True)
    config = online_config(first.trainer.settings, FEATURES)
    (run / "config.json").write_text(json.dumps(config))
    known = sorted(numbers(snapshots))
    assert len(known) == 5 and known[-1] == EVENTS
    target = known[1]
    before = part_of(load_snapshot(snapshots, target).arrays, "trainer.")
    before = {name: x.copy() for name, x in before.items()}
    assert roll_back(run, target) == known[2:]
    assert sorted(numbers(snapshots)) == known[:2]
    aside = {f"rolled-back-{number}" for number in known[2:]}
    assert aside <= {path.name for path in snapshots.iterdir()}
    again = trained(tmp_path, settings, events, servers=True, on_restart=on_restart)
    if on_restart == "replay":
        assert final_state(run) == whole
    else:
        assert again.trained == target < EVENTS
        for name, x in again.trainer.state().items():
            np.testing.assert_array_equal(x, before[name], err_msg=name)
    follower = Follower(lambda: FileLog(tmp_path / "sync"))
    while follower.step():
        pass
    asked, _ = encode_messages(messages(range(0, EVENTS, 7)), FEATURES)
    found = follower.model.predict(asked).probabilities
    np.testing.assert_allclose(found, again.trainer.predict(asked), atol=1e-6)


def test_the_command_lists_and_goes_back(tmp_path, settings, events, capsys):
    """Not while a process trains there, nor to a damaged snapshot; also a second time."""
    trained(tmp_path, settings, events)
    run, snapshots = str(tmp_path / "run"), tmp_path / "run/snapshots"

    def told(*words, code=0):
        assert main(["online", "rollback", *words]) == code
        out, err = capsys.readouterr()
        return err if code else out

    damaged, *others, before, newest = sorted(numbers(snapshots))
    lines = told(run).splitlines()
    found = [int(line.split()[0].replace(",", "")) for line in lines]
    assert found == [damaged, *others, before, newest]
    said = told(run, "--to", str(newest - 1), code=2)
    assert f"no snapshot {newest - 1}, only" in said
    (snapshots / str(damaged) / "manifest.json").write_text("{}")
    assert "damaged" in told(run, "--to", str(damaged), code=2)
    with lock_folder(tmp_path / "run", ""):
        said = told(run, "--to", str(before), code=2)
    assert "a process trains there; stop it first" in said
    assert max(numbers(snapshots)) == newest
    said = told(run, "--to", str(before))
    assert f"goes on after {before:,} events; set aside: {newest:,}" in said
    trained(tmp_path, settings, events, snapshot_every=0.0)
    roll_back(tmp_path / "run", before)
    names = {path.name for path in snapshots.iterdir()}
    assert {f"rolled-back-{newest}", f"rolled-back-{newest}-2"} <= names


def with_rules(**rules):
    user, item = FEATURES.categorical
    return replace(FEATURES, categorical=(user, replace(item, rules=FieldRules(**rules))))


def run_config(settings, features):
    return json.loads(json.dumps(online_config(settings, features)))


def with_overrides(settings, **overrides):
    overrides = {**settings.run.overrides, **overrides}
    return replace(settings, run=replace(settings.run, overrides=overrides))


def test_what_may_change_between_two_starts(tmp_path, settings):
    before = run_config(settings, with_rules(ttl=60, admit=2))
    assert not any(changes_of_run(tmp_path, before, before, None))
    after = replace(with_overrides(settings, l2=0.5), max_rows=700)
    found = changes_of_run(tmp_path, before, run_config(after, with_rules(ttl=90, admit=3)), None)
    assert found.others == [
        "admit of 'item' (2, now 3)",
        "ttl of 'item' (60, now 90)",
        "l2 (None, now 0.5)",
        "max_rows (None, now 700)",
    ]
    for other in (
        replace(settings, run=replace(settings.run, batch_size=64)),
        replace(settings, run=replace(settings.run, mlp=(3,))),
        replace(settings, absent="zeros"),
    ):
        with pytest.raises(InputError, match="the run there has another"):
            changes_of_run(tmp_path, before, run_config(other, with_rules(ttl=60, admit=2)), None)
    user, item = with_rules(ttl=60, admit=2).categorical
    for columns, words in (
        ((user,), "column 2 of the run is 'item', but missing now; keep the"),
        ((item, user), "column 1 of the run is 'user', but 'item' in the features file; "),
        ((replace(user, buckets=7), item), "the run there has another buckets of 'user'"),
        ((replace(user, lists=ListRules(separator="|")), item), "another .*separator of 'user'"),
    ):
        other = replace(FEATURES, categorical=columns)
        with pytest.raises(InputError, match=words):
            changes_of_run(tmp_path, before, run_config(settings, other), None)
    new = replace(user, name="site", optional=True)
    new = replace(FEATURES, categorical=(user, item, new))
    found = changes_of_run(tmp_path, before, run_config(settings, new), None)
    assert found.columns == ["categorical column 'site' is new"]


def test_a_run_goes_on_with_other_rates_and_rules(tmp_path, settings, capsys):
    log_of(tmp_path / "events", messages(range(600)))
    address, run = str(tmp_path / "events"), tmp_path / "run"
    to_end = stream_folder.StreamSettings(until_end=True, snapshot_every=0.0)
    train_stream(address, with_rules(admit=1), settings, to_end, out=run)
    capsys.readouterr()
    before = load_snapshot(run / "snapshots").arrays
    log_of(tmp_path / "events", messages(range(600, 632)))
    frozen = with_overrides(settings, embedding_lr=0.0, dense_lr=0.0, l2=0.0)
    train_stream(address, with_rules(admit=255, ttl=10**6), frozen, to_end, out=run)
    told = capsys.readouterr().out
    assert "changed since the start before: admit of 'item' (1, now 255)" in told
    assert "changed since the start before: embedding_lr (0.01, now 0.0)" in told
    after = load_snapshot(run / "snapshots").arrays
    rows = len(before["trainer.table.ids"])
    for name in ("trainer.table.ids", "trainer.table.table0.w"):
        np.testing.assert_array_equal(after[name][:rows], before[name], err_msg=name)
    train_stream(address, with_rules(admit=255, ttl=5), frozen, to_end, out=run)
    log_of(tmp_path / "events", messages(range(632, 664)))
    train_stream(address, with_rules(admit=255, ttl=5), frozen, to_end, out=run)
    items = json.loads((run / "config.json").read_text())["features"]["categorical"][1]
    assert items["rules"] == {"admit": 255, "ttl": 5, "min_rows": 0}
    rows = (run / "metrics.csv").read_text().splitlines()
    expired = rows[0].split(",").index("expired")
    assert [int(row.split(",")[expired]) > 0 for row in rows[1:]] == [False, False, False, True]
    assert capsys.readouterr().out.count("changed since") == 1  # the last start changed nothing
