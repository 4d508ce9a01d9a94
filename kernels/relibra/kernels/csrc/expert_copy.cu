// expert_pack and expert_unpack: copy tensors to a contiguous buffer and back. One block copies one tile.
#include "segments.cuh"

extern "C" __global__ void __launch_bounds__(256)
    expert_copy(const __grid_constant__ Segments segments, int zero_padding) {
  copy_tile(segments, blockIdx.x, zero_padding != 0);
}
