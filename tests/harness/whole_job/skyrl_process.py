"""Stand-ins for every process of a job of SkyRL; `skyrl_site` calls `install` when a process starts."""

from harness.skyrl import imports


def install() -> None:
    """Stand in for what is missing when this process loads SkyRL's Megatron workers."""
    imports.typed_dicts()
    imports.before("skyrl.backends.skyrl_train.workers.megatron", _install_with_workers)


def _install_with_workers() -> None:
    from harness.skyrl import ray_process

    ray_process.install_now()
    ray_process.join_over_gloo()
    from megatron.bridge import AutoBridge

    from harness import bridge_on_cpu
    from harness.whole_job import ranks, skyrl_rollout

    bridge_on_cpu.use_local_layers(AutoBridge)
    ranks.install()
    skyrl_rollout.install()
