"""Messages that workers decode together become the events that one process decodes."""

import json
from dataclasses import replace

import numpy as np
import pytest
from shard_steps import LISTS, PLAIN, event

from cowclip_merlin.online.events.messages import encode_messages
from cowclip_merlin.online.logs.message_log import Message
from cowclip_merlin.online.training.shards import dealt_messages
from cowclip_merlin.online.training.shards.dealt_messages import DealtDecoder
from cowclip_merlin.workers import Workers

KEYED = replace(PLAIN, key="key")


def messages(sampled):
    """Messages of which some are damaged; every fourth one has a sample rate."""
    found = []
    for i in range(41):
        value = event(i) | {"key": f"k{i}"}
        if sampled and i % 4 == 0:
            value["cowclip_sample_rate"] = 0.5
        text = json.dumps(value).encode() if i % 9 != 5 else b"no event"
        found.append(Message((3 * i + i % 2,), text))
    return found


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("features", [KEYED, LISTS], ids=["plain", "lists"])
def test_equal_to_one_process(monkeypatch, features, sampled):
    given, size = messages(sampled), 3
    whole, damage = encode_messages([each.value for each in given], features)
    facts = dealt_messages._facts_of(whole, damage)
    reasons = {str(i): reason for i, reason in damage.reasons.items()}
    monkeypatch.setattr(dealt_messages, "texts_of_all", lambda *_: [json.dumps(reasons), "{}"])
    own_facts, seen = [], np.zeros(len(given), int)
    for rank in range(size):
        decoder = DealtDecoder(Workers(rank, ("a:1", "b:1", "c:1")), features)
        exchange = lambda own, dealer: own_facts.append(own) or facts  # noqa: E731
        monkeypatch.setattr(decoder, "_exchange", exchange)
        events, found = decoder.decode(given)
        assert found.reasons == damage.reasons
        good = damage.good(len(given))
        for name in ("labels", "times", "keys", "offsets", "weights"):
            mine, wanted = getattr(events, name), getattr(whole, name)
            assert (mine is None) == (wanted is None), name
            if wanted is not None:
                np.testing.assert_array_equal(mine[good], wanted[good], err_msg=name)
        own = good & (events.worker == rank)
        seen += own
        mine, wanted = events.filter(own), whole.filter(own)
        np.testing.assert_array_equal(mine.ids.values, wanted.ids.values)
        if features.lists:
            np.testing.assert_array_equal(mine.ids.lengths, wanted.ids.lengths)
        np.testing.assert_array_equal(mine.numbers, wanted.numbers)
    assert (seen == damage.good(len(given))).all()
    assert sum(map(len, own_facts)) == len(given) and min(map(len, own_facts)) > 8
