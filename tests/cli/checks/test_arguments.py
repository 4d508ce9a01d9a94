"""Megatron's arguments, as on a command line or in YAML of any depth, are judged as a recipe."""

import subprocess
import sys

import pytest

from relibra.cli.checks.finding import CheckResult
from relibra.cli.checks.recipe import judge_recipe
from relibra.cli.recipes.frameworks.registry import Framework
from relibra.cli.recipes.read import read_here
from relibra.errors import InvalidInput

GOOD = "--moe-token-dispatcher-type alltoall --moe-enable-routing-replay"
_ALLTOALL = "use expert_tensor_parallel_size=1, or moe_token_dispatcher_type='alltoall'"


@pytest.fixture
def found(tmp_path):
    """The findings about arguments that are not fine, each with its fix, besides the verdict."""

    def findings(text, name="arguments.txt"):
        (tmp_path / name).write_text(text)
        _, *each = judge_recipe(read_here(tmp_path / name, Framework.MEGATRON, {}))
        return [(finding.verdict, finding.fix) for finding in each if finding.verdict is not CheckResult.OK]

    return findings


@pytest.mark.parametrize(
    ("more", "fix"),
    [
        ("--moe-router-fusion", "use moe_router_fusion=False"),
        ("--fp8-format hybrid", "use fp8_recipe='blockwise', 'tensorwise' or 'mxfp8'"),
        ("--fp8-format hybrid --fp8-recipe blockwise --fp8-param-gather", "use fp8_param_gather=False"),
        (
            "--cuda-graph-impl=local --cuda-graph-scope moe",
            "use cuda_graph_impl='transformer_engine' with cuda_graph_scope='attn'",
        ),
        ("--expert-tensor-parallel-size 2 --moe-token-dispatcher-type allgather", _ALLTOALL),
        ("--tensor-model-parallel-size 2 --moe-token-dispatcher-type flex", _ALLTOALL),
        (
            "--expert-tensor-parallel-num-weight-shards 2",
            "use expert_tensor_parallel_num_weight_shards=None",
        ),
        ("+actor.megatron.override.delay_wgrad_compute=True", "use delay_wgrad_compute=False"),
        (
            "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend ncclep",
            "use moe_flex_dispatcher_backend='deepep' or 'hybridep'",
        ),
        ("--num-distributed-optimizer-instances 2", "use num_distributed_optimizer_instances=1"),
        ("--use-megatron-fsdp", "use megatron's DistributedDataParallel"),
        ("--use-torch-fsdp2", "use megatron's DistributedDataParallel"),
    ],
)
def test_a_refused_argument_is_named_with_its_fix(more, fix, found):
    assert found(f"torchrun train.py {GOOD} \\\n {more}  # a comment") == [(CheckResult.FAILED, fix)]


_ADAPTERS = {
    CheckResult.FAILED: (
        "use share_expert_adapters=True with Megatron-Bridge 0.6 or newer, or up to 0.5.0 with reorder=never and "
        "without fp8, moe_grouped_gemm=False, or target_modules without linear_fc1 and linear_fc2 of experts"
    ),
    CheckResult.WARNING: (
        "use Megatron-Bridge 0.6 or newer; with gradient_accumulation_fusion=True, one with "
        "finalize_model_grads_with_expert_adapter_sync"
    ),
}


@pytest.mark.parametrize(
    ("more", "verdict"),
    [
        ("peft.share_expert_adapters=true", CheckResult.WARNING),
        ("lora.rank=32 'lora.target_modules=[linear_qkv,linear_fc1]'", CheckResult.WARNING),
        ("lora.rank=32 lora.target_modules=all-linear", CheckResult.WARNING),
        ("lora.rank=32 'lora.target_modules=[linear_fc1]' lora.share_expert_adapters=false", CheckResult.FAILED),
        ("lora.rank=32 lora.target_modules=all-linear lora.experts_shared_outer_loras=true", CheckResult.FAILED),
        ("lora.rank=32 'lora.target_modules=[linear_fc1]' model.moe_grouped_gemm=false", None),
        ("lora.rank=32 'lora.target_modules=[linear_qkv,linear_proj]'", None),
        ("lora.rank=32 'lora.target_modules=[\"*.shared_experts.linear_fc1\"]'", None),
        ("lora.rank=0 'lora.target_modules=[linear_fc1]'", None),
    ],
)
def test_S9_adapters_that_not_all_experts_share_are_refused(more, verdict, found):
    assert found(f"{GOOD} {more}") == ([(verdict, _ADAPTERS[verdict])] if verdict else [])


