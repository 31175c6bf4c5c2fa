// Beside the matrix products of the hidden layers: conversions, ReLU, and its gradient. Follows
// common.cuh in a program of its own.

__device__ inline float load(const void* from, index_t i, int bfloat16) {
    if (!bfloat16) return ((const float*)from)[i];
    return from_bfloat16(((const bfloat16_t*)from)[i]);
}

__device__ inline void store(void* to, index_t i, int bfloat16, float x) {
    if (bfloat16) ((bfloat16_t*)to)[i] = to_bfloat16(x);
    else ((float*)to)[i] = x;
}

// The numbers of 16 bytes that lie together: 8 in bfloat16, 4 in float32.
struct __align__(16) Words {
    unsigned int bits[4];
};

__device__ inline float wide(bfloat16_t x) { return from_bfloat16(x); }
__device__ inline float wide(float x) { return x; }

__device__ inline void load_many(const bfloat16_t* from, float* x) {
    const Words words = *(const Words*)from;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        x[2 * k] = __uint_as_float(words.bits[k] << 16);
        x[2 * k + 1] = __uint_as_float(words.bits[k] & 0xffff0000u);
    }
}

__device__ inline void load_many(const float* from, float* x) {
    const Words words = *(const Words*)from;
#pragma unroll
    for (int k = 0; k < 4; ++k) x[k] = __uint_as_float(words.bits[k]);
}

__device__ inline void store_many(bfloat16_t* to, const float* x) {
    Words words;
#pragma unroll
    for (int k = 0; k < 4; ++k) words.bits[k] = to_bfloat16s(x[2 * k], x[2 * k + 1]);
    *(Words*)to = words;
}

__device__ inline void store_many(float* to, const float* x) {
    Words words;
#pragma unroll
    for (int k = 0; k < 4; ++k) words.bits[k] = __float_as_uint(x[k]);
    *(Words*)to = words;
}

extern "C" __global__ void copy_matrices(const __grid_constant__ CopyMatrices matrices) {
    const CopyMatrix& one = one_of_block(matrices);
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

template <class T>
__device__ inline void multiply_rows(const T* __restrict__ h, const float* __restrict__ w,
                                     float* z, index_t rows, int columns, int stride) {
    enum { MANY = 16 / sizeof(T), ROWS = 4 };  // rows that are read at once
    const int lane = (int)threadIdx.x % 32;
    const index_t step = (index_t)gridDim.x * blockDim.x / 32 * ROWS;
    for (index_t first = this_thread() / 32 * ROWS; first < rows; first += step) {
        float sum[ROWS] = {};
        for (int j = lane * MANY; j < columns; j += 32 * MANY) {
            float my_w[MANY], my_h[ROWS][MANY];
#pragma unroll
            for (int r = 0; r < ROWS; ++r)  // the last row again, if there are no more
                load_many(h + (first + r < rows ? first + r : rows - 1) * stride + j, my_h[r]);
#pragma unroll
            for (int k = 0; k < MANY; ++k) my_w[k] = j + k < columns ? w[j + k] : 0.0f;
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
#pragma unroll
                for (int k = 0; k < MANY; ++k) sum[r] += my_h[r][k] * my_w[k];
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            for (int k = 16; k > 0; k /= 2) sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], k);
            if (lane == 0 && first + r < rows) z[first + r] = sum[r];
        }
    }
}

// z = h . w of each row: h [rows, stride] has as many columns, or more, as w [columns] has numbers,
// and rows of whole 16 bytes. One warp per four rows.
extern "C" __global__ void row_products(const void* h, const float* w, float* z, index_t rows,
                                        int columns, int stride, int bfloat16) {
    if (bfloat16) multiply_rows((const bfloat16_t*)h, w, z, rows, columns, stride);
    else multiply_rows((const float*)h, w, z, rows, columns, stride);
}

// Where a gradient before a ReLU comes from: an output of one number per row; an array with as many
// columns, in 16 bytes; one with fewer columns.
enum { OF_OUTPUT, WHOLE, RAGGED };

// What `relu_gradient` reads and writes.
template <class T>
struct Relu {
    const T *g, *activation;
    T* dz;
    const float *of_output, *w;
    index_t rows;
    int g_columns, columns;
};

// The gradients of ROWS rows at distances of `step`, in the columns from j on; adds them to sums.
template <int FROM, int ROWS, class T>
__device__ inline void gradient_of_rows(const Relu<T>& r, index_t row, index_t step, int j,
                                        const float* w, float* sum, float* of_w) {
    enum { MANY = 16 / sizeof(T) };
    float h[ROWS][MANY], x[ROWS][MANY], of_row[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const index_t at = row + i * step;
        load_many(r.activation + at * r.columns + j, h[i]);
        if (FROM == OF_OUTPUT) of_row[i] = r.of_output[at];
        if (FROM == WHOLE) load_many(r.g + at * r.columns + j, x[i]);
#pragma unroll
        for (int k = 0; FROM == RAGGED && k < MANY; ++k)
            x[i][k] = j + k < r.g_columns ? wide(r.g[at * r.g_columns + j + k]) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
#pragma unroll
        for (int k = 0; k < MANY; ++k) {
            if (FROM == OF_OUTPUT) {
                x[i][k] = of_row[i] * w[k];
                of_w[k] += of_row[i] * h[i][k];
            }
            if (!(h[i][k] > 0.0f)) x[i][k] = 0.0f;
            sum[k] += x[i][k];
        }
        store_many(r.dz + (row + i * step) * r.columns + j, x[i]);
    }
}

