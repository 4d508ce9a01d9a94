from harness.services import client, job_id, job_name, planner, redis_server, redis_url, shared_planner  # noqa: F401
