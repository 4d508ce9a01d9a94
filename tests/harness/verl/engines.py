"""Engines of verl for a tiny Qwen3-MoE, and batches as its workers hand them over.

B samples, P prompt and R response places, L layers, K top-k.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from harness import bridge_on_cpu
from harness.tiny_qwen3_moe import NUM_LAYERS, OFF_ON_CPU, TOP_K, random_routes
from harness.trained import ADAM_EPS

NUM_SAMPLES, PROMPT, RESPONSE = 4, 6, 8
RANKS = 2
"""The ranks of all scenarios but those of other layouts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The parallelism of an engine; what is left of the ranks is data parallelism."""

    expert: int = RANKS
    tensor: int = 1
    context: int = 1
    pipeline: int = 1
    chunks: int | None = None
    """The model chunks of each pipeline stage."""


def build(
    engine: type[Any],
    model: Path,
    *,
    mode: str = "R3",
    offload: bool = False,
    forward_only: bool = False,
    has_value_head: bool = False,
    layout: Layout | None = None,
    vanilla_mbridge: bool = False,
    is_adapted: bool = False,
    transformer: Mapping[str, Any] = MappingProxyType({}),
    **of_engine: Any,
) -> Any:
    """Build and initialize an engine as verl's `TrainingWorker` does.

    Args:
        engine: the class of the engine.
        model: the folder of the model, as Hugging Face writes it.
        mode: verl's mode of routing replay.
        offload: whether verl keeps parameters, gradients and optimizer state on the host between passes.
        forward_only: whether the engine is that of a reference, which never trains.
        has_value_head: whether the engine is that of a critic.
        layout: the parallelism; expert parallelism on two ranks by default.
        vanilla_mbridge: whether mbridge makes the model and reads its weights, and not Megatron-Bridge.
        is_adapted: whether LoRA is trained, with one adapter for all experts of a layer.
        transformer: more settings of megatron's transformer.
        of_engine: more settings of verl's engine.
    """
    layout = layout or Layout()
    from omegaconf import OmegaConf
    from verl import trainer
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import HFModelConfig, McoreEngineConfig, McoreOptimizerConfig
    from verl.workers.config.engine import EngineRouterReplayConfig

    from harness import bridge_lora

    bridge_lora.install()
    settings = OmegaConf.load(Path(trainer.__file__).parent / "config/model/hf_model.yaml").lora
    model_config = HFModelConfig(
        lora=OmegaConf.to_container(settings) | {"rank": 4 * is_adapted, "merge": True},
        path=str(model),
        load_tokenizer=False,
        override_config={"attn_implementation": "eager"},
        external_lib="relibra.integrations.verl",
        model_type="value_model" if has_value_head else "language_model",
    )
    model_config.tokenizer = SimpleNamespace(pad_token_id=0, save_pretrained=lambda *_, **__: None)
    engine_config = McoreEngineConfig(
        expert_model_parallel_size=layout.expert,
        expert_tensor_parallel_size=1,
        tensor_model_parallel_size=layout.tensor,
        context_parallel_size=layout.context,
        pipeline_model_parallel_size=layout.pipeline,
        virtual_pipeline_model_parallel_size=layout.chunks,
        param_offload=offload,
        optimizer_offload=offload and not forward_only,
        router_replay=EngineRouterReplayConfig(mode=mode),
        override_transformer_config=dict.fromkeys(OFF_ON_CPU, False)
        | {"moe_grouped_gemm": is_adapted, "use_cpu_initialization": True}
        | {"attention_backend": "flash"}  # verl's choice with Megatron-Bridge
        | ({} if vanilla_mbridge else {"transformer_layer_spec": bridge_on_cpu.layer_spec})
        | dict(transformer),
        vanilla_mbridge=vanilla_mbridge,
        use_distributed_optimizer=True,
        forward_only=forward_only,
        **of_engine,
    )
    # In bfloat16, the order in which gradients are added up would hide an expert that is wrong by a little.
    object.__setattr__(engine_config, "dtype", "float32")
    optimizer_config = McoreOptimizerConfig(
        lr=1e-3,
        clip_grad=1.0,
        total_training_steps=10,
        lr_decay_steps=10,
        override_optimizer_config={"adam_eps": ADAM_EPS},
    )
    built = engine(
        model_config=model_config,
        engine_config=engine_config,
        optimizer_config=optimizer_config,
        checkpoint_config=CheckpointConfig(),
    )
    seed()
    built.initialize()
    return built


def seed() -> None:
    """Set all generators of this process to the same state."""
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    torch.manual_seed(7)
    model_parallel_cuda_manual_seed(7)


def batch(
    rank: int,
    step: int,
    *,
    has_routes: bool = True,
    is_replayed: bool = True,
    dynamic: bool = False,
    num_layers: int = NUM_LAYERS,
) -> Any:
    """Return the data of `forward_backward_batch`; the response of the last sample is masked out entirely.

    Args:
        rank: the data-parallel rank.
        step: numbers the batches.
        has_routes: whether the batch has the routes of a rollout.
        is_replayed: whether the engine replays or records routing, as verl asks of the actor and of no other engine.
        dynamic: whether micro-batches have a limit of tokens, and not a number of samples.
        num_layers: the layers of the model.
    """
    from tensordict import TensorDict

    rng = np.random.default_rng(100 * step + rank)
    rows = []
    for sample in range(NUM_SAMPLES):
        prompt, response = int(rng.integers(2, PROMPT + 1)), int(rng.integers(3, RESPONSE + 1))
        first, end = PROMPT - prompt, PROMPT + response
        tokens = np.zeros(PROMPT + RESPONSE, np.int64)
        tokens[first:end] = rng.integers(1, 99, end - first)
        attention = np.zeros_like(tokens)
        attention[first:end] = 1
        mask = np.zeros(RESPONSE, np.int64)
        if sample < NUM_SAMPLES - 1:
            mask[:response] = 1
        routes = np.zeros((PROMPT + RESPONSE, num_layers, TOP_K), np.int16)
        routes[first : end - 1] = random_routes(rng, end - 1 - first, num_layers)
        rows.append(
            {
                "input_ids": tokens,
                "attention_mask": attention,
                "response_mask": mask,
                "position_ids": np.maximum(np.cumsum(attention) - 1, 0),
                "prompts": tokens[:PROMPT],
                "responses": tokens[PROMPT:],
            }
            | ({"routed_experts": routes} if has_routes else {})
        )
    stacked = {key: torch.from_numpy(np.stack([row[key] for row in rows])) for key in rows[0]}
    return handed_over(TensorDict(stacked, batch_size=[NUM_SAMPLES]), is_replayed=is_replayed, dynamic=dynamic)


def handed_over(padded: Any, *, is_replayed: bool = True, dynamic: bool = False) -> Any:
    """Return padded samples as the data of `forward_backward_batch`; see `batch`."""
    from verl.utils import tensordict_utils
    from verl.workers.utils.padding import left_right_2_no_padding

    data = left_right_2_no_padding(padded)
    tensordict_utils.assign_non_tensor(
        data, use_dynamic_bsz=dynamic, enable_routing_replay=is_replayed, temperature=1.0, use_fused_kernels=False
    )
    if dynamic:
        tensordict_utils.assign_non_tensor(data, max_token_len_per_gpu=24)
    else:
        tensordict_utils.assign_non_tensor(data, micro_batch_size_per_gpu=2)
    data["temperature"] = torch.ones(len(data))
    return data


def loss(model_output: Any, data: Any, dp_group: object = None) -> tuple[torch.Tensor, dict[str, float]]:
    """Return minus the sum of the log-probabilities, or the sum of the squares of the values.

    The last token of a sequence has no log-probability: verl takes the first token of the next sequence for its target.
    """
    if "values" in model_output:
        values = model_output["values"]
        return (values.values() if values.is_nested else values).float().square().sum() / 100, {}
    log_probs = model_output["log_probs"]
    return -sum((each[:-1].float().sum() for each in log_probs.unbind()), start=torch.zeros(())) / 100, {}


def inferred(engine: Any, data: Any) -> Any:
    """Run a pass without gradients as `TrainingWorker.infer_batch` does; return its output, empty on ranks without."""
    with engine.eval_mode():
        return engine.infer_batch(data).get("model_output", {})


def update(engine: Any, data: Any) -> tuple[float, ...]:
    """Run one update as `TrainingWorker.train_batch` does.

    Returns:
        The loss and the norm of its gradients; nothing on ranks that verl asks for no output.
    """
    with engine.train_mode():
        output = engine.train_batch(data, loss_function=loss)
    if not engine.is_mp_src_rank_with_outputs():
        return ()
    return float(sum(torch.as_tensor(each) for each in output["loss"])), float(output["metrics"]["grad_norm"])


def exported(engine: Any) -> dict[str, torch.Tensor]:
    """Return what verl would send to the rollout, as `update_weights` of its worker reads it."""
    weights, _ = engine.get_per_tensor_param()
    sent = {name: each.detach().clone() for name, each in weights}
    if engine.is_param_offload_enabled:
        engine.to("cpu", model=True, optimizer=False, grad=False)
    return sent
