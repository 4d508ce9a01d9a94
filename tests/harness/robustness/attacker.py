"""A process that attacks a service until its input ends: `python -m harness.robustness.attacker NAME TARGET`."""

import json
import os
import select
import sys

from harness.robustness import attacks, status_attacks


def main() -> None:
    """Say that the attack is at its limit, go on with it, and at the end say how the service answered."""
    # The service and its other clients come first: an attacker comes from a machine of its own.
    os.nice(19)
    name, target = sys.argv[1:]
    module = attacks if hasattr(attacks, name) else status_attacks
    attack = getattr(module, name)(attacks.Target(**json.loads(target)))
    answers = {next(attack)[:200]}
    print("at its limit", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        answers.add(next(attack)[:200])
    attack.close()
    print(json.dumps(sorted(answers)), flush=True)


if __name__ == "__main__":
    main()
