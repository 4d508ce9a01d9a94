// A CUDA driver that does nothing: it counts its calls, and keeps what streams were given to do.
// Compiled against cuda.h, so that the compiler refuses a signature that the real driver does not have.
#define __CUDA_API_VERSION_INTERNAL // the names without versions, which are those of the exported functions
#include <cuda.h>
#include <string.h>

enum { WAIT, WRITE, COPY, MAX_WORK = 1 << 16 };

struct work {
  unsigned long long stream, kind, address, value, size_bytes;
};

struct work stub_work[MAX_WORK];
unsigned long long stub_num_work, stub_num_calls, stub_num_launches;
static void *stub_context = &stub_context;

static CUresult call(void) {
  ++stub_num_calls;
  return CUDA_SUCCESS;
}

static void keep(CUstream stream, int kind, CUdeviceptr address, unsigned long long value, size_t size_bytes) {
  if (stub_num_work < MAX_WORK)
    stub_work[stub_num_work++] = (struct work){(unsigned long long)stream, kind, address, value, size_bytes};
}

CUresult cuDeviceGet(CUdevice *device, int index) { return *device = index, CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  (void)device;
  return *context = stub_context, CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext *context) { return *context = stub_context, CUDA_SUCCESS; }
CUresult cuCtxPushCurrent_v2(CUcontext context) { return (void)context, CUDA_SUCCESS; }
CUresult cuCtxPopCurrent_v2(CUcontext *context) { return (void)context, CUDA_SUCCESS; }
CUresult cuModuleLoadData(CUmodule *module, const void *image) { return (void)image, *module = NULL, CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  (void)module, (void)name;
  return *function = NULL, CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
  (void)attribute, (void)function;
  return *value = 0, CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char **text) { return (void)error, *text = "stub", CUDA_SUCCESS; }
CUresult cuStreamCreate(CUstream *stream, unsigned flags) { return (void)flags, *stream = NULL, CUDA_SUCCESS; }
CUresult cuEventCreate(CUevent *event, unsigned flags) { return (void)flags, *event = NULL, CUDA_SUCCESS; }
CUresult cuEventQuery(CUevent event) { return (void)event, CUDA_SUCCESS; }
CUresult cuEventRecord(CUevent event, CUstream stream) { return (void)event, (void)stream, call(); }

CUresult cuLaunchKernel(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned threads_x, unsigned threads_y,
                        unsigned threads_z, unsigned shared_bytes, CUstream stream, void **arguments, void **more) {
  (void)function, (void)x, (void)y, (void)z, (void)threads_x, (void)threads_y, (void)threads_z, (void)shared_bytes;
  (void)stream, (void)arguments, (void)more;
  ++stub_num_launches;
  return call();
}

CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned count, CUstreamBatchMemOpParams *operations, unsigned flags) {
  for (unsigned i = 0; i < count; ++i) {
    const struct CUstreamMemOpWaitValueParams_st *each = &operations[i].waitValue;
    int is_wait = each->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
    if (flags || each->flags || (!is_wait && each->operation != CU_STREAM_MEM_OP_WRITE_VALUE_64))
      return CUDA_ERROR_INVALID_VALUE;
    keep(stream, is_wait ? WAIT : WRITE, each->address, each->value64, 0);
  }
  return call();
}

CUresult cuMemcpyAsync(CUdeviceptr into, CUdeviceptr source, size_t size_bytes, CUstream stream) {
  keep(stream, COPY, into, source, size_bytes);
  return call();
}

CUresult cuMemcpyBatchAsync(CUdeviceptr *into, CUdeviceptr *source, size_t *size_bytes, size_t count,
                            CUmemcpyAttributes *attributes, size_t *first, size_t num_attributes, size_t *failed,
                            CUstream stream) {
  static const CUmemcpyAttributes expected = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
  if (num_attributes != 1 || *first || *failed || memcmp(attributes, &expected, sizeof expected))
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i)
    keep(stream, COPY, into[i], source[i], size_bytes[i]);
  return call();
}
