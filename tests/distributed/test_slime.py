"""slime's own code backs up, switches and sends weights while experts move: right, or refused by name (S9)."""

import pytest

from harness import frameworks

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(frameworks.checkout("slime") is None, reason=frameworks.reason("slime")),
]

LAYOUTS = ["slime_ep4", "slime_ep2_edp2"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_S9_slime_switches_and_sends_the_right_weights_over_reorders(layout_run, layout):
    for result in layout_run(layout).of("followed"):
        assert min(result["moved"]) > 0
        assert [what for what, is_right in result["right"].items() if not is_right] == []
        assert result["difference"]["weights"] <= 1e-5


@pytest.mark.parametrize("layout", LAYOUTS)
def test_S9_slime_without_a_word_of_relibra_is_refused_before_weights_change_or_leave(layout_run, layout):
    for result in layout_run(layout).of("stock"):
        assert result["moved"] > 0
        for way, text in result["messages"].items():
            assert text.startswith("Unsupported: named_parameters() of "), way
            assert "called in slime.backends.megatron_utils.update_weight.common" in text, way
            assert "agent.at_original_places()" in text, way
        assert [what for what, is_right in result["right"].items() if not is_right] == []
        assert set(result["at_home"].values()) == {"not refused"}, result["at_home"]
