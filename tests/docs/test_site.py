"""The built site: whole, readable without a network, and its search finds things."""

import os
import re
import shutil
import subprocess
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from markdown_pages import ROOT

SITE = ROOT / "build/docs"
SOURCES = (
    "docs/**/*",
    "containers/README.md",
    "cowclip_merlin/**/*.py",
    "models/*.py",
    "workflows/**/*.py",
    "experiments/**/*.py",
)
LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


@pytest.fixture(scope="module")
def site():
    if not (SITE / "index.html").is_file():
        pytest.skip("the site is not built: make docs")
    built = (SITE / "index.html").stat().st_mtime
    sources = [file for pattern in SOURCES for file in ROOT.glob(pattern)]
    if any(file.stat().st_mtime > built for file in sources):
        pytest.skip("the site is older than its sources: make docs")
    return SITE


class SitePage(HTMLParser):
    """Identifiers, links, and what the page loads."""

    def __init__(self, file):
        super().__init__()
        self.ids, self.links, self.loads, self.tags = set(), [], [], []
        self.feed(file.read_text())

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append(tag)
        self.ids.add(attrs.get("id"))
        if tag == "a" and "href" in attrs:
            self.links.append(attrs["href"])
        if tag in LOADS and attrs.get(LOADS[tag]):
            self.loads.append(attrs[LOADS[tag]])


page_of = cache(SitePage)


def html_files(site):
    return sorted(site.rglob("*.html"))


def test_every_page_is_there(site):
    pages = {p.stem for p in ROOT.glob("docs/*.md")}
    assert pages <= {p.stem for p in site.glob("*.html")}


def test_nothing_is_loaded_from_the_network(site):
    for file in html_files(site):
        for target in page_of(file).loads:
            assert not urlsplit(target).netloc, f"{file.name} loads {target}"
    for style in site.rglob("*.css"):
        assert not re.search(r"(url\(['\"]?|@import\s+['\"]?)(https?:)?//", style.read_text()), (
            style
        )


def test_every_link_leads_somewhere(site):
    for file in html_files(site):
        for link in page_of(file).links + page_of(file).loads:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            assert target.is_file(), f"{file.relative_to(site)}: {link}"
            if parts.fragment and target.suffix == ".html":
                assert unquote(parts.fragment) in page_of(target).ids, f"{file.name}: {link}"


def test_equations_are_mathml_with_their_numbers(site):
    method = (site / "method.html").read_text()
    assert method.count('display="block"') == 10
    assert [f"<span>({n})</span>" in method for n in range(1, 10)] == [True] * 9
    assert "\\tag" not in method and "\\lVert" not in method


def test_names_in_the_code_lead_to_the_line(site):
    links = page_of(site / "method.html").links
    link = next(x for x in links if x.startswith("source/cowclip_merlin/clip.py.html#line-"))
    number = int(link.rpartition("-")[2])
    lines = (ROOT / "cowclip_merlin/clip.py").read_text().splitlines()
    assert lines[number - 1].startswith("def cowclip_factor(")


def test_the_reference_has_signatures_and_docstrings(site):
    api = re.sub(r"<[^>]+>", "", (site / "api.html").read_text())
    assert "cowclip_merlin.CowClip(embedding_optimizer='adam'" in api
    assert "lower bound of the row norm, per coordinate" in api


def browser(page, folder):
    """The page as it is after its scripts have run."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no browser here: neither chromium nor google-chrome")
    flags = [
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={folder}", "--virtual-time-budget=5000", "--dump-dom",
    ]  # fmt: skip
    done = subprocess.run(
        [program, *flags, page], capture_output=True, text=True, timeout=300,
        env={**os.environ, "HOME": str(folder)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.system
@pytest.mark.parametrize(
    ("words", "page"), [("threshold", "method.html"), ("movielens", "own-data.html")]
)
def test_the_search_finds_a_page(site, words, page, tmp_path):
    found = browser(f"{Path(site, 'search.html').as_uri()}?q={words}", tmp_path)
    results = re.search(r'<ul [^>]*class="search">.*?</ul>', found, re.DOTALL)
    assert results, "no list of results"
    assert page in results.group()
