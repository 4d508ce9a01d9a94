"""The attributes of NeMo-RL that the plug-in relies on."""

from collections.abc import Mapping
from typing import Any

from relibra.plugins.points import Points, check_points

VERSION = "NeMo-RL 0.7.0, 7ea279a"
PACKAGE = "nemo_rl"

_WORKER = "MegatronPolicyWorkerImpl"
POINTS: Mapping[str, Points] = {
    "algorithms.distillation": {"validate": ()},
    "algorithms.grpo": {"validate": ()},
    "algorithms.ppo": {"validate": ()},
    "distributed.ray_actor_environment_registry": {
        "ACTOR_ENVIRONMENT_REGISTRY": (),
        "get_actor_python_env": ("actor_class_fqn",),
    },
    "experience.rollouts": {"run_sample_multi_turn_rollout": ()},
    "models.megatron.router_replay": {"_global_moe_layer_numbers": ("model_config",)},
    "models.megatron.train": {"get_forward_backward_func": ()},
    "models.policy.lm_policy": {"resolve_policy_worker_cls": ("default_cls", "config")},
    "models.policy.workers.megatron_policy_worker": {
        "get_microbatch_iterator": ("data", "cfg", "mbs", ...),
        "megatron_forward_backward": ("use_router_replay", "forward_only", ...),
        f"{_WORKER}.__init__": ("config", ...),
        f"{_WORKER}.train": (),
        f"{_WORKER}.get_logprobs": (),
        f"{_WORKER}.use_reference_model": (),
        f"{_WORKER}._apply_state_dict_to_model": ("source_state_dict", ...),
        f"{_WORKER}._iter_params_with_optional_kv_scales": (),
        f"{_WORKER}.stream_weights_via_ipc_zmq": (),
        f"{_WORKER}.prepare_refit_info": (),
        f"{_WORKER}.check_tensor_parallel_attributes": (),
    },
    "utils.venvs": {"create_local_venv_on_each_node": ("py_executable", "venv_name")},
}
"""By module of the package, its attributes, each with the parameters that it must have."""


def check(*modules: Any) -> None:
    """Check that modules of NeMo-RL have the attributes that the plug-in relies on.

    Raises:
        Unsupported: an attribute or a parameter is missing; the message names all that are.
    """
    for module in modules:
        without = "-m relibra.plugins.nemo_rl from the command"
        points = POINTS[module.__name__.removeprefix(f"{PACKAGE}.")]
        check_points(module, points, version=VERSION, without=without)
