"""Who looks, and at which job (S6)."""

from dataclasses import dataclass

from relibra.errors import Forbidden, Unauthenticated
from relibra.store import ALL_JOBS, Role, Store
from relibra.store.identity import Identities

_MAY_LOOK = frozenset({Role.VIEWER, Role.TRAINER, Role.ADMIN})


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """Somebody who has shown who they are."""

    name: str
    job_id: str
    """`*` for all jobs."""

    def may_see(self, job_id: str) -> bool:
        """Whether this job is shown to them."""
        return self.job_id in (ALL_JOBS, job_id)

    def check(self, job_id: str) -> None:
        """Return if they may see a job, whether such a job exists or not.

        Raises:
            Forbidden: they may see another one only.
        """
        if not self.may_see(job_id):
            raise Forbidden(f"{self.name} is of job {self.job_id!r} and may not see another")


EVERYTHING = Viewer(name="whoever can connect", job_id=ALL_JOBS)


class Access:
    """Finds out who a token stands for. Programs send it as a bearer, browsers as the password of HTTP Basic."""

    def __init__(self, store: Store, *, is_required: bool) -> None:
        self._identities = Identities(store)
        self.is_required = is_required

    async def identify(self, token: str | None) -> Viewer:
        """Return who shows `token`.

        Raises:
            Unauthenticated: there is none, or it is not valid.
            Forbidden: its role may not look.
            Unavailable: it cannot be looked up.
        """
        if not self.is_required:
            return EVERYTHING
        if token is None:
            raise Unauthenticated(
                "no token came with the request; make one with `relibra tokens create` and send it as a bearer, or as "
                "the password where a browser asks for one"
            )
        record = await self._identities.identify(token)
        if record.role not in _MAY_LOOK:
            raise Forbidden(f"token {record.token_id} has role {record.role}, which may not look")
        return Viewer(name=f"token {record.token_id}", job_id=record.job_id)
