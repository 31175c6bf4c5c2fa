"""The mutants of a file, and how they find their line again."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
import points

SOURCE = """\
LIMIT = 3
class Table:
    def take(self, rows, *, most: int = 1):
        \"\"\"Take 1.\"\"\"
        if not rows or len(rows) > most:
            raise ValueError(f"{len(rows) + 1} rows")
        self.note(rows, kind="rows")
        return rows[: most - 1]
"""
LINES = {
    "not": ["if rows or len(rows) > most:"],
    "boolean": ["if not rows and len(rows) > most:"],
    "compare": ["if not rows or len(rows) >= most:"],
    "statement": ["pass"],
    "keyword": ["self.note(rows)"],
    "arithmetic": ["return rows[: most + 1]"],
    "constant": ["LIMIT = 4", "return rows[: most - 0]"],
}


def test_points_are_lines_that_differ():
    found = points.points("a.py", SOURCE)
    assert {kind: [each.mutated for each in mutants] for kind, mutants in found.items()} == LINES
    for mutant in (each for mutants in found.values() for each in mutants):
        changed = mutant.applied(SOURCE)
        pairs = zip(SOURCE.splitlines(), changed.splitlines(), strict=True)
        assert [new.strip() for old, new in pairs if old != new] == [mutant.mutated]


def test_a_mutant_outlives_edits_elsewhere_and_a_move(tmp_path):
    (mutant,) = points.points("models/a.py", SOURCE)["compare"]
    (tmp_path / "models").mkdir()
    other = "class Other:\n    def take(self, rows):\n        if not rows or len(rows) > most:\n"
    moved = tmp_path / "models" / "b.py"
    moved.write_text(f"{other}            pass\n\n\n{SOURCE}")
    found = points.located(tmp_path, mutant)
    assert found.file == "models/b.py" and found.applied(moved.read_text()).count(">=") == 1
    assert found.applied(moved.read_text()).startswith(other)
    moved.write_text(SOURCE.replace("> most", "> 2 * most"))
    assert points.located(tmp_path, mutant) is None
