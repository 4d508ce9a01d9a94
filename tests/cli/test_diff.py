import json

import numpy as np
import pytest

from relibra.errors import NotFound


def test_every_move_is_named(relibra, watched):
    from_LE, to_LE = (watched.job.plans[step].home_rank_LE for step in (1, 2))
    said = json.loads(relibra("diff", "job", 2, "--json"))
    assert said["num_moved"] == int((from_LE != to_LE).sum()) > 0
    printed = relibra("diff", "job", 2, "--against", 1)
    assert printed.startswith(f"From step 1 to step 2, {said['num_moved']} experts move")
    layer, expert = np.argwhere(from_LE != to_LE)[0]
    assert f"{expert}: {from_LE[layer, expert]} > {to_LE[layer, expert]}" in printed


def test_a_step_is_like_itself(relibra):
    assert relibra("diff", "job", 2, "--against", 2).strip() == (
        "From step 2 to step 2, 0 experts move, 0 of them to another node."
    )


def test_moves_of_an_older_attempt(relibra, watched):
    printed = relibra("diff", "restarted", 2, "--attempt", 1, RELIBRA_TOKEN=watched.restarted_token)
    assert printed.startswith("From step 1 to step 2, ")
    with pytest.raises(NotFound, match="has no plan"):
        relibra("diff", "restarted", 2, RELIBRA_TOKEN=watched.restarted_token)
