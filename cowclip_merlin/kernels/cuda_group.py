"""CUDA C++ that groups the ids of a batch: a stable radix sort, then the distinct ids.

No kernel waits for the host, because the number of distinct ids stays in GPU memory. All counts
are integers and all orders are fixed, so the same ids give the same groups in every run.
"""

from __future__ import annotations

BLOCK = 256
"""Threads per block; each handles one of the 256 digits of a radix pass."""

DIGIT_BITS = 8
"""Number of key bits that one pass sorts by."""


def passes(rows: int) -> int:
    """Return the number of radix passes for ids below `rows`.

    >>> [passes(rows) for rows in (1, 256, 257, 33_800_000)]
    [1, 1, 2, 4]
    """
    return max(1, -(-max(rows - 1, 1).bit_length() // DIGIT_BITS))


GROUP_SOURCE = r"""
typedef unsigned int word_t;

enum { BLOCK = 256, ITEMS = 16, CHUNK = BLOCK * ITEMS, WARPS = BLOCK / 32, DIGITS = 256 };
#define ALL_LANES 0xffffffffu

// Status that the host reads: status[0] is 1 after a rejected step. Then follow for each table:
// the smallest row with a gradient that is not finite, the smallest id outside the table, and 1 if
// rows were stale.
__device__ inline void refuse(index_t* status, int table, int which, index_t value) {
    atomicMin(status + 1 + 3 * table + which, value);
    status[0] = 1;
}

__device__ inline index_t id_at(const void* ids, int wide, index_t i) {
    return wide ? ((const index_t*)ids)[i] : (index_t)((const int*)ids)[i];
}

// Sum of x over the earlier threads of the block; `total` is the sum over all threads.
__device__ inline word_t sum_before(word_t x, word_t* sums, word_t* total) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    word_t through = x;
    for (int k = 1; k < 32; k *= 2) {
        const word_t other = __shfl_up_sync(ALL_LANES, through, k);
        if (lane >= k) through += other;
    }
    __syncthreads();  // the sums of an earlier call may still be read
    if (lane == 31) sums[warp] = through;
    __syncthreads();
    word_t before = 0, all = 0;
    for (int k = 0; k < WARPS; ++k) {
        if (k < warp) before += sums[k];
        all += sums[k];
    }
    *total = all;
    return before + through - x;
}

// Write ids as sort keys, and their positions. An id outside the table is reported and becomes 0.
extern "C" __global__ void load_keys(
    const void* ids, int wide, index_t n, index_t rows, word_t* keys, word_t* order,
    index_t* status, int table) {
    for (index_t i = this_thread(); i < n; i += (index_t)gridDim.x * blockDim.x) {
        index_t id = id_at(ids, wide, i);
        if (id < 0 || id >= rows) {
            refuse(status, table, 1, id);
            id = 0;
        }
        keys[i] = (word_t)id;
        order[i] = (word_t)i;
    }
}

// Count each digit in each chunk, [DIGITS, chunks]; one block per chunk.
extern "C" __global__ void count_digits(
    const word_t* keys, index_t n, int shift, word_t* counts) {
    __shared__ word_t seen[DIGITS];
    seen[threadIdx.x] = 0;
    __syncthreads();
    const index_t first = (index_t)blockIdx.x * CHUNK + threadIdx.x;
    for (int k = 0; k < ITEMS; ++k) {
        const index_t i = first + k * BLOCK;
        if (i < n) atomicAdd(&seen[(keys[i] >> shift) % DIGITS], 1u);
    }
    __syncthreads();
    counts[(index_t)threadIdx.x * gridDim.x + blockIdx.x] = seen[threadIdx.x];
}

// Replace each row of counts [rows, width] by its exclusive prefix sums; one block per row.
extern "C" __global__ void scan_counts(word_t* counts, index_t width, word_t* totals) {
    __shared__ word_t sums[WARPS];
    word_t* row = counts + blockIdx.x * width;
    word_t carry = 0, total;
    for (index_t first = 0; first < width; first += BLOCK) {
        const index_t i = first + threadIdx.x;
        const word_t before = sum_before(i < width ? row[i] : 0, sums, &total);
        if (i < width) row[i] = carry + before;
        carry += total;
    }
    if (threadIdx.x == 0) totals[blockIdx.x] = carry;
}

// Sort keys and positions by one digit; equal digits keep their order.
extern "C" __global__ void scatter_digits(
    const word_t* keys, const word_t* order, index_t n, int shift, const word_t* counts,
    const word_t* totals, word_t* keys_out, word_t* order_out) {
    __shared__ word_t sums[WARPS];
    __shared__ word_t next[WARPS][DIGITS];  // per warp: count of each digit, then its output index
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const word_t below = (1u << lane) - 1;
    for (int k = 0; k < WARPS; ++k) next[k][threadIdx.x] = 0;
    __syncthreads();
    const index_t first = (index_t)blockIdx.x * CHUNK + warp * (CHUNK / WARPS) + lane;
    word_t key[ITEMS], rank[ITEMS];
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const index_t i = first + k * 32;
        key[k] = i < n ? keys[i] : 0;
        const word_t digit = i < n ? (key[k] >> shift) % DIGITS : DIGITS;
        const word_t peers = __match_any_sync(ALL_LANES, digit);
        const word_t before = digit < DIGITS ? next[warp][digit] : 0;
        rank[k] = before + __popc(peers & below);
        __syncwarp();
        if (digit < DIGITS && (peers & below) == 0) next[warp][digit] = before + __popc(peers);
        __syncwarp();
    }
    word_t total, position = sum_before(totals[threadIdx.x], sums, &total);
    position += counts[(index_t)threadIdx.x * gridDim.x + blockIdx.x];
    __syncthreads();
    for (int k = 0; k < WARPS; ++k) {
        const word_t mine = next[k][threadIdx.x];
        next[k][threadIdx.x] = position;
        position += mine;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const index_t i = first + k * 32;
        if (i >= n) continue;
        const word_t to = next[warp][(key[k] >> shift) % DIGITS] + rank[k];
        keys_out[to] = key[k];
        order_out[to] = order[i];
    }
}

// Whether a sorted key differs from the key before it.
__device__ inline bool is_head(const word_t* keys, index_t i, index_t n) {
    return i < n && (i == 0 || keys[i] != keys[i - 1]);
}

__device__ inline word_t heads_of_thread(const word_t* keys, index_t n) {
    const index_t first = (index_t)blockIdx.x * CHUNK + threadIdx.x * ITEMS;
    word_t heads = 0;
    for (int k = 0; k < ITEMS; ++k) heads += is_head(keys, first + k, n);
    return heads;
}

// Count the distinct ids that begin in each chunk; one block per chunk.
extern "C" __global__ void count_heads(const word_t* keys, index_t n, word_t* counts) {
    __shared__ word_t sums[WARPS];
    word_t total;
    sum_before(heads_of_thread(keys, n), sums, &total);
    if (threadIdx.x == 0) counts[blockIdx.x] = total;
}

// Write the distinct ids [u], ascending, and where each begins in the sorted keys [u + 1].
extern "C" __global__ void write_heads(
    const word_t* keys, index_t n, const word_t* counts, const word_t* u, word_t* ids,
    word_t* starts) {
    __shared__ word_t sums[WARPS];
    word_t total, position = sum_before(heads_of_thread(keys, n), sums, &total);
    position += counts[blockIdx.x];
    const index_t first = (index_t)blockIdx.x * CHUNK + threadIdx.x * ITEMS;
    for (int k = 0; k < ITEMS; ++k) {
        if (!is_head(keys, first + k, n)) continue;
        ids[position] = keys[first + k];
        starts[position++] = (word_t)(first + k);
    }
    if (this_thread() == 0) starts[u[0]] = (word_t)n;
}
"""
