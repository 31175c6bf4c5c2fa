"""Writes tables of the pages, and one figure, again from the recorded runs in benchmarks/results.

    python tests/docs/recorded_tables.py

A comment such as `<!-- recorded: flights-3M-searched/table2 -->` stands above each table. The first
part names a folder of benchmarks/results/experiments and the second one its tables/*.json, or the
two name a table of OTHERS. Nothing is trained, and the text around the tables stays.
"""

from __future__ import annotations

import csv
import json
import re
import statistics
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import loss_by_steps
import robustness_tables
from markdown_pages import PAGES, ROOT, name

from cowclip_merlin import choices
from cowclip_merlin.experiments.online.collision_outputs import MEASURES, best_epoch, load_text
from cowclip_merlin.experiments.online.collisions import CollisionEpoch
from cowclip_merlin.experiments.results.results_csv import read_results
from cowclip_merlin.experiments.tables.files import read_table
from cowclip_merlin.plotting.style import figure_settings, new_figure, style, svg_text

RESULTS = ROOT / "benchmarks/results"
RECORDED = RESULTS / "experiments"
MARKS = {"better": " +", "worse": " \N{MINUS SIGN}", "noise": " =", "": ""}
QUOTED = re.compile(r"(^<!-- recorded: (\S+) -->\n\n)((?:^\|.*\n)+)", re.MULTILINE)


def markdown(table):
    """Lines of the table, without the published numbers and the columns without a number."""
    measured = [[cell.mean is not None for cell in cells] for _, cells in table.rows]
    shown = [j for j, column in enumerate(zip(*measured, strict=True)) if any(column)]
    head = [table.corner, *(table.columns[j] for j in shown)]
    body = [[label, *(cell_text(cells[j]) for j in shown)] for label, cells in table.rows]
    return lines(head, body, ["---", *["---:"] * len(shown)])


def cell_text(cell):
    if cell.mean is None:
        return "" if cell.text == "not run" else cell.text
    spread = "" if cell.spread is None else f" ±{cell.spread:.2f}"
    return f"{cell.mean:.2f}{spread}{MARKS[cell.verdict]}"


def lines(head, body, rule):
    rows = [f"| {' | '.join(row)} |" for row in (head, *body)]
    return "\n".join([rows[0], f"|{'|'.join(rule)}|", *rows[1:]]) + "\n"


def variants():
    """The 28 data sets that were made from three logs."""
    files = sorted(RESULTS.glob("*-robustness-*.csv"))
    return [variant for file in files for variant in robustness_tables.read_csv(file)]


def variants_table(make: str) -> Callable[[], str]:
    return lambda: getattr(robustness_tables, make)(variants()) + "\n"


STEPS = (
    "generated-0.5M", "generated-1M", "generated-1M-mlp400", "generated-4M", "movielens", "frappe",
    "criteo-8k", "avazu-9k", "flights-cuts", "flights-3M", "flights-3M-searched",
    "flights-3M-searched-mlp400", "flights-3M-time-searched", "movielens-cuts",
    "movielens-cuts-searched", "movielens-genres", "frappe-cuts",
)  # fmt: skip


def steps():
    runs = [run for folder in STEPS for run in read_results(RECORDED / folder)]
    return loss_by_steps.table(loss_by_steps.losses(runs)) + "\n"


SEARCHED = (
    ("no scaling, x1", ("none", "none", 32)), ("x8", ("none", "none", 256)),
    ("x32", ("none", "none", 1024)), ("CowClip, x1", ("cowclip", "cowclip", 32)),
    ("x8", ("cowclip", "cowclip", 256)), ("x32", ("cowclip", "cowclip", 1024)),
    ("without its clip, x8", ("cowclip", "none", 256)), ("x32", ("cowclip", "none", 1024)),
)  # fmt: skip


def searched_elsewhere():
    runs = read_results(RECORDED / "movielens-cuts-searched")
    body = []
    for variant in sorted({run.data for run in runs}):
        mine, cells = [run for run in runs if run.data == variant], [variant]
        for _, line in SEARCHED:
            aucs = [100 * r.auc for r in mine if (r.rule, r.clip, r.batch_size) == line]
            cells.append(f"{statistics.mean(aucs):.2f} ±{statistics.stdev(aucs):.2f}")
        body.append(cells)
    return lines(["variant", *(h for h, _ in SEARCHED)], body, ["---", *["---:"] * len(SEARCHED)])


