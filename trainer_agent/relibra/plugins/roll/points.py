"""The attributes of ROLL that the plug-in relies on."""

from relibra.plugins.points import Points

VERSION = "ROLL 8eb27cc"
OFF = "worker_cls of the cluster"

STRATEGY: Points = {
    "get_forward_backward_func": (),
    "MegatronInferStrategy.initialize": ("model_provider",),
    "MegatronInferStrategy.forward_step": ("batch", "forward_func"),
    "MegatronTrainStrategy.initialize": ("model_provider",),
    "MegatronTrainStrategy.forward_step": ("batch", "forward_func"),
    "MegatronTrainStrategy.train_step": ("batch", "loss_func"),
}
"""Attributes of `roll.distributed.strategy.megatron_strategy`."""

ROLLOUT: Points = {"InferWorker.generate_request": ("payload",)}
"""Attributes of `roll.pipeline.base_worker`."""
