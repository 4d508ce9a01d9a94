"""`install`: have ms-swift's pipeline create the trainer of this plug-in."""

import logging
import sys

from relibra.errors import Unsupported

log = logging.getLogger(__name__)

_MEGATRON = "swift.megatron"
_RAY = "swift.ray.megatron"


def install() -> None:
    """Put the trainer of this plug-in in the place of `MegatronGRPOTrainer`. A second call does nothing.

    ms-swift imports `--external_plugins` in rollout servers and in jobs without Megatron, too. There this call does
    nothing but say so.

    Raises:
        Unsupported: this version of ms-swift lacks something that the plug-in relies on, which the message names; or
            the job runs under Ray.
    """
    if _MEGATRON not in sys.modules:
        log.warning("relibra: this process does not train with Megatron, so relibra balances nothing in it")
        return
    if _RAY in sys.modules:
        raise Unsupported(
            "relibra balances no job of ms-swift under Ray, because its workers have no trainer; leave out --use_ray, "
            "or remove relibra from --external_plugins"
        )
    from swift.megatron import trainers

    from relibra.plugins.ms_swift.trainer import BalancedGRPOTrainer

    trainers.MegatronGRPOTrainer = BalancedGRPOTrainer
    log.warning("relibra: jobs with --rlhf_type grpo are balanced in this process; others train as without relibra")