def collision_epochs(file):
    kinds = {f.name: {"int": int, "float": float}[f.type] for f in fields(CollisionEpoch)}
    with file.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    return [CollisionEpoch(**{k: kinds[k](v) for k, v in row.items()}) for row in rows]


def collisions_table(file: Path) -> Callable[[], str]:
    def make():
        results = collision_epochs(file)
        best = best_epoch(results)
        head = ["ids per bucket", *(title for title, _, _ in MEASURES.values())]
        loads = sorted({each.load for each in results})
        body = [[load_text(load), *collision_cells(results, load, best)] for load in loads]
        return lines(head, body, [" --- ", *[" --: "] * len(MEASURES)])

    return make


def collision_cells(results, load, epoch):
    """Mean and standard deviation over the seeds of each measure."""
    mine = [each for each in results if (each.load, each.epoch) == (load, epoch)]
    for measure, (_, factor, decimals) in MEASURES.items():
        values = [factor * getattr(each, measure) for each in mine]
        text = f"{statistics.fmean(values):,.{decimals}f}"
        if len(set(values)) > 1:
            text += f" ±{statistics.stdev(values):,.{decimals}f}"
        yield text


def rows_of_csv(file):
    with (RESULTS / file).open(newline="") as stream:
        return list(csv.DictReader(stream))


def invariant():
    """On how many data sets the rules match, and what they lose."""
    body = []
    for rule in ("sde", "invariant"):
        for factor in ("8", "32"):
            mine = [
                each
                for each in rows_of_csv("2026-11-26-cpu2-invariant-flights.csv")
                if (each["rule"], each["factor"]) == (rule, factor)
            ]
            cells = [f"`{rule}` at {factor}x"]
            for part in ("auc", "best_auc"):
                gains = [round(100 * (float(e[part]) - float(e["small_" + part])), 2) for e in mine]
                cells.append(f"{sum(gain >= -0.1 for gain in gains)} of {len(gains)}")
                cells.append(f"{statistics.median(gains):+.2f}")
            body.append(cells)
    head = ["rule", "final AUC matches", "median", "best epoch matches", "median"]
    return lines(head, body, ["---", *["---:"] * 4])


def replays():
    """AUC of replays of a drifting log by rule and batch, mean of the seeds."""
    rows = rows_of_csv("experiments/generated-drifting-1M/large_batch.csv")
    body = []
    for rule in ("none", "cowclip", "sde", "invariant"):
        cells = ["same rates" if rule == "none" else f"`{rule}`"]
        for batch in ("256", "2048", "8192"):
            wanted = (rule, batch, "1h")
            aucs = [100 * float(e["auc"]) for e in rows
                    if (e["rule"], e["batch_size"], e["sync"]) == wanted]  # fmt: skip
            cells.append(
                f"{statistics.mean(aucs):.2f} ±{statistics.stdev(aucs):.2f}" if aucs else ""
            )
        body.append(cells)
    head = ["rule", "256 events", "8x = 2,048", "32x = 8,192"]
    return lines(head, body, ["---", *["---:"] * 3])


HISTORIES = {
    ("none", "deepfm"): "DeepFM without `liked`",
    ("own", "deepfm"): "DeepFM, `liked` with a table of its own, `mean`",
    ("shared", "deepfm"): "DeepFM, `liked` with the table of `item`, `mean`",
    ("shared", "din"): "DIN, `liked` with the table of `item`",
}


def histories():
    """AUC and AUC by user on MovieLens by model and split, mean and deviation of the seeds."""
    rows, body = rows_of_csv("2026-11-27-cpu2-movielens-histories.csv"), []
    for key, title in HISTORIES.items():
        cells = [title]
        for split in ("random", "time"):
            for measure in ("auc", "auc_by_user"):
                aucs = [100 * float(e[measure]) for e in rows
                        if (e["history"], e["model"], e["split"]) == (*key, split)]  # fmt: skip
                cells.append(f"{statistics.mean(aucs):.2f} ±{statistics.stdev(aucs):.2f}")
        body.append(cells)
    head = ["model", "random: AUC", "by user", "by time: AUC", "by user"]
    return lines(head, body, ["---", *["---:"] * 4])


