"""The headline: what it says of made-up numbers, and what it leaves open."""

from dataclasses import replace

import pytest
from html_page import Page
from made_results import MAIN, SEEDS, judged, make_results, rules_table

from cowclip_merlin.experiments.report import write_report
from cowclip_merlin.experiments.report.headline import headline
from cowclip_merlin.experiments.report.results_folder import read_results_folder
from cowclip_merlin.experiments.report.table_view import MINUS
from cowclip_merlin.experiments.report.verdicts import auc_cells, paper_effect, reference_cell
from cowclip_merlin.experiments.results.results_csv import read_results, write_results
from cowclip_merlin.experiments.tables.table import Cell, Table, mean_cell


def headline_of(folder, *tables):
    return headline(read_results_folder(make_results(folder, tables=tables, figures_too=False)))


@pytest.mark.parametrize(
    ("cowclip", "other", "word"),
    [
        ((78.9, 78.95, 78.9), (78.6, 78.2, 77.5), "seen"),
        ((78.9, 78.95, 78.5), (78.6, 78.2, 77.5), "seen in part"),
        ((78.9, 78.95, 78.9), (78.6, 78.9, 77.5), "seen in part"),
        ((78.9, 78.4, 78.3), (78.6, 78.2, 77.5), "not seen"),
        ((78.9, 78.95, 78.9), (78.6, 78.9, 78.9), "not seen"),
    ],
)
def test_the_headline_follows_the_verdicts(tmp_path, cowclip, other, word):
    table = rules_table(cowclip=cowclip, other=other)
    assert headline_of(tmp_path, table).conclusion == word


def test_the_headline_counts_and_names_the_largest_loss_and_gain(tmp_path):
    sentences = " ".join(headline_of(tmp_path, rules_table()).sentences)
    assert "holds (no worse than the reference), 3 of 3 do so here: 1 better, 2 within" in sentences
    assert "falls, 4 of 4 do so here: 4 worse, 0 within noise, 0 better." in sentences
    loss = f"{MINUS}1.40 AUC points, in the paper {MINUS}0.45 (no scaling at x8 = 2,048, Table 2)"
    assert f"Largest loss: {loss}" in sentences
    assert "Largest gain: +0.05 AUC points, in the paper +0.21 (CowClip at x4" in sentences
    assert "12 runs with 3 seeds, 1 diverged, 12 minutes" in sentences


def test_a_diverged_run_counts_as_a_loss(tmp_path):
    found = headline_of(tmp_path, rules_table(other=(78.9, 78.9, 78.95)))
    assert "1 of 4 does so here" in " ".join(found.sentences)


def test_one_seed_is_not_judged(tmp_path):
    single = Table(
        **MAIN, name="table2", columns=("1K", "8K"), reference="none at 1K",
        rows=(("none", (mean_cell([78.9], published=80.76), mean_cell([77.9], published=80.31))),),
    )  # fmt: skip
    found = headline_of(tmp_path / "r", single)
    assert found.conclusion == "not judged"
    assert "a verdict needs several seeds" in " ".join(found.sentences)
    write_report([tmp_path / "r"], tmp_path / "out.html")
    text = Page((tmp_path / "out.html").read_text(encoding="utf-8")).text
    assert "one seed, so no spread and no verdict" in text


def test_numbers_of_one_kind_can_miss_the_effect_but_not_show_it(tmp_path):
    base = mean_cell([78.9, 79.0], published=80.9)
    for name, mean, word in (("a", 78.9, "not seen"), ("b", 70.0, "not judged")):
        cells = (base, mean_cell([mean, mean + 0.1], published=80.0))
        table = replace(rules_table(), columns=("a", "b"), rows=judged([("x", cells)], base))
        assert headline_of(tmp_path / name, table).conclusion == word


def test_a_data_set_that_got_another_name_has_the_last_one(tmp_path):
    folder = make_results(tmp_path, data="first name", figures_too=False)
    runs = read_results(folder)
    write_results(folder, [*runs[:-1], replace(runs[-1], data="last name")])
    assert read_results_folder(folder).title == "last name"
    other = replace(runs[-1], data="other", data_fingerprint="0", config_hash="other")
    write_results(folder, [*runs, other])
    assert read_results_folder(folder).title == "first name, other"


def test_a_number_that_stands_in_two_tables_counts_once():
    table = rules_table()
    assert len(auc_cells([table, replace(table, name="table3")])) == len(auc_cells([table])) == 7


def test_lines_with_other_ids_are_no_reference():
    """Table 1: lines with fewer ids have a spread and no verdict, as the reference has."""
    base, other = mean_cell([78.9, 79.0], published=80.76), mean_cell([70.0, 70.1])
    ((_, (_, eight)),) = judged([("x", (base, mean_cell([77.9, 78.0], published=80.31)))], base)
    rows = (("all", (base, eight)), ("top 3", (other, other)))
    columns = ("x1 = 256", "x8 = 2,048")
    table = replace(rules_table("table1"), columns=columns, rows=rows, reference="all at batch 256")
    assert reference_cell(table) is base
    assert [cell.outcome for cell in auc_cells([table])] == ["worse"]


def test_only_aucs_make_the_headline():
    assert auc_cells([replace(rules_table(), unit="minutes")]) == []


def test_the_largest_gain_in_time_is_named(tmp_path):
    base, fast = mean_cell([80.0, 82.0]), mean_cell([9.0, 9.0])
    rows = judged([("exact", (base, fast))], base, higher_is_better=False)
    table = replace(rules_table("table5"), unit="minutes", columns=("x1", "x8"), rows=rows)
    times = headline_of(tmp_path / "a", table).sentences
    assert any("9.0 times as fast as no scaling at batch 256 (exact at x8" in s for s in times)
    slow = judged([("exact", (base, mean_cell([99.0, 99.5])))], base, higher_is_better=False)
    none = headline_of(tmp_path / "b", replace(table, rows=slow)).sentences
    assert not any("as fast" in s for s in none)


def test_differences_within_the_papers_own_spread_hold():
    base = mean_cell([78.9, 79.0], published=80.90)
    cells = (
        base,
        mean_cell([78.0, 78.1], published=80.87),
        mean_cell([78.0, 78.1], published=80.86),
    )
    table = replace(rules_table(), columns=("a", "b", "c"), rows=judged([("x", cells)], base))
    found = paper_effect(auc_cells([table]))
    assert [n.column for n in found.kept] == ["b"] and [n.column for n in found.lost] == ["c"]


def test_the_reference_is_the_cell_with_a_spread_and_no_verdict():
    assert reference_cell(rules_table()).published == 80.76
    without = replace(rules_table(), rows=(("x", (Cell(mean=1.0, spread=0.1, runs=len(SEEDS)),)),))
    assert reference_cell(without) is None
