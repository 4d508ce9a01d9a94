"""Reads YAML with its `defaults`, as OmegaConf and Hydra merge them, and resolves `${path}`."""

import re
from pathlib import Path
from typing import Any

import yaml

from relibra.cli.recipes.arguments import Loader, at_path, merge
from relibra.errors import InvalidInput

_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_MAX_DEPTH = 20
_OVERRIDE = "override "
"""The beginning of an entry of `defaults` that replaces the option of a group, in Hydra."""


def read_yaml(path: Path, warnings: list[str], shipped: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the content of a file over that of its `defaults`.

    Args:
        path: the file.
        warnings: gets a line for each default that is neither there nor shipped.
        shipped: file name -> content, for defaults that are not beside the file.

    Raises:
        InvalidInput: a file is no YAML mapping, or defaults go around in a circle.
    """
    return resolve(_read(path, warnings, shipped, 0))


def _read(path: Path, warnings: list[str], shipped: dict[str, dict[str, Any]], depth: int) -> dict[str, Any]:
    if depth > _MAX_DEPTH:
        raise InvalidInput(
            f"expected `defaults` that come to an end, got more than {_MAX_DEPTH} files from {path.name}"
        )
    content = load_yaml(path)
    settings: dict[str, Any] = {}
    own = {name: value for name, value in content.items() if name != "defaults"}
    own = merge(_overrides(content.get("defaults")), own)
    is_merged = False
    for default in _names(content.get("defaults")):
        if default == "_self_":
            settings, is_merged = merge(settings, own), True
            continue
        base = path.parent / (default if default.endswith((".yaml", ".yml")) else f"{default}.yaml")
        if base.is_file():
            settings = merge(settings, _read(base, warnings, shipped, depth + 1))
        elif (known := shipped.get(base.name)) is not None:
            settings = merge(settings, known)
        else:
            warnings.append(f"{path.name}: its default {default} is not beside it, so settings in it are not known")
    return settings if is_merged else merge(settings, own)


def _names(defaults: Any) -> list[str]:
    """Return the files that `defaults` names. Groups of Hydra (`group: option`) are not files of the same folder."""
    names: list[str] = []
    for entry in [defaults] if isinstance(defaults, str) else defaults if isinstance(defaults, list) else []:
        if isinstance(entry, str):
            names.append(entry)
        elif isinstance(entry, dict):
            options = ((str(group).split("@")[0], option) for group, option in entry.items())
            names += [
                f"{group}/{option}"
                for group, option in options
                if isinstance(option, str) and not group.startswith(_OVERRIDE)
            ]
    return names


def _overrides(defaults: Any) -> dict[str, Any]:
    """Return the options that replace those of groups which `defaults` names in other files."""
    entries = [entry for entry in defaults if isinstance(entry, dict)] if isinstance(defaults, list) else []
    return {
        str(group).removeprefix(_OVERRIDE).lstrip("/"): option
        for entry in entries
        for group, option in entry.items()
        if str(group).startswith(_OVERRIDE)
    }


def load_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a file.

    Raises:
        InvalidInput: the file cannot be read, or holds something else.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=Loader)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise InvalidInput.of(str(path), expected="YAML", got=error) from error
    if not isinstance(content, dict):
        raise InvalidInput.of(str(path), expected="a YAML mapping", got=type(content).__name__)
    return content


def resolve(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with the values of `${path}` in place; other resolvers stay as text."""

    def resolve(value: Any, depth: int) -> Any:
        if isinstance(value, dict):
            return {name: resolve(inner, depth) for name, inner in value.items()}
        if isinstance(value, list):
            return [resolve(inner, depth) for inner in value]
        if not isinstance(value, str) or "${" not in value or depth > _MAX_DEPTH:
            return value
        whole = _REFERENCE.fullmatch(value)
        if whole is not None:
            target = at_path(config, whole[1], value)
            return value if target == value else resolve(target, depth + 1)
        changed = _REFERENCE.sub(lambda match: str(at_path(config, match[1], match[0])), value)
        return value if changed == value else resolve(changed, depth + 1)

    resolved_config = resolve(config, 0)
    assert isinstance(resolved_config, dict)
    return resolved_config
