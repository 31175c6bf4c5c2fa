"""Messages that workers decode together: each of them decodes its share.

The share of a worker depends on the places of the messages only. So a restart deals them out as
before, and the sums of a batch are the same to the last bit.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from cowclip_merlin import compat
from cowclip_merlin.batch import Ids
from cowclip_merlin.online.events.events import Damage, Events
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.events.messages import encode_messages
from cowclip_merlin.online.logs.message_log import Message
from cowclip_merlin.online.training.shards.turns import READ, Conductor, Turn
from cowclip_merlin.tables.id_map import GOLDEN
from cowclip_merlin.types import Array
from cowclip_merlin.workers import Workers
from cowclip_merlin.workers.agreement import texts_of_all
from cowclip_merlin.workers.collectives import gather_rows

_LABEL, _TIME, _KEY, _FLOATS, _FLAGS = range(5)
_DAMAGED, _HAS_OFFSET = 1, 2


class DealtDecoder:
    """Decodes the messages that all workers have read, for an `EventReader`.

    Every worker calls this with the same messages. Labels, times, keys, offsets and weights are
    those of all messages. Ids and numbers are those of this worker's messages; the others are 0.

    Args:
        group: this process and the others.
        features: columns of the events.
    """

    def __init__(self, group: Workers, features: LogFeatures) -> None:
        self._group, self._features = group, features

    def decode(self, messages: Sequence[Message]) -> tuple[Events, Damage]:
        """Return the events of all messages, and what is wrong with some.

        Args:
            messages: that all workers have read.
        """
        dealer = dealt_to([_number(message) for message in messages], self._group.size)
        own = np.flatnonzero(dealer == self._group.rank)
        events, damage = encode_messages([messages[i].value for i in own], self._features)
        facts = self._exchange(_facts_of(events, damage), dealer)
        whole = Damage()
        if (facts[:, _FLAGS] & _DAMAGED).any():
            known = {int(own[i]): reason for i, reason in damage.reasons.items()}
            for text in texts_of_all(self._group, json.dumps(known)):
                whole.reasons |= {int(i): reason for i, reason in json.loads(text).items()}
        return self._whole(events, own, facts, dealer), whole

    def _exchange(self, own: Array, dealer: Array) -> Array:
        """Return the facts of all messages, int64 [n, 5], in their order."""
        tf = compat.tensorflow()
        counts = np.bincount(dealer, minlength=self._group.size)
        with tf.device("CPU:0"):
            bits = tf.constant(np.ascontiguousarray(own).view(np.int32))
            sizes = tf.constant(counts, tf.int32)
            every = gather_rows(self._group, bits, sizes, "facts of messages", host=True).numpy()
        facts = np.empty((len(dealer), 5), np.int64)
        facts[np.argsort(dealer, kind="stable")] = np.ascontiguousarray(every).view(np.int64)
        return facts

    def _whole(self, own: Events, places: Array, facts: Array, dealer: Array) -> Events:
        """Return the events of all messages, with the ids and numbers of this worker's ones."""
        n, features = len(dealer), self._features
        numbers = np.zeros((n, own.numbers.shape[1]), np.float32)
        numbers[places] = own.numbers
        floats = facts[:, _FLOATS].copy().view(np.float32).reshape(-1, 2)
        has_offsets = (facts[:, _FLAGS] & _HAS_OFFSET).any()
        return Events(
            ids=_spread(own.ids, places, n),
            numbers=numbers,
            labels=facts[:, _LABEL].astype(np.int8),
            times=facts[:, _TIME].copy(),
            keys=facts[:, _KEY].copy() if features.key else None,
            offsets=floats[:, 0].copy() if has_offsets else None,
            weights=floats[:, 1].copy() if features.weight is not None else None,
            worker=dealer.astype(np.int16),
        )


class ConductorDecoder(DealtDecoder):
    """The decoder of worker 0, which lets the others read the same messages.

    Args:
        conductor: tells them.
        features: columns of the events.
    """

    def __init__(self, conductor: Conductor, features: LogFeatures) -> None:
        super().__init__(conductor.group, features)
        self._conductor = conductor

    def decode(self, messages: Sequence[Message]) -> tuple[Events, Damage]:
        """Return the events of all messages; see `DealtDecoder`."""
        self._conductor.say(Turn(READ, until=messages[-1].after))
        return super().decode(messages)


def _number(message: Message) -> int:
    """A number that no other message of the log has."""
    if message.partition is None:
        return message.after[0]
    return message.place + (message.partition << 40)


def dealt_to(places: Sequence[int], size: int) -> Array:
    """Return which of so many workers decodes the message before each place, int64 [n].

    Multiples of the golden ratio spread places evenly, also those of a log with gaps, such as
    every second number.

    >>> np.bincount(dealt_to(range(0, 2000, 2), 4)).tolist()
    [251, 250, 250, 249]
    """
    fractions = (np.array(places, np.uint64) * GOLDEN) >> np.uint64(32)
    return (fractions * np.uint64(size) >> np.uint64(32)).astype(np.int64)


def _facts_of(events: Events, damage: Damage) -> Array:
    """Return what all workers need of each event, int64 [n, 5]."""
    n = len(events)
    facts, floats = np.zeros((n, 5), np.int64), np.zeros((n, 2), np.float32)
    facts[:, _LABEL], facts[:, _TIME] = events.labels, events.times
    if events.keys is not None:
        facts[:, _KEY] = events.keys
    if events.offsets is not None:
        floats[:, 0] = events.offsets
        facts[:, _FLAGS] |= _HAS_OFFSET
    if events.weights is not None:
        floats[:, 1] = events.weights
    facts[:, _FLOATS] = floats.view(np.int64)[:, 0]
    facts[list(damage.reasons), _FLAGS] |= _DAMAGED
    return facts


def _spread(ids: Ids, places: Array, n: int) -> Ids:
    """Return the ids of n events, of which only those at some places are known."""
    if ids.lengths is None:
        values = np.zeros((n, ids.num_fields), np.int64)
        values[places] = ids.values
        return Ids(values)
    lengths = np.zeros((n, ids.num_fields), np.int32)
    lengths[places] = ids.lengths
    return Ids(ids.values, lengths)
