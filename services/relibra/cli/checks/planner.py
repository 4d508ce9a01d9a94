"""Checks that a planner serves, has the same version, and is called over a secure connection."""

import ipaddress

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from relibra.cli.checks.finding import Finding, failed, ok, skipped, warning
from relibra.wire.channel import open_channel
from relibra.wire.credentials import Credentials
from relibra.wire.status import OTHER_PORT, VERSION_METADATA_KEY, WAITS_FOR_METADATA_KEY, WaitsFor, is_other_server

_DEFAULT_ADDRESS = "127.0.0.1:7420"
_TIMEOUT_S = 5.0
_NONE = "UNREACHABLE"


def examine(address: str | None, version: str) -> list[Finding]:
    """Query the health of a planner with the credentials in the environment; without an address, of the default one.

    Raises:
        InvalidInput: a credentials file cannot be read.
    """
    credentials = Credentials.from_env()
    where = address or _DEFAULT_ADDRESS
    with open_channel(where, credentials) as channel:
        request = health_pb2.HealthCheckRequest()
        try:
            answer, call = health_pb2_grpc.HealthStub(channel).Check.with_call(request, timeout=_TIMEOUT_S)
            metadata = dict(call.initial_metadata())
            state = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
            said, theirs = metadata.get(WAITS_FOR_METADATA_KEY, ""), metadata.get(VERSION_METADATA_KEY)
        except grpc.RpcError as error:
            state, said, theirs = _NONE, error.details() or error.code().name, None
    if address is None and state == _NONE:
        return [skipped("planner", f"no address given (--planner or RELIBRA_PLANNER), and no planner at {where}")]
    findings = judge(
        where, state, said, has_tls=credentials.ca_file is not None, has_token=credentials.token is not None
    )
    return findings if state == _NONE else [*findings, judge_version(theirs, version)]


def judge(address: str, state: str, said: str, *, has_tls: bool, has_token: bool) -> list[Finding]:
    """Return the findings about a response of gRPC's health service.

    Args:
        address: the address of the planner.
        state: the name of the serving status, or UNREACHABLE.
        said: gRPC's error message if the planner is unreachable; what it waits for if it is not ready.
        has_tls: whether the environment names a CA.
        has_token: whether the environment has a token.
    """
    if state == _NONE and is_other_server(said):
        return [failed("planner", f"no planner answers at {address}: {OTHER_PORT}", "correct the address")]
    if state == _NONE:
        fix = "start one with `relibra planner`, or correct the address"
        if has_tls and any(word in said.lower() for word in ("ssl", "tls", "certificate", "handshake")):
            fix = "RELIBRA_TLS_CA_FILE must be the CA of the planner's certificate, which must be for this host name"
        elif not has_tls:
            fix += "; if it serves TLS, set RELIBRA_TLS_CA_FILE"
        return [failed("planner", f"{address} does not respond: {said}", fix)]
    if state != "SERVING":
        if said == WaitsFor.SOLVER:
            reason = f"{address} takes calls, but solves no step yet: its solver warms up"
            return [warning("planner", reason, "wait half a minute; if this lasts, the planner's log says why")]
        return [
            failed(
                "planner", f"{address} is {state}", "the planner cannot reach Redis or is shutting down: see its log"
            )
        ]
    findings = [ok("planner", f"{address} serves")]
    if has_tls:
        findings.append(ok("planner: TLS", "on"))
    elif not _is_loopback(address):
        reason = f"calls{' and the token' if has_token else ''} travel unencrypted"
        fix = "set tls_cert_file and tls_key_file on planners, and RELIBRA_TLS_CA_FILE on clients"
        findings.append(warning("planner: TLS", reason, fix))
    else:
        findings.append(ok("planner: TLS", "off, but only this machine can connect"))
    return findings


def judge_version(theirs: str | None, ours: str) -> Finding:
    """Return the finding about the planner's version, which is None for planners too old to report it, and ours."""
    if theirs != ours:
        reason = f"the planner runs {f'relibra {theirs}' if theirs else 'an old relibra'}, this machine has {ours}"
        return warning("planner: version", reason, "install the same version everywhere")
    return ok("planner: version", f"relibra {theirs}")


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].rpartition("/")[2].strip("[]")
    try:
        return host in ("", "localhost") or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return address.startswith("unix:")
