"""What the core can do with only NumPy and numba, and what it says of the rest.

    python tests/packaging/core_alone.py [--hide]

Without --hide, only the wheel, NumPy and numba must be installed; with it, others are hidden.
"""

import contextlib
import io
import sys
from importlib.metadata import distributions, packages_distributions
from pathlib import Path

CORE = {"cowclip-merlin", "numpy", "numba", "llvmlite"}
COMMANDS = {
    "fit": "log.csv --label y --out nothing",
    "adopt": "TRAIN VALID --workflow WORKFLOW --out nothing",
    "serve": "RUN",
    "explain": "RUN",
    "generate": "--rows 9 --out nothing.txt",
    "prepare": "table log.csv --out nothing --label y --categorical a",
    "train": "DATA --out nothing",
    "evaluate": "RUN DATA",
    "score": "RUN log.csv --out nothing.csv",
    "export": "RUN DATA --out nothing",
    "bench": "",
    "experiment": "table2 --data DATA --out nothing",
    "sweep": "experiment.yaml --data DATA --out nothing",
    "tune": "DATA --out nothing",
    "inspect": "RUN",
    "report": "RESULTS --out nothing.html",
    "online replay": "log.csv --features f.yaml --model deepfm --batch-size 9 --out nothing",
    "online produce": "log.csv --features f.yaml --to nothing",
    "online join": "--impressions I --actions A --features f --to nothing --window 1 --state S",
    "online train": "--from LOG --features f.yaml --model deepfm --batch-size 9 --out nothing",
    "online rollback": "RUN --to 1",
    "online serve": "--from LOG",
    "online demo": "--work nothing",
}
LACKING = {
    "CTRClassifier", "CowClip", "RowWiseAdagrad", "diagnostics", "export", "fit", "importance",
    "load", "load_model", "models", "score", "training", "triton", "workflows",
}  # fmt: skip


def hide():
    """Make Python find none but the packages of the core."""
    for module, names in packages_distributions().items():
        if not CORE.intersection(names):
            sys.modules[module] = None


def check_wheel():
    """It has files that are no modules, and nothing beside the package; its import is cheap."""
    import cowclip_merlin

    assert not {"numpy", "numba"} & set(sys.modules)
    package = Path(cowclip_merlin.__file__).parent
    assert not (package.parent / "models").exists() and (package / "models/deepfm.py").exists()
    files = {"optimizer/row_updates/row_ops/row_ops.cc", "kernels/cuda/shared.h", "py.typed"}
    files |= {f"experiments/{name}.yaml" for name in ("cowclip", "monolith", "sweeps")}
    files |= {"kernels/cuda/step.cuh", "experiments/report/page.html", "workflows/prepare.py"}
    assert all((package / file).exists() for file in files)


def check_commands():
    """Each one is refused in one line, which names the extra, and its help is there."""
    from cowclip_merlin import cli

    names = set(names_of(cli.build_parser()))
    assert names - {"scale", "completion"} == set(COMMANDS), names
    for name, words in COMMANDS.items():
        told = said(cli.main, [*name.split(), *words.split()], code=2)
        assert len(told.splitlines()) == 1, told
        assert "needs" in told and "pip install 'cowclip-merlin[cpu]'" in told, told
        assert "usage" in said(cli.main, [*name.split(), "--help"], code=0)
    assert "pip install shtab" in said(cli.main, ["completion", "bash"], code=2)
    assert "131,072" in said(cli.main, ["scale", "--to", "131072"], code=0)
    print(told, end="")


def names_of(parser, words=()):
    """The commands below a parser."""
    below = [each for each in parser._actions if isinstance(each.choices, dict)]
    if not below:
        yield " ".join(words)
    for action in below:
        for name, sub in action.choices.items():
            yield from names_of(sub, (*words, name))


def said(main, words, *, code):
    """What a command prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            result = main(words)
        except SystemExit as end:
            result = end.code
    assert result == code, (words, result, printed.getvalue())
    return printed.getvalue()


def check_names():
    """Public names work, or raise one line that names the extra."""
    import cowclip_merlin as cc
    from cowclip_merlin.errors import StackError

    lacking = set()
    for name in sorted(cc.__all__, key=lambda name: name not in LACKING):
        try:
            value = getattr(cc, name)
            if name == "load_model":
                value("folder")
        except StackError as error:
            assert str(error).startswith(f"cc.{name} needs ") and "pip install" in str(error)
            lacking.add(name)
    assert lacking == LACKING, lacking ^ LACKING
    for module in ("torch", "keras3"):
        try:
            __import__(f"cowclip_merlin.{module}")
            raise AssertionError(module)
        except StackError as error:
            print(error)


def check_numbers():
    """The kernels compute what the reference does, and the clips what the kernels do."""
    import numpy as np

    from cowclip_merlin import choices, clip, kernels
    from cowclip_merlin.metrics import roc_auc

    draw = np.random.default_rng(0)
    ids, g = draw.integers(0, 9, 40), draw.normal(size=(40, 3)).astype("f")
    fast, slow = (kernels.load(name).unique_rows(ids, g) for name in ("numba", "reference"))
    np.testing.assert_array_equal(fast.cnt, slow.cnt)
    np.testing.assert_allclose(fast.g, slow.g, rtol=1e-5, atol=1e-6)
    w, field = draw.normal(size=fast.g.shape).astype("f"), np.arange(len(fast.ids)) % 2
    rows = clip.ClipRows(g=fast.g, w=w, cnt=fast.cnt, field=field, num_fields=2)
    for name in (each for each, found in choices.CLIPS.items() if found.acts_on == "gradient"):
        settings = choices.RowSettings(clip=name, r=0.05, bound=0.5)
        (factor,) = clip.gradient_factors([rows], settings)
        _, same = kernels.load("numba").clip_rows(
            fast.g, w, fast.cnt, settings, field=field, num_fields=2
        )
        np.testing.assert_allclose(factor, same, rtol=1e-5)
        assert (factor.min() < 1) == (name != "none")
    assert roc_auc(np.array([0, 1]), np.array([0.1, 0.2])) == 1


if __name__ == "__main__":
    if "--hide" in sys.argv:
        hide()
    else:
        there = {each.metadata["Name"].lower().replace("_", "-") for each in distributions()}
        assert there == CORE | {"pip"}, there
        check_wheel()
    check_names()  # first: what a command has imported is there
    check_commands()
    check_numbers()
