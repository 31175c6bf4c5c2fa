"""`cowclip_merlin.training.train`: run a training with its diagnostics.

Training and diagnostics meet only here. Neither the training loop nor a run folder needs
diagnostics.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from cowclip_merlin.addresses import FilePath, is_address, output_folder, path_of
from cowclip_merlin.choices import contributed
from cowclip_merlin.errors import InputError
from cowclip_merlin.launcher import LaunchSettings, TrainCall, launch
from cowclip_merlin.recipe import choose, settings_for
from cowclip_merlin.system.console import note
from cowclip_merlin.system.folders import set_aside
from cowclip_merlin.training.run import run_training
from cowclip_merlin.training.run_config import CONFIG, RunConfig, local_run
from cowclip_merlin.training.run_folder import HELD_OUT_METRICS
from cowclip_merlin.training.run_logs import Metrics, parse_metrics_row, read_metrics
from cowclip_merlin.training.run_settings import RunOptions, RunSettings
from cowclip_merlin.training.stopping.refit import check_refit, refit_settings
from cowclip_merlin.workers.environment import cluster_of
from cowclip_merlin.workflows import PreparedData
from cowclip_merlin.workflows.guessed import guessed_log, new_run_folder
from cowclip_merlin.workflows.prepared.folder import DATA
from cowclip_merlin.workflows.raw.frames import Frame, is_frame


def train(
    data: str | FilePath | Frame,
    settings: RunSettings | None = None,
    *,
    out: str | FilePath,
    label: str | None = None,
    resume: bool = False,
    warm_start: str | FilePath | None = None,
    checkpoint_every: int = 0,
    device: str = "auto",
    data_memory: float | None = None,
    diagnostics_every: int = 0,
    workers: int | None = None,
    scheduler: str | None = None,
    restarts: int = 0,
    refit: bool = False,
) -> list[Metrics]:
    """Train a model on a prepared folder and record the run in `out`.

    Args:
        data: folder that `prepare` wrote; with `label` raw rows, which it prepares in `out`/data
            with guessed columns: a pandas or polars frame, an Arrow table, a list of dictionaries.
        settings: the run's settings; None: those of `warm_start`, for one epoch, with `resume`
            those of the run in `out`, and else those of `settings_for`, which it prints.
        out: the run folder; it must not hold a run yet, unless `resume`. For an address such as
            s3://bucket/run, it is made in `TMPDIR` and uploaded at the end or when it stops.
        label: name of the column with labels of 0 and 1, if `data` has raw rows.
        resume: continue from the last checkpoint in `out`.
        warm_start: folder of a run to start from: ids with equal values keep their embedding rows,
            and rates do not warm up again; None: from initial values. With `resume`, no effect.
        checkpoint_every: steps between checkpoints within an epoch; 0: only at its end.
        device: "auto", "cpu" or "gpu".
        data_memory: MB of device memory for rows; larger data is streamed, with the same result.
            None: the free memory of a GPU, no limit on the CPU.
        diagnostics_every: steps between probes of the clip, which go to `diagnostics.csv` and
            TensorBoard and change no weight; 0: no probes. See `cowclip_merlin.diagnostics`.
        workers: number of processes, each with a device of its own, that share every batch; None:
            this process, or with `scheduler` all of its workers.
        scheduler: address of a running Dask scheduler, whose workers run the processes; None:
            this machine.
        restarts: how often to start all processes again, from the last checkpoint, after one of
            them is lost.
        refit: train again on all rows, also those held out, for the epochs that early stopping
            chose; this run takes the place of the first one. It prints the epochs.

    Returns:
        One record per epoch, as in `metrics.csv`; see `run_logs.METRICS`. With `refit` those of the
        run on all rows.

    Raises:
        InputError: if an input is wrong; the error names it in one line.
        WorkerLost: if one of several processes failed, and no restart is left.
        Stopped: after SIGINT or SIGTERM; a checkpoint is written first.
    """
    with ExitStack() as stack:
        if is_frame(data) or label is not None:
            rows = _prepared_rows(data, label, out, resume=resume)
            data, out = stack.enter_context(rows)
        options = RunOptions(
            resume=resume,
            warm_start=None if warm_start is None else str(warm_start),
            checkpoint_every=checkpoint_every,
            diagnostics_every=diagnostics_every,
            device=device,
            data_memory=data_memory,
        )
        settings = _known_settings(data, out, options) if settings is None else settings
        processes = LaunchSettings(workers=workers, scheduler=scheduler, restarts=restarts)
        if workers is not None and workers > settings.batch_size:
            raise InputError(
                f"`workers` is {workers}, but a batch has {settings.batch_size} rows; use fewer"
            )
        if is_address(out) and (scheduler is not None or cluster_of(os.environ)):
            raise InputError(f"{out}: several machines train; give `out` a folder that they share")
        if refit and cluster_of(os.environ):
            raise InputError("`refit` needs one process that starts the others; use `workers`")
        with output_folder(out, CONFIG, resume=resume, what="run") as folder:
            run = _train_again if refit else _train
            return run(data, settings, folder, options, processes)


@contextmanager
def _prepared_rows(
    rows: Frame, label: str | None, out: str | FilePath, *, resume: bool
) -> Iterator[tuple[Path, Path]]:
    """Prepare raw rows in a new run folder; yield the prepared folder, and the run folder.

    Raises:
        InputError: if these are no rows in memory with a label, or the folder is there.
    """
    if label is None or not is_frame(rows):
        what = "`label`" if label is None else "as `data` rows in memory"
        raise InputError(f"to train on raw rows, give {what}, too; else give a prepared folder")
    if resume:
        raise InputError(f"`resume` takes the prepared folder, {path_of(out) / DATA}")
    with guessed_log(rows, label) as log, new_run_folder(out) as folder:
        note(log.guess.table())
        yield log.prepare(folder / DATA).path, folder


def _known_settings(data: str | FilePath, out: str | FilePath, options: RunOptions) -> RunSettings:
    """Return the settings of the run to resume, or to go on from, or those that suit the data.

    Raises:
        InputError: if there is none.
    """
    if options.resume:
        return RunConfig.load(local_run(out)).settings
    if options.warm_start is not None:
        return settings_for(data, warm_start=options.warm_start)
    settings, words = choose(PreparedData.load(data), {})
    note(words)
    return settings


def _train_again(
    data: str | FilePath,
    settings: RunSettings,
    out: Path,
    options: RunOptions,
    processes: LaunchSettings,
) -> list[Metrics]:
    """Train on a part of the rows, and then on all of them for the best number of epochs."""
    if options.resume and (out / HELD_OUT_METRICS).exists():  # the second run was stopped
        return _train(data, RunConfig.load(out).settings, out, options, processes)
    check_refit(settings, PreparedData.load(data))
    rows = _train(data, settings, out, options, processes)
    again, words = refit_settings(settings, rows)
    note(words)
    metrics = (out / "metrics.csv").read_bytes()
    with set_aside(out, CONFIG, "run", keep=(DATA,)):
        out.mkdir(exist_ok=True)
        (out / HELD_OUT_METRICS).write_bytes(metrics)
        return _train(data, again, out, replace(options, resume=False), processes)


def _train(
    data: str | FilePath,
    settings: RunSettings,
    out: Path,
    options: RunOptions,
    processes: LaunchSettings,
) -> list[Metrics]:
    if processes.needed:
        call = TrainCall(data=str(data), settings=settings.as_dict(), out=str(out), options=options)
        launch(call, processes)
        records = read_metrics(out / "metrics.csv", epochs=settings.epochs)
        return [parse_metrics_row(record) for record in records]
    every = options.diagnostics_every
    recorder = partial(contributed("make_recorder"), every=every) if every else None
    return run_training(data, settings, out=out, options=options, recorder=recorder)
