"""Settings of a replay that cannot be are refused in one line."""

import pytest

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.replaying.settings import ReplaySettings
from cowclip_merlin.online.training.trainer import OnlineTrainer


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sync": ("never", "1 week")}, "sync is '1 week'; "),
        ({"sync": ("1h", "1h")}, "give every value once"),
        ({"sync": ()}, "sync is empty"),
        ({"batch_days": -1.0}, "batch_days is -1.0; "),
        ({"snapshot_every": float("nan")}, "snapshot_every is nan"),
    ],
)
def test_settings_that_cannot_be_are_refused(values, message):
    with pytest.raises(InputError, match=message):
        ReplaySettings(**({"batch_days": 1.0, "sync": ("never",)} | values))


@pytest.mark.parametrize(
    ("run", "table", "message"),
    [
        ({"update": "exact"}, {}, "exact.* rows that are absent"),
        ({"combiner": "sum"}, {}, "the features file gives the combiner"),
        ({"lr_schedule": "cosine"}, {}, "lr_schedule is 'cosine', which needs the epochs of a"),
        ({"lr_schedule": "linear"}, {}, "a stream has no length; also set lr_events"),
        ({}, {"lr_events": 5}, "lr_events has no effect with lr_schedule 'constant'; remove it"),
        ({"lr_schedule": "linear"}, {"lr_events": 0}, "lr_events is 0; it must be at least 1"),
        ({"epochs": 2, "reset_embeddings": True}, {}, "reset_embeddings is for the epochs of a"),
        ({}, {"capacity": 0}, "capacity is 0"),
        ({}, {"absent": "ones"}, "unknown absent 'ones'"),
        ({"clip": "global"}, {}, "global.*each row by itself.* cowclip"),
        ({}, {"window": 9, "admission_filter": "probabilistic"}, "window has no effect"),
    ],
)
def test_settings_of_the_model_that_cannot_be_are_refused(settings_of, run, table, message):
    with pytest.raises(InputError, match=message):
        settings_of(table=table, **run)


@pytest.mark.parametrize("table", [{"window": 9}, {"admission_filter": "probabilistic"}])
def test_a_filter_that_counts_nothing_is_refused(settings_of, features, table):
    with pytest.raises(InputError, match=r"has no effect, .* `admit` above 1"):
        OnlineTrainer(settings_of(table=table), features)
