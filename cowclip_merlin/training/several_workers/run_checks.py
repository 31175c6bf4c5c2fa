"""What several workers check before a run, and where each of them logs."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from pathlib import Path

from cowclip_merlin.errors import InputError
from cowclip_merlin.training.run_config import RunConfig
from cowclip_merlin.training.run_logs import run_logger
from cowclip_merlin.training.run_settings import RunOptions
from cowclip_merlin.types import JsonObject
from cowclip_merlin.workers import Workers, current


def check_shared(out: Path, group: Workers) -> None:
    """Check that this worker sees the run folder that worker 0 has made.

    Raises:
        InputError: if it does not.
    """
    if not out.is_dir():
        raise InputError(
            f"{out}: worker 0 ({group.addresses[0]}) has made this folder, but {group} does not "
            "see it; use a folder that all machines share"
        )


def facts_of(config: RunConfig, options: RunOptions) -> JsonObject:
    """Return what all workers need to have alike, as plain values."""
    facts = config.as_dict()
    settings = facts["settings"]
    versions = {name: x for name, x in facts["versions"].items() if name != "platform"}
    return {
        "the data": config.fingerprint,
        **{f"setting {name}": value for name, value in settings.items()},
        **{f"version of {name}": value for name, value in versions.items()},
        "`checkpoint_every`": options.checkpoint_every,
        "`resume`": options.resume,
        "`from`": options.warm_start,
    }


def run_log(out: Path) -> AbstractContextManager[logging.Logger]:
    """Open the run's log; of several workers, only worker 0 writes to the console."""
    group = current()
    if group is None or group.is_first:
        return run_logger(out / "train.log")
    folder = out / "workers"
    folder.mkdir(exist_ok=True)
    return run_logger(folder / f"{group.rank}.log", console=False)
