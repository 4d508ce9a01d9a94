"""`trainer.override_entrypoint=relibra.integrations.skyrl`: SkyRL calls `main`, which turns on `relibra.plugins.skyrl`.

`balanced` turns the plug-in on for an experiment of your own.
"""

from typing import Any


def main() -> None:
    """Train as SkyRL's entry point does, with the plug-in."""
    from relibra.plugins.skyrl import entrypoint

    entrypoint.main()


def balanced(experiment: type[Any]) -> type[Any]:
    """Return a subclass of an experiment of SkyRL, `BasePPOExp` or your own, whose policy is balanced."""
    from relibra.plugins.skyrl import entrypoint

    return entrypoint.balanced(experiment)


if __name__ == "__main__":
    main()
