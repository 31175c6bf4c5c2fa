import numpy as np
import pytest

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.event_log import RawEvents
from cowclip_merlin.online.producing.producer import Producer, ProduceSettings


def events_of(n, times=None, labels=None, first=0):
    times = np.arange(first, first + n) if times is None else np.asarray(times, float)
    columns = {"request": list(range(first, first + n)), "time": times.tolist()}
    columns |= {name: [1] * n for name in ("user", "item", "price", "age")}
    labels = np.ones(n, np.int8) if labels is None else np.asarray(labels, np.int8)
    return RawEvents(columns=columns, labels=labels, times=times)


@pytest.fixture
def play(features, clock, memory_log):
    """Plays pieces; returns what was produced and the logs."""

    def run(pieces, *, pair=False, failures=0, stopped=None, trouble=None, **settings):
        logs = {"impressions": memory_log(failures), "actions": memory_log()}
        logs = logs if pair else {"examples": memory_log(failures)}
        told = {"stopped": stopped, "trouble": trouble}
        more = logs | {name: call for name, call in told.items() if call}
        settings = ProduceSettings(**settings)
        producer = Producer(features, settings, now=clock.now, wait=clock.wait, **more)
        return producer.run(pieces), *logs.values()

    return run


@pytest.mark.parametrize("rate", [3, 500, 20_000])
def test_rate(play, clock, rate):
    n = rate * 4
    produced, log = play([events_of(n // 2), events_of(n - n // 2)], rate=rate)
    assert produced.events == n == len(log.values)
    # Event i is sent at i / rate, and at most one tick later.
    late = np.asarray(log.sent) - 1000 - np.arange(n) / rate
    assert late.min() >= -1e-9 and late.max() <= 0.011
    assert clock.waits <= 4 / 0.01 + 4 * rate + 2


def test_speed(play):
    _, log = play([events_of(4, times=[50, 60, 60, 110])], speed=10)
    np.testing.assert_allclose(np.asarray(log.sent) - 1000, [0, 1, 1, 6], atol=0.011)


def test_as_fast_as_possible_does_not_wait(play, clock):
    produced, log = play([events_of(5000), events_of(10)])
    assert produced.events == 5010 and clock.waits == 0 and produced.seconds == 0
    assert log.calls == 3  # at most 4,096 messages in a call


def test_new_times_are_those_at_which_events_are_due(play):
    _, log = play([events_of(40)], rate=4, times="now")
    assert [x["time"] for x in log.objects] == [1000 + i / 4 for i in range(40)]


def test_clicks_follow_their_impressions_in_order_of_time(play):
    labels = [1, 0, 0, 1, 1] * 100
    played, impressions, actions = play(
        [events_of(500, labels=labels)],
        pair=True,
        rate=100,
        times="now",
        delay=0.5,
    )
    shown = {x["request"]: x["time"] for x in impressions.objects}
    clicked = {x["request"]: x["time"] for x in actions.objects}
    assert sorted(clicked) == [i for i, label in enumerate(labels) if label]
    assert played.clicks == len(actions.values) == 300 and played.left == 0
    assert all("click" not in x for x in impressions.objects)
    delays = np.array([clicked[key] - shown[key] for key in clicked])
    assert delays.min() >= 0 and 0.4 < delays.mean() < 0.6
    times = [x["time"] for x in actions.objects]
    assert times == sorted(times)
    late = np.asarray(actions.sent) - times
    assert late.min() >= -0.001 and late.max() <= 0.03  # a time has milliseconds


def test_with_the_times_of_the_log_clicks_are_sent_when_the_stream_reaches_them(play):
    pieces = [events_of(1, times=[i * 10], first=i) for i in range(50)]
    _, impressions, actions = play(pieces, pair=True, rate=1, delay=30)
    reached = dict(zip((x["time"] for x in impressions.objects), impressions.sent))
    for action, sent in zip(actions.objects, actions.sent):
        following = [at for time, at in reached.items() if time >= action["time"]]
        assert sent == min(following, default=max(impressions.sent))


def test_delays_do_not_depend_on_how_the_stream_is_cut_but_on_the_seed(play):
    def clicks(sizes, seed):
        pieces = [events_of(n, first=sum(sizes[:i])) for i, n in enumerate(sizes)]
        return {x["request"]: x["time"] for x in play(pieces, pair=True, seed=seed)[2].objects}

    whole = clicks([60], 1)
    assert len(whole) == 60 and whole == clicks([7, 50, 3], 1)
    assert whole != clicks([60], 2)


def test_a_log_that_does_not_answer_is_tried_again(play, clock):
    told = []
    produced, log = play([events_of(10)], failures=5, trouble=told.append)
    assert produced.events == 10 == len(log.values)
    assert told == ["memory: does not answer"] and log.calls == 6


def test_stop(play, clock):
    produced, impressions, actions = play(
        [events_of(1000)],
        pair=True,
        rate=10,
        times="now",
        delay=5,
        stopped=lambda: clock.now() >= 1020,
    )
    assert produced.events == len(impressions.values) in range(200, 204)
    assert produced.clicks == len(actions.values)
    assert produced.clicks + produced.left == produced.events


def test_stop_while_a_log_does_not_answer(play, clock):
    produced, log = play([events_of(10)], failures=10**9, stopped=lambda: clock.now() > 1003)
    assert produced.events == 0 and not log.values


@pytest.mark.parametrize(
    "given", [(), ("actions",), ("impressions",), ("examples", "impressions", "actions")]
)
def test_wrong_logs(features, memory_log, given):
    with pytest.raises(InputError, match="give `to`, or both"):
        Producer(features, ProduceSettings(), **dict.fromkeys(given, memory_log()))
