"""The module that users of verl name."""

import importlib

import pytest

from relibra.errors import Unsupported
from relibra.integrations import verl


def test_a_name_that_verl_imports_too_early_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "other,relibra.integrations.verl")
    with pytest.raises(Unsupported, match=r"actor_rollout_ref\.model\.external_lib=relibra\.integrations\.verl"):
        importlib.reload(verl)
