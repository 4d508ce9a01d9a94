"""Modules and instances compared with needs. tests/distributed/test_refusals.py removes parts of megatron."""

import functools
import sys
from types import ModuleType
from typing import Any

import pytest

from relibra.agent.needed import advice_on_exports, advice_on_version, check_instances, check_needs, find_lacks
from relibra.agent.needs import QUANTIZED_NEEDS, RAN, Need, Use
from relibra.errors import Unsupported

REPLACED = Need("megatron.core", "run", "why", Use.REPLACED, ("first", "*rest"))


@pytest.fixture
def core(monkeypatch) -> ModuleType:
    """Stand in for megatron, which would take seconds to import."""
    module = ModuleType("megatron.core")
    vars(module).update(__version__="0.99.1", run=lambda first, *rest: None)
    monkeypatch.setitem(sys.modules, "megatron", ModuleType("megatron"))
    monkeypatch.setitem(sys.modules, "megatron.core", module)
    return module


def test_what_is_there_passes(core):
    check_needs([REPLACED])


def test_wrappers_that_pass_everything_on_pass(core):
    plain = core.run

    def anything(*args: Any, **kwargs: Any) -> Any:
        return plain(*args, **kwargs)

    vars(core)["run"] = anything
    check_needs([REPLACED])
    vars(core)["run"] = functools.wraps(plain)(anything)
    check_needs([REPLACED])


def test_all_that_is_missing_is_named_at_once_with_the_version(core):
    vars(core)["run"] = lambda first, second: None
    needs = [REPLACED, Need("megatron.core", "stop", "why not"), Need("megatron.core.late", "Late", "why")]
    with pytest.raises(Unsupported) as error:
        check_needs(needs)
    for part in (
        "megatron-core 0.99.1 as installed",
        "megatron.core.run(first, *rest) (why): it has (first, second)",
        "megatron.core.stop (why not)",
        "megatron.core.late.Late (why)",
    ):
        assert part in str(error.value)


def test_instances_of_subclasses_are_compared(core):
    class Layer:
        pass

    class Own(Layer):
        number = 1

    needs = [Need("megatron.core", f"Layer.{name}", "why", Use.HELD) for name in ("number", "group")]
    with pytest.raises(Unsupported, match=r"Layer\.group \(why\), which a Own lacks; use"):
        check_instances([Own()], needs)


class Held:
    field: int = 0

    def __init__(self):
        self.group = None


class OfGroups(Held):
    pass


def test_attributes_of_instances_are_looked_for_in_the_sources_of_classes_and_bases(core):
    needs = [
        Need(__name__, f"{owner}.{name}", "why", Use.HELD)
        for owner in ("OfGroups", "Held", "NotThere")
        for name in ("group", "field", "other")
    ]
    assert find_lacks([REPLACED, *needs]) == [f"{__name__}.{owner}.other (why)" for owner in ("OfGroups", "Held")]


def test_S5_quantised_products_of_transformer_engine_before_2_3_are_refused(core):
    """There, the place of a quantiser depends on the number of products that the module was built with."""

    class GroupedLinear:
        quantizers = fp8_initialized = fp8_meta_tensors_initialized = _fp8_workspaces = None

    with pytest.raises(Unsupported, match=r"_num_fp8_tensors_per_gemm \(.*, with Transformer Engine 2\.3 or newer\)"):
        check_instances([GroupedLinear()], QUANTIZED_NEEDS)


def test_a_version_that_did_not_run_is_a_warning():
    assert advice_on_version(f"{RAN[-1]}.7rc1") is None
    advice = advice_on_version("0.99.1")
    assert advice is not None
    assert advice.startswith("megatron-core 0.99.1 has every attribute")


def test_S9_exports_that_the_agent_cannot_see_are_named_at_the_start(monkeypatch) -> None:
    assert advice_on_exports() is None
    monkeypatch.setitem(sys.modules, "mcore_bridge", ModuleType("mcore_bridge"))
    advice = advice_on_exports()
    assert advice is not None
    assert advice.startswith("mcore_bridge reads experts as attributes of their modules")
