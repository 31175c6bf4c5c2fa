"""The page in headless Chromium; skipped where there is none."""

import chromium
import pytest

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def browser():
    program = chromium.find()
    if program is None:
        pytest.skip("no Chromium or Chrome on this machine")
    one = chromium.Chromium(program)
    yield one
    one.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_in_a_browser(browser, file, width, scheme):
    browser.open(file, width=width, scheme=scheme)
    assert browser.complaints() == []
    assert browser.requests() == [file.as_uri()]
    sizes = browser.value(
        "[...document.querySelectorAll('figure svg')].map(svg => svg.getBoundingClientRect())"
        ".map(box => [box.width, box.height])"
    )
    assert len(sizes) == 6 and all(w > 300 and h > 150 for w, h in sizes), sizes
    inked = browser.value(
        "[...document.querySelectorAll('figure svg')].map(svg => svg.getBBox().width)"
    )
    assert all(width > 0 for width in inked), inked
    assert browser.value("document.documentElement.scrollWidth") <= width


def test_the_browsers_complaints_are_heard(browser, tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text('<script>console.error("x"); undefined_function()</script><img src="gone.png">')
    browser.open(bad)
    assert len(browser.complaints()) == 3
    assert len(browser.requests()) == 2


def test_it_can_be_printed_with_every_run(browser, file):
    browser.open(file)
    paper = browser.pdf()
    assert paper.startswith(b"%PDF") and len(paper) > 50_000
    browser.call("Emulation.setEmulatedMedia", media="print")
    opened = browser.value(
        "[...document.querySelectorAll('table.runs')].map(table => table.offsetHeight)"
    )
    assert len(opened) == 2 and all(height > 100 for height in opened)


def test_no_table_is_wider_than_a_sheet(browser, file):
    sheet = (210 - 2 * 14) * 96 / 25.4
    browser.open(file, width=int(sheet))
    browser.call("Emulation.setEmulatedMedia", media="print")
    widths = browser.value(
        "[...document.querySelectorAll('table:not(.runs), figure svg')]"
        ".map(one => one.getBoundingClientRect().width)"
    )
    assert len(widths) == 6 + 6 and max(widths) <= sheet, widths


def test_a_closed_list_of_runs_stays_closed_on_a_screen(browser, file):
    browser.open(file)
    assert browser.value("document.querySelector('table.runs').checkVisibility()") is False
