"""CUDA C++ of the row kernels, and its compiler options.

A tile of `TILE` neighboring lanes of a warp processes one row. Lane k holds the `PER` coordinates
k, k + TILE, ... in registers. Every sum has a fixed order, and the only atomics are an integer
minimum and maximum, so the same input gives the same bits.
"""

from __future__ import annotations

TILES = (1, 2, 4, 8, 16, 32)
SEGMENT = 128
"""Most occurrences of an id that one tile sums; more frequent ids are summed in pieces."""


def tile_of(d: int) -> int:
    """Return the lanes per row: the smallest tile for a row of length d, at most a warp.

    >>> [tile_of(d) for d in (1, 3, 16, 33, 128)]
    [1, 4, 16, 32, 32]
    """
    return next((tile for tile in TILES if tile >= d), TILES[-1])


def options(d: int, tile: int, *, bfloat16: bool = False) -> tuple[str, ...]:
    """Return the compiler options, which NVRTC and nvcc share.

    Products and sums are not fused, so each operation of Adam rounds as on the CPU.

    Args:
        d: length of a row.
        tile: lanes per row.
        bfloat16: whether gradients are bfloat16.

    >>> options(100, 32)
    ('--fmad=false', '-DTILE=32', '-DPER=4', '-DBFLOAT16=0')
    """
    per = max(1, -(-d // tile))
    return ("--fmad=false", f"-DTILE={tile}", f"-DPER={per}", f"-DBFLOAT16={int(bfloat16)}")


SOURCE = r"""
#if BFLOAT16
typedef unsigned short value_t;
__device__ inline float widen(value_t x) { return __uint_as_float((unsigned int)x << 16); }
#else
typedef float value_t;
__device__ inline float widen(value_t x) { return x; }
#endif

typedef long long index_t;  // n * d and u * d may exceed 2^31

// Equal to Clip.kernel_id in cowclip_merlin/choices.py.
enum { CLIP_NONE = 0, CLIP_COWCLIP = 1, CLIP_COLUMN = 2 };

__device__ inline index_t this_thread() {
    return (index_t)blockIdx.x * blockDim.x + threadIdx.x;
}

// Every lane of the tile gets the same bits, because both partners add the same two numbers.
__device__ inline double tile_sum(double x) {
    for (int k = TILE / 2; k > 0; k /= 2) x += __shfl_xor_sync(0xffffffffu, x, k);
    return x;
}

// Sum of squares over the row; coordinates beyond its end must be 0.
__device__ inline double tile_square(const float* x) {
    double square = 0.0;
#pragma unroll
    for (int k = 0; k < PER; ++k) square += (double)x[k] * (double)x[k];
    return tile_sum(square);
}

// Call it with whole warps, because it shuffles.
__device__ inline float row_factor(const float* g, const float* w, index_t cnt, int kind,
                                   double r, double least, double bound) {
    if (kind == CLIP_NONE) return 1.0f;
    const double norm = sqrt(tile_square(g));
    double threshold = bound;
    if (kind == CLIP_COWCLIP) {
        const double size = r * sqrt(tile_square(w));
        threshold = (double)(cnt > 1 ? cnt : 1) * (size > least ? size : least);
    }
    return norm > threshold ? (float)(threshold / norm) : 1.0f;
}

// Adam for one number, with the same operations as on the CPU.
__device__ inline void adam(float& w, float& m, float& v, float g, float alpha,
                            float keep_m, float keep_v, float epsilon) {
    m += (g - m) * keep_m;
    v += (g * g - v) * keep_v;
    w -= (m * alpha) / (sqrtf(v) + epsilon);
}

__device__ inline void mark(float x, index_t index, index_t* bad) {
    if (x - x != 0.0f) atomicMin(bad, index);  // Inf - Inf and NaN - NaN are NaN
}

// Sum one coordinate of the occurrences [begin, end), in their order; at least one occurrence.
__device__ inline float sum_of(const value_t* __restrict__ values,
                               const index_t* __restrict__ order,
                               index_t begin, index_t end, int d, int j) {
    float sum = widen(values[order[begin] * d + j]);
#pragma unroll 4
    for (index_t s = begin + 1; s < end; ++s) sum += widen(values[order[s] * d + j]);
    return sum;
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
        const float sum = sum_of(values, order, begin, end, d, j);
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
        partial[piece * d + j] = sum_of(values, order, begin, end, d, j);
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
    const double sum = tile_square(mine);  // all lanes must still run, because it shuffles
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
    const float f =
        row_factor(my_g, my_w, row < u ? cnt[row] : 1, kind, r, least, bound);
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
    const float f = row_factor(my_g, my_w, cnt, kind, r, least, bound);
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
    const float* alphas, index_t to, float keep_m, float keep_v, float epsilon, float l2) {
    const index_t i = this_thread() / d;
    if (i >= count) return;
    const index_t at = rows[i] * d + this_thread() % d;
    float my_w = w[at], my_m = m[at], my_v = v[at];
    for (index_t s = seen[i]; s < to; ++s) {
        if (alphas[s] < 0.0f) continue;  // a refused step
        adam(my_w, my_m, my_v, l2 * my_w, alphas[s], keep_m, keep_v, epsilon);
    }
    w[at] = my_w;
    m[at] = my_m;
    v[at] = my_v;
}
"""
