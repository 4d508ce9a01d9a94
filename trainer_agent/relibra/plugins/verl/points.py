"""The attributes of verl that the plug-in relies on."""

from relibra.plugins.points import Points

VERSION = "verl 0.9.0 or 0.9.1"

WORKERS: Points = {"TrainingWorker.__init__": ()}
"""Attributes of `verl.workers.engine_workers`."""

ENGINE: Points = {
    "prepare_micro_batches": ("data", ...),
    "tu.get_non_tensor_data": ("key", "default", ...),
    "EngineRegistry._engines": (),
    "EngineRegistry.register": ("model_type", "backend", "device", "vendor"),
    "MegatronEngineWithLMHead.initialize": (),
    "MegatronEngineWithLMHead.forward_backward_batch": ("data", "loss_function", "forward_only"),
    "MegatronEngineWithLMHead.forward_step": (
        "batch_iter",
        "model",
        "logits_processor_func",
        "postprocess_micro_batch_func",
    ),
    "MegatronEngineWithValueHead.forward_step": (
        "batch_iter",
        "model",
        "logits_processor_func",
        "postprocess_micro_batch_func",
    ),
    "MegatronEngineWithLMHead.optimizer_step": (),
    "MegatronEngineWithLMHead.to": ("device", "model", "optimizer", "grad"),
    "MegatronEngineWithLMHead.get_per_tensor_param": (),
    "MegatronEngineWithLMHead.get_per_tensor_param_shard": (),
    "MegatronEngineWithLMHead.save_checkpoint": (),
    "MegatronEngineWithLMHead.load_checkpoint": (),
    "MegatronCheckpointManager._save_model_as_hf_via_bridge": (),
    "MegatronCheckpointManager._load_model_as_hf_via_bridge": (),
}
"""Attributes of `verl.workers.engine.megatron.transformer_impl`."""

AGENT_LOOP: Points = {
    "AgentLoopWorker._agent_loop_postprocess": ("output", "validate"),
}
"""Attributes of `verl.experimental.agent_loop.agent_loop`."""

TRAINER: Points = {
    "PPOTrainer.fit": (),
    "PPOTrainer._balance_batch": ("batch", "metrics", "logging_prefix", ...),
    "tq.kv_batch_get": ("keys", "partition_id", "select_fields"),
}
"""Attributes of `verl.trainer.ppo.v1.trainer_base`."""

COPIES: Points = {
    "copy_megatron_model_to_cpu": ("models",),
    "restore_megatron_model_from_cpu": ("models", "cpu_state"),
}
"""Attributes of `verl.utils.megatron_utils`."""
