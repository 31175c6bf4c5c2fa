"""The page: what is on it, and what its headline says of made-up numbers."""

import base64
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from made_results import AWKWARD, MAIN, judged, make_results, rules_table

from cowclip_merlin.cli import main
from cowclip_merlin.experiments.results import read_results, write_results, write_tuned
from cowclip_merlin.experiments.tables import Table, mean_cell

MINUS = "\N{MINUS SIGN}"
VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """Checks that elements nest, and keeps tags, attributes and text."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.words = [], [], []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, (tag, self.getpos())

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    def count(self, tag):
        return sum(name == tag for name, _ in self.tags)


def page_of(results, file, *more):
    """The page that `cowclip report` makes of results folders."""
    assert main(["report", *map(str, results), "--out", str(file), *more]) == 0
    return file.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def html(file):
    return file.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def page(html):
    return Page(html)


def test_what_the_page_shows(page, html):
    """Tables and figures in their places, verdicts, notes, and what was not run."""
    assert page.count("figure") == page.count("img") == 6
    assert [a["class"] for t, a in page.tags if t == "table"].count("numbers") == 4
    ids = {a["id"] for _, a in page.tags if "id" in a}
    for name in (
        "d1-table2",
        "d1-table5",
        "d1-figure-figure1",
        "d1-figure-table2_auc",
        "d2-table2",
    ):
        assert name in ids
    for title in ("Table 5: minutes of training by batch", "figure4 & what it shows"):
        assert title in page.text
    glance = page.text.partition("tables at a glance")[2]
    assert "Table 5: minutes of training by batch 32 0" in glance
    assert "DeepFM 1 2 4 8 1" in glance
    at = [html.index(f'id="d1-{name}"') for name in ("table2", "figure-table2_auc", "table5")]
    assert at == sorted(at)
    assert html.index('id="d1-figure-figure1"') > at[-1]
    assert f"78.60 ±0.02 {MINUS} worse paper 80.31" in page.text
    assert "78.95 ±0.02 + better paper 80.97" in page.text
    assert "78.90 ±0.02 the reference paper 80.76" in page.text
    assert "not run a paper 80.46 diverged paper 80.40 78.00 a 1 seed" in page.text
    per_table = page.text.count("A note below the table.")
    assert per_table == 2, "one table in each of the two folders"
    assert page.text.count("a Misprint in the paper.") == per_table
    assert page.text.count("Misprint in the paper.") == per_table
    for text in (
        "cowclip experiment table2 --data DATA --out RESULTS --seeds 3",
        "cowclip experiment figure1 --data DATA --out RESULTS",
        "linear at x2: not run yet",
        "AMD EPYC, 2 cores",
        "2026-01-01T10:00:00+00:00 to 2026-01-03T10:00:00+00:00",
        "2.5 to 4.5",
        "numpy 1.26.4, 1.26.3; pandas 1.5.3",
        "none-2048-3",
    ):
        assert text in page.text
    listed = page.text.partition("Experiments that were not run")[2].partition("second log")[0]
    for title in ("Table 6: five clips", "Table 12: what each part"):
        assert title in listed
    assert "Table 2: scaling" not in listed


def test_folders_of_one_data_set_are_told_apart_by_their_paths(results, tmp_path):
    first, other = results
    same = shutil.copytree(first, tmp_path / "same")
    page = Page(page_of([first, same, other], tmp_path / "page.html"))
    title = read_results(first)[-1].data
    for path in (first, same):
        assert f"{title} ({path})" in page.text
    assert f"({other})" not in page.text


def test_values_that_sweeps_chose_are_shown(spare, tmp_path):
    fingerprint = read_results(spare)[-1].data_fingerprint
    write_tuned(spare, f"{fingerprint} 9 rows", "cowclip", {"r": 0.1, "l2": 1.7130817e-4})
    write_tuned(spare, "of other data", "cowclip", {"r": 77.0})
    text = page_of([spare], tmp_path / "page.html")
    assert "<dt>base values that sweeps chose</dt><dd>cowclip: r 0.1, l2 0.000171</dd>" in text
    write_tuned(spare, f"{fingerprint} 5 rows", "baseline", {"l2": 0.5})
    sizes = page_of([spare], tmp_path / "sizes.html")
    assert "cowclip (9 rows): r 0.1, l2 0.000171; baseline (5 rows): l2 0.5<" in sizes
    assert "77" not in text.partition("<dt>base values that")[2].partition("</dl>")[0]


def test_the_page_is_safe(html, page):
    """It loads nothing, every link has a target, and names are text, not markup."""
    for tag, attributes in page.tags:
        assert tag not in ("script", "iframe", "object", "embed", "base"), tag
        for name in ("src", "href", "data", "srcset", "action"):
            value = attributes.get(name, "#")
            assert value.startswith(("#", "data:,", "data:image/svg+xml;base64,")), (tag, value)
        assert not any(name.startswith("on") for name in attributes)
    assert "@import" not in html and "url(" not in html
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    named = {i for _, a in page.tags for i in a.get("aria-labelledby", "").split()}
    links = {a["href"][1:] for _, a in page.tags if a.get("href", "").startswith("#")}
    assert named | links <= set(ids)
    assert "<script" not in html
    assert AWKWARD in page.text
    assert "figure4: lines <fall>" in [a.get("alt") for _, a in page.tags]
    assert "<code>r</code> stays &amp; is &lt; 2." in html


def test_a_hostile_drawing_stays_in_an_image(spare, tmp_path):
    """Where no script runs and nothing is loaded."""
    hostile = '<script>1</script><g onload="x()" style="\\75rl(//e)"/><image href="//e.org/a"/>'
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9">{hostile}</svg>'
    (spare / "figures/figure6.svg").write_text(svg)
    html = page_of([spare], tmp_path / "page.html")
    images = [attributes["src"] for tag, attributes in Page(html).tags if tag == "img"]
    drawn = [base64.b64decode(each.partition(",")[2]).decode() for each in images]
    assert svg in drawn and "onload" not in html and "e.org" not in html
    assert not [tag for tag, _ in Page(html).tags if tag in ("script", "svg")]


def test_the_same_folders_make_the_same_page(results, html, tmp_path, capsys):
    assert page_of(results, tmp_path / "again.html") == html
    assert "2 results folders, 4 tables, 6 figures, 24 runs, " in capsys.readouterr().out
    assert [p.name for p in tmp_path.iterdir()] == ["again.html"]


def test_order_is_that_of_the_paper(tmp_path):
    names = ["updates2", "updates", "table12", "table9_avazu", "table9", "beyond"]
    tables = [rules_table(name) for name in names]
    make_results(tmp_path / "results", tables=tables, figures_too=False)
    html = page_of([tmp_path / "results"], tmp_path / "page.html")
    at = {name: html.index(f'id="d1-{name}"') for name in names}
    wanted = ["table9", "table9_avazu", "table12", "beyond", "updates", "updates2"]
    assert sorted(at, key=at.get) == wanted


@pytest.fixture
def spare(results, tmp_path):
    return shutil.copytree(results[0], tmp_path / "results")


def test_the_command_says_what_is_on_the_page(spare, tmp_path, capsys):
    out = tmp_path / "report.html"
    out.write_text("an older one")
    assert main(["report", str(spare), "--out", str(out)]) == 2
    assert "report.html: already exists" in capsys.readouterr().err
    assert out.read_text() == "an older one"
    assert main(["report", str(spare), "--out", str(out), "--overwrite"]) == 0
    assert "1 results folder, 3 tables, 6 figures, 12 runs" in capsys.readouterr().out
    assert out.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def headline_of(folder, *tables):
    """The conclusion and the words at the head of the page of a folder with these tables."""
    return head_of(make_results(folder / "results", tables=tables, figures_too=False))


def head_of(results):
    html = page_of([results], results.with_name("page.html"), "--overwrite")
    ((word, text),) = re.findall(r'<section class="headline ([\w-]+)">(.*?)</section>', html, re.S)
    return word.replace("-", " "), Page(text).text


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
    assert headline_of(tmp_path, rules_table(cowclip=cowclip, other=other))[0] == word


def test_the_headline_counts_and_names_the_largest_loss_and_gain(tmp_path):
    _, text = headline_of(tmp_path, rules_table())
    assert "holds (no worse than the reference), 3 of 3 do so here: 1 better, 2 within" in text
    assert "falls, 4 of 4 do so here: 4 worse, 0 within noise, 0 better." in text
    assert "All 7 AUCs that have a verdict" in text
    loss = f"{MINUS}1.40 AUC points, in the paper {MINUS}0.45 (no scaling at x8 = 2,048, Table 2)"
    assert f"Largest loss: {loss}" in text
    assert "Largest gain: +0.05 AUC points, in the paper +0.21 (CowClip at x4" in text
    assert "12 runs with 3 seeds, 1 diverged, 12 minutes" in text
    diverged = rules_table(other=(78.9, 78.9, 78.95))  # its last row counts as a loss
    assert "1 of 4 does so here" in headline_of(tmp_path, diverged)[1]


def test_one_seed_is_not_judged(tmp_path):
    single = Table(
        **MAIN, name="table2", columns=("1K", "8K"), reference="none at 1K",
        rows=(("none", (mean_cell([78.9], published=80.76), mean_cell([77.9], published=80.31))),),
    )  # fmt: skip
    word, text = headline_of(tmp_path, single)
    assert word == "not judged" and "a verdict needs several seeds" in text
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8")).text
    assert "one seed, so no spread and no verdict" in page


def test_numbers_of_one_kind_can_miss_the_effect_but_not_show_it(tmp_path):
    base = mean_cell([78.9, 79.0], published=80.9)
    for mean, word in ((78.9, "not seen"), (70.0, "not judged")):
        cells = (base, mean_cell([mean, mean + 0.1], published=80.0))
        table = replace(rules_table(), columns=("a", "b"), rows=judged([("x", cells)], base))
        assert headline_of(tmp_path, table)[0] == word


def test_a_data_set_that_got_another_name_has_the_last_one(tmp_path):
    folder = make_results(tmp_path / "results", data="first name", figures_too=False)
    runs = read_results(folder)
    write_results(folder, [*runs[:-1], replace(runs[-1], data="last name")])
    assert head_of(folder)[1].startswith("last name ")
    other = replace(runs[-1], data="other", data_fingerprint="0", config_hash="other")
    write_results(folder, [*runs, other])
    assert head_of(folder)[1].startswith("first name, other ")


def test_which_numbers_the_headline_counts(tmp_path):
    """No number twice, only AUCs, only lines with the ids of the reference, and what the paper
    says beyond its own spread."""
    table = rules_table()
    twice = headline_of(tmp_path / "twice", table, replace(table, name="table3"))[1]
    assert "All 7 AUCs that have a verdict" in twice
    minutes = headline_of(tmp_path / "minutes", replace(table, unit="minutes"))[1]
    assert "AUCs that have a verdict" not in minutes
    base, other = mean_cell([78.9, 79.0], published=80.76), mean_cell([70.0, 70.1])
    ((_, (_, eight)),) = judged([("x", (base, mean_cell([77.9, 78.0], published=80.31)))], base)
    rows = (("all", (base, eight)), ("top 3", (other, other)))
    columns = ("x1 = 256", "x8 = 2,048")
    fewer = replace(rules_table("table1"), columns=columns, rows=rows, reference="all at batch 256")
    text = headline_of(tmp_path / "fewer", fewer)[1]
    assert "All 1 AUCs that have a verdict: 0 better than the reference, 0 within noise, 1" in text
    assert f"Largest loss: {MINUS}1.00 AUC points, in the paper {MINUS}0.45 (all at x8" in text
    base = mean_cell([78.9, 79.0], published=80.90)
    others = (mean_cell([78.0, 78.1], published=published) for published in (80.87, 80.86))
    spread = replace(table, columns=("a", "b", "c"), rows=judged([("x", (base, *others))], base))
    text = headline_of(tmp_path / "spread", spread)[1]
    assert "0 of 1 do so here: 0 better, 0 within noise, 1 worse" in text  # 0.03 less holds
    assert "falls, 1 of 1 does so here" in text


def test_the_largest_gain_in_time_is_named(tmp_path):
    base = mean_cell([80.0, 82.0])
    for times, named in (([9.0, 9.0], True), ([99.0, 99.5], False)):
        rows = judged([("exact", (base, mean_cell(times)))], base, higher_is_better=False)
        table = replace(rules_table("table5"), unit="minutes", columns=("x1", "x8"), rows=rows)
        text = headline_of(tmp_path, table)[1]
        assert ("9.0 times as fast as no scaling at batch 256 (exact at x8" in text) == named
        assert ("as fast" in text) == named
