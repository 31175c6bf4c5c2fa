// CUDA's words for a C++ compiler: the kernels' source runs on the CPU, one lane after the other.
//
// The lanes of a warp are coroutines that change over at each shuffle, so a shuffle sees what the
// other lanes have put in, as on a GPU. A lane that ends before the others shuffle is an error.
#pragma once
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <tuple>
#include <type_traits>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __global__
#define __device__

struct Index {
    unsigned x;
};
static Index threadIdx, blockIdx, blockDim, gridDim;

static inline float __uint_as_float(unsigned bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

static inline long long atomicMin(long long* at, long long value) {
    const long long old = *at;
    if (value < old) *at = value;
    return old;
}

static inline int atomicMax(int* at, int value) {
    const int old = *at;
    if (value > old) *at = value;
    return old;
}

namespace warp {
constexpr int lanes = 32;
constexpr std::size_t stack_size = 64 * 1024;
static ucontext_t scheduler, contexts[lanes];
static std::vector<char> stacks(lanes* stack_size);
static std::function<void()> body;
static int lane;
static bool ended[lanes];
static long shuffles[lanes];
static double slots[2][lanes];

static void enter() {
    body();
    ended[lane] = true;
    swapcontext(&contexts[lane], &scheduler);
}

static void run(unsigned first, unsigned count) {
    for (unsigned k = 0; k < count; ++k) {
        ended[k] = false;
        shuffles[k] = 0;
        getcontext(&contexts[k]);
        contexts[k].uc_stack.ss_sp = stacks.data() + k * stack_size;
        contexts[k].uc_stack.ss_size = stack_size;
        contexts[k].uc_link = nullptr;
        makecontext(&contexts[k], enter, 0);
    }
    for (bool going = true; going;) {
        going = false;
        for (unsigned k = 0; k < count; ++k) {
            if (ended[k]) continue;
            lane = (int)k;
            threadIdx.x = first + k;
            swapcontext(&scheduler, &contexts[k]);
            going = going || !ended[k];
        }
        for (unsigned k = 0; going && k < count; ++k)
            if (ended[k] || shuffles[k] != shuffles[0]) {
                std::fprintf(stderr, "lanes of a warp have parted at a shuffle\n");
                std::abort();
            }
    }
}
}  // namespace warp

static inline double __shfl_xor_sync(unsigned mask, double x, int k) {
    if (mask != 0xffffffffu) std::abort();
    const int me = warp::lane;
    // Two sets of slots: a lane that is ahead writes its next number beside the one still read.
    const long turn = warp::shuffles[me]++ % 2;
    warp::slots[turn][me] = x;
    swapcontext(&warp::contexts[me], &warp::scheduler);
    return warp::slots[turn][me ^ k];
}

template <class... Args, std::size_t... I>
static void launch_with(void (*kernel)(Args...), unsigned grid, unsigned block, void** args,
                        std::index_sequence<I...>) {
    blockDim.x = block;
    gridDim.x = grid;
    warp::body = [=] { kernel(*static_cast<std::remove_const_t<Args>*>(args[I])...); };
    for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x)
        for (unsigned first = 0; first < block; first += warp::lanes) {
            if (TILE > 1) {
                warp::run(first, block - first < warp::lanes ? block - first : warp::lanes);
                continue;
            }
            for (threadIdx.x = first; threadIdx.x < first + warp::lanes; ++threadIdx.x)
                warp::body();
        }
}

template <class... Args>
static void launch(void (*kernel)(Args...), unsigned grid, unsigned block, void** args) {
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

#define EMULATE(name)                                                              \
    extern "C" void launch_##name(unsigned grid, unsigned block, void** args) {    \
        launch(name, grid, block, args);                                           \
    }                                                                              \
    extern "C" const char* letters_##name() {                                      \
        static const std::string found = letters(name);                            \
        return found.c_str();                                                      \
    }
