// Kernels for arrays of your own, which kernels/cupy.py launches. Follows common.cuh. The optimizer
// launches none of these kernels.

__device__ inline void mark(float x, index_t index, index_t* bad) {
    if (x - x != 0.0f) atomicMin(bad, index);  // Inf - Inf and NaN - NaN are NaN
}

// One tile per id. The next two kernels sum ids that occur more than `segment` times.
extern "C" __global__ void sum_rows(
    const value_t* values, const index_t* order, const index_t* starts, index_t u, int d,
    index_t segment, float* g, index_t* bad) {
    const index_t row = this_thread() / TILE;
    if (row >= u) return;
    const index_t begin = starts[row], end = starts[row + 1];
    if (end - begin > segment) return;
    for (int j = (int)(this_thread() % TILE); j < d; j += TILE) {
        const float sum = sum_of<4>(values, order, begin, end, d, j);
        g[row * d + j] = sum;
        mark(sum, row, bad);
    }
}

// One tile per piece of a frequent id. Id hot[h] has pieces piece_starts[h] to piece_starts[h + 1].
extern "C" __global__ void sum_pieces(
    const value_t* values, const index_t* order, const index_t* starts, const index_t* hot,
    const index_t* piece_starts, index_t hots, int d, index_t segment, float* partial) {
    const index_t piece = this_thread() / TILE;
    if (piece >= piece_starts[hots]) return;
    index_t low = 0, high = hots;  // piece_starts[low] <= piece < piece_starts[high]
    while (high - low > 1) {
        const index_t middle = (low + high) / 2;
        if (piece_starts[middle] <= piece) low = middle; else high = middle;
    }
    const index_t begin = starts[hot[low]] + (piece - piece_starts[low]) * segment;
    const index_t last = starts[hot[low] + 1];
    const index_t end = begin + segment < last ? begin + segment : last;
    for (int j = (int)(this_thread() % TILE); j < d; j += TILE)
        partial[piece * d + j] = sum_of<4>(values, order, begin, end, d, j);
}

// Add the pieces of each frequent id, in their order; one tile per id.
extern "C" __global__ void join_pieces(
    const float* partial, const index_t* hot, const index_t* piece_starts, index_t hots, int d,
    float* g, index_t* bad) {
    const index_t h = this_thread() / TILE;
    if (h >= hots) return;
    for (int j = (int)(this_thread() % TILE); j < d; j += TILE) {
        float sum = partial[piece_starts[h] * d + j];
#pragma unroll 8
        for (index_t p = piece_starts[h] + 1; p < piece_starts[h + 1]; ++p)
            sum += partial[p * d + j];
        g[hot[h] * d + j] = sum;
        mark(sum, hot[h], bad);
    }
}

// Sum of squares of each row.
extern "C" __global__ void row_squares(const float* x, index_t u, int d, double* square) {
    const index_t row = this_thread() / TILE;
    const int lane = (int)(this_thread() % TILE);
    float mine[PER];
#pragma unroll
    for (int k = 0; k < PER; ++k) {
        const int j = lane + k * TILE;
        mine[k] = row < u && j < d ? x[row * d + j] : 0.0f;
    }
    double sum = lane_square<PER>(mine), nothing = 0.0;
    tile_sums(sum, nothing, TILE);  // all lanes run it: it shuffles
    if (row < u && lane == 0) square[row] = sum;
}

// Add L2 and clip; changes g in place.
extern "C" __global__ void clip_rows(
    float* g, const float* w, const index_t* cnt, index_t u, int d, float l2, int kind,
    double r, double least, double bound, float* factor) {
    const index_t row = this_thread() / TILE;
    const int lane = (int)(this_thread() % TILE);
    float my_g[PER], my_w[PER];
#pragma unroll
    for (int k = 0; k < PER; ++k) {
        const int j = lane + k * TILE;
        const bool inside = row < u && j < d;
        my_w[k] = inside ? w[row * d + j] : 0.0f;
        my_g[k] = inside ? g[row * d + j] + l2 * my_w[k] : 0.0f;
    }
    const index_t my_cnt = row < u ? cnt[row] : 1;
    const float f = row_factor<PER>(my_g, my_w, my_cnt, kind, r, least, bound, TILE);
    if (row >= u) return;
    if (lane == 0) factor[row] = f;
#pragma unroll
    for (int k = 0; k < PER; ++k) {
        const int j = lane + k * TILE;
        if (j < d) g[row * d + j] = my_g[k] * f;
    }
}

