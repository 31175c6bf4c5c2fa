"""config.pbtxt, read by protobuf, and the settings that decide it; what the command refuses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_config import parse

from cowclip_merlin import compat
from cowclip_merlin.cli import main
from cowclip_merlin.serving.triton.repository import RepositorySettings, config_text

SURROGATES = st.characters(exclude_categories=["Cs"])
COLUMNS = st.lists(st.text(SURROGATES, min_size=1), min_size=1, max_size=8, unique=True)


@given(COLUMNS, st.integers(0, 8), st.integers(1, 2**31 - 1), st.sampled_from(["ctr", "a-b_1.x"]))
def test_the_text_says_what_the_layout_is(columns, split, batch, name):
    categorical, continuous = columns[:split], columns[split:]
    settings = RepositorySettings(model_name=name, max_batch_size=batch)
    kinds = {"categorical": categorical, "continuous": continuous, "outputs": ["probability"]}
    found = parse(config_text(kinds, settings))
    assert (found.name, found.backend, found.max_batch_size) == (name, "python", batch)
    inputs = [(each.name, each.data_type, list(each.dims)) for each in found.input]
    assert inputs == [(c, 13, [1]) for c in categorical] + [(c, 12, [1]) for c in continuous]
    (output,) = found.output
    assert (output.name, output.data_type, list(output.dims)) == ("probability", 11, [1])
    assert found.HasField("dynamic_batching")
    assert [(each.kind, each.count) for each in found.instance_group] == [(2, 1)]


@given(COLUMNS, st.integers(0, 8), st.integers(0, 8))
def test_lists_have_values_and_offsets(columns, first, second):
    """With the names, types and shapes of `_add_model_param` in Merlin Systems' export.py."""
    categorical, continuous, lists = columns[:first], columns[first:][:second], ["l", "l l"]
    kinds = {"categorical": categorical, "continuous": continuous, "lists": lists}
    kinds |= {"vectors": {"v": 7}, "outputs": ["y", "t"]}
    found = parse(config_text(kinds, RepositorySettings()))
    assert found.max_batch_size == 0 and not found.HasField("dynamic_batching")
    inputs = [(each.name, each.data_type, list(each.dims)) for each in found.input]
    expected = [(c, 13, [-1, 1]) for c in categorical] + [(c, 12, [-1, 1]) for c in continuous]
    for name in lists:
        expected += [(f"{name}__values", 13, [-1]), (f"{name}__offsets", 8, [-1])]
    assert inputs == [*expected, ("v", 11, [-1, 7])]
    outputs = [(each.name, each.data_type, list(each.dims)) for each in found.output]
    assert outputs == [("y", 11, [-1, 1]), ("t", 11, [-1, 1])]


@pytest.fixture
def export(trained_table, tmp_path, capsys):
    """Runs the command; returns its exit code and what it wrote to both streams."""

    def run(*words, data="DATA", out="REPO"):
        paths = [str(trained_table / "RUN"), str(trained_table / data)]
        code = main(["export", *paths, "--out", str(tmp_path / out), *words])
        return code, capsys.readouterr()

    return run


@pytest.mark.thorough
def test_nothing_is_left_of_an_export_that_fails(export, tmp_path, monkeypatch):
    def full(*_, **__):
        raise compat.tensorflow().errors.ResourceExhaustedError(None, None, "No space left")

    monkeypatch.setattr(compat.tensorflow().saved_model, "save", full)
    code, told = export("--triton")
    assert code == 2 and "no space left" in told.err and not list(tmp_path.iterdir())
