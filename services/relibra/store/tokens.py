"""Bearer tokens: each has a job and a role. Redis holds only hashes; a secret is shown once, when it is created.

Every call of a service shows one, and few of them may cost a round trip to Redis: `Identities` remembers them.
"""

import hashlib
import hmac
import json
import logging
import secrets
import time
from dataclasses import asdict
from enum import StrEnum

from relibra.errors import Corrupt, NotFound, Unauthenticated, one_line
from relibra.store.connection import Connected
from relibra.store.documents import reading
from relibra.store.keys import TOKENS
from relibra.store.records import TokenRecord
from relibra.store.single_flight import SingleFlight

logger = logging.getLogger(__name__)

ALL_JOBS = "*"
_PREFIX = "relibra"
REMEMBERED_S = 2.0
"""How long a revoked token may still work in one process."""
_MAX_REMEMBERED = 4096


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

    async def find_token(self, token: str) -> TokenRecord | None:
        """Return the record of a token, or None if the token is unknown, revoked or expired.

        Raises:
            Corrupt: the record cannot be read.
        """
        prefix, _, rest = token.partition("_")
        token_id, _, secret = rest.partition("_")
        if prefix != _PREFIX:
            return None
        (document,) = await self._answers([("hget", TOKENS, token_id)])
        if not document:
            return None
        record, expected = _decode(token_id, document)
        if not hmac.compare_digest(hashlib.sha256(secret.encode()).hexdigest(), expected):
            return None
        return None if record.expires_at is not None and record.expires_at < time.time() else record

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


class Identities:
    """Finds the record of a token; remembers it for `REMEMBERED_S`."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._remembered: SingleFlight[TokenRecord | None] = SingleFlight(_MAX_REMEMBERED, fresh_s=REMEMBERED_S)
        self._told: set[str] = set()

    async def identify(self, token: str) -> TokenRecord:
        """Return what the store knows of `token`.

        Raises:
            Unauthenticated: the token is unknown, revoked or expired, or its record cannot be read.
            Unavailable: the token cannot be looked up.
        """
        try:
            record = await self._remembered.get(token, lambda: self._tokens.find_token(token))
        except Corrupt as error:
            if str(error) not in self._told:
                self._told.add(str(error))
                logger.error("%s. Calls with this token are refused: revoke it, and create another one", error)
            raise Unauthenticated(f"the token cannot be checked: {error}. Create another one") from error
        if record is None:
            raise Unauthenticated("the token is not valid: it is unknown, revoked or expired")
        return record


def _decode(token_id: str, document: bytes) -> tuple[TokenRecord, str]:
    """Return the record of a token, and the hash of its secret."""
    with reading(f"the record of token {one_line(token_id)}"):
        fields = json.loads(document)
        expected = str(fields.pop("sha256"))
        fields |= {name: float(at) for name in ("created_at", "expires_at") if (at := fields[name]) is not None}
        return TokenRecord(**fields | {"role": Role(fields["role"])}), expected