// L2, clip and Adam for the rows of the batch; each number is read and written once.
extern "C" __global__ void step_rows(
    float* w, float* m, float* v, const index_t* rows, const float* g, const index_t* starts,
    index_t u, int d, float alpha, float keep_m, float keep_v, float epsilon, float l2, int kind,
    double r, double least, double bound, float* factor) {
    const index_t row = this_thread() / TILE;
    const int lane = (int)(this_thread() % TILE);
    const index_t first = row < u ? rows[row] * d : 0;
    float my_w[PER], my_m[PER], my_v[PER], my_g[PER];
#pragma unroll
    for (int k = 0; k < PER; ++k) {
        const int j = lane + k * TILE;
        const bool inside = row < u && j < d;
        my_w[k] = inside ? w[first + j] : 0.0f;
        my_m[k] = inside ? m[first + j] : 0.0f;
        my_v[k] = inside ? v[first + j] : 0.0f;
        my_g[k] = inside ? g[row * d + j] + l2 * my_w[k] : 0.0f;
    }
    const index_t cnt = row < u ? starts[row + 1] - starts[row] : 1;
    const float f = row_factor<PER>(my_g, my_w, cnt, kind, r, least, bound, TILE);
    if (row >= u) return;
    if (lane == 0) factor[row] = f;
#pragma unroll
    for (int k = 0; k < PER; ++k) {
        const int j = lane + k * TILE;
        const index_t at = first + j;
        if (j >= d) continue;
        adam(my_w[k], my_m[k], my_v[k], my_g[k] * f, alpha, keep_m, keep_v, epsilon);
        w[at] = my_w[k];
        m[at] = my_m[k];
        v[at] = my_v[k];
    }
}

// L2, clip and Adagrad for the rows of the batch. `width` is d, or 1: one accumulator per row,
// which takes the mean square of the clipped gradient.
extern "C" __global__ void adagrad_rows(
    float* w, float* sums, const index_t* rows, const float* g, const index_t* starts, index_t u,
    int d, int width, float rate, float epsilon, float l2, int kind, double r, double least,
    double bound, float* factor) {
    const index_t row = this_thread() / TILE;
    const int lane = (int)(this_thread() % TILE);
    const index_t id = row < u ? rows[row] : 0;
    float my_w[PER], my_g[PER];
#pragma unroll
    for (int k = 0; k < PER; ++k) {
        const int j = lane + k * TILE;
        const bool inside = row < u && j < d;
        my_w[k] = inside ? w[id * d + j] : 0.0f;
        my_g[k] = inside ? g[row * d + j] + l2 * my_w[k] : 0.0f;
    }
    const index_t cnt = row < u ? starts[row + 1] - starts[row] : 1;
    const float f = row_factor<PER>(my_g, my_w, cnt, kind, r, least, bound, TILE);
    if (row < u && lane == 0) factor[row] = f;
    adagrad<PER>(w + id * d, sums + id * width, my_w, my_g, f, row < u, lane, TILE, d, width, rate,
                 epsilon);
}

// One thread per entry of `rows`, which may contain duplicates. The first thread of a row gets the
// number of steps that the row has seen; the others get at least `to`. `last` holds integers or the
// bits of nonnegative floats, which have the same order.
extern "C" __global__ void take_behind(
    int* last, const index_t* rows, index_t n, int to, int* seen) {
    const index_t i = this_thread();
    if (i < n) seen[i] = atomicMax(last + rows[i], to);
}

// Replay missed steps in registers; one thread per number of the rows that are behind.
extern "C" __global__ void replay_rows(
    float* w, float* m, float* v, const index_t* rows, const index_t* seen, index_t count, int d,
    const float* alphas, const float* epsilons, index_t to, float keep_m, float keep_v, float l2) {
    const index_t i = this_thread() / d;
    if (i >= count) return;
    const index_t at = rows[i] * d + this_thread() % d;
    float my_w = w[at], my_m = m[at], my_v = v[at];
    for (index_t s = seen[i]; s < to; ++s) {
        if (alphas[s] < 0.0f) continue;  // a refused step
        adam(my_w, my_m, my_v, l2 * my_w, alphas[s], keep_m, keep_v, epsilons[s]);
    }
    w[at] = my_w;
    m[at] = my_m;
    v[at] = my_v;
}
