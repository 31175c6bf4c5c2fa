// What a step of DeepFM needs beside the project's operations: rows, a batch, the loss, counters.

// A number of [0, 1) for a row and a column.
__device__ inline float draw(unsigned long long seed, unsigned long long row, unsigned column) {
    unsigned long long x = seed * 0x9e3779b97f4a7c15ull + row * 64 + column;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    x = (x ^ x >> 31) * 0xd6e8feb86659fd93ull;
    return (float)(x >> 40) * (1.0f / 16777216.0f);
}

// Normal numbers, by Box and Muller.
extern "C" __global__ void fill_normal(float* w, index_t n, float std, index_t seed) {
    const index_t step = (index_t)gridDim.x * blockDim.x;
    for (index_t i = this_thread(); i < n; i += step) {
        const float u = 1.0f - draw(seed, i, 40), angle = 6.2831853f * draw(seed, i, 41);
        w[i] = std * sqrtf(-2.0f * logf(u)) * cosf(angle);
    }
}

// Rows of power-law ids, whose labels come from a planted logistic model with probabilities p.
extern "C" __global__ void make_rows(index_t seed, index_t rows, const index_t* sizes, int fields,
                                     int numbers, int* ids, float* x, float* y, float* p) {
    const index_t step = (index_t)gridDim.x * blockDim.x;
    for (index_t i = this_thread(); i < rows; i += step) {
        float logit = -1.2f;
        for (int j = 0; j < fields; ++j) {
            const index_t n = sizes[j];
            const float drawn = expf(draw(seed, i, j) * logf((float)n + 1.0f));
            index_t id = (index_t)drawn - 1;
            id = id < 0 ? 0 : id < n ? id : n - 1;
            ids[i * fields + j] = (int)id;
            const index_t hashed = ((id + 1) * (2654435761ll + 40506 * j) >> 9) % 1021;
            logit += 0.8f * (float)hashed / 1021.0f - 0.4f;
        }
        for (int k = 0; k < numbers; ++k) x[i * numbers + k] = draw(seed, i, fields + k);
        logit += x[i * numbers] - x[i * numbers + 1];
        p[i] = 1.0f / (1.0f + expf(-logit));
        y[i] = draw(seed, i, fields + numbers) < p[i] ? 1.0f : 0.0f;
    }
}

// The rows position[0], ... of all rows; after the last one comes the first.
extern "C" __global__ void take_batch(const index_t* position, const int* all_ids,
                                      const float* all_x, const float* all_y, index_t rows,
                                      int batch, int fields, int numbers, int* ids, float* x,
                                      float* y) {
    const index_t step = (index_t)gridDim.x * blockDim.x;
    for (index_t b = this_thread(); b < batch; b += step) {
        const index_t row = (position[0] + b) % rows;
        for (int j = 0; j < fields; ++j) ids[b * fields + j] = all_ids[row * fields + j];
        for (int k = 0; k < numbers; ++k) x[b * numbers + k] = all_x[row * numbers + k];
        y[b] = all_y[row];
    }
}

__device__ inline float logit_of(index_t i, const float* products, const float* bias,
                                 const float* first, const float* second) {
    return products[i] + bias[0] + first[i] + second[i];
}

// The sums of two numbers over the threads of a block, for all of them.
__device__ void sum_block(double* a, double* b) {
    __shared__ double of_a[256], of_b[256];
    of_a[threadIdx.x] = *a;
    of_b[threadIdx.x] = *b;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if ((int)threadIdx.x < half) {
            of_a[threadIdx.x] += of_a[threadIdx.x + half];
            of_b[threadIdx.x] += of_b[threadIdx.x + half];
        }
        __syncthreads();
    }
    *a = of_a[0];
    *b = of_b[0];
}

// Mean binary cross-entropy: gradient of each logit, and sums of losses and gradients by block.
extern "C" __global__ void click_loss(const float* products, const float* bias, const float* first,
                                      const float* second, const float* y, int batch, float* dz,
                                      double* partial) {
    const index_t i = this_thread();
    double loss = 0.0, gradient = 0.0;
    if (i < batch) {
        const float z = logit_of(i, products, bias, first, second);
        const float e = expf(-fabsf(z));
        loss = (double)((z > 0.0f ? z : 0.0f) - z * y[i] + log1pf(e));
        const float p = z >= 0.0f ? 1.0f / (1.0f + e) : e / (1.0f + e);
        dz[i] = (p - y[i]) / (float)batch;
        gradient = (double)dz[i];
    }
    sum_block(&loss, &gradient);
    if (threadIdx.x != 0) return;
    partial[2 * blockIdx.x] = loss;
    partial[2 * blockIdx.x + 1] = gradient;
}

// One block: adds the sums. The losses go into a sum over all steps.
extern "C" __global__ void join_loss(const double* partial, int blocks, double* loss,
                                     float* of_bias) {
    double losses = 0.0, gradients = 0.0;
    for (int k = (int)threadIdx.x; k < blocks; k += 256) {
        losses += partial[2 * k];
        gradients += partial[2 * k + 1];
    }
    sum_block(&losses, &gradients);
    if (threadIdx.x != 0) return;
    loss[0] += losses;
    of_bias[0] = (float)gradients;
}

// The counters of the next step; `count`, `done` and so on are null for lazy updates.
extern "C" __global__ void next_step(index_t* count, const index_t* done, index_t* wide_count,
                                     const index_t* wide_done, index_t* iterations,
                                     index_t* position, int batch, index_t rows) {
    if (this_thread() != 0) return;
    if (count) count[0] = done[0];
    if (wide_count) wide_count[0] = wide_done[0];
    iterations[0] += 1;
    position[0] = (position[0] + batch) % rows;
}

// The logits of a batch at its place among all rows; next_part moves on to the next one.
extern "C" __global__ void scores(const float* products, const float* bias, const float* first,
                                  const float* second, const index_t* position, index_t rows,
                                  int batch, float* z) {
    const index_t i = this_thread(), at = position[0] + i;
    if (i < batch && at < rows) z[at] = logit_of(i, products, bias, first, second);
}

extern "C" __global__ void next_part(index_t* position, int batch) {
    if (this_thread() == 0) position[0] += batch;
}

// Whether a kernel reaches memory of the host at its own address.
extern "C" __global__ void write_host(index_t* at, int n) {
    const index_t i = this_thread();
    if (i < n) at[i] = 1000 + i;
}
