"""Check that an environment of requirements/make_venv.sh holds its pins and nothing else.

DIR/bin/python .ci/only_pins.py DIR
"""

import re
import sys
from importlib.metadata import distributions
from pathlib import Path

# What make_venv.sh installs beside the pins.
TOOLS = {"pip", "setuptools", "wheel", "cowclip-merlin"}


def normal(name: str) -> str:
    """A package's name as PEP 503 compares it."""
    return re.sub("[-_.]+", "-", name).lower()


def pinned(text: str) -> set[str]:
    """The pins among the lines, as name==version."""
    pairs = [line.split("==") for line in text.splitlines() if line and not line.startswith("#")]
    return {f"{normal(name)}=={version}" for name, version in pairs}


def installed() -> set[str]:
    """What this Python can import, as name==version."""
    there = {(normal(d.metadata["Name"]), d.version) for d in distributions()}
    return {f"{name}=={version}" for name, version in there if name not in TOOLS}


def main(folder: Path) -> int:
    """Print what differs; 1 if anything does."""
    pins, there = pinned((folder / ".pins").read_text()), installed()
    wrong = [f"not of the pins: {p}" for p in sorted(there - pins)]
    wrong += [f"missing: {p}" for p in sorted(pins - there)]
    for line in wrong:
        print(f"{folder}: {line}", file=sys.stderr)
    if wrong:
        print(f"{folder} was changed by hand: remove it and run again", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
