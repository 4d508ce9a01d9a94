"""`install`: have the policies of a NeMo-RL driver start the worker of this plug-in."""

import logging
import sys
from typing import Any

from relibra.plugins.nemo_rl import points
from relibra.plugins.nemo_rl.rollout import install_in_rollout

log = logging.getLogger(__name__)

WORKER = "relibra.integrations.nemo_rl.Worker"
MEGATRON = "nemo_rl.models.policy.workers.megatron_policy_worker.MegatronPolicyWorker"


def install() -> None:
    """Have `Policy` start `Worker` where it would start NeMo-RL's Megatron worker. A second call does nothing.

    The first such policy also has the rollouts of the driver report their samples.

    `Policy` takes the class of its workers as an argument, `worker_extension_cls_fqn`, and no recipe of NeMo-RL can set
    it. So this function replaces the function with which `Policy` chooses its default.

    Raises:
        Unsupported: this version of NeMo-RL lacks something that the plug-in relies on; the message names it.
    """
    from nemo_rl.distributed import ray_actor_environment_registry as environments
    from nemo_rl.models.policy import lm_policy
    from nemo_rl.utils import venvs

    points.check(lm_policy, environments, venvs)
    choose = lm_policy.resolve_policy_worker_cls
    if getattr(choose, "is_of_relibra", False):
        return

    def resolve_policy_worker_cls(default_cls: str, config: Any) -> str:
        name: str = choose(default_cls, config)
        if name != MEGATRON:
            log.warning("relibra: a policy of %s is not balanced; relibra balances workers of %s only", name, MEGATRON)
            return name
        install_in_rollout()  # a policy is made when the algorithm is loaded, and before its rollouts
        registry = environments.ACTOR_ENVIRONMENT_REGISTRY
        if WORKER not in registry:
            if "nemo_rl.models.value.lm_value" in sys.modules:
                log.warning("relibra leaves the critic as it is: it balances policies and their references alone")
            python = environments.get_actor_python_env(MEGATRON)
            # NeMo-RL names an environment after its worker. That of its own worker may be built already.
            is_command = python.startswith("uv")
            registry[WORKER] = venvs.create_local_venv_on_each_node(python, MEGATRON) if is_command else python
        log.warning("relibra: the policy starts %s", WORKER)
        return WORKER

    resolve_policy_worker_cls.is_of_relibra = True  # type: ignore[attr-defined]
    lm_policy.resolve_policy_worker_cls = resolve_policy_worker_cls
