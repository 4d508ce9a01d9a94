from harness.services import planner, redis_server, redis_url, shared_planner  # noqa: F401
