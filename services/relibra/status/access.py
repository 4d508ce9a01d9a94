"""Which viewer may see which job (S6)."""

from dataclasses import dataclass

from relibra.errors import Forbidden, Unauthenticated
from relibra.store import ALL_JOBS, Role, Store, covers
from relibra.store.tokens import Identities

_MAY_LOOK = frozenset({Role.VIEWER, Role.TRAINER, Role.ADMIN})


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """An authenticated viewer."""

    name: str
    job_id: str
    """The job that the viewer may see, or the scope of its token (`tokens.covers`)."""

    def may_see(self, job_id: str) -> bool:
        """Return whether the viewer may see this job, or all jobs of this scope."""
        return covers(self.job_id, job_id)

    def check(self, job_id: str) -> None:
        """Return if the viewer may see a job, whether or not such a job exists.

        Raises:
            Forbidden: the viewer may only see another job.
        """
        if not self.may_see(job_id):
            raise Forbidden(f"{self.name} is for job {self.job_id!r} and may not see other jobs")


EVERYTHING = Viewer(name="anyone who can connect", job_id=ALL_JOBS)


class Access:
    """Identifies viewers by token. Programs send it as a bearer token, browsers as the password of HTTP Basic."""

    def __init__(self, store: Store, *, is_required: bool) -> None:
        self._identities = Identities(store)
        self.is_required = is_required

    async def identify(self, token: str | None) -> Viewer:
        """Return the viewer that `token` belongs to.

        Raises:
            Unauthenticated: there is no token, or it is not valid.
            Forbidden: the role of the token may not view jobs.
            Unavailable: the store cannot be reached.
        """
        if not self.is_required:
            return EVERYTHING
        if token is None:
            raise Unauthenticated(
                "the request has no token; create one with `relibra tokens create` and send it as a bearer token, or "
                "enter it as the password in a browser"
            )
        record = await self._identities.identify(token)
        if record.role not in _MAY_LOOK:
            raise Forbidden(f"token {record.token_id} has role {record.role}, which may not view jobs")
        return Viewer(name=f"token {record.token_id}", job_id=record.job_id)
