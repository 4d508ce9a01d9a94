from services_harness import redis_server, redis_url, run, store  # noqa: F401
