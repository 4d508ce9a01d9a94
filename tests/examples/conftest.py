from harness.services import shared_planner  # noqa: F401
