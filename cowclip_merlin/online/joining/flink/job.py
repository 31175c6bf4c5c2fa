"""Run the join on Apache Flink."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from cowclip_merlin.addresses import FilePath
from cowclip_merlin.errors import InputError, StackError
from cowclip_merlin.online.events.features import load_features
from cowclip_merlin.online.joining.flink.statements import (
    join_statement,
    sink_table,
    source_table,
    without_repeats,
)
from cowclip_merlin.online.joining.settings import JoinSettings
from cowclip_merlin.targets import refuse_several

if TYPE_CHECKING:
    from pyflink.table import TableEnvironment

    from cowclip_merlin.online.events.features import LogFeatures

CHECKPOINT_EVERY = "1 s"


def join_on_flink(
    impressions: str,
    actions: str,
    to: str,
    features: str | FilePath,
    settings: JoinSettings,
    *,
    checkpoints: str | Path,
    until_end: bool = False,
) -> None:
    """Join two logs on Flink. It goes on from the newest checkpoint, if there is one.

    Args:
        impressions: log of impressions; a folder of files with one message per line, or
            kafka://HOST:PORT/TOPIC.
        actions: log of clicks, like `impressions`.
        to: log of examples to write, like `impressions`.
        features: features file with a key.
        settings: of the join.
        checkpoints: folder for Flink's checkpoints.
        until_end: stop where both logs end now, and end all windows.

    Raises:
        InputError: an input is wrong.
        StackError: PyFlink or Java is missing.
    """
    columns = load_features(features)
    remedy = "write examples with all labels to the topic that the trainer reads"
    refuse_several("cowclip online join", columns.targets, remedy)
    if columns.key is None:
        raise InputError(f"{features}: no `key`; name the column that identifies a request")
    tables = _environment(settings, Path(checkpoints))
    views = {"impressions": impressions, "clicks": actions}
    for view, url in views.items():
        table = f"all_{view}"
        tables.execute_sql(source_table(table, url, columns, settings.lateness, ends=until_end))
        tables.execute_sql(without_repeats(view, table))
    tables.execute_sql(sink_table("examples", to))
    tables.execute_sql(_statement(settings, columns)).wait()


def explain(features: LogFeatures, settings: JoinSettings, folder: Path) -> str:
    """Return Flink's plan of the join of two folders, with the kinds of changes."""
    from pyflink.table import ExplainDetail

    tables = _environment(settings, folder / "checkpoints")
    for view in ("impressions", "clicks"):
        url = str(folder / view)
        table = source_table(f"all_{view}", url, features, settings.lateness, ends=True)
        tables.execute_sql(table)
        tables.execute_sql(without_repeats(view, f"all_{view}"))
    tables.execute_sql(sink_table("examples", str(folder / "examples")))
    return tables.explain_sql(_statement(settings, features), ExplainDetail.CHANGELOG_MODE)


def _statement(settings: JoinSettings, features: LogFeatures) -> str:
    return join_statement(
        settings, features, impressions="impressions", clicks="clicks", to="examples"
    )


def _environment(settings: JoinSettings, checkpoints: Path) -> TableEnvironment:
    """A table environment with checkpoints, from the newest one if there is one."""
    try:
        from pyflink.table import EnvironmentSettings, TableEnvironment
    except ImportError:
        raise StackError(
            "PyFlink is not installed; `make flink-check` makes an environment with it, or run "
            "pip install apache-flink==2.3.0 in one without TensorFlow"
        ) from None
    if shutil.which("java") is None:
        raise StackError(
            "java is not installed; Flink needs Java 17 (Debian: openjdk-17-jre-headless)"
        )
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for name, value in _configuration(settings, checkpoints).items():
        tables.get_config().set(name, value)
    return tables


def _configuration(settings: JoinSettings, checkpoints: Path) -> dict[str, str]:
    # Only the keys that were seen are forgotten by the clock; joins forget by event time.
    found = {
        "table.local-time-zone": "UTC",
        "table.exec.source.idle-timeout": f"{max(round(1000 * settings.idle), 1)} ms",
        "table.exec.state.ttl": f"{settings.kept} s",
        "execution.checkpointing.interval": CHECKPOINT_EVERY,
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.dir": checkpoints.resolve().as_uri(),
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    }
    if newest := newest_checkpoint(checkpoints):
        found["execution.state-recovery.path"] = newest.resolve().as_uri()
    return found


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint in a folder; None without one."""
    complete = folder.glob("*/chk-*/_metadata")
    newest = max(complete, key=lambda file: file.stat().st_mtime_ns, default=None)
    return newest and newest.parent


def example_files(folder: Path) -> list[Path]:
    """Return the files of examples that Flink has completed: hidden ones are still being written.

    Args:
        folder: that the join writes to.
    """
    files = (file for file in folder.rglob("*") if file.is_file())
    return sorted(f for f in files if not any(p.startswith((".", "_")) for p in f.parts[-2:]))
