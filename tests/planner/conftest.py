from harness.services import client, job_id, job_name, redis_server, redis_url, run, shared_planner, store  # noqa: F401
