"""The wire contract in Python: numpy and dataclasses on one side, protobuf and gRPC on the other.

This is the only place where both meet. The generated code lives beside it in `relibra.v1`.

    array, messages, routing   convert and check
    status                     the error tree as gRPC status codes, and back
    channel, credentials       connections with measured settings, and what they show the planner
    client                     the planner as a trainer sees it
"""
