from services_harness import planner, redis_server, redis_url, shared_planner  # noqa: F401
