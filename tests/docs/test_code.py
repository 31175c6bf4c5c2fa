"""The code on the pages runs, and command lines mean something.

A block under `<!-- not run by the tests: REASON -->` is compiled, or parsed, but not run.
"""

import re
import shutil

import pytest
import yaml
from commands import MOST, check, lines, run
from markdown_pages import PAGES, ROOT, blocks, inline, name
from sybil import Document
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser
from sybil.region import Lexeme
from tiny_logs import write_logs

MARK = re.compile(r"<!-- not run by the tests: \S.+? -->\s*\Z")
BATCH = re.compile(r"((?:RunSettings|settings_for)\([^)]*\bbatch_size=)\d+")
BY_HAND = re.compile(r"^\$?\s*(cowclip|\$run|python|make|pip|docker) ", re.MULTILINE)


def is_run(example):
    return not MARK.search(example.document.text[: example.start])


def python(example):
    if is_run(example):
        small = BATCH.sub(rf"\g<1>{MOST['--batch-size']}", example.parsed)
        example.parsed = Lexeme(small, example.parsed.offset, example.parsed.line_offset)
        PythonEvaluator()(example)
    else:
        compile(example.parsed, example.path, "exec")


def bash(example):
    for words in lines(example.parsed):
        check(words)
        if is_run(example):
            run(words)


PARSERS = (CodeBlockParser("python", python), CodeBlockParser("bash", bash))


WITH_CODE = [page for page in PAGES if re.search("^```(python|bash)$", page.read_text(), re.M)]


@pytest.mark.system
@pytest.mark.parametrize("page", WITH_CODE, ids=name)
def test_the_code_of_a_page_runs(page, data, log, tmp_path, monkeypatch):
    document = Document.parse(str(page), *PARSERS)
    examples = list(document.examples())
    assert examples
    monkeypatch.chdir(tmp_path)
    write_logs(log)
    if "--out DATA" not in document.text:
        shutil.copytree(data, "DATA")
    for example in examples:
        example.evaluate()


@pytest.mark.parametrize("page", PAGES[1:], ids=name)
def test_no_command_hides_in_a_block_without_a_language(page):
    fences = [block for block in blocks(page) if block.type == "fence"]
    assert not [f.content for f in fences if f.info != "bash" and BY_HAND.search(f.content)]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "```yaml" in page.read_text()], ids=name
)
def test_yaml_on_a_page_can_be_read(page):
    found = [b.content for b in blocks(page) if b.type == "fence" and b.info == "yaml"]
    assert found and all(yaml.safe_load(text) for text in found)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_within_the_text_are_right(page):
    for token in inline(page):
        if token.type == "code_inline" and re.match(
            "(cowclip .*--|python .*py|make )", token.content
        ):
            for words in lines(token.content):
                check(words)


def test_the_readme_opens_with_commands_that_exist():
    first = next(block for block in blocks(ROOT / "README.md") if block.type == "fence")
    assert [words[0] for words in lines(first.content)] == ["make"] * 3
    for words in lines(first.content):
        check(words)


@pytest.mark.parametrize(
    "line",
    ["cowclip train DATA", "cowclip trane", "python no/such.py", "make coffee", "rm -rf /",
     "cowclip train DATA --out R --model deepfn --batch-size 4"],
)  # fmt: skip
def test_a_wrong_command_is_noticed(line):
    with pytest.raises((SystemExit, ValueError, AssertionError)):
        for words in lines(line):
            check(words)
