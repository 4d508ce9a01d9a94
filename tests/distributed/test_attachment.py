"""Attaching, detaching, and forwards outside a micro-batch."""

import pytest

pytestmark = pytest.mark.distributed


def test_S5_detaching_leaves_the_plain_model_bitwise(two_nodes):
    for result in two_nodes.of("detachment"):
        assert result["moved"]
        assert result["restored"]
        assert result["plain_again"]
        assert result["checkpoint_restored"]
        assert result["bitwise_state"] == [True, True]
        assert result["bitwise_step"]


def test_S5_names_by_place_become_logical_names(two_nodes):
    """Converters of frameworks need this after a reorder."""
    for result in two_nodes.of("detachment"):
        assert result["moved"]
        assert result["converters_agree"]


def test_S5_a_training_forward_outside_a_micro_batch_is_refused(two_nodes):
    for result in two_nodes.of("guard"):
        assert "outside `agent.micro_batch(i)` while the step has replicas" in result["with_replicas"]


def test_S5_routing_is_not_ignored_by_a_training_forward_outside_a_micro_batch(two_nodes):
    """Without a planner there are no replicas, but the routing would be lost silently."""
    for result in two_nodes.of("guard"):
        assert result["without_plan"]
        assert "outside `agent.micro_batch(i)` while the step has routing" in result["with_routing"]


def test_forwards_without_replicas_or_routing_need_no_micro_batch(two_nodes):
    assert max(two_nodes.worst("guard").values()) <= 1e-6
