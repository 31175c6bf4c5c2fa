"""CUDA C++ of sums over the tiles before a tile, in one launch ("decoupled look-back").

A tile of keys needs the counts of all tiles before it, and gets them by looking back: each tile
publishes its own counts, then adds those of the tiles before it until it finds one that already
knows its sum. This is safe for two reasons:

- A state holds counts and flag in one aligned word of 64 bits, which is read and written whole. A
  reader that sees the flag sees the counts, and reads nothing else on its strength. So neither a
  fence nor an order of several words is needed; `volatile` keeps the word out of L1 and registers.
- A block takes the number of its tile from a counter when it starts. So all earlier tiles belong
  to blocks that run or have ended. Each publishes its counts before it waits, and waits only for
  earlier tiles. The first never waits, so by induction no tile waits forever, however few blocks
  the GPU runs at once.
"""

from __future__ import annotations

BLOCK = 256
"""Threads per block; each handles two of the 512 digits of a radix pass."""

LOOK_BACK_SOURCE = r"""
typedef unsigned int word_t;
typedef unsigned long long state_t;

enum { BLOCK = 256, ITEMS = 16, CHUNK = BLOCK * ITEMS, WARPS = BLOCK / 32, DIGITS = 512 };
enum { DIGIT_BITS = 9, MOST_PASSES = 4, LOOK = 4 };
#define ALL_LANES 0xffffffffu

// The number of this block's tile of CHUNK keys; see above. Also a barrier.
__device__ inline index_t take_tile(word_t* counter, word_t* number) {
    if (threadIdx.x == 0) *number = atomicAdd(counter, 1u);
    __syncthreads();
    return *number;
}

// The first key of this lane in a tile; its others follow at distances of 32. So the keys of a warp
// are neighbors, and reads coalesce.
__device__ inline index_t first_of_lane(index_t tile) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    return tile * CHUNK + warp * (CHUNK / WARPS) + lane;
}

// Number of keys from `first` on, at most those of a tile; 0 or less beyond the end.
__device__ inline int left_of(index_t first, index_t n) {
    return n - first < CHUNK ? (int)(n - first) : (int)CHUNK;
}

// A state: flag, then two counts of 31 bits. Counts are added without unpacking them.
#define OF_TILE (1ull << 62)  // the tile's own counts
#define THROUGH (2ull << 62)  // sums through this tile
#define COUNTS (OF_TILE - 1)

__device__ inline state_t pack(word_t a, word_t b) { return (state_t)a << 31 | b; }
__device__ inline word_t first_count(state_t x) { return (word_t)((x & COUNTS) >> 31); }
__device__ inline word_t second_count(state_t x) { return (word_t)(x & 0x7fffffffu); }

__device__ inline void publish(state_t* at, state_t flag, state_t counts) {
    *(volatile state_t*)at = flag | counts;
}

// Publish a tile's own counts; the first tile's are sums, too.
__device__ inline void publish_tile(state_t* states, index_t tile, int width, int k,
                                    state_t counts) {
    publish(&states[tile * width + k], tile == 0 ? THROUGH : OF_TILE, counts);
}

// Sum of the counts of all earlier tiles, from states [tiles, width] at k; then publish the sum
// through this tile. Several states are read at once, because each read takes long.
__device__ inline state_t look_back(state_t* states, index_t tile, int width, int k,
                                    state_t counts) {
    state_t before = 0;
    for (index_t at = tile - 1; at >= 0;) {
        state_t found[LOOK];
#pragma unroll
        for (int j = 0; j < LOOK; ++j)
            found[j] = at >= j ? *(volatile state_t*)&states[(at - j) * width + k] : THROUGH;
        bool ready = true;
#pragma unroll
        for (int j = 0; j < LOOK; ++j) {
            ready = ready && found[j] != 0 && at >= 0;
            if (!ready) continue;
            before += found[j] & COUNTS;
            at = found[j] >= THROUGH ? -1 : at - 1;
        }
        if (!ready && at >= 0) __nanosleep(32);
    }
    if (tile > 0) publish(&states[tile * width + k], THROUGH, before + counts);
    return before;
}
"""