def several_labels():
    """Test AUC of each label of MovieLens-100K, by what the labels share."""
    rows = rows_of_csv("2026-11-27-cpu2-several-labels-movielens.csv")
    titles = {"alone": "a model for each label", **{w: f"`{w}`" for w in choices.MULTI_TASKS}}
    body = []
    for way, title in titles.items():
        cells = [title]
        for label in ("click", "favorite"):
            mine = [each for each in rows if (each["way"], each["label"]) == (way, label)]
            aucs = [100 * float(each["test_auc"]) for each in mine]
            cells.append(f"{statistics.mean(aucs):.2f} ±{statistics.stdev(aucs):.2f}")
        body.append(cells)
    return lines(["shared", "click", "favorite"], body, ["---", "---:", "---:"])


PACKAGES = {
    "cowclip": "`cowclip train`", "lightgbm": "LightGBM", "lightgbm-stopped": "LightGBM, stopped",
    "logistic": "scikit-learn", "vowpal-wabbit": "Vowpal Wabbit", "fuxictr": "FuxiCTR's DeepFM",
}  # fmt: skip


def packages():
    """Test AUC of this project and of other packages with their defaults, by log."""
    found = {}
    for file in sorted(RESULTS.glob("*-defaults-*.json")):
        record = json.loads(file.read_text())
        for row in record["results"]:
            found.setdefault((record["log"], row["contestant"]), []).append(100 * row["auc"])
    body = []
    titles = {"frappe": "Frappe", "movielens": "MovieLens", "flights-0.3M": "flights, 0.3M"}
    for log, title in titles.items():
        mine = [found.get((log, name)) for name in PACKAGES]
        body.append([title, *(f"{statistics.mean(aucs):.2f}" if aucs else "" for aucs in mine)])
    return lines(["log", *PACKAGES.values()], body, ["---", *["---:"] * len(PACKAGES)])


COLLISIONS = {
    file.stem.partition("-collisions-")[2]: file
    for file in sorted(RESULTS.glob("*-collisions-*.csv"))
}
OTHERS: dict[str, Callable[[], str]] = {
    "variants/properties": variants_table("table"),
    "variants/gains": variants_table("gains_table"),
    "variants/counts": variants_table("counts"),
    "variants/correlations": variants_table("correlations"),
    "variants/steps": steps,
    "movielens-cuts-searched/aucs": searched_elsewhere,
    "rules/invariant": invariant,
    "rules/replays": replays,
    "movielens/histories": histories,
    "others/defaults": packages,
    "movielens/several-labels": several_labels,
    **{f"collisions/{log}": collisions_table(file) for log, file in COLLISIONS.items()},
}


def recorded(source: str) -> str:
    """The table that a mark names."""
    if source in OTHERS:
        return OTHERS[source]()
    folder, _, table = source.partition("/")
    return markdown(read_table(RECORDED / folder / "tables" / f"{table}.json"))


def renewed(text: str) -> str:
    """The text of a page with each of its recorded tables made again."""
    return QUOTED.sub(lambda found: found[1] + recorded(found[2]), text)


FIGURE = ROOT / "docs/images/data-sets.svg"


def figure() -> str:
    """The differences at 8 times the batch against overfitting, one point for each data set."""
    every, x = variants(), [variant.properties["overfitting"] for variant in variants()]
    with figure_settings():
        drawing = new_figure(7.2, 3)
        left, right = drawing.subplots(1, 2, sharey=True)
        for axes, title, part in (
            (left, "final AUC of both runs", "gains"), (right, "best epoch of both runs", "best"),
        ):  # fmt: skip
            axes.axhline(-0.1, color="gray", linewidth=0.8)
            for i, (rule, label) in enumerate(RULES):
                y = [getattr(variant, part)[rule] for variant in every]
                axes.plot(x, y, label=label, **style(i, 1) | {"linestyle": ""})
            axes.set_title(title)
        drawing.supxlabel("what the small batch loses after its best epoch, points", fontsize=9)
        left.set_ylabel("AUC minus the small batch's, points")
        left.legend(loc="lower right")
        return svg_text(drawing)


RULES = (("sde x8", "sde"), ("cowclip x8", "CowClip"), ("none x8", "same rates"))


def main() -> int:
    if (svg := figure()) != (FIGURE.read_text("utf-8") if FIGURE.is_file() else ""):
        FIGURE.write_text(svg, encoding="utf-8")
        print(f"{name(FIGURE)}: changed")
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if (new := renewed(text)) != text:
            page.write_text(new, encoding="utf-8")
            print(f"{name(page)}: changed")
    print("recorded tables are those of benchmarks/results")
    return 0


if __name__ == "__main__":
    sys.exit(main())
