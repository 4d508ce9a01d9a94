"""Named ranges of a rank's time in the traces of torch.profiler."""

from contextlib import AbstractContextManager, nullcontext

from torch.autograd import profiler

_NOTHING = nullcontext()


def span(what: str, layer: int) -> AbstractContextManager[object]:
    """Record the body as `relibra::<what> layer <layer>`. Without a profiler, a range would cost the host 5 us."""
    # torch sets this flag for torch.profiler and for `emit_nvtx`.
    return profiler.record_function(f"relibra::{what} layer {layer}") if profiler._is_profiler_enabled else _NOTHING
