"""One worker process: `python -m cowclip_merlin.launcher.worker` trains as its environment says.

Exit codes: 0 done; 2 wrong input; 75 another worker was lost; 128 + n after signal n; anything
else: this worker failed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import asdict

from cowclip_merlin.errors import ERROR, LOST_ANOTHER, WRONG_INPUT, WorkerLost, error_message
from cowclip_merlin.launcher.call import TERMINAL, VARIABLE, TrainCall
from cowclip_merlin.system.signals import exit_on_sigterm
from cowclip_merlin.training import RunSettings, Stopped


def main() -> int:
    """Train, and return the exit code; errors of the input are one line on standard error."""
    call = TrainCall.from_json(os.environ[VARIABLE])
    return exit_code_of(lambda: run(call), call.out)


def exit_code_of(work: Callable[[], object], out: str) -> int:
    """Do the work of a worker process, and return its exit code.

    Args:
        work: trains.
        out: the run folder, for errors.
    """
    if os.environ.get(TERMINAL):
        # Progress bars ask this. The launcher writes to a terminal what comes here.
        sys.stderr.isatty = lambda: True  # type: ignore[method-assign]
    try:
        with exit_on_sigterm():
            work()
        return 0
    except Stopped as stop:
        return 128 + stop.signal_number
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        message = error_message(error, target=out)
        if message is None:
            raise
        print(ERROR + " ".join(message.split()), file=sys.stderr)
        return LOST_ANOTHER if isinstance(error, WorkerLost) else WRONG_INPUT


def run(call: TrainCall) -> None:
    """Train as the call says."""
    from cowclip_merlin.training import train

    settings = RunSettings.from_dict(call.settings)
    train(call.data, settings, out=call.out, **asdict(call.options))


if __name__ == "__main__":
    sys.exit(main())
