from types import SimpleNamespace
from typing import Any

import pytest

from relibra.errors import Unsupported
from relibra.plugins.slime.framework import MILES, SLIME


def of_miles(**options: Any) -> SimpleNamespace:
    taken = {"qkv_format": "thd", "colocate": True}
    return SimpleNamespace(**(taken | options))


def test_S9_slimes_own_forward_of_experts_is_refused_by_the_name_of_its_option() -> None:
    SLIME.check(SimpleNamespace())
    SLIME.check(SimpleNamespace(megatron_deepgemm_moe_forward_layers=None, megatron_deepgemm_forward_layers=[0]))
    with pytest.raises(Unsupported, match="does not balance slime with --megatron-deepgemm-moe-forward-layers"):
        SLIME.check(SimpleNamespace(megatron_deepgemm_moe_forward_layers=[3]))


def test_miles_is_refused_by_the_name_of_each_option() -> None:
    MILES.check(of_miles())
    options = {"qkv_format": "bshd", "indep_dp": True, "lora_rank": 8}
    options |= {"rematerialize_param_from_master_weight": True, "colocate": False, "update_weight_transfer_mode": "p2p"}
    with pytest.raises(Unsupported) as raised:
        MILES.check(of_miles(**options))
    for flag in (
        "--qkv-format bshd",
        "--indep-dp",
        "--rematerialize",
        "--lora-rank",
        "--update-weight-transfer-mode p2p",
    ):
        assert flag in str(raised.value)
