"""Frameworks that are configured by YAML and Hydra: verl, SkyRL, NeMo-RL, AReaL and ROLL."""

import re
from typing import Any

from relibra.cli.recipes.arguments import at_path
from relibra.cli.recipes.frameworks.draft import Draft

_ENGINE = (
    "tensor_model_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "context_parallel_size",
    "sequence_parallel",
    "use_distributed_optimizer",
    "use_megatron_fsdp",
)
_OPTIMIZER = ("optimizer", "use_precision_aware_optimizer")
_REPLAYING = ("R2", "R3", "record", "replay")
_AREAL_SIZES = {
    "t": "tensor_model_parallel_size",
    "p": "pipeline_model_parallel_size",
    "c": "context_parallel_size",
    "e": "expert_model_parallel_size",
}


def read_verl(draft: Draft) -> None:
    """Read overrides of `actor_rollout_ref.actor.megatron`, or of `engine` for supervised training."""
    launch, config = draft.launch, draft.launch.merged_config
    is_rl = "actor_rollout_ref" in config
    megatron = "actor_rollout_ref.actor.megatron" if is_rl else "engine"
    optim = "actor_rollout_ref.actor.optim" if is_rl else "optim"
    engine, optimizer = launch.section(megatron), launch.section(optim)
    model = launch.section("actor_rollout_ref.model") or launch.section("model")
    draft.begin(model.get("path"), has_provider=True)
    if draft.family is not None and at_path(model, "mtp.enable"):
        draft.put_line("mtp_num_layers", draft.family.mtp_num_layers, "mtp.enable", "enable")
    draft.take({name: engine[name] for name in _ENGINE if name in engine}, megatron)
    draft.take_sections(*(f"{megatron}.override_{name}_config" for name in ("transformer", "ddp")))
    draft.take({name: optimizer[name] for name in _OPTIMIZER if name in optimizer}, optim)
    if engine.get("dtype") in ("float16", "fp16"):
        draft.put("use_precision_aware_optimizer", True, f"verl sets it with dtype=float16, {launch.line_of('dtype')}")
    draft.take_sections(f"{optim}.override_optimizer_config")
    if (mode := at_path(engine, "router_replay.mode")) in _REPLAYING:
        draft.put_line("moe_enable_routing_replay", True, "router_replay.mode", "mode")
        draft.put_line("replay", mode, "router_replay.mode", "mode")
    draft.lora(at_path(model, "lora.rank"), at_path(model, "lora.target_modules", "all-linear"), "lora.rank", "rank")
    paths = ("model_engine", "actor_rollout_ref.actor.strategy", "engine.strategy", "engine", "strategy")
    is_chosen = (
        "megatron" in [at_path(config, path) for path in paths]
        or any("megatron" in word for word in launch.words if "config-name" in word or "engine" in word)
        or "megatron" in str(launch.options().get("config_name"))
    )
    draft.expect_megatron(is_chosen, "the recipe does not choose Megatron (model_engine=megatron)")


def read_skyrl(draft: Draft) -> None:
    """Read overrides of `trainer.policy.megatron_config`, or of `megatron_config` for supervised training."""
    launch, config = draft.launch, draft.launch.merged_config
    is_rl = isinstance(config.get("trainer"), dict)
    trainer, policy = (launch.section(name) if is_rl else config for name in ("trainer", "trainer.policy"))
    megatron = "trainer.policy.megatron_config" if is_rl else "megatron_config"
    draft.begin(at_path(policy, "model.path"), has_provider=True)
    inner = ("transformer_config_kwargs", "optimizer_config_kwargs", "ddp_config")
    draft.take_sections(megatron, *(f"{megatron}.{name}" for name in inner))
    if trainer.get("gradient_checkpointing") is False:
        draft.put_line("recompute_granularity", None, "gradient_checkpointing")
    replay = draft.settings.get("moe_enable_routing_replay")
    if replay is not None and replay.value:
        draft.put_line("replay", "R3", "moe_enable_routing_replay")
    if draft.is_parallel_in_context() and trainer.get("remove_microbatch_padding") is False:
        draft.put_line("context_parallel_with_padding", True, "trainer.remove_microbatch_padding")
    targets = at_path(policy, "model.lora.target_modules", "all-linear")
    targets = draft.data["lora_targets"] if targets == "all-linear" else targets
    draft.lora(at_path(policy, "model.lora.rank"), targets, "lora.rank", "trainer.policy.model.lora.rank")
    is_chosen = trainer.get("strategy", "megatron") == "megatron"
    draft.expect_megatron(is_chosen, "trainer.strategy is not megatron")


