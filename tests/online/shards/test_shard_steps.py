"""Workers with shards of growing tables train what one process trains."""

import numpy as np
import pytest
from shard_steps import CASES, CONTROL, LAYERS

pytestmark = pytest.mark.system

BOUND = 1e-5
"""Without counts, the difference is more than 100 times this."""


def read(folder, case, workers):
    return [dict(np.load(folder / f"{case}.{rank}.npz")) for rank in range(workers)]


def joined(parts):
    """The rows of all workers in the order of their fields and ids."""
    rows = [name for name in parts[0] if name.startswith("table.") or name in ("last_seen",)]
    fields, ids = (np.concatenate([part[name] for part in parts]) for name in ("fields", "ids"))
    order = np.lexsort((ids, fields))
    whole = {name: np.concatenate([part[name] for part in parts])[order] for name in rows}
    return whole | {"fields": fields[order], "ids": ids[order]}


@pytest.mark.parametrize("case", CASES)
def test_equal_to_one_process(by_workers, case):
    (one,), parts = read(by_workers(1), case, 1), read(by_workers(2), case, 2)
    whole = joined(parts)
    assert min(len(part["ids"]) for part in parts) > 0.2 * len(one["ids"]) / 2
    for name in ("fields", "ids", "last_seen"):
        np.testing.assert_array_equal(whole[name], one[name], err_msg=name)
    for name in one:
        if name.startswith("table."):
            np.testing.assert_allclose(whole[name], one[name], atol=BOUND, err_msg=name)
    for part in parts:
        for name in one:
            if name.startswith(("dense", "optimizer", "absent", "scores")):
                np.testing.assert_allclose(part[name], one[name], atol=BOUND, err_msg=name)
    assert sum(part["expired"] for part in parts) == one["expired"] > 5
    assert sum(part["refused"] for part in parts) == one["refused"] > 5


def test_the_clip_needs_the_counts_of_all_workers(by_workers):
    (one,), without = read(by_workers(1), "zeros", 1), joined(read(by_workers(2), CONTROL, 2))
    np.testing.assert_array_equal(without["ids"], one["ids"])
    assert np.abs(without["table.table0.w"] - one["table.table0.w"]).max() > 100 * BOUND


def test_moving_means_are_those_of_all_events(by_workers):
    """Workers normalize their own parts, but count by their events; a batch of one has one part."""
    (one,), parts = read(by_workers(1), LAYERS, 1), read(by_workers(2), LAYERS, 2)
    means, variances = one["moving"]
    assert np.abs(means).max() > 0.01
    for part in parts:
        np.testing.assert_allclose(part["moving"][0], means, atol=BOUND)
        np.testing.assert_allclose(part["moving"][1], variances, rtol=0.1)
        np.testing.assert_allclose(part["scores"], one["scores"], atol=0.01)


@pytest.mark.parametrize("case", [*CASES, LAYERS])
def test_workers_have_the_same_copies(by_workers, case):
    first, second = read(by_workers(2), case, 2)
    for name in first:
        if name.startswith(("dense", "optimizer", "absent", "scores", "clock", "events")):
            np.testing.assert_array_equal(first[name], second[name], err_msg=name)
    assert first["sent"] > 0
