"""The read-only HTTP service that shows what relibra does and why.

In:   the store.
Out:  pages for people, JSON for programs (`/v1/...`, described at `/docs`), news, health, metrics for Prometheus.

    app                                    `create_app`: puts the parts together
    figures, execution, health, explain    pure: numbers of a plan, sums of reports, verdicts, sentences
    reader, memory                         what endpoints read; what is expensive is kept, within bounds
    api, plan_api, answer                  JSON of jobs and steps, of plans, and the validators of answers
    models, load_models, history_models    what the JSON looks like, with examples
    pages, sparkline                       HTML, with templates/ and static/
    live                                   news: one poll of Redis for all open pages
    access, context                        tokens, and what every endpoint may ask for
    problems                               errors as `application/problem+json`, or as a page
    metrics                                gauges computed from the store at each scrape
    settings, serve                        the process
"""

from relibra.status.app import create_app

__all__ = ["create_app"]
