from harness.services import job_name, planner, redis_server, redis_url, run, shared_planner, store  # noqa: F401
from harness.tls_redis import tls_redis  # noqa: F401
