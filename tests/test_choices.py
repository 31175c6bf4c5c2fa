"""What a new clip may do and what not; `tests/architecture/test_additions.py` runs with one."""

import inspect
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import cowclip_merlin as cc
from cowclip_merlin import choices, clip, compat, kernels
from cowclip_merlin.cli import build_parser, main
from cowclip_merlin.errors import InputError
from cowclip_merlin.kernels import RowSettings
from cowclip_merlin.training import RunSettings

tf = compat.tensorflow()
SHARE = choices.Clip(settings=("r",))
W, IDS = np.ones((4, 2), np.float32), [1, 3]


@pytest.fixture
def add_clip(monkeypatch):
    """Register a clip as its author would: a function in `clip`, an entry in `choices.CLIPS`."""

    def add(name, entry, function):
        monkeypatch.setitem(clip.FUNCTIONS, name, function)
        monkeypatch.setattr(choices, "CLIPS", {**choices.CLIPS, name: entry})

    return add


@pytest.fixture
def share(add_clip):
    """A clip that multiplies every gradient by r."""
    add_clip("share", SHARE, lambda rows, settings: settings.r * tf.ones_like(rows.g[:, 0]))


def after_steps(optimizer, steps=1):
    """A table of ones after steps whose gradient is 1 in rows 1 and 3."""
    table = tf.Variable(W)
    for _ in range(steps):
        optimizer.catch_up(table, tf.constant(IDS))
        g = tf.IndexedSlices(tf.ones([2, 2]), tf.constant(IDS), W.shape)
        optimizer.apply_gradients([(g, table)])
    optimizer.flush()
    return table.numpy()


def sgd():
    return tf.keras.optimizers.legacy.SGD(1.0)


def train(data, run, *more):
    command = ["train", data, "--out", run, "--batch-size", 256, "--mlp", 8, "--epochs", 1, *more]
    return main([*map(str, command)])


def text_of_help(capsys):
    with pytest.raises(SystemExit):
        build_parser().parse_args(["train", "--help"])
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("update", ["dense", "lazy"])
def test_the_optimizer_uses_a_new_clip(share, update):
    optimizer = cc.CowClip(sgd(), clip="share", r=0.25, l2=0.0, update=update)
    assert after_steps(optimizer)[:, 0].tolist() == [1, 0.75, 1, 0.75]
    assert optimizer.mean_clip_factor.numpy() == 0.25
    assert optimizer.backend == "tensorflow"


def test_kernels_refuse_a_new_clip_that_they_lack(share):
    assert cc.CowClip(clip="share", update="lazy").backend == "tensorflow"
    with pytest.raises(InputError, match=r"backend=\"numba\" .*clip 'share'"):
        cc.CowClip(clip="share", update="lazy", backend="numba")
    for name in ("reference", "numba"):
        rows = np.ones((2, 3), np.float32)
        with pytest.raises(InputError, match=r"clip 'share'; .* cowclip"):
            kernels.load(name).clip_rows(rows, rows, np.ones(2, int), RowSettings(clip="share"))


def test_a_new_clip_says_whether_it_spares_absent_rows(add_clip):
    def half(rows, settings):
        return tf.fill(tf.shape(rows.cnt), 0.5)

    add_clip("half", choices.Clip(), half)
    with pytest.raises(InputError, match=r"exact.*'half'"):
        cc.CowClip(clip="half", update="exact")
    add_clip("half", choices.Clip(spares_absent_rows=True), half)
    exact, dense = (cc.CowClip(clip="half", update=u, l2=0.1) for u in ("exact", "dense"))
    assert exact.backend == "tensorflow"
    np.testing.assert_allclose(after_steps(exact, 3), after_steps(dense, 3), rtol=1e-6)
    with pytest.raises(InputError, match="'half'"):
        cc.CowClip(clip="half", update="exact", backend="numba")


def test_a_clip_that_spares_absent_rows_by_r_has_a_limit_for_l2(add_clip):
    entry = replace(SHARE, spares_absent_rows=True)
    add_clip("share", entry, lambda rows, settings: settings.r * tf.ones_like(rows.g[:, 0]))
    cc.CowClip(clip="share", update="exact", r=0.2, l2=0.1)
    with pytest.raises(InputError, match="2 \\* l2 <= r"):
        cc.CowClip(clip="share", update="exact", r=0.1, l2=0.1)


def test_a_new_clip_may_act_on_updates(add_clip):
    entry = choices.Clip(acts_on="update")
    add_clip("quarter", entry, lambda rows, settings: tf.fill(tf.shape(rows.update)[:1], 0.25))
    optimizer = cc.CowClip(sgd(), clip="quarter", l2=0.0)
    assert after_steps(optimizer)[:, 0].tolist() == [1, 0.75, 1, 0.75]


def test_settings_and_help_know_a_new_clip(share, data, tmp_path, capsys):
    assert "clippy, share (default: cowclip" in text_of_help(capsys)
    assert train(data, tmp_path / "run", "--model", "dcn", "--clip", "share", "--zeta", 1) == 2
    assert "--zeta has no effect" in capsys.readouterr().err
    assert train(data, tmp_path / "run", "--model", "dcn", "--clip", "none", "--r", 1) == 2
    assert "--clip cowclip or adaptive_field or share" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"unknown clip 'cow'; .*clippy, share;"):
        RunSettings(model="dcn", batch_size=8, clip="cow")


def test_builders_are_names_of_the_package():
    assert {name: getattr(cc.models, name) for name in choices.MODELS} == dict(cc.models.MODELS)
    with pytest.raises(KeyError):
        cc.models.MODELS["base"]


def test_the_defaults_of_thresholds_are_the_only_ones():
    signature = inspect.signature(cc.CowClip).parameters
    for name in choices.THRESHOLDS:
        default = getattr(RowSettings(), name)
        assert signature[name].default == getattr(cc.Hyperparameters(), name) == default


@pytest.mark.quick
@pytest.mark.system
def test_choices_import_nothing_heavy():
    code = (
        "import sys, cowclip_merlin.choices; assert not {'tensorflow', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
