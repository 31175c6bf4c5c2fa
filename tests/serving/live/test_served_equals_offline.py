"""A server answers what the trainer's own model answers, after every sync."""

import gc
from dataclasses import replace

import numpy as np
import pytest
from published import PublishedTrainer, with_history, with_labels, with_lists
from tiers import thorough

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.logs.file_log import FileLog
from cowclip_merlin.serving.live.follower import Follower
from cowclip_merlin.serving.live.served_model import ServedModel, Version
from cowclip_merlin.system.machine import resident_megabytes
from cowclip_merlin.tables.layout import FieldRules

REQUESTS = 10_000


def requests_of(events, seed):
    """Random events of the log; a third of their ids are absent."""
    rng = np.random.default_rng(seed)
    some = events.filter(rng.integers(0, len(events), REQUESTS))
    ids = some.ids.values
    ids = np.where(rng.random(ids.shape) < 0.3, ids + 10**9, ids)
    return replace(some, ids=some.ids.with_values(ids))


def with_rules(features, **rules):
    columns = [replace(column, rules=FieldRules(**rules)) for column in features.categorical]
    return replace(features, categorical=tuple(columns))


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("model", "table", "rules", "lists"),
    [
        ("deepfm", {"max_rows": 300}, {"admit": 2}, False),
        ("deepfm", {}, {"admit": 2}, True),
        ("din", {"max_rows": 300}, {"admit": 2}, "shared"),
        thorough("dcnv2", {"absent": "zeros"}, {"admit": 2}, False),
        thorough("dcnv2", {"absent": "zeros", "max_rows": 300}, {"ttl": 20_000}, True),
        thorough("wide_and_deep", {}, {"ttl": 20_000}, False),
        thorough("dcn", {}, {}, False),
        thorough("deepfm", {"max_rows": 300}, {"admit": 2}, "labels"),
    ],
)
def test_served_equals_offline(tmp_path, settings_of, features, events, model, table, rules, lists):
    log, features = FileLog(tmp_path / "log"), with_rules(features, **rules)
    if lists:
        change = {"shared": with_history, "labels": with_labels}.get(lists, with_lists)
        features, events = change(features, events)
    made = PublishedTrainer(settings_of(model, table), features, tmp_path / "run", log)
    made.start()
    first, late = Follower(lambda: log), None
    for sync in range(8):
        for batch in range(2):
            begin = (2 * sync + batch) * 256
            made.train(events.filter(slice(begin, begin + 256)))
        if sync == 5:  # the trainer goes on in a new generation
            made.start()
        made.sync()
        if sync == 3:
            made.snapshot()
            late = Follower(lambda: log)
        asked = requests_of(events, sync)
        wanted = made.trainer.predict(asked)
        for follower in filter(None, (first, late)):
            while follower.step():
                pass
            found = follower.model.predict(asked)
            assert np.abs(found.probabilities - wanted).max() <= 1e-6
            assert found.version.info["trained"] == made.trained
            assert len(follower.model) == made.trainer.table.num_rows
            assert found.absent == np.count_nonzero(
                made.trainer.table.lookup(asked.ids).values < made.trainer.table.num_fields
            )
    statistics = made.trainer.table.statistics()
    assert not table.get("max_rows") or statistics.evicted
    assert not rules.get("ttl") or statistics.expired
    assert [f.counts.swaps for f in (first, late)] == [2, 2]


@pytest.fixture
def made(tmp_path, settings_of, features, events):
    trainer = PublishedTrainer(
        settings_of("dcn"), features, tmp_path / "run", FileLog(tmp_path / "log")
    )
    trainer.train(events.filter(slice(0, 256)))
    trainer.start()
    return trainer


def test_moments_are_not_read(made):
    """The largest files of a snapshot, with the weights, are those of Adam's moments."""
    folder = made.run / "snapshots" / str(made.number)
    removed = [*folder.glob("*.m.bin"), *folder.glob("*.v.bin"), *folder.glob("*counters*")]
    for file in removed:
        file.unlink()
    assert len(removed) == 3
    assert len(ServedModel.from_snapshot(made.run, made.number, Version(1, 0, {}))) > 50


@pytest.mark.parametrize("name", ["config.json", "snapshots/1/trainer.table.ids.bin"])
def test_a_missing_file_is_one_line(made, name):
    (made.run / name).unlink()
    with pytest.raises(InputError, match=name.rpartition("/")[2]) as caught:
        ServedModel.from_snapshot(made.run, 1, Version(1, 0, {}))
    assert "\n" not in str(caught.value)


@pytest.mark.thorough
def test_generations_take_no_more_memory(made):
    """A model that was replaced goes away, with its graph."""
    follower = Follower(lambda: made.log)
    sizes = []
    for _ in range(8):
        made.start()
        made.sync()
        while follower.step():
            pass
        gc.collect()
        sizes.append(resident_megabytes())
    assert sizes[-1] - sizes[2] < 25, sizes
