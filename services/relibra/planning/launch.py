"""The launch of a training, on whose behalf a process registers its job."""

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The launch on whose behalf a process registers a job; all fields are empty for a client that does not say."""

    token: str = ""
    """An opaque text that the processes of one launch share."""
    owner: str = ""
    """`<host>:<pid>` of the process, for people."""
    launch: str = ""
    """The launcher that started the process and may start it again; empty if unknown."""
    restart: int = 0
    """How often that launcher says that it has started its workers again."""
    age_s: float | None = None
    """How long ago the launcher started this process, if it starts all processes of an attempt at once. A process that
    is younger than the current attempt then belongs to the next one, whatever `restart` says."""

    @property
    def token_hash(self) -> str:
        """The hex digest under which services keep and compare the token; empty without a token."""
        return hashlib.sha256(self.token.encode()).hexdigest() if self.token else ""
