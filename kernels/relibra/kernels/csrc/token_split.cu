// token_split: how many of its tokens one rank sends to each slot of a cell, in one launch. What is computed, and why, is
// said in relibra/planning/split.py; this is the same, number by number. Each block handles one node: its threads add up
// counts, one of them splits the tokens of the node over the copies, and all compute the share of their rank.
//
// R ranks, E experts, P physical slots, H home slots of a node, G ranks of a node, C copies of the experts that have
// replicas in the node (the home, and then the replicas by rank), X such experts.
constexpr int kRest = -1;
constexpr int kMaxRanks = 128, kMaxReplicas = 512, kMaxCopies = 2 * kMaxReplicas;
constexpr int kNumPours = 2, kMostMoves = 1 << 12;
constexpr long long kNoLimit = 0x7fffffffffffffffLL;

struct Node {
  int num_experts, gpus;
  int begin_X[kMaxReplicas + 1], expert_X[kMaxReplicas];
  int rank_C[kMaxCopies], slot_C[kMaxCopies];  // ranks count from the first of the node
  long long tokens_C[kMaxCopies], crossing_C[kMaxCopies];
  long long load_G[kMaxRanks], enters_G[kMaxRanks];
  int first_G[kMaxRanks], next_C[kMaxCopies], place_C[kMaxCopies];  // the copies of a rank, as a list that ends with -1
  int from_G[kMaxRanks], to_G[kMaxRanks], queue_G[kMaxRanks];
};

__device__ inline long long lower(long long a, long long b) { return a < b ? a : b; }
__device__ inline long long higher(long long a, long long b) { return a > b ? a : b; }

__device__ inline long long overlap(long long begin, long long end, long long other_begin, long long other_end) {
  return higher(0, lower(end, other_end) - higher(begin, other_begin));
}

// Divides what the copies of one expert have anew, so that their ranks are as level as their limits allow.
__device__ inline void pour(const int* rank_C, const long long* limit_C, long long* part_C, long long* sum_G, int begin,
                            int end) {
  long long total = 0, lowest = kNoLimit, highest = 0;
  for (int c = begin; c < end; ++c) {
    total += part_C[c];
    const long long left = sum_G[rank_C[c]] -= part_C[c];
    lowest = lower(lowest, left);
    highest = higher(highest, left);
  }
  highest += total;
  while (lowest < highest) {
    const long long level = (lowest + highest) / 2;
    long long taken = 0;
    for (int c = begin; c < end; ++c) {
      const long long room = higher(0, level - sum_G[rank_C[c]]);
      taken += limit_C ? lower(limit_C[c], room) : room;
    }
    if (taken < total) {
      lowest = level + 1;
    } else {
      highest = level;
    }
  }
  long long surplus = -total;
  for (int c = begin; c < end; ++c) {
    const long long room = higher(0, lowest - sum_G[rank_C[c]]);
    part_C[c] = limit_C ? lower(limit_C[c], room) : room;
    surplus += part_C[c];
  }
  for (int c = end - 1; c >= begin; --c) {
    if (surplus > 0 && part_C[c] > 0 && sum_G[rank_C[c]] + part_C[c] == lowest) {
      part_C[c] -= 1;
      surplus -= 1;
    }
  }
  for (int c = begin; c < end; ++c) sum_G[rank_C[c]] += part_C[c];
}

