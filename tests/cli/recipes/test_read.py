"""Recipes of each framework become effective settings. The examples are written for these tests, in each one's way."""

from pathlib import Path

import pytest

from relibra.cli.recipes.frameworks.registry import Framework, guess_framework
from relibra.cli.recipes.judge import judge
from relibra.cli.recipes.read import read_recipe
from relibra.errors import InvalidInput

EXAMPLES = Path(__file__).with_name("examples")
EXPECTED = {
    "slime/scripts/run-small-moe.sh": {
        "tensor_model_parallel_size": 2,
        "expert_tensor_parallel_size": 1,
        "moe_token_dispatcher_type": "flex",
        "moe_flex_dispatcher_backend": "deepep",
        "moe_permute_fusion": True,
        "optimizer_cpu_offload": True,
        "has_shared_experts": True,
        "fp8": None,
    },
    "verl.sh": {
        "tensor_model_parallel_size": 4,
        "expert_model_parallel_size": 8,
        "expert_tensor_parallel_size": 1,
        "moe_token_dispatcher_type": "alltoall",
        "moe_shared_expert_overlap": True,
        "moe_permute_fusion": True,
        "moe_enable_routing_replay": True,
        "use_precision_aware_optimizer": True,
        "mtp_num_layers": None,
    },
    "skyrl.sh": {
        "expert_model_parallel_size": 8,
        "moe_token_dispatcher_type": "alltoall",
        "moe_enable_routing_replay": True,
        "optimizer_cpu_offload": False,
        "recompute_granularity": "selective",
        "share_expert_adapters": True,
    },
    "nemo-rl/recipe.yaml": {
        "tensor_model_parallel_size": 4,
        "recompute_granularity": "full",
        "use_precision_aware_optimizer": False,
        "moe_shared_expert_overlap": False,
        "moe_enable_routing_replay": True,
        "fp8": None,
    },
    "nemo-rl/orphan.yaml": {
        "expert_model_parallel_size": 8,
        "moe_token_dispatcher_type": "alltoall",
        "use_precision_aware_optimizer": True,
    },
    "areal.yaml": {
        "tensor_model_parallel_size": 4,
        "pipeline_model_parallel_size": 12,
        "expert_model_parallel_size": 4,
        "expert_tensor_parallel_size": 1,
        "use_precision_aware_optimizer": True,
        "moe_permute_fusion": False,
        "fp8": "hybrid",
        "fp8_recipe": "blockwise",
        "fp8_param": False,
    },
    "roll.yaml": {
        "tensor_model_parallel_size": 2,
        "virtual_pipeline_model_parallel_size": 8,
        "moe_token_dispatcher_type": "alltoall",
    },
    "swift.sh": {
        "expert_tensor_parallel_size": 1,
        "moe_token_dispatcher_type": "alltoall",
        "moe_shared_expert_overlap": True,
        "recompute_granularity": None,
        "share_expert_adapters": True,
    },
    "megatron.sh": {"num_moe_experts": 64, "use_megatron_fsdp": True, "moe_token_dispatcher_type": "alltoall"},
}
REFUSED = {
    "slime/scripts/run-small-moe.sh": {"use_megatron_fsdp"},
    "verl.sh": {"delay_wgrad_compute"},
    "skyrl.sh": {"delay_wgrad_compute"},
    "nemo-rl/recipe.yaml": set(),
    "nemo-rl/orphan.yaml": {"use_megatron_fsdp"},
    "areal.yaml": set(),
    "roll.yaml": {"delay_wgrad_compute"},
    "swift.sh": {"delay_wgrad_compute"},
    "megatron.sh": {"use_megatron_fsdp"},
}
"""The settings among `_REFUSABLE` to change. The agent may learn to run with other settings of the examples."""
_REFUSABLE = {"delay_wgrad_compute", "use_megatron_fsdp"}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_settings_of_a_recipe_are_what_its_framework_makes_of_them(name):
    recipe = read_recipe(EXAMPLES / name, None, {})
    assert {each: recipe.value(each) for each in EXPECTED[name]} == EXPECTED[name]


