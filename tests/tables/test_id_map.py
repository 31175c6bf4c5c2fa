"""The map of ids where `test_against_reference` cannot see it: full cells, rows given back."""

import numpy as np

from cowclip_merlin.tables.id_map import GOLDEN, IdMap, cells_for, give_back, mix


def remove(ids, rows):
    for row in rows:
        give_back(ids.cells, ids.owners, row)


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


def test_splitmix64():
    assert int(mix(GOLDEN)) == 16294208416658607535  # published: the first number of seed 0
