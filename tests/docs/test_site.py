"""The built site: whole, and readable without a network."""

import re
from functools import cache
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest
from markdown_pages import ROOT

SITE = ROOT / "build/docs"
SOURCES = (
    "docs/**/*",
    "containers/README.md",
    "benchmarks/not-adopted.md",
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
    assert method.count('display="block"') == 11
    assert [f"<span>({n})</span>" in method for n in range(1, 11)] == [True] * 10
    assert "\\tag" not in method and "\\lVert" not in method


def test_names_in_the_code_lead_to_the_line(site):
    links = page_of(site / "method.html").links
    link = next(x for x in links if x.startswith("source/cowclip_merlin/clip.py.html#line-"))
    number = int(link.rpartition("-")[2])
    lines = (ROOT / "cowclip_merlin/clip.py").read_text().splitlines()
    assert lines[number - 1].startswith("def cowclip_factor(")


def test_the_reference_has_signatures_and_docstrings(site):
    api = re.sub(r"<[^>]+>", "", (site / "reference.html").read_text())
    assert "cowclip_merlin.CowClip(embedding_optimizer='adam'" in api
    assert "lower bound of the row norm, per coordinate" in api
