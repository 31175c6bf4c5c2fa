// A step: sums, L2, clip, Adam or Adagrad of rows. Follows replay.cuh.
//
// The kernels never wait for the host. They read the number of distinct ids from GPU memory, so a
// launch does not depend on it: each tile takes several rows. One launch serves several tables.

__device__ inline void check_sum(float x, index_t* status, int table, word_t row) {
    if (x - x != 0.0f) refuse(status, table, 0, row);  // Inf - Inf and NaN - NaN are NaN
}

// Coordinate j of the gradients of a batch and distinct row: where it begins in each array, and
// bytes from one occurrence or row of the batch to the next.
struct Coordinate {
    const char *values, *sums;
    const float* row_g;
    word_t of_occurrence, of_row, of_sums, reciprocal;
    int shift;
    float w;
};

template <bool VALUES, bool PAIRS>
__device__ inline float gradient_at(const Coordinate& c, word_t i) {
    const word_t b = __umulhi(2 * i, c.reciprocal) >> c.shift;
    float g = 0.0f;
    if (VALUES) {
        // i % fields * d is (i - b * fields) * d.
        const char* at = c.values + (state_t)i * c.of_occurrence;
        g = widen(*(const value_t*)(at + (state_t)b * c.of_row));
    }
    if (PAIRS) g += c.row_g[b] * (*(const float*)(c.sums + (state_t)b * c.of_sums) - c.w);
    return VALUES ? g : g + c.row_g[b];
}

template <bool VALUES, bool PAIRS>
__device__ inline float sum_batch(const Coordinate& c, const word_t* __restrict__ order,
                                  word_t begin, word_t end) {
    float sum = gradient_at<VALUES, PAIRS>(c, order[begin]);
#pragma unroll 4
    for (word_t s = begin + 1; s < end; ++s) sum += gradient_at<VALUES, PAIRS>(c, order[s]);
    return sum;
}

// Sum coordinate j of the gradients of the occurrences [begin, end) of a distinct row.
__device__ inline float sum_gradients(const SumTable& t, word_t row, word_t begin, word_t end,
                                      int j) {
    if (t.fields == 0) return sum_of<8>(t.values, t.order, begin, end, t.d, j);
    const index_t at = t.compact ? row : t.ids[row];
    const word_t size = sizeof(value_t), d = t.d, more = t.pitch - t.fields * t.d;
    const Coordinate c = {(const char*)(t.values + j), (const char*)(t.sums + j), t.row_g,
                          size * d, size * more, 4 * d, t.reciprocal, t.shift,
                          t.sums ? t.w[at * t.d + j] : 0.0f};
    if (!t.values) return sum_batch<false, false>(c, t.order, begin, end);
    return t.sums ? sum_batch<true, true>(c, t.order, begin, end)
                  : sum_batch<true, false>(c, t.order, begin, end);
}

// Queue a frequent id and its pieces: queued[0] ids, queued[1] pieces. Their order has no effect on
// the sums. A call of its own keeps its registers out of the loop over rare ids.
__device__ __noinline__ void queue_pieces(const SumTable& t, word_t row, index_t begin, index_t end,
                                          index_t segment) {
    const word_t slot = atomicAdd(&t.queued[0], 1u);
    word_t piece = atomicAdd(&t.queued[1], (word_t)((end - begin + segment - 1) / segment));
    t.hot[slot] = row;
    t.hot_first[slot] = piece;
    for (index_t at = begin; at < end; at += segment, ++piece) {
        t.piece_begin[piece] = (word_t)at;
        t.piece_end[piece] = (word_t)(at + segment < end ? at + segment : end);
        t.piece_row[piece] = row;
    }
}

// One tile per distinct id. Ids that occur more than `segment` times are left to the next two
// kernels. Five blocks leave 48 registers, which suffice.
extern "C" __launch_bounds__(BLOCK, 5) __global__ void sum_groups(
    const __grid_constant__ SumTables tables, index_t segment, index_t* status) {
    const SumTable& t = one_of_block(tables);
    const word_t rows = t.u[0], tiles = threads_of(t) / t.tile;
    const int d = t.d, lane = thread_of(t) % t.tile;
    for (word_t row = thread_of(t) / t.tile; row < rows; row += tiles) {
        const word_t begin = t.starts[row], end = t.starts[row + 1];
        if (end - begin <= segment) {
            for (int j = lane; j < d; j += t.tile) {
                const float sum = sum_gradients(t, row, begin, end, j);
                t.g[(index_t)row * d + j] = sum;
                check_sum(sum, status, t.slot, t.ids[row]);
            }
        } else if (lane == 0) {
            queue_pieces(t, row, begin, end, segment);
        }
    }
}

// Sum each piece of the frequent ids; one tile per piece.
extern "C" __global__ void sum_queued(const __grid_constant__ SumTables tables) {
    const SumTable& t = one_of_block(tables);
    const index_t pieces = t.queued[1], tiles = threads_of(t) / t.tile;
    const int d = t.d, lane = thread_of(t) % t.tile;
    for (index_t piece = thread_of(t) / t.tile; piece < pieces; piece += tiles)
        for (int j = lane; j < d; j += t.tile)
            t.partial[piece * d + j] =
                sum_gradients(t, t.piece_row[piece], t.piece_begin[piece], t.piece_end[piece], j);
}

