"""Find the line of a Python file that defines a name."""

from __future__ import annotations

import ast
from pathlib import Path


def line_of(name: str, file: Path) -> int | None:
    """Return the line of a class, function, method (`Class.method`) or constant; None if missing.

    A public name, such as `cc.scale` or `cowclip_merlin.torch.CowClip`, is found by its last part.
    """
    if name.startswith(("cc.", "cowclip_merlin.")):
        name = name.rpartition(".")[2]
    body = ast.parse(file.read_text(encoding="utf-8")).body
    line = None
    for part in name.split("."):
        found = next((node for node in body if part in _names(node)), None)
        if found is None:
            return None
        line, body = found.lineno, getattr(found, "body", [])
    return line


def _names(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return {node.name}
    targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}
