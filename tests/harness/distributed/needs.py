"""Megatron-core without one of the attributes that the agent needs."""

import importlib
import itertools
from contextlib import ExitStack
from typing import Any
from unittest import mock

from relibra.agent.needed import check_instances, check_needs
from relibra.agent.needs import DISPATCHER_NEEDS, NEEDS, REPLAY_NEEDS, Need, Use
from relibra.errors import Unsupported


def unnoticed_removals() -> list[str]:
    """Remove each attribute of the table, or change its signature, and return those that no check names."""
    needs = (*NEEDS, *REPLAY_NEEDS, *itertools.chain(*DISPATCHER_NEEDS.values()))
    return [str(need) for need in needs if need.name not in _refusal_without(need)]


def _refusal_without(need: Need) -> str:
    owner, _, attribute = need.name.partition(".")
    module = importlib.import_module(need.module)
    with ExitStack() as stack:
        try:
            if need.use is Use.HELD:
                check_instances([type(owner, (), {})()], [need])
            else:
                stack.enter_context(mock.patch.dict(vars(module)))
                del vars(module)[owner]
                if attribute:
                    vars(module)[owner] = type(owner, (), {attribute: _something_else} if need.takes else {})
                check_needs([need])
        except Unsupported as error:
            return str(error)
    return ""


def _something_else(self: Any, other: Any) -> None: ...
