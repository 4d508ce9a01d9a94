"""Judges effective settings by the table that decides in the agent."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from relibra.agent.refusals import (
    adapter_advice,
    adapter_refusals,
    check_version,
    config_refusals,
    ddp_refusals,
    optimizer_refusals,
    replay_obstacle,
    saving_refusals,
    sharding,
)
from relibra.agent.setting import Refusal
from relibra.cli.recipes.shipped import framework_data
from relibra.errors import Unsupported

REPLAY = "moe_enable_routing_replay"
"""The setting that replays routing."""


class Verdict(StrEnum):
    """Whether the agent would attach."""

    TAKEN = "taken"
    WARNED = "taken with a warning"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Whether the agent would attach with settings, and why."""

    refusals: tuple[Refusal, ...]
    warnings: tuple[Refusal, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst that the reasons allow."""
        if self.refusals:
            return Verdict.REFUSED
        return Verdict.WARNED if self.warnings else Verdict.TAKEN


def judge(settings: Mapping[str, Any], *, megatron_core: str = "", framework: str = "") -> Judgement:
    """Return the judgement of settings under the names of Megatron's configurations.

    Args:
        settings: the effective values; a missing one has Megatron's default.
        megatron_core: the version that will run; empty if it is not known.
        framework: the framework, whose plug-in may refuse more; empty for the agent alone.
    """
    config = Effective(settings)
    # By default Megatron shards experts in the same way as the rest of the model.
    expert_tensor_parallel_size = config.expert_tensor_parallel_size or config.tensor_model_parallel_size or 1
    refusals = [
        *_version(megatron_core),
        *config_refusals(config, expert_tensor_parallel_size=expert_tensor_parallel_size),
        *optimizer_refusals(config),
        *ddp_refusals(config),
        *adapter_refusals(config),
        *_of_plug_in(framework, settings),
    ]
    if config.use_torch_fsdp2:
        refusals.append(sharding("use_torch_fsdp2=True"))
    warnings = [*saving_refusals(config), *adapter_advice(config)]
    if config.moe_enable_routing_replay:
        if (obstacle := replay_obstacle(config)) is not None and not config.moe_router_fusion:
            refusals.append(obstacle)
    elif not config.replay:  # the framework has no replay of its own either
        warnings.append(
            Refusal(
                f"{REPLAY}: it is off, so plans are made from the loads of earlier steps",
                f"{REPLAY}=True, or leave it",
                "plans from history balance a little less well; replay needs the routing of the rollout engine",
                REPLAY,
            )
        )
    return Judgement(refusals=tuple(refusals), warnings=tuple(warnings))


def _of_plug_in(framework: str, settings: Mapping[str, Any]) -> list[Refusal]:
    """Return the refusals of options that the data of a framework says its plug-in refuses at start."""
    refused = framework_data(framework).get("refused", ()) if framework else ()
    return [
        Refusal(each["what"], each["instead"], setting=each["option"])
        for each in refused
        if (value := settings.get(each["option"])) and value in each.get("values", [value])
    ]


def _version(version: str) -> list[Refusal]:
    try:
        if version:
            check_version(version)
    except Unsupported as error:
        what, _, alternative = str(error).partition("; use ")
        what = what.removeprefix("relibra's agent does not support ")
        return [Refusal(what, alternative, "the framework must run on another megatron-core", "megatron-core")]
    return []


class Effective:
    """Has the attributes of megatron's configurations: the given values, else the default or None."""

    cuda_graph_impl = "none"
    moe_token_dispatcher_type = "allgather"

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.__dict__ |= values

    def __getattr__(self, name: str) -> Any:
        return None
