"""The token that the ranks of a launch agree on."""

import pytest

from relibra.agent.plans.shared_attempt import agree_on_token, own_token
from relibra.errors import InvalidInput


def test_without_a_token_of_the_user_the_process_of_rank_0_names_the_launch() -> None:
    assert agree_on_token(["", "", ""], "rank 0") == "rank 0"


def test_one_rank_that_has_the_token_is_enough() -> None:
    assert agree_on_token(["", "mine", "mine"], "rank 0") == "mine"


def test_ranks_with_different_tokens_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"RELIBRA_ATTEMPT: expected 'mine' on all ranks, as on rank 1, got 'yours'"):
        agree_on_token(["", "mine", "yours"], "rank 0")


def test_an_argument_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RELIBRA_ATTEMPT", raising=False)
    assert own_token() == ""
    monkeypatch.setenv("RELIBRA_ATTEMPT", "env")
    assert own_token() == "env"
    assert own_token("mine") == "mine"
