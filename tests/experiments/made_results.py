"""Results folders with made-up numbers and awkward names."""

import csv
import math
from dataclasses import replace

import numpy as np

from cowclip_merlin.diagnostics import figure_4
from cowclip_merlin.experiments import figures
from cowclip_merlin.experiments.results import example_result, write_results
from cowclip_merlin.experiments.tables import Cell, Table, mean_cell, verdict, write_table

BATCHES = tuple(256 * 2**i for i in range(8))
SEEDS = (1, 2, 3)
AWKWARD = (
    '<script>alert("x")</script> & a log with_a_very_long_name_that_has_no_place_to_break_at_all'
)
MAIN = {
    "title": "Table 2: scaling rules from 1 to 8 times the base batch, DeepFM",
    "claim": "Each rule without the clip loses AUC as the batch grows; CowClip keeps it.",
    "unit": "AUC %",
    "corner": "rule",
}


def judged(rows, reference, **known):
    """The rows with verdicts against one of their cells, as `cowclip experiment` gives them."""
    return tuple(
        (
            label,
            tuple(
                c if c is reference else replace(c, verdict=verdict(c, reference, **known))
                for c in cells
            ),
        )
        for label, cells in rows
    )


def rules_table(
    name="table2", *, cowclip=(78.92, 78.95, 78.93), other=(78.6, 78.2, 77.5), **changed
):
    """Three rules at four batches: the base one is the reference."""
    noise = (-0.02, 0.0, 0.02)
    base = mean_cell([78.90 + n for n in noise], published=80.76)
    others = (mean_cell([m + n for n in noise], published=80.31) for m in other)
    lines = [
        ("no scaling", (base, *others)),
        (
            "CowClip",
            (
                Cell(text=""),
                *(mean_cell([m + n for n in noise], published=80.97) for m in cowclip),
            ),
        ),
        (
            "linear, a rule whose heading is long enough to wrap",
            (Cell(text=""), Cell(published=80.46, note="Misprint in the paper."),
             Cell(text="diverged", runs=3, published=80.40),
             mean_cell([78.0], note="Misprint in the paper.")),
        ),
    ]  # fmt: skip
    return Table(
        **MAIN
        | {
            "name": name,
            "columns": tuple(f"x{s} = {256 * s:,}" for s in (1, 2, 4, 8)),
            "rows": judged(lines, base),
            "reference": "no scaling at batch 256",
            "notes": ("A note below the table.", "linear, x2: Misprint in the paper."),
            "missing": ("linear at x2: not run yet",),
            "command": "cowclip experiment table2 --data DATA --out RESULTS --seeds 3",
            "data": "generated log, 450,000 rows",
        }
        | changed
    )


def wide_table():
    """Eight batches and four models, minutes, without a reference."""
    cells = tuple(
        mean_cell([100 / 2**k, 101 / 2**k, 99 / 2**k], published=768 / 2**k) for k in range(8)
    )
    rows = tuple((model, cells) for model in ("DeepFM", "W&D", "DCN", "DCNv2"))
    return Table(
        name="table5", title="Table 5: minutes of training by batch", claim="", unit="minutes",
        corner="model", columns=tuple(f"x{b // 256} = {b:,}" for b in BATCHES), rows=rows,
        command="cowclip experiment table5 --data DATA --out RESULTS",
    )  # fmt: skip


def text_table():
    """Texts in place of numbers, too wide for a sheet unless they are broken."""
    texts = tuple(Cell(text=f"1e-4 / {k}.13e-3 / 2e-5 / 1 / 1e-5") for k in range(8))
    return Table(
        name="table9", title="Table 9: hyper-parameters", claim="`r` stays & is < 2.", unit="rates",
        corner="rule", columns=tuple(f"{2**k}K" for k in range(8)), rows=(("CowClip", texts),),
    )  # fmt: skip


def curve(label, epochs, *finals):
    """AUC by epoch, a run per seed."""
    runs = [[end - 3 * math.exp(-epoch) for epoch in range(1, epochs + 1)] for end in finals]
    return figures.Curve(label=label, x=tuple(range(1, epochs + 1)), runs=runs)


