from harness.services import job_name, planner, redis_server, redis_url, shared_planner  # noqa: F401
