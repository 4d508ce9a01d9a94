"""The wire contract in Python: numpy and dataclasses on one side, protobuf and gRPC on the other.

This is the only place where both meet. `array` and `messages` convert and check; `status` maps the error tree to gRPC
status codes and back; `channel` opens connections with measured settings. The generated code lives beside it in
`relibra.v1`.
"""
