"""The gRPC service that trainers and rollout workers talk to. It holds no state that is not in the store.

In:   registrations, routing reports, schedules, execution reports, each checked before anything of it is kept.
Out:  acknowledgements of what is durable, and for every scheduled step one published plan.

    server            wires the services to an address, starts and drains
    job_service, routing_service, plan_service, execution_service   one gRPC service each
    call_interceptor  around every call: `access` says who may, errors become statuses, figures are kept
    planning_loop     pending steps -> lease -> solver -> publish; supervised, so that a bad step stops nothing else
    turns             whose step is next
    solver, solving   the worker processes, and what they do: read, solve, check, encode
    plan_cache, served_plan   what all agents of a job fetch, read once
    notifier              wakes who waits for a plan
    admission         how large a request may be, how fast a job may send, how many calls it may have open
    read_ahead        turns a stream of requests into batches
    certificates      its own, read anew when the files change
    settings, health, metrics   what it is told, and what it tells

Any number of planners may serve the same store, and any of them serves any job: one of them at a time holds the lease
on solving for a job, and what is published is compared and set inside Redis.
"""
