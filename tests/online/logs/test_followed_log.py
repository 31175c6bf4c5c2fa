"""Another process reads merged logs in the order of the first one."""

import random

from test_merged_log import GapLog, merged, read_all, values_of

from cowclip_merlin.online.logs.merging import merge_order
from cowclip_merlin.online.logs.merging.followed_log import FollowedLog


def test_the_order_is_that_of_the_first_reader(tmp_path, monkeypatch):
    monkeypatch.setattr(merge_order, "MANY", 30)  # the file is written again now and then
    rng, file = random.Random(3), tmp_path / "order.txt"
    parts = [GapLog() for _ in range(3)]
    first = merged(parts, file)
    place = behind = first.start()
    second = FollowedLog(parts, name="topic", order=file)
    read, followed, number = [], [], 0
    for _ in range(200):
        for _ in range(rng.randrange(8)):
            parts[rng.randrange(3)].add(b"%d" % number, gap=rng.randrange(3))
            number += 1
        found = first.read(place, rng.randrange(1, 20))
        read += values_of(found)
        place = found[-1].after if found else first.past_gaps(place)
        if rng.random() < 0.3:  # up to where the first has read, and no further
            found = read_all(second, behind, rng.randrange(1, 20))
            followed += values_of(found)
            behind = found[-1].after if found else second.past_gaps(behind)
            assert followed == read
            first.keep_from(behind)
    assert len(followed) > 300


def test_nothing_is_read_before_the_first_reader(tmp_path):
    parts = [GapLog(), GapLog()]
    first = merged(parts, tmp_path / "order.txt")
    second = FollowedLog(parts, name="topic", order=tmp_path / "order.txt")
    place = first.start()
    parts[1].add(b"a")
    assert second.read(place, 10, wait=0.02) == []
    assert values_of(first.read(place, 10)) == values_of(second.read(place, 10)) == [b"a"]


def test_the_order_is_read_once(tmp_path, monkeypatch):
    """Not anew at each read: a run of weeks has hundreds of thousands of lines."""
    file, parts = tmp_path / "order.txt", [GapLog(), GapLog()]
    first, second = merged(parts, file), FollowedLog(parts, name="topic", order=file)
    read_on, lengths = merge_order.MergeOrder.read_on, []

    def counted(order, stream, known=0):
        now = read_on(order, stream, known)
        lengths.append(now - known)
        return now

    monkeypatch.setattr(merge_order.MergeOrder, "read_on", counted)
    find, searches = merge_order.MergeOrder.find, []
    monkeypatch.setattr(
        merge_order.MergeOrder, "find", lambda *args: searches.append(0) or find(*args)
    )
    place = behind = first.start()
    for i in range(100):
        parts[i % 2].add(b"%d" % i)
        place = first.read(place, 10)[-1].after
        searches.clear()
        (message,) = second.read(behind, 10)
        behind = message.after
        assert len(searches) <= (i == 0)
        assert second.read(behind, 10) == []
    assert sum(lengths) == file.stat().st_size
