"""Fixtures that start the ranks of a layout once, and give their results to the tests."""

import functools
from collections.abc import Callable, Iterator

import pytest

from harness.distributed.runs import Ranks, Run
from harness.distributed.ways_to_join import WAYS_ON_CUDA, Way


@pytest.fixture(scope="session")
def way_to_join(request: pytest.FixtureRequest) -> Way:
    """How ranks join: over gloo on the CPU, or with `--device cuda` as `--way` says."""
    options = request.config.option
    return Way.CPU if options.device == "cpu" else Way(options.way or WAYS_ON_CUDA[0])


@pytest.fixture(scope="session")
def layout_run(tmp_path_factory: pytest.TempPathFactory, way_to_join: Way) -> Iterator[Callable[[str], Run]]:
    """A function that runs a layout on first use, and returns its results."""
    ranks = Ranks(way_to_join)
    yield functools.cache(lambda layout: ranks.run(layout, tmp_path_factory.mktemp(layout)))
    ranks.stop()


@pytest.fixture(scope="session")
def two_nodes(layout_run: Callable[[str], Run]) -> Run:
    """One EP group of 2 nodes x 2 ranks."""
    return layout_run("two_nodes")


@pytest.fixture(scope="session")
def two_groups(layout_run: Callable[[str], Run]) -> Run:
    """Two EP groups of 1 node x 2 ranks: expert data parallelism."""
    return layout_run("two_groups")
