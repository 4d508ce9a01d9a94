"""Checks which of Megatron's arguments the agent would refuse."""

import shlex
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from relibra.cli.checks import hooks
from relibra.cli.checks.finding import Finding, ok, skipped, warning
from relibra.cli.checks.judgement import findings, unknown_options
from relibra.cli.recipes import judge as judging
from relibra.cli.recipes.frameworks.passing import RENAMED
from relibra.cli.recipes.merged import check_size
from relibra.cli.recipes.shipped import is_neutral, known_options
from relibra.errors import InvalidInput

_SUBJECT = "megatron: arguments"
_OF_ADAPTERS = ("lora_rank", "rank", "dim", "target_modules", "share_expert_adapters")


def examine(path: Path | None) -> list[Finding]:
    """Return the findings about the installed megatron-core and a file of arguments.

    Raises:
        InvalidInput: the file cannot be read.
    """
    found = hooks.examine()
    if path is None:
        return [*found, skipped(_SUBJECT, "not checked: pass --megatron-args")]
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidInput.of("--megatron-args", expected="a text file", got=error) from error
    return [*found, *judge(read_arguments(text, is_yaml=path.suffix in (".yaml", ".yml")))]


def judge(arguments: Mapping[str, Any]) -> list[Finding]:
    """Return the findings about arguments named as in TransformerConfig; missing ones have their defaults."""
    told = {name: value for name, value in arguments.items() if not _is_variable(value)}
    found = findings(_SUBJECT, judging.judge(told))
    untold = [f"{name}={value}" for name, value in arguments.items() if name not in told and not is_neutral(name)]
    if untold:
        reason = f"the values of variables are not known here: {', '.join(untold)}"
        found.append(warning(_SUBJECT, reason, "write the values, or pass the launcher with --recipe"))
    found += unknown_options(_SUBJECT, [name for name in arguments if not _is_known(name)])
    return found or [ok(_SUBJECT, "the agent accepts them")]


def _is_variable(value: Any) -> bool:
    return isinstance(value, str) and "$" in value


def _is_known(name: str) -> bool:
    return name in known_options() or name in _OF_ADAPTERS or name in ("use_torch_fsdp2",) or is_neutral(name)


def read_arguments(text: str, *, is_yaml: bool) -> dict[str, Any]:
    """Parse arguments: a command line (`--name value`, `--flag`, `a.b.name=value`), or YAML of any depth.

    Raises:
        InvalidInput: the text is neither.
    """
    import yaml

    try:
        if is_yaml:
            content = yaml.safe_load(text)
            check_size(content)
            found = _leaves(content)
        else:
            words = shlex.split(text.replace("\\\n", " "), comments=True)
            found = {name: yaml.safe_load(value) for name, value in _pairs(words)}
    except (ValueError, yaml.YAMLError) as error:
        raise InvalidInput.of("--megatron-args", expected="arguments or a YAML mapping", got=error) from error
    named = {RENAMED.get(name, name): value for name, value in found.items()}
    if isinstance(scope := named.get("cuda_graph_scope"), str):
        named["cuda_graph_scope"] = scope.split(",")
    return named


def _pairs(words: list[str]) -> Iterator[tuple[str, str]]:
    for word, after in pairwise([*words, "--"]):
        name, equals, value = word.partition("=")
        if equals:
            yield _name(name.rpartition(".")[2]), value
        elif word.startswith("--"):
            yield _name(word), "true" if after.startswith("--") else after


def _name(word: str) -> str:
    return word.lstrip("+-").replace("-", "_")


def _leaves(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"YAML of type {type(value).__name__}")
    found: dict[str, Any] = {}
    for name, inner in value.items():
        if not isinstance(inner, dict):
            found |= {_name(str(name)): inner}
        elif inner.get("enabled") is not False:  # a section that is switched off says nothing
            found |= _leaves(inner)
    return found
