"""First values are normal; those of absent ids. `test_against_reference` has their exact bits."""

import numpy as np

from cowclip_merlin.tables.initial_rows import RowMemory


def written(rows, fields, ids, *, d, std, seed=7):
    w = np.full((rows.max() + 1, d), 9.0, np.float32)
    RowMemory(w=w, std=std, seed=seed).initialize(rows.astype(np.int32), fields, ids)
    return w[rows]


def test_normal_and_uncorrelated():
    n, d = 50_000, 4
    rows = written(np.arange(n), np.arange(n) % 2, np.arange(n) // 2, d=d, std=2.0) / 2
    assert np.abs(rows.mean(0)).max() < 0.02 and np.abs(rows.std(0) - 1).max() < 0.02
    assert abs((rows**4).mean() - 3) < 0.1  # a normal distribution's
    correlation = np.corrcoef(np.hstack([rows[:-1], rows[1:]]).T)
    assert np.abs(correlation - np.eye(2 * d)).max() < 0.02


def test_absent_rows_are_those_of_no_id():
    w, m, v = (np.full((10, 3), 9.0, np.float32) for _ in range(3))
    memory = RowMemory(w=w, slots={"m": m, "v": v}, std=1.0, seed=7)
    memory.initialize_absent(4, zeros=False)
    assert len(np.unique(w[:4])) == 12 and (m[:4] == 0).all() and (v[:4] == 0).all()
    assert not np.isin(
        w[:4], written(np.arange(4), np.arange(4), np.zeros(4, int), d=3, std=1)
    ).any()
    assert (w[4:] == 9).all() and (m[4:] == 9).all()
    memory.initialize_absent(4, zeros=True)
    assert (w[:4] == 0).all()
