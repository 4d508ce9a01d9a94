import json


def test_a_plan_is_explained_in_sentences(relibra, watched):
    printed = " ".join(relibra("explain", "job", 1).split())
    assert watched.job.plans[1].reason[1:40] in printed
    assert "No placement can bring imbalance below" in printed
    assert "All 4 ranks applied the plan in phase update" in printed


def test_a_failed_step_says_why_and_brackets_are_not_markup(relibra):
    printed = relibra("explain", "job", 3)
    assert printed.startswith("There is no plan: the load is [empty];")
    assert json.loads(relibra("explain", "job", 3, "--json"))["placement"] == []


def test_a_step_of_an_older_attempt_is_explained(relibra, watched):
    printed = relibra("explain", "restarted", 2, "--attempt", 1, RELIBRA_TOKEN=watched.restarted_token)
    assert "No rank reported: the attempt ended before the step did." in printed
