"""Check, lock and clean up the folder of a training run, also of several workers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from cowclip_merlin import workers
from cowclip_merlin.errors import InputError
from cowclip_merlin.system.files import read_json
from cowclip_merlin.system.folders import (
    PREPARED,
    RESULTS,
    RUN,
    SEARCH,
    NewFiles,
    check_out,
    holds,
    lock_folder,
)
from cowclip_merlin.training.checkpoint import has_checkpoint
from cowclip_merlin.training.run_config import CONFIG, RunConfig
from cowclip_merlin.training.run_logs import run_logger
from cowclip_merlin.training.run_settings import RunOptions
from cowclip_merlin.types import JsonObject
from cowclip_merlin.workers import Workers, current
from cowclip_merlin.workers.agreement import raising_together


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


RUN_FILES = ("train.log", "metrics.csv", "diagnostics.csv", "checkpoints", "events", "workers")
"""Files and folders that a run writes beside `config.json`."""

HELD_OUT_METRICS = "held_out.csv"
"""File of a run that was trained again on all rows: `metrics.csv` of the run before."""


def check_run_folder(out: Path) -> None:
    """Check that a path can become a run folder.

    Raises:
        InputError: if the path is a file, a folder of prepared data, experiments or a search, or
            holds a file that is not a run's and that a run would replace.
    """
    check_out(out, (RESULTS, SEARCH, PREPARED), "use another `out` for the run")
    if not holds(out, RUN):
        for name in RUN_FILES:
            if (out / name).exists():
                raise InputError(f"{out}: holds {name} but no run; use another `out`")


def check_resume(out: Path, config: RunConfig, resume: bool) -> None:
    """Check that a run exists if `resume`, and that no run exists otherwise.

    Raises:
        InputError: if this is not so, the run to resume has other settings or data, or the folder
            holds another kind of run.
    """
    if _holds_other_kind(out):
        raise InputError(
            f"{out}: holds another kind of run, such as online training; use another `out`"
        )
    if resume:
        _check_same_run(out, config)
    elif holds(out, RUN):
        raise InputError(f"{out}: {_existing_run_message(out)}")


def _holds_other_kind(out: Path) -> bool:
    """Whether `config.json` is not one that `RunConfig` writes."""
    if not holds(out, RUN) or has_checkpoint(out):
        return False
    try:
        config = read_json(out / CONFIG)
    except InputError:  # damaged: of any kind
        return False
    return not isinstance(config, dict) or "format_version" not in config


def _check_same_run(out: Path, config: RunConfig) -> None:
    """Check that a run folder belongs to the run that resumes there.

    Raises:
        InputError: if the folder is not a run folder, or its data or a setting other than
            `epochs` differs.
    """
    before = RunConfig.load(out)
    old, new = before.settings.as_dict(), config.settings.as_dict()
    for name in old:
        if name != "epochs" and old[name] != new[name]:
            raise InputError(
                f"{out}: was trained with {name} {old[name]}, not {new[name]}; resume with the "
                "same settings, or use another `out`"
            )
    if old["epochs"] != new["epochs"] and old["lr_schedule"] in ("linear", "cosine"):
        raise InputError(
            f"{out}: its rates fall over {old['epochs']} epochs ({old['lr_schedule']}), so it "
            f"cannot resume with epochs {new['epochs']}; use another `out`"
        )
    if before.values != config.values:
        raise InputError(f"{out}: was trained with other presets; use another `out`")
    if before.fingerprint != config.fingerprint:
        raise InputError(f"{out}: was trained on other data; resume with the same folder")


def _existing_run_message(out: Path) -> str:
    """Return the error for an existing run folder, with the remedy."""
    if has_checkpoint(out):
        return "already holds a run; use `resume` or another `out`, or cowclip train --overwrite"
    return (
        "holds a run without a checkpoint; use another `out`, or delete the folder if no process "
        "trains there"
    )


@contextmanager
def run_folder(out: Path, config: RunConfig, *, resume: bool) -> Iterator[None]:
    """Lock the run folder; if the run fails without a checkpoint, remove what it has written.

    Of several workers, worker 0 does so, before the others go on.
    """
    group = workers.current()
    if group and not group.is_first:
        with raising_together(group):
            pass
        check_shared(out, group)
        yield
        return
    with ExitStack() as stack:
        with raising_together(group):
            new = NewFiles.since_now(out)
            lock = lock_folder(out, "another process writes a run there; use another `out`")
            stack.enter_context(lock)
            check_resume(out, config, resume)  # again: another process may have trained since
        try:
            yield
        except BaseException:
            # A run without a checkpoint cannot be resumed.
            if not has_checkpoint(out):
                new.remove()
            raise
