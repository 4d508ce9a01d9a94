// expert_push: tensors into the slots of a peer, by few blocks of a thousand threads, then a flag that says so.
// flag_wait: the peer's side of it.
#include "segments.cuh"

// A null flag is left to a later launch on the stream, if there is one at all. The flag is written after every byte:
// the writes of each block happen before its system fence (the barrier makes the fence of one thread speak for all),
// the fence before its arrival, and all arrivals before the flag.
extern "C" __global__ void __launch_bounds__(1024)
    expert_push(const __grid_constant__ Segments segments, int* num_arrived, volatile long long* flag,
                long long value) {
  const int num_tiles = segments.first_tile[segments.num_segments];
  for (int tile = blockIdx.x; tile < num_tiles; tile += gridDim.x) copy_tile(segments, tile, false);
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence_system();
  if (flag != nullptr && atomicAdd(num_arrived, 1) == static_cast<int>(gridDim.x) - 1) {
    __threadfence_system();
    *flag = value;
  }
}

// One thread. What the writer of the flag wrote before it is visible to whatever follows on the stream.
extern "C" __global__ void flag_wait(const volatile long long* flag, long long value, long long timeout_cycles,
                                     unsigned char* arrived) {
  const long long began = clock64();
  bool seen = *flag >= value;
  while (!seen && clock64() - began < timeout_cycles) seen = *flag >= value;
  __threadfence_system();
  *arrived = seen;
}
