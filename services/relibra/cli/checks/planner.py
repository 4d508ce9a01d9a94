"""Whether a planner serves and is of this version, and how calls travel to it."""

import ipaddress

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from relibra.cli.checks.finding import Finding, failed, ok, skipped, warning
from relibra.wire.channel import open_channel
from relibra.wire.credentials import Credentials
from relibra.wire.status import VERSION_METADATA_KEY

_DEFAULT_ADDRESS = "127.0.0.1:7420"
_TIMEOUT_S = 5.0
_NONE = "UNREACHABLE"


def examine(address: str | None, version: str) -> list[Finding]:
    """Ask a planner for its health, with the credentials of the environment; the default one if none is named.

    Raises:
        InvalidInput: a file of the credentials cannot be read.
    """
    credentials = Credentials.from_env()
    where = address or _DEFAULT_ADDRESS
    with open_channel(where, credentials) as channel:
        request = health_pb2.HealthCheckRequest()
        try:
            answer, call = health_pb2_grpc.HealthStub(channel).Check.with_call(request, timeout=_TIMEOUT_S)
            state, said = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status), ""
            theirs = dict(call.initial_metadata()).get(VERSION_METADATA_KEY)
        except grpc.RpcError as error:
            state, said, theirs = _NONE, error.details() or error.code().name, None
    if address is None and state == _NONE:
        return [skipped("planner", f"none was named (--planner or RELIBRA_PLANNER), and none is at {where}")]
    found = judge(where, state, said, has_tls=credentials.ca_file is not None, has_token=credentials.token is not None)
    return found if state == _NONE else [*found, judge_version(theirs, version)]


def judge(address: str, state: str, said: str, *, has_tls: bool, has_token: bool) -> list[Finding]:
    """Judge an answer of gRPC's health service.

    Args:
        address: of the planner.
        state: name of the serving status, or UNREACHABLE.
        said: what gRPC says where it is unreachable.
        has_tls: whether the environment names a CA.
        has_token: whether the environment has a token.
    """
    if state == _NONE:
        fix = "start one with `relibra planner`, or correct the address"
        if has_tls and any(word in said.lower() for word in ("ssl", "tls", "certificate", "handshake")):
            fix = "RELIBRA_TLS_CA_FILE must hold the CA of the planner's certificate, which must be for this name"
        elif not has_tls:
            fix += "; if it serves TLS, set RELIBRA_TLS_CA_FILE"
        return [failed("planner", f"{address} does not answer: {said}", fix)]
    if state != "SERVING":
        return [failed("planner", f"{address} is {state}", "Redis does not answer it, or it drains: see its log")]
    found = [ok("planner", f"{address} serves")]
    if has_tls:
        found.append(ok("planner: TLS", "on"))
    elif not _is_loopback(address):
        reason = f"calls travel in the clear{', and the token with them' if has_token else ''}"
        fix = "give planners tls_cert_file and tls_key_file, and clients RELIBRA_TLS_CA_FILE"
        found.append(warning("planner: TLS", reason, fix))
    else:
        found.append(ok("planner: TLS", "off, and only this machine can connect"))
    return found


def judge_version(theirs: str | None, ours: str) -> Finding:
    """Judge the versions of the planner, None of one that does not say, and of this relibra."""
    if theirs != ours:
        reason = f"it runs relibra {theirs or 'of before it said so'}, this is {ours}"
        return warning("planner: version", reason, "install one version everywhere")
    return ok("planner: version", f"relibra {theirs}")


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].rpartition("/")[2].strip("[]")
    try:
        return host in ("", "localhost") or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return address.startswith("unix:")
