"""Run the demo: start all parts, watch them, kill the trainer once, and report."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from cowclip_merlin.demo.measuring.scoring import FROZEN, ONLINE
from cowclip_merlin.demo.online.observers import Observers
from cowclip_merlin.demo.online.pipeline import Pipeline
from cowclip_merlin.demo.online.processes import DemoSettings, Processes, make_logs
from cowclip_merlin.demo.online.report import Json, StatusBlock, draw, table_text
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.logs.message_log import LogUnavailable
from cowclip_merlin.synthetic.drifting_stream import PROBABILITY, write_stream_features
from cowclip_merlin.system.files import write_json
from cowclip_merlin.system.machine import processor
from cowclip_merlin.system.signals import signal_handler

SERVERS = 2
RESULT, FIGURE = "demo.json", "demo.svg"

_LONGEST_REST = 120.0
"""Seconds after the last event in which the other parts may finish it."""
_QUIET = 3.0  # seconds without anything new after which everything is done
_LOOK_EVERY = 0.5


class Demo:
    """One run of the demo.

    Args:
        settings: of the demo.
        work: new or empty folder for all its files.
        status: shows the state.
    """

    def __init__(
        self, settings: DemoSettings, work: Path, status: StatusBlock | None = None
    ) -> None:
        self._settings, self._work = settings, work
        self._status = status or StatusBlock()
        self._killed: float | None = None

    def run(self) -> Json:
        """Run to the end, and return the numbers; all processes have ended then.

        Raises:
            InputError: the folder is not empty, or a part has failed.
        """
        _make_folder(self._work)
        with ExitStack() as stack:
            processes = stack.enter_context(Processes(self._work / "logs"))
            stack.callback(self._status.clear)
            pipeline, observers = self._start(processes, stack)
            self._watch(processes, pipeline, observers)
            self._finish(processes, observers)
            observers.stop()
            observers.check()
            self._status.clear()
            return self._result(observers)

    def _start(self, processes: Processes, stack: ExitStack) -> tuple[Pipeline, Observers]:
        """Start all parts, and wait until the first events were trained."""
        settings, features = self._settings, self._work / "features.yaml"
        self._status.say(f"starting joiner, trainer and {SERVERS + 1} servers: {self._work}")
        write_stream_features(features, seconds_per_day=settings.seconds / settings.days)
        logs = make_logs(settings, processes, self._work)
        frozen = str(self._work / "messages" / "frozen")
        observers = Observers(settings, logs, features, frozen, probability=PROBABILITY)
        stack.callback(observers.stop)
        pipeline = Pipeline(settings, processes, logs, features, self._work)
        pipeline.start(servers=SERVERS)
        frozen_port = pipeline.start_server("server-frozen", frozen)
        pipeline.wait_for_servers()
        pipeline.start_producer()
        processes.wait_until("the first event", observers.has_begun)
        observers.begin({ONLINE: pipeline.ports[:SERVERS], FROZEN: [frozen_port]})
        return pipeline, observers

    def _watch(self, processes: Processes, pipeline: Pipeline, observers: Observers) -> None:
        """Show the state until the last event; freeze a server and kill the trainer meanwhile."""
        settings = self._settings
        while (elapsed := observers.elapsed) < settings.seconds:
            if elapsed >= settings.freeze_after:
                observers.freeze()
            if elapsed >= settings.kill_after and self._killed is None:
                self._killed = time.time()
                pipeline.trainer.kill()
                self._status.say(f"{elapsed:.0f} s: kill -9 of the trainer; starting it again")
                pipeline.trainer.start()
            self._look(processes, observers)

    def _finish(self, processes: Processes, observers: Observers) -> None:
        """Wait until the trainer has read all examples, for some time at most."""
        observers.prober.stop()
        until = quiet_since = time.monotonic()
        until += _LONGEST_REST
        while time.monotonic() < until and time.monotonic() - quiet_since < _QUIET:
            if not _is_done(observers):
                quiet_since = time.monotonic()
            self._look(processes, observers)

    def _look(self, processes: Processes, observers: Observers) -> None:
        processes.check()
        observers.check()
        observers.measure(processes)
        with suppress(LogUnavailable):  # shown again when its server answers
            self._status.show(observers.lines())
        time.sleep(_LOOK_EVERY)

    def _result(self, observers: Observers) -> Json:
        """Write the numbers and the figure; return the numbers."""
        settings = asdict(self._settings)
        # An address may hold a password.
        settings |= {name: settings[name] is not None for name in ("redis", "kafka")}
        result = {"settings": settings} | observers.result(killed=self._killed)
        write_json(self._work / RESULT, result | {"hardware": processor()})
        draw(result, self._work / FIGURE)
        return result


def _is_done(observers: Observers) -> bool:
    """Whether the trainer has read all; False while a log does not answer."""
    try:
        return observers.is_done()
    except LogUnavailable:
        return False


def run_demo(settings: DemoSettings, work: str | Path) -> str:
    """Run the demo; return what it shows at the end.

    Args:
        settings: of the demo.
        work: new or empty folder for all its files.

    Raises:
        InputError: the folder is not empty, or a part has failed.
    """
    work = Path(work)
    with signal_handler([signal.SIGHUP], _hang_up):
        result = Demo(settings, work).run()
    return f"{table_text(result)}\n\nnumbers: {work / RESULT}, figure: {work / FIGURE}"


def _hang_up(number: int, _: FrameType | None) -> None:
    """End in order when the terminal is closed."""
    raise SystemExit(128 + number)


def _make_folder(work: Path) -> None:
    work.mkdir(parents=True, exist_ok=True)
    there = next(work.iterdir(), None)
    if there is not None:
        raise InputError(f"{work}: holds {there.name!r}; remove it, or use another --work")
