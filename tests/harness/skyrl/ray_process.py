"""Stand-ins for a policy worker of SkyRL that Ray has started: for GPUs and engines, and not for Ray."""

from typing import Any

from harness.skyrl import imports


def install() -> None:
    """Stand in for what is missing when this process loads the policy worker. SkyRL calls Ray when it is imported."""
    imports.before("relibra.plugins.skyrl.worker", _install_in_worker)


def install_now() -> None:
    """Stand in for what is missing where SkyRL's classes and batches are made."""
    from relibra.demo import megatron_on_cpu

    megatron_on_cpu.install()
    from harness.skyrl import stand_ins

    stand_ins.install()


def join_over_gloo() -> None:
    """Have gloo join the processes that ask for NCCL."""
    import torch.distributed as dist

    join = dist.init_process_group

    def init_process_group(*, backend: str, **options: Any) -> None:
        assert backend == "cpu:gloo,cuda:nccl"
        join("gloo", **options)

    dist.init_process_group = init_process_group


def _install_in_worker() -> None:
    install_now()
    join_over_gloo()
    from skyrl.backends.skyrl_train.weight_sync import weight_senders

    from harness.skyrl import workers

    weight_senders.build_trainer_engine = workers.KeptWeights
