"""The group of all trainer ranks, from what each of them knows about its launch."""

import pytest

from relibra.agent.plans.trainer_group import RankLaunch, TrainerGroup
from relibra.errors import InvalidInput


def rank(number: int, token: str | None = None) -> RankLaunch:
    return RankLaunch(
        token=token or f"random-{number}",
        is_shared=token is not None,
        owner=f"host:{number}",
        process=f"process-{number}",
    )


def test_without_a_token_all_ranks_present_that_of_rank_0() -> None:
    launches = [rank(number) for number in range(3)]
    groups = [TrainerGroup.of(launches, number) for number in range(3)]
    assert {(each.token, each.is_shared, each.name, each.owner) for each in groups} == {
        ("random-0", False, "process-0", "host:0")
    }
    assert [each.leads for each in groups] == [True, False, False]


def test_a_token_that_some_ranks_were_given_is_the_token_of_all() -> None:
    group = TrainerGroup.of([rank(0), rank(1, "mine"), rank(2, "mine")], 2)
    assert (group.token, group.is_shared, group.name) == ("mine", True, "process-0")


def test_ranks_with_different_tokens_are_refused_by_number() -> None:
    message = "RELIBRA_ATTEMPT: expected 'mine' on all ranks, as on rank 1, got 'yours' on rank 2; set it once"
    with pytest.raises(InvalidInput, match=message):
        TrainerGroup.of([rank(0), rank(1, "mine"), rank(2, "yours")], 0)


def test_a_process_knows_whether_the_user_gave_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RELIBRA_ATTEMPT", raising=False)
    assert not RankLaunch.of_this_process().is_shared
    assert RankLaunch.of_this_process() == RankLaunch.of_this_process()
    assert RankLaunch.of_this_process("mine")[:2] == ("mine", True)
    monkeypatch.setenv("RELIBRA_ATTEMPT", "env")
    assert RankLaunch.of_this_process()[:2] == ("env", True)
