"""Authentication of callers, and what each role may call (S6)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from relibra.errors import Forbidden, Unauthenticated
from relibra.store import ALL_JOBS, Role, Store, covers
from relibra.store.tokens import Identities

_MAY_CALL: Mapping[Role, frozenset[str]] = {
    Role.ROLLOUT: frozenset({"JoinAttempt", "ReportRouting"}),
    Role.TRAINER: frozenset(
        {
            "RegisterJob",
            "JoinAttempt",
            "Rollback",
            "EndAttempt",
            "ReportRouting",
            "ClaimSequences",
            "SubmitSchedule",
            "Pack",
            "FetchPlan",
            "ReportExecution",
        }
    ),
    Role.VIEWER: frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """An authenticated caller."""

    name: str
    """A token id or a SPIFFE id, for messages; never a secret."""
    job_id: str
    """The job that the caller belongs to, or the scope of its token (`tokens.covers`)."""
    role: Role

    def check_role(self, method: str) -> None:
        """Return if the caller may call `method` for some job; this needs nothing of the call's message.

        Raises:
            Forbidden: the caller's role may not call the method.
        """
        if self.role is not Role.ADMIN and method not in _MAY_CALL[self.role]:
            raise Forbidden(f"{self.name} has role {self.role}, which may not call {method}")

    def check(self, method: str, job_id: str) -> None:
        """Return if the caller may call `method` for `job_id`, whether or not such a job exists.

        Raises:
            Forbidden: the caller's role may not call the method, or the caller belongs to another job.
        """
        self.check_role(method)
        if not covers(self.job_id, job_id):
            raise Forbidden(f"{self.name} belongs to job {self.job_id!r} and may not act for another job")


ANYBODY = Caller(name="anybody on this machine", job_id=ALL_JOBS, role=Role.ADMIN)


class Access:
    """Authenticates callers, by their bearer token if there is one, else by the SPIFFE id of their certificate."""

    def __init__(self, store: Store, *, is_required: bool, trust_domain: str) -> None:
        self._identities = Identities(store)
        self._is_required = is_required
        self._trust_domain = trust_domain

    async def identify(self, context: Any) -> Caller:
        """Return the caller of a gRPC call.

        Raises:
            Unauthenticated: the call came without a valid token and without a SPIFFE id.
            Unavailable: the token cannot be looked up.
        """
        if not self._is_required:
            return ANYBODY
        for key, value in context.invocation_metadata() or ():
            if key == "authorization":
                return await self._by_token(value)
        for spiffe_id in context.auth_context().get("peer_spiffe_id", ()):
            return self._by_certificate(spiffe_id.decode(errors="replace"))
        raise Unauthenticated(
            "no token came with the call; create one with `relibra tokens create` and set RELIBRA_TOKEN"
        )

    async def _by_token(self, value: str) -> Caller:
        scheme, _, token = value.partition(" ")
        if scheme.lower() != "bearer":
            raise Unauthenticated("the authorization header is not valid: expected `Bearer <token>`")
        record = await self._identities.identify(token)
        return Caller(name=f"token {record.token_id}", job_id=record.job_id, role=Role(record.role))

    def _by_certificate(self, spiffe_id: str) -> Caller:
        prefix = f"spiffe://{self._trust_domain}/job/"
        job_id, _, role = spiffe_id.removeprefix(prefix).partition("/")
        if not spiffe_id.startswith(prefix) or not job_id or role not in set(Role):
            raise Unauthenticated(f"the certificate says {spiffe_id[:200]!r}; expected {prefix}<job id>/<role>")
        return Caller(name=spiffe_id, job_id=job_id, role=Role(role))
