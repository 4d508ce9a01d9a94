"""The gRPC service for trainers and rollout workers. A planner keeps no state outside the store.

In:   registrations, routing reports, schedules and execution reports; each is checked before any part of it is kept.
Out:  acknowledgements once data is durable, and one published plan for every scheduled step.

    server   binds the services to an address, starts and drains
    serve    one gRPC service per file; who calls; what callers wait for
    loop     pending step -> lease -> solve -> publish; jobs take turns, and a step that fails stops no other step
    solve    the worker processes, and what they do: read, solve, check, encode
    limits   how large a request may be, how fast a job may send, how many calls it may have open
    plan_notifier   wakes the calls that wait for a plan
    settings, metrics, probes   the planner's settings, its figures, what orchestrators ask it

Any number of planners may serve one store, and each of them serves every job. One planner at a time holds the lease on
solving for a job, and Redis itself compares and sets when a plan is published.
"""
