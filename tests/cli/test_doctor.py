import json


def test_services_are_looked_at_and_a_failure_is_the_exit_status(relibra, watched):
    named = ("--redis-url", watched.redis_url, "--planner", "127.0.0.1:1")
    said = {each["subject"]: each for each in json.loads(relibra("doctor", *named, "--json", status=1))}
    assert said["redis"]["verdict"] == said["redis: eviction"]["verdict"] == said["status"]["verdict"] == "ok"
    assert said["planner"]["verdict"] == "failed"
    assert said["versions: wire"]["verdict"] == "ok" if "versions: wire" in said else said["versions"]


def test_S6_status_without_a_token_says_what_to_set(relibra, watched, tmp_path):
    arguments = tmp_path / "arguments.txt"
    arguments.write_text("--fp8-format hybrid")
    printed = relibra("doctor", "--megatron-args", arguments, status=1, RELIBRA_TOKEN="")
    assert "failed  status: access" in printed
    assert "set RELIBRA_TOKEN to a token that may look" in printed
    assert "fix: use bf16 or fp32 experts" in printed