// Add the pieces of each frequent id, in their order; one tile per id.
extern "C" __global__ void join_queued(
    const __grid_constant__ SumTables tables, index_t segment, index_t* status) {
    const SumTable& t = one_of_block(tables);
    const index_t rows = t.queued[0], tiles = threads_of(t) / t.tile;
    const int d = t.d, lane = thread_of(t) % t.tile;
    for (index_t h = thread_of(t) / t.tile; h < rows; h += tiles) {
        const index_t row = t.hot[h], first = t.hot_first[h];
        const index_t pieces =
            ((index_t)t.starts[row + 1] - t.starts[row] + segment - 1) / segment;
        for (int j = lane; j < d; j += t.tile) {
            float sum = t.partial[first * d + j];
#pragma unroll 16
            for (index_t p = 1; p < pieces; ++p) sum += t.partial[(first + p) * d + j];
            t.g[row * d + j] = sum;
            check_sum(sum, status, t.slot, t.ids[row]);
        }
    }
}

// One step of a distinct row, after the steps that it has missed; MANY coordinates per lane. All
// lanes of a warp call it, because they shuffle; only those `inside` have a row. Returns the
// factor by which the gradient was clipped.
template <int MANY>
__device__ inline float step_row(const StepTable& t, index_t row, bool inside, int lane,
                                 float alpha, index_t to, index_t* status) {
    const int d = t.d, tile = t.tile;
    const index_t id = inside ? t.ids[row] : 0;
    const bool fetched = t.row_w != nullptr;
    const index_t from = inside && t.last && !fetched ? (index_t)t.last[id] : to;
    const index_t at = (fetched ? row : id) * d;
    const float *w = fetched ? t.row_w : t.w, *m = fetched ? t.row_m : t.m;
    const float* v = fetched ? t.row_v : t.v;
    bool missed = false;
    float my_w[MANY], my_m[MANY], my_v[MANY], my_g[MANY];
#pragma unroll
    for (int k = 0; k < MANY; ++k) {
        const int j = lane + k * tile;
        const bool here = inside && j < d;
        my_w[k] = here ? w[at + j] : 0.0f;
        my_m[k] = here ? m[at + j] : 0.0f;
        my_v[k] = here ? v[at + j] : 0.0f;
        if (here && from < to)
            missed = replay(my_w[k], my_m[k], my_v[k], from, to, t.history, t.capacity, t.keep_m,
                            t.keep_v, t.epsilon, t.l2);
        my_g[k] = here ? t.g[row * d + j] + t.l2 * my_w[k] : 0.0f;
    }
    const index_t cnt = inside ? (index_t)t.starts[row + 1] - t.starts[row] : 1;
    const float f = row_factor<MANY>(my_g, my_w, cnt, t.kind, t.r, t.least, t.bound, tile);
    __syncwarp();  // every lane has read `last`
    if (!inside) return f;
    if (lane == 0 && t.last) t.last[id] = (float)(to + 1);
    if (lane == 0 && missed) status[3 + 3 * t.slot] = 1;
#pragma unroll
    for (int k = 0; k < MANY; ++k) {
        const int j = lane + k * tile;
        if (j >= d) continue;
        adam(my_w[k], my_m[k], my_v[k], my_g[k] * f, alpha, t.keep_m, t.keep_v, t.epsilon);
        t.w[id * d + j] = my_w[k];
        t.m[id * d + j] = my_m[k];
        t.v[id * d + j] = my_v[k];
    }
    return f;
}

// Returns the index of a row among the distinct rows of a batch, or -1.
__device__ inline index_t find_row(const StepTable& t, index_t row) {
    const index_t rows = t.u[0];
    index_t low = 0, high = rows;
    while (low < high) {
        const index_t middle = (low + high) / 2;
        if (t.ids[middle] < row) low = middle + 1; else high = middle;
    }
    return low < rows && t.ids[low] == row ? low : -1;
}

// One step of Adagrad: of a distinct row, or of row `row` of a table whose absent rows step, too.
// Called as `step_row`. Returns the factor, or -1 for an absent row.
template <int MANY>
__device__ inline float adagrad_row(const StepTable& t, index_t row, bool inside, int lane,
                                    float rate) {
    const index_t at = inside && t.rows ? find_row(t, row) : row;
    const index_t id = inside && !t.rows ? t.ids[row] : row;
    const bool present = inside && at >= 0;
    float* w = t.w + id * t.d;
    float my_w[MANY], my_g[MANY];
#pragma unroll
    for (int k = 0; k < MANY; ++k) {
        const int j = lane + k * t.tile;
        const bool here = inside && j < t.d;
        my_w[k] = here ? w[j] : 0.0f;
        my_g[k] = (here && present ? t.g[at * t.d + j] : 0.0f) + t.l2 * my_w[k];
    }
    const index_t cnt = present ? (index_t)t.starts[at + 1] - t.starts[at] : 0;
    const float f = row_factor<MANY>(my_g, my_w, cnt, t.kind, t.r, t.least, t.bound, t.tile);
    adagrad<MANY>(w, t.m + id * t.width, my_w, my_g, f, inside, lane, t.tile, t.d, t.width, rate,
                  t.epsilon);
    return present ? f : -1.0f;
}

