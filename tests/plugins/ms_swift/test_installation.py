"""The plug-in for ms-swift touches processes that train with Megatron, and no others."""

import sys
from types import ModuleType

import pytest

from relibra.errors import Unsupported
from relibra.plugins.ms_swift import install


def test_a_rollout_server_gets_no_trainer(caplog: pytest.LogCaptureFixture) -> None:
    install()
    assert "this process does not train with Megatron, so relibra balances nothing in it" in caplog.text


def test_a_job_under_ray_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "swift.megatron", ModuleType("swift.megatron"))
    monkeypatch.setitem(sys.modules, "swift.ray.megatron", ModuleType("swift.ray.megatron"))
    with pytest.raises(Unsupported, match="leave out --use_ray"):
        install()
