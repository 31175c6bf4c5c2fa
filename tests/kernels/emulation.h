// CUDA's words for a C++ compiler: the kernels' source runs on the CPU, one thread after the other;
// see emulated_blocks.h.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "emulated_blocks.h"

#define __global__
#define __device__
#define __align__(bytes) alignas(bytes)
#define __grid_constant__
#define __launch_bounds__(threads, blocks)
#define __noinline__
#define __shared__ static __attribute__((section("of_block")))

static inline float __uint_as_float(unsigned bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

static inline unsigned __float_as_uint(float x) {
    unsigned bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline long long atomicMin(long long* at, long long value) {
    const long long old = *at;
    if (value < old) *at = value;
    return old;
}

static inline float __int_as_float(int bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

static inline int __float_as_int(float x) {
    int bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline unsigned __umulhi(unsigned x, unsigned y) {
    return (unsigned)((unsigned long long)x * y >> 32);
}

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(unsigned x) { return __builtin_ffs((int)x); }

static inline int atomicMax(int* at, int value) {
    const int old = *at;
    if (value > old) *at = value;
    return old;
}

template <class T>
static inline T atomicAdd(T* at, T value) {
    const T old = *at;
    *at += value;
    return old;
}

template <class T>
static inline T __shfl_xor_sync(unsigned mask, T x, int k) {
    const block::Exchange<T> all(mask, x);
    return all[all.lane ^ k];
}

template <class T>
static inline T __shfl_sync(unsigned mask, T x, int source) {
    return block::Exchange<T>(mask, x)[source];
}

template <class T>
static inline T __shfl_up_sync(unsigned mask, T x, int k) {
    const block::Exchange<T> all(mask, x);
    return all[all.lane >= k ? all.lane - k : all.lane];
}

template <class T>
static inline unsigned __match_any_sync(unsigned mask, T x) {
    const block::Exchange<T> all(mask, x);
    unsigned equal = 0;
    for (int k = 0; k < block::lanes; ++k) equal |= (unsigned)(all[k] == x) << k;
    return equal;
}

static inline unsigned __ballot_sync(unsigned mask, bool x) {
    return __match_any_sync(mask, (int)x) ^ (x ? 0u : 0xffffffffu);
}

// A thread that sleeps lets others go on. Nobody sleeps for long unless a block waits for another
// that cannot start.
static inline void __nanosleep(unsigned) {
    if (++block::naps > 20000000) {
        std::fprintf(stderr, "a thread sleeps and nothing happens\n");
        std::abort();
    }
    block::wait(block::running);
}
static inline void __syncwarp() { block::wait(block::at_warp); }
static inline void __syncthreads() { block::wait(block::at_block); }

template <class... Args, std::size_t... I>
static void launch_with(void (*kernel)(Args...), unsigned grid, unsigned threads, void** args,
                        std::index_sequence<I...>) {
    blockDim.x = threads;
    gridDim.x = grid;
    block::body = [=] { kernel(*static_cast<std::remove_const_t<Args>*>(args[I])...); };
    block::run(grid, (int)threads);
}

template <class... Args>
static void launch(void (*kernel)(Args...), unsigned grid, unsigned block, void** args) {
    const std::lock_guard<std::mutex> lock(block::one_at_a_time);  // replicas have threads
    launch_with(kernel, grid, block, args, std::index_sequence_for<Args...>{});
}

// The letters of NumPy for the type of an argument; an array's are capital letters.
template <class T>
static char letter() {
    using Plain = std::remove_const_t<std::remove_pointer_t<T>>;
    const char c = std::is_same_v<Plain, float>            ? 'f'
                   : std::is_same_v<Plain, double>         ? 'd'
                   : std::is_same_v<Plain, int>            ? 'i'
                   : std::is_same_v<Plain, long long>      ? 'q'
                   : std::is_same_v<Plain, unsigned short> ? 'h'
                                                           : '?';
    return std::is_pointer_v<T> ? (char)std::toupper(c) : c;
}

template <class... Args>
static std::string letters(void (*)(Args...)) {
    return {letter<Args>()...};
}

extern "C" void emulate_with(unsigned seed) { block::seed = seed; }

#define EMULATE(name)                                                              \
    extern "C" { long launches_of_##name = 0; }                                    \
    extern "C" void launch_##name(unsigned grid, unsigned block, void** args) {    \
        launch(name, grid, block, args);                                           \
        ++launches_of_##name;                                                      \
    }                                                                              \
    extern "C" const char* letters_##name() {                                      \
        static const std::string found = letters(name);                            \
        return found.c_str();                                                      \
    }
