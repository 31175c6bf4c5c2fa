"""CUDA C++ of a step on grouped rows: sums, L2, clip and Adam.

The kernels never wait for the host. They read the number of distinct ids from GPU memory, so a
launch does not depend on it: each thread takes several rows, `gridDim` apart. The source follows
`COMMON_SOURCE`, `GROUP_SOURCE` and `REPLAY_SOURCE` in one program and uses their functions.
"""

from __future__ import annotations

STEP_SOURCE = r"""
__device__ inline void check_sum(float x, index_t* status, int table, word_t row) {
    if (x - x != 0.0f) refuse(status, table, 0, row);  // Inf - Inf and NaN - NaN are NaN
}

// One tile per distinct id. Ids that occur more than `segment` times are queued in pieces for the
// next two kernels: queued[0] ids, queued[1] pieces. Their order has no effect on the sums.
extern "C" __global__ void sum_groups(
    const value_t* values, const word_t* order, const word_t* starts, const word_t* ids,
    const word_t* u, int d, index_t segment, word_t* queued, word_t* hot, word_t* hot_first,
    word_t* piece_begin, word_t* piece_end, float* g, index_t* status, int table) {
    const index_t rows = u[0], tiles = (index_t)gridDim.x * blockDim.x / TILE;
    const int lane = (int)(this_thread() % TILE);
    for (index_t row = this_thread() / TILE; row < rows; row += tiles) {
        const index_t begin = starts[row], end = starts[row + 1];
        if (end - begin <= segment) {
            for (int j = lane; j < d; j += TILE) {
                const float sum = sum_of<8>(values, order, begin, end, d, j);
                g[row * d + j] = sum;
                check_sum(sum, status, table, ids[row]);
            }
        } else if (lane == 0) {
            const word_t pieces = (word_t)((end - begin + segment - 1) / segment);
            const word_t slot = atomicAdd(&queued[0], 1u);
            word_t piece = atomicAdd(&queued[1], pieces);
            hot[slot] = (word_t)row;
            hot_first[slot] = piece;
            for (index_t at = begin; at < end; at += segment, ++piece) {
                piece_begin[piece] = (word_t)at;
                piece_end[piece] = (word_t)(at + segment < end ? at + segment : end);
            }
        }
    }
}

// Sum each piece of the frequent ids; one tile per piece.
extern "C" __global__ void sum_queued(
    const value_t* values, const word_t* order, const word_t* queued, const word_t* piece_begin,
    const word_t* piece_end, int d, float* partial) {
    const index_t pieces = queued[1], tiles = (index_t)gridDim.x * blockDim.x / TILE;
    for (index_t piece = this_thread() / TILE; piece < pieces; piece += tiles)
        for (int j = (int)(this_thread() % TILE); j < d; j += TILE)
            partial[piece * d + j] =
                sum_of<8>(values, order, piece_begin[piece], piece_end[piece], d, j);
}

// Add the pieces of each frequent id, in their order; one tile per id.
extern "C" __global__ void join_queued(
    const float* partial, const word_t* queued, const word_t* hot, const word_t* hot_first,
    const word_t* starts, const word_t* ids, int d, index_t segment, float* g, index_t* status,
    int table) {
    const index_t rows = queued[0], tiles = (index_t)gridDim.x * blockDim.x / TILE;
    for (index_t h = this_thread() / TILE; h < rows; h += tiles) {
        const index_t row = hot[h], first = hot_first[h];
        const index_t pieces = ((index_t)starts[row + 1] - starts[row] + segment - 1) / segment;
        for (int j = (int)(this_thread() % TILE); j < d; j += TILE) {
            float sum = partial[first * d + j];
#pragma unroll 16
            for (index_t p = 1; p < pieces; ++p) sum += partial[(first + p) * d + j];
            g[row * d + j] = sum;
            check_sum(sum, status, table, ids[row]);
        }
    }
}

// L2, clip and Adam of the distinct rows, after the steps that they have missed. For the log,
// sums[0] counts rows, sums[1] clipped rows, and sums[2] adds factors in units of 2^-32.
extern "C" __global__ void step_groups(
    float* w, float* m, float* v, const float* g, const word_t* ids, const word_t* starts,
    const word_t* u, int d, const float* alpha, float keep_m, float keep_v, float epsilon,
    float l2, int kind, double r, double least, double bound, int exact, float* last,
    float* history, index_t capacity, index_t to, int counted, unsigned long long* sums,
    index_t* status, int table) {
    __shared__ unsigned long long cut_rows, factors;
    if (threadIdx.x == 0) cut_rows = factors = 0;
    __syncthreads();
    const bool refused = status[0] != 0;
    if (exact && this_thread() == 0) note_step(history, capacity, to, alpha[0], refused);
    if (refused) return;
    const int lane = (int)(this_thread() % TILE);
    const index_t rows = u[0], tiles = (index_t)gridDim.x * blockDim.x / TILE;
    const float rate = alpha[0];
    unsigned long long my_cut = 0, my_factors = 0;
    index_t row = this_thread() / TILE;
    // All lanes of a warp stay until all its tiles are done, because they shuffle.
    for (index_t first = row - row % (32 / TILE); first < rows; first += tiles, row += tiles) {
        const bool inside = row < rows;
        const index_t id = inside ? ids[row] : 0;
        const index_t from = inside && exact ? (index_t)last[id] : to;
        bool missed = false;
        float my_w[PER], my_m[PER], my_v[PER], my_g[PER];
#pragma unroll
        for (int k = 0; k < PER; ++k) {
            const int j = lane + k * TILE;
            const bool here = inside && j < d;
            my_w[k] = here ? w[id * d + j] : 0.0f;
            my_m[k] = here ? m[id * d + j] : 0.0f;
            my_v[k] = here ? v[id * d + j] : 0.0f;
            if (here && from < to)
                missed = replay(my_w[k], my_m[k], my_v[k], from, to, history, capacity, keep_m,
                                keep_v, epsilon, l2);
            my_g[k] = here ? g[row * d + j] + l2 * my_w[k] : 0.0f;
        }
        const index_t cnt = inside ? (index_t)starts[row + 1] - starts[row] : 1;
        const float f = row_factor(my_g, my_w, cnt, kind, r, least, bound);
        __syncwarp();  // every lane has read `last`
        if (!inside) continue;
        if (lane == 0) {
            if (exact) last[id] = (float)(to + 1);
            if (missed) status[3 + 3 * table] = 1;
            my_cut += f < 1.0f;
            my_factors += (unsigned long long)((double)f * 4294967296.0);
        }
#pragma unroll
        for (int k = 0; k < PER; ++k) {
            const int j = lane + k * TILE;
            if (j >= d) continue;
            adam(my_w[k], my_m[k], my_v[k], my_g[k] * f, rate, keep_m, keep_v, epsilon);
            w[id * d + j] = my_w[k];
            m[id * d + j] = my_m[k];
            v[id * d + j] = my_v[k];
        }
    }
    if (my_factors || my_cut) {
        atomicAdd(&cut_rows, my_cut);
        atomicAdd(&factors, my_factors);
    }
    __syncthreads();
    if (!counted || threadIdx.x != 0) return;
    if (blockIdx.x == 0) atomicAdd(&sums[0], (unsigned long long)rows);
    atomicAdd(&sums[1], cut_rows);
    atomicAdd(&sums[2], factors);
}

// Adam's learning rate of the next step, with both bias corrections.
__device__ inline float corrected_rate(float rate, index_t iterations, float beta_1,
                                       float beta_2) {
    const float t = (float)(iterations + 1);
    return rate * sqrtf(1.0f - powf(beta_2, t)) / (1.0f - powf(beta_1, t));
}

extern "C" __global__ void bias_corrected_rate(
    const float* rate, const index_t* iterations, float beta_1, float beta_2, float* alpha) {
    if (this_thread() == 0) *alpha = corrected_rate(*rate, *iterations, beta_1, beta_2);
}

// Write the share of clipped rows and the mean factor, for the log; 0 if there are no rows.
extern "C" __global__ void summarize(
    const unsigned long long* sums, float* share, float* mean) {
    if (this_thread() != 0) return;
    const double rows = sums[0] ? (double)sums[0] : 1.0;
    *share = (float)((double)sums[1] / rows);
    *mean = (float)((double)sums[2] / 4294967296.0 / rows);
}
"""
