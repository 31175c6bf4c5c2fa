// Replay the steps that rows have missed. Follows group.cuh.
//
// A replay computes roots and quotients approximately: NVIDIA documents relative errors of at most
// 2^-23 and 2^-22. `tests/kernels/replay_arithmetic.py` says how far these take a weight from the
// exact replay. It ends early when the number is at rest, by the rule of
// `kernels.loops.replay.is_at_rest`.

// The history of the steps since the last flush is one array of three parts: the rate of each step,
// which is negative if the step was refused [capacity]; and of the steps before each step, the
// largest rate [capacity + 1], and how many were refused [capacity + 1]. A largest rate of 0 is
// unknown: the CPU, which has only the first part, made the steps.
enum { CHECK_EVERY = 32 };

__device__ inline void note_step(float* history, index_t capacity, index_t step, float rate,
                                 bool refused) {
    float *largest = history + capacity, *refusals = largest + capacity + 1;
    const float before = step == 0 ? 1e-37f : largest[step];
    if (step == 0) refusals[0] = 0.0f;
    history[step] = refused ? -1.0f : rate;
    largest[step + 1] = before > 0.0f && !refused && rate > before ? rate : before;
    refusals[step + 1] = (step == 0 ? 0.0f : refusals[step]) + (refused ? 1.0f : 0.0f);
}

__device__ inline float fast_root(float x) {
#ifdef __CUDA_ARCH__
    float y;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return sqrtf(x);
#endif
}

__device__ inline float fast_quotient(float x, float y) {
#ifdef __CUDA_ARCH__
    return __fdividef(x, y);
#else
    return x / y;
#endif
}

// Adam of a missed step, whose only gradient is that of L2.
__device__ inline void missed_step(float& w, float& m, float& v, float alpha, float keep_m,
                                   float keep_v, float epsilon, float l2) {
    const float g = l2 * w;
    m = fmaf(g - m, keep_m, m);
    v = fmaf(fmaf(g, g, -v), keep_v, v);
    w -= fast_quotient(m * alpha, fast_root(v) + epsilon);
}

// Returns the largest rate of the steps before `to`, or 0 if a replay must not end early: unless
// |m| / sqrt(v) falls and weights near 0 do not swing, a number never rests.
__device__ inline float rate_to_rest(const float* history, index_t capacity, index_t to,
                                     float keep_m, float keep_v, float epsilon, float l2) {
    const float largest = to <= capacity ? history[capacity + to] : 0.0f;
    const bool falls = 1.0f - keep_m <= 0.999f * sqrtf(1.0f - keep_v);
    return falls && l2 * largest <= epsilon ? largest : 0.0f;
}

__device__ inline bool at_rest(float w, float m, float v, float largest, float epsilon, float l2) {
    const float lost = 1.0f / (1 << 26), small = 1e-8f;
    const float step = fabsf(m) * largest, room = fast_root(v) + epsilon;
    if (l2 == 0.0f) return step <= lost * fabsf(w) * room;
    return fabsf(w) <= small * largest && step <= small * largest * room;
}

// Replay the steps [from, to) that a number has missed: only L2, never clipped. Returns whether
// any of them was not refused.
__device__ inline bool replay(float& w, float& m, float& v, index_t from, index_t to,
                              const float* history, index_t capacity, float keep_m, float keep_v,
                              float epsilon, float l2) {
    const float largest =
        from < to ? rate_to_rest(history, capacity, to, keep_m, keep_v, epsilon, l2) : 0.0f;
    bool missed = false;
    for (index_t s = from; s < to;) {
        if (largest > 0.0f && to - s >= CHECK_EVERY &&
            at_rest(w, m, v, largest, epsilon, l2)) {
            const float* refusals = history + 2 * capacity + 1;
            const float steps = (float)(to - s) - (refusals[to] - refusals[s]);
            m *= expf(steps * log1pf(-keep_m));
            v *= expf(steps * log1pf(-keep_v));
            if (l2 != 0.0f) w = m = 0.0f;
            return missed || steps > 0.0f;
        }
        const index_t end = s + CHECK_EVERY < to ? s + CHECK_EVERY : to;
        for (; s < end; ++s) {
            const float alpha = history[s];
            if (alpha < 0.0f) continue;
            missed_step(w, m, v, alpha, keep_m, keep_v, epsilon, l2);
            missed = true;
        }
    }
    return missed;
}

