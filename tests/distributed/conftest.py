"""The ranks of the tests."""

import functools
from collections.abc import Callable, Iterator

import pytest

from harness.distributed import runs
from harness.distributed.ranks import Ranks
from harness.distributed.ways_to_join import WAYS_ON_CUDA, Way


@pytest.fixture(scope="session")
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """Ranks that join over gloo on the CPU, or with `--device cuda` as `--way` says."""
    options = request.config.option
    started = Ranks(Way.CPU if options.device == "cpu" else Way(options.way or WAYS_ON_CUDA[0]))
    yield started
    started.stop()


@pytest.fixture(scope="session")
def layout_run(tmp_path_factory: pytest.TempPathFactory, ranks: Ranks) -> Iterator[Callable[[str], runs.Run]]:
    """A function that runs all scenarios of a layout on first use, and returns their results."""
    started = runs.Ranks(ranks.way)
    yield functools.cache(lambda layout: started.run(layout, tmp_path_factory.mktemp(layout)))
    started.stop()
