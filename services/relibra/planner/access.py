"""Who calls, and what they may do (S6)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from relibra.errors import Forbidden, Unauthenticated
from relibra.store import ALL_JOBS, Role, Store
from relibra.store.identity import Identities

_MAY_CALL: Mapping[Role, frozenset[str]] = {
    Role.ROLLOUT: frozenset({"ReportRouting"}),
    Role.TRAINER: frozenset(
        {"RegisterJob", "ReportRouting", "SubmitSchedule", "FetchPlan", "WatchPlans", "ReportExecution"}
    ),
    Role.VIEWER: frozenset({"WatchPlans"}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Somebody who has shown who they are."""

    name: str
    """For messages: a token id or a SPIFFE id, never a secret."""
    job_id: str
    role: Role

    def check(self, method: str, job_id: str) -> None:
        """Return if the caller may call `method` for `job_id`, whether such a job exists or not.

        Raises:
            Forbidden: the role or the job is another.
        """
        if self.role is not Role.ADMIN and method not in _MAY_CALL[self.role]:
            raise Forbidden(f"{self.name} has role {self.role}, which may not call {method}")
        if self.job_id not in (ALL_JOBS, job_id):
            raise Forbidden(f"{self.name} is of job {self.job_id!r} and may not act for another")


ANYBODY = Caller(name="anybody on this machine", job_id=ALL_JOBS, role=Role.ADMIN)


class Access:
    """Finds out who calls: a bearer token first, else the SPIFFE id of the client certificate."""

    def __init__(self, store: Store, *, is_required: bool, trust_domain: str) -> None:
        self._identities = Identities(store)
        self._is_required = is_required
        self._trust_domain = trust_domain

    async def identify(self, context: Any) -> Caller:
        """Return the caller of a gRPC call.

        Raises:
            Unauthenticated: neither a valid token nor a SPIFFE id came with the call.
            Unavailable: the token cannot be looked up.
        """
        if not self._is_required:
            return ANYBODY
        for key, value in context.invocation_metadata() or ():
            if key == "authorization":
                return await self._of_token(value)
        for spiffe_id in context.auth_context().get("peer_spiffe_id", ()):
            return self._of_certificate(spiffe_id.decode(errors="replace"))
        raise Unauthenticated(
            "no token came with the call; make one with `relibra tokens create` and set RELIBRA_TOKEN"
        )

    async def _of_token(self, value: str) -> Caller:
        scheme, _, token = value.partition(" ")
        if scheme.lower() != "bearer":
            raise Unauthenticated("the authorization header of the call is not valid: expected `Bearer <token>`")
        record = await self._identities.identify(token)
        return Caller(name=f"token {record.token_id}", job_id=record.job_id, role=Role(record.role))

    def _of_certificate(self, spiffe_id: str) -> Caller:
        prefix = f"spiffe://{self._trust_domain}/job/"
        job_id, _, role = spiffe_id.removeprefix(prefix).partition("/")
        if not spiffe_id.startswith(prefix) or not job_id or role not in set(Role):
            raise Unauthenticated(f"the certificate says {spiffe_id[:200]!r}; expected {prefix}<job id>/<role>")
        return Caller(name=spiffe_id, job_id=job_id, role=Role(role))
