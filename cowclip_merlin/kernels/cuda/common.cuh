// What all row kernels share. The program has shared.h before it.
//
// A tile of neighboring lanes of a warp processes one row. Lane k holds at most `PER` coordinates
// k, k + tile, ... in registers. Every sum has a fixed order, and the only atomics are an integer
// minimum and maximum, so the same input gives the same bits.

__device__ inline float from_bfloat16(bfloat16_t x) {
    return __uint_as_float((unsigned int)x << 16);
}

// Round to the nearest, ties to even, as TensorFlow does; a NaN stays one.
__device__ inline bfloat16_t to_bfloat16(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    bfloat16_t y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
#else
    const unsigned int bits = __float_as_uint(x);
    if (x != x) return (bfloat16_t)(bits >> 16 | 64u);
    return (bfloat16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
#endif
}

// Two numbers in the bits of one word.
__device__ inline unsigned int to_bfloat16s(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    unsigned int y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
#else
    return (unsigned int)to_bfloat16(high) << 16 | to_bfloat16(low);
#endif
}

// Equal to Clip.kernel_id in cowclip_merlin/choices.py.
enum { CLIP_NONE = 0, CLIP_COWCLIP = 1, CLIP_COLUMN = 2 };

__device__ inline index_t this_thread() {
    return (index_t)blockIdx.x * blockDim.x + threadIdx.x;
}

// Values in float32, and back.
#if BFLOAT16
__device__ inline float widen(value_t x) { return from_bfloat16(x); }
__device__ inline value_t narrow(float x) { return to_bfloat16(x); }
#else
__device__ inline float widen(value_t x) { return x; }
__device__ inline value_t narrow(float x) { return x; }
#endif

// A launch may serve several tables or weights, each with some blocks of it. Returns the one that
// this block is for. The list is a parameter of the kernel, passed by value.
template <class List>
__device__ inline auto one_of_block(const List& list) -> decltype((list.of[0])) {
    int k = 0;
    while (k + 1 < list.count && (int)blockIdx.x >= list.of[k + 1].first_block) ++k;
    return list.of[k];
}

// This thread's number among those of its table, and how many these are.
template <class One>
__device__ inline int thread_of(const One& one) {
    return ((int)blockIdx.x - one.first_block) * (int)blockDim.x + (int)threadIdx.x;
}
template <class One>
__device__ inline int threads_of(const One& one) {
    return one.blocks * (int)blockDim.x;
}

// Every lane of the tile gets the same bits, because both partners add the same two numbers.
__device__ inline void tile_sums(double& x, double& y, int tile) {
    for (int k = tile >> 1; k > 0; k >>= 1) {
        x += __shfl_xor_sync(0xffffffffu, x, k);
        y += __shfl_xor_sync(0xffffffffu, y, k);
    }
}

// Sum of squares of a lane's coordinates, which are exact; those beyond the row's end must be 0.
template <int MANY>
__device__ inline double lane_square(const float* x) {
    double square = 0.0;
#pragma unroll
    for (int k = 0; k < MANY; ++k) square = fma((double)x[k], (double)x[k], square);
    return square;
}

// Call it with whole warps, because it shuffles. A lane has MANY coordinates. Squares tell which
// rows are clipped, so few rows need roots and a quotient. Where squares, being rounded, decide
// otherwise than norms, the quotient rounds to 1: the result has the same bits.
template <int MANY>
__device__ inline float row_factor(const float* g, const float* w, index_t cnt, int kind,
                                   double r, double least, double bound, int tile) {
    if (kind == CLIP_NONE) return 1.0f;
    double norm = lane_square<MANY>(g), size = lane_square<MANY>(w), threshold = bound;
    const double many = (double)(cnt > 1 ? cnt : 1);
    tile_sums(norm, size, tile);
    if (kind == CLIP_COWCLIP) {
        const double square = r * r * size, floor = least * least;
        if (norm <= many * many * (square > floor ? square : floor)) return 1.0f;
        size = r * sqrt(size);
        threshold = many * (size > least ? size : least);
    } else if (norm <= bound * bound) {
        return 1.0f;
    }
    norm = sqrt(norm);
    return norm > threshold ? (float)(threshold / norm) : 1.0f;
}

// Adam for one number, with the same operations as on the CPU.
__device__ inline void adam(float& w, float& m, float& v, float g, float alpha,
                            float keep_m, float keep_v, float epsilon) {
    m += (g - m) * keep_m;
    v += (g * g - v) * keep_v;
    w -= (m * alpha) / (sqrtf(v) + epsilon);
}

// x / (sqrt(sum) + epsilon), and 0 in place of a division by 0.
__device__ inline float over_root(float x, float sum, float epsilon) {
    const float root = sqrtf(sum) + epsilon;
    return root > 0.0f ? x / root : 0.0f;
}

// Adagrad for a row, from its weights and its gradient before the factor `f` of the clip. The row
// has `width` accumulators: d, or 1, which takes the mean square. Call it with whole warps, because
// it shuffles; only lanes `inside` have a row.
template <int MANY>
__device__ inline void adagrad(float* w, float* sums, const float* my_w, float* my_g, float f,
                               bool inside, int lane, int tile, int d, int width, float rate,
                               float epsilon) {
#pragma unroll
    for (int k = 0; k < MANY; ++k) my_g[k] *= f;
    double square = lane_square<MANY>(my_g), nothing = 0.0;
    tile_sums(square, nothing, tile);
    float sum = inside ? sums[0] + (float)(square / (double)d) : 0.0f;
    __syncwarp();  // every lane has read the sum
    if (!inside) return;
    if (width == 1 && lane == 0) sums[0] = sum;
    const float scale = over_root(rate, sum, epsilon);
#pragma unroll
    for (int k = 0; k < MANY; ++k) {
        const int j = lane + k * tile;
        if (j >= d) continue;
        float step = scale * my_g[k];
        if (width > 1) {
            sum = sums[j] + my_g[k] * my_g[k];
            sums[j] = sum;
            step = over_root(rate * my_g[k], sum, epsilon);
        }
        w[j] = my_w[k] - step;
    }
}

// Sum one coordinate of the occurrences [begin, end), in their order; at least one occurrence.
template <int UNROLL, class Index>
__device__ inline float sum_of(const value_t* __restrict__ values,
                               const Index* __restrict__ order,
                               index_t begin, index_t end, int d, int j) {
    float sum = widen(values[(index_t)order[begin] * d + j]);
#pragma unroll (UNROLL)
    for (index_t s = begin + 1; s < end; ++s) sum += widen(values[(index_t)order[s] * d + j]);
    return sum;
}
