"""A rollout manager beside rank 0: slime's own function forms the schedule, and the handle makes calls at once."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from harness.services import eventually


class Manager:
    """Splits rollouts as slime's manager does: by a method that calls the global `build_dp_schedule`."""

    own: Callable[..., Any]
    """slime's function."""

    def __init__(self) -> None:
        self.rollout_id = -1
        self.num_packed = 0

    @property
    def handle(self) -> SimpleNamespace:
        """The handle, as far as relibra uses it."""
        return SimpleNamespace(remote=lambda function, *args: function(self, *args))

    def _split_train_data_by_dp(self, data: dict[str, Any]) -> Any:
        return build_dp_schedule(*data["arguments"], **data["more"])

    def split(self, samples: list[dict[str, Any]], arguments: Any, more: dict[str, Any]) -> Any:
        """Return the schedule of the next rollout; wait for a planner that has just started."""
        self.rollout_id += 1
        routing = [sample["rollout_routed_experts"] for sample in samples]
        data = {"arguments": arguments, "more": more, "rollout_routed_experts": routing}

        def split() -> Any:
            found = self._split_train_data_by_dp(data)
            packing = vars(self).get("relibra_packing")
            return None if packing is not None and packing._unpacked._num_failures else [found]

        (found,) = eventually(split)
        self.num_packed += found[0] != Manager.own(*arguments, **more)[0]
        return found


def build_dp_schedule(*args: Any, **more: Any) -> Any:
    """Return slime's schedule; relibra puts its own function here."""
    return Manager.own(*args, **more)
