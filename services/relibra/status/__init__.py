"""The read-only HTTP service that shows what relibra does and why.

In:   the store.
Out:  HTML pages, JSON (`/v1/...`, documented at `/docs`), live updates, health checks, Prometheus metrics.

    app                                    `create_app`: puts the parts together
    attempts                               which attempt of a job a viewer looks at; pure functions
    figures, health, explain               pure functions: a plan's numbers, a job's state, explanations in sentences
    glance, loads                          what is shown of jobs, plans and steps: the same objects in JSON and on pages
    step_figures                           the figures of a step and of its phases, each defined once
    views                                  dataclasses as JSON, with their docstrings as its description
    reader                                 reads the store for all endpoints and caches costly results, within bounds
    api, plan_api, etag                    JSON endpoints of jobs and steps, of plans; responses with an `ETag`
    pages, sparkline                       HTML pages, with templates/ and static/
    live                                   live updates: one poll of Redis for all open pages
    access, context                        tokens; the dependencies that endpoints share
    problems                               errors as `application/problem+json`, or as an HTML page
    metrics                                gauges, computed from the store at each scrape
    settings, serve                        the process
"""

from relibra.status.app import create_app

__all__ = ["create_app"]
