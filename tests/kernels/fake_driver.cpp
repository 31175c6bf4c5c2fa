// The CUDA driver's entry points on the CPU, for one stream. Memory of the GPU is memory of the
// host, full of nonsense. A kernel's function is an emulated one, which runs at once; see emulation.h.
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {
enum { OK = 0, INVALID = 1, NO_STREAM = 400 };
int the_stream;  // its address is the stream
void* at(std::uint64_t address) { return reinterpret_cast<void*>(address); }
int copy(void* to, const void* from, std::size_t bytes, void* stream) {
    if (stream != &the_stream) return NO_STREAM;
    std::memcpy(to, from, bytes);
    return OK;
}
}  // namespace

extern "C" {
void* fake_stream() { return &the_stream; }

int cuMemAlloc_v2(void** memory, std::size_t bytes) {
    if (bytes == 0) return INVALID;
    *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    std::memset(*memory, 0xAB, bytes);
    return OK;
}
int cuMemHostAlloc(void** memory, std::size_t bytes, unsigned flags) {
    if (flags != 3) return INVALID;  // portable, and mapped into the memory of all devices
    return cuMemAlloc_v2(memory, bytes);
}
int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned ty,
                   unsigned tz, unsigned shared, void* stream, void** arguments, void** extra) {
    if (stream != &the_stream) return NO_STREAM;
    if (!function || x == 0 || x > 0x7fffffff || threads == 0 || threads > 1024) return INVALID;
    if (y != 1 || z != 1 || ty != 1 || tz != 1 || shared != 0 || extra) return INVALID;
    reinterpret_cast<void (*)(unsigned, unsigned, void**)>(function)(x, threads, arguments);
    return OK;
}
int cuMemsetD32Async(std::uint64_t to, unsigned value, std::size_t words, void* stream) {
    if (stream != &the_stream) return NO_STREAM;
    if (to % 4) return INVALID;
    for (std::size_t i = 0; i < words; ++i) static_cast<unsigned*>(at(to))[i] = value;
    return OK;
}
int cuMemcpyDtoHAsync_v2(void* to, std::uint64_t from, std::size_t bytes, void* stream) {
    return copy(to, at(from), bytes, stream);
}
int cuMemcpyHtoDAsync_v2(std::uint64_t to, const void* from, std::size_t bytes, void* stream) {
    return copy(at(to), from, bytes, stream);
}
int cuMemcpyDtoDAsync_v2(std::uint64_t to, std::uint64_t from, std::size_t bytes, void* stream) {
    return copy(at(to), at(from), bytes, stream);
}
int cuStreamSynchronize(void* stream) { return stream == &the_stream ? OK : NO_STREAM; }
}
