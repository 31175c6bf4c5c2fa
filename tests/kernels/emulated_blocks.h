// How blocks and threads of the emulated kernels take turns.
//
// The threads of a block are coroutines. A thread that shuffles waits for its warp, and one that
// calls __syncthreads for its block, so each sees what the others have put in, as on a GPU. A lane
// that ends, or waits for the block, while others of its warp shuffle is an error.
//
// Blocks run one after another. In a random order several run at once, as on a GPU, and take turns
// before any thread begins, and where it waits or sleeps.
#pragma once
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <ucontext.h>
#include <utility>
#include <vector>

// The shared memory of the block that runs now. The linker names its ends.
static __attribute__((section("of_block"), used)) char some_shared_memory = 0;
extern char __attribute__((visibility("hidden"))) __start_of_block[], __stop_of_block[];

struct Index {
    unsigned x;
};
static Index threadIdx, blockIdx, blockDim, gridDim;

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

// Threads of a block are neighbors, and `begin` is the first.
static void release_warps(int begin, int count) {
    for (int first = begin; first < begin + count; first += lanes) {
        const int end = first + lanes < begin + count ? first + lanes : begin + count;
        int waiting = 0, asleep = 0;
        for (int k = first; k < end; ++k) {
            waiting += states[k] == at_warp;
            asleep += states[k] == running;
        }
        if (waiting == 0 || asleep > 0) continue;
        if (waiting < end - first) {
            std::fprintf(stderr, "lanes of a warp have parted at a shuffle\n");
            std::abort();
        }
        for (int k = first; k < end; ++k) states[k] = running;
    }
}

static bool release_block(int begin, int count) {
    int live = 0;
    for (int k = begin; k < begin + count; ++k) {
        if (states[k] == running || states[k] == at_warp) return true;
        live += states[k] != ended;
    }
    for (int k = begin; k < begin + count; ++k)
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

// A block that runs: its first thread, and its shared memory while others run.
struct Resident {
    unsigned index;
    int begin;
    std::vector<char> shared;
    bool live;
};
static long naps;  // since a block last ended

static void start(Resident& one, unsigned index, int count) {
    one.index = index;
    one.live = true;
    one.shared.assign(__stop_of_block - __start_of_block, (char)0xAB);
    naps = 0;
    for (int k = one.begin; k < one.begin + count; ++k) {
        states[k] = running;
        exchanges[k] = 0;
    }
}

// Run each thread of a block until it waits. In a random order, only some in every fourth round, so
// that other blocks come between them. Returns whether the block goes on.
static bool go_round(const Resident& one, int count) {
    static std::vector<unsigned> order;
    blockIdx.x = one.index;
    shuffle(order, (unsigned)count);
    if (seed != 0 && (seed >> 8) % 4 == 0) order.resize(1 + (seed >> 10) % count);
    for (const unsigned each : order) {
        thread = one.begin + (int)each;
        if (states[thread] != running) continue;
        threadIdx.x = each;
        go_on(thread);
    }
    release_warps(one.begin, count);
    return release_block(one.begin, count);
}

// Run all blocks; one at a time, or in a random order some at once.
static void run(unsigned grid, int count) {
    std::vector<unsigned> order, turns;
    shuffle(order, grid);
    const int room = (count + lanes - 1) / lanes * lanes;
    std::vector<Resident> residents(seed == 0 ? 1 : most / room < 4 ? most / room : 4);
    unsigned next = 0, live = 0;
    for (auto& one : residents) {
        one.begin = (int)(&one - residents.data()) * room;
        if ((one.live = next < grid)) start(one, order[next++], count);
        live += one.live;
    }
    while (live > 0) {
        shuffle(turns, (unsigned)residents.size());
        Resident& one = residents[turns[0]];
        if (!one.live) continue;
        std::memcpy(__start_of_block, one.shared.data(), one.shared.size());
        bool going = go_round(one, count);
        while (going && residents.size() == 1) going = go_round(one, count);
        std::memcpy(one.shared.data(), __start_of_block, one.shared.size());
        if (going) continue;
        one.live = next < grid;
        if (one.live) start(one, order[next++], count);
        else --live;
    }
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
