"""A script of one's own that joins its workers and calls Merlin's `fit`."""

import numpy as np
import pytest
import user_script

pytestmark = pytest.mark.system


def test_fit_by_two_equals_fit_by_one(by_two, tmp_path):
    first, second = (dict(np.load(by_two / f"fitted/{rank}.npz")) for rank in (0, 1))
    user_script.main(tmp_path)  # this process trains alone
    one = dict(np.load(tmp_path / "0.npz"))
    assert one["clipped"] > 0.5
    for name in (name for name in one if name.startswith("weight")):
        np.testing.assert_allclose(first[name], one[name], atol=1e-6, rtol=0)
        assert first[name].tobytes() == second[name].tobytes()
    assert first["losses"].tolist() != second["losses"].tolist()  # of their own rows
    mean = (first["losses"] + second["losses"]) / 2
    np.testing.assert_allclose(mean, one["losses"], atol=1e-5)
