import pytest

from harness.services import CLUSTER, MODEL, PARAMS, Loop, redis_server, redis_url, run, store  # noqa: F401
from harness.tls_redis import tls_redis  # noqa: F401
from relibra.store import JobRecord, Store


@pytest.fixture
def job(store: Store, run: Loop) -> JobRecord:  # noqa: F811
    """A registered job."""
    return run(store.register_job("job", MODEL, CLUSTER, PARAMS))
