"""What is done with a trained run: `cowclip evaluate`, `score`, `export` and `inspect`."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cowclip_merlin.addresses import FilePath
from cowclip_merlin.cli.command import (
    STDIN,
    Command,
    CommandParser,
    check_overwrite_used,
    files_and_stdin,
    json_option,
    overwrite_option,
    print_json,
    print_served_epoch,
)
from cowclip_merlin.errors import InputError
from cowclip_merlin.serving.triton.model import OFFSETS, VALUES
from cowclip_merlin.serving.triton.repository import RepositorySettings, export_repository
from cowclip_merlin.settings import (
    Settings,
    add_options,
    device_option,
    option,
    option_of,
    options_of,
    parse_names,
    settings_from,
    values_from,
)
from cowclip_merlin.system.folders import set_aside
from cowclip_merlin.workflows.prepare_settings import PrepareSettings
from cowclip_merlin.workflows.raw.values.value_text import read_as

if TYPE_CHECKING:
    from cowclip_merlin.training.evaluation import AucByColumn, Evaluation, RegressionEvaluation
    from cowclip_merlin.training.run_config import RunConfig

Bins = Sequence[Mapping[str, str]]


def run_folder() -> Any:
    """Define the field of the run, the first argument."""
    words = "folder that cowclip train wrote"
    return option(help=words, flag="run_folder", metavar="RUN")


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(Settings):
    """What is scored."""

    run_folder: str = run_folder()
    data: str = option(help="folder that cowclip prepare wrote", flag="data", metavar="DATA")
    split: str = option(
        "test", "rows of DATA to score; validation: those of prepare --validation",
        choices=("train", "validation", "test"),
    )  # fmt: skip
    predictions: str | None = option(
        None, ".parquet, .csv or .csv.gz file to write: row of the log, kept columns, label, "
        "probability; of several labels columns for each", metavar="FILE",
    )  # fmt: skip
    keep: tuple[str, ...] = option(
        (), "with --predictions: categorical columns to write to FILE, as a,b,c",
        convert=parse_names, metavar="COLS",
    )  # fmt: skip
    against: str | None = option(
        None, "another run on the same data, to compare the AUC with", metavar="RUN"
    )
    by: str | None = option(
        None, "also print the mean AUC of the rows of each value of a categorical column, like the "
        "user", metavar="COL",
    )  # fmt: skip
    overwrite: bool = overwrite_option("FILE if it exists")
    json: bool = json_option()
    device: str = device_option()


def run_evaluate(given: EvaluateOptions) -> None:
    """Score the rows and print exact metrics."""
    check_overwrite_used(given, "predictions")
    from cowclip_merlin.training import evaluate_run

    if not given.json:
        print_served_epoch(given.run_folder, given.against)
    result = evaluate_run(
        given.run_folder,
        given.data,
        split=given.split,
        predictions=given.predictions,
        against=given.against,
        by=given.by,
        keep=given.keep,
        overwrite=given.overwrite,
        device=given.device,
    )
    if given.json:
        print_json({"split": given.split, **asdict(result)})
        return
    for name, found in (result.targets or {"": result}).items():
        _print_metrics(f"{given.split}{name and ' ' + name}", found, given.against)
    if given.predictions:
        print(f"predictions: {given.predictions}")


def _print_metrics(
    rows: str, result: Evaluation | RegressionEvaluation, against: str | None
) -> None:
    if not hasattr(result, "auc"):
        print(f"{rows}: {result.rows:,} rows, RMSE {_number(result.rmse)}")
        return
    print(
        f"{rows}: {result.rows:,} rows, AUC {_auc(result.auc, result.auc_error)}, "
        f"log loss {_number(result.log_loss)}, "
        f"normalized entropy {_entropy(result.normalized_entropy)}, "
        f"calibration {_number(result.calibration)}"
    )
    if result.by:
        print(_by_column(result.by, result.rows))
    if found := result.difference:
        side = "below" if found.value < 0 else "above"
        print(
            f"AUC {abs(found.value):.6f} {side} that of {against} ({_error(found.error)})"
            if found.value
            else f"the same AUC as {against} ({_error(found.error)})"
        )


def _by_column(by: AucByColumn, rows: int) -> str:
    """Describe the mean AUC by the values of a column.

    >>> from cowclip_merlin.metrics import GroupedAuc
    >>> from cowclip_merlin.training.evaluation import AucByColumn
    >>> found = GroupedAuc(auc=0.75, groups=2, all_groups=3, rows=50)
    >>> print(_by_column(AucByColumn(column="user", grouped=found, unknown_rows=9), 100))
    AUC by user 0.750000: 2 of 3 values have both labels, with 50.0% of the rows
    9 rows whose user is missing, new or rare are left out
    """
    found = by.grouped
    text = (
        f"AUC by {by.column} {_number(found.auc)}: {found.groups:,} of {found.all_groups:,} values "
        f"have both labels, with {found.rows / rows:.1%} of the rows"
    )
    if by.unknown_rows:
        text += f"\n{by.unknown_rows:,} rows whose {by.column} is missing, new or rare are left out"
    return text


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.6f}"


def _entropy(value: float) -> str:
    """Return a normalized entropy, and what one above 1 means.

    >>> _entropy(0.5), _entropy(1.25)
    ('0.500000', '1.250000 (worse than always answering the click rate)')
    """
    worse = " (worse than always answering the click rate)" if value > 1 else ""
    return _number(value) + worse


def _auc(auc: float, error: float) -> str:
    if math.isnan(auc):
        return "- (all rows have the same label)"
    return f"{auc:.6f} ({_error(error)})"


def _error(error: float) -> str:
    if math.isnan(error):
        return "no standard error: a class has one row"
    return f"standard error {error:.6f}"


EVALUATE = Command(
    help="score a prepared folder with a trained run",
    settings=EvaluateOptions,
    run=run_evaluate,
    examples="""examples:
  cowclip evaluate RUN DATA
  cowclip evaluate RUN DATA --predictions scores.parquet --keep user
  cowclip evaluate RUN DATA --against OTHER_RUN
  cowclip evaluate RUN DATA --by user""",
)


@dataclass(frozen=True, kw_only=True)
class ScoreOptions(Settings):
    """What is scored."""

    run_folder: str = run_folder()
    files: tuple[str, ...] = option_of(
        PrepareSettings, "files", metavar="NEW",
        help=options_of(PrepareSettings)["files"].help + "; -: standard input",
    )  # fmt: skip
    out: str = option(
        help=".parquet, .csv or .csv.gz file to write: row, the kept columns, probability (of "
        "several labels for each)", metavar="FILE",
    )  # fmt: skip
    data: str | None = option(
        None, "folder that RUN was trained on (default: where it was then)", metavar="DATA"
    )
    keep: tuple[str, ...] = option(
        (), "columns of NEW to copy to FILE, as a,b,c", convert=parse_names, metavar="COLS"
    )
    max_bad_fraction: float = option_of(PrepareSettings, "max_bad_fraction")
    allow_unknown: tuple[str, ...] = option(
        (), "columns that may be far more unknown than in the test rows of DATA, as a,b",
        convert=parse_names, metavar="COLS",
    )  # fmt: skip
    overwrite: bool = overwrite_option("FILE if it exists")
    json: bool = json_option()
    device: str = device_option()


def run_score(given: ScoreOptions) -> None:
    """Score the rows, and print what was damaged or unknown."""
    from cowclip_merlin.training import score_files

    if not given.json:
        print_served_epoch(given.run_folder)
    with files_and_stdin(given.files) as files:
        found = score_files(
            given.run_folder,
            files,
            out=given.out,
            data=given.data,
            keep=given.keep,
            max_bad_fraction=given.max_bad_fraction,
            allow_unknown=given.allow_unknown,
            overwrite=given.overwrite,
            device=given.device,
        )
        shown = {file: STDIN for file, name in zip(files, given.files) if name == "-"}
    damaged = [
        {"file": shown.get(x.file, x.file), "line": x.line, "reason": x.reason}
        for x in found.first_damaged
    ]
    if given.json:
        print_json({"out": given.out, **vars(found), "first_damaged": damaged})
        return
    for bad in damaged:
        print("damaged: {file}:{line}: {reason}".format(**bad))
    damaged = f"; damaged and left out: {found.damaged:,}" if found.damaged else ""
    print(f"{given.out}: {found.rows:,} rows{damaged}")
    for line in read_as(found.whole_floats, remedy=False):
        print(line)
    print(f"unknown values: {_shares(found.unknown)}")


def _shares(unknown: Mapping[str, float]) -> str:
    """Describe the columns with unknown values.

    >>> _shares({"user": 0.125, "item": 0.0, "shop": 1e-6}), _shares({"user": 0.0})
    ('user 12.50%, shop under 0.01%; none in 1 other column', 'none')
    """
    found = {name: share for name, share in unknown.items() if share}
    if not found:
        return "none"
    words = [f"{n} {x:.2%}" if x >= 1e-4 else f"{n} under 0.01%" for n, x in found.items()]
    others = len(unknown) - len(found)
    end = f"; none in {others} other column{'s'[: others != 1]}" if others else ""
    return ", ".join(words) + end


SCORE = Command(
    help="score raw rows, with or without labels, with a trained run",
    settings=ScoreOptions,
    run=run_score,
    examples="""examples:
  cowclip score RUN new.csv --out scores.parquet
  zcat new.csv.gz | cowclip score RUN - --out scores.csv
  cowclip score RUN part1.parquet part2.parquet --out scores.parquet --keep user,request""",
)


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Settings):
    """What is exported."""

    run_folder: str = run_folder()
    data: str | None = option(
        None, "folder that RUN was trained on (default: where it was then)", flag="data",
        nargs="?", metavar="DATA",
    )  # fmt: skip
    out: str = option(help="folder to write", metavar="MODEL|REPO")
    ids: bool = option(False, "take ids and scaled numbers, as DATA has them")
    overwrite: bool = overwrite_option("MODEL or REPO if it is an exported model")
    triton: bool = option(
        False, "write a model repository that takes raw values, with the workflow inside"
    )
    device: str = device_option()


def add_export_options(parser: CommandParser) -> None:
    """Add the options of `cowclip export`, those for Triton in a group."""
    add_options(parser, ExportOptions, "run_folder", "data", "out", "ids", "overwrite")
    triton = parser.add_argument_group("for NVIDIA Triton")
    add_options(triton, ExportOptions, "triton")
    add_options(triton, RepositorySettings)
    add_options(parser, ExportOptions, "device")


def run_export(args: argparse.Namespace) -> None:
    """Write the model and print its inputs."""
    given, of_triton = settings_from(args, ExportOptions), values_from(args, RepositorySettings)
    for name in () if given.triton else of_triton:
        raise InputError(f"--{name.replace('_', '-')} is for Triton; add --triton, or omit it")
    if given.ids and given.triton:
        raise InputError("--ids: a repository for Triton takes raw values; omit --ids or --triton")
    from cowclip_merlin.training.run_config import RunConfig, data_of_run, local_run

    print_served_epoch(given.run_folder)
    run = local_run(given.run_folder)
    data = given.data or data_of_run(run, RunConfig.load(run), name="DATA")
    mark, what = "assets.extra/columns.json", "exported model"
    if given.triton:
        mark, what = "*/config.pbtxt", "model repository"
    with set_aside(Path(given.out), mark, what) if given.overwrite else nullcontext():
        if given.triton:
            _export_repository(given, data, RepositorySettings(**of_triton))
        else:
            _export_saved_model(given, data)


def _export_repository(
    given: ExportOptions, data: str | FilePath, settings: RepositorySettings
) -> None:
    columns = export_repository(
        given.run_folder, data, out=given.out, settings=settings, device=given.device
    )
    version = f"{settings.model_name}, version {settings.model_version}"
    print(f"{given.out}: model repository for Triton, model {version}")
    for kind, what in (("categorical", "string"), ("continuous", "float64")):
        if columns[kind]:
            print(f"  {what} [b, 1]: {', '.join(columns[kind])}")
    for name in columns.get("lists", ()):
        print(f"  string [m]: {name}{VALUES}, and int32 [b + 1]: {name}{OFFSETS}")
    for name, length in columns.get("vectors", {}).items():
        print(f"  float32 [b, {length}]: {name}")
    _print_made(columns.get("made", {}))
    print(f"  gives {', '.join(columns['outputs'])}, float32 [b, 1]")


def _print_made(made: Mapping[str, str]) -> None:
    """Tell which values the client makes for some inputs."""
    for words in dict.fromkeys(made.values()):
        names = ", ".join(name for name in made if made[name] == words)
        print(f"  make {names} as prepare does: {words}")


def _export_saved_model(given: ExportOptions, data: str | FilePath) -> None:
    from cowclip_merlin import export
    from cowclip_merlin.training import export_run, input_columns
    from cowclip_merlin.training.trained_run import made_inputs, output_labels

    what, padding = ("ids and scaled numbers", "0") if given.ids else ("raw values", '""')
    if given.ids:
        inputs = export_run(given.run_folder, data, out=given.out, device=given.device)
    else:
        inputs = export(given.run_folder, data=data, out=given.out, device=given.device)
    columns = input_columns(given.out)
    print(f"{given.out}: SavedModel, signature serving_default, takes {what}")
    kinds = {name: (each.dtype, tuple(each.shape)[1:]) for name, each in inputs.items()}
    for spec in dict.fromkeys(kinds.values()):
        names = [name for name, kind in kinds.items() if kind == spec]
        shapes = {(): "[b]", (None,): f"[b, k], filled with {padding}"}
        shape = shapes.get(spec[1]) or f"[b, {spec[1][0]}]"
        words = ", ".join(_describe_input(name, columns[name]) for name in names)
        print(f"  {spec[0].name} {shape}: {words}")
    _print_made(made_inputs(given.out))
    print(f"  gives {', '.join(output_labels(given.out)) or 'probability'}, float32 [b]")


def _describe_input(name: str, column: str) -> str:
    return name if name == column else f"{name} (column {column!r})"


EXPORT = Command(
    help="write the model of a run as a TensorFlow SavedModel, or for NVIDIA Triton",
    settings=add_export_options,
    run=run_export,
    examples="""examples:
  cowclip export RUN --out MODEL
  cowclip export RUN --out REPO --triton

