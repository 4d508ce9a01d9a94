from relibra.cli.known_jobs import unknown_job


def test_an_unknown_job_is_answered_with_those_that_are_registered_the_nearest_first():
    error = unknown_job("GSPO-Run", ["dapo-7", "gspo-run", "a-job"])
    assert str(error) == "job 'GSPO-Run' is not registered. Registered: gspo-run, a-job, dapo-7"


def test_a_long_list_is_cut_and_an_empty_one_is_said():
    many = unknown_job("x", [f"job-{number:02d}" for number in range(60)])
    assert str(many).endswith("job-19 and 40 more")
    assert str(unknown_job("x", [])) == "job 'x' is not registered, and no other job is"