def test_accepted_arguments_pass_as_words_and_as_yaml(found):
    assert found(f"{GOOD} --cuda-graph-impl transformer_engine --cuda-graph-scope attn") == []
    assert found(f"{GOOD} --cuda-graph-impl transformer_engine --cuda-graph-scope attn,mlp") == []
    optimizer = "--use-precision-aware-optimizer --exp-avg-dtype bf16 --optimizer-cpu-offload"
    assert found(f"{GOOD} {optimizer}") == []
    assert found(f"{GOOD} --tensor-model-parallel-size 4 --expert-tensor-parallel-size 2") == []
    sizes = "--tensor-model-parallel-size 2 --tensor-parallel-num-weight-shards 2 --expert-tensor-parallel-size 1"
    assert found(f"{GOOD} {sizes}") == []
    fp8 = "--fp8-format e4m3 --fp8-recipe blockwise --moe-router-padding-for-fp8 --moe-grouped-gemm"
    assert found(f"{GOOD} {fp8}") == []
    assert found(f"{GOOD} --moe-token-dispatcher-type flex --moe-enable-deepep") == []
    inner = "  moe-token-dispatcher-type: alltoall\n  moe_enable_routing_replay: true\n"
    assert found(f"model:\n{inner}", "arguments.yaml") == []


def test_all_refusals_are_reported_at_once_and_missing_replay_is_a_warning(found):
    assert [verdict for verdict, _ in found("--moe-router-fusion --delay-wgrad-compute --fp8-format e4m3")] == [
        CheckResult.FAILED,  # delayed gradients of weights
        CheckResult.FAILED,  # delayed scaling of fp8; router fusion alone only prevents replay
        CheckResult.WARNING,
    ]


def test_text_that_is_no_command_line_is_refused(found):
    with pytest.raises(InvalidInput, match="--recipe: expected arguments as on a command line"):
        found("--a 'b")


def test_an_option_that_is_not_known_is_listed_and_never_ok(found):
    ((verdict, fix),) = found(f"{GOOD} --my-own-option 3 --lr 1e-6")
    assert verdict is CheckResult.WARNING
    assert "cannot refuse what it does not know" in fix


def test_the_value_of_a_variable_is_not_guessed(tmp_path):
    (tmp_path / "a.txt").write_text(f"{GOOD} --expert-tensor-parallel-size $ETP --save $DIR")
    _, finding, *_ = judge_recipe(read_here(tmp_path / "a.txt", None, {}))
    assert finding.verdict is CheckResult.WARNING
    assert finding.reason == "line 1: the value of expert_tensor_parallel_size is $ETP, which the file does not tell"


def test_a_section_that_is_switched_off_says_nothing(found):
    text = (
        "moe_token_dispatcher_type: alltoall\nmoe_enable_routing_replay: true\nfp8_cfg: {enabled: false, fp8: e4m3}\n"
    )
    assert found(text, "arguments.yaml") == []


def test_the_arguments_are_judged_where_torch_is_not_installed(tmp_path):
    arguments = tmp_path / "arguments.txt"
    arguments.write_text("--use-megatron-fsdp")
    script = (
        "import sys; sys.modules |= {'torch': None, 'megatron': None}\n"
        "from pathlib import Path\n"
        "from relibra.cli.checks.recipe import examine\n"
        f"print([each.verdict for each in examine(Path({str(arguments)!r}), None, []) if 'fsdp' in each.reason])"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "[<CheckResult.FAILED: 'failed'>]"
