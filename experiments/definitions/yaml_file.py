"""YAML files of experiments, as mappings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cowclip_merlin.errors import InputError


def read_yaml(path: Path) -> Mapping[str, Any]:
    """Read the mapping that a YAML file holds.

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
        raise InputError(f"{path}: holds no mapping; begin with `title:`")
    return value


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
