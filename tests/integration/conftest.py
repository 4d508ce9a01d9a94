from services_harness import planner, redis_server, redis_url  # noqa: F401
