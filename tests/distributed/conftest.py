"""The ranks of the tests."""

from collections.abc import Iterator

import pytest

from harness.distributed.ranks import Ranks
from harness.distributed.ways_to_join import WAYS_ON_CUDA, Way


@pytest.fixture(scope="session")
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """Ranks that join over gloo on the CPU, or with `--device cuda` as `--way` says."""
    options = request.config.option
    started = Ranks(Way.CPU if options.device == "cpu" else Way(options.way or WAYS_ON_CUDA[0]))
    yield started
    started.stop()
