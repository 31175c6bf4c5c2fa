"""Every link between pages, to files, and to names in the code leads somewhere."""

import pytest
from definitions import line_of
from markdown_pages import PAGES, ROOT, anchors, links, name


def relative(page):
    return [(to, *rest) for to, *rest in links(page) if not to.startswith(("http:", "https:"))]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files_headings_and_definitions(page):
    assert not [target for target, *_ in links(page) if target.startswith("http:")]
    for target, text, is_code in relative(page):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists() and file.is_relative_to(ROOT), target
        if anchor:
            assert anchor in anchors(file), f"{target}: no such heading"
        if is_code and target.endswith(".py") and not text.endswith(".py"):
            assert line_of(text, file), f"{text} is not defined in {target}"


def test_every_page_can_be_reached_from_the_index():
    index = ROOT / "docs/index.md"
    linked = {target.partition("#")[0] for target, *_ in relative(index)}
    assert {p.name for p in ROOT.glob("docs/*.md")} - {"index.md"} <= linked


def test_the_records_that_the_manual_draws_from_stay_few():
    files = [file for file in (ROOT / "benchmarks/results").rglob("*") if file.is_file()]
    assert len(files) <= 35
    assert sum(file.read_bytes().count(b"\n") for file in files) <= 3000


def test_every_step_of_the_method_says_where_it_lives():
    links_to_code = [to for to, _, code in relative(ROOT / "docs/method.md") if code]
    assert len(links_to_code) > 20
    assert {"clip.py", "unique_rows.py", "scaling.py", "rows.py"} <= {
        to.rpartition("/")[2] for to in links_to_code
    }


def test_a_name_that_is_not_defined_is_noticed(tmp_path):
    file = tmp_path / "a.py"
    file.write_text("X: int = 1\n\nclass A:\n    def b(self): pass\n\ny = A().c\n")
    assert [line_of(n, file) for n in ("X", "A.b", "A", "y", "b", "A.c", "z")] == [
        1, 4, 3, 6, None, None, None,
    ]  # fmt: skip
