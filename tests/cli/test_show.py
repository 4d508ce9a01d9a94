import json
import re
from http import HTTPStatus

import pytest

from relibra.cli.output import hours_text
from relibra.errors import InvalidInput, NotFound, UnknownJob
from relibra.status.health import JobState


def test_a_job_with_its_health(relibra, watched):
    printed = relibra("show", "job")
    assert printed.endswith(f"What to do: {watched.url}/runbook#relibrajobfailing\n")
    assert printed.startswith(
        "failing: step 3 cannot be planned: the load is [empty]; 1 of the last 2 steps ran without a plan\n"
    )
    assert "3 MoE layers x 8 experts, top 2" in printed
    savings = json.loads(relibra("show", "job", "--json"))["savings"]
    figure = re.escape(hours_text(savings["saved_gpu_hours"]))
    assert re.search(rf"GPU-hours saved +{figure}\. Assumes that one token copy takes", printed)
    assert json.loads(relibra("show", "job", "--json"))["health"]["verdict"] == "failing"


@pytest.mark.parametrize("verdict", list(JobState))
def test_a_job_is_shown_in_every_state(relibra, answering, verdict):
    said = json.loads(relibra("show", "job", "--json"))
    said["health"] = {"verdict": verdict, "reason": "no plan for 15 min"}
    with answering(HTTPStatus.OK, json.dumps(said).encode()) as (url, _):
        printed = relibra("show", "job", "--url", url)
    assert printed.startswith(f"{verdict}: no plan for 15 min\n")
    assert "3 MoE layers x 8 experts, top 2" in printed


def test_S9_a_job_that_packs_says_how_that_ended(relibra, answering):
    said = json.loads(relibra("show", "job", "--json"))
    note = {"step": 7, "headline": "Step 7 was packed", "text": "packing brings the floor from 1.2 to 1.1"}
    for state in ("packed", "refused"):
        said["packing"] = note | {"state": state}
        with answering(HTTPStatus.OK, json.dumps(said).encode()) as (url, _):
            assert "Step 7 was packed: packing brings the floor from 1.2 to 1.1" in relibra("show", "job", "--url", url)
    said["packing"] = note | {"state": "queued", "headline": "Step 7 waits for a solver to pack it", "text": ""}
    with answering(HTTPStatus.OK, json.dumps(said).encode()) as (url, _):
        assert "Step 7 waits for a solver to pack it\n" in relibra("show", "job", "--url", url)
    said["packing"] = None
    with answering(HTTPStatus.OK, json.dumps(said).encode()) as (url, _):
        assert "packed" not in relibra("show", "job", "--url", url)


def test_a_step_with_what_the_ranks_did(relibra, watched):
    printed = relibra("show", "job", 1)
    assert f"bound {watched.job.plans[1].prediction.imbalance_bound:.3f}" in printed
    assert re.search(r"update: 4 of 4 ranks executed plan \w+\.\d; imbalance \S+ without relibra, \S+ with it", printed)
    assert "4 kept the last plan: late" in relibra("show", "job", 2)
    assert "the load is [empty]" in relibra("show", "job", 3)
    said = json.loads(relibra("show", "job", 2, "--json"))
    assert said["execution"][0]["fallbacks"] == {"late": 4}


def test_an_expired_step_in_brief(relibra, watched):
    printed = relibra("show", "job", 0)
    assert "step 0 is planned, level micro-batches, 8 sequences" in printed
    assert "full data expired after" in printed
    assert "because newer steps took its place (retained_steps); only this summary remains" in " ".join(printed.split())
    assert f"bound {watched.job.plans[0].prediction.imbalance_bound:.3f}" in printed
    assert re.search(r"update: 4 of 4 ranks executed plan \w+\.\d; imbalance \S+ without relibra, \S+ with it", printed)
    assert json.loads(relibra("show", "job", 0, "--json"))["expired"]
    with pytest.raises(NotFound, match=r"step 0 of job 'job' has expired: only the summary .* 4 in all"):
        relibra("show", "job", 0, "--row", 0, "--layer", 0)


def test_a_cell_in_full(relibra, watched):
    cell = json.loads(relibra("show", "job", 1, "--row", 1, "--layer", 2, "--json"))
    loads_R = watched.job.plans[1].rank_loads_MLR[1, 2].tolist()
    assert [rank["after_tokens"] for rank in cell["ranks"]] == loads_R
    printed = relibra("show", "job", 1, "--row", 1, "--layer", 2)
    assert f"> {max(loads_R)} tokens" in printed
    replicated = next(each for each in cell["experts"] if each["replicas"])
    assert f"{replicated['replicas'][0]['tokens']} on {replicated['replicas'][0]['rank']}" in printed


def test_half_a_cell_is_refused_and_a_missing_cell_is_not_found(relibra):
    with pytest.raises(InvalidInput, match="cell: expected a step, --row and --layer"):
        relibra("show", "job", 1, "--row", 1)
    with pytest.raises(NotFound):
        relibra("show", "job", 1, "--row", 99, "--layer", 0)


def test_S9_a_step_that_does_not_exist_is_not_shown_as_one_that_collects(relibra):
    with pytest.raises(NotFound, match="job 'job' has no step 99"):
        relibra("show", "job", 99)


@pytest.mark.parametrize("words", [("show", "jab"), ("steps", "jab"), ("explain", "jab", 1)])
def test_an_unknown_job_is_answered_with_the_way_to_those_that_exist(relibra, words, watched):
    with pytest.raises(UnknownJob, match=r"^job 'jab' is not registered: `relibra jobs list` lists"):
        relibra(*words, RELIBRA_TOKEN=watched.viewer_token)


def test_a_job_is_shown_with_its_attempts(relibra, watched):
    printed = relibra("show", "restarted", RELIBRA_TOKEN=watched.restarted_token, COLUMNS="160")
    assert re.search(r"^attempt +2, launched by host-b:99 \S+Z, heard \S+Z, epoch", printed, re.M)
    assert re.search(r"^attempt 1 +launched by host-a:4711 \S+Z, ended \S+Z; steps 1 to 2", printed, re.M)
    said = json.loads(relibra("show", "restarted", "--json", RELIBRA_TOKEN=watched.restarted_token))
    assert [each["number"] for each in said["attempts"]] == [2, 1]


def test_an_older_attempt_is_shown_as_of_its_end(relibra, watched):
    printed = relibra("show", "restarted", "--attempt", 1, RELIBRA_TOKEN=watched.restarted_token)
    assert printed.startswith("attempt 1 is over; attempt 2 is current. When it ended:\nwell: step 2 is planned")
    assert "What to do" not in printed
    step = relibra("show", "restarted", 2, "--attempt", 1, RELIBRA_TOKEN=watched.restarted_token)
    assert "step 2 is planned" in step
    assert "step 2 is collecting" in relibra("show", "restarted", 2, RELIBRA_TOKEN=watched.restarted_token)
    with pytest.raises(NotFound, match="job 'restarted' has no attempt 3: attempt 2 is current"):
        relibra("show", "restarted", "--attempt", 3, RELIBRA_TOKEN=watched.restarted_token)
