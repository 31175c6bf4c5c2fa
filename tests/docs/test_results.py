"""Numbers of the pages of results that follow from the recorded runs in benchmarks/results."""

import csv
import re
import statistics

import pytest
from markdown_pages import NOTES, ROOT
from recorded_tables import COLLISIONS, RECORDED, STEPS, collision_epochs, variants

from cowclip_merlin.experiments.online.collision_outputs import best_epoch
from cowclip_merlin.experiments.results.results_csv import read_results

LOGS = {
    "generated, 4M rows, seed 12": "generated-4M",
    "generated, 1M rows, seed 7": "generated-1M",
    "generated, 0.5M rows, seed 11": "generated-0.5M",
    "flights, 3M rows": "flights-3M-searched",
    "Criteo, 8 thousand rows": "criteo-8k",
    "Avazu, 9 thousand rows": "avazu-9k",
}
COLUMNS = (
    ("none", 1), ("none", 8), ("sqrt", 8), ("sqrt_star", 8), ("linear", 8), ("n2_lambda", 8),
    ("cowclip", 1), ("cowclip", 8), ("cowclip", 32),
)  # fmt: skip


def rules_table():
    text = (ROOT / "docs/results-tables.md").read_text().partition("## Scaling rules")[2]
    first = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)[0]
    rows = [line.strip("|").split("|") for line in first.splitlines()]
    return {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows}


def aucs(log, rule, batch):
    """Of the runs on test rows with this rule, its own clip and nothing else changed."""
    wanted = {"model": "deepfm", "optimizer": "adam", "split": "test", "variant": "", "rule": rule}
    wanted |= {"clip": "cowclip" if rule == "cowclip" else "none", "batch_size": str(batch)}
    with (RECORDED / log / "results.csv").open(newline="") as file:
        return [
            100 * float(run["auc"])
            for run in csv.DictReader(file)
            if all(run[name] == value for name, value in wanted.items())
        ]


@pytest.mark.parametrize("name", LOGS)
def test_scaling_rules_are_those_of_the_recorded_runs(name):
    """Cells with more runs than the three seeds, of other settings, cannot be told apart here."""
    base, *cells = rules_table()[name]
    checked = 0
    for cell, (rule, times) in zip(cells, COLUMNS, strict=True):
        runs = aucs(LOGS[name], rule, times * int(base))
        if len(runs) == 3:
            checked += 1
            mean, spread = re.match(r"([\d.]+)(?: ±([\d.]+))?", cell).groups()
            assert mean == f"{statistics.mean(runs):.2f}", (rule, times)
            assert spread in (None, f"{statistics.stdev(runs):.2f}")
    assert checked >= 5


@pytest.mark.parametrize("log", COLLISIONS)
def test_tables_of_collisions_name_their_epoch_and_file(log):
    page = (NOTES / "collisions-results.md").read_text()
    before = page.partition(f"<!-- recorded: collisions/{log} -->")[0]
    assert f"after epoch {best_epoch(collision_epochs(COLLISIONS[log]))}" in before.splitlines()[-2]
    assert COLLISIONS[log].name in page


REPLAYS = RECORDED / "generated-drifting-1M/replays.csv"
REFERENCES = {"synced every": "never", "occurrences T": "1", "time to live": "off"}


def replays():
    """Text of a line -> seed -> its row, of the runs with the rates of the page's tables."""
    with REPLAYS.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if float(row["embedding_lr"]) == 3e-3]
    found = {name: {} for name in REFERENCES}
    intervals = {"never": "never", "1d": "1 day", "5h": "5 h", "1h": "1 h", "30min": "30 min"}
    times = {"3600": "1 h", "21600": "6 h", "86400": "1 day", "259200": "3 days", "0": "off"}
    for row in rows:
        if row["ttl"] in times:
            found["time to live"].setdefault(times[row["ttl"]], {})[row["seed"]] = row
            continue
        if row["admit"] == "1":
            found["synced every"].setdefault(intervals[row["sync"]], {})[row["seed"]] = row
        if row["sync"] == "1h":
            found["occurrences T"].setdefault(row["admit"], {})[row["seed"]] = row
    return found


def online_tables():
    """First heading -> label -> heading -> cell, of the tables with an AUC and a gain."""
    text = (ROOT / "docs/online-results.md").read_text()
    found = {}
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        lines = [line.strip("|").split("|") for line in block.splitlines()]
        head, _, *rows = [[cell.strip() for cell in cells] for cells in lines]
        if head[0] in REFERENCES and "gain, points" in head:
            found[head[0]] = {row[0]: dict(zip(head, row)) for row in rows}
    return found


@pytest.mark.parametrize("name", REFERENCES)
def test_online_results_are_those_of_the_recorded_replays(name):
    recorded, table = replays()[name], online_tables()[name]
    assert set(recorded) == set(table)
    reference = recorded[REFERENCES[name]]
    for label, cells in table.items():
        mine = recorded[label]
        assert len(mine) == 5
        auc = {seed: 100 * float(row["auc"]) for seed, row in mine.items()}
        gains = [auc[seed] - 100 * float(reference[seed]["auc"]) for seed in mine]
        values = list(auc.values())
        assert cells["AUC, %"] == f"{statistics.mean(values):.2f} ±{statistics.stdev(values):.2f}"
        gain = f"{statistics.mean(gains):+.2f} ±{statistics.stdev(gains):.2f}"
        assert cells["gain, points"] == ("" if label == REFERENCES[name] else gain)
        if "ids kept" in cells:
            kept = statistics.mean(int(row["ids_kept"]) for row in mine.values())
            assert cells["ids kept"] == f"{kept:,.0f}"


