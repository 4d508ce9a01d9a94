// The table of tensors that one launch moves as bytes, and the code by which a block moves one tile of the table.
#pragma once

constexpr int kMaxSegments = 128;
constexpr int kTileBytes = 32768;  // A multiple of 16, so that all tiles of a segment are aligned alike.
constexpr int kUnroll = 8;         // Vectors that a thread has in flight.

struct Segments {
  const unsigned char* from[kMaxSegments];
  unsigned char* to[kMaxSegments];
  long long size_bytes[kMaxSegments];
  int first_tile[kMaxSegments + 1];  // Tiles are numbered across segments; the last entry is the number of all tiles.
  int num_segments;
};
static_assert(sizeof(Segments) <= 4032, "every driver accepts 4 KB of parameters: this table and a few more");

// Returns the index of the last of `num` rising numbers that is not above `tile`.
__device__ inline int owner_of(const int* first_tile, int num, int tile) {
  int low = 0;
  for (int high = num; high - low > 1;) {
    const int middle = (low + high) / 2;
    if (first_tile[middle] <= tile) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// Moves `size_bytes` with all threads of the block; `from` and `to` have the same alignment for `Vector`.
template <typename Vector>
__device__ inline void copy_bytes(const unsigned char* __restrict__ from, unsigned char* __restrict__ to,
                                  int size_bytes) {
  const int thread = threadIdx.x, num_threads = blockDim.x;
  const int unaligned = static_cast<int>(-reinterpret_cast<size_t>(to) & (sizeof(Vector) - 1));
  const int head = unaligned < size_bytes ? unaligned : size_bytes;
  const int num_vectors = (size_bytes - head) / static_cast<int>(sizeof(Vector));
  const int tail = head + num_vectors * static_cast<int>(sizeof(Vector));
  if (thread < head) to[thread] = from[thread];
  if (tail + thread < size_bytes) to[tail + thread] = from[tail + thread];

  const Vector* __restrict__ vectors_from = reinterpret_cast<const Vector*>(from + head);
  Vector* __restrict__ vectors_to = reinterpret_cast<Vector*>(to + head);
  int i = thread;
  for (; i + (kUnroll - 1) * num_threads < num_vectors; i += kUnroll * num_threads) {
    Vector held[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) held[u] = vectors_from[i + u * num_threads];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) vectors_to[i + u * num_threads] = held[u];
  }
  for (; i < num_vectors; i += num_threads) vectors_to[i] = vectors_from[i];
}

// Moves one tile in the widest vectors that its two addresses allow. If `zero_padding` is set, the bytes from the end
// of a segment to the next multiple of 16 become zero.
__device__ inline void copy_tile(const Segments& segments, int tile, bool zero_padding) {
  const int segment = owner_of(segments.first_tile, segments.num_segments, tile);
  const long long offset = static_cast<long long>(tile - segments.first_tile[segment]) * kTileBytes;
  const long long left = segments.size_bytes[segment] - offset;
  const int size_bytes = left < kTileBytes ? static_cast<int>(left) : kTileBytes;
  const unsigned char* from = segments.from[segment] + offset;
  unsigned char* to = segments.to[segment] + offset;

  const size_t apart = reinterpret_cast<size_t>(from) ^ reinterpret_cast<size_t>(to);
  if (apart % 16 == 0) {
    copy_bytes<uint4>(from, to, size_bytes);
  } else if (apart % 8 == 0) {
    copy_bytes<uint2>(from, to, size_bytes);
  } else if (apart % 4 == 0) {
    copy_bytes<unsigned int>(from, to, size_bytes);
  } else if (apart % 2 == 0) {
    copy_bytes<unsigned short>(from, to, size_bytes);
  } else {
    copy_bytes<unsigned char>(from, to, size_bytes);
  }
  const int padding = zero_padding ? -size_bytes & 15 : 0;
  if (static_cast<int>(threadIdx.x) < padding) to[size_bytes + threadIdx.x] = 0;
}
