"""The wire contract in Python: numpy and dataclasses on one side, protobuf and gRPC on the other.

Only this package and the gRPC services handle messages. The generated code lives in `relibra.v1`.

    array, messages, routing   convert and check messages
    job_id                     which names of jobs are valid
    status                     the error tree as gRPC status codes, and back
    channel, credentials       connections with measured settings, and how a client authenticates
    client                     the planner as a trainer sees it
    status_service             the status service as programs see it: JSON over HTTP
    launch, heartbeat          which launch of a training a process belongs to, and that the process is alive
"""
