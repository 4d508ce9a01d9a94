"""The attributes of AReaL that the plug-in relies on."""

from relibra.plugins.points import Points

VERSION = "AReaL 1.0.4 or 2.0.0"
OFF = "relibra from the training script"
NO_AWEX = (
    "expected actor._version=v1 and no colocation through awex, got weights that leave through awex: it reads experts "
    "by place, past the methods in which relibra gives each its own name; use actor.weight_update_mode=xccl or disk"
)
"""Why a job is refused whose weights leave through awex."""

TRAINER: Points = {
    "PPOTrainer._create_train_engine": ("actor_config", "alloc"),
    "PPOTrainer._init_rollout": ("rollout_config", "is_eval", ...),
    "RemoteSGLangEngine.__init__": ("config",),
}
"""Attributes of `areal.trainer.rl_trainer`."""

ENGINE: Points = {
    "get_forward_backward_func": (),
    "MegatronCheckpointManager.generate_state_dict": (),
    "MegatronPPOActor.initialize": (),
    "MegatronPPOActor.connect_engine": ("engine", "meta"),
    "MegatronPPOActor.forward_backward_batch": ("mb_list", "process_output_fn", "forward_only", ...),
    "MegatronPPOActor.optimizer_step": (),
    "MegatronPPOActor.save": ("meta",),
    "MegatronPPOActor.load": ("meta",),
    "MegatronPPOActor._save_model_to_hf": ("path", "tokenizer", "processor", "base_model_path"),
    "MegatronPPOActor._load_model_from_hf": ("path",),
    "MegatronPPOActor._update_weights_from_distributed": ("meta",),
    "MegatronPPOActor._update_bucket_weights_from_distributed": ("meta", "converted_named_tensors"),
}
"""Attributes of `areal.engine.megatron_engine`."""