__device__ inline void replay_number(const ReplayTable& table, index_t at, index_t from,
                                     index_t to) {
    float my_w = table.w[at], my_m = table.m[at], my_v = table.v[at];
    replay(my_w, my_m, my_v, from, to, table.history, table.capacity, table.keep_m,
           table.keep_v, table.epsilon, table.l2);
    table.w[at] = my_w;
    table.m[at] = my_m;
    table.v[at] = my_v;
}

// What a lane has of the rows that its warp takes at once: coordinate j of one of them, and every
// 32nd after it. As many rows as fit, so that few lanes idle where none shuffles. Those have j = d.
struct Share {
    int rows, row, j;

    __device__ explicit Share(int d) {
        const int lane = threadIdx.x % 32;
        rows = d < 32 ? 32 / d : 1;
        row = d < 32 ? lane / d : 0;
        j = row < rows ? lane - row * d : d;
    }
};

// Returns the number of steps that the row of an id has seen, if this lane is the first to take it;
// otherwise at least `to`. It reports an id outside the table.
__device__ inline index_t take_row(const ReplayTable& table, index_t id, index_t to,
                                   index_t* status) {
    if (id < 0 || id >= table.rows) {
        refuse(status, table.slot, 1, id);
        return to;
    }
    if (!(table.last[id] < (float)to)) return to;
    // Nonnegative floats have the order of their bits.
    const int goal = __float_as_int((float)to);
    return (index_t)__int_as_float(atomicMax((int*)(table.last + id), goal));
}

// Bring the rows of these ids up to date in all tables; ids may have duplicates. Each lane checks
// one id. The first lane takes the row, and the tiles of its warp replay the rows that the lanes
// have taken.
extern "C" __launch_bounds__(BLOCK, 5) __global__ void catch_up_rows(
    const __grid_constant__ ReplayTables tables, const void* ids, int wide, index_t n, index_t* status) {
    // Vote, so that all lanes of a warp decide alike: another warp may reject an id meanwhile.
    if (__ballot_sync(ALL_LANES, status[0] != 0)) return;
    const ReplayTable& table = one_of_block(tables);
    const int lane = threadIdx.x % 32, tile = lane / table.tile, in_tile = lane % table.tile;
    const int tiles = 32 / table.tile, d = table.d;
    const index_t to = *table.steps, warps = threads_of(table) / 32;
    for (index_t warp = thread_of(table) / 32; warp * 32 < n; warp += warps) {
        const index_t i = warp * 32 + lane, row = i < n ? id_at(ids, wide, i) : 0;
        const index_t seen = i < n ? take_row(table, row, to, status) : to;
        word_t taken = __ballot_sync(ALL_LANES, seen < to);
        while (taken) {
            word_t rest = taken;
            for (int k = 0; k < tile; ++k) rest &= rest - 1;
            const int source = rest ? __ffs(rest) - 1 : lane;
            const index_t mine = __shfl_sync(ALL_LANES, row, source);
            const index_t from = __shfl_sync(ALL_LANES, seen, source);
            for (int j = in_tile; rest && j < d; j += table.tile)
                replay_number(table, mine * d + j, from, to);
            for (int k = 0; k < tiles; ++k) taken &= taken - 1;
        }
    }
}

// Bring a part of the rows of each table up to date, another part in each step, so that no row
// misses many steps; one lane per number. In a flush, or if the history is full, bring all rows up
// to date and set their step count to 0. It also runs after a refused step: a row must not keep a
// count of a history that is forgotten.
extern "C" __launch_bounds__(BLOCK, 5) __global__ void sweep_rows(
    const __grid_constant__ ReplayTables tables) {
    const ReplayTable& table = one_of_block(tables);
    const int d = table.d;
    const Share mine(d);
    const index_t to = *table.steps;
    const int step = threads_of(table) / 32 * mine.rows;
    const bool whole = table.parts == 0 || to >= table.capacity;
    const index_t begin = whole ? 0 : table.rows * (to % table.parts) / table.parts;
    const index_t past = whole ? table.rows : table.rows * (to % table.parts + 1) / table.parts;
    const word_t end = (word_t)past;  // a table has at most 2^31 rows
    word_t row = (word_t)begin + thread_of(table) / 32 * mine.rows + mine.row;
    for (; row - mine.row < end; row += step) {  // all lanes of a warp stay
        const index_t from = row < end ? (index_t)table.last[row] : to;
        for (int j = mine.j; from < to && j < d; j += 32)
            replay_number(table, (index_t)row * d + j, from, to);
        __syncwarp();  // every lane has read `last`
        if (row < end && mine.j == 0) table.last[row] = whole ? 0.0f : (float)to;
    }
}
