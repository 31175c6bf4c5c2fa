"""The code on the pages runs, and command lines mean something.

A block under `<!-- not run by the tests: REASON -->` is compiled, or parsed, but not run.

`print(NUMBER)  # about 0.79` claims a number, which must come within `TOLERANCE`. So a block that
calls `fit` says what the reader will see. Runs on log.csv must learn: it has tastes for that.
"""

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
import yaml
from commands import MOST, check, lines, run
from markdown_pages import PAGES, ROOT, blocks, inline, name
from sybil import Document
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser
from sybil.region import Lexeme
from tiny_logs import write_logs

from cowclip_merlin.workflows import PreparedData

MARK = re.compile(r"<!-- not run by the tests: \S.+? -->\s*\Z")
BATCH = re.compile(r"((?:RunSettings|settings_for)\([^)]*\bbatch_size=)\d+")
CLAIM = re.compile(r"^print\((.+)\)  # about ([\d.]+)$", re.MULTILINE)
TOLERANCE = 0.015  # of an AUC: three seeds differ by less
LEAST = 0.8  # of an AUC, where 0.5 is a guess
BY_HAND = re.compile(r"^\$?\s*(cowclip|\$run|python|make|pip|docker) ", re.MULTILINE)


def is_run(example):
    return not MARK.search(example.document.text[: example.start])


def python(example):
    if is_run(example):
        small = BATCH.sub(rf"\g<1>{MOST['--batch-size']}", example.parsed)
        small = CLAIM.sub(r"_check_claim(\1, \2)", small)
        example.namespace["_check_claim"] = check_claim
        example.parsed = Lexeme(small, example.parsed.offset, example.parsed.line_offset)
        PythonEvaluator()(example)
    else:
        compile(example.parsed, example.path, "exec")


def check_claim(value, claimed):
    assert abs(value - claimed) < TOLERANCE, f"{value}, but the page says {claimed}"


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
    for metrics in Path().glob("*/metrics.csv"):
        data = json.loads(metrics.with_name("config.json").read_text()).get("data_path")
        if data and PreparedData.load(data).label == "y":  # of log.csv
            assert pd.read_csv(metrics).filter(regex="_auc$").iloc[-1].max() > LEAST, metrics


def trainings(page):
    """The blocks of Python on the page that the tests run, and that train with Keras's `fit`."""
    document = Document.parse(str(page), CodeBlockParser("python", python))
    found = [example for example in document.examples() if is_run(example)]
    return [str(x.parsed) for x in found if re.search(r"^(\w+ = )?model\.fit\(", x.parsed, re.M)]


def test_every_training_says_what_the_reader_will_see():
    blocks = [block for page in PAGES for block in trainings(page)]
    assert len(blocks) == 3
    assert all(CLAIM.search(block) for block in blocks), blocks


def test_a_wrong_claim_is_noticed():
    check_claim(0.784, 0.79)
    with pytest.raises(AssertionError, match=r"0\.497.*0\.79"):
        check_claim(0.497, 0.79)


@pytest.mark.system
@pytest.mark.thorough
@pytest.mark.parametrize(("batch", "low", "high"), [(1024, 0.79, 0.81), (8192, 0.62, 0.69)])
def test_adam_alone_does_on_the_readmes_clicks_what_it_says(batch, low, high):
    """What the large batch is compared with."""
    (block,) = trainings(ROOT / "README.md")
    block, optimizers = re.subn(
        r"cc\.CowClip\.of\(.*\)  #", "keras.optimizers.legacy.Adam(1e-3)  #", block
    )
    block, batches = re.subn("batch_size=8192", f"batch_size={batch}", block)
    assert (optimizers, batches) == (1, 1)
    names = {}
    exec(block, names)
    assert low < names["fitted"].history["val_auc"][-1] < high


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_in_the_text_are_right_and_none_hides(page):
    """In a block without a language, a command would not be looked at; the README shows output."""
    fences = [block for block in blocks(page) if block.type == "fence"]
    hidden = [f.content for f in fences if f.info != "bash" and BY_HAND.search(f.content)]
    assert not hidden or page == PAGES[0]
    assert all(yaml.safe_load(f.content) for f in fences if f.info == "yaml")
    for token in inline(page):
        if token.type == "code_inline" and re.match(
            "(cowclip .*--|python .*py|make )", token.content
        ):
            for words in lines(token.content):
                check(words)


def test_the_readme_opens_with_commands_that_exist():
    first = next(block for block in blocks(ROOT / "README.md") if block.type == "fence")
    assert [words[:2] for words in lines(first.content)][:2] == [
        ["pip", "install"], ["cowclip", "fit"],
    ]  # fmt: skip
    for words in lines(first.content):
        check(words)


@pytest.mark.parametrize(
    "line",
    ["cowclip train DATA", "cowclip trane", "python no/such.py", "make coffee", "rm -rf /",
     "python benchmarks/days.py --weeks 2", "python benchmarks/step.py dance --rounds 1",
     "cowclip train DATA --out R --model deepfn --batch-size 4"],
)  # fmt: skip
def test_a_wrong_command_is_noticed(line):
    with pytest.raises((SystemExit, ValueError, AssertionError)):
        for words in lines(line):
            check(words)


def test_the_trainer_of_systemd_and_that_of_kubernetes_start():
    """The files that docs/production.md links."""
    unit = (ROOT / "examples/online/trainer.service").read_text()
    (start,) = re.findall(r"^ExecStart=\S+/(cowclip .*)$", unit, re.MULTILINE)
    stateful = yaml.safe_load((ROOT / "examples/online/trainer.yaml").read_text())
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    for words in (*lines(start), ["cowclip", *container["args"]]):
        check(words)
    assert stateful["spec"]["replicas"] == 1, "two would write the same RUN"
    (mount,) = container["volumeMounts"]
    run = container["args"][container["args"].index("--out") + 1]
    assert run.startswith(mount["mountPath"] + "/")
