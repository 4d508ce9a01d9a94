"""The read-only HTTP service that shows what relibra does and why.

In:   the store.
Out:  JSON for programs (`/v1/...`, described at `/docs`), health for orchestrators, metrics for Prometheus.

    app        `create_app`: the endpoints
    models     what the JSON looks like, with examples
    problems   errors as `application/problem+json`
    metrics    gauges computed from the store at each scrape
    serve      the process: binds a socket and runs the app
"""

from relibra.status.app import create_app

__all__ = ["create_app"]
