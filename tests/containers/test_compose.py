"""The Compose file on a Docker Engine: what it starts and what it survives. Tests share the stack, in this order."""

import itertools
import json
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from harness.container_stack import REPOSITORY, SERVICES, Stack, until
from relibra.errors import Unavailable
from relibra.planning import Cluster, Model, Schedule
from relibra.rollout import RolloutReporter
from relibra.wire.client import PlannerClient

PLANNERS = "ipv4:127.0.0.1:7420,127.0.0.1:7423"
STATUS = "http://127.0.0.1:7421"
MODEL = Model(num_layers=8, num_experts=64, top_k=4)
CLUSTER = Cluster(num_nodes=2, gpus_per_node=4, redundant_slots=2)
CONFINED = """
touch /x 2> /dev/null && echo "the root folder can be written"
[ "$(id -u)" != 0 ] || echo "runs as root"
for each in /proc/[0-9]*/status; do
  grep -qs "^CapEff:.0000000000000000$" $each || echo "$each: capabilities"
  grep -qs "^NoNewPrivs:.1$" $each || echo "$each: may gain privileges"
  grep -qs "^Seccomp:.2$" $each || echo "$each: any system call"
done
"""


def plan_s(is_last: Callable[[], bool] = lambda: True) -> list[float]:
    """Take steps of a new job until `is_last`; return the seconds that each waited from its schedule to its plan."""
    job, waited_s = f"job-{time.time_ns()}", []
    routed_STLK = [(np.random.default_rng(each).zipf(1.3, (64, 8, 4)) % 64).astype(np.int16) for each in range(64)]
    number_S = np.arange(len(routed_STLK))
    schedule = Schedule(micro_batch_S=number_S % 4, source_rank_S=number_S // 4 % 8, ep_group_S=number_S * 0)
    with PlannerClient(PLANNERS) as client, RolloutReporter(PLANNERS, job, num_experts=64) as reporter:
        client.register_job(job, MODEL, CLUSTER)
        for step in itertools.count(1):
            for number, routed_TLK in enumerate(routed_STLK):
                assert reporter.report(step, str(number), routed_TLK)
            reporter.flush()
            began_at = time.monotonic()
            asked_again(lambda step=step: client.submit_schedule(job, step, list(map(str, number_S)), schedule))
            asked_again(lambda step=step: client.fetch_plan(job, step, MODEL, wait_s=60))
            waited_s.append(time.monotonic() - began_at)
            if is_last():
                break
    return waited_s


def asked_again(call: Callable[[], object]) -> None:
    """Call until a planner answers, as trainers do: the one that was asked may be shutting down."""

    def is_answered() -> bool:
        try:
            call()
        except Unavailable as error:
            print(f"asked again: {error}")
            return False
        return True

    until(is_answered)


def relibra(*arguments: str) -> str:
    command = [sys.executable, "-m", "relibra.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY).stdout


def test_services_answer_and_doctor_finds_nothing(stack: Stack) -> None:
    relibra("doctor", "--planner", "127.0.0.1:7420", "--url", STATUS)
    relibra("doctor", "--planner", "127.0.0.1:7423")
    for page in ("", "healthz", "readyz", "docs"):
        assert urllib.request.urlopen(f"{STATUS}/{page}", timeout=10).status == 200, page


@pytest.mark.parametrize(("service", "most_mb"), [("status", 350), ("planner-1", 500)])
def test_images_are_small(stack: Stack, service: str, most_mb: int) -> None:
    config = stack.config()["services"][service]
    size_mb, base_mb = map(stack.image_mb, (config["image"], config["build"]["args"]["PYTHON_IMAGE"]))
    print(f"{config['image']}: {size_mb:.0f} MB, of which {base_mb:.0f} are its base")
    # A stand-in for the base may have any size; the official one has less than 150 MB.
    assert size_mb - base_mb < most_mb - 150


@pytest.mark.parametrize("service", ["planner-1", "status", "redis"])
def test_S6_containers_are_confined(stack: Stack, service: str) -> None:
    # The status of a process that is just beginning or ending, as of a health check, says nothing yet or any more.
    first, second = (set(stack.inside(service, CONFINED).splitlines()) for _ in range(2))
    assert not first & second


def test_the_command_line_works_inside_a_container(stack: Stack) -> None:
    assert json.loads(stack.compose("exec", "-T", "planner-1", "relibra", "tokens", "list", "--json")) == []


def test_L2_what_is_killed_comes_back(stack: Stack) -> None:
    plan_s()
    for service in SERVICES:
        before = stack.inspect(service, ".State.StartedAt")
        stack.signal_all(service, "KILL")
        until(lambda service=service, before=before: stack.inspect(service, ".State.StartedAt") != before)
    print(f"all killed: healthy again after {stack.wait_healthy():.1f} s")
    plan_s()


def test_L2_a_planner_that_hangs_is_restarted(stack: Stack) -> None:
    before = stack.inspect("planner-2", ".State.StartedAt")
    stack.signal_all("planner-2", "STOP")
    _, took_s = until(lambda: stack.inspect("planner-2", ".State.StartedAt") != before)
    print(f"restarted {took_s:.0f} s after it was frozen")
    stack.wait_healthy(["planner-2"])


def test_L4_services_stop_by_themselves_also_while_they_start(stack: Stack) -> None:
    for service in ("planner-1", "status", "redis"):
        began_at = time.monotonic()
        stack.compose("stop", service)
        print(f"{service} stopped after {time.monotonic() - began_at:.1f} s")
        assert stack.inspect(service, ".State.ExitCode") == "0", service
    stack.compose("start", "redis", "planner-1", "status")
    stack.wait_healthy()
    stack.compose("stop", "planner-2")
    for pause_s in (0.0, 0.3, 1.0):
        stack.compose("start", "planner-2")
        time.sleep(pause_s)  # the moment of the fault: at once, while it imports its modules, while it connects
        stack.compose("stop", "planner-2")
        assert stack.inspect("planner-2", ".State.ExitCode") in ("0", "143"), "137: it was killed after 40 s"
    stack.compose("start", "planner-2")
    stack.wait_healthy()


def test_the_first_plan_after_a_restart_waits_for_no_compiler(stack: Stack) -> None:
    stack.compose("rm", "--stop", "--force", "planner-1", "planner-2")
    stack.compose("up", "--detach")
    stack.wait_healthy()
    (first_s,), (second_s,) = plan_s(), plan_s()
    print(f"first plan after {first_s:.1f} s (2 s are promised), second after {second_s:.1f} s")
    for planner in ("planner-1", "planner-2"):
        warm = [line for line in stack.log(planner) if " is warm after" in line]
        assert warm
        assert all(re.search(r"loaded [1-9]\d* functions and compiled 0$", line) for line in warm), warm


def test_up_again_replaces_nothing_that_did_not_change(stack: Stack) -> None:
    def containers() -> list[str]:
        return [stack.inspect(each, ".Id") for each in SERVICES]

    before = containers()
    stack.compose("up", "--build", "--detach")
    assert containers() == before
    stack.wait_healthy()


def test_L2_L4_planners_are_replaced_under_load_and_every_step_has_its_plan(stack: Stack) -> None:
    is_over = threading.Event()
    with ThreadPoolExecutor() as pool:
        jobs = [pool.submit(plan_s, is_over.is_set) for _ in range(2)]
        try:
            for planner in ("planner-1", "planner-2"):
                before = stack.inspect(planner, ".Id")
                stack.compose("up", "--detach", "--no-deps", "--force-recreate", planner)
                stack.wait_healthy([planner])
                assert stack.inspect(planner, ".Id") != before
        finally:
            is_over.set()
        waited_s = [each for job in jobs for each in job.result()]
    print(f"{len(waited_s)} steps waited {max(waited_s):.1f} s at most (3 s are promised)")


def test_L3_down_and_up_keeps_the_data_and_no_container(stack: Stack) -> None:
    with PlannerClient(PLANNERS) as client:
        client.register_job("kept", MODEL, CLUSTER)
    stack.compose("--profile", "monitoring", "up", "--detach", "--no-deps", "prometheus")
    stack.compose("--profile", "*", "down")
    assert stack.compose("--profile", "*", "ps", "--all", "--quiet") == ""
    stack.compose("up", "--detach")
    stack.wait_healthy()
    assert "kept" in relibra("jobs", "list", "--url", STATUS)


def test_a_volume_that_redis_cannot_write_is_named(stack: Stack) -> None:
    stack.compose("stop", "redis")
    rights = ["--user", "0", "--cap-add", "CHOWN", "--cap-add", "DAC_OVERRIDE"]
    give = ["run", "--rm", "--no-deps", *rights, "--entrypoint", "chown", "redis", "-R"]
    stack.compose(*give, "0:0", "/data")
    stack.compose("start", "redis")
    until(lambda: any("is not writable for user 999" in line for line in stack.log("redis", "--tail", "5")))
    stack.compose("stop", "redis")
    stack.compose(*give, "999:1000", "/data")  # as docs/deployment.md says
    stack.compose("start", "redis")
    stack.wait_healthy()


def test_prometheus_scrapes_every_service_and_evaluates_every_alert(stack: Stack) -> None:
    stack.compose("--profile", "monitoring", "up", "--detach", "--no-deps", "prometheus")

    def asked(what: str) -> dict:
        try:
            return json.load(urllib.request.urlopen(f"http://127.0.0.1:9090/api/v1/{what}", timeout=5))["data"]
        except (urllib.error.URLError, ConnectionError):
            return {}

    def states() -> list[str]:
        targets = asked("targets").get("activeTargets", [])
        rules = [rule for group in asked("rules").get("groups", []) for rule in group["rules"]]
        assert not targets or len(targets) == 3
        return [each["health"] for each in (*targets, *rules)] if targets and rules else ["unknown"]

    until(lambda: "unknown" not in states())
    assert set(states()) == {"up", "ok"}


def test_the_demo_trains_with_the_planners_of_the_stack(stack: Stack, demo_image: None) -> None:
    command = stack.config()["services"]["demo-a"]["command"]
    stack.compose("--profile", "demo", "run", "--rm", "demo-a", *command, "--steps", "1")
    assert "demo-a" in relibra("jobs", "list", "--url", STATUS)
