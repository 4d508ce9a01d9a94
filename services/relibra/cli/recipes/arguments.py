"""Reads the words of a command line: options as of argparse, and overrides as of Hydra."""

import re
from collections.abc import Container, Iterable, Sequence
from typing import Any

import yaml

from relibra.cli.recipes.unknown import is_known, without_unknown

Options = dict[str, Any]
"""Option -> value: text, True, False, or a list of texts. `-` in names is `_`."""


def read_options(words: Sequence[str], flags: Container[str] = ()) -> Options:
    """Return the options among words. The last one counts, and an option without a value is True.

    `--name value`, `--name=value`, `--name a b c`, `--flag` and `--no-flag` are options. `--no-flag` gives both `flag`:
    False and `no_flag`: True, because some names begin with `no`.

    A word that is not known at all may stand for further options. It is no value of an option that has one, or that is
    among `flags`, which take none.
    """
    options: Options = {}
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not is_option(word):
            continue
        name, equals, value = word[2:].partition("=")
        values = [value] if equals else []
        while not equals and at < len(words) and not is_option(words[at]):
            if without_unknown(words[at]) or not (values or name.replace("-", "_") in flags):
                values.append(words[at])
            at += 1
        name = name.replace("-", "_")
        options.pop(name, None)
        options[name] = True if not values else values[0] if len(values) == 1 else values
        if name.startswith("no_") and not values:
            options[name.removeprefix("no_")] = False
    return options


def is_option(word: str) -> bool:
    """Return whether a word begins an option. Negative numbers do not."""
    return word.startswith("--") and len(word) > 2


def read_overrides(words: Iterable[str]) -> dict[str, Any]:
    """Return Hydra's overrides among words: path -> value. `~path` deletes, so its value is None."""
    values: dict[str, Any] = {}
    for word in words:
        if is_option(word):
            continue
        path, equals, value = word.partition("=")
        path = path.lstrip("+")
        if path.startswith("~"):
            values[path[1:]] = None
        elif equals and path and all(part.replace("-", "_").isidentifier() for part in _parts(path)):
            values[path] = parse(value)
    return values


def parse(text: Any) -> Any:
    """Return a text as YAML reads it; text that is no YAML, or is not fully known, stays as it is."""
    if not isinstance(text, str) or not is_known(text):
        return text
    try:
        value = yaml.load(text, Loader=Loader)
    except yaml.YAMLError:
        return text
    return text if value is None and text.strip() not in ("null", "~", "") else value


class Loader(yaml.SafeLoader):  # type: ignore[misc]  # yaml has no types
    """Reads 1e-6 as a number, as OmegaConf does."""


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d[\d_]*)(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def _parts(path: str) -> list[str]:
    return path.replace("@", ".").replace("/", ".").split(".")


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Return `base` with the values of `over`; mappings are merged, everything else is replaced."""
    both = dict(base)
    for name, value in over.items():
        inner = both.get(name)
        both[name] = merge(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return both


def nest(overrides: dict[str, Any]) -> dict[str, Any]:
    """Return overrides by path as nested mappings."""
    tree: dict[str, Any] = {}
    for path, value in overrides.items():
        *above, last = path.split(".")
        here = tree
        for part in above:
            inner = here.get(part)
            if not isinstance(inner, dict):
                inner = here[part] = {}
            here = inner
        here[last] = value
    return tree


def at_path(config: Any, path: str, default: Any = None) -> Any:
    """Return the value at a path, or the default."""
    for part in path.split("."):
        if not isinstance(config, dict) or part not in config:
            return default
        config = config[part]
    return config


def leaves(config: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a configuration of any depth by their names; a section that is switched off has none."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if not isinstance(value, dict):
            flat[str(name).replace("-", "_")] = value
        elif value.get("enabled") is not False:
            flat |= leaves(value)
    return flat
