// route_count: histogram of expert ids per layer. Counts are integers, so the order of the atomics does not matter.
constexpr int kMaxCells = 12288;  // 48 KB of shared memory.

struct Routes {
  long long num_tokens;
  int num_layers, top_k, num_experts;
  int tokens_per_block, layers_per_block;
};

template <typename Id>
__device__ inline void count_routes(const Routes& routes, const Id* __restrict__ expert_TLK, int* cells) {
  const long long first_token = static_cast<long long>(blockIdx.x) * routes.tokens_per_block;
  const long long left = routes.num_tokens - first_token;
  const int num_tokens = left < routes.tokens_per_block ? static_cast<int>(left) : routes.tokens_per_block;
  const int first_layer = blockIdx.y * routes.layers_per_block, layers_left = routes.num_layers - first_layer;
  const int num_layers = layers_left < routes.layers_per_block ? layers_left : routes.layers_per_block;
  const int width = num_layers * routes.top_k;
  for (int i = threadIdx.x; i < num_tokens * width; i += blockDim.x) {
    const long long token = first_token + i / width;
    const int choice = i % width, layer = choice / routes.top_k;
    const long long expert = expert_TLK[(token * routes.num_layers + first_layer) * routes.top_k + choice];
    if (expert >= 0 && expert < routes.num_experts) atomicAdd(&cells[layer * routes.num_experts + expert], 1);
  }
}

// Block (range of tokens, range of layers). id_bytes is negative where ids are signed.
extern "C" __global__ void __launch_bounds__(256)
    route_count(const __grid_constant__ Routes routes, const void* expert_TLK, int id_bytes,
                unsigned long long* count_LE) {
  __shared__ int cells[kMaxCells];
  const int first_layer = blockIdx.y * routes.layers_per_block, layers_left = routes.num_layers - first_layer;
  const int num_layers = layers_left < routes.layers_per_block ? layers_left : routes.layers_per_block;
  const int num_cells = num_layers * routes.num_experts;
  for (int i = threadIdx.x; i < num_cells; i += blockDim.x) cells[i] = 0;
  __syncthreads();
  if (id_bytes == 1) {
    count_routes(routes, static_cast<const unsigned char*>(expert_TLK), cells);
  } else if (id_bytes == -1) {
    count_routes(routes, static_cast<const signed char*>(expert_TLK), cells);
  } else if (id_bytes == 2) {
    count_routes(routes, static_cast<const unsigned short*>(expert_TLK), cells);
  } else if (id_bytes == -2) {
    count_routes(routes, static_cast<const short*>(expert_TLK), cells);
  } else if (id_bytes == -4) {
    count_routes(routes, static_cast<const int*>(expert_TLK), cells);
  } else {
    count_routes(routes, static_cast<const long long*>(expert_TLK), cells);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < num_cells; i += blockDim.x) {
    const unsigned long long count = cells[i];
    if (count != 0) atomicAdd(&count_LE[static_cast<long long>(first_layer) * routes.num_experts + i], count);
  }
}
