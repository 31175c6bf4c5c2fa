"""Several labels of an event: how messages and files are read."""

import json
from dataclasses import replace

import numpy as np
import pytest
from stream_labels import FEATURES

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.messages import encode_messages


def message(**more):
    row = {"user": 1, "item": 2, "price": 0.5, "time": 1000, "key": "k"}
    return json.dumps(row | {"click": 1, "buy": 0, "sec": 2.5} | more).encode()


@pytest.mark.parametrize(
    ("given", "labels"),
    [
        ({}, [1, 0, 2.5]),
        ({"click": "Yes", "buy": True, "sec": -3}, [1, 1, -3]),
        ({"click": 0.0, "buy": None, "sec": " 1e3 "}, [0, None, 1000]),
        ({"click": None, "buy": "", "sec": 7}, [None, None, 7]),
        ({"click": None, "sec": None}, [None, 0, None]),
    ],
)
def test_labels_of_a_message(given, labels):
    events, damage = encode_messages([message(**given), message()], FEATURES)
    assert not damage.reasons and events.labels.dtype == np.float32
    wanted = [[np.nan if x is None else x for x in labels], [1, 0, 2.5]]
    np.testing.assert_array_equal(events.labels, np.array(wanted, np.float32))


def test_columns_made_in_python_are_checked():
    for wrong, reason in ((("time",), "'time' is no label"), (("click",), "label 'click' is a")):
        with pytest.raises(InputError, match=reason):
            replace(FEATURES, regression=wrong)
