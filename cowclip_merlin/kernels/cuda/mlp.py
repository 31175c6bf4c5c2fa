"""CUDA C++ beside the matrix products of the hidden layers: conversions, ReLU, and its gradient.

The source follows `source.COMMON_SOURCE` in a program of its own.
"""

from __future__ import annotations

MLP_SOURCE = r"""
__device__ inline float load(const void* from, index_t i, int bfloat16) {
    if (!bfloat16) return ((const float*)from)[i];
    return from_bfloat16(((const bfloat16_t*)from)[i]);
}

__device__ inline void store(void* to, index_t i, int bfloat16, float x) {
    if (bfloat16) ((bfloat16_t*)to)[i] = to_bfloat16(x);
    else ((float*)to)[i] = x;
}

// Four numbers that lie together, at an index that is a multiple of 4.
struct __align__(16) Four {
    float x[4];
};

__device__ inline Four load_four(const void* from, index_t i, int bfloat16) {
    Four four;
    if (bfloat16) {
        const unsigned long long bits = *(const unsigned long long*)((const bfloat16_t*)from + i);
#pragma unroll
        for (int j = 0; j < 4; ++j)
            four.x[j] = from_bfloat16((bfloat16_t)(bits >> 16 * j));
    } else {
        four = *(const Four*)((const float*)from + i);
    }
    return four;
}

__device__ inline void store_four(void* to, index_t i, int bfloat16, const Four& four) {
    if (bfloat16) {
        unsigned long long bits = 0;
#pragma unroll
        for (int j = 0; j < 4; ++j) bits |= (unsigned long long)to_bfloat16(four.x[j]) << 16 * j;
        *(unsigned long long*)((bfloat16_t*)to + i) = bits;
    } else {
        *(Four*)((float*)to + i) = four;
    }
}

// A matrix to be copied to another type or shape, with some blocks of the launch. What is beyond
// the source is 0. Equal to `CopyMatrix` in row_ops/mlp/engine.h.
struct Matrix {
    const void* from;
    void* to;
    index_t from_rows, from_columns, from_stride, to_rows, to_columns;
    int from_bfloat16, to_bfloat16;
    int first_block, blocks;
};

enum { MOST_MATRICES = 32 };
struct Matrices {
    int count;
    Matrix of[MOST_MATRICES];
};

extern "C" __global__ void copy_matrices(const __grid_constant__ Matrices matrices) {
    const Matrix& one = one_of_block(matrices);
    const index_t size = one.to_rows * one.to_columns;
    for (index_t i = thread_of(one); i < size; i += threads_of(one)) {
        const index_t row = i / one.to_columns, column = i - row * one.to_columns;
        const bool inside = row < one.from_rows && column < one.from_columns;
        const index_t at = row * one.from_stride + column;
        store(one.to, i, one.to_bfloat16, inside ? load(one.from, at, one.from_bfloat16) : 0.0f);
    }
}

// z = relu(z + bias) for z [rows, columns], rounded after the sum.
extern "C" __global__ void add_bias_relu(void* z, const void* bias, index_t rows, int columns,
                                         int bfloat16) {
    const index_t size = rows * columns, step = (index_t)gridDim.x * blockDim.x;
    for (index_t i = this_thread(); i < size; i += step) {
        const float x = load(z, i, bfloat16) + load(bias, i % columns, bfloat16);
        store(z, i, bfloat16, x > 0.0f || x != x ? x : 0.0f);
    }
}

// z = h . w of each row: h [rows, stride] has as many columns, or more, as w [columns] has numbers.
// One warp per row.
extern "C" __global__ void row_products(const void* h, const float* w, float* z, index_t rows,
                                        int columns, int stride, int bfloat16) {
    const int lane = (int)threadIdx.x % 32;
    const index_t warps = (index_t)gridDim.x * blockDim.x / 32;
    for (index_t row = this_thread() / 32; row < rows; row += warps) {
        float sum = 0.0f;
#pragma unroll 4
        for (int j = lane; j < columns; j += 32) sum += load(h, row * stride + j, bfloat16) * w[j];
        for (int k = 16; k > 0; k /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, k);
        if (lane == 0) z[row] = sum;
    }
}

// dz = g where the activation is positive, else 0; and sums of its columns, some rows each.
// g [rows, g_columns] may have fewer columns than dz and the activations [rows, columns]; the
// rest of dz is 0. `partial` is [blocks * lanes, columns]. Columns are taken in fours; g's only
// with `in_fours`, if it has as many columns and begins at 16 bytes. g may be dz.
//
// If an output w [g_columns] of one number per row follows, and `of_output` [rows] is its gradient,
// then g is of_output[row] * w. The gradient of w is summed in `partial_of_w`.
extern "C" __global__ void relu_gradient(const void* g, const void* activation, void* dz,
                                         float* partial, const float* of_output, const float* w,
                                         float* partial_of_w, index_t rows, int g_columns,
                                         int columns, int lanes, int bfloat16, int in_fours) {
    const int groups = columns / 4, me = (int)threadIdx.x;
    const int lane = lanes > 1 ? me / groups : 0;
    if (lane >= lanes) return;
    const index_t chunks = (index_t)gridDim.x * lanes;
    const index_t chunk = (index_t)blockIdx.x * lanes + lane;
    for (int q = lanes > 1 ? me - lane * groups : me; q < groups; q += (int)blockDim.x) {
        const Four zeros = {{0.0f, 0.0f, 0.0f, 0.0f}};
        Four sum = zeros, of_w = zeros, my_w = zeros;
#pragma unroll
        for (int j = 0; j < 4; ++j)
            if (of_output && 4 * q + j < g_columns) my_w.x[j] = w[4 * q + j];
        for (index_t row = chunk; row < rows; row += chunks) {
            const index_t at = row * columns + 4 * q;
            const Four h = load_four(activation, at, bfloat16);
            const float of_row = of_output ? of_output[row] : 0.0f;
            Four x = zeros;
            if (in_fours) x = load_four(g, at, bfloat16);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                if (of_output) x.x[j] = of_row * my_w.x[j];
                else if (!in_fours && 4 * q + j < g_columns)
                    x.x[j] = load(g, row * g_columns + 4 * q + j, bfloat16);
                if (!(h.x[j] > 0.0f)) x.x[j] = 0.0f;
                sum.x[j] += x.x[j];
                of_w.x[j] += of_row * h.x[j];
            }
            store_four(dz, at, bfloat16, x);
        }
        store_four(partial, chunk * columns + 4 * q, 0, sum);
        if (of_output) store_four(partial_of_w, chunk * columns + 4 * q, 0, of_w);
        if (lanes > 1) break;
    }
}

// The sums over all rows, [columns]; one block for 8 columns, in a fixed order.
extern "C" __global__ void join_bias(const float* partial, float* bias, int parts, int columns) {
    __shared__ float sums[256];
    const int me = (int)threadIdx.x, lane = me / 8, column = (int)blockIdx.x * 8 + me % 8;
    float sum = 0.0f;
    for (int part = lane; part < parts && column < columns; part += 32)
        sum += partial[(index_t)part * columns + column];
    sums[me] = sum;
    __syncthreads();
    for (int half = 128; half >= 8; half /= 2) {
        if (me < half) sums[me] += sums[me + half];
        __syncthreads();
    }
    if (me < 8 && column < columns) bias[column] = sums[me];
}
"""