// Lowers the fullest rank until no chain of copies leads from it to a rank that is emptier by two tokens.
__device__ inline void even_out(Node& node) {
  for (int r = 0; r < node.gpus; ++r) node.first_G[r] = -1;
  for (int x = node.num_experts - 1; x >= 0; --x) {
    for (int c = node.begin_X[x]; c < node.begin_X[x + 1]; ++c) {
      node.place_C[c] = x;
      node.next_C[c] = node.first_G[node.rank_C[c]];
      node.first_G[node.rank_C[c]] = c;
    }
  }
  for (int move = 0; move < kMostMoves; ++move) {
    int fullest = 0;
    for (int r = 0; r < node.gpus; ++r) {
      if (node.load_G[r] > node.load_G[fullest]) fullest = r;
      node.to_G[r] = -1;
    }
    node.to_G[fullest] = -2;
    node.queue_G[0] = fullest;
    int emptiest = fullest;
    for (int taken = 0, waiting = 1; taken < waiting; ++taken) {
      for (int left = node.first_G[node.queue_G[taken]]; left >= 0; left = node.next_C[left]) {
        if (node.tokens_C[left] <= 0) continue;
        const int x = node.place_C[left];
        for (int c = node.begin_X[x]; c < node.begin_X[x + 1]; ++c) {
          const int reached = node.rank_C[c];
          if (node.to_G[reached] != -1) continue;
          node.from_G[reached] = left;
          node.to_G[reached] = c;
          node.queue_G[waiting++] = reached;
          if (node.load_G[reached] < node.load_G[emptiest]) emptiest = reached;
        }
      }
    }
    long long moved = (node.load_G[fullest] - node.load_G[emptiest]) / 2;
    if (moved == 0) return;
    for (int r = emptiest; r != fullest; r = node.rank_C[node.from_G[r]]) {
      moved = lower(moved, node.tokens_C[node.from_G[r]]);
    }
    for (int r = emptiest; r != fullest; r = node.rank_C[node.from_G[r]]) {
      node.tokens_C[node.to_G[r]] += moved;
      node.tokens_C[node.from_G[r]] -= moved;
    }
    node.load_G[fullest] -= moved;
    node.load_G[emptiest] += moved;
  }
}

// Lists the copies of the node by expert and then by rank, with room for every home before its replicas.
__device__ inline void list_copies(Node& node, const int* slot_expert_P, int num_experts, int first_rank, int gpus,
                                   int home_slots, int slots_per_rank) {
  int num = 0;  // the list is sorted by insertion; slot_C holds the slots, and expert_X their experts
  for (int r = 0; r < gpus; ++r) {
    for (int s = home_slots; s < slots_per_rank; ++s) {
      const int slot = (first_rank + r) * slots_per_rank + s, expert = slot_expert_P[slot];
      if (expert < 0 || expert >= num_experts || num == kMaxReplicas) continue;
      int at = num++;
      for (; at > 0 && node.expert_X[at - 1] > expert; --at) {
        node.expert_X[at] = node.expert_X[at - 1];
        node.slot_C[at] = node.slot_C[at - 1];
      }
      node.expert_X[at] = expert;
      node.slot_C[at] = slot;
    }
  }
  int experts = 0;
  for (int i = 0; i < num; ++i) experts += i == 0 || node.expert_X[i] != node.expert_X[i - 1];
  node.num_experts = experts;
  node.gpus = gpus;
  // From the last to the first, because every home moves its replicas one place further.
  int copy = num + experts;
  node.begin_X[experts] = copy;
  for (int i = num - 1, x = experts - 1; i >= 0; --i) {
    const int slot = node.slot_C[i];
    --copy;
    node.slot_C[copy] = slot;
    node.rank_C[copy] = slot / slots_per_rank - first_rank;
    node.tokens_C[copy] = node.crossing_C[copy] = 0;
    if (i == 0 || node.expert_X[i] != node.expert_X[i - 1]) {
      --copy;
      node.begin_X[x--] = copy;
      node.rank_C[copy] = 0;
      node.tokens_C[copy] = node.crossing_C[copy] = 0;
    }
  }
  for (int i = 0, x = 0; i < num; ++i) {
    if (i == 0 || node.expert_X[i] != node.expert_X[x - 1]) node.expert_X[x++] = node.expert_X[i];
  }
}

// How many of its tokens of an expert a rank keeps, because it has a copy.
__device__ inline long long kept(const Node& node, int x, int rank, long long has) {
  for (int c = node.begin_X[x]; c < node.begin_X[x + 1]; ++c) {
    if (node.rank_C[c] == rank) return lower(has, node.tokens_C[c] - node.crossing_C[c]);
  }
  return 0;
}

