"""What is in the slots when it is wanted; four ranks in processes of their own."""

import pytest

pytestmark = pytest.mark.distributed


def test_S5_slots_hold_the_weights_that_are_wanted_whatever_was_guessed(node_run):
    results = node_run("random_uses")
    for result in results:
        assert result["wrong"] == []
        assert result["as_guessed"] > 50
        assert result["versions"] > 20
    assert len({(result["as_guessed"], result["versions"]) for result in results}) == 1
    assert sum(result["sent"] for result in results) > 0
