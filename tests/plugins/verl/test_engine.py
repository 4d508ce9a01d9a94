"""The settings of verl that the engine of the plug-in refuses when it starts."""

from types import SimpleNamespace

import pytest

from relibra.errors import Unsupported
from relibra.plugins.verl.engine import check_settings

TAKEN = {"use_remove_padding": True, "dynamic_context_parallel": False}


@pytest.mark.parametrize("field", TAKEN)
def test_S9_a_setting_that_was_not_run_is_refused_by_its_name(field: str) -> None:
    check_settings(SimpleNamespace(**TAKEN))
    with pytest.raises(Unsupported, match=f"{field}={TAKEN[field]}"):
        check_settings(SimpleNamespace(**TAKEN | {field: not TAKEN[field]}))
