"""Run `cowclip experiment` on a log: list or make the missing runs, and show the results."""

from __future__ import annotations

import time

from cowclip_merlin.experiments.commands import FOLDER_IS_USED, duration
from cowclip_merlin.experiments.definitions import LogExperiment
from cowclip_merlin.experiments.online.kinds import KINDS
from cowclip_merlin.experiments.online.session import LogSession
from cowclip_merlin.system.files import check_writable
from cowclip_merlin.system.folders import REPLAYS_CSV, lock_folder


def dry_run(session: LogSession, experiment: LogExperiment) -> str:
    """List the missing runs; estimate their time from finished ones on this log."""
    kind = KINDS[experiment.kind]
    pending = kind.pending(session, experiment)
    if not pending:
        return f"{experiment.title}\nno run is missing"
    seconds, count = kind.seconds(session), f"{len(pending)} run{'s' * (len(pending) != 1)}"
    about = "the first one tells the time" if seconds is None else _about(seconds, len(pending))
    head = [experiment.title, session.describe_data(), ""]
    return "\n".join([*head, *(f"  {text}" for text in pending), "", f"{count}, {about}"])


def _about(seconds: float, runs: int) -> str:
    return f"about {duration(seconds * runs)}"


def run_experiment(session: LogSession, experiment: LogExperiment) -> str:
    """Make the missing runs, write the table and figure, and return their text.

    Prints a line for each run as it ends.
    """
    kind = KINDS[experiment.kind]
    with lock_folder(session.settings.out, FOLDER_IS_USED):
        check_writable(session.settings.out / REPLAYS_CSV, overwrite=True)
        total, started = len(kind.pending(session, experiment)), time.perf_counter()
        for number, text in enumerate(kind.run(session, experiment), 1):
            rest = (time.perf_counter() - started) / number * (total - number)
            print(f"[{number}/{total}] {text}; {duration(rest)} left", flush=True)
        return "\n".join(kind.write(session, experiment))
