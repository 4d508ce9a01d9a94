import pytest

from benchmarks.gpu.check.decisions import Facts


@pytest.fixture
def facts() -> Facts:
    """A machine that has everything."""
    return Facts(
        python="python3",
        device="Some GPU 80GB",
        absent=frozenset(),
        sanitizer="/usr/bin/compute-sanitizer",
        kernels=("one", "two"),
        racing_kernels=("two",),
        is_rehearsal=False,
        way="nccl-host-ids",
    )
