"""Join the impressions and the clicks of two logs into a log of examples."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

from cowclip_merlin.addresses import FilePath
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.features import LogFeatures, load_features
from cowclip_merlin.online.joining.joiner import Joiner
from cowclip_merlin.online.joining.loop import METRICS, JoinLoop
from cowclip_merlin.online.joining.settings import JoinSettings
from cowclip_merlin.online.joining.state import JoinCounts, JoinState
from cowclip_merlin.online.logs.open_log import open_log
from cowclip_merlin.online.monitoring import MonitoringSettings
from cowclip_merlin.system.signals import GracefulStop, Stopped
from cowclip_merlin.targets import refuse_several
from cowclip_merlin.training.run_logs import run_logger


def join_logs(
    impressions: str,
    actions: str,
    to: str,
    features: str | FilePath | LogFeatures,
    settings: JoinSettings,
    *,
    state: str | Path,
    until_end: bool = False,
    trim: bool = False,
    monitoring: MonitoringSettings | None = None,
) -> JoinCounts:
    """Join two logs until a signal, or until their ends. The same call goes on after a crash.

    Args:
        impressions: log of impressions; a folder, or the address of a Redis Stream or of a Kafka
            topic.
        actions: log of clicks, like `impressions`.
        to: log of examples to write, like `impressions`.
        features: features file, or the columns read from it; with a key.
        settings: of the join.
        state: file of the state. Beside it are `STATE.log` and the files of damaged messages.
        until_end: stop at the ends that the logs have now, and end all windows.
        trim: remove messages from both logs when they were joined.
        monitoring: how others watch the join; None for the defaults.

    Returns:
        What was read and written since the state was made.

    Raises:
        InputError: an input is wrong, or a log lost messages that were not read yet.
        Stopped: after SIGINT or SIGTERM.
    """
    columns = features if isinstance(features, LogFeatures) else load_features(features)
    if columns.key is None:
        raise InputError(f"{features}: no `key`; name the column that identifies a request")
    remedy = "write examples with all labels to the topic that the trainer reads"
    refuse_several("cowclip online join", columns.targets, remedy)
    state, stop, monitoring = Path(state), GracefulStop(), monitoring or MonitoringSettings()
    damaged = tuple(Path(f"{state}.damaged-{kind}.jsonl") for kind in ("impressions", "actions"))
    with ExitStack() as stack:
        endpoint = stack.enter_context(monitoring.endpoint("cowclip_join", METRICS))
        logs = [
            stack.enter_context(closing(open_log(url, several=True)))
            for url in (impressions, actions)
        ]
        logs.append(stack.enter_context(closing(open_log(to, create=True))))
        store = stack.enter_context(closing(JoinState(state, settings)))
        lines = run_logger(Path(f"{state}.log"), log_format=monitoring.log_format)
        log = stack.enter_context(lines)
        stack.enter_context(stop.catch_signals())
        joiner = Joiner(*logs, columns, settings, store, damaged)
        log.info("reads %s and %s, writes %s", *(each.name for each in logs))
        loop = JoinLoop(
            joiner,
            *logs[:2],
            idle=settings.idle,
            until_end=until_end,
            trim=trim,
            log=log,
            stop=stop,
        )
        endpoint.tell(loop.status, log.info)
        loop.run()
        log.info("%s", joiner.counts.summary())
    if stop.signal_number:
        raise Stopped(stop.signal_number)
    return joiner.counts
