from harness.services import planner, redis_server, redis_url, run, shared_planner, store  # noqa: F401
