"""`name_sequence`: a name for a sequence that follows from its tokens alone.

A rollout worker and a trainer rank hold the same tokens and have no other name in common, because frameworks renumber
samples on their way.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from relibra.routing.sequence_routing import as_integers


def name_sequence(tokens: Any | Sequence[int], field: str = "tokens") -> str:
    """Return the name of a sequence: a hash of its tokens, prompt and response, without padding.

    Args:
        tokens: token ids `[T]` of any integer dtype; a list, numpy, or torch on any device.
        field: the name of the tokens in errors.

    Raises:
        InvalidInput: the tokens are no integers.
    """
    ids_T = as_integers(np.asarray(tokens) if isinstance(tokens, list | tuple) else tokens, field)
    return hashlib.blake2b(np.ascontiguousarray(ids_T, dtype="<i8").tobytes(), digest_size=16).hexdigest()
