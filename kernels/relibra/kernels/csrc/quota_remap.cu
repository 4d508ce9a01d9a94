// quota_remap: logical to physical routing in three launches. The first counts the routes of every expert in each chunk
// of tokens, the second computes how many routes came before each chunk, and the third passes over the tokens and
// assigns them to slots. There are no atomics: every number has one writer.
//
// T tokens, E experts, P slots, C chunks of kChunkTokens tokens.
constexpr int kChunkTokens = 32;
constexpr int kNumRows = 32;  // Rows of 32 threads in quota_prefix; each row sums a range of chunks.
constexpr int kRest = -1;

// One block for each (chunk, group of experts), one thread for each expert.
extern "C" __global__ void __launch_bounds__(128)
    quota_count(const unsigned char* __restrict__ routing_map_TE, int num_tokens, int num_experts,
                int* __restrict__ count_CE) {
  const int expert = blockIdx.y * blockDim.x + threadIdx.x;
  if (expert >= num_experts) return;
  const int first = blockIdx.x * kChunkTokens;
  const int num = num_tokens - first < kChunkTokens ? num_tokens - first : kChunkTokens;
  const unsigned char* routed = routing_map_TE + static_cast<long long>(first) * num_experts + expert;
  int count = 0;
#pragma unroll 8
  for (int t = 0; t < num; ++t) count += routed[static_cast<long long>(t) * num_experts];
  count_CE[static_cast<long long>(blockIdx.x) * num_experts + expert] = count;
}

// Turns counts into exclusive prefix sums over chunks, in place; one block handles 32 experts. Also computes the range
// of its expert's tokens that each slot takes: first the replicas in slot order, then the home.
extern "C" __global__ void __launch_bounds__(1024)
    quota_prefix(int* __restrict__ count_CE, int num_chunks, int num_experts, const int* __restrict__ slot_expert_P,
                 const int* __restrict__ share_P, int num_slots, long long* __restrict__ begin_P,
                 long long* __restrict__ end_P) {
  __shared__ int sums[kNumRows][32];
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32;
  const int expert = blockIdx.x * 32 + lane;
  const int chunks_per_row = (num_chunks + kNumRows - 1) / kNumRows;
  const int first = row * chunks_per_row;
  const int last = expert >= num_experts ? 0 : first + chunks_per_row < num_chunks ? first + chunks_per_row : num_chunks;
  int* count = count_CE + expert;
  int sum = 0;
  for (int c = first; c < last; ++c) sum += count[static_cast<long long>(c) * num_experts];
  sums[row][lane] = sum;
  __syncthreads();
  int before = 0;
  for (int r = 0; r < row; ++r) before += sums[r][lane];
  for (int c = first; c < last; ++c) {
    const int own = count[static_cast<long long>(c) * num_experts];
    count[static_cast<long long>(c) * num_experts] = before;
    before += own;
  }

  for (int slot = blockIdx.x * blockDim.x + threadIdx.x; slot < num_slots; slot += gridDim.x * blockDim.x) {
    const int share = share_P[slot];
    long long begin = 0;
    for (int other = 0; other < num_slots; ++other) {
      const bool earlier = share == kRest || other < slot;
      if (earlier && slot_expert_P[other] == slot_expert_P[slot] && share_P[other] > 0) begin += share_P[other];
    }
    begin_P[slot] = begin;
    end_P[slot] = share == kRest ? 0x7fffffffffffffffLL : begin + share;
  }
}

struct Routing {
  const int* slot_expert_P;
  const int* before_CE;
  const long long* begin_P;
  const long long* end_P;
  int num_tokens, num_experts, num_slots;
};

