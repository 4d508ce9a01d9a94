"""The attributes of AReaL that the plug-in relies on."""

from relibra.plugins.points import Points

VERSION = "AReaL 1.0.4"
OFF = "relibra from the training script"

TRAINER: Points = {"PPOTrainer._create_train_engine": ("actor_config", "alloc"), "is_single_controller": ()}
"""Attributes of `areal.trainer.rl_trainer`."""

ENGINE: Points = {
    "get_forward_backward_func": (),
    "MegatronPPOActor.as_controller": ("config", "scheduler"),
    "MegatronCheckpointManager.generate_state_dict": (),
    "MegatronPPOActor.initialize": (),
    "MegatronPPOActor.forward_backward_batch": ("mb_list", "process_output_fn", "forward_only"),
    "MegatronPPOActor.optimizer_step": (),
    "MegatronPPOActor.save": ("meta",),
    "MegatronPPOActor.load": ("meta",),
    "MegatronPPOActor._save_model_to_hf": ("path",),
    "MegatronPPOActor._load_model_from_hf": ("path",),
    "MegatronPPOActor._update_weights_from_distributed": ("meta",),
    "MegatronPPOActor._update_bucket_weights_from_distributed": ("meta", "converted_named_tensors"),
}
"""Attributes of `areal.engine.megatron_engine`."""
