"""AReaL: YAML with `actor.backend`, which holds the parallelism, and `actor.megatron`."""

import re
from typing import Any

from relibra.cli.recipes.frameworks.passing import draft_of, lora, pass_sections
from relibra.cli.recipes.launch import Launch, section
from relibra.cli.recipes.recipe import Draft
from relibra.cli.recipes.shipped import framework_data

_SIZES = {
    "t": "tensor_model_parallel_size",
    "p": "pipeline_model_parallel_size",
    "c": "context_parallel_size",
    "e": "expert_model_parallel_size",
}


def read_areal(launch: Launch) -> Draft:
    """Return the settings of a recipe of AReaL."""
    config = launch.merged_config()
    actor = section(config, ("actor",))
    draft = draft_of("areal", actor.get("path"), launch, has_provider=False)
    backend = str(actor.get("backend") or config.get("allocation_mode") or "")
    sizes = parallel_sizes(backend)
    if sizes is None:
        draft.warnings.append(f"the backend {backend!r} has no Megatron part; relibra balances Megatron only")
    else:
        draft.put_all(sizes, launch.line_of("actor.backend", "allocation_mode"))
    megatron = section(actor, ("megatron",))
    pass_sections(config, draft, launch, "actor.megatron", "actor.megatron.ddp", own=framework_data("areal")["own"])
    if megatron.get("use_torch_fsdp2"):
        draft.put("use_torch_fsdp2", True, launch.line_of("actor.megatron.use_torch_fsdp2"))
    if megatron.get("bridge_type") == "megatron-bridge":
        draft.put("moe_token_dispatcher_type", "alltoall", "AReaL sets it for Megatron-Bridge")
    optimizer = section(actor, ("optimizer",)).get("type", "adam")
    draft.put("optimizer", "adam" if optimizer == "adam_bf16" else optimizer, launch.line_of("actor.optimizer.type"))
    if optimizer == "adam_bf16":
        draft.put("use_precision_aware_optimizer", True, f"adam_bf16, {launch.line_of('type')}")
    if megatron.get("fp8_config"):
        fp8, where = section(megatron, ("fp8_config",)), launch.line_of("actor.megatron.fp8_config")
        draft.put("fp8", fp8.get("mode", "e4m3"), where)
        draft.put("fp8_recipe", fp8.get("recipe", "delayed"), where)
        draft.put("fp8_param", fp8.get("param", False), where)
    if actor.get("use_lora"):
        lora(
            draft,
            rank=actor.get("lora_rank", 32),
            targets=actor.get("target_modules"),
            where=launch.line_of("actor.use_lora"),
        )
    return draft


def parallel_sizes(backend: str) -> dict[str, Any] | None:
    """Return the sizes in `megatron:d1p4t2`, or in `megatron:(attn:d1p4t2|ffn:d1p4e2)`; None without Megatron."""
    match = re.search(r"megatron:(?:\((?P<parts>[^)]*)\)|(?P<plain>[\w]+))", backend)
    if match is None:
        return None
    if match["plain"]:
        return {name: size for letter, name in _SIZES.items() if (size := _size(match["plain"], letter)) is not None}
    parts = dict(each.partition(":")[::2] for each in match["parts"].split("|"))
    attention, experts = parts.get("attn", ""), parts.get("ffn", "")
    found = {name: size for letter, name in _SIZES.items() if (size := _size(attention, letter)) is not None}
    found["expert_model_parallel_size"] = _size(experts, "e") or 1
    found["expert_tensor_parallel_size"] = _size(experts, "t") or 1
    return found


def _size(part: str, letter: str) -> int | None:
    match = re.search(rf"{letter}(\d+)", part)
    return None if match is None else int(match[1])
