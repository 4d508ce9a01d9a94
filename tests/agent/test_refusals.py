"""Versions of megatron-core by number alone. tests/distributed/test_refusals.py tests configurations."""

import pytest

from relibra.agent.refusals import check_version
from relibra.errors import Unsupported


@pytest.mark.parametrize("version", ["0.16.0", "0.16.0rc0", "0.19.2", "0.20.0rc1", "1.16.0", "unknown"])
def test_a_number_refuses_no_newer_version(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize("version", ["0.15.3", "0.1.0"])
def test_a_version_known_to_lack_a_hook_is_refused_with_the_hook(version: str) -> None:
    with pytest.raises(Unsupported, match=rf"megatron-core {version}, which lacks MoELayer.preprocess; use .* 0.16"):
        check_version(version)