// Writes the share of one rank in the replicas of one expert.
__device__ inline void give(const Node& node, int x, const int* counts_RE, int num_experts, int first_rank, int rank,
                            int* share_P) {
  const int* counts = counts_RE + node.expert_X[x];
  const long long stride = num_experts, has = counts[rank * stride];
  const int begin = node.begin_X[x], end = node.begin_X[x + 1], own_rank = rank - first_rank;
  long long before = 0, taken, own = 0;
  const bool inside = 0 <= own_rank && own_rank < node.gpus;
  if (inside) {
    for (int r = 0; r < own_rank; ++r) {
      const long long of_source = counts[(first_rank + r) * stride];
      before += of_source - kept(node, x, r, of_source);
    }
    own = kept(node, x, own_rank, has);
    const int home = node.rank_C[begin];
    taken = node.tokens_C[begin] - node.crossing_C[begin] - kept(node, x, home, counts[(first_rank + home) * stride]);
  } else {
    for (int source = 0; source < rank; ++source) {
      if (source < first_rank || source >= first_rank + node.gpus) before += counts[source * stride];
    }
    taken = node.crossing_C[begin];
  }
  for (int c = begin + 1; c < end; ++c) {
    long long room = node.crossing_C[c], share = 0;
    if (inside) {
      const int holder = node.rank_C[c];
      room = node.tokens_C[c] - node.crossing_C[c];
      room -= lower(counts[(first_rank + holder) * stride], room);
      if (holder == own_rank) share = own;
    }
    share += overlap(before, before + has - own, taken, taken + room);
    taken += room;
    share_P[node.slot_C[c]] = static_cast<int>(share);
  }
}

extern "C" __global__ void __launch_bounds__(128)
    token_split(const int* __restrict__ counts_RE, const int* __restrict__ slot_expert_P,
                long long* __restrict__ sums_NH2, int* __restrict__ share_P, int num_ranks, int num_experts,
                int gpus_per_node, int home_slots, int slots_per_rank, int rank) {
  __shared__ Node node;
  const int first_rank = blockIdx.x * gpus_per_node, num_homes = gpus_per_node * home_slots;
  long long* sums_H2 = sums_NH2 + 2LL * blockIdx.x * num_homes;
  if (threadIdx.x == 0) {
    list_copies(node, slot_expert_P, num_experts, first_rank, gpus_per_node, home_slots, slots_per_rank);
  }
  for (int h = threadIdx.x; h < num_homes; h += blockDim.x) {
    const int slot = (first_rank + h / home_slots) * slots_per_rank + h % home_slots, expert = slot_expert_P[slot];
    long long load = 0, local = 0;
    if (expert >= 0 && expert < num_experts) {
#pragma unroll 8
      for (int source = 0; source < num_ranks; ++source) {
        const int tokens = counts_RE[static_cast<long long>(source) * num_experts + expert];
        load += tokens;
        local += source >= first_rank && source < first_rank + gpus_per_node ? tokens : 0;
      }
    }
    sums_H2[2 * h] = load;
    sums_H2[2 * h + 1] = load - local;
    share_P[slot] = kRest;
  }
  __syncthreads();
  for (int r = threadIdx.x; r < gpus_per_node; r += blockDim.x) {
    long long load = 0, enters = 0;
    for (int h = r * home_slots; h < (r + 1) * home_slots; ++h) {
      load += sums_H2[2 * h];
      enters += sums_H2[2 * h + 1];
    }
    node.load_G[r] = load;
    node.enters_G[r] = enters;
    for (int s = home_slots; s < slots_per_rank; ++s) share_P[(first_rank + r) * slots_per_rank + s] = 0;
  }
  for (int x = threadIdx.x; x < node.num_experts; x += blockDim.x) {
    for (int h = 0; h < num_homes; ++h) {
      const int slot = (first_rank + h / home_slots) * slots_per_rank + h % home_slots;
      if (slot_expert_P[slot] != node.expert_X[x]) continue;
      const int home = node.begin_X[x];
      node.rank_C[home] = h / home_slots;
      node.tokens_C[home] = sums_H2[2 * h];
      node.crossing_C[home] = sums_H2[2 * h + 1];
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 0; i < kNumPours; ++i) {
      for (int x = 0; x < node.num_experts; ++x) {
        pour(node.rank_C, nullptr, node.tokens_C, node.load_G, node.begin_X[x], node.begin_X[x + 1]);
      }
    }
    even_out(node);
    for (int i = 0; i < kNumPours; ++i) {
      for (int x = 0; x < node.num_experts; ++x) {
        pour(node.rank_C, node.tokens_C, node.crossing_C, node.enters_G, node.begin_X[x], node.begin_X[x + 1]);
      }
    }
  }
  __syncthreads();
  for (int x = threadIdx.x; x < node.num_experts; x += blockDim.x) {
    give(node, x, counts_RE, num_experts, first_rank, rank, share_P);
  }
}
