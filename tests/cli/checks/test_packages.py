from packaging.requirements import Requirement

from relibra.cli.checks.finding import CheckResult
from relibra.cli.checks.packages import judge

WANTED = [
    Requirement(line)
    for line in (
        "numpy>=1.26",
        "redis>=6; extra == 'planner'",
        "rich>=13; extra == 'planner'",
        "torch>=2.6; extra == 'agent'",
    )
]


def results(**installed: str) -> dict[str, CheckResult]:
    return {each.subject.removeprefix("versions: "): each.verdict for each in judge(WANTED, installed)}


def test_roles_are_judged_by_their_own_packages():
    found = results(numpy="2.0", redis="6.1", rich="13.0")
    assert (found["rollout worker"], found["planner and status"], found["trainer"]) == (
        CheckResult.OK,
        CheckResult.OK,
        CheckResult.SKIPPED,
    )


def test_old_and_half_installed_fail():
    found = results(numpy="1.20", rich="13.0", torch="2.6.0rc1")
    assert (found["rollout worker"], found["planner and status"]) == (CheckResult.FAILED, CheckResult.FAILED)
