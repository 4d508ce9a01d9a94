"""Checks which of Megatron's arguments the agent would refuse."""

import shlex
from collections.abc import Iterator, Mapping
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

from relibra.cli.checks.finding import Finding, failed, ok, skipped, warning
from relibra.errors import InvalidInput, Unsupported

_RENAMED = {"fp8_format": "fp8", "fp4_format": "fp4"}
"""Arguments that have another name in TransformerConfig."""


def examine(path: Path | None) -> list[Finding]:
    """Return the findings about the installed megatron-core and a file of arguments.

    Raises:
        InvalidInput: the file cannot be read.
    """
    try:
        from relibra.agent.refusals import check_version
    except ImportError as error:
        return [skipped("megatron", f"{error.name} is not installed; only trainers need it")]
    found = []
    if (version := _version()) is not None:
        try:
            check_version(version)
            found.append(ok("megatron", f"megatron-core {version}, a tested version"))
        except Unsupported as error:
            found.append(failed("megatron", str(error), "install a tested version"))
    if path is None:
        return [*found, skipped("megatron: arguments", "not checked: pass --megatron-args")]
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidInput.of("--megatron-args", expected="a text file", got=error) from error
    return [*found, *judge(read_arguments(text, is_yaml=path.suffix in (".yaml", ".yml")))]


def judge(arguments: Mapping[str, Any]) -> list[Finding]:
    """Return the findings about arguments named as in TransformerConfig; missing ones have their defaults."""
    from relibra.agent.refusals import (
        adapter_refusals,
        config_refusals,
        ddp_refusals,
        optimizer_refusals,
        replay_obstacle,
        sharding,
    )

    config = _Config(arguments)
    # By default Megatron shards experts in the same way as the rest of the model.
    expert_tensor_parallel_size = config.expert_tensor_parallel_size or config.tensor_model_parallel_size or 1
    refusals = [
        *config_refusals(config, expert_tensor_parallel_size=expert_tensor_parallel_size),
        *optimizer_refusals(config),
        *ddp_refusals(config),
        *adapter_refusals(config),
        *([sharding("use_torch_fsdp2=True")] if config.use_torch_fsdp2 else []),
    ]
    found = [failed("megatron: arguments", refusal.reason, refusal.fix) for refusal in refusals]
    if not config.moe_enable_routing_replay:
        reason = "moe_enable_routing_replay is off, so training may route tokens differently than planned"
        fix = "set moe_enable_routing_replay=True, or use forecasts, which balance less well"
        found.append(warning("megatron: arguments", reason, fix))
    elif (obstacle := replay_obstacle(config)) is not None and not config.moe_router_fusion:
        found.append(failed("megatron: arguments", obstacle.what, obstacle.fix))
    return found or [ok("megatron: arguments", "the agent accepts them")]


def read_arguments(text: str, *, is_yaml: bool) -> dict[str, Any]:
    """Parse arguments: a command line (`--name value`, `--flag`, `a.b.name=value`), or YAML of any depth.

    Raises:
        InvalidInput: the text is neither.
    """
    import yaml

    try:
        if is_yaml:
            found = _leaves(yaml.safe_load(text))
        else:
            words = shlex.split(text.replace("\\\n", " "), comments=True)
            found = {name: yaml.safe_load(value) for name, value in _pairs(words)}
    except (ValueError, yaml.YAMLError) as error:
        raise InvalidInput.of("--megatron-args", expected="arguments or a YAML mapping", got=error) from error
    named = {_RENAMED.get(name, name): value for name, value in found.items()}
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
        found |= _leaves(inner) if isinstance(inner, dict) else {_name(str(name)): inner}
    return found


class _Config:
    """Has the attributes of megatron's configs: the given arguments, else the default or None."""

    cuda_graph_impl = "none"
    moe_token_dispatcher_type = "allgather"

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.__dict__ |= given

    def __getattr__(self, name: str) -> Any:
        return None


def _version() -> str | None:
    try:
        return metadata.version("megatron-core")
    except metadata.PackageNotFoundError:
        return None
