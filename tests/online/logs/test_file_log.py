"""Logs in files: writers that are killed, damaged files, full disks."""

import os
import resource
import subprocess
import sys
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cowclip_merlin.errors import InputError
from cowclip_merlin.online import FileLog
from cowclip_merlin.online.logs.file_log import pack, size_of
from cowclip_merlin.online.logs.message_log import LogUnavailable, MessagesLost

FIRST = f"{0:020d}.log"
VALUES = [b"", b"abc", b"\xc0msg", pack([b"inner"]), b"\0" * 30, b"last one"]


def values_of(log, position=None):
    return [message.value for message in log.read(position or log.start(), 1000)]


@pytest.mark.parametrize("rest", [b"", bytes(5), bytes(200), b"\xc0ms", b"\xff" * 40], ids=len)
@settings(max_examples=40)
@given(cut=st.integers(0, len(pack(VALUES))))
def test_what_a_killed_writer_left_is_replaced(tmp_path_factory, cut, rest):
    """The file ends anywhere, and perhaps with zeros, which a power failure may leave."""
    folder = tmp_path_factory.mktemp("log")
    reader = FileLog(folder)
    data = pack(VALUES)[:cut] + rest
    (folder / FIRST).write_bytes(data)
    ends = [len(pack(VALUES[:i])) for i in range(len(VALUES) + 1)]
    # Zeros may complete a message that ends with zeros.
    whole = max(i for i in range(len(ends)) if data.startswith(pack(VALUES[:i])))
    assert values_of(reader) == VALUES[:whole] and reader.end() == (whole, 0, ends[whole])
    assert reader.read(reader.end(), 5) == reader.read(reader.end(), 5) == []
    after = FileLog(folder).append([b"new", b"er"])
    assert after[0] == whole + 2 == reader.end()[0]
    assert values_of(reader) == [*VALUES[:whole], b"new", b"er"]


@settings(max_examples=60)
@given(place=st.integers(0, len(pack(VALUES[:-1])) - 1), bit=st.integers(0, 7))
def test_damage_before_other_messages_is_an_error_and_nothing_is_replaced(
    tmp_path_factory, place, bit
):
    folder = tmp_path_factory.mktemp("log")
    data = bytearray(pack(VALUES))
    data[place] ^= 1 << bit
    (folder / FIRST).write_bytes(data)
    log = FileLog(folder)
    ends = [len(pack(VALUES[:i])) for i in range(len(VALUES) + 1)]
    whole = max(i for i, end in enumerate(ends) if end <= place)
    if whole:
        assert values_of(log) == VALUES[:whole]
    told = rf"{FIRST}: damaged at byte {ends[whole]}: message {whole} "
    for call in (
        lambda: log.read((whole, 0, ends[whole]), 1),
        lambda: log.read((whole, 0, ends[whole]), 1, wait=60),
        lambda: log.append([b"new"]),
        log.end,
    ):
        with pytest.raises(InputError, match=told):
            call()
    assert (folder / FIRST).read_bytes() == data


def test_a_file_cut_at_a_message_before_a_later_file_is_an_error(tmp_path):
    log = FileLog(tmp_path, segment_bytes=1)
    places = [log.append([b"a", b"b"]) for _ in range(3)]
    os.truncate(tmp_path / f"{2:020d}.log", size_of(b"a"))
    assert len(log.read(log.start(), 10)) == 3
    with pytest.raises(InputError, match="damaged at byte 13: message 3 "):
        log.read((3, 2, 13), 10)
    with pytest.raises(MessagesLost, match="ends before message 4"):
        log.read(places[1], 10)


def test_what_was_left_at_the_end_of_a_file_before_others_is_no_damage(tmp_path):
    log = FileLog(tmp_path, segment_bytes=1)
    log.append([b"a"])
    with (tmp_path / FIRST).open("ab") as file:
        file.write(pack([b"half"])[:-1])
    log.append([b"b"])
    assert values_of(log) == [b"a", b"b"] and len(list(tmp_path.iterdir())) == 2


@contextmanager
def files_limited_to(size):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_nothing_half_appended(tmp_path):
    log = FileLog(tmp_path)
    place = log.append([b"x" * 100])
    with files_limited_to(5000), pytest.raises(LogUnavailable, match=r"nothing appended: .*room"):
        log.append([b"y" * 1000] * 5)
    assert (tmp_path / FIRST).stat().st_size == place[2] and log.end() == place
    assert log.append([b"z"])[0] == 2 and values_of(log) == [b"x" * 100, b"z"]


WRITER = """
import sys
from cowclip_merlin.online import FileLog
log, number = FileLog(sys.argv[1], segment_bytes=1 << 20), 0
while True:
    values = [b"%d " % i * 1000 for i in range(number, number + 50)]
    number += 50
    log.append(values)
    print(number, flush=True)
"""


@pytest.mark.quick
@pytest.mark.system
def test_a_reader_beside_a_writer_that_is_killed(tmp_path):
    reader, found, place = FileLog(tmp_path, segment_bytes=1 << 20), [], None
    for kill in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        place, acknowledged, first = place or reader.start(), 0, len(found)
        while len(found) - first < 500 * (kill + 1):
            part = reader.read(place, 37, wait=60)
            found += [int(message.value.split()[0]) for message in part]
            place = part[-1].after
        writer.kill()
        acknowledged = int((writer.communicate()[0].split() or [0])[-1])
        while part := reader.read(place, 1000):
            found += [int(message.value.split()[0]) for message in part]
            place = part[-1].after
        assert found[first:] == list(range(len(found) - first)) and len(found) - first >= (
            acknowledged
        )
        # A killed writer may leave a new, empty file: the same place in another file.
        assert place[0] == reader.end()[0]


def test_folders_of_other_things_are_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"notes\.txt"):
        FileLog(tmp_path)
    with pytest.raises(InputError, match="is a file"):
        FileLog(tmp_path / "notes.txt")
