"""Frameworks that hand a command line to Megatron's own parser: slime, miles, ms-swift, and Megatron itself."""

from typing import Any

from relibra.cli.recipes.arguments import parsed
from relibra.cli.recipes.frameworks.passing import family_of, lora, pass_on
from relibra.cli.recipes.launch import Launch
from relibra.cli.recipes.recipe import Draft
from relibra.cli.recipes.shipped import family_origin, find_family, framework_data, known_options, origin
from relibra.cli.recipes.unknown import shown

_NO_VALUE = ("", "none", "None", "null")


def read_command_line(launch: Launch, framework: str) -> Draft:
    """Return the settings of a command line."""
    data = framework_data(framework)
    draft = Draft()
    draft.put_all(data["settings"], origin(data))
    options = launch.options()
    model = next((str(options[each]) for each in ("hf_checkpoint", "model", "load") if each in options), "")
    draft.model, draft.family = shown(model).rstrip("/").rpartition("/")[2], find_family(shown(model))
    values = {name: _value(name, value) for name, value in options.items() if not name.startswith("no_")}
    values |= {name: True for name in options if name.startswith("no_") and name in known_options()}
    if framework == "swift" and options.get("recompute_granularity") == "none":
        values["recompute_granularity"] = None
    _translate(values)
    if framework == "slime" and values.get("moe_token_dispatcher_type") == "allgather":
        values["moe_token_dispatcher_type"] = "alltoall"
    pass_on(values, draft, launch)
    if "moe_shared_expert_intermediate_size" in values:
        draft.put("has_shared_experts", True, launch.line_of("--moe-shared-expert-intermediate-size"))
    if values.get("megatron_to_hf_mode") == "bridge" or framework == "swift":
        _from_provider(model, values, draft, launch)
    where, targets = launch.line_of("--lora-rank", "--tuner_type"), options.get("target_modules", "all-linear")
    if framework == "swift":
        if options.get("tuner_type", options.get("train_type")) == "lora":
            lora(draft, rank=options.get("lora_rank", 8), targets=targets, where=where)
    elif "lora_rank" in options:
        lora(draft, rank=options["lora_rank"], targets=targets, where=where)
        # miles builds LoRA models with this dispatcher, whatever the recipe says.
        draft.put("moe_token_dispatcher_type", "alltoall", origin(data))
    _replay(options, draft, launch)
    if (backend := options.get("train_backend", "megatron")) != "megatron":
        draft.warnings.append(f"the recipe trains with {backend}; relibra balances Megatron only")
    return draft


def _value(name: str, value: Any) -> Any:
    if value in _NO_VALUE:
        return None
    if name in ("fp8_format", "moe_layer_freq") or not isinstance(value, str):
        return value
    return parsed(value)


def _translate(values: dict[str, Any]) -> None:
    """Set what Megatron derives from other arguments."""
    if values.pop("recompute_activations", None):
        values["recompute_granularity"] = "selective"
    if values.pop("enable_cuda_graph", None):
        values["cuda_graph_impl"] = "local"
    if values.pop("external_cuda_graph", None):
        values["cuda_graph_impl"] = "transformer_engine"
    scope = values.get("cuda_graph_scope")
    if isinstance(scope, str):
        values["cuda_graph_scope"] = scope.split(",")


def _from_provider(model: str, values: dict[str, Any], draft: Draft, launch: Launch) -> None:
    """Set what the model's provider decides where Megatron-Bridge builds the model."""
    family = family_of(model, draft, launch)
    if family is None:
        return
    overlap = family.settings.get("moe_shared_expert_overlap")
    if overlap is not None and "moe_shared_expert_overlap" not in values:
        draft.put("moe_shared_expert_overlap", overlap, family_origin(family))
    if family.mtp_num_layers and "mtp_num_layers" not in values:
        draft.put("mtp_num_layers", family.mtp_num_layers, family_origin(family))
    draft.put("has_shared_experts", family.has_shared_experts, family_origin(family))


def _replay(options: dict[str, Any], draft: Draft, launch: Launch) -> None:
    if options.get("use_rollout_routing_replay") or options.get("use_routing_replay"):
        mode = "R3" if options.get("use_rollout_routing_replay") else "R2"
        where = launch.line_of("--use-rollout-routing-replay", "--use-routing-replay")
        draft.put("replay", mode, where)
        draft.warnings.append(
            f"{where}: the framework replays routing by itself ({mode}), beside Megatron's RouterReplay; "
            "relibra plans from the same routing, but do not also give that routing to relibra's agent"
        )
