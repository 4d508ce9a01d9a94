"""Refusals that need no GPU; tests/gpu tests the rest."""

import pytest
import torch

from relibra.agent.transport.cuda_memory import obstacle

FITS = {"torch_version": (2, 13), "cuda": "13.0", "backend": "CUDA", "capability": (9, 0)}


@pytest.mark.parametrize(
    ("fact", "value", "message"),
    [
        ("cuda", None, "this torch was built without CUDA"),
        ("torch_version", (2, 10), "it has torch 2.10, and symmetric memory is used from torch 2.11 on"),
        ("backend", "NVSHMEM", 'symmetric memory is NVSHMEM; unset TORCH_SYMMMEM, or set it to "CUDA"'),
        ("capability", (7, 5), "its GPU has compute capability 7.5, and 8.0 is needed"),
    ],
)
def test_what_is_missing_is_named(fact: str, value: object, message: str) -> None:
    assert obstacle(**FITS) == ""  # type: ignore[arg-type]
    assert message in obstacle(**{**FITS, fact: value})  # type: ignore[arg-type]


def test_the_installed_torch_has_what_the_transport_calls() -> None:
    """The interface is torch's own, and changes without notice."""
    from torch._C._distributed_c10d import _SymmetricMemory
    from torch.distributed import _symmetric_memory

    assert callable(_symmetric_memory.rendezvous)
    assert callable(_symmetric_memory.get_backend)
    for name in ("empty_strided_p2p", "stream_write_value32", "get_buffer"):
        assert callable(getattr(_SymmetricMemory, name)), name
    assert hasattr(torch.ops.symm_mem, "stream_write_value32_")


@pytest.mark.distributed
@pytest.mark.parametrize("ranks", ["", "pair/"])
def test_a_rank_without_a_gpu_has_all_ranks_refuse_or_use_messages_as_the_settings_say(node_run, ranks):
    results = node_run(f"{ranks}chosen")
    (refusal,) = {result["refusal"] for result in results}
    assert refusal.startswith("Unsupported: rank 0 cannot use symmetric memory (the experts are on a cpu device, and")
    assert refusal.endswith('use transport="process_group", or "symmetric_if_possible" to use it where this fails')
    for result in results:
        assert result["otherwise"] == result["plain"] == "ProcessGroupTransport"
        (warning,) = result["warnings"]
        assert warning.startswith("replicas travel through the process group, without symmetric memory: rank 0 cannot")
