"""Frameworks that hand a command line to Megatron's own parser: slime, miles, ms-swift, and Megatron itself."""

from typing import Any

from relibra.cli.recipes.arguments import parse
from relibra.cli.recipes.frameworks.draft import Draft
from relibra.cli.recipes.shipped import family_origin, known_options, origin

_NO_VALUE = ("", "none", "None", "null")


def read_command_line(draft: Draft) -> None:
    """Read the options of a command line."""
    framework, launch = draft.framework, draft.launch
    options = launch.all_options() if framework == "megatron" else launch.options()
    draft.put_defaults()
    model = next((str(options[option]) for option in ("hf_checkpoint", "model", "load") if option in options), "")
    draft.name_model(model)
    values = {name: _value(name, value) for name, value in options.items() if not name.startswith("no_")}
    values |= {name: True for name in options if name.startswith("no_") and name in known_options()}
    if framework == "swift":
        values.pop("lora_rank", None)  # it counts with --tuner_type lora alone
        if options.get("recompute_granularity") == "none":
            values["recompute_granularity"] = None
    _translate(values)
    if framework == "slime" and values.get("moe_token_dispatcher_type") == "allgather":
        values["moe_token_dispatcher_type"] = "alltoall"
    draft.take(values)
    if "moe_shared_expert_intermediate_size" in values:
        draft.put_line("has_shared_experts", True, "--moe-shared-expert-intermediate-size")
    if values.get("megatron_to_hf_mode") == "bridge" or framework == "swift":
        _put_provider(model, values, draft)
    targets = options.get("target_modules", "all-linear")
    if framework == "swift":
        if options.get("tuner_type", options.get("train_type")) == "lora":
            draft.lora(options.get("lora_rank", 8), targets, "--lora-rank", "--tuner_type")
    elif framework != "megatron" and "lora_rank" in options:
        draft.lora(options["lora_rank"], targets, "--lora-rank")
        # miles builds LoRA models with this dispatcher, whatever the recipe says.
        draft.put("moe_token_dispatcher_type", "alltoall", origin(draft.data))
    if options.get("use_rollout_routing_replay") or options.get("use_routing_replay"):
        mode = "R3" if options.get("use_rollout_routing_replay") else "R2"
        where = launch.line_of("--use-rollout-routing-replay", "--use-routing-replay")
        draft.put("replay", mode, where)
        draft.warnings.append(
            f"{where}: the framework replays routing by itself ({mode}), beside Megatron's RouterReplay; "
            "relibra plans from the same routing, but do not also give that routing to relibra's agent"
        )
    backend = options.get("train_backend", "megatron")
    draft.expect_megatron(backend == "megatron", f"the recipe trains with {backend}")


def _value(name: str, value: Any) -> Any:
    if value in _NO_VALUE:
        return None
    if name in ("fp8_format", "moe_layer_freq") or not isinstance(value, str):
        return value
    return parse(value)


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


def _put_provider(model: str, values: dict[str, Any], draft: Draft) -> None:
    """Set what the model's provider decides where Megatron-Bridge builds the model."""
    family = draft.find_family(model)
    if family is None:
        return
    provided = {
        "moe_shared_expert_overlap": family.settings.get("moe_shared_expert_overlap"),
        "mtp_num_layers": family.mtp_num_layers or None,
    }
    for name, value in provided.items():
        if value is not None and name not in values:
            draft.put(name, value, family_origin(family))
    draft.put("has_shared_experts", family.has_shared_experts, family_origin(family))
