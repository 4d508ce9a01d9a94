// The part of CUDA C++ that relibra's kernels use, on one CPU thread. A .cu file includes this header instead of the
// toolkit.
//
// Blocks run one after the other. The threads of a block are fibers; __syncthreads switches to the next thread, so every
// thread reaches a barrier before any thread passes it. `backwards` reverses the order of blocks and threads: a kernel
// that lacks a barrier, or depends on the order of blocks, then gives a different result.
//
// With THREADS defined they are threads of the system, for the thread sanitizer, which sees what no barrier orders.
#pragma once
#include <pthread.h>
#include <ucontext.h>

#include <cstddef>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __shared__ static
#define __grid_constant__
#define __launch_bounds__(...)

struct alignas(8) uint2 {
  unsigned int x, y;
};
struct alignas(16) uint4 {
  unsigned int x, y, z, w;
};
struct Index {
  unsigned int x, y;
};
static Index blockIdx, blockDim, gridDim;

inline float __uint_as_float(unsigned int bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline unsigned int __float_as_uint(float value) {
  unsigned int bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

static std::function<void()> body;

#ifdef THREADS
static thread_local Index threadIdx;
static thread_local unsigned int num_passed;
// One for each barrier of a kernel: else a thread that leaves a barrier late would be ordered after later work.
static pthread_barrier_t barriers[8];

inline void __syncthreads() { pthread_barrier_wait(&barriers[num_passed++]); }

static void run_block(unsigned int num_threads, bool) {
  std::vector<std::thread> threads;
  for (pthread_barrier_t& barrier : barriers) pthread_barrier_init(&barrier, nullptr, num_threads);
  for (unsigned int i = 0; i < num_threads; ++i) {
    threads.emplace_back([i] {
      threadIdx = {i, 0};
      body();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (pthread_barrier_t& barrier : barriers) pthread_barrier_destroy(&barrier);
}
#else
static Index threadIdx;

struct Fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(1 << 16);
  bool done = false;
};
static std::vector<Fiber> fibers(1024);
static ucontext_t scheduler;

inline void __syncthreads() { swapcontext(&fibers[threadIdx.x].context, &scheduler); }

static void run_thread() {
  body();
  fibers[threadIdx.x].done = true;
}

static void run_block(unsigned int num_threads, bool backwards) {
  for (unsigned int i = 0; i < num_threads; ++i) {
    Fiber& fiber = fibers[i];
    fiber.done = false;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    fiber.context.uc_link = &scheduler;
    makecontext(&fiber.context, run_thread, 0);
  }
  for (bool any = true; any;) {
    any = false;
    for (unsigned int i = 0; i < num_threads; ++i) {
      threadIdx.x = backwards ? num_threads - 1 - i : i;
      if (fibers[threadIdx.x].done) continue;
      swapcontext(&scheduler, &fibers[threadIdx.x].context);
      any = true;
    }
  }
}
#endif

template <typename... Args, size_t... Is>
void run_grid(void (*kernel)(Args...), void** parameters, unsigned int num_x, unsigned int num_y,
              unsigned int num_threads, bool backwards, std::index_sequence<Is...>) {
  body = [=] { kernel(*static_cast<std::remove_cv_t<Args>*>(parameters[Is])...); };
  gridDim = {num_x, num_y};
  blockDim = {num_threads, 1};
  for (unsigned int i = 0; i < num_x * num_y; ++i) {
    const unsigned int block = backwards ? num_x * num_y - 1 - i : i;
    blockIdx = {block % num_x, block / num_x};
    run_block(num_threads, backwards);
  }
}

template <typename... Args>
void run_grid(void (*kernel)(Args...), void** parameters, unsigned int num_x, unsigned int num_y,
              unsigned int num_threads, bool backwards) {
  run_grid(kernel, parameters, num_x, num_y, num_threads, backwards, std::index_sequence_for<Args...>());
}

#define EMULATE(kernel)                                                                                          \
  extern "C" void emulate_##kernel(void** parameters, unsigned int num_x, unsigned int num_y,                    \
                                   unsigned int num_threads, bool backwards) {                                   \
    run_grid(kernel, parameters, num_x, num_y, num_threads, backwards);                                          \
  }
