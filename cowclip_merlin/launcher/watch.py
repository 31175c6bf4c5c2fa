"""Wait for the workers of one attempt, show the output of worker 0, and say how they ended."""

from __future__ import annotations

import codecs
import re
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from cowclip_merlin.errors import ERROR, LOST_ANOTHER, WRONG_INPUT, InputError, WorkerLost
from cowclip_merlin.launcher.call import WorkerCall
from cowclip_merlin.system.signals import Stopped, signal_handler

_STOPS = {128 + number: int(number) for number in (signal.SIGINT, signal.SIGTERM)}
_TAKEN = re.compile(r"address (is )?already in use|could not start grpc server", re.IGNORECASE)
_TRACEBACK = "Traceback (most recent call last)"


@dataclass(frozen=True)
class Ended:
    """The end of one worker.

    Attributes:
        rank: its number.
        host: name of its machine.
        code: exit code; negative after a signal; None if its machine or Dask worker was lost.
        tail: the last lines that it wrote.
    """

    rank: int
    host: str
    code: int | None
    tail: str = ""

    @property
    def stopped_by(self) -> int | None:
        """The signal after which it stopped in order; None if it did not."""
        return _STOPS.get(self.code) if self.code is not None else None

    @property
    def message(self) -> str:
        """The last line of its error.

        >>> Ended(1, "node1", 2, "loading\\ncowclip: error: a.txt: no such file\\n").message
        'a.txt: no such file'
        """
        lines = [line.strip() for line in self.tail.splitlines() if line.strip()]
        errors = [line.removeprefix(ERROR) for line in lines if line.startswith(ERROR)]
        if errors:
            return errors[-1]
        after = self.traceback.splitlines()[1:]
        raised = [line for line in after if line.strip() and not line[0].isspace()]
        return (raised[:1] or lines[-1:] or ["no output"])[0][:300]

    @property
    def traceback(self) -> str:
        """The last traceback that it wrote; "" if there is none."""
        _, found, after = self.tail.rpartition(_TRACEBACK)
        return found + after if found else ""

    @property
    def how(self) -> str:
        """How it ended, for messages.

        >>> Ended(1, "node1", -9).how
        'killed by signal 9'
        """
        if self.code is None:
            return "its Dask worker was lost"
        if self.code < 0:
            return f"killed by signal {-self.code}"
        return f"exit code {self.code}: {self.message}"

    @property
    def port_was_taken(self) -> bool:
        """Whether it failed because another program has taken its port."""
        return self.code not in (0, None) and bool(_TAKEN.search(self.tail))


@dataclass(frozen=True)
class Outcome:
    """The end of all workers of one attempt.

    Attributes:
        ends: one for each worker, in the order in which they ended.
        signal_number: the signal that the launcher received and sent to all; None: no signal.
        killed: whether a second signal came, after which all were killed.
    """

    ends: Sequence[Ended]
    signal_number: int | None = None
    killed: bool = False

    @property
    def first_failure(self) -> Ended | None:
        """The worker that failed first, rather than those that stopped because of it."""
        bad = [end for end in self.ends if end.code != 0]
        failed = [end for end in bad if end.code != LOST_ANOTHER]
        own = [end for end in failed if end.stopped_by is None]
        return next(iter(own or failed or bad), None)

    @property
    def port_was_taken(self) -> bool:
        """Whether the attempt failed because of a port, and the user sent no signal."""
        return self.signal_number is None and any(end.port_was_taken for end in self.ends)

    def error(self, call: WorkerCall) -> BaseException | None:
        """Return what to raise; None after success.

        Args:
            call: of the workers.
        """
        failure = self.first_failure
        if failure is None:
            return None
        number = self.signal_number or failure.stopped_by
        if self.killed or (self.signal_number and self._stopped_in_order()):
            return stop_error(number, call)
        if failure.code == WRONG_INPUT:
            return self._input_error()
        if failure.stopped_by and call.can_resume():
            return stop_error(number, call)
        return WorkerLost(
            f"worker {failure.rank} of {len(self.ends)} on {failure.host} failed ({failure.how})"
        )

    def _stopped_in_order(self) -> bool:
        """Whether every worker ended because of the signal, or because another one did."""
        number = self.signal_number
        expected = (0, LOST_ANOTHER, -number, 128 + number, -signal.SIGTERM)
        return all(end.code in expected for end in self.ends)

    def _input_error(self) -> InputError:
        wrong = [end for end in self.ends if end.code == WRONG_INPUT]
        first = min(wrong, key=lambda end: end.rank)
        place = "" if first.rank == 0 else f"worker {first.rank} on {first.host}: "
        return InputError(place + first.message)


