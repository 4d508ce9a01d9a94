import re
from pathlib import Path

import pytest

from relibra.cli.checks.finding import CheckResult
from relibra.cli.checks.recipe import examine, judge_recipe
from relibra.cli.recipes import read
from relibra.cli.recipes.frameworks import draft
from relibra.cli.recipes.shipped import framework_data
from relibra.errors import InvalidInput

EXAMPLES = Path(__file__).parents[1] / "recipes" / "examples"


def test_a_refused_recipe_says_which_settings_to_change_where_and_at_what_cost():
    verdict, *found = examine(EXAMPLES / "slime/scripts/run-small-moe.sh", None, [])
    assert verdict.verdict is CheckResult.FAILED
    assert re.match(r"refused for \d settings?: slime, GLM-4.5-Air, family GLM-4.5, \d+ settings$", verdict.reason)
    refused = [each for each in found if each.verdict is CheckResult.FAILED]
    (sharded,) = (each for each in refused if "use_megatron_fsdp" in each.reason)
    assert sharded.reason.endswith("use_megatron_fsdp=True, which shards weights of experts (line 26)")
    assert sharded.fix == "use megatron's DistributedDataParallel"
    assert "whole weights" in sharded.cost
    assert all(each.fix for each in found if each.verdict is not CheckResult.OK)
    taken = " ".join(each.reason for each in found if each.verdict is CheckResult.OK)
    assert "moe_permute_fusion=True (" in taken
    assert "moe_token_dispatcher_type=flex (line 24)" in taken


def test_a_recipe_that_runs_with_less_is_taken_with_a_warning(tmp_path):
    recipe = tmp_path / "recipe.sh"
    recipe.write_text("megatron rlhf --model Qwen/Qwen3-30B-A3B --expert_model_parallel_size 8")
    verdict, *found = examine(recipe, None, [])
    assert verdict.verdict is CheckResult.WARNING
    assert verdict.reason.startswith("taken with a warning: swift, Qwen3-30B-A3B, family Qwen3, ")
    doubts = [each.reason.partition(":")[0] for each in found if each.verdict is not CheckResult.OK]
    assert doubts == ["2 of 2 lines that load relibra are not in it, nor in what it reads", "moe_enable_routing_replay"]
    assert found[1].fix == "add --router_replay_mode R3, or leave it"


def test_a_recipe_without_doubt_is_taken(tmp_path):
    recipe = tmp_path / "recipe.sh"
    recipe.write_text(
        "export RELIBRA_PLANNER=planner:7420\n"
        "megatron rlhf --model Qwen/Qwen3-30B-A3B --expert_model_parallel_size 8 --moe_enable_routing_replay true "
        "--external_plugins $(python -m relibra.integrations.ms_swift)"
    )
    verdict, *found = examine(recipe, None, [])
    assert {each.verdict for each in (verdict, *found)} == {CheckResult.OK}
    assert "expert_model_parallel_size=8 (line 2)" in [each.reason for each in found]
    assert verdict.reason.startswith("taken: swift, ")


@pytest.mark.parametrize(
    ("sizes", "more", "is_told"),
    [
        ("expert_model_parallel_size=8", "", False),
        ("tensor_model_parallel_size=16", "", False),
        ("expert_model_parallel_size=16", "", True),
        ("expert_model_parallel_size=16", "+relibra.reorder=never", False),
        (
            "expert_model_parallel_size=16",
            "actor_rollout_ref.actor.megatron.dist_ckpt_optim_fully_reshardable=True",
            False,
        ),
    ],
)
def test_a_job_on_several_nodes_hears_what_resuming_needs(tmp_path, sizes, more, is_told):
    recipe = tmp_path / "recipe.sh"
    recipe.write_text(
        "python3 -m verl.trainer.main_ppo --config-name=ppo_megatron_trainer.yaml "
        f"actor_rollout_ref.actor.megatron.{sizes} {more}"
    )
    told = [each for each in examine(recipe, None, []) if each.subject == "recipe: checkpoint"]
    assert bool(told) is is_told
    for each in told:
        assert "dist_ckpt_optim_fully_reshardable=True before, or keep experts in place with +relibra" in each.fix


def test_the_megatron_core_that_a_framework_pins_is_judged(monkeypatch):
    monkeypatch.setattr(draft, "framework_data", lambda name: framework_data(name) | {"megatron_core": "0.15.3"})
    verdict, *found = judge_recipe(read.read_here(EXAMPLES / "nemo-rl/recipe.yaml", None, {}))
    assert verdict.reason.startswith("refused for 1 setting: nemo-rl, ")
    assert "megatron-core 0.15.3, which lacks MoELayer.preprocess (nemo-rl at 7ea279a pins it)" in found[1].reason


def test_unknown_options_and_values_are_warnings_and_never_ok():
    found = examine(EXAMPLES / "megatron.sh", None, [])
    assert any("1 unknown option was not judged: my_own_option" in each.reason for each in found)


@pytest.mark.parametrize(
    ("path", "given", "message"),
    [
        (EXAMPLES / "verl.sh", ["TP"], "--set: expected NAME=VALUE"),
        (None, ["TP=1"], "--recipe: expected a file, because"),
        (EXAMPLES / "none.sh", [], "^--recipe: expected a file, got .*none.sh$"),
    ],
)
def test_what_cannot_be_checked_is_refused(path, given, message):
    with pytest.raises(InvalidInput, match=message):
        examine(path, None, given)


