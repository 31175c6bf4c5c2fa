"""Several measurements in one script: the first word of the command line chooses one."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module

from harness.errors import one_line_errors
from harness.options import make_parser


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Definition of a script with several measurements.

    Attributes:
        about: docstring of the script, which is the help text.
        parts: first word -> module with its `BENCHMARK`; only the chosen one is imported.
    """

    about: str | None
    parts: Mapping[str, str]

    def main(self, arguments: Sequence[str] | None = None) -> None:
        """Measure one part, with the options after its name.

        Args:
            arguments: arguments of the command line; None: those of the process.
        """
        words = list(sys.argv[1:] if arguments is None else arguments)
        parser = make_parser(self.about, device=False, json=False)
        what = "what to measure; --help after it lists its options"
        parser.add_argument("part", choices=tuple(self.parts), help=what)
        with one_line_errors():
            part = parser.parse_args(words[:1]).part
        import_module(self.parts[part]).BENCHMARK.main(words[1:])
