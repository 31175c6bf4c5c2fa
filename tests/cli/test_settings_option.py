"""`cowclip train --settings`: which value wins, and what a wrong file says."""

import hypothesis
import pytest
from hypothesis import strategies as st

from cowclip_merlin import choices
from cowclip_merlin.cli import build_parser
from cowclip_merlin.cli.train import settings_from_args
from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.tuning.settings_file import read_settings, write_settings
from cowclip_merlin.scaling import RULES
from cowclip_merlin.training.run_settings import RunSettings

TRAIN = ["train", "DATA", "--out", "RUN"]
WHOLE = """
model: dcn
batch_size: 512
rule: sde
clip: cowclip
mlp: [16, 8]
jit_compile: true
l2: 1e-5
r: 2
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text(WHOLE)
    return str(path)


def settings(*words):
    return settings_from_args(build_parser().parse_args([*TRAIN, *words]))


def test_the_file_gives_what_no_option_gives(file):
    wanted = {"model": "dcn", "batch_size": 512, "rule": "sde", "clip": "cowclip"}
    rates = {"l2": 1e-5, "r": 2.0}
    found = settings("--settings", file)
    assert found == RunSettings(
        **wanted, mlp=(16, 8), jit_compile=True, overrides=rates, update="exact"
    )


@pytest.mark.parametrize("before", [True, False])
def test_an_option_wins_wherever_it_stands_even_with_its_default(file, before):
    options = ["--rule", "cowclip", "--l2", "0", "--mlp", "4", "--no-jit-compile", "--model", "dcn"]
    words = ["--settings", file]
    found = settings(*options, *words) if before else settings(*words, *options)
    assert (found.rule, found.overrides["l2"], found.mlp) == ("cowclip", 0.0, (4,))
    assert not found.jit_compile and found.batch_size == 512


def test_a_rate_of_the_file_goes_with_the_clip_that_an_option_replaces(file):
    assert settings(f"--settings={file}", "--clip", "none").overrides == {"l2": 1e-5}
    with pytest.raises(InputError, match=r"--r has no effect.* none"):
        settings("--settings", file, "--clip", "none", "--r", "3")


def test_what_neither_gives_has_its_default(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text("epochs: 2")
    found = settings("--settings", str(path))
    assert (found.model, found.update, found.epochs) == ("deepfm", "exact", 2)
    path.write_text("model: dcn")
    assert settings("--settings", str(path), "--batch-size", "8").model == "dcn"


def test_an_option_may_give_what_a_value_of_the_file_needs(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text("validation_split: last\ninitial_accumulator: 1e-3")
    words = ["--model", "dcn", "--batch-size", "8", "--settings", str(path)]
    found = settings(*words, "--validation-fraction", "0.2", "--optimizer", "adagrad")
    assert (found.validation_split, found.overrides) == ("last", {"initial_accumulator": 1e-3})
    with pytest.raises(InputError, match=r"initial_accumulator.*Adagrad"):
        settings(*words, "--validation-fraction", "0.2")


@hypothesis.given(st.data())
def test_a_written_file_gives_its_settings(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("file") / "settings.yaml"
    known = {
        "model": st.sampled_from(choices.MODELS),
        "rule": st.sampled_from(tuple(RULES)),
        "clip": st.sampled_from((None, "none", "cowclip")),
        "batch_size": st.integers(1, 2**31),
        "seed": st.integers(0, 2**32 - 1),
        "jit_compile": st.booleans(),
        "mlp": st.lists(st.integers(1, 999), min_size=1, max_size=3).map(tuple),
        "overrides": st.dictionaries(
            st.sampled_from(["embedding_lr", "l2", "init_std"]), st.floats(0, 1e9)
        ),
    }
    made = RunSettings(**{name: data.draw(values) for name, values in known.items()})
    write_settings(path, made, comment="made by a test")
    assert settings("--settings", str(path)) == made
    assert {"tables", "precision", "update"} <= read_settings(path).keys()
