"""Write and read figures as files: `NAME.svg`, and `NAME.json` with title, caption and data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from cowclip_merlin.errors import InputError
from cowclip_merlin.plotting.style import svg_text
from cowclip_merlin.system.files import atomic_write, read_json, write_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from cowclip_merlin.experiments.definitions import Experiment, LogExperiment


@dataclass(frozen=True, kw_only=True)
class FigureFile:
    """A figure with its texts.

    Attributes:
        name: name of the experiment and of the files.
        title: title in one line.
        caption: text below the figure.
        alt: description for readers who cannot see the figure.
        data: name of the data set and its size.
        command: the command that reproduces it.
        svg: the drawing.
        fingerprint: fingerprint of the data; empty if unknown.
    """

    name: str
    title: str
    caption: str
    alt: str
    data: str
    command: str
    svg: str
    fingerprint: str = ""


_TEXTS = tuple(field.name for field in fields(FigureFile) if field.name != "svg")


_NAME = re.compile(r"[A-Za-z0-9_-]+")


def write_figure(
    folder: str | Path,
    figure: Figure,
    *,
    name: str,
    title: str,
    caption: str,
    alt: str,
    data: str,
    command: str,
    fingerprint: str = "",
) -> Path:
    """Save a matplotlib figure as `<folder>/<name>.svg`, and its texts as `<name>.json`.

    Args:
        folder: created if missing.
        figure: a matplotlib `Figure`.
        name: letters, digits, `-` and `_`; every id in the SVG begins with it.
        title: title in one line.
        caption: what the figure shows, and what the reader should see.
        alt: description for readers who cannot see the figure.
        data: name of the data set and its size.
        command: the command that reproduces it.
        fingerprint: fingerprint of the data.

    Returns:
        The path of the SVG.

    Raises:
        ValueError: if the name contains other characters.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot name a figure: letters, digits, - and _ only")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.svg"
    svg = with_prefix(svg_text(figure), f"{name}-")
    text = FigureFile(
        name=name,
        title=title,
        caption=caption,
        alt=alt,
        data=data,
        command=command,
        svg=svg,
        fingerprint=fingerprint,
    )
    with atomic_write(path) as temporary:
        temporary.write_text(svg, encoding="utf-8")
    write_json(path.with_suffix(".json"), {k: v for k, v in asdict(text).items() if k != "svg"})
    return path


def write_experiment_figure(
    out: Path,
    figure: Figure,
    experiment: Experiment | LogExperiment,
    texts: Mapping[str, str],
    *,
    name: str | None = None,
    title: str | None = None,
    caption: str | None = None,
) -> str:
    """Write a figure of an experiment to a results folder; return the line to print.

    Args:
        out: the results folder.
        figure: a matplotlib figure.
        experiment: gives name, title and caption where they are None.
        texts: `data`, `command` and `fingerprint` of `FigureFile`.
        name: of the file.
        title: for readers.
        caption: below the figure.
    """
    path = write_figure(
        out / "figures",
        figure,
        name=name or experiment.name,
        title=title or experiment.title,
        caption=caption or experiment.caption or f"Claim: {experiment.claim}",
        alt=title or experiment.title,
        **texts,
    )
    return f"figure: {path}"


def with_prefix(svg: str, prefix: str) -> str:
    """Add a prefix to every id of the drawing and to every reference to an id.

    >>> with_prefix('<g id="a"/><use xlink:href="#a" style="clip-path: url(#a)"/>', "f-")
    '<g id="f-a"/><use xlink:href="#f-a" style="clip-path: url(#f-a)"/>'
    """
    svg = re.sub(r'(\sid=")', rf"\g<1>{prefix}", svg)
    svg = re.sub(r'(href="#)', rf"\g<1>{prefix}", svg)
    return re.sub(r"(url\(#)", rf"\g<1>{prefix}", svg)


def read_figure(path: str | Path) -> FigureFile:
    """Read a figure of `write_figure`, given the path of the JSON or of the SVG.

    Raises:
        InputError: if one of the two files is missing or damaged.
    """
    path = Path(path).with_suffix(".json")
    texts = read_json(path)
    if not isinstance(texts, dict):
        raise InputError(
            f"{path}: is not the text of a figure; write it again with cowclip experiment"
        )
    for name in _TEXTS:
        if not isinstance(texts.get(name), str):
            raise InputError(f"{path}: {name} is {texts.get(name)!r}, not a text; write it again")
    if texts["name"] != path.stem or not _NAME.fullmatch(path.stem):  # ids on the page
        raise InputError(f"{path}: name is {texts['name']!r:.40}, not the file's; write it again")
    try:
        svg = path.with_suffix(".svg").read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path.with_suffix('.svg')}: no such file; write it again") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path.with_suffix('.svg')}: not SVG ({error}); write it again") from None
    return FigureFile(**{name: texts[name] for name in _TEXTS}, svg=svg)
