import logging
from collections.abc import Iterator

import pytest

from harness.services import job_name, planner, redis_server, redis_url, shared_planner  # noqa: F401


@pytest.fixture(autouse=True)
def own_log() -> Iterator[None]:
    """Let every test begin with relibra's logger as a process has it at first: plug-ins change it."""
    logger = logging.getLogger("relibra")
    handlers, level = logger.handlers, logger.level
    logger.handlers = []
    logger.setLevel(logging.NOTSET)
    yield
    logger.handlers = handlers
    logger.setLevel(level)
