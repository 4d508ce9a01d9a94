"""The launch of a training, on whose behalf a process registers its job."""

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The launch on whose behalf a process registers a job."""

    token: str = ""
    """An opaque text that all processes of one launch share. Without one, no other process can join."""
    owner: str = ""
    """`<host>:<pid>` of the process, for people."""
    process: str = ""
    """A text that names the process, and no other that ever ran. A driver that starts again has another one."""

    @property
    def token_hash(self) -> str:
        """The hex digest under which services keep and compare the token; empty without a token."""
        return hashlib.sha256(self.token.encode()).hexdigest() if self.token else ""
