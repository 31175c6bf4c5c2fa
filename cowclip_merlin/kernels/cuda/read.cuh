// Read the rows of a batch. Follows replay.cuh.
//
// `fetch_rows` applies the missed steps to the distinct rows of a batch and writes the rows side by
// side. The tables stay as they are, so a refused step needs no repair. `read_batch` then writes the
// input of the hidden layers, the sum of the id weights and the second-order term of FM in one pass.

// Copy the distinct rows of a batch, after the steps that they have missed; one lane per number.
extern "C" __launch_bounds__(BLOCK, 4) __global__ void fetch_rows(
    const __grid_constant__ FetchTables tables) {
    const FetchTable& t = one_of_block(tables);
    const int d = t.d;
    const Share mine(d);
    const index_t rows = t.u[0], to = *t.steps;
    const int step = threads_of(t) / 32 * mine.rows;
    for (index_t row = thread_of(t) / 32 * mine.rows + mine.row; row < rows; row += step) {
        const index_t id = t.ids[row], from = (index_t)t.last[id];
        for (int j = mine.j; j < d; j += 32) {
            float my_w = t.w[id * d + j], my_m = t.m[id * d + j], my_v = t.v[id * d + j];
            replay(my_w, my_m, my_v, from, to, t.history, t.capacity, t.keep_m, t.keep_v,
                   t.epsilon, t.l2);
            t.row_w[row * d + j] = my_w;
            t.row_m[row * d + j] = my_m;
            t.row_v[row * d + j] = my_v;
        }
    }
}

__device__ inline float warp_sum(float x, int from) {
    for (int k = from; k < 32; k *= 2) x += __shfl_xor_sync(ALL_LANES, x, k);
    return x;
}

// One warp per row of the batch; neighboring tiles of a warp take neighboring fields.
extern "C" __launch_bounds__(BLOCK, 5) __global__ void read_batch(
    const __grid_constant__ Reading r) {
    const int lane = threadIdx.x % 32, in_tile = lane % r.tile, tiles = 32 / r.tile;
    const int d = r.d, fields = r.fields, embedded = fields * d;
    const index_t warps = (index_t)gridDim.x * blockDim.x / 32;
    for (index_t b = this_thread() / 32; b < r.batch; b += warps) {
        const word_t* slots = r.slots + b * fields;
        value_t* flat = r.flat + b * r.width;
        float pairs = 0.0f, first = 0.0f;
        for (int begin = 0; begin < d; begin += r.tile) {
            const int j = begin + in_tile;
            float sum = 0.0f, squares = 0.0f;
#pragma unroll 4
            for (int f = lane / r.tile; j < d && f < fields; f += tiles) {
                const index_t row = r.ids ? r.ids[slots[f]] : slots[f];
                const float w = r.w[row * d + j];
                flat[f * d + j] = narrow(w);
                sum += w;
                squares += w * w;
            }
            if (!r.second) continue;
            sum = warp_sum(sum, r.tile);
            squares = warp_sum(squares, r.tile);
            if (lane >= r.tile || j >= d) continue;
            r.sums[b * d + j] = sum;
            pairs += sum * sum - squares;
        }
        for (int f = lane; r.wide && f < fields; f += 32)
            first += r.wide[r.ids ? r.ids[slots[f]] : slots[f]];
        for (int k = lane; k < r.width - embedded; k += 32)
            flat[embedded + k] = narrow(k < r.numbers ? r.x[b * r.numbers + k] : 0.0f);
        pairs = warp_sum(pairs, 1);
        first = warp_sum(first, 1);
        if (lane != 0) continue;
        if (r.second) r.second[b] = 0.5f * pairs;
        if (r.wide) r.first[b] = first;
    }
}
