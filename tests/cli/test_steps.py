import json


def test_steps_are_listed_newest_first_with_their_predictions(relibra, watched):
    printed = relibra("steps", "job").splitlines()
    rows = [line.split() for line in printed if line.split()[:1] and line.split()[0].isdigit()]
    assert [(row[0], row[1]) for row in rows] == [
        ("4", "collecting"),
        ("3", "failed"),
        ("2", "planned"),
        ("1", "planned"),
        ("0", "planned,"),
    ]
    assert rows[4][2] == "expired"
    assert rows[4][3] == "micro-batches"
    (phase,) = json.loads(relibra("steps", "job", "--json", "--before", 2, "--limit", 1))[0]["phases"]
    prediction = watched.job.plans[1].prediction
    imbalances = (
        phase["imbalance_plain"],
        phase["imbalance"],
        prediction.imbalance_after,
        prediction.imbalance_bound,
    )
    assert rows[3][3:7] == [f"{each:.3f}" for each in imbalances]
    assert printed[-1] == "step 3: the load is [empty]"


def test_pages_and_states(relibra):
    found = json.loads(relibra("steps", "job", "--limit", 1, "--before", 3, "--state", "planned", "--json"))
    assert [(each["step"], each["state"]) for each in found] == [(2, "planned")]


def test_steps_of_an_older_attempt(relibra, watched):
    def numbers(*options):
        found = json.loads(relibra("steps", "restarted", "--json", *options, RELIBRA_TOKEN=watched.restarted_token))
        return [(each["step"], each["state"]) for each in found]

    assert numbers() == [(2, "collecting")]
    assert numbers("--attempt", 1) == [(2, "planned"), (1, "planned")]
