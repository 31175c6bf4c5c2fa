"""`cowclip explain`: which columns a run needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cowclip_merlin.cli.command import (
    Command,
    json_option,
    overwrite_option,
    print_json,
    print_served_epoch,
)
from cowclip_merlin.cli.scoring import run_folder
from cowclip_merlin.errors import InputError
from cowclip_merlin.plotting.colors import BLUE
from cowclip_merlin.plotting.style import figure_settings, new_figure, save_figure
from cowclip_merlin.settings import Settings, device_option, option
from cowclip_merlin.system.files import check_writable

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_DRAWN = 30  # columns in the figure
_WIDTH = 30  # characters of the longest bar


@dataclass(frozen=True, kw_only=True)
class ExplainOptions(Settings):
    """What is measured."""

    run_folder: str = run_folder()
    rows: tuple[str, ...] = option(
        (), "raw files with labels, or a folder that cowclip prepare wrote, for its test rows "
        "(default: the folder that RUN was trained on)", flag="rows", nargs="*", metavar="DATA",
    )  # fmt: skip
    repeats: int = option(3, "shuffles of each column", metavar="N", at_least=1)
    max_rows: int = option(
        50_000, "score at most N rows, chosen at random", metavar="N", at_least=1
    )
    seed: int = option(0, "seed of the shuffles and of the choice of rows", at_least=0)
    out: str | None = option(
        None, "file for the figure, .svg (default: RUN/figures/importance.svg)", metavar="FILE"
    )
    overwrite: bool = overwrite_option("FILE if it exists")
    json: bool = json_option()
    device: str = device_option()


def run_explain(given: ExplainOptions) -> None:
    """Measure, print the table, and draw it."""
    from cowclip_merlin.training.run_config import local_run
    from cowclip_merlin.training.scoring.importance import importance

    folder = local_run(given.run_folder)
    out = folder / "figures" / "importance.svg"  # which always holds that of the last call
    if given.out is not None:
        out = Path(given.out)
        check_writable(out, overwrite=given.overwrite)
        if out.suffix.lower() != ".svg":
            raise InputError(f"{out}: does not end in .svg; use such a name")
    elif given.overwrite:
        raise InputError("--overwrite has no effect without --out; remove it, or add --out")
    if not given.json:
        print_served_epoch(folder)
    found = importance(
        folder,
        given.rows[0] if len(given.rows) == 1 else given.rows or None,
        seed=given.seed,
        repeats=given.repeats,
        max_rows=given.max_rows,
        device=given.device,
    )
    out.parent.mkdir(exist_ok=True)
    with figure_settings():
        save_figure(importance_figure(found), out)
    if given.json:
        print_json({**found.attrs, "figure": str(out), "columns": found.to_dict("records")})
        return
    print(importance_text(found))
    print(f"figure: {out}")


def importance_text(found: pd.DataFrame) -> str:
    """Describe the result of `cc.importance`, with a bar for each column.

    >>> import pandas as pd
    >>> table = {"column": ["item", "age"], "auc_lost": [0.25, -0.001], "std": [float("nan")] * 2}
    >>> found = pd.DataFrame(table)
    >>> found.attrs = {"auc": 0.75, "rows": 200}
    >>> print(importance_text(found))
    AUC 0.7500 of 200 rows; AUC lost when the values of a column are shuffled:
      item  0.2500  ##############################
      age  -0.0010
    """
    head = "AUC {auc:.4f} of {rows:,} rows; AUC lost when the values of a column are shuffled:"
    width, most = max(map(len, found.column)), max(found.auc_lost.max(), 1e-9)
    lines = [head.format(**found.attrs)]
    for name, lost, std in zip(found.column, found.auc_lost, found["std"]):
        bar = "#" * round(_WIDTH * max(lost, 0) / most)
        spread = "" if std != std else f" +- {std:.4f}"
        lines.append(f"  {name:<{width}} {lost:>7.4f}{spread}  {bar}".rstrip())
    return "\n".join(lines)


def importance_figure(found: pd.DataFrame) -> Figure:
    """Draw the AUC that each column costs, the largest on top."""
    shown = found.head(_DRAWN)[::-1]
    figure = new_figure(5.6, 0.8 + 0.22 * len(shown))
    axes = figure.subplots()
    errors = None if shown["std"].isna().any() else shown["std"]
    axes.barh(shown.column, shown.auc_lost, xerr=errors, color=BLUE, ecolor="gray")
    left_out = f", {_DRAWN} of {len(found)} columns" if len(found) > _DRAWN else ""
    axes.set(xlabel=f"AUC lost when the column is shuffled{left_out}")
    axes.set(title="AUC {auc:.4f} of {rows:,} rows".format(**found.attrs))
    axes.grid(axis="y", visible=False)
    return figure


EXPLAIN = Command(
    help="show which columns a run needs: the AUC that it loses without their values",
    settings=ExplainOptions,
    run=run_explain,
    examples="""examples:
  cowclip explain RUN
  cowclip explain RUN DATA --repeats 10
  cowclip explain RUN new.csv --out importance.svg

The values of one column are shuffled among the rows, and all rows are scored again. The model is
not trained again: of two columns that tell the same, each may lose little.""",
)
