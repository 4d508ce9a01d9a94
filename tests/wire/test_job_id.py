import pytest

from relibra.errors import InvalidInput
from relibra.wire.job_id import check_job_id, nearest_job_id


@pytest.mark.parametrize("job_id", ["a", "A", "7", "Qwen3-30B-A3B_gspo.v2", "a" * 64])
def test_names_of_experiments_are_job_ids(job_id: str) -> None:
    assert check_job_id(job_id) == nearest_job_id(job_id) == job_id


@pytest.mark.parametrize("job_id", ["", "a" * 65, "-a", "a b", "a:b", "a{b}", "../a", "é", "a\n"])
def test_S6_job_ids_that_could_be_mistaken_are_refused(job_id: str) -> None:
    with pytest.raises(InvalidInput, match="job_id"):
        check_job_id(job_id)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("My Run", "My-Run"), ("org/Qwen3: GSPO!", "org-Qwen3-GSPO"), ("../a", "a"), ("_x_", "x"), ("é", "")],
)
def test_a_refusal_suggests_the_nearest_id(name: str, nearest: str) -> None:
    assert nearest_job_id(name) == nearest
    with pytest.raises(InvalidInput, match=f"for example '{nearest}', got" if nearest else "letter or digit, got"):
        check_job_id(name)


def test_long_names_with_one_beginning_get_two_ids() -> None:
    one, other = (nearest_job_id(f"{'experiment ' * 8}{seed}") for seed in (1, 2))
    assert one != other
    assert [check_job_id(each)[:30] for each in (one, other)] == ["experiment-experiment-experime"] * 2