@pytest.mark.parametrize("name", REFUSED)
def test_the_table_of_the_agent_judges_them(name):
    values = {each: given.value for each, given in read_recipe(EXAMPLES / name, None, {}).settings.items()}
    assert {each.setting for each in judge(values).refusals} & _REFUSABLE == REFUSED[name]


def test_a_setting_names_the_line_that_sets_it_or_the_default():
    recipe = read_recipe(EXAMPLES / "slime/scripts/run-small-moe.sh", Framework.SLIME, {})
    lines = (EXAMPLES / "slime/scripts/run-small-moe.sh").read_text().splitlines()
    number = int(recipe.settings["moe_token_dispatcher_type"].origin.removeprefix("line "))
    assert lines[number - 1].strip() == "--moe-token-dispatcher-type flex"
    assert recipe.settings["use_distributed_optimizer"].origin == "default of THUDM/slime at 624b824"
    yaml_lines = (EXAMPLES / "nemo-rl/recipe.yaml").read_text().splitlines()
    settings = read_recipe(EXAMPLES / "nemo-rl/recipe.yaml", None, {}).settings
    number = int(settings["use_precision_aware_optimizer"].origin.removeprefix("line "))
    assert yaml_lines[number - 1].strip() == "use_precision_aware_optimizer: false"
    parallelism = read_recipe(EXAMPLES / "areal.yaml", None, {}).settings["expert_model_parallel_size"]
    assert parallelism.origin == "line 2"
    inherited = "default of recipe.yaml, or of a file that it names"
    assert settings["moe_shared_expert_overlap"].origin == inherited
    overlap = read_recipe(EXAMPLES / "verl.sh", None, {}).settings["moe_shared_expert_overlap"]
    assert overlap.origin == "provider of DeepSeek-V3 in Megatron-Bridge at 067f987"


def test_what_the_recipe_takes_from_outside_can_be_given():
    script = EXAMPLES / "slime/scripts/run-small-moe.sh"
    assert read_recipe(script, None, {"TP": "8"}).value("tensor_model_parallel_size") == 8
    assert read_recipe(EXAMPLES / "verl.sh", None, {"DEVICE": "npu"}).value("tensor_model_parallel_size") == 16


