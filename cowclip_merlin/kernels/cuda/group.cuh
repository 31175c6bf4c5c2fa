// Group the ids of a batch: a stable radix sort, then the distinct ids. Follows common.cuh.
//
// Sums over the tiles before a tile take one launch ("decoupled look-back"). A tile of keys needs the
// counts of all tiles before it, and gets them by looking back: each tile publishes its own counts,
// then adds those of the tiles before it until it finds one that already knows its sum. This is safe
// for two reasons:
//
// - A state holds counts and flag in one aligned word of 64 bits, which is read and written whole. A
//   reader that sees the flag sees the counts, and reads nothing else on its strength. So neither a
//   fence nor an order of several words is needed; `volatile` keeps the word out of L1 and registers.
// - A block takes the number of its tile from a counter when it starts. So all earlier tiles belong
//   to blocks that run or have ended. Each publishes its counts before it waits, and waits only for
//   earlier tiles. The first never waits, so by induction no tile waits forever, however few blocks
//   the GPU runs at once.
//
// No kernel waits for the host, because the number of distinct ids stays in GPU memory. All counts
// are integers and all orders are fixed, so the same ids give the same groups in every run.

enum { WARPS = BLOCK / 32, MOST_PASSES = 4, LOOK = 4 };
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

// The row of an id of a batch [b, fields], whose fields begin at `offsets`; if `fields` is 0, ids
// are rows.
__device__ inline index_t row_at(const void* ids, int wide, const index_t* offsets, int fields,
                                 index_t i) {
    const index_t id = id_at(ids, wide, i);
    return fields ? id + offsets[(word_t)i % (word_t)fields] : id;
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

// Count the digits of all passes, bins [passes, DIGITS]. An id outside the table is reported; here
// and in the first pass it counts as 0.
extern "C" __global__ void histogram(
    const void* ids, int wide, const index_t* offsets, int fields, index_t n, index_t rows,
    int passes, int bits, word_t* bins, index_t* status, int table) {
    enum { MANY = 8 };  // read at once, because each read takes long
    __shared__ word_t seen[MOST_PASSES * DIGITS];
    for (int k = threadIdx.x; k < passes * DIGITS; k += BLOCK) seen[k] = 0;
    __syncthreads();
    const word_t mask = (1u << bits) - 1;
    const index_t step = (index_t)gridDim.x * BLOCK;
    for (index_t first = this_thread(); first < n; first += MANY * step) {
        index_t id[MANY];
#pragma unroll
        for (int k = 0; k < MANY; ++k) {
            const index_t i = first + k * step;
            id[k] = i < n ? row_at(ids, wide, offsets, fields, i) : 0;
        }
#pragma unroll
        for (int k = 0; k < MANY; ++k) {
            if (first + k * step >= n) break;
            if (id[k] < 0 || id[k] >= rows) {
                refuse(status, table, 1, id[k]);
                id[k] = 0;
            }
            word_t key = (word_t)id[k];
            for (int p = 0; p < passes; ++p, key >>= bits)
                atomicAdd(&seen[p * DIGITS + (key & mask)], 1u);
        }
    }
    __syncthreads();
    for (int k = threadIdx.x; k < passes * DIGITS; k += BLOCK)
        if (seen[k]) atomicAdd(&bins[k], seen[k]);
}

// The keys of this lane, of which `left` or more are there; the others are ALL_LANES, which no key
// is. The first pass reads ids; one outside the table is 0.
__device__ inline void load_tile(const void* ids, int wide, const index_t* offsets, int fields,
                                 index_t rows, const word_t* keys, index_t first, int left,
                                 word_t* key) {
    if (keys) {
#pragma unroll
        for (int k = 0; k < ITEMS; ++k) key[k] = k * 32 < left ? keys[first + k * 32] : ALL_LANES;
        return;
    }
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const index_t i = first + k * 32;
        const index_t id = k * 32 < left ? row_at(ids, wide, offsets, fields, i) : 0;
        key[k] = k * 32 >= left ? ALL_LANES : id < 0 || id >= rows ? 0 : (word_t)id;
    }
}

// The lanes of the warp that have this digit. Ballots have a known, high rate.
__device__ inline word_t lanes_with(word_t digit) {
    word_t peers = ALL_LANES;
#pragma unroll
    for (int bit = 0; bit < DIGIT_BITS; ++bit) {
        const bool set = digit >> bit & 1;
        const word_t lanes = __ballot_sync(ALL_LANES, set);
        peers &= set ? lanes : ~lanes;
    }
    return peers;
}

// Rank each key among those of its warp with the same digit; counts [DIGITS] of the warp are 0
// before. Places beyond the end of the keys come last in their tile, so their ranks harm nobody.
__device__ inline void rank_keys(const word_t* key, word_t* rank, int left, int shift,
                                 word_t mask, word_t* counts) {
    const int lane = threadIdx.x % 32;
    const word_t below = (1u << lane) - 1;
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        if (k * 32 >= left + lane) break;  // for all lanes of the warp
        const word_t digit = key[k] >> shift & mask, peers = lanes_with(digit);
        const word_t before = counts[digit];
        rank[k] = before + __popc(peers & below);
        __syncwarp();
        if ((peers & below) == 0) counts[digit] = before + __popc(peers);
        __syncwarp();
    }
}

