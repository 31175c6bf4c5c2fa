"""`cowclip generate`, `prepare` and `adopt`: a raw log, and a folder of its rows to train on."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from cowclip_merlin.cli.command import Command, CommandParser, overwrite_option
from cowclip_merlin.errors import InputError
from cowclip_merlin.recipe import rule_words
from cowclip_merlin.settings import Settings, add_options, option, option_of, settings_from
from cowclip_merlin.synthetic.drifting_log import DriftingLogSize, generate_drifting
from cowclip_merlin.system.console import note
from cowclip_merlin.workflows import PrepareSettings, Recipe, prepare
from cowclip_merlin.workflows.adopt import AdoptSettings, adopt


@dataclass(frozen=True, kw_only=True)
class GenerateOptions(Settings):
    """What is generated."""

    rows: int = option_of(DriftingLogSize, "rows")
    seed: int = option_of(DriftingLogSize, "seed")
    out: str = option(help="compressed if it ends in .gz", metavar="FILE")
    crossed: bool = option(
        False, "about as many ids per row as Criteo, most of them rare; adds crossed columns"
    )
    drift: bool = option(
        False, "log with times: click rates change, items come and go; also writes FILE.yaml"
    )
    days: int | None = option_of(
        DriftingLogSize, "days", default=None, shown=str(DriftingLogSize.days),
        help="with --drift: days that the log covers",
    )  # fmt: skip
    overwrite: bool = overwrite_option("FILE if it exists")


def run_generate(given: GenerateOptions) -> None:
    """Write the log and print its statistics."""
    if given.drift:
        _generate_drifting(given)
        return
    from cowclip_merlin.synthetic.criteo_log import generate

    if given.days is not None:
        raise InputError(f"--days {given.days}: only a log with --drift has days; add --drift")
    log = generate(
        given.out,
        rows=given.rows,
        seed=given.seed,
        crossed=given.crossed,
        overwrite=given.overwrite,
    )
    print(
        f"{given.out}: {log.rows:,} rows, {100 * log.click_rate:.2f}% clicks, "
        f"{log.distinct_ids:,} distinct ids\n"
        f"best possible: AUC {log.bayes_auc:.5f}, log loss {log.bayes_log_loss:.5f}"
    )


def _generate_drifting(given: GenerateOptions) -> None:
    if given.crossed:
        raise InputError("--crossed: a log with --drift has no crossed columns; drop one option")
    size = {"rows": given.rows, "seed": given.seed}
    size |= {} if given.days is None else {"days": given.days}
    log = generate_drifting(given.out, **size, overwrite=given.overwrite)
    print(
        f"{given.out}: {log.rows:,} rows in {log.days} days, {100 * log.click_rate:.2f}% clicks, "
        f"{log.distinct_ids:,} distinct ids, {log.new_items:,} new items a day\n"
        f"{given.out}.yaml: its features file\n"
        f"best possible: AUC {log.bayes_auc:.5f}, log loss {log.bayes_log_loss:.5f}"
    )


GENERATE = Command(
    help="write a raw log whose best possible AUC is known: in Criteo's format, or one that drifts",
    needs=("pyarrow",),
    settings=GenerateOptions,
    run=run_generate,
    examples="""examples:
  cowclip generate --rows 1000000 --seed 7 --out log.txt
  cowclip generate --rows 100000 --out log.txt.gz
  cowclip generate --crossed --rows 1000000 --seed 7 --out crossed.txt
  cowclip generate --drift --rows 1000000 --days 7 --out events.csv""",
)


def add_prepare_options(parser: CommandParser) -> None:
    """Add the options of `cowclip prepare`, those that matter most first."""

    def group(title: str, *names: str) -> argparse._ArgumentGroup:
        made = parser.add_argument_group(title)
        add_options(made, PrepareSettings, *names)
        return made

    names = ("kind", "files", "out", "label", "categorical", "continuous", "multi", "time")
    group("what to prepare", *names, "split", "overwrite")
    names = ("regression", "multi_separator", "max_values", "keep_values", "share_embedding")
    names += ("text", "weight", "vector", "vector_separator", "separator", "columns")
    group("columns", *names)
    names = ("validation", "test", "test_fraction", "seed", "max_bad_fraction")
    group("rows", *names)
    add_options(group("ids and numbers", "like", "extend"), Recipe)
    group("run", "hugectr", "scheduler", "device", "partition_mb")


def run_prepare(args: argparse.Namespace) -> None:
    """Prepare the log, and print which scaling rule fits it."""
    data = prepare(settings_from(args, PrepareSettings, recipe=settings_from(args, Recipe)))
    if words := rule_words(data):
        note(words)


PREPARE = Command(
    help="turn a raw click log into a prepared folder",
    needs=("merlin",),
    settings=add_prepare_options,
    run=run_prepare,
    examples="""examples:
  cowclip prepare criteo train.txt --out DATA
  cowclip prepare avazu train.gz --out DATA --split time
  cowclip prepare criteo_x4 Criteo_x4 --out DATA
  cowclip prepare table log.csv --out DATA --label y --categorical user,item --continuous age
  cowclip prepare table train.csv --validation valid.csv --test test.csv --out DATA \\
      --label y --categorical user,item
  cowclip prepare table films.csv --out DATA --label y --categorical user --multi genres
  cowclip prepare table log.csv --out DATA --label click,seconds --regression seconds \\
      --categorical user,item
  cowclip prepare criteo new.txt --out NEW --like DATA""",
)


def run_adopt(given: AdoptSettings) -> None:
    """Make the folder."""
    adopt(given)


ADOPT = Command(
    help="turn the output of an NVTabular workflow into a prepared folder",
    settings=AdoptSettings,
    run=run_adopt,
    examples="""examples:
  cowclip adopt TRAIN VALID --workflow WORKFLOW --out DATA
  cowclip adopt TRAIN VALID --test TEST --label click,bought --out DATA

With --workflow, cowclip score and serve take raw ids: `Categorify` left them in parquet files
there. Its pickle is not read. Give numbers as the workflow returns them. Without --workflow, rows
to score are rows of such output, too: transform them with your workflow first.""",
)
