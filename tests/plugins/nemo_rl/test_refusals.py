import pytest

from relibra.errors import Unsupported
from relibra.plugins.nemo_rl.refusals import check_generation, check_settings


def policy(**changes: object) -> dict[str, object]:
    """Return the section `policy`, as far as the plug-in checks it."""
    own = {"sequence_packing": {"enabled": True}, "megatron_cfg": {"context_parallel_size": 1}, "generation": None}
    return own | changes


def test_S9_megatrons_own_engine_is_refused_by_name_where_experts_move() -> None:
    check_generation(policy())
    check_generation(policy(generation={"backend": "vllm"}))
    with pytest.raises(Unsupported, match=r"policy\.generation\.backend than megatron.*policy\.relibra\.reorder=never"):
        check_generation(policy(generation={"backend": "megatron"}))


def test_context_parallelism_needs_packed_sequences() -> None:
    parallel = {"context_parallel_size": 2}
    check_settings(policy(megatron_cfg=parallel), slices_context_parallel_inputs=False)
    with pytest.raises(Unsupported, match="sequence_packing"):
        check_settings(
            policy(megatron_cfg=parallel, sequence_packing={"enabled": False}), slices_context_parallel_inputs=False
        )
