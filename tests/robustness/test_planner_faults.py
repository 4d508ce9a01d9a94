"""Planners are killed, paused, doubled and stopped at the worst moments."""

import os
import re
import signal
import threading

import pytest
from redis import Redis

from harness.robustness.world import (
    PATIENT_S,
    Planner,
    World,
    fetch,
    hold_solve,
    let_go,
    prepare_step,
    submit_step,
    take_step,
)
from harness.services import CLUSTER, MODEL, PARAMS, eventually, routed_experts
from relibra.planning import check_step_plan
from relibra.rollout import RolloutReporter
from relibra.store.keys import JobKeys
from relibra.wire.client import PlannerClient

pytestmark = [pytest.mark.robustness, pytest.mark.integration]

NUM_SEQUENCES = 3000
LARGER_THAN_A_RENEWAL_BYTES = 500


def report_many(planner: Planner) -> RolloutReporter:
    """Start to report more sequences than a planner takes in a moment."""
    with PlannerClient(planner.address, timeout_s=60) as client:
        client.register_job("job", MODEL, CLUSTER, PARAMS)
    reporter = RolloutReporter(planner.address, "job", num_experts=MODEL.num_experts)
    routed_TLK = routed_experts(0, 6)
    for index in range(NUM_SEQUENCES):
        assert reporter.report(1, f"seq-{index}", routed_TLK)
    return reporter


def is_publishing(redis: Redis) -> bool:
    """Return whether a plan, and not only the renewal of a lease, waits at a Redis whose writes are paused."""
    waiting = (each for each in redis.client_list() if "b" in each["flags"])
    return any(int(each["argv-mem"]) > LARGER_THAN_A_RENEWAL_BYTES for each in waiting)


@pytest.mark.parametrize(
    "stop", [signal.SIGTERM, *(pytest.param(sent, marks=pytest.mark.long) for sent in (signal.SIGKILL, signal.SIGSTOP))]
)
def test_L3_L4_a_planner_that_ends_or_freezes_mid_ingest(world: World, stop: signal.Signals) -> None:
    # The limit makes the ingest slow enough to be interrupted.
    planner = world.start_planner(RELIBRA_MAX_INGEST_BYTES_PER_S="60000")
    with (
        world.fault(f"planner gets {stop.name} mid-ingest", "L2 L3 L4" if stop == signal.SIGTERM else "L2 L3") as clock,
        world.redis.client() as redis,
    ):
        reporter = report_many(planner)
        epoch = int(redis.hget("relibra:{job}:job", "epoch"), 16)
        eventually(lambda: reporter.num_waiting < NUM_SEQUENCES)
        planner.process.send_signal(stop)
        if stop != signal.SIGSTOP:
            assert planner.process.wait(PATIENT_S) == (-stop if stop == signal.SIGKILL else 0)
        # Read in this order: a frozen planner may have run on for a moment.
        acknowledged = NUM_SEQUENCES - reporter.num_waiting
        kept = redis.hlen(JobKeys("job").attempt(epoch).step(1, "counts"))
        assert 0 < acknowledged <= kept < NUM_SEQUENCES
        planner.wake() if stop == signal.SIGSTOP else planner.start()
        clock.restart()
        assert reporter.flush(timeout_s=PATIENT_S) == NUM_SEQUENCES
        clock.stop()
        reporter.close()
        assert redis.hlen(JobKeys("job").attempt(epoch).step(1, "counts")) == NUM_SEQUENCES


@pytest.mark.long
def test_L2_S8_a_planner_killed_mid_solve_is_replaced_by_its_neighbour(world: World) -> None:
    ours, other = world.start_planner(), world.start_planner()
    expected = take_step(other, 1, "undisturbed")
    with world.fault("planner gets SIGKILL mid-solve, another one runs", "L2 S3 S8") as clock:
        # The other planner pauses only until the planner that will die holds the lease.
        other.process.send_signal(signal.SIGSTOP)
        hold_solve(world, ours)
        other.wake()
        ours.kill()
        clock.restart()
        plan = fetch(other, 1)
        clock.stop()
        assert plan.id.version == 1
        assert plan.digest == expected.digest