MODEL: a SavedModel whose signature "serving_default" takes one tensor [b] of raw values for each
column: strings, "" for a missing one, and float64 numbers, NaN for a missing one. It returns
"probability" [b]; with several labels a tensor named after each. If TensorFlow refuses a column's
name, the tensor gets a similar name; MODEL/assets.extra/columns.json maps it to the column. With
--ids, it takes ids and scaled numbers, and cc.load_model loads it as a Keras model.

REPO: a model repository for Triton's Python backend. It takes one tensor [b, 1] of raw values for
each column and returns "probability" [b, 1]; with several labels a tensor named after each. Lists
of a column c come as c__values, all strings of the rows, and c__offsets [b + 1], as in Merlin
Systems; vectors as [b, length]. docs/serving.md tells which one to use.""",
)


@dataclass(frozen=True, kw_only=True)
class InspectOptions(Settings):
    """What is shown."""

    run_folder: str = run_folder()
    out: str | None = option(None, "folder for the figures (default: RUN/figures)", metavar="DIR")
    overwrite: bool = overwrite_option("existing figures in DIR")


def run_inspect(given: InspectOptions) -> None:
    """Print the report and write the figures."""
    check_overwrite_used(given, "out")
    from cowclip_merlin.contrib.diagnostics.report import (
        FIGURES,
        RELIABILITY,
        format_report,
        write_figures,
    )
    from cowclip_merlin.diagnostics import read_diagnostics
    from cowclip_merlin.system.files import check_writable
    from cowclip_merlin.training.run_config import RunConfig, local_run
    from cowclip_merlin.training.run_logs import read_metrics, read_reliability

    folder = local_run(given.run_folder)
    out = Path(given.out) if given.out else folder / "figures"
    if given.out and out.is_dir():  # RUN/figures always holds the figures of the last call
        for name in (*FIGURES, RELIABILITY):
            check_writable(out / f"{name}.svg", overwrite=given.overwrite)
    config, table = RunConfig.load(folder), read_diagnostics(folder)
    print_served_epoch(folder)
    print(format_report(config, read_metrics(folder / "metrics.csv", epochs=sys.maxsize), table))
    bins = read_reliability(folder / "reliability.csv")
    files = write_figures(table, out, _bins_of_served_epoch(folder, config, bins))
    print("\nfigures: " + ", ".join(map(str, files)))


def _bins_of_served_epoch(folder: Path, config: RunConfig, bins: Bins) -> Bins:
    """Return the bins of the epoch whose weights the run serves: the best, or the last one."""
    from cowclip_merlin.training.stopping.early_stopping import kept_scorings

    if not bins:
        return bins
    kept = kept_scorings(folder) if config.settings.early_stopping is not None else []
    epochs = list(dict.fromkeys(each["epoch"] for each in bins))  # one for each scoring
    epoch = epochs[kept[0] - 1] if kept else epochs[-1]
    return [each for each in bins if each["epoch"] == epoch]


INSPECT = Command(
    help="show what the clip did in a run, as text and figures",
    needs=("pandas",),
    settings=InspectOptions,
    run=run_inspect,
    examples="""examples:
  cowclip inspect RUN
  cowclip inspect RUN --out figures

Reads the diagnostics that cowclip train --diagnostics-every N writes (default: every 100 steps),
even during the run, and writes SVG figures to RUN/figures.""",
)
