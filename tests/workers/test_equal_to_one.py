"""Workers train what one process trains: as close as float arithmetic allows."""

import numpy as np
import pytest
from cases import BY_THREE, BY_TWO, STEPS, WITHOUT_COUNTS, Case

pytestmark = pytest.mark.system

# Adagrad does not amplify differences by rounding, so a fixed bound is sharp.
ADAGRAD_BOUND = 2e-5

FOLDERS = {1: "by_one", 2: "by_two", 3: "by_three"}
CASES = [(2, case) for case in BY_TWO] + [(3, case) for case in BY_THREE]


@pytest.fixture(scope="module")
def results(request):
    """`results(n, case)`: what each of n workers has written."""

    def get(workers, case):
        folder = request.getfixturevalue(FOLDERS[workers])
        folder = folder if workers == 1 else folder / "cases"
        files = [folder / f"{case}.{rank}.npz" for rank in range(workers)]
        return [dict(np.load(file)) for file in files]

    return get


def whole(parts, like):
    """The table of which worker r has the rows r, r + N, ...; or what all workers have alike."""
    if parts[0].shape == like.shape:
        return parts[0]
    table = np.empty_like(like)
    for rank, part in enumerate(parts):
        table[rank :: len(parts)] = part
    return table


def differences(workers, one):
    """The largest difference of any weight after each of `STEPS`."""
    return [
        max(
            np.abs(whole([each[name] for each in workers], one[name]) - one[name]).max(initial=0)
            for name in one
            if name.startswith(f"{step} weight ")
        )
        for step in STEPS
    ]


@pytest.mark.parametrize(("workers", "case"), CASES, ids=str)
def test_weights_equal_those_of_one_process(results, workers, case):
    (one,), several = results(1, case.of_one), results(workers, case)
    found = differences(several, one)
    assert one["clipped"].mean() > 0.5 and several[0]["clipped"].mean() > 0.5
    if case.optimizer != "adam":
        assert max(found) <= ADAGRAD_BOUND
    else:
        assert (found <= one["by_order"].max(0)).all(), (found, one["by_order"])
    loss = sum(each["loss"] for each in several)
    np.testing.assert_allclose(loss, one["loss"], rtol=1e-5)


@pytest.mark.parametrize(("workers", "case"), CASES, ids=str)
def test_workers_have_the_same_bits(results, workers, case):
    """What every worker has, as against the shards of tables; optimizer state too."""
    (one,), (first, *others) = results(1, case.of_one), results(workers, case)
    own = {"loss", "clipped"} if case.tables == "sharded" else {"loss"}  # of a worker's own rows
    alike = [x for x in first if x not in own and first[x].shape == one[x].shape]
    assert any(" weight " in name for name in alike) and any(" state " in name for name in alike)
    assert (len(alike) < len(first) - len(own)) == (case.tables == "sharded")
    for other in others:
        assert list(other) == list(first)
        for name in alike:
            assert first[name].dtype == other[name].dtype
            assert first[name].tobytes() == other[name].tobytes(), name


def test_one_process_repeats_itself(results):
    """So the differences of other orders come from the orders."""
    for case in dict.fromkeys(case.of_one for case in BY_TWO if case.optimizer == "adam"):
        by_order = results(1, case)[0]["by_order"]
        assert not by_order[0].any()
        assert by_order[1:].any()


def test_the_bound_shows_lost_counts(results):
    (one,) = results(1, Case("deepfm", "adagrad", "lazy"))
    wrong = results(2, WITHOUT_COUNTS)
    assert max(differences(wrong, one)) > 100 * ADAGRAD_BOUND