def drawings():
    """Name -> figure, one of every kind."""
    random, line = np.random.default_rng(0), figures.Curve
    cnt = random.zipf(1.6, 4000).clip(max=5000)
    ids = {f"C{k}": random.zipf(1.3 + k / 20, 30 + 3 ** (k % 9)).clip(max=10**6) for k in range(26)}
    times = [
        line(label=f"CowClip, {update}", x=BATCHES, runs=[[a * 256 / b + 8 for b in BATCHES]] * 2)
        for update, a in (("dense", 400), ("exact", 200))
    ]
    curves = [
        curve("batch 256, baseline", 4, 78.9, 79.0),
        curve("batch 8,192, CowClip", 4, 78.7, 78.8),
        curve("batch 8,192, cost $5 and $6", 4, 77.5, 77.9),
    ]
    names = ("no scaling", "sqrt", "sqrt*", "linear", "n2-lambda", "CowClip")
    rules = [
        line(
            label=name, x=(1, 2, 4, 8), runs=[[a - k * s / 9 for s in range(4)] for a in (79, 78.9)]
        )
        for k, name in enumerate(names)
    ]
    paper = [
        line(label="no scaling", x=(1, 8), runs=[(80.76, 80.31)]),
        line(label="CowClip", x=(1, 2, 4, 8), runs=[(80.86, 80.93, 80.97, 80.97)]),
    ]
    norm = 1e-5 * cnt**0.9 * random.lognormal(size=len(cnt))
    return {
        "figure1": figures.draw_times(times, rows=450_000),
        "figure3": figures.draw_ids(ids),
        "figure4": figure_4(cnt, norm),
        "figure5": figures.draw_epochs(
            {"test AUC, %": curves, "log loss": curves, "train loss": curves}
        ),
        "figure6": figures.draw_epochs({"train loss": curves}),
        "table2_auc": figures.draw_multipliers(rules, paper),
    }


def runs_of(data):
    """Three seeds of two rules at two batches; one diverged."""
    found = []
    for rule in ("none", "cowclip"):
        for batch in (256, 2048):
            for seed in SEEDS:
                name = f"{rule}-{batch}-{seed}"
                diverged = (rule, batch, seed) == ("none", 2048, 3)
                found.append(
                    example_result(
                        run_id=name, config_hash=f"{data}{name}", data=data, model="deepfm",
                        optimizer="adam", rule=rule, clip=rule, update="exact", batch_size=batch,
                        base_batch_size=256, embedding_lr=1e-3, dense_lr=4e-4, l2=9.2e-5, r=1.0,
                        zeta=1e-5, init_std=0.01, warmup_epochs=1.0, epochs=4, seed=seed,
                        status="diverged" if diverged else "done", split="test", train_rows=450_000,
                        auc=math.nan if diverged else 0.789 + seed / 1e4,
                        log_loss=math.nan if diverged else 0.45, best_auc=0.79, best_epoch=3,
                        seconds=61.5, rows_per_second=29268.0, steps_per_epoch=1758,
                        started=f"2026-01-0{seed}T10:00:00+00:00", revision="0" * 40,
                        tensorflow="2.21.0", hardware="AMD EPYC, 2 cores", load=1.5 + seed,
                        data_fingerprint="f" * 64,
                        versions=f"numpy 1.26.{3 + seed % 2}, pandas 1.5.3",
                    )
                )  # fmt: skip
    return found


def make_results(folder, *, data=AWKWARD, tables=None, figures_too=True):
    """Fill a results folder."""
    folder.mkdir(parents=True, exist_ok=True)
    runs = runs_of(data)
    write_results(folder, runs)
    for table in (rules_table(), wide_table(), text_table()) if tables is None else tables:
        write_table(folder / "tables", table)
    for name, figure in (drawings() if figures_too else {}).items():
        figures.write_figure(
            folder / "figures", figure, name=name, title=f"{name} & what it shows",
            caption="What is drawn, and what the reader should see.", alt=f"{name}: lines <fall>",
            data=data, command=f"cowclip experiment {name} --data DATA --out RESULTS",
        )  # fmt: skip
    run = folder / "runs" / runs[0].run_id
    run.mkdir(parents=True, exist_ok=True)
    with (run / "metrics.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("epoch", "test_auc"), (1, 0.78)])
    return folder