// Add the sums of all lanes of a block to one row of partial sums, in their order.
template <int MANY>
__device__ inline void join_lanes(const float* sum, float* shared, float* partial, int columns,
                                  int lanes) {
    const int me = (int)threadIdx.x;
    __syncthreads();  // an earlier call may still be read
    for (int k = 0; k < MANY && me < lanes * (columns / MANY); ++k) shared[me * MANY + k] = sum[k];
    __syncthreads();
    for (int j = me; j < columns; j += (int)blockDim.x) {
        float all = shared[j];
        for (int lane = 1; lane < lanes; ++lane) all += shared[lane * columns + j];
        partial[(index_t)blockIdx.x * columns + j] = all;
    }
}

// A thread has 16 bytes of columns. With `lanes` > 1, so many threads of a block share columns.
template <int FROM, class T>
__device__ inline void gradient_of_block(const Relu<T>& r, float* shared, float* partial,
                                         float* partial_of_w, int lanes) {
    enum { MANY = 16 / sizeof(T) };
    const int groups = r.columns / MANY, me = (int)threadIdx.x;
    const int lane = lanes > 1 ? me / groups : 0, first = me - lane * groups;
    const index_t step = (index_t)gridDim.x * lanes;
    float sum[MANY] = {}, of_w[MANY] = {};
    for (int q = first; lane < lanes && q < groups; q += (int)blockDim.x) {
        float w[MANY];
        const int j = q * MANY;
#pragma unroll
        for (int k = 0; k < MANY; ++k) {
            sum[k] = of_w[k] = 0.0f;
            w[k] = FROM == OF_OUTPUT && j + k < r.g_columns ? r.w[j + k] : 0.0f;
        }
        index_t row = (index_t)blockIdx.x * lanes + lane;
        for (; row + step < r.rows; row += 2 * step)
            gradient_of_rows<FROM, 2>(r, row, step, j, w, sum, of_w);
        if (row < r.rows) gradient_of_rows<FROM, 1>(r, row, step, j, w, sum, of_w);
        if (lanes > 1) break;
        for (int k = 0; k < MANY; ++k) {
            const index_t at = (index_t)blockIdx.x * r.columns + j + k;
            partial[at] = sum[k];
            if (FROM == OF_OUTPUT) partial_of_w[at] = of_w[k];
        }
    }
    if (lanes == 1) return;  // all threads
    join_lanes<MANY>(sum, shared, partial, r.columns, lanes);
    if (FROM == OF_OUTPUT) join_lanes<MANY>(of_w, shared, partial_of_w, r.columns, lanes);
}

template <class T>
__device__ inline void gradient_of_type(const void* g, const void* activation, void* dz,
                                        float* partial, const float* of_output, const float* w,
                                        float* partial_of_w, index_t rows, int g_columns,
                                        int columns, int lanes, int whole, float* shared) {
    const Relu<T> r = {(const T*)g, (const T*)activation, (T*)dz, of_output, w, rows, g_columns,
                       columns};
    if (of_output) gradient_of_block<OF_OUTPUT>(r, shared, partial, partial_of_w, lanes);
    else if (whole) gradient_of_block<WHOLE>(r, shared, partial, partial_of_w, lanes);
    else gradient_of_block<RAGGED>(r, shared, partial, partial_of_w, lanes);
}

// dz = g where the activation is positive, else 0; and sums of its columns, some rows each.
// g [rows, g_columns] may have fewer columns than dz and the activations [rows, columns]; the
// rest of dz is 0. `partial` is [blocks, columns]. Rows of activations and dz have whole 16 bytes;
// g's only with `whole`, if it has as many columns and begins at 16 bytes. g may be dz.
//
// If an output w [g_columns] of one number per row follows, and `of_output` [rows] is its gradient,
// then g is of_output[row] * w. The gradient of w is summed in `partial_of_w`.
extern "C" __launch_bounds__(256, 3) __global__ void relu_gradient(
    const void* g, const void* activation, void* dz, float* partial, const float* of_output,
    const float* w, float* partial_of_w, index_t rows, int g_columns, int columns, int lanes,
    int bfloat16, int whole) {
    __shared__ float shared[256 * 8];  // sums of all lanes
    if (bfloat16)
        gradient_of_type<bfloat16_t>(g, activation, dz, partial, of_output, w, partial_of_w, rows,
                                     g_columns, columns, lanes, whole, shared);
    else
        gradient_of_type<float>(g, activation, dz, partial, of_output, w, partial_of_w, rows,
                                g_columns, columns, lanes, whole, shared);
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