def test_a_value_that_the_file_does_not_tell_is_named_and_not_guessed(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(
        "EP=$(nproc)\npython3 train.py $(python3 model_args.py moe) --moe-token-dispatcher-type $DISPATCHER "
        "--expert-model-parallel-size $EP --tensor-model-parallel-size $((NODES * 2))"
    )
    recipe = read_recipe(script, Framework.SLIME, {})
    assert "moe_token_dispatcher_type" not in recipe.settings
    assert recipe.warnings == (
        "run.sh: the options that $(python3 model args py moe) prints are not known",
        "line 2: the value of moe_token_dispatcher_type is $DISPATCHER, which the file does not tell",
        "line 2: the value of expert_model_parallel_size is $(nproc), which the file does not tell",
        "line 2: the value of tensor_model_parallel_size may also be 0: it depends on the machine",
    )


@pytest.mark.parametrize(
    ("framework", "name", "text", "warning"),
    [
        (Framework.SLIME, "run.sh", "python3 train.py --train-backend fsdp", "the recipe trains with fsdp; "),
        (
            Framework.NEMO_RL,
            "a.yaml",
            "policy:\n  quant_cfg: w4.yaml\n  megatron_cfg: {enabled: true}",
            "line 2: quant_cfg ",
        ),
        (
            Framework.SKYRL,
            "run.sh",
            "python -m skyrl.train.main_sft strategy=fsdp megatron_config.a=1",
            "trainer.strategy ",
        ),
    ],
)
def test_what_the_agent_does_not_see_is_said(framework, name, text, warning, tmp_path):
    (tmp_path / name).write_text(text)
    assert any(each.startswith(warning) for each in read_recipe(tmp_path / name, framework, {}).warnings)


def test_supervised_training_of_skyrl_has_its_settings_at_the_top(tmp_path):
    (tmp_path / "run.sh").write_text(
        "uv run python -m skyrl.train.main_sft strategy=megatron model.path=Qwen/Qwen3-30B-A3B model.lora.rank=8 "
        "megatron_config.expert_model_parallel_size=8 gradient_checkpointing=false"
    )
    recipe = read_recipe(tmp_path / "run.sh", None, {})
    assert (recipe.model, recipe.value("expert_model_parallel_size")) == ("Qwen3-30B-A3B", 8)
    assert recipe.value("recompute_granularity") is None
    assert recipe.value("share_expert_adapters")


@pytest.mark.parametrize(("option", "num_warnings"), [("", 0), ("--expert-model-parallel-size $EP", 1)])
def test_a_condition_on_the_machine_is_a_warning_if_a_setting_depends_on_it(option, num_warnings, tmp_path):
    (tmp_path / "run.sh").write_text(
        "NVLINK=$(nvidia-smi | grep -c NVLink)\n"
        'if [ "$NVLINK" -gt 0 ]; then HAS_NVLINK=1 EP=8; else HAS_NVLINK=0 EP=4; fi\n'
        f'ray job submit --runtime-env-json="{{A: ${{HAS_NVLINK}}}}" -- python3 train.py --lr 1 {option}'
    )
    recipe = read_recipe(tmp_path / "run.sh", Framework.SLIME, {})
    assert len(recipe.warnings) == num_warnings
    assert recipe.value("expert_model_parallel_size") == (4 if option else None)


def test_a_training_that_needs_a_program_to_succeed_is_found(tmp_path):
    (tmp_path / "run.sh").write_text("pip install x && python3 train.py --expert-model-parallel-size 8")
    assert read_recipe(tmp_path / "run.sh", Framework.SLIME, {}).value("expert_model_parallel_size") == 8


def test_unknown_options_are_listed():
    assert read_recipe(EXAMPLES / "megatron.sh", None, {}).unknown == ("my_own_option (line 2)",)


def test_a_default_that_is_neither_beside_the_file_nor_shipped_is_named(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("defaults: none.yaml\npolicy: {model_name: Qwen3-30B-A3B, megatron_cfg: {enabled: true}}\n")
    (warning,) = read_recipe(recipe, Framework.NEMO_RL, {}).warnings
    assert warning == "recipe.yaml: its default none.yaml is not beside it, so settings in it are not known"


@pytest.mark.parametrize("name", EXPECTED)
def test_the_framework_of_an_example_is_certain(name):
    framework = name.partition("/")[0].removesuffix(".sh").removesuffix(".yaml")
    assert guess_framework((EXAMPLES / name).read_text()) == framework


def test_a_launcher_of_slime_or_of_its_fork_is_known_by_its_options():
    options = "python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8"
    assert guess_framework(options) is Framework.SLIME
    assert guess_framework(f"cd /root/miles/ && {options}") is Framework.MILES


@pytest.mark.parametrize("text", ["python train.py --lr 1", "verl.trainer.main_ppo\nslime/train.py"])
def test_a_file_without_a_certain_sign_needs_the_name_of_its_framework(text, tmp_path):
    (tmp_path / "run.sh").write_text(text)
    with pytest.raises(InvalidInput, match="--framework: expected one of slime, verl"):
        read_recipe(tmp_path / "run.sh", None, {})


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.sh", "echo hello", "starts none"),
        ("a.sh", "if true; then", "line 2"),
        ("a.py", "print('hello')", "a Python program, which is not run here; .*as .txt"),
        ("a.yaml", "- a", "a YAML mapping"),
        ("a.yaml", "a: [", "expected YAML"),
        ("a.yaml", "defaults: a.yaml", "come to an end"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(name, text, message, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidInput, match=message):
        read_recipe(tmp_path / name, Framework.SLIME, {})
    with pytest.raises(InvalidInput, match="--recipe: expected a file"):
        read_recipe(tmp_path / "none.sh", Framework.SLIME, {})