REAL_LOGS = {
    "flights-3M": ROOT / "docs/online-results.md",
    "movielens-time": NOTES / "online-training.md",
}


@pytest.mark.parametrize("folder", REAL_LOGS)
def test_real_logs_of_the_page_are_those_of_the_recorded_replays(folder):
    with (RECORDED / folder / "replays.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = {"never": "never", "1d": "1 day", "5h": "5 h", "1h": "1 h", "30min": "30 min"}
    of = {name: {row["seed"]: row for row in rows if row["sync"] == name} for name in names}
    page = REAL_LOGS[folder].read_text()
    for name, label in names.items():
        aucs = [100 * float(row["auc"]) for row in of[name].values()]
        losses = [float(row["log_loss"]) for row in of[name].values()]
        gains = [
            100 * (float(x["auc"]) - float(of["never"][s]["auc"])) for s, x in of[name].items()
        ]
        gain = f"{statistics.mean(gains):+.2f} ±{statistics.stdev(gains):.2f} "
        cells = f"{statistics.mean(aucs):.2f} ±{statistics.stdev(aucs):.2f}"
        loss = f"{statistics.mean(losses):.4f} ±{statistics.stdev(losses):.4f}"
        assert len(aucs) == 5
        assert f"| {label} | {cells} | {'' if name == 'never' else gain}| {loss} |" in page


def words_of(path):
    """The page with single spaces between its words, and its lines of tables as they are."""
    text = path.read_text()
    return f"{' '.join(text.split())}\n{text}"


def holds(variants, name, part="gains"):
    return f"{sum(getattr(v, part)[name] > -0.1 for v in variants)} of {len(variants)}"


def counts(variants, times, part="gains"):
    """The cells of a row: `sde`, CowClip, and the rates of the small batch."""
    cells = [holds(variants, f"{rule} x{times}", part) for rule in ("sde", "cowclip", "none")]
    return f" | {' | '.join(cells)} |\n"


def test_the_counts_of_data_sets_that_match_are_the_recorded_ones():
    every = variants()
    fits = [variant for variant in every if variant.properties["overfitting"] > 0.5]
    rest = [variant for variant in every if variant not in fits]
    page = words_of(ROOT / "docs/results.md")
    assert len(every) > 20 and f"{len(every)} data sets" in page
    for text in (page, words_of(ROOT / "README.md")):
        assert counts(fits, 8) in text and counts(rest, 8) in text
        assert counts(every, 8, "best") in text
    assert counts(every, 32) in page and counts(every, 32, "best") in page
    assert f"it matches at 8x in {holds(rest, 'sde x8', 'best')}" in page
    for page in ("README.md", "docs/results.md", "docs/choosing.md"):
        text = words_of(ROOT / page)
        assert holds(fits, "cowclip x8") in text and holds(rest, "cowclip x8") in text
        assert holds(every, "sde x8", "best") in text
        assert holds(every, "sde x32", "best") in text
    assert not any(v.best["cowclip x8"] > -0.1 for v in every)  # "never", "none"


def test_the_largest_losses_of_sde_are_the_recorded_ones():
    losses = [-min(v.best[name] for v in variants()) for name in ("sde x8", "sde x32")]
    assert f"at most {losses[0]:.1f} and {losses[1]:.1f}" in words_of(ROOT / "docs/choosing.md")
    said = f"at most {losses[0]:.1f} points at 8x and {losses[1]:.1f} at 32x"
    assert said in words_of(ROOT / "docs/results.md")


FLIGHTS = {"flights-3M": "three million flights\n", "flights-3M-time": "With a split by time (2"}


@pytest.mark.parametrize("name", FLIGHTS)
def test_the_worked_example_of_the_flights_is_the_recorded_one(name):
    page = (NOTES / "worked-examples.md").read_text().partition(FLIGHTS[name])[2]
    rows = re.findall(r"^\| (no scaling|CowClip.*?) \|(.*)\|$", page, re.MULTILINE)[:3]
    settings = [("none", "none"), ("cowclip", "cowclip"), ("cowclip", "none")]
    runs = read_results(RECORDED / "flights-3M")
    auc = {
        (run.rule, run.clip, run.batch_size): run.auc
        for run in runs
        if run.data == name and run.seed == 1
    }
    for (_, cells), setting in zip(rows, settings, strict=True):
        for cell, batch in zip(cells.split("|"), (512, 4096, 16_384), strict=True):
            if cell.strip():
                assert cell.strip() == f"{100 * auc[(*setting, batch)]:.2f}"


def test_the_losses_by_steps_name_their_folders():
    page = (NOTES / "robustness-results.md").read_text()
    (command,) = re.findall(r"^python examples/loss_by_steps.py ((?:.*\\\n)*.*)$", page, re.M)
    folders = command.replace("\\\n", " ").split()
    assert sorted(folders) == sorted(f"benchmarks/results/experiments/{name}" for name in STEPS)


def test_every_variant_with_searched_rates_is_there():
    runs = read_results(RECORDED / "movielens-cuts-searched")
    assert len({run.data for run in runs}) == 6 and len(runs) == 6 * 8 * 3