def read_nemo_rl(draft: Draft) -> None:
    """Read `policy.megatron_cfg`, whose bases name all settings."""
    launch, section = draft.launch, "policy.megatron_cfg"
    policy, megatron = launch.section("policy"), launch.section(section)
    draft.begin(policy.get("model_name"), has_provider=True)
    draft.take_sections(section, f"{section}.optimizer", f"{section}.distributed_data_parallel_config")
    is_recomputed = megatron.get("activation_checkpointing")
    granularity = megatron.get("recompute_granularity", "full") if is_recomputed else None
    draft.put_line("recompute_granularity", granularity, f"{section}.activation_checkpointing")
    if at_path(megatron, "fp8_cfg.enabled"):
        for name in ("fp8", "fp8_recipe", "fp8_param"):
            draft.put_line(name, at_path(megatron, f"fp8_cfg.{name}"), f"{section}.fp8_cfg")
    if at_path(policy, "router_replay.enabled"):
        draft.put_line("moe_enable_routing_replay", True, "policy.router_replay")
        draft.put_line("replay", "R3", "policy.router_replay")
    draft.take_sections(f"{section}.model_overrides")
    if at_path(megatron, "peft.enabled"):
        peft = launch.section(f"{section}.peft")
        targets = peft.get("target_modules") or ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
        draft.lora(peft.get("dim", 8), targets, f"{section}.peft")
    if draft.is_parallel_in_context() and not at_path(policy, "sequence_packing.enabled"):
        draft.put_line("context_parallel_without_packing", True, f"{section}.context_parallel_size")
    if at_path(policy, "generation.backend") == "megatron":
        draft.warnings.append(
            f"{launch.line_of('policy.generation.backend')}: generation.backend=megatron reads weights by place, so "
            "the plug-in refuses it where experts move: on several nodes, set policy.relibra.reorder=never, or "
            "generate with vllm"
        )
    if policy.get("quant_cfg"):
        draft.warnings.append(
            f"{launch.line_of('policy.quant_cfg')}: quant_cfg gives the experts of a rank quantisers of ModelOpt, "
            "which do not move with an expert; this was not tested"
        )
    draft.expect_megatron(megatron.get("enabled"), "policy.megatron_cfg.enabled is not true")


def read_areal(draft: Draft) -> None:
    """Read `actor.backend`, which holds the parallelism, and `actor.megatron`."""
    launch = draft.launch
    actor, megatron = launch.section("actor"), launch.section("actor.megatron")
    draft.begin(actor.get("path"), has_provider=False)
    backend = str(actor.get("backend") or launch.merged_config.get("allocation_mode") or "")
    sizes = parallel_sizes(backend)
    draft.expect_megatron(sizes is not None, f"the backend {backend!r} has no Megatron part")
    for name, size in (sizes or {}).items():
        draft.put_line(name, size, "actor.backend", "allocation_mode")
    draft.take_sections("actor.megatron", "actor.megatron.ddp")
    if megatron.get("use_torch_fsdp2"):
        draft.put_line("use_torch_fsdp2", True, "actor.megatron.use_torch_fsdp2")
    if megatron.get("bridge_type") == "megatron-bridge":
        draft.put("moe_token_dispatcher_type", "alltoall", "AReaL sets it for Megatron-Bridge")
    optimizer = launch.section("actor.optimizer").get("type", "adam")
    draft.put_line("optimizer", "adam" if optimizer == "adam_bf16" else optimizer, "actor.optimizer.type")
    if optimizer == "adam_bf16":
        draft.put("use_precision_aware_optimizer", True, f"adam_bf16, {launch.line_of('type')}")
    if fp8 := launch.section("actor.megatron.fp8_config"):
        for name, key, default in (
            ("fp8", "mode", "e4m3"),
            ("fp8_recipe", "recipe", "delayed"),
            ("fp8_param", "param", False),
        ):
            draft.put_line(name, fp8.get(key, default), "actor.megatron.fp8_config")
    if actor.get("use_lora"):
        draft.lora(actor.get("lora_rank", 32), actor.get("target_modules"), "actor.use_lora")


def parallel_sizes(backend: str) -> dict[str, Any] | None:
    """Return the sizes in `megatron:d1p4t2`, or in `megatron:(attn:d1p4t2|ffn:d1p4e2)`; None without Megatron."""
    match = re.search(r"megatron:(?:\((?P<parts>[^)]*)\)|(?P<plain>\w+))", backend)
    if match is None:
        return None
    parts = dict(part.partition(":")[::2] for part in (match["parts"] or f"attn:{match['plain']}").split("|"))
    sizes = {name: _size(parts.get("attn", ""), letter) for letter, name in _AREAL_SIZES.items()}
    if match["parts"]:
        sizes["expert_model_parallel_size"] = _size(parts.get("ffn", ""), "e") or 1
        sizes["expert_tensor_parallel_size"] = _size(parts.get("ffn", ""), "t") or 1
    return {name: size for name, size in sizes.items() if size is not None}


def _size(part: str, letter: str) -> int | None:
    match = re.search(rf"{letter}(\d+)", part)
    return None if match is None else int(match[1])


def read_roll(draft: Draft) -> None:
    """Read `actor_train.strategy_args.strategy_config`."""
    section, trained = "actor_train.strategy_args.strategy_config", draft.launch.section("actor_train")
    model = at_path(trained, "model_args.model_name_or_path") or draft.launch.merged_config.get("pretrain")
    draft.begin(model, has_provider=False)
    draft.take_sections(section, f"{section}.additional_configs")
    rank, targets = (at_path(trained, f"model_args.lora_{name}") for name in ("rank", "target"))
    draft.lora(rank, targets or "all-linear", "actor_train.model_args.lora_rank", "lora_rank")
    if trained.get("pg_variant"):
        draft.plug_in = [line.replace(".RLVRWorker", ".RLVRPGWorker") for line in draft.plug_in]
        if re.fullmatch(r"relibra\..*(?<!PG)Worker", str(trained.get("worker_cls"))):
            draft.put_line("pg_variant", trained["pg_variant"], "actor_train.pg_variant", "pg_variant")
    is_chosen = at_path(trained, "strategy_args.strategy_name") == "megatron_train"
    draft.expect_megatron(is_chosen, "actor_train.strategy_args.strategy_name is not megatron_train")
