"""The output of worker 0 on our own standard output and error."""

import io
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cowclip_merlin.launcher.watch import Relay

PARTS = ["cowclip: error: ", "cowclip: err", "cowclip: stopped", "epoch 1\r", "ä", "\n", "a", ""]


def shown(chunks, which):
    relay, streams = Relay(), (io.StringIO(newline=""), io.StringIO(newline=""))
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = streams
    try:
        for chunk in chunks:
            relay.show(*((chunk, b"") if which == 0 else (b"", chunk)))
        relay.close()
    finally:
        sys.stdout, sys.stderr = before
    return streams[which].getvalue()


@given(st.lists(st.sampled_from(PARTS)), st.data())
def test_only_lines_of_errors_are_held_back(parts, data):
    """However the bytes are cut, within characters too."""
    text = "".join(parts)
    lines = text.splitlines(keepends=True)
    expected = "".join(line for line in lines if not line.startswith("cowclip: error: "))
    whole = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=5)))
    edges = [0, *cuts, len(whole)]
    chunks = [whole[a:b] for a, b in pairwise(edges)]
    assert shown(chunks, 1) == expected
    assert shown(chunks, 0) == text


def test_a_progress_bar_appears_at_once():
    relay, stream = Relay(), io.StringIO(newline="")
    before, sys.stderr = sys.stderr, stream
    try:
        relay.show(b"", b"\repoch 1: 10%")
        assert stream.getvalue() == "\repoch 1: 10%"
        relay.show(b"", b"\repoch 1: 20%")
        assert stream.getvalue() == "\repoch 1: 10%\repoch 1: 20%"
    finally:
        sys.stderr = before


def test_a_narrow_encoding_escapes_characters(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    Relay().show("größe\n".encode(), b"")
    assert stream.buffer.getvalue() == b"gr\\xf6\\xdfe\n"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_closed_reader_does_not_end_the_training(monkeypatch, stream):
    class Closed(io.StringIO):
        def write(self, _):
            raise BrokenPipeError

    monkeypatch.setattr(sys, stream, Closed())
    Relay().show(b"a\n", b"b\n")
