"""The gRPC service for trainers and rollout workers. A planner keeps no state outside the store.

In:   registrations, routing reports, schedules and execution reports; each is checked before any part of it is kept.
Out:  acknowledgements once data is durable, and one published plan for every scheduled step.

The way of a call, and of what it brings:

    serve    call -> caller (access) -> admitted (limits) -> message read and parsed (message_reader) -> its service,
             which checks it, keeps it in the store, and answers
    loop     pending step -> its job's turn (queue) -> lease -> solve -> publish -> old steps expire
    solve    the worker processes, and what they do: read from the store, solve or pack, check, encode
    serve    published plan -> plan_cache -> every rank; step_watch and plan_notifier wake the calls that wait for it

    limits   the numbers: admission has the limiters of a planner and the sizes of requests, solve_size those of
             schedules, large_messages what is worked on beside the event loop, machine what the container has room for
    server   binds the services to an address, starts and drains
    settings, metrics   the planner's settings; its figures, and the probes of orchestrators

Any number of planners may serve one store, and each of them serves every job. One planner at a time holds the lease on
solving for a job, and Redis itself compares and sets when a plan is published.
"""
