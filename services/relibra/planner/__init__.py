"""The gRPC service for trainers and rollout workers. A planner keeps no state outside the store.

In:   registrations, routing reports, schedules and execution reports; each is checked before any part of it is kept.
Out:  acknowledgements once data is durable, and one published plan for every scheduled step.

    server            binds the services to an address, starts and drains
    job_service, routing_service, plan_service, execution_service   one gRPC service each
    call_interceptor  wraps every call: authenticates the caller, turns errors into statuses, records metrics
    attempt_watch     which attempt of its job a call belongs to; calls of older attempts are refused
    access            who a caller is and what a role may call
    admission         how large a request may be, how fast a job may send, how many calls it may have open
    planning_loop     pending step -> lease -> solve -> publish; a step that fails stops no other step
    fair_order        whose step is solved next
    solver, solving   the worker processes, and what they do: read, solve, check, encode
    machine_code      the compiled solver that comes with an image
    container_memory, container_cores   what a container leaves to the solvers
    plan_cache, served_plan   the plan that all agents of a job fetch, read once
    plan_notifier     wakes the calls that wait for a plan
    read_ahead        turns a stream of requests into batches
    certificates      the planner's certificate, read again when its files change
    settings, health, probes, metrics   its settings, its readiness, what orchestrators ask it, its figures

Any number of planners may serve one store, and each of them serves every job. One planner at a time holds the lease on
solving for a job, and Redis itself compares and sets when a plan is published.
"""
