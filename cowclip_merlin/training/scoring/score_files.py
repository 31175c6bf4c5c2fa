"""Score files of any size into a file, batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cowclip_merlin.addresses import FilePath, is_address, uploaded_file
from cowclip_merlin.errors import InputError
from cowclip_merlin.training.scoring.new_values import NewValues
from cowclip_merlin.training.scoring.scorer import ScoredRows, Scorer
from cowclip_merlin.training.scoring.table_file import check_table_file, table_file
from cowclip_merlin.training.several_targets.names import value_names
from cowclip_merlin.workflows.raw.ingest import check_input_files
from cowclip_merlin.workflows.raw.log_reader import LogReader
from cowclip_merlin.workflows.raw.parsed_rows import BadLine
from cowclip_merlin.workflows.read_log import paths_of

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, kw_only=True)
class ScoreSummary:
    """What was scored.

    Attributes:
        rows: number of scored rows.
        damaged: number of damaged rows, which have no score.
        first_damaged: the first of them.
        unknown: categorical column -> share of its values that are unknown, in [0, 1].
        whole_floats: column -> the first text such as "47.0" that was read as a whole number.
    """

    rows: int
    damaged: int
    first_damaged: Sequence[BadLine]
    unknown: dict[str, float]
    whole_floats: dict[str, str]


def score_files(
    run: str | Path,
    files: str | Path | Sequence[str | Path],
    *,
    out: str | Path,
    data: str | Path | None = None,
    keep: Sequence[str] = (),
    max_bad_fraction: float = 0.001,
    allow_unknown: Sequence[str] = (),
    overwrite: bool = False,
    device: str = "auto",
) -> ScoreSummary:
    """Score raw files with the weights of a run; memory does not grow with the files.

    Args:
        run: the run folder.
        files: plain or compressed text, or parquet, in the order of the rows; rows need no label.
        out: parquet, .csv or .csv.gz file to write: row, the columns of `keep`, probability (of
            several targets a column for each, such as probability_click and prediction_seconds).
            `row` counts the rows of all files from 0, with damaged ones, which are left out.
        data: the folder that the run was trained on; None: where it was then.
        keep: columns of the files to copy. Those of a text file become text.
        max_bad_fraction: stop if the share of damaged rows exceeds this.
        allow_unknown: as of `score`.
        overwrite: replace `out` if the file exists.
        device: "auto", "cpu" or "gpu".

    Raises:
        InputError: if an input is wrong; nothing is written then.
    """
    paths = paths_of(files)
    if is_address(out):
        if any(str(file) == str(out) for file in paths):
            raise InputError(f"{out}: is one of the files to score; use another `out`")
        with uploaded_file(str(out), overwrite=overwrite) as file:
            return score_files(
                run,
                paths,
                out=file,
                data=data,
                keep=keep,
                max_bad_fraction=max_bad_fraction,
                allow_unknown=allow_unknown,
                device=device,
            )
    out = Path(out)
    check_table_file(out, overwrite=overwrite)
    check_input_files(paths)
    _check_apart(out, paths)
    _check_kept(keep, ["probability"])
    scorer = Scorer(run, data, device=device)
    names = value_names(scorer.data.targets)
    _check_kept(keep, names)
    reader = LogReader(
        scorer.data.log_format, labels=False, keep=keep, max_bad_fraction=max_bad_fraction
    )
    scored, found = 0, NewValues(scorer.data, allow_unknown)
    with table_file(out) as write:
        for part in scorer.score_pieces(reader.files(paths), found):
            write(_table(part, names))
            scored += len(part.probabilities)
        found.check()
    return ScoreSummary(
        rows=scored,
        damaged=reader.damaged.count,
        first_damaged=reader.damaged.first,
        unknown=found.unknown,
        whole_floats=reader.whole_floats,
    )


def _check_apart(out: Path, files: Sequence[FilePath]) -> None:
    for file in files:
        if isinstance(file, Path) and out.exists() and out.samefile(file):
            raise InputError(f"{out}: is one of the files to score; use another `out`")


def _check_kept(keep: Sequence[str], own: Sequence[str]) -> None:
    for name in keep:
        if name in ("row", *own) or list(keep).count(name) > 1:
            twice = list(keep).count(name) > 1 and name not in ("row", *own)
            what = "is given twice" if twice else "is a column of the scores itself"
            raise InputError(f"`keep`: {name!r} {what}; remove it")


def _table(part: ScoredRows, names: Sequence[str]) -> pa.Table:
    import pyarrow as pa

    kept = part.rows.kept
    columns = {"row": part.rows.positions, **{n: kept[n] for n in kept.column_names}}
    values = part.probabilities.reshape(len(part.probabilities), -1)
    return pa.table({**columns, **{name: values[:, i] for i, name in enumerate(names)}})
