"""The attributes of SkyRL that the plug-in relies on."""

from relibra.plugins.points import Points

VERSION = "SkyRL 0.4.0"
OFF = "trainer.override_entrypoint"

ENTRYPOINT: Points = {
    "BasePPOExp.get_generator": (),
    "BasePPOExp.get_trainer": (),
    "BasePPOExp.run": (),
    "SkyRLTrainConfig.from_cli_overrides": ("args",),
    "initialize_ray": ("cfg",),
    "validate_cfg": ("cfg",),
}
"""Attributes of `skyrl.train.entrypoints.main_base`."""

WORKER: Points = {
    "PolicyWorker": (),
    "MegatronPolicyWorkerBase.init_model": ("model_path", ...),
    "MegatronPolicyWorkerBase.forward": ("data", ...),
    "MegatronPolicyWorkerBase.forward_backward": ("data", ...),
    "MegatronPolicyWorkerBase.optim_step": (),
    "MegatronPolicyWorkerBase.offload_to_cpu": (),
    "MegatronPolicyWorkerBase.backload_to_gpu": (),
    "MegatronPolicyWorkerBase.save_checkpoint": (),
    "MegatronPolicyWorkerBase.load_checkpoint": (),
    "MegatronPolicyWorkerBase.save_hf_model": (),
    "MegatronPolicyWorkerBase.init_weight_sync_state": (),
    "MegatronPolicyWorkerBase._build_weight_source": ("dtype", "backend", ...),
    "MegatronPolicyWorkerBase.broadcast_to_inference_engines": (),
    "MegatronRefWorkerBase.init_model": ("model_path", ...),
    "MegatronRefWorkerBase.forward": ("data", ...),
    "RefWorker": (),
    "MegatronStrategy._dist_ckpt_optim_metadata": (),
}
"""Attributes of `skyrl.backends.skyrl_train.workers.megatron.megatron_worker`."""

WRAPPER: Points = {
    "get_forward_backward_func": (),
    "MegatronModelWrapper.forward": ("micro_batches", ...),
    "MegatronModelWrapper.forward_backward_mini_batch": ("micro_batches", "forward_only", ...),
}
"""Attributes of `skyrl.backends.skyrl_train.workers.megatron.megatron_model_wrapper`."""