_VERL = "python -m verl.trainer.main_ppo model_engine=megatron actor_rollout_ref.actor.megatron.qat.enable={}"
_AREAL = "actor:\n  backend: megatron:d1e8\n  enable_tree_training: {}\n"
_SLIME = "python train.py --actor-num-gpus-per-node 8 --hf-checkpoint Qwen3-30B-A3B --expert-model-parallel-size 8 {}"
_NEMO_RL = """policy:
  model_name: Qwen/Qwen3-30B-A3B
  megatron_cfg: {{enabled: true, context_parallel_size: {}}}
  sequence_packing: {{enabled: {}}}
"""
_ROLL = "actor_train:\n  strategy_args: {{strategy_name: megatron_train}}\n  pg_variant: topr\n{}"


@pytest.mark.parametrize(
    ("name", "text", "refused"),
    [
        ("recipe.sh", _VERL.format("True"), "actor_rollout_ref.actor.megatron.qat.enable=False"),
        ("recipe.sh", _VERL.format("False"), None),
        (
            "recipe.sh",
            _VERL.replace("qat.enable", "dynamic_context_parallel").format("True"),
            "actor_rollout_ref.actor",
        ),
        ("recipe.sh", _SLIME.format("--megatron-deepgemm-moe-forward-layers 3"), "no --megatron-deepgemm"),
        ("recipe.sh", _SLIME.format(""), None),
        ("recipe.sh", "megatron rlhf --rlhf_type grpo --tuner_type full --lora_rank 8 --use_ray false", None),
        ("recipe.sh", "megatron rlhf --rlhf_type grpo --tuner_type full --use_ray true", "no --use_ray"),
        ("recipe.yaml", _NEMO_RL.format(2, "false"), "policy.sequence_packing.enabled=true"),
        ("recipe.yaml", _NEMO_RL.format(2, "true"), None),
        ("recipe.yaml", _AREAL.format("false") + "  _version: v2\n", "actor._version=v1"),
        ("recipe.yaml", _AREAL.format("true"), "actor.enable_tree_training=false"),
        ("recipe.yaml", _AREAL.format("false"), None),
        (
            "recipe.yaml",
            _ROLL.format("  worker_cls: relibra.integrations.roll.RLVRWorker\n"),
            "RLVRPGWorker or Agentic",
        ),
        ("recipe.yaml", _ROLL.format("  worker_cls: relibra.integrations.roll.AgenticPGWorker\n"), None),
        ("recipe.yaml", _ROLL.format(""), None),
    ],
)
def test_what_a_plug_in_refuses_at_start_is_refused_here(tmp_path, name, text, refused):
    recipe = tmp_path / name
    recipe.write_text(text)
    _, *found = examine(recipe, None, [])
    fixes = [each.fix for each in found if each.verdict is CheckResult.FAILED]
    assert len(fixes) == (refused is not None)
    assert refused is None or fixes[0].startswith(f"use {refused}")


def test_a_recipe_of_roll_with_other_losses_hears_which_worker_has_them(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(_ROLL.format(""))
    _, plug_in, *_ = examine(recipe, None, [])
    assert "actor_train.worker_cls=relibra.integrations.roll.RLVRPGWorker" in plug_in.fix


def test_what_replay_would_be_refused_for_is_said_with_the_advice_to_replay(tmp_path):
    recipe = tmp_path / "recipe.sh"
    transformer = "actor_rollout_ref.actor.megatron.override_transformer_config"
    recipe.write_text(f"{_VERL.format('False')} +{transformer}.moe_router_fusion=True")
    (advice,) = (each.fix for each in examine(recipe, None, []) if each.fix and "router_replay.mode=R3" in each.fix)
    assert "moe_router_fusion=False" in advice
    recipe.write_text(f"{_VERL.format('False')} +{transformer}.moe_router_fusion=False")
    (advice,) = (each.fix for each in examine(recipe, None, []) if each.fix and "router_replay.mode=R3" in each.fix)
    assert "moe_router_fusion" not in advice


def test_a_fix_is_what_a_recipe_of_the_framework_writes(tmp_path):
    recipe = tmp_path / "recipe.sh"
    transformer = "+actor_rollout_ref.actor.megatron.override_transformer_config."
    optimizer = "+actor_rollout_ref.actor.optim.override_optimizer_config."
    recipe.write_text(
        "python3 -m verl.trainer.main_ppo model_engine=megatron actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B "
        f"{transformer}cpu_offloading=True {transformer}fp8=e4m3 {transformer}fp8_recipe=delayed "
        "actor_rollout_ref.actor.megatron.use_megatron_fsdp=True"
    )
    fixes = " ".join(each.fix for each in examine(recipe, None, [])[1:] if each.verdict is CheckResult.FAILED)
    assert f"use {transformer}cpu_offloading=False and" in fixes
    assert f"use {transformer}fp8_recipe='blockwise'" in fixes
    assert not re.search(r"(?<![.\w])(cpu_offloading|fp8_recipe)=", fixes)
    assert optimizer not in fixes
