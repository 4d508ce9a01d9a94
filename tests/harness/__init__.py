"""Modules that several tests share: processes under test, jobs, payloads of engines, programs of rank processes.

Tests import these modules as `harness.…`. A test runs one of them as a process of its own by
`python -m harness.…`, with the command and the environment that `harness.child_process` returns.
"""
