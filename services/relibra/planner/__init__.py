"""The gRPC service that trainers and rollout workers talk to. It holds no state that is not in the store.

In:   registrations, routing reports, schedules, execution reports, each checked before anything of it is kept.
Out:  acknowledgements of what is durable, and for every scheduled step one published plan.

    server            wires the services to an address, starts and drains
    job_service, routing_service, plan_service, execution_service   one gRPC service each
    planning_loop     pending steps -> solver -> publish; supervised, so that a bad step stops nothing else
    solver, solving   the worker process, and what it does: read, solve, check
    plan_cache        decoded plans, because every agent of a job fetches the same one
    bell              wakes who waits for a plan
    error_interceptor errors to gRPC status codes, for all services

Any number of planners may serve the same store: plans are deterministic and published by compare-and-set, so two that
solve the same step agree.
"""
