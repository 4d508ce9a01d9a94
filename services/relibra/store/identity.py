"""Bearer tokens on their way into a service: every call shows one, and few of them may cost a round trip to Redis."""

from relibra.errors import Unauthenticated
from relibra.store.records import TokenRecord
from relibra.store.single_flight import SingleFlight
from relibra.store.tokens import Tokens

REMEMBERED_S = 2.0
"""How long a revoked token may still work in one process."""
_MAX_REMEMBERED = 4096


class Identities:
    """Finds the record of a token; remembers it for `REMEMBERED_S`."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._remembered: SingleFlight[TokenRecord | None] = SingleFlight(_MAX_REMEMBERED, fresh_s=REMEMBERED_S)

    async def identify(self, token: str) -> TokenRecord:
        """Return what the store knows of `token`.

        Raises:
            Unauthenticated: the token is unknown, revoked or expired.
            Unavailable: the token cannot be looked up.
        """
        record = await self._remembered.get(token, lambda: self._tokens.find_token(token))
        if record is None:
            raise Unauthenticated("the token is not valid: it is unknown, revoked or expired")
        return record
