"""The attributes of ms-swift that the plug-in relies on."""

from relibra.plugins.points import Points

VERSION = "ms-swift 4.6.0"
OFF = "relibra from --external_plugins"

TRAINER: Points = {
    "MegatronGRPOTrainer.__init__": ("args", "template"),
    "MegatronGRPOTrainer.train_step": ("train_data_iterator",),
    "MegatronGRPOTrainer.forward_step": ("data_iterator", "model"),
    "MegatronGRPOTrainer.compute_per_token_logps": ("model", "data_iterator", "no_grad", "temperature"),
    "MegatronGRPOTrainer.offload_context": (),
    "MegatronGRPOTrainer.save_checkpoint": (),
    "MegatronGRPOTrainer._build_rollout_buffer": ("data_iterator",),
    "MegatronGRPOTrainer._compute_advantages": (),
    "MegatronGRPOTrainer._compute_kl_from_batches": (),
    "MegatronGRPOTrainer._maybe_compute_logps": ("batch", "teacher_inputs"),
    "MegatronGRPOTrainer._on_train_step_batch": ("encoded_batches",),
}
"""Attributes of `swift.megatron.trainers.grpo_trainer`."""
