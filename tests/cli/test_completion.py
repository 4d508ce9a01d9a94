import pytest
from typer.testing import CliRunner

from harness.services import CLUSTER, MODEL, PARAMS, Loop
from relibra.cli.app import app
from relibra.store import Store


def complete(*words: str, **environment: str) -> list[str]:
    asked = {
        "_RELIBRA_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    return CliRunner().invoke(app, env=asked | environment, prog_name="relibra").stdout.split()


def test_verbs_options_and_values():
    assert complete("relibra", "ex") == ["explain"]
    assert "--json" in complete("relibra", "steps", "job", "--j")
    assert complete("relibra", "steps", "job", "--state", "co") == ["collecting"]
    assert complete("relibra", "advise", "trace.npz", "--model", "qw") == ["qwen3-235b-a22b", "qwen3-30b-a3b"]
    assert complete("relibra", "advise", "trace.npz", "--hardware", "h8") == ["h800"]
    assert complete("relibra", "simulate", "t.npz", "--policies", "plain,rel") == [
        "plain,relibra",
        "plain,relibra-packed",
    ]
    assert complete("relibra", "record", "r.jsonl", "--format", "vl") == ["vllm"]


@pytest.mark.parametrize("verb", ["show", "steps", "explain", "diff"])
def test_jobs_of_the_status_service(verb, watched):
    assert complete("relibra", verb, "", RELIBRA_STATUS_URL=watched.url, RELIBRA_TOKEN=watched.token) == ["job"]
    assert complete("relibra", verb, "x", RELIBRA_STATUS_URL=watched.url, RELIBRA_TOKEN=watched.token) == []


def test_jobs_of_the_service_that_the_line_names(watched):
    nowhere = {"RELIBRA_STATUS_URL": "http://127.0.0.1:1", "RELIBRA_TOKEN": watched.token}
    assert complete("relibra", "show", "", **nowhere) == []
    assert complete("relibra", "show", "--url", watched.url, "", **nowhere) == ["job"]


def test_jobs_in_redis(store: Store, run: Loop, redis_url: str):
    run(store.register_job("mine", MODEL, CLUSTER, PARAMS))
    assert complete("relibra", "jobs", "remove", "", RELIBRA_REDIS_URL=redis_url) == ["mine"]
    assert complete("relibra", "jobs", "remove", "", RELIBRA_REDIS_URL="redis://127.0.0.1:1") == []
    assert complete("relibra", "jobs", "remove", "") == []
