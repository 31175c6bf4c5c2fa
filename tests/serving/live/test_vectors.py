"""Requests with a vector per row."""

from dataclasses import replace

import numpy as np
import pytest
from http_clients import URL, client_of
from published import follower_of, publish

from cowclip_merlin.online.events.features import VectorColumn
from cowclip_merlin.online.events.requests import encode_requests


@pytest.fixture(scope="module")
def served_vectors(tmp_path_factory, small_settings, features, events):
    """A trainer whose events have vectors, and a client of its server."""
    features = replace(features, vectors=(VectorColumn(name="text", length=2),))
    events = events.filter(slice(0, 512))
    vectors = np.random.default_rng(3).normal(size=(512, 2)).astype(np.float32)
    events = replace(events, numbers=np.hstack([events.numbers, vectors]))
    folder = tmp_path_factory.mktemp("vectors")
    made = publish(folder, small_settings, features, events)
    with client_of(follower_of(made)) as client:
        yield made.trainer, client


def test_vectors_and_text_are_scored_as_by_the_trainer(served_vectors, rows):
    trainer, client = served_vectors
    asked = [row | {"text": [i / 2, -i]} for i, row in enumerate(rows[:6])]
    asked[5]["text"] = "2.5|-5"
    answer = client.post(URL, json={"events": asked})
    assert answer.status_code == 200
    wanted = trainer.predict(encode_requests(asked, trainer.features).events)
    np.testing.assert_allclose(answer.json()["predictions"], wanted, rtol=0, atol=1e-6)
    same = trainer.predict(encode_requests([asked[0] | {"text": [3, -4]}], trainer.features).events)
    assert abs(same[0] - wanted[0]) > 1e-4
    assert client.get("/v1/status").json()["model"]["vectors"] == {"text": 2}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"text": [1]}, "event 1: text has 1 numbers, not 2"),
        ({"text": None}, "event 1: text is missing; a vector needs its 2 numbers"),
        ({"text": [1, "a"]}, "event 1: text[1] is 'a', not a finite number"),
        ({"text": 7}, "event 1: text is 7 (int); give a list of 2 numbers, or text with '|'"),
    ],
)
def test_a_wrong_vector_is_one_line(served_vectors, rows, change, reason):
    usual = rows[0] | {"text": [1, 2]}
    answer = served_vectors[1].post(URL, json={"events": [usual, usual | change]})
    error = answer.json()["error"]
    assert answer.status_code == 422 and error.startswith(reason) and "\n" not in error
