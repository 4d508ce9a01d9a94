"""Routing that differs from the plan is reported and logged. Right routing says nothing."""

import pytest

pytestmark = pytest.mark.distributed

CELLS = 3 * 2
"""Micro-batches x layers."""
OTHERWISE = {
    "right": {},
    "trained": {},
    "no replay": {"no replay": CELLS},
    "fillers": {"fillers": CELLS},
    "order": {"micro-batches": 4},
    "more": {"micro-batches": 2},
    "wrapped": {"micro-batches": CELLS},
}


@pytest.fixture(scope="module")
def results(layout_run):
    return layout_run("routed_otherwise").of("routed_otherwise")


@pytest.mark.parametrize("case", OTHERWISE)
def test_S9_routing_that_differs_from_the_plan_is_reported_with_its_cause(results, case):
    for result in results:
        step = result["cases"].index(case)
        assert result["otherwise"][step] == OTHERWISE[case]
        assert result["num_cells"][step] == CELLS + 2 * (case == "more")


def test_S9_every_cause_is_logged_once(results):
    for result in results:
        assert result["cases"].count("no replay") == 2
        causes = [text.split("likely cause: ")[1].split(".")[0] for text in result["logged"]]
        assert len(causes) == len(set(causes)) == 3
        assert "in 6 of 6 cells of this rank" in result["logged"][0]


def test_S9_stages_of_a_pipeline_report_the_cells_of_all_layers(layout_run):
    for result in layout_run("routed_otherwise").of("summed"):
        assert result == {"num_cells": 12, "otherwise": {"fillers": 3, "no replay": 3}}


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("right", "accepted"),
        ("same routing", "accepted"),
        ("queue", "begin_step: checking the use of the routing given before phase recompute of step 21 failed on"),
        ("override", "begin_step: checking the use of the routing given before phase recompute of step 31 failed on"),
        ("override in RECOMPUTE", "begin_step of UPDATE: checking the use of the routing given before phase update"),
        ("attribute", "set_routing: the model is built with a routing replay of the framework"),
        ("right again", "accepted"),
    ],
)
def test_S9_routing_that_another_replay_would_override_is_refused(layout_run, case, words):
    for result in layout_run("routed_otherwise").of("refused_replay"):
        text = result["messages"][case]
        assert text.startswith(words)
        if words != "accepted":
            assert "ENABLE_ROUTING_REPLAY" in text
        if case == "queue":
            assert "this rank: MoE layers [0, 1] chose experts without asking for the routing given" in text
        if case.startswith("override"):
            assert "this rank: MoE layers [0, 1] chose other experts than the routing given" in text


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("queue on one rank", "begin_step: checking the use of the routing given before phase recompute of step 51"),
        ("override on one rank", "begin_step: checking the use of the routing given before phase recompute of step 61"),
        ("optimizer", "checking the use of the routing given before the optimizer's step"),
    ],
)
def test_S9_replay_that_one_rank_refuses_is_refused_on_all_at_the_same_step(layout_run, case, words):
    results = layout_run("routed_otherwise").of("refused_replay")
    for rank, result in enumerate(results):
        text = result["messages"][case]
        assert text.startswith(f"{words} failed on rank 1")
        assert ("this rank: MoE layers [0, 1] chose" in text) == (rank == 1)
        assert "ENABLE_ROUTING_REPLAY" in text
        assert result["messages"]["detach"] == "accepted"


def test_S9_replay_refused_in_the_last_step_is_said_by_detach_on_all_ranks(layout_run):
    for result in layout_run("routed_otherwise").of("refused_at_the_end"):
        assert result["detach"].startswith("checking the use of the routing given in the last step failed on rank 1")
        assert not result["left_behind"]
