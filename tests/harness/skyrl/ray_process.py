"""Stand-ins for a policy worker of SkyRL that Ray has started: for GPUs and engines, and not for Ray."""

import sys
from importlib.abc import MetaPathFinder
from typing import Any

from relibra.demo import megatron_on_cpu

_WORKER = "relibra.plugins.skyrl.worker"


def install() -> None:
    """Stand in for what is missing when this process loads the policy worker. SkyRL calls Ray when it is imported."""
    sys.meta_path.insert(0, _Before())


def install_now() -> None:
    """Stand in for what is missing where SkyRL's classes and batches are made."""
    megatron_on_cpu.install()
    from harness.skyrl import stand_ins

    stand_ins.install()


class _Before(MetaPathFinder):
    def find_spec(self, name: str, *_: object) -> None:
        if name == _WORKER and self in sys.meta_path:
            sys.meta_path.remove(self)
            _install_in_worker()


def _install_in_worker() -> None:
    install_now()
    from skyrl.backends.skyrl_train.weight_sync import weight_senders

    from harness.skyrl import workers

    weight_senders.build_trainer_engine = workers.KeptWeights
    import torch.distributed as dist

    join = dist.init_process_group

    def init_process_group(*, backend: str, **options: Any) -> None:
        assert backend == "cpu:gloo,cuda:nccl"
        join("gloo", **options)

    dist.init_process_group = init_process_group
