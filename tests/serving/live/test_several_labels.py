"""Answers of a model with several labels: each by its name."""

from dataclasses import replace

import numpy as np
import pytest
from http_clients import URL, client_of
from published import follower_of, publish, with_labels


@pytest.fixture(scope="module")
def served_labels(tmp_path_factory, small_settings, features, events):
    """A trainer with three labels, and a client of its server."""
    features, events = with_labels(features, events)
    settings = replace(small_settings, run=replace(small_settings.run, multi_task="mmoe"))
    folder = tmp_path_factory.mktemp("labels")
    made = publish(folder, settings, features, events.filter(slice(0, 512)))
    with client_of(follower_of(made)) as client:
        yield made.trainer, events, client


def test_predictions_are_named(served_labels, rows):
    trainer, events, client = served_labels
    answer = client.post(URL, json={"events": rows[:6]})
    assert answer.status_code == 200 and answer.json()["model"]["trained"] == 512
    found = answer.json()["predictions"]
    assert [list(each) for each in found] == [["click", "buy it", "sec"]] * 6
    wanted = trainer.predict(events.filter(slice(0, 6)))
    values = np.array([[*each.values()] for each in found])
    np.testing.assert_allclose(values, wanted, rtol=0, atol=1e-6)
    assert len(set(wanted[:, 2].tolist())) > 3 and (wanted[:, 2] > 1).any()


def test_the_answer_is_described(served_labels):
    schema = served_labels[2].get("/openapi.json").json()["components"]["schemas"]
    kinds = schema["Predictions"]["properties"]["predictions"]["anyOf"]
    items = [kind["items"] for kind in kinds]
    assert items[0] == {"type": "number"}
    assert items[1] == {"type": "object", "additionalProperties": {"type": "number"}}