def stop_error(number: int, call: WorkerCall) -> BaseException:
    """Return what a signal raises: `Stopped` if the run can be resumed."""
    if call.can_resume():
        return Stopped(number)
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)


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


_PAUSE = 0.05
"""Seconds between two looks at the workers."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long the launcher waits, in seconds.

    Attributes:
        grace: for the others to end by themselves after one has failed.
        term: for them to end after SIGTERM; then they are killed.
        stop: for the others after one has stopped in order: worker 0 may write a checkpoint.
    """

    grace: float = 30.0
    term: float = 10.0
    stop: float = 600.0


class Process(Protocol):
    """A worker, wherever it runs."""

    def poll(self) -> Ended | None:
        """Return how it ended; None while it runs."""

    def new_output(self) -> tuple[bytes, bytes]:
        """Return what came to standard output and standard error since the last call."""

    def send(self, number: int) -> None:
        """Send it a signal."""


class _Watch:
    """What the launcher knows while it waits."""

    def __init__(self, processes: Sequence[Process], patience: Patience) -> None:
        self.running = list(processes)
        self.ends: list[Ended] = []
        self.signals: list[int] = []
        self._patience = patience
        self._forwarded = 0
        self._deadlines: list[tuple[float, int]] | None = None

    def look(self) -> None:
        """Note who has ended, and send the signals that are due."""
        for process in list(self.running):
            ended = process.poll()
            if ended is not None:
                self.running.remove(process)
                self.ends.append(ended)
                self._plan_end(ended)
        self._forward()
        while self._deadlines and time.monotonic() > self._deadlines[0][0]:
            self._send(self._deadlines.pop(0)[1])

    def _plan_end(self, ended: Ended) -> None:
        """Plan when the others must end after the first one that did not succeed."""
        if ended.code == 0:
            return
        orderly = ended.stopped_by is not None
        due = time.monotonic() + (self._patience.stop if orderly else self._patience.grace)
        waiting = self._deadlines is not None and len(self._deadlines) == 2
        if self._deadlines is None or (waiting and due < self._deadlines[0][0]):
            kill = due + self._patience.term
            self._deadlines = [(due, signal.SIGTERM), (kill, signal.SIGKILL)]

    def _forward(self) -> None:
        if len(self.signals) > self._forwarded:
            self._send(self.signals[0] if self._forwarded == 0 else signal.SIGKILL)
            self._forwarded += 1

    def _send(self, number: int) -> None:
        for process in self.running:
            process.send(number)


def watch(processes: Sequence[Process], patience: Patience) -> Outcome:
    """Wait until all workers have ended, and show the output of the first one.

    SIGINT and SIGTERM go to all workers once; a second signal kills them.

    Args:
        processes: the workers by rank.
        patience: how long the others may go on after a failure.
    """
    state, relay = _Watch(processes, patience), Relay()

    def remember(number: int, _: object) -> None:
        state.signals.append(number)

    with signal_handler([signal.SIGINT, signal.SIGTERM], remember):
        while state.running:
            state.look()
            relay.show(*processes[0].new_output())
            if state.running:
                time.sleep(_PAUSE)
        relay.show(*processes[0].new_output())
    relay.close()
    number = state.signals[0] if state.signals else None
    return Outcome(state.ends, number, killed=len(state.signals) > 1)
