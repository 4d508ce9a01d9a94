"""The versions of megatron-core that the agent accepts. tests/distributed/test_refusals.py tests configurations."""

import pytest

from relibra.agent.refusals import check_version
from relibra.errors import Unsupported


@pytest.mark.parametrize("version", ["0.16.0", "0.16.1", "0.17.0rc0", "0.18.2", "0.19.2"])
def test_a_version_that_was_tested_is_taken(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize("version", ["0.15.3", "0.1.0", "0.20.0", "0.20.0rc1", "1.16.0", "unknown"])
def test_any_other_version_is_refused_with_those_that_were(version: str) -> None:
    with pytest.raises(Unsupported, match=rf"megatron-core {version}, .* not tested; use megatron-core 0.16 to 0.19"):
        check_version(version)
