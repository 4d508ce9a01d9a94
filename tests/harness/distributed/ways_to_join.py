"""How the ranks of a test join: over gloo on the CPU, or several ranks on one CUDA device.

NCCL refuses two ranks on one device of one host. There are two ways around this refusal. `NCCL_HOSTID` names the host
of a rank, so every rank can claim a host of its own; NCCL then takes sockets between them. From 2.30 on, NCCL accepts
ranks that share a device with `NCCL_MULTI_RANK_GPU_ENABLE`. Where neither works, gloo carries CUDA tensors through host
memory. `benchmarks.gpu.probe` finds out which way works on a machine.
"""

from enum import StrEnum

VARIABLE = "RELIBRA_TEST_WAY"
"""The environment variable that tells ranks how they join."""


class Way(StrEnum):
    """How ranks join."""

    CPU = "cpu"
    NCCL_HOST_IDS = "nccl-host-ids"
    NCCL_MULTI_RANK = "nccl-multi-rank"
    GLOO = "gloo"
    """Gloo on CUDA tensors."""

    @property
    def device(self) -> str:
        """The type of the device of all tensors."""
        return "cpu" if self is Way.CPU else "cuda"

    @property
    def backend(self) -> str:
        """The backend of the default process group."""
        return "gloo" if self in (Way.CPU, Way.GLOO) else "nccl"

    def environment(self, rank: int) -> dict[str, str]:
        """Return what the environment of a rank needs before it joins."""
        if self is Way.CPU:
            return {}
        # Ranks on one machine meet on the loopback interface, which NCCL otherwise leaves out.
        found = {
            "NCCL_SOCKET_IFNAME": "lo",
            "NCCL_IB_DISABLE": "1",
            "NCCL_NVLS_ENABLE": "0",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        if self is Way.NCCL_HOST_IDS:
            found["NCCL_HOSTID"] = f"rank-{rank}"
        if self is Way.NCCL_MULTI_RANK:
            found["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
        return found


WAYS_ON_CUDA = (Way.NCCL_HOST_IDS, Way.NCCL_MULTI_RANK, Way.GLOO)
"""The ways on a CUDA device, best first."""
