"""Bearer tokens: each has a job and a role. Redis holds only hashes; a secret is shown once, when it is created.

Every call of a service shows a token. `Identities` remembers all records, so few calls cost a round trip to Redis.
"""

import asyncio
import hashlib
import hmac
import json
import logging
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum

from relibra.errors import Corrupt, NotFound, Unauthenticated, one_line
from relibra.store.connection import Connected
from relibra.store.documents import reading
from relibra.store.keys import TOKENS
from relibra.store.records import TokenRecord

logger = logging.getLogger(__name__)

ALL_JOBS = "*"
"""The scope of a token for all jobs. A scope is a job id, or the beginning of job ids with `*` behind it."""
_PREFIX = "relibra"
_RETRY_S = 0.05
REMEMBERED_S = 2.0
"""How long a revoked token may still work in one process."""
_REREAD_S = 0.5
"""The shortest time between two reads of the records; a caller whose token they lack waits for the next read."""


def covers(scope: str, other: str) -> bool:
    """Return whether a token of a scope is good for a job, or for all jobs of another scope."""
    return scope == other or (scope.endswith(ALL_JOBS) and other.startswith(scope.removesuffix(ALL_JOBS)))


class Role(StrEnum):
    """The role of a caller; `relibra.planner.serve.access` lists the methods of each role."""

    ROLLOUT = "rollout"
    TRAINER = "trainer"
    VIEWER = "viewer"
    ADMIN = "admin"


class Tokens(Connected):
    """The tokens of all jobs.

    A token is `relibra_<id>_<secret>`. The secret is 256 random bits, so one round of SHA-256 is as good as any slow
    hash.
    """

    async def create_token(
        self, job_id: str, role: Role, *, lifetime_s: float | None = None
    ) -> tuple[TokenRecord, str]:
        """Create a token; return its record and the token itself."""
        token_id, secret = secrets.token_hex(4), secrets.token_urlsafe(32)
        now = time.time()
        record = TokenRecord(
            token_id=token_id,
            job_id=job_id,
            role=role,
            created_at=now,
            expires_at=None if lifetime_s is None else now + lifetime_s,
        )
        document = asdict(record) | {"sha256": hashlib.sha256(secret.encode()).hexdigest()}
        await self._redis.hset(TOKENS, token_id, json.dumps(document))
        return record, f"{_PREFIX}_{token_id}_{secret}"

    async def token_documents(self) -> dict[bytes, bytes]:
        """Return the records of all tokens by their ids, as they are stored.

        Raises:
            Corrupt: they cannot be read.
        """
        (documents,) = await self._answers([("hgetall", TOKENS)])
        return dict(documents)

    async def list_tokens(self) -> tuple[list[TokenRecord], dict[str, Corrupt]]:
        """Return all tokens, oldest first; and the ids of those that cannot be read, each with the reason."""
        (documents,) = await self._answers([("hgetall", TOKENS)])
        records, damaged = [], {}
        for name, document in documents.items():
            token_id = name.decode(errors="backslashreplace")
            try:
                records.append(_decode(token_id, document)[0])
            except Corrupt as error:
                damaged[token_id] = error
        return sorted(records, key=lambda token: token.created_at), damaged

    async def revoke_token(self, token_id: str) -> None:
        """Revoke a token.

        Raises:
            NotFound: there is no such token.
        """
        if not await self._redis.hdel(TOKENS, token_id):
            raise NotFound(f"there is no token {token_id!r}; list them with: relibra tokens list")


@dataclass(slots=True)
class _Reading:
    """The records of all tokens, as they were read once."""

    began_at: float
    documents: asyncio.Task[dict[bytes, bytes]]
    valid: dict[str, TokenRecord]
    """The tokens that match a record."""

    def serves(self, fresh_s: float) -> bool:
        """Return whether callers should use this reading, which is so while it is under way."""
        if not self.documents.done():
            return True
        age_s = time.monotonic() - self.began_at
        return age_s < (min(fresh_s, _RETRY_S) if self.documents.exception() else fresh_s)


class Identities:
    """Finds the record of a token. It reads Redis twice a second at most, however many invalid tokens callers show.

    It holds the records of all tokens, about 300 bytes each. Expired tokens stay until somebody revokes them. After a
    read that failed, the next one comes after `_RETRY_S`.
    """

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._newest: _Reading | None = None
        self._told: set[str] = set()

    async def identify(self, token: str) -> TokenRecord:
        """Return what the store knows of `token`.

        Raises:
            Unauthenticated: the token is unknown, revoked or expired, or its record cannot be read.
            Unavailable: the token cannot be looked up.
        """
        came_at = time.monotonic()
        try:
            record, began_at = await self._find(token, REMEMBERED_S)
            # The token may have been made since the records were read.
            while record is None and began_at < came_at:
                await asyncio.sleep(began_at + _REREAD_S - time.monotonic())
                record, began_at = await self._find(token, _REREAD_S)
        except Corrupt as error:
            if str(error) not in self._told:
                self._told.add(str(error))
                logger.error("%s. Calls with this token are refused: revoke it, and create another one", error)
            raise Unauthenticated(f"the token cannot be checked: {error}. Create another one") from error
        if record is None or (record.expires_at is not None and record.expires_at < time.time()):
            raise Unauthenticated("the token is not valid: it is unknown, revoked or expired")
        return record

    async def _find(self, token: str, fresh_s: float) -> tuple[TokenRecord | None, float]:
        """Return the record of a token, None if it has none, and when the records began to be read.

        Args:
            token: the token.
            fresh_s: how long ago the records may have been read.
        """
        reading = self._newest
        if reading is None or not reading.serves(fresh_s):
            documents = asyncio.ensure_future(self._tokens.token_documents())
            self._newest = reading = _Reading(time.monotonic(), documents, {})
        # Shielded: a caller that hangs up must not end the reading for the others.
        read = await asyncio.shield(reading.documents)
        record = reading.valid.get(token)
        if record is None and (record := _match(token, read)) is not None:
            reading.valid[token] = record
        return record, reading.began_at


def _match(token: str, documents: Mapping[bytes, bytes]) -> TokenRecord | None:
    """Return the record of a token; None if the token is unknown or its secret is wrong.

    Raises:
        Corrupt: the record cannot be read.
    """
    prefix, _, rest = token.partition("_")
    token_id, _, secret = rest.partition("_")
    document = documents.get(token_id.encode(errors="replace"))
    if prefix != _PREFIX or document is None:
        return None
    record, expected = _decode(token_id, document)
    digest = hashlib.sha256(secret.encode(errors="replace")).hexdigest()
    return record if hmac.compare_digest(digest, expected) else None


def _decode(token_id: str, document: bytes) -> tuple[TokenRecord, str]:
    """Return the record of a token, and the hash of its secret."""
    with reading(f"the record of token {one_line(token_id)}"):
        fields = json.loads(document)
        expected = str(fields.pop("sha256"))
        fields |= {name: float(at) for name in ("created_at", "expires_at") if (at := fields[name]) is not None}
        return TokenRecord(**fields | {"role": Role(fields["role"])}), expected