// Replace the counts of each warp, for this thread's two digits, by those of the earlier warps;
// returns the counts of the tile.
__device__ inline state_t count_tile(word_t counts[][DIGITS]) {
    word_t sum[2] = {0, 0};
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp)
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            word_t& here = counts[warp][2 * threadIdx.x + k];
            const word_t mine = here;
            here = sum[k];
            sum[k] += mine;
        }
    return pack(sum[0], sum[1]);
}

// Sort a tile in shared memory: keys, then their positions. The place of a key is the sum of where
// its digit begins, the count of earlier warps, and its rank. The counts are in the same memory.
__device__ inline void sort_tile(const word_t* key, word_t* rank, const word_t* order,
                                 index_t first, int left, int shift, word_t mask,
                                 const word_t* begins, const word_t* counts, word_t* sorted) {
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const word_t digit = key[k] >> shift & mask;
        rank[k] += begins[digit] + counts[digit];
    }
    __syncthreads();  // the counts are no longer needed
#pragma unroll
    for (int k = 0; k < ITEMS; ++k)
        if (k * 32 < left) sorted[rank[k]] = key[k];
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const index_t i = first + k * 32;
        if (k * 32 < left) sorted[CHUNK + rank[k]] = order ? order[i] : (word_t)i;
    }
}

// Sort keys and positions by one digit; equal digits keep their order. The first pass has no keys
// and reads ids; their positions are their indexes. `bins` counts the digits of all keys. A tile
// sorts its keys in shared memory first, so that it writes runs of equal digits.
extern "C" __launch_bounds__(BLOCK, 4) __global__ void onesweep(
    const void* ids, int wide, const index_t* offsets, int fields, index_t rows,
    const word_t* keys, const word_t* order, index_t n, int shift, int bits, const word_t* bins,
    word_t* counter, state_t* states, word_t* keys_out, word_t* order_out) {
    __shared__ word_t sorted[2 * CHUNK];  // counts of each warp; then keys, and their positions
    __shared__ word_t base[DIGITS];       // where a digit begins in the tile; then in the output
    __shared__ word_t sums[WARPS], number;
    const int warp = threadIdx.x / 32, digit = 2 * threadIdx.x;  // and the digit after it
    word_t(*counts)[DIGITS] = (word_t(*)[DIGITS])sorted;
    for (int k = threadIdx.x; k < WARPS * DIGITS; k += BLOCK) sorted[k] = 0;
    const index_t tile = take_tile(counter, &number), first = first_of_lane(tile);
    const int left = left_of(first, n);
    const word_t mask = (1u << bits) - 1;
    word_t key[ITEMS], rank[ITEMS], total;
    load_tile(ids, wide, offsets, fields, rows, keys, first, left, key);
    rank_keys(key, rank, left, shift, mask, counts[warp]);
    __syncthreads();
    const state_t mine = count_tile(counts);
    publish_tile(states, tile, BLOCK, threadIdx.x, mine);
    const word_t begin = sum_before(first_count(mine) + second_count(mine), sums, &total);
    base[digit] = begin;
    base[digit + 1] = begin + first_count(mine);
    __syncthreads();
    sort_tile(key, rank, order, first, left, shift, mask, base, counts[warp], sorted);
    const state_t before = look_back(states, tile, BLOCK, threadIdx.x, mine);
    const word_t bin = bins[digit];
    const word_t smaller = sum_before(bin + bins[digit + 1], sums, &total);
    base[digit] = smaller + first_count(before) - begin;
    base[digit + 1] = smaller + bin + second_count(before) - begin - first_count(mine);
    __syncthreads();
    const int size = left_of(tile * CHUNK, n);
#pragma unroll 4
    for (int i = threadIdx.x; i < size; i += BLOCK) {
        const word_t to = base[sorted[i] >> shift & mask] + i;
        keys_out[to] = sorted[i];
        order_out[to] = sorted[CHUNK + i];
    }
}

// From sorted keys: the distinct ids [u], ascending; where each begins [u + 1]; for each occurrence
// the index of its distinct id, slots [n]; and u.
extern "C" __global__ void heads(
    const word_t* keys, const word_t* order, index_t n, word_t* counter, state_t* states,
    word_t* ids, word_t* starts, word_t* slots, word_t* u) {
    __shared__ word_t sums[WARPS], number, earlier;
    const int lane = threadIdx.x % 32;
    const index_t tile = take_tile(counter, &number), first = first_of_lane(tile);
    const int left = left_of(first, n);
    word_t key[ITEMS], found[ITEMS], mine = 0, total;
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const index_t i = first + k * 32;
        key[k] = k * 32 < left ? keys[i] : 0;
        const bool head = k * 32 < left && (i == 0 || keys[i - 1] != key[k]);
        found[k] = __ballot_sync(ALL_LANES, head);
        mine += __popc(found[k]);
    }
    word_t at = sum_before(lane == 31 ? mine : 0, sums, &total);  // of the earlier warps
    if (threadIdx.x == 0) {
        publish_tile(states, tile, 1, 0, total);
        earlier = (word_t)look_back(states, tile, 1, 0, total);
        if (tile + 1 == gridDim.x) {
            u[0] = earlier + total;
            starts[earlier + total] = (word_t)n;
        }
    }
    __syncthreads();
    at += earlier;
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const index_t i = first + k * 32;
        const word_t through = found[k] << (31 - lane);  // of this lane and those before it
        const word_t head = at + __popc(through) - 1;
        at += __popc(found[k]);
        if (k * 32 >= left) break;
        slots[order[i]] = head;
        if (!(through >> 31)) continue;
        ids[head] = key[k];
        starts[head] = (word_t)i;
    }
}
