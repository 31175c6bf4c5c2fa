"""What users see of the package: its public names, and the help of each command, as text.

`python tests/public/surface.py` writes both files anew after an intended change.
"""

import argparse
from pathlib import Path

import cowclip_merlin as cc
from cowclip_merlin.cli import build_parser

HERE = Path(__file__).parent
DEFAULT = " (default: %(default)s)"  # Python 3.10 adds it to the help of an option and its --no


def names():
    """Lines with the public names of the package and of its public modules."""
    packages = {"cc": cc} | {f"cc.{name}": getattr(cc, name) for name in cc._LAZY_MODULES}
    return [f"{package}.{name}" for package, module in packages.items() for name in module.__all__]


def help_lines(parser=None):
    """Lines with the options of a command and of its commands.

    They follow from the parser: the layout of argparse depends on Python and on the terminal.
    """
    parser = parser or build_parser()
    lines, commands = [parser.prog, f"  {parser.description}"], []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            commands += action.choices.values()
        elif not isinstance(action, argparse._HelpAction | argparse._VersionAction):
            about = (action.help or "").removesuffix(DEFAULT)
            lines.append(f"  {_syntax(action)}: {' '.join(about.split())}")
    return lines + [line for command in commands for line in help_lines(command)]


def _syntax(action):
    """Option, value, number of values and default of an action."""
    words = [", ".join(action.option_strings)]
    if action.nargs != 0:
        choices = action.choices and "|".join(map(str, action.choices))
        words.append(str(action.metavar or choices or action.dest))
    if action.nargs:
        words.append(str(action.nargs))
    if action.default not in (None, False, argparse.SUPPRESS):
        words.append(f"[{action.default}]")
    return " ".join(filter(None, words)) + (" (required)" if action.required else "")


FILES = {"names.txt": names, "help.txt": help_lines}

if __name__ == "__main__":
    for file, lines in FILES.items():
        (HERE / file).write_text("\n".join([*lines(), ""]), encoding="utf-8")
