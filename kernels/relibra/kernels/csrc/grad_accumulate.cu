// grad_accumulate: add gradients to fp32 targets. One thread per element adds them in the order of the list.
constexpr int kMaxTargets = 64, kMaxGradients = 256;
constexpr int kTileElements = 8192;
constexpr int kUnroll = 4;

struct Gradients {
  float* into[kMaxTargets];
  long long num_elements[kMaxTargets];
  const void* gradient[kMaxGradients];
  int first_gradient[kMaxTargets + 1];  // Gradients are numbered across targets; the last entry is their number.
  int first_tile[kMaxTargets + 1];      // Tiles are numbered across targets; the last entry is their number.
  int num_targets;
};
static_assert(sizeof(Gradients) <= 4032, "every driver accepts 4 KB of parameters: this table and a few more");

struct BFloat16 {
  unsigned short bits;
};
struct Float16 {
  unsigned short bits;
};

__device__ inline float widen(float value) { return value; }

__device__ inline float widen(BFloat16 value) { return __uint_as_float(static_cast<unsigned int>(value.bits) << 16); }

// The result is exact: 2^112 moves the exponent from fp16's bias to fp32's bias, for subnormal numbers too.
__device__ inline float widen(Float16 value) {
  const unsigned int magnitude = value.bits & 0x7fffu, sign = (value.bits & 0x8000u) << 16;
  const float moved = __uint_as_float(magnitude << 13) * 0x1p112f;
  const unsigned int infinite = magnitude >= 0x7c00u ? 0x7f800000u : 0u;
  return __uint_as_float(__float_as_uint(moved) | sign | infinite);
}

template <typename Element>
struct alignas(4 * sizeof(Element)) Quad {
  Element at[4];
};

template <typename Element>
__device__ inline void accumulate_tile(const Gradients& table, int target, int tile) {
  const long long begin = static_cast<long long>(tile) * kTileElements;
  const long long left = table.num_elements[target] - begin;
  const int count = left < kTileElements ? static_cast<int>(left) : kTileElements;
  const int first = table.first_gradient[target], last = table.first_gradient[target + 1];
  float* into = table.into[target] + begin;

  bool aligned = reinterpret_cast<size_t>(into) % sizeof(Quad<float>) == 0;
  for (int g = first; g < last; ++g) {
    aligned = aligned && reinterpret_cast<size_t>(table.gradient[g]) % sizeof(Quad<Element>) == 0;
  }
  const int num_threads = blockDim.x, num_quads = aligned ? count / 4 : 0;
  Quad<float>* quads = reinterpret_cast<Quad<float>*>(into);
  for (int q = threadIdx.x; q < num_quads; q += kUnroll * num_threads) {
    Quad<float> sum[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (q + u * num_threads < num_quads) sum[u] = quads[q + u * num_threads];
    }
    for (int g = first; g < last; ++g) {
      const Quad<Element>* gradient =
          reinterpret_cast<const Quad<Element>*>(static_cast<const Element*>(table.gradient[g]) + begin);
      Quad<Element> held[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (q + u * num_threads < num_quads) held[u] = gradient[q + u * num_threads];
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (q + u * num_threads < num_quads) {
#pragma unroll
          for (int i = 0; i < 4; ++i) sum[u].at[i] += widen(held[u].at[i]);
        }
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (q + u * num_threads < num_quads) quads[q + u * num_threads] = sum[u];
    }
  }
  for (int i = 4 * num_quads + static_cast<int>(threadIdx.x); i < count; i += num_threads) {
    float sum = into[i];
    for (int g = first; g < last; ++g) sum += widen(static_cast<const Element*>(table.gradient[g])[begin + i]);
    into[i] = sum;
  }
}

// element: the dtype of the gradients; 0 is fp32, 1 is bf16, 2 is fp16.
extern "C" __global__ void __launch_bounds__(256)
    grad_accumulate(const __grid_constant__ Gradients table, int element) {
  int target = 0;
  while (table.first_tile[target + 1] <= static_cast<int>(blockIdx.x)) ++target;
  const int tile = static_cast<int>(blockIdx.x) - table.first_tile[target];
  if (element == 0) {
    accumulate_tile<float>(table, target, tile);
  } else if (element == 1) {
    accumulate_tile<BFloat16>(table, target, tile);
  } else {
    accumulate_tile<Float16>(table, target, tile);
  }
}
