"""YAML files that hold one mapping."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cowclip_merlin.errors import InputError


def read_yaml(path: Path, *, first_key: str) -> Mapping[str, Any]:
    """Read the mapping that a YAML file holds.

    Args:
        path: of the file.
        first_key: a key that such a file usually begins with, for the error message.

    Raises:
        InputError: the file is not YAML, does not hold a mapping, or gives a key twice.
    """
    import yaml

    try:
        value = yaml.load(path.read_text(encoding="utf-8"), _loader())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        words = " ".join(str(error).split())
        raise InputError(f"{path}: no YAML ({words}); mend the file") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: holds no mapping; begin with `{first_key}:`")
    return value


def line_of_key(path: Path, *keys: str | int) -> int:
    """Line of a value, from 1: of the mapping's key or the list's item that `keys` lead to.

    Args:
        path: of a file that `read_yaml` can read.
        keys: from the outermost mapping inward; keys that are not there end the search.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "a.yaml"
    >>> _ = file.write_text("label: y\\ncategorical:\\n- user\\n- item\\n")
    >>> line_of_key(file, "categorical", 1), line_of_key(file, "no such key")
    (4, 1)
    """
    import yaml

    node = yaml.compose(path.read_text(encoding="utf-8"), yaml.SafeLoader)
    line = node.start_mark.line
    for key in keys:
        found = dict(_children(node)).get(key)
        if found is None:
            break
        line, node = found
    return line + 1


def _children(node: Any) -> list[tuple[str | int, tuple[int, Any]]]:
    """Key -> line and node of each value below a node."""
    import yaml

    if isinstance(node, yaml.MappingNode):
        return [(key.value, (key.start_mark.line, value)) for key, value in node.value]
    if isinstance(node, yaml.SequenceNode):
        return [(index, (item.start_mark.line, item)) for index, item in enumerate(node.value)]
    return []


def _loader() -> Any:
    """YAML's safe loader, which also refuses duplicate keys; YAML's own keeps the last."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            for index, key in enumerate(keys):
                if key in keys[:index]:
                    raise yaml.YAMLError(f"{key} twice in line {node.start_mark.line + 1} or below")
            return super().construct_mapping(node, deep)

    return Loader
