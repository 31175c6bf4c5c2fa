"""The rooms of `experiments/`: imports go down."""

import ast
from pathlib import Path

import pytest

from cowclip_merlin import experiments

FOLDER = Path(experiments.__file__).parent
PACKAGE = experiments.__name__
# Each may import those above it. The report reads results folders; nothing imports it.
ORDER = (
    "definitions", "results", "planning", "running", "tables", "figures", "tuning",
    "session_settings", "session", "preflight", "runs", "training_runs", "outputs", "online",
    "kinds", "commands", "report",
)  # fmt: skip
MODULES = sorted(path.relative_to(FOLDER) for path in FOLDER.rglob("*.py"))


def room_of(parts):
    return parts[0].removesuffix(".py")


def imported_rooms(path):
    """The rooms that a module imports from."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"{PACKAGE}."):
            below = node.module.removeprefix(PACKAGE).strip(".")
            yield from [room_of(below.split("."))] if below else [each.name for each in node.names]


def test_every_room_has_its_rank():
    assert {room_of(module.parts) for module in MODULES} == {*ORDER, "__init__"}


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_imports_go_down(module):
    room = room_of(module.parts)
    rooms = set(imported_rooms(FOLDER / module)) - {room}
    below = ORDER[: ORDER.index(room)] if room in ORDER else ()
    assert rooms <= set(below), f"{module} imports {sorted(rooms - set(below))}"