// Adam's learning rate of the next step, with both bias corrections.
__device__ inline float corrected_rate(float rate, index_t iterations, float beta_1,
                                       float beta_2) {
    const float t = (float)(iterations + 1);
    return rate * sqrtf(1.0f - powf(beta_2, t)) / (1.0f - powf(beta_1, t));
}

// What the threads of a block share.
struct OfBlock {
    unsigned long long cut_rows, factors;
    float rate;
};

template <bool ADAGRAD, int MANY>
__device__ inline float step_one(const StepTable& t, index_t row, bool inside, int lane, float rate,
                                 index_t to, index_t* status) {
    return ADAGRAD ? adagrad_row<MANY>(t, row, inside, lane, rate)
                   : step_row<MANY>(t, row, inside, lane, rate, to, status);
}

// L2, clip and step of the rows of all tables, with the rate in `common`. A tile holds a row in
// registers: one number per lane if the row is not longer than its tile, otherwise PER. For the
// log, sums[0] counts distinct rows, sums[1] clipped rows, and sums[2] adds factors in units of
// 2^-32.
template <bool ADAGRAD>
__device__ inline void step_tables(const StepTables& tables, OfBlock& common,
                                   unsigned long long* sums, index_t* status) {
    const StepTable& t = one_of_block(tables);
    const int thread = thread_of(t), lane = thread % t.tile;
    const bool refused = status[0] != 0;
    const float rate = common.rate;
    // A full history has been forgotten by the sweep before.
    const index_t to = t.last && *t.steps < t.capacity ? *t.steps : 0;
    if (t.last && thread == 0) {
        note_step(t.history, t.capacity, to, rate, refused);
        *t.done = to + 1;
    }
    if (refused) return;
    const index_t rows = ADAGRAD && t.rows ? t.rows : t.u[0], tiles = threads_of(t) / t.tile;
    unsigned long long my_cut = 0, my_factors = 0;
    index_t row = thread / t.tile;
    // All lanes of a warp stay until all its tiles are done.
    for (index_t first = row - row % (32 / t.tile); first < rows; first += tiles, row += tiles) {
        const bool inside = row < rows;
        const float f = PER == 1 || t.d <= t.tile
                            ? step_one<ADAGRAD, 1>(t, row, inside, lane, rate, to, status)
                            : step_one<ADAGRAD, PER>(t, row, inside, lane, rate, to, status);
        if (!inside || lane != 0 || (ADAGRAD && f < 0.0f)) continue;
        my_cut += f < 1.0f;
        my_factors += (unsigned long long)(f * 4294967296.0f);  // exact
    }
    if (my_factors || my_cut) {
        atomicAdd(&common.cut_rows, my_cut);
        atomicAdd(&common.factors, my_factors);
    }
    __syncthreads();
    if (!t.counted || threadIdx.x != 0) return;
    if (thread == 0) atomicAdd(&sums[0], (unsigned long long)t.u[0]);
    atomicAdd(&sums[1], common.cut_rows);
    atomicAdd(&sums[2], common.factors);
}

// Adam of the distinct rows.
extern "C" __global__ void step_groups(
    const __grid_constant__ StepTables tables, const float* rate, const index_t* iterations,
    float beta_1, float beta_2, unsigned long long* sums, index_t* status) {
    __shared__ OfBlock common;
    if (threadIdx.x == 0) common = {0, 0, corrected_rate(*rate, *iterations, beta_1, beta_2)};
    __syncthreads();
    step_tables<false>(tables, common, sums, status);
}

// Adagrad of the distinct rows, or of all rows. In a kernel of its own, it costs Adam no registers.
extern "C" __global__ void adagrad_groups(
    const __grid_constant__ StepTables tables, const float* rate, unsigned long long* sums,
    index_t* status) {
    __shared__ OfBlock common;
    if (threadIdx.x == 0) common = {0, 0, *rate};
    __syncthreads();
    step_tables<true>(tables, common, sums, status);
}

// Write the share of clipped rows and the mean factor, for the log; 0 if there are no rows. Write
// the first words of the status into memory of the host; one block.
extern "C" __global__ void summarize(
    const unsigned long long* sums, float* share, float* mean, const index_t* status, int words,
    index_t* seen) {
    for (int i = (int)threadIdx.x; i < words; i += (int)blockDim.x) seen[i] = status[i];
    if (this_thread() != 0) return;
    const double rows = sums[0] ? (double)sums[0] : 1.0;
    *share = (float)((double)sums[1] / rows);
    *mean = (float)((double)sums[2] / 4294967296.0 / rows);
}
