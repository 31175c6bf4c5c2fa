"""Read YAML files that contain one mapping."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING

from cowclip_merlin.addresses import FilePath
from cowclip_merlin.errors import InputError
from cowclip_merlin.types import Json

if TYPE_CHECKING:
    import yaml
    from yaml import MappingNode, Node

_NO_VALUE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What Python raises for a text that is not of its type."""


def read_yaml(path: FilePath, *, first_key: str, text: str | None = None) -> Mapping[str, Json]:
    """Read the mapping of a YAML file.

    Args:
        path: path of the file.
        first_key: usual first key of such a file, for the error message.
        text: what to parse in place of the whole file.

    Raises:
        InputError: if the file is not YAML, is not a mapping, or has a key twice.
    """
    import yaml

    try:
        value = yaml.load(path.read_text(encoding="utf-8") if text is None else text, _loader())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        words = " ".join(str(error).split())
        raise InputError(f"{path}: not valid YAML ({words}); correct the file") from None
    except RecursionError:
        raise InputError(f"{path}: nested too deeply; correct the file") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: is not a mapping; begin with `{first_key}:`")
    return value


def line_of_key(path: FilePath, *keys: str | int) -> int:
    """Return the line, from 1, of the mapping's key or the list's item that `keys` lead to.

    Args:
        path: path of a file that `read_yaml` can read.
        keys: keys from the outermost mapping inward; a missing key ends the search.

    >>> import tempfile
    >>> from pathlib import Path
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


def _children(node: Node) -> list[tuple[str | int, tuple[int, Node]]]:
    """Return key, line and node of each value below a node."""
    import yaml

    if isinstance(node, yaml.MappingNode):
        return [(key.value, (key.start_mark.line, value)) for key, value in node.value]
    if isinstance(node, yaml.SequenceNode):
        return [(index, (item.start_mark.line, item)) for index, item in enumerate(node.value)]
    return []


def _loader() -> type[yaml.SafeLoader]:
    """Create YAML's safe loader, but reject duplicate keys; YAML would keep the last one.

    It also rejects a value that is not of its type, such as the date 2024-13-45, with its line.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_object(self, node: Node, deep: bool = False) -> Json:
            try:
                return super().construct_object(node, deep)
            except _NO_VALUE:  # of Python, which YAML does not translate
                kind, line = node.tag.rpartition(":")[2], node.start_mark.line + 1
                raise yaml.YAMLError(f"{node.value!r:.40} in line {line} is no {kind}") from None

        def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Hashable, Json]:
            pairs = node.value if isinstance(node, yaml.MappingNode) else ()
            keys = [key.value for key, _ in pairs if isinstance(key, yaml.ScalarNode)]
            for index, key in enumerate(keys):
                if key in keys[:index]:
                    raise yaml.YAMLError(f"{key} twice in line {node.start_mark.line + 1} or below")
            return super().construct_mapping(node, deep)

    return Loader
