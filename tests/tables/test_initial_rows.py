"""First values depend on seed, field and id only, and are normal."""

import numpy as np
from reference import first_values

from cowclip_merlin.tables.initial_rows import RowMemory


def written(rows, fields, ids, *, d=5, seed=7, std=0.1):
    w = np.full((rows.max() + 1, d), 9.0, np.float32)
    RowMemory(w=w, std=std, seed=seed).initialize(rows.astype(np.int32), fields, ids)
    return w[rows]


def test_independent_of_row_and_order():
    rng = np.random.default_rng(0)
    fields, ids = rng.integers(0, 3, 100), rng.integers(-(2**63), 2**63, 100)
    one = written(np.arange(100), fields, ids)
    order = rng.permutation(100)
    other = written(rng.permutation(200)[:100], fields[order], ids[order])
    assert np.array_equal(one[order], other)


def test_same_as_python():
    keys = [(0, 0), (2, -1), (1, 2**63 - 1), (0, -(2**63))]
    rows = written(np.arange(4), *(np.array(x, np.int64) for x in zip(*keys)), seed=-3)
    wanted = [first_values(-3 % 2**64, f, i, 5, 0.1) for f, i in keys]
    np.testing.assert_allclose(rows, wanted, rtol=1e-6, atol=1e-12)


def test_normal_and_uncorrelated():
    n, d = 50_000, 4
    rows = written(np.arange(n), np.arange(n) % 2, np.arange(n) // 2, d=d, std=2.0) / 2
    assert np.abs(rows.mean(0)).max() < 0.02 and np.abs(rows.std(0) - 1).max() < 0.02
    assert abs((rows**4).mean() - 3) < 0.1  # a normal distribution's
    correlation = np.corrcoef(np.hstack([rows[:-1], rows[1:]]).T)
    assert np.abs(correlation - np.eye(2 * d)).max() < 0.02


def test_other_seeds_fields_and_ids_have_other_rows():
    keys = [(s, f, i) for s in (0, 1) for f in (0, 1) for i in (0, 1)]
    rows = [written(np.zeros(1, int), np.array([f]), np.array([i]), seed=s)[0] for s, f, i in keys]
    assert len({row.tobytes() for row in rows}) == len(keys)


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


def test_no_deviation_gives_zeros():
    assert (written(np.arange(3), np.arange(3), np.arange(3), std=0.0) == 0).all()
