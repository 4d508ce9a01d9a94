from harness.services import (  # noqa: F401
    client,
    job_id,
    planner,
    redis_server,
    redis_url,
    run,
    shared_planner,
    store,
)
