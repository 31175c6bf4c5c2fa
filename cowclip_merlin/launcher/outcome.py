"""How the workers of one attempt ended, and which error that is."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from cowclip_merlin.errors import ERROR, LOST_ANOTHER, WRONG_INPUT, InputError, WorkerLost
from cowclip_merlin.launcher.call import WorkerCall
from cowclip_merlin.system.signals import Stopped

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
