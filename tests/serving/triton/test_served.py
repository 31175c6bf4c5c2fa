"""The model of a repository, run without this package: probabilities as by `cowclip evaluate`."""

import json
import random

import numpy as np
import pytest
from unusual_rows import CATEGORICAL, CONTINUOUS, as_request

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def requests(exported):
    return [as_request(row) for row in exported.rows]


def cut(rows, draw):
    """The rows in requests of 1 to 60 rows, and those in batches of 1 to 5 requests."""
    requests = []
    while rows:
        size = draw.randint(1, 60)
        requests.append(rows[:size])
        rows = rows[size:]
    batches = []
    while requests:
        size = draw.randint(1, 5)
        batches.append(requests[:size])
        requests = requests[size:]
    return batches


def test_raw_rows_get_the_probabilities_of_evaluate(exported, requests, serve):
    draw = random.Random(5)
    infinite = [requests[0], requests[1] | {"self": float("-inf")}]
    huge = [requests[0], requests[1], requests[2] | {"self": 1e308}]
    ways = [cut(requests, draw) for _ in range(3)]
    batches = [batch for way in ways for batch in way]
    refused = [[requests[:2], infinite, requests[2:3]], [infinite], [requests[:1], huge]]
    assert np.ptp(exported.expected) > 1e-3
    answers = serve([*batches, *refused])
    got = [p for batch in answers[:-3] for request in batch for p in request]
    np.testing.assert_allclose(got, np.tile(exported.expected, 3), rtol=0, atol=1e-6)
    (told,) = answers[-2]
    assert told.startswith("self is infinite; ")
    before, refusal, after = answers[-3]
    assert refusal == told
    np.testing.assert_allclose([*before, *after], exported.expected[:3], rtol=0, atol=1e-6)
    fine, refusal = answers[-1]
    np.testing.assert_allclose(fine, exported.expected[:1], rtol=0, atol=1e-6)
    assert refusal.startswith("row 2 ") and "32 bits" in refusal


def test_a_version_holds_all_files_and_no_pickle(exported):
    found = {str(f.relative_to(exported.repo)) for f in exported.repo.rglob("*") if f.is_file()}
    saved = "clicks/3/model.savedmodel"
    assert found - {f"{saved}/fingerprint.pb"} == {  # TensorFlow 2.12 or newer writes it
        "clicks/config.pbtxt",
        "clicks/3/model.py",
        "clicks/3/columns.json",
        f"{saved}/saved_model.pb",
        f"{saved}/variables/variables.index",
        f"{saved}/variables/variables.data-00000-of-00001",
    }
    graph = (exported.repo / saved / "saved_model.pb").read_bytes()
    assert b"PyFunc" not in graph and b"pickle" not in graph
    columns = json.loads((exported.repo / "clicks/3/columns.json").read_text())
    outputs = ["probability"]
    assert columns == {"categorical": CATEGORICAL, "continuous": CONTINUOUS, "outputs": outputs}
