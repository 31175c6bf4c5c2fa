"""Equal numbers make equal SVG files, in every part of the package that draws."""

import numpy as np
import pytest

from cowclip_merlin.demo import batch as demo
from cowclip_merlin.experiments.figures import Curve, draw_epochs, read_figure, write_figure
from cowclip_merlin.plotting.style import new_figure, save_figure
from cowclip_merlin.training.run_logs import METRICS, write_metrics
from cowclip_merlin.workflows.prepared.report import draw_frequencies


def lines(path):
    figure = new_figure(3, 2)
    figure.subplots().plot([1, 2], [3, 4], label="a line")
    figure.legend()
    save_figure(figure, path)


def frequencies(path):
    draw_frequencies({"C1": np.array([9, 3, 1]), "C2": np.array([4])}, path)


def epochs(path):
    curve = Curve(label="50$ -- <b> & $x_", x=(1, 2), runs=((80.0, 81.0),))
    texts = dict.fromkeys(("title", "caption", "alt", "data", "command"), "text")
    written = write_figure(path.parent, draw_epochs({"a $": [curve]}), name=path.stem, **texts)
    assert read_figure(written).svg == path.read_text()


def auc_of_demo(path):
    settings = demo.plan_runs(100_000)["baseline"]
    runs = dict.fromkeys(("baseline", "large-unscaled", "large-cowclip", "large-sde"), settings)
    for name in runs:
        folder = path.parent / "runs" / name
        folder.mkdir(parents=True, exist_ok=True)
        whole = dict.fromkeys(METRICS, 1.0)
        write_metrics(folder / "metrics.csv", [whole | {"epoch": n, "step": n} for n in (1, 2)])
    demo.draw_auc(demo.ROWS, runs, path.parent, bayes_auc=0.9).replace(path)


@pytest.mark.parametrize("draw", [lines, frequencies, epochs, auc_of_demo])
def test_equal_numbers_make_equal_files(tmp_path, draw):
    path = tmp_path / "a.svg"
    files = []
    for _ in range(2):
        draw(path)
        files.append(path.read_bytes())
    assert files[0] == files[1] and b"<svg" in files[0]
    assert b"<text" not in files[0] and b"<dc:date>" not in files[0]


def test_names_that_the_font_lacks_print_no_warnings(tmp_path, recwarn):
    draw_frequencies({"年齢": np.array([9, 3, 1])}, tmp_path / "a.svg")
    draw_frequencies({"C1": np.array([], np.int64)}, tmp_path / "b.svg")  # no id, no legend
    assert not recwarn.list
