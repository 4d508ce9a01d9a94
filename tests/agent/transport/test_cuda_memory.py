"""Refusals that need no GPU; tests/gpu tests the rest."""

from itertools import chain

import pytest
import torch

from harness.agent.transport_contract import TIMEOUT_S, group_of
from harness.distributed.layout import NODE
from harness.distributed.observed import gathered, logged, refusal
from harness.distributed.on_ranks import on_ranks
from relibra.agent import AgentConfig
from relibra.agent.transport.choice import chosen_transport
from relibra.agent.transport.cuda_memory import obstacle
from relibra.planning import Model

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
    for name in ("empty_strided_p2p", "get_buffer"):
        assert callable(getattr(_SymmetricMemory, name)), name


@pytest.mark.parametrize("world", [4, 2])
@on_ranks(NODE)
def test_a_rank_without_a_gpu_has_all_ranks_refuse_or_use_messages_as_the_settings_say(cluster, world):
    def choose(transport):
        config = AgentConfig(
            planner_address="none:0",
            job_id="test",
            model=Model(num_layers=1, num_experts=4, top_k=1),
            cluster=cluster,
            plan_timeout_s=1.0,
            collective_timeout_s=TIMEOUT_S,
            transport=transport,
        )
        return type(chosen_transport(config, group_of(world), torch.device("cpu"))).__name__

    text = refusal(lambda: choose("symmetric"))
    assert text.startswith("Unsupported: rank 0 cannot use symmetric memory (the experts are on a cpu device, and")
    assert text.endswith('use transport="process_group", or "symmetric_if_possible" to use it where this fails')
    assert set(gathered(text)) == {text}
    with logged() as messages:
        assert choose("symmetric_if_possible") == choose("process_group") == "ProcessGroupTransport"
    warning, *others = chain.from_iterable(gathered(messages()))
    assert others == [warning] * (4 // world - 1), "one rank of every group says it"
    assert warning.startswith("replicas travel through the process group, without symmetric memory: rank 0 cannot")
