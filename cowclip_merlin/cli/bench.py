"""`cowclip bench` and `cowclip scale`: the speed of a training step, and scaled rates."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone

from cowclip_merlin.bench.settings import BenchSettings
from cowclip_merlin.cli.command import Command, check_overwrite_used, overwrite_option
from cowclip_merlin.scaling import PRESETS, RULES, scale
from cowclip_merlin.settings import Settings, device_option, option
from cowclip_merlin.system.console import note


@dataclass(frozen=True, kw_only=True)
class BenchOptions(BenchSettings):
    """What is measured, and where the result goes."""

    device: str = device_option()
    json: str | None = option(None, "also write the result to this file", metavar="FILE")
    overwrite: bool = overwrite_option("FILE if it exists")


def run_bench(given: BenchOptions) -> None:
    """Measure the speed and print a table."""
    check_overwrite_used(given, "json")
    from cowclip_merlin.bench.throughput import format_backends, format_table, measure
    from cowclip_merlin.system.files import check_writable, write_json
    from cowclip_merlin.training.build import choose_device

    if given.json:
        check_writable(given.json, overwrite=given.overwrite)
    choose_device(given.device)
    result = measure(given)
    result["date"] = datetime.now(timezone.utc).isoformat(timespec="seconds")
    print(format_table(result))
    print(format_backends(result))
    note("ratio: speed relative to the smallest batch with dense updates and no clip")
    note("of MLP: speed relative to the MLP alone; both are medians over the rounds")
    if given.multi_values:
        print(f"a row has {result['ids_per_row']:.0f} ids, in lists")
    print(f"{result['hardware']}, TensorFlow {result['versions'].get('tensorflow')}")
    if given.json:
        write_json(given.json, result)


BENCH = Command(
    help="measure the speed of the training step by batch size, update, backend and clip",
    settings=BenchOptions,
    run=run_bench,
    examples="""examples:
  cowclip bench
  cowclip bench --model deepfm,dcnv2 --batch-sizes 1024,65536 --vocabulary 1000000
  cowclip bench --update exact --precision float32,bfloat16 --json step.json""",
)

ROWS = ("embedding_lr", "dense_lr", "l2", "beta_1", "beta_2", "epsilon", "r", "zeta", "init_std")
ROWS += ("warmup_epochs", "micro_batches")
CLIP_HYPERPARAMETERS = ("r", "zeta")


@dataclass(frozen=True, kw_only=True)
class ScaleOptions(Settings):
    """What is scaled."""

    dataset: str = option(
        "criteo", "data set of the paper to take values from", choices=sorted(PRESETS)
    )
    to: int = option(help="batch size in rows")
    rule: str | None = option(None, "show only this rule", choices=sorted(RULES))


def run_scale(given: ScaleOptions) -> None:
    """Print the table."""
    rules = [given.rule] if given.rule else list(RULES)
    columns = {rule: scale(given.dataset, to=given.to, rule=rule) for rule in rules}
    note(f"{given.dataset}, batch {given.to:,}; rules without the clip start from the baseline\n")
    print(_line("", rules))
    for name in ROWS:
        cells = [
            "-"
            if name in CLIP_HYPERPARAMETERS and values.clip != "cowclip"
            else f"{getattr(values, name):.6g}"
            for values in columns.values()
        ]
        print(_line(name, cells))
    print(_line("clip", [values.clip for values in columns.values()]))


def _line(head: str, cells: list[str]) -> str:
    return f"{head:<14}" + "".join(f"{cell:>13}" for cell in cells)


SCALE = Command(
    help="print the hyper-parameters of every scaling rule side by side",
    needs=(),
    settings=ScaleOptions,
    run=run_scale,
    examples="""examples:
  cowclip scale --dataset criteo --to 131072
  cowclip scale --dataset avazu --to 4096 --rule cowclip""",
)