template <typename Bits>
__device__ inline void place(const Routing& routing, const Bits* __restrict__ probs_TE,
                             const unsigned char* __restrict__ routing_map_TE, Bits* __restrict__ probs_TP,
                             unsigned char* __restrict__ routing_map_TP) {
  const int slot = blockIdx.y * blockDim.x + threadIdx.x;
  if (slot >= routing.num_slots) return;
  const long long num_experts = routing.num_experts, num_slots = routing.num_slots;
  const int expert = routing.slot_expert_P[slot];
  const bool held = expert >= 0 && expert < num_experts;
  const long long column = held ? expert : 0;
  const long long begin = routing.begin_P[slot], end = routing.end_P[slot];
  const int first = blockIdx.x * kChunkTokens;
  const int left = routing.num_tokens - first, num = left < kChunkTokens ? left : kChunkTokens;
  long long position = routing.before_CE[blockIdx.x * num_experts + column];
#pragma unroll 8
  for (int i = 0; i < num; ++i) {
    const long long token = first + i;
    const bool routed = held && routing_map_TE[token * num_experts + column] != 0;
    const bool taken = routed && begin <= position && position < end;
    routing_map_TP[token * num_slots + slot] = taken;
    probs_TP[token * num_slots + slot] = taken ? probs_TE[token * num_experts + column] : Bits(0);
    position += routed;
  }
}

// One block for each (chunk, group of slots), one thread for each slot. Probabilities of 2, 4 or 8 bytes move as bits.
extern "C" __global__ void __launch_bounds__(128)
    quota_place(const __grid_constant__ Routing routing, const void* probs_TE, const unsigned char* routing_map_TE,
                void* probs_TP, unsigned char* routing_map_TP, int element_bytes) {
  if (element_bytes == 2) {
    place(routing, static_cast<const unsigned short*>(probs_TE), routing_map_TE,
          static_cast<unsigned short*>(probs_TP), routing_map_TP);
  } else if (element_bytes == 4) {
    place(routing, static_cast<const unsigned int*>(probs_TE), routing_map_TE, static_cast<unsigned int*>(probs_TP),
          routing_map_TP);
  } else {
    place(routing, static_cast<const unsigned long long*>(probs_TE), routing_map_TE,
          static_cast<unsigned long long*>(probs_TP), routing_map_TP);
  }
}

template <typename Bits>
__device__ inline void give_back(const Bits* __restrict__ grad_TP, const unsigned char* __restrict__ routing_map_TP,
                                 const int* __restrict__ slot_expert_P, int num_tokens, int num_experts, int num_slots,
                                 Bits* __restrict__ grad_TE) {
  const int slot = blockIdx.y * blockDim.x + threadIdx.x;
  if (slot >= num_slots) return;
  const int first = blockIdx.x * kChunkTokens;
  const int num = num_tokens - first < kChunkTokens ? num_tokens - first : kChunkTokens;
#pragma unroll 8
  for (int i = 0; i < num; ++i) {
    const long long token = first + i, routed = token * num_slots + slot;
    if (routing_map_TP[routed]) grad_TE[token * num_experts + slot_expert_P[slot]] = grad_TP[routed];
  }
}

// The backward pass of quota_place; grad_TE starts as zeros. Every route has one slot, so every place has one writer.
extern "C" __global__ void __launch_bounds__(128)
    quota_give_back(const void* grad_TP, const unsigned char* routing_map_TP, const int* slot_expert_P, int num_tokens,
                    int num_experts, int num_slots, void* grad_TE, int element_bytes) {
  if (element_bytes == 2) {
    give_back(static_cast<const unsigned short*>(grad_TP), routing_map_TP, slot_expert_P, num_tokens, num_experts,
              num_slots, static_cast<unsigned short*>(grad_TE));
  } else if (element_bytes == 4) {
    give_back(static_cast<const unsigned int*>(grad_TP), routing_map_TP, slot_expert_P, num_tokens, num_experts,
              num_slots, static_cast<unsigned int*>(grad_TE));
  } else {
    give_back(static_cast<const unsigned long long*>(grad_TP), routing_map_TP, slot_expert_P, num_tokens, num_experts,
              num_slots, static_cast<unsigned long long*>(grad_TE));
  }
}
