"""The map of ids against a dict: growth, deletion, extreme ids."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import mix as python_mix
from reference import seeded_hash as python_seeded_hash

from cowclip_merlin.errors import InputError
from cowclip_merlin.tables.id_map import GOLDEN, IdMap, cells_for, give_back, mix, seeded_hash

KEYS = st.tuples(st.integers(0, 2), st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 40))


def arrays(keys):
    fields, ids = zip(*keys)
    return np.array(fields), np.array(ids, np.int64)


def remove(ids, rows):
    for row in rows:
        give_back(ids.cells, ids.owners, row)


@settings(max_examples=80)
@given(st.lists(st.tuples(st.booleans(), st.lists(KEYS, min_size=1, max_size=40)), max_size=12))
def test_same_as_a_dict(steps):
    ids, known = IdMap(3, 1000), {}
    for add, keys in steps:
        fields, numbers = arrays(keys)
        assert ids.find(fields, numbers).tolist() == [known.get(key, -1) for key in keys]
        if add:
            known |= dict(zip(keys, ids.add(fields, numbers).tolist()))
        else:
            gone = {key: known.pop(key) for key in set(keys) & set(known)}
            remove(ids, gone.values())
        assert len(set(known.values())) == len(known) == len(ids)
        assert min(known.values(), default=3) >= 3
        if known:
            assert ids.find(*arrays(known)).tolist() == list(known.values())


def test_churn_leaves_no_traces():
    """Full cells that wrap around the end, and as many deletions as ids: none gets lost."""
    ids, rng, known = IdMap(1, 100), np.random.default_rng(2), {}
    for _ in range(3000):
        fresh = int(rng.integers(0, 2**63))
        known[fresh] = int(ids.add(np.zeros(1, int), np.array([fresh]))[0])
        if len(known) > 9:  # of 16 cells
            gone = list(known)[rng.integers(len(known))]
            remove(ids, [known.pop(gone)])
        keys = np.array(list(known))
        assert ids.find(np.zeros(len(keys), int), keys).tolist() == list(known.values())
    assert len(ids.cells) == 16 and np.count_nonzero(ids.cells[:, 1]) == len(known)
    assert ids.high_water <= 1 + 10


def test_rows_given_back_are_used_first():
    ids = IdMap(2, 10)
    rows = ids.add(np.array([0, 0, 1]), np.array([5, 6, 5]))
    assert rows.tolist() == [2, 3, 4]
    remove(ids, rows[:2])
    assert ids.add(np.array([1, 1, 1]), np.array([7, 8, 9])).tolist() == [3, 2, 5]
    assert ids.owners.per_field.tolist() == [0, 4]


def test_reserved_cells_are_enough():
    ids = IdMap(1, 5001, cells=cells_for(5000))
    before = len(ids.cells)
    ids.add(np.zeros(5000, int), np.arange(5000))
    assert len(ids.cells) == before


def test_state_and_restore():
    ids, rng = IdMap(2, 300), np.random.default_rng(3)
    fields, numbers = rng.integers(0, 2, 200), rng.integers(-(2**63), 2**63, 200)
    rows = ids.add(fields, numbers)
    remove(ids, rows[::3])
    other = IdMap(2, 250)
    other.restore(ids.state())
    assert other.find(fields, numbers).tolist() == ids.find(fields, numbers).tolist()
    fresh = np.arange(40)
    assert other.add(fresh % 2, fresh).tolist() == ids.add(fresh % 2, fresh).tolist()
    assert other.owners.per_field.tolist() == ids.owners.per_field.tolist()
    with pytest.raises(InputError, match=r"202 rows, .*capacity is 100"):
        IdMap(2, 100).restore(ids.state())


def test_splitmix64():
    assert int(mix(GOLDEN)) == 16294208416658607535  # published: the first number of seed 0
    for x in (0, 1, 2**63, 2**64 - 1, 12345678901234567890):
        assert int(mix(np.uint64(x))) == python_mix(x)
        assert int(seeded_hash(np.uint64(x), 3, np.int64(-7))) == python_seeded_hash(x, 3, -7)
