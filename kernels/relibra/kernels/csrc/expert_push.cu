// expert_push: copy tensors into the slots of a peer. Few blocks of a thousand threads do all the copying, so the rest
// of the device stays free for computing.
#include "segments.cuh"

extern "C" __global__ void __launch_bounds__(1024) expert_push(const __grid_constant__ Segments segments) {
  const int num_tiles = segments.first_tile[segments.num_segments];
  for (int tile = blockIdx.x; tile < num_tiles; tile += gridDim.x) copy_tile(segments, tile, false);
}
