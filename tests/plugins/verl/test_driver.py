"""`_balance_batch` of verl's trainers: unchanged, and followed by relibra's deal if the user has set `pack`."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from relibra.plugins.verl import dealer
from relibra.plugins.verl.driver import TRAINERS, install_in_driver

DEALT: list[tuple[Any, str]] = []
"""The batches that relibra was asked to deal, with the prefix of their metrics."""


class Trainer:
    """A trainer that deals a batch in its own way."""

    def __init__(self, **relibra: Any) -> None:
        self.config = {"relibra": relibra}

    def _balance_batch(
        self, batch: Any, metrics: Any, logging_prefix: str = "global_seqlen", keep: bool = False
    ) -> Any:
        metrics["keep"] = keep
        return f"another {batch}" if batch == "keys" else None


@pytest.fixture
def of_trainer(monkeypatch: pytest.MonkeyPatch) -> type[Trainer]:
    """Return a trainer of the newer module, in a process that has loaded no other, with the plug-in."""
    monkeypatch.setattr(
        dealer,
        "Dealer",
        lambda trainer: SimpleNamespace(deal=lambda batch, _module, _metrics, name: DEALT.append((batch, name))),
    )
    DEALT.clear()
    module, name = list(TRAINERS.items())[1]
    own: Any = type(name, (Trainer,), {"_balance_batch": Trainer._balance_batch})
    loaded: Any = ModuleType(module)
    setattr(loaded, name, own)
    monkeypatch.setitem(sys.modules, module, loaded)
    install_in_driver()
    return own  # type: ignore[no-any-return]


def test_without_pack_nothing_but_verls_own_code_runs(
    of_trainer: type[Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RELIBRA_PACK", raising=False)
    metrics: dict[str, Any] = {}
    assert of_trainer()._balance_batch("keys", metrics, keep=True) == "another keys"
    assert of_trainer()._balance_batch("keys", metrics, "prefix", True) == "another keys"
    assert metrics == {"keep": True}
    assert DEALT == []


def test_with_pack_relibra_deals_the_batch_that_verl_has_dealt(
    of_trainer: type[Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert of_trainer(pack=True)._balance_batch("keys", metrics={}) == "another keys"
    assert of_trainer(pack=True)._balance_batch("changed in place", {}, "prefix") is None
    monkeypatch.setenv("RELIBRA_PACK", "1")
    of_trainer()._balance_batch("by environment", {})
    assert DEALT == [
        ("another keys", "global_seqlen"),
        ("changed in place", "prefix"),
        ("by environment", "global_seqlen"),
    ]


def test_a_process_without_trainers_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in TRAINERS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    install_in_driver()
    assert not sys.modules.keys() & TRAINERS.keys()