def test_S4_a_planner_paused_mid_solve_cannot_publish_when_it_wakes(world: World) -> None:
    paused = world.start_planner()
    expected = take_step(paused, 1, "undisturbed")
    with world.fault("planner gets SIGSTOP mid-solve, is taken over, wakes", "S3 S4 L2") as clock:
        solvers = hold_solve(world, paused)
        paused.process.send_signal(signal.SIGSTOP)
        with world.redis.client() as redis:
            held = int(redis.get("relibra:{job}:fence"))
        # The heir never loses its own lease, however busy the machine is: one takeover is enough.
        heir = world.start_planner(RELIBRA_LEASE_S="600")
        clock.restart()
        plan = fetch(heir, 1)
        clock.stop()
        with world.redis.client() as redis:
            assert int(redis.get("relibra:{job}:fence")) == held + 1
        let_go(solvers)
        paused.wake()
        # It notices that its lease is lost, or offers the plan first and is told the version that stands.
        outcome = f"job job step 1: plan (not published: .*(lease|no longer)|{re.escape(str(plan.id))} in )"
        eventually(lambda: re.search(outcome, paused.log()), within_s=PATIENT_S)
        again = fetch(paused, 1)
        assert (again.id, again.digest) == (plan.id, plan.digest)
        assert plan.digest == expected.digest
        assert take_step(paused, 2).id.version == 2


@pytest.mark.parametrize("stop", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.long)])
def test_L2_S3_a_planner_that_ends_or_freezes_between_solve_and_publish(world: World, stop: signal.Signals) -> None:
    planner = world.start_planner()
    expected = take_step(planner, 1, "undisturbed")
    with (
        world.fault(f"planner gets {stop.name} between solve and publish, another one runs", "L2 S3 S8") as clock,
        world.redis.client() as redis,
    ):
        solvers = hold_solve(world, planner)
        # From here on writes wait, also that of the plan. Reads do not, so the solver gets its counts.
        redis.execute_command("CLIENT", "PAUSE", "60000", "WRITE")
        let_go(solvers)
        eventually(lambda: is_publishing(redis))
        planner.process.send_signal(stop)
        redis.execute_command("CLIENT", "UNPAUSE")
        heir = world.start_planner()
        clock.restart()
        plan = fetch(heir, 1)
        clock.stop()
        assert plan.id.version == 1
        assert plan.digest == expected.digest
        if stop == signal.SIGSTOP:
            planner.wake()
            again = fetch(planner, 1)
            assert (again.id, again.digest) == (plan.id, plan.digest)
        assert take_step(heir, 2).id.version == 2


@pytest.mark.long
def test_S4_S8_two_planners_on_one_job_solve_every_step_once(world: World) -> None:
    planners = [world.start_planner(), world.start_planner()]
    with world.fault("two planners, both told of every step", "S3 S4 S8") as clock:
        for step in range(1, 6):
            prepare_step(planners[0], step)
            submits = [threading.Thread(target=submit_step, args=(planner, step)) for planner in planners]
            for each in submits:
                each.start()
            for each in submits:
                each.join()
            clock.restart()
            ours, theirs = (fetch(planner, step) for planner in planners)
            clock.stop()
            check_step_plan(ours, MODEL, CLUSTER)
            assert (ours.id, ours.digest) == (theirs.id, theirs.digest)
            assert ours.id.version == step
        solved = [len(re.findall("step [1-5]: plan ", planner.log())) for planner in planners]
        assert sum(solved) == 5, solved


@pytest.mark.long
def test_L2_a_killed_solver_is_replaced(world: World) -> None:
    planner = world.start_planner()
    with world.fault("solver gets SIGKILL mid-solve", "L2 S2") as clock:
        for pid in hold_solve(world, planner):
            os.kill(pid, signal.SIGKILL)
        clock.restart()
        check_step_plan(fetch(planner, 1), MODEL, CLUSTER)
        clock.stop()
        with world.redis.client() as redis:
            assert int(redis.get("relibra:{job}:fence")) >= 2
        assert "planning crashed: the solver was killed (SIGKILL)" in planner.log()


@pytest.mark.long
def test_S7_a_solve_that_runs_away_is_killed_and_the_step_fails_by_name(world: World) -> None:
    planner = world.start_planner(RELIBRA_SOLVE_TIMEOUT_S="0.01")
    with world.fault("every solve takes longer than its timeout", "S7 L1") as clock:
        prepare_step(planner, 1)
        submit_step(planner, 1)
        with (
            PlannerClient(planner.address, timeout_s=60) as client,
            pytest.raises(Exception, match=r"longer than 0\.01 s"),
        ):
            client.fetch_plan("job", 1, MODEL, wait_s=PATIENT_S)
        clock.stop()
        assert planner.log().count("planning crashed: the solve took longer") == 3
