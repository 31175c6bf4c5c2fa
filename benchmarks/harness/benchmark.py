"""Run a benchmark as a command: options, settings, measurement, text and JSON."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from cowclip_merlin.settings import add_options, settings_from
from cowclip_merlin.types import Json, JsonObject
from harness.errors import check_output_files, one_line_errors
from harness.options import make_parser, output_files
from harness.record import load_average, print_and_write, record


def _no_options(_: argparse.ArgumentParser) -> None:
    """Add no further options."""


def _no_values(_: argparse.Namespace) -> JsonObject:
    """Read no further options."""
    return {}


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Definition of one benchmark.

    Attributes:
        script: `__file__` of the script, or, in a `Suite`, its name and the first word.
        about: docstring of the script, which is the help text.
        settings: frozen dataclass with fields of `cowclip_merlin.settings.option`. The
            harness sets a field `device` to "cpu" or "gpu".
        measure: maps settings to a result for JSON.
        text: maps a result to the text to print.
        device: whether it has the option `--device`; without it, TensorFlow is not imported.
        add_options: adds options that are not fields of the settings.
        read_options: converts these options to values of other fields.
        draw: writes files other than the JSON, from the settings and the result.
        check: is called with the result when all is written; raises an `InputError` if the result
            is not as it must be.
    """

    script: str
    about: str | None
    settings: type
    measure: Callable[[Any], Mapping[str, Json]]
    text: Callable[[JsonObject], str]
    device: bool = True
    add_options: Callable[[argparse.ArgumentParser], None] = _no_options
    read_options: Callable[[argparse.Namespace], JsonObject] = _no_values
    draw: Callable[[Any, JsonObject], None] | None = None
    check: Callable[[JsonObject], None] | None = None

    def parser(self) -> argparse.ArgumentParser:
        """Make the parser of the command."""
        parser = make_parser(self.about, device=self.device)
        parser.prog = Path(self.script).name
        add_options(parser, self.settings)
        self.add_options(parser)
        return parser

    def settings_from(self, args: argparse.Namespace) -> Any:
        """Build the settings from the command line.

        Raises:
            InputError: if a value is wrong.
        """
        return settings_from(args, self.settings, **self.read_options(args))

    def main(self, arguments: Sequence[str] | None = None) -> None:
        """Measure, print and write JSON; print an error in one line.

        Args:
            arguments: arguments of the command line; None: those of the process.
        """
        parser = self.parser()
        with one_line_errors([x for each in parser._actions for x in each.option_strings]):
            self._run(parser.parse_args(arguments), arguments)

    def _run(self, args: argparse.Namespace, arguments: Sequence[str] | None) -> None:
        settings = self.settings_from(args)
        check_output_files(args.json, *output_files(settings), overwrite=args.overwrite)
        if self.device:
            settings = _on_device(settings, args.device)
        load = load_average()
        result = self.measure(settings)
        recorded = record(result, script=self.script, arguments=arguments, load=load)
        print_and_write(recorded, self.text(recorded), args.json)
        if self.draw:
            self.draw(settings, recorded)
        if self.check:
            self.check(recorded)


def _on_device(settings: Any, device: str) -> Any:
    """Choose TensorFlow's device, and store it in the settings if they have a field for it."""
    from cowclip_merlin.training.build import choose_device

    chosen = choose_device(device)
    has_field = "device" in {each.name for each in fields(settings)}
    return replace(settings, device=chosen) if has_field else settings
