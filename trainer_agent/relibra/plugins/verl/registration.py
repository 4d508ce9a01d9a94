"""`install`: have verl's registry of engines hand out the engines with an agent inside."""

import functools
import logging
import os
import sys
from typing import Any

from relibra.errors import Unsupported
from relibra.plugins.kept_log import keep_log
from relibra.plugins.points import Points, check_points
from relibra.plugins.verl import points
from relibra.plugins.verl.driver import install_in_driver
from relibra.plugins.verl.rollout import install_in_rollout
from relibra.plugins.verl.sent import install_in_sender

log = logging.getLogger(__name__)

_is_installed = False


def install() -> None:
    """Register the engines of this plug-in for verl's models on Megatron. A second call does nothing.

    verl imports `external_lib` in processes of rollout servers and of the driver too, which load no engines. There this
    call loads none either: the engine is registered when verl first builds a worker with an engine. In the driver, the
    trainer is loaded, which submits the batches that it samples, and asks relibra for the ranks of their sequences if
    the user lets it. A worker of agent loops reports its samples.

    Raises:
        Unsupported: this version of verl lacks something that the plug-in relies on; the message names it.
    """
    global _is_installed
    if _is_installed:
        return
    _is_installed = True
    keep_log()
    install_in_driver()
    install_in_rollout()
    install_in_sender()
    workers = sys.modules.get("verl.workers.engine_workers")
    if "verl.workers.engine" in sys.modules or workers is None:
        if "verl.workers.engine" in sys.modules:
            register()
        return
    _check(workers, points.WORKERS)
    build = workers.TrainingWorker.__init__

    @functools.wraps(build)
    def registered_first(self: Any, *args: Any, **kwargs: Any) -> None:
        register()
        build(self, *args, **kwargs)

    workers.TrainingWorker.__init__ = registered_first


@functools.cache
def register() -> None:
    """Register the engines under the vendor of this machine's devices, which verl looks up before its own engines.

    Raises:
        Unsupported: this version of verl lacks something that the plug-in relies on, or another plug-in has registered
            an engine for the same devices.
    """
    from verl.utils.device import get_device_name, get_vendor
    from verl.workers import engine

    if getattr(engine, "MegatronEngineWithLMHead", None) is None:
        log.warning(
            "relibra: verl could not import its Megatron engine in this process (its own warning says why), so no job "
            "is balanced here; relibra balances no other engine"
        )
        return
    from verl.utils import megatron_utils
    from verl.workers.engine.megatron import transformer_impl

    _check(transformer_impl, points.ENGINE)
    _check(megatron_utils, points.COPIES)
    from relibra.plugins.verl import host_copies
    from relibra.plugins.verl.engine import balanced

    registry = engine.EngineRegistry
    # verl looks engines up by these names, with which a user may overrule what it detects.
    device = os.environ.get("VERL_ENGINE_DEVICE") or get_device_name()
    vendor = os.environ.get("VERL_ENGINE_VENDOR") or get_vendor()
    kinds = (
        ("language_model", transformer_impl.MegatronEngineWithLMHead, ""),
        ("value_model", transformer_impl.MegatronEngineWithValueHead, "critic"),
    )
    for kind, own, beside in kinds:
        taken = registry._engines.get(kind, {}).get("megatron", {}).get((device, vendor))
        if taken is not None:
            raise Unsupported(
                f"{taken.__module__}.{taken.__qualname__} is registered already as verl's Megatron engine for {device} "
                f"of {vendor}; remove that plug-in or relibra's from external_lib"
            )
        registry.register(model_type=kind, backend="megatron", device=device, vendor=vendor)(balanced(own, beside))
    host_copies.install(megatron_utils)


def _check(module: Any, wanted: Points) -> None:
    check_points(module, wanted, version=points.VERSION, without="relibra from external_lib")
