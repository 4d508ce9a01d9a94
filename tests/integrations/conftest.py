from services_harness import client, planner, redis_server, redis_url, shared_planner  # noqa: F401
