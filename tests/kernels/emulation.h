// CUDA's words for a C++ compiler: the kernels' source runs on the CPU, one thread after the other.
//
// The threads of a block are coroutines. A thread that shuffles waits for its warp, and one that
// calls __syncthreads for its block, so each sees what the others have put in, as on a GPU. A lane
// that ends, or waits for the block, while others of its warp shuffle is an error.
#pragma once
#include <csetjmp>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <tuple>
#include <type_traits>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __grid_constant__
#define __launch_bounds__(threads, blocks)
#define __noinline__
#define __shared__ static

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

namespace block {
constexpr int lanes = 32, most = 1024;
constexpr std::size_t stack_size = 64 * 1024;
enum State { running, at_warp, at_block, ended };
static jmp_buf scheduler, points[most];  // where each goes on: unlike swapcontext, no system call
static bool begun[most];
static std::vector<char> stacks(most* stack_size);
static std::function<void()> body;
static State states[most];
static long exchanges[most];
static std::uint64_t slots[2][most];
static int thread;
static std::mutex one_at_a_time;

static void wait(State state) {
    const int me = thread;
    states[me] = state;
    if (_setjmp(points[me]) == 0) _longjmp(scheduler, 1);
}

static void enter() {
    for (;;) {  // the next block has the same coroutines
        body();
        wait(ended);
    }
}

static void begin(int k) {
    ucontext_t context;
    begun[k] = true;
    getcontext(&context);
    context.uc_stack.ss_sp = stacks.data() + k * stack_size;
    context.uc_stack.ss_size = stack_size;
    context.uc_link = nullptr;
    makecontext(&context, enter, 0);
    setcontext(&context);
}

static void __attribute__((noinline)) go_on(int k) {
    if (_setjmp(scheduler) != 0) return;
    if (begun[k]) _longjmp(points[k], 1);
    begin(k);
}

static void release_warps(int count) {
    for (int first = 0; first < count; first += lanes) {
        const int end = first + lanes < count ? first + lanes : count;
        int waiting = 0;
        for (int k = first; k < end; ++k) waiting += states[k] == at_warp;
        if (waiting == 0) continue;
        if (waiting < end - first) {
            std::fprintf(stderr, "lanes of a warp have parted at a shuffle\n");
            std::abort();
        }
        for (int k = first; k < end; ++k) states[k] = running;
    }
}

static bool release_block(int count) {
    int live = 0;
    for (int k = 0; k < count; ++k) {
        if (states[k] == running) return true;
        live += states[k] != ended;
    }
    for (int k = 0; k < count; ++k)
        if (states[k] == at_block) states[k] = running;
    return live > 0;
}

// The order of threads and blocks: ascending, or if the seed is not 0, another one in every round.
static unsigned seed = 0;

static void shuffle(std::vector<unsigned>& order, unsigned count) {
    order.resize(count);
    for (unsigned k = 0; k < count; ++k) order[k] = k;
    for (unsigned k = count; seed != 0 && k > 1; --k) {
        seed = seed * 1664525u + 1013904223u;
        if (seed == 0) seed = 1;
        std::swap(order[k - 1], order[(seed >> 8) % k]);
    }
}

static void run(int count) {
    static std::vector<unsigned> order;
    for (int k = 0; k < count; ++k) {
        states[k] = running;
        exchanges[k] = 0;
    }
    do {
        shuffle(order, (unsigned)count);
        for (const unsigned each : order) {
            const int k = (int)each;
            if (states[k] != running) continue;
            thread = k;
            threadIdx.x = (unsigned)k;
            go_on(k);
        }
        release_warps(count);
    } while (release_block(count));
}

// What lane `from(me)` of the warp has put in; `from` may ask for several.
template <class T>
struct Exchange {
    const std::uint64_t* warp;
    int lane;
    explicit Exchange(unsigned mask, T x) {
        if (mask != 0xffffffffu) std::abort();
        const int me = thread;
        // Two sets of slots: a lane that is ahead writes its next number beside the one still read.
        const long turn = exchanges[me]++ % 2;
        slots[turn][me] = 0;
        std::memcpy(&slots[turn][me], &x, sizeof x);
        wait(at_warp);
        lane = me % lanes;
        warp = &slots[turn][me - lane];
    }
    T operator[](int k) const {
        T x;
        std::memcpy(&x, &warp[k], sizeof x);
        return x;
    }
};
}  // namespace block

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

static inline void __syncwarp() { block::wait(block::at_warp); }
static inline void __syncthreads() { block::wait(block::at_block); }

template <class... Args, std::size_t... I>
static void launch_with(void (*kernel)(Args...), unsigned grid, unsigned threads, void** args,
                        std::index_sequence<I...>) {
    blockDim.x = threads;
    gridDim.x = grid;
    block::body = [=] { kernel(*static_cast<std::remove_const_t<Args>*>(args[I])...); };
    std::vector<unsigned> order;
    block::shuffle(order, grid);
    for (const unsigned each : order) {
        blockIdx.x = each;
        block::run((int)threads);
    }
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
