"""Show the output of worker 0 as if it were that of this process."""

from __future__ import annotations

import codecs
import sys
from contextlib import suppress

from cowclip_merlin.errors import ERROR


class Relay:
    """Writes the output of one worker to this process's standard output and error.

    It holds back the line of an error: the launcher raises that error itself.
    """

    def __init__(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = (decoder("replace"), decoder("replace"))
        self._line = ""  # the last line of standard error, which has not ended
        self._shown = 0  # how many of its characters have been written

    def show(self, output: bytes, errors: bytes) -> None:
        """Write the next bytes of standard output and of standard error."""
        self._write("stdout", self._decoders[0].decode(output))
        text = self._line + self._decoders[1].decode(errors)
        *ended, self._line = _lines(text)
        for line in ended:
            self._end(line)
        if not _may_be_error(self._line):
            self._write("stderr", self._line[self._shown :])
            self._shown = len(self._line)

    def close(self) -> None:
        """Write the rest."""
        self._end(self._line)
        self._line = ""

    def _end(self, line: str) -> None:
        if not line.startswith(ERROR):
            self._write("stderr", line[self._shown :])
        self._shown = 0

    def _write(self, name: str, text: str) -> None:
        # A closed reader, as after `| head`, must not end the training.
        with suppress(BrokenPipeError):
            stream = getattr(sys, name)
            if text and stream is not None:
                encoding = getattr(stream, "encoding", None) or "utf-8"
                stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
                stream.flush()


def _lines(text: str) -> list[str]:
    """Split into lines; the last one has not ended, and may be empty."""
    lines = text.splitlines(keepends=True)
    # After "\r" the "\n" of the same line may follow.
    ended = text.splitlines()[-1:] != lines[-1:] and not text.endswith("\r")
    return [*lines, ""] if ended or not lines else lines


def _may_be_error(line: str) -> bool:
    return line.startswith(ERROR) or ERROR.startswith(line)
