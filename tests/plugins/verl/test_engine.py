from types import SimpleNamespace

import pytest

from relibra.errors import Unsupported
from relibra.plugins.verl.engine import check_settings


def test_S9_a_setting_with_which_no_pass_would_begin_is_refused_by_its_name() -> None:
    check_settings(SimpleNamespace(dynamic_context_parallel=False))
    with pytest.raises(Unsupported, match="dynamic_context_parallel=False"):
        check_settings(SimpleNamespace(dynamic_context_parallel=True))
