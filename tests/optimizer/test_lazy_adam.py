"""Optimizers that were saved when `LazyAdam` was called `RowAdam`."""

import pytest

import cowclip_merlin as cc
from cowclip_merlin.optimizer.row_optimizers import LazyAdam

SETTINGS = {"name": "Adam", "learning_rate": 0.25, "decay": 0.0, "beta_1": 0.9, "beta_2": 0.999}
SETTINGS |= {"epsilon": 1e-07, "amsgrad": False}
REGISTERED = "cowclip_merlin>RowAdam"
OLD = {
    "Keras 2.15 and later": {
        "module": "cowclip_merlin.optimizer.row_adam",
        "class_name": "RowAdam",
        "config": SETTINGS,
        "registered_name": REGISTERED,
    },
    "earlier": {"class_name": REGISTERED, "config": SETTINGS},
    "HDF5": {"class_name": "RowAdam", "config": SETTINGS},
}


@pytest.mark.parametrize("saved", OLD.values(), ids=OLD)
def test_it_is_found_by_its_old_name(saved):
    config = cc.CowClip(update="lazy").get_config() | {"embedding_optimizer": saved}
    inner = cc.CowClip.from_config(config).embedding_optimizer
    assert type(inner) is LazyAdam
    assert float(inner.learning_rate) == 0.25


def test_it_is_saved_under_its_registered_name():
    saved = cc.CowClip(update="lazy").get_config()["embedding_optimizer"]
    assert REGISTERED in (saved.get("registered_name"), saved["class_name"])
