"""Requests with several values per row."""

import numpy as np
import pytest
from http_clients import URL, client_of
from published import follower_of, publish, with_lists

from cowclip_merlin.online.events.requests import encode_requests


@pytest.fixture(scope="module")
def served_lists(tmp_path_factory, small_settings, features, events):
    """A trainer whose first two columns have lists, and a client of its server."""
    features, events = with_lists(features, events)
    folder = tmp_path_factory.mktemp("lists")
    made = publish(folder, small_settings, features, events.filter(slice(0, 512)))
    with client_of(follower_of(made)) as client:
        yield made.trainer, client


def test_lists_and_text_are_scored_as_by_the_trainer(served_lists, rows):
    trainer, client = served_lists
    users = [row["user"] for row in rows[:6]]
    asked = [row | {"user": users[:i], "item": None} for i, row in enumerate(rows[:6])]
    asked[5]["user"] = "|".join(users[:5])
    answer = client.post(URL, json={"events": asked})
    assert answer.status_code == 200
    wanted = trainer.predict(encode_requests(asked, trainer.features).events)
    np.testing.assert_allclose(answer.json()["predictions"], wanted, rtol=0, atol=1e-6)
    assert len(set(wanted.tolist())) > 3


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"user": 7}, "event 1: user is 7 (int); give a list, or text with '|' between"),
        ({"user": [7, 0.5]}, "event 1: user is 0.5 (float); give text or a whole number"),
        ({"item": {"a": 1}}, "event 1: item is {'a': 1} (dict); give a list"),
        ({"hour": ["1"]}, "event 1: hour is ['1'] (list); give text or a whole number"),
    ],
)
def test_a_wrong_list_is_one_line(served_lists, rows, change, reason):
    usual = rows[0] | {"user": [], "item": []}
    answer = served_lists[1].post(URL, json={"events": [usual, usual | change]})
    error = answer.json()["error"]
    assert answer.status_code == 422 and error.startswith(reason) and "\n" not in error
