from services_harness import client, job_id, redis_server, redis_url, run, shared_planner, store  # noqa: F401
