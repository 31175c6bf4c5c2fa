// Adam of all dense weights in one launch. Follows step.cuh.

// One step of Adam of all these weights, unless the tables have refused the step. Numbers whose
// gradient is not finite stay, and the next step is refused: fused layers turn NaN into 0 on their
// way forward, so no loss may ever show it. Another block may report such a number meanwhile, so
// one thread reads the status for its block, whose threads leave together.
extern "C" __global__ void step_weights(
    const __grid_constant__ DenseWeights weights, const float* rate, const index_t* iterations,
    const float* beta_1, const float* beta_2, float epsilon, index_t* status) {
    __shared__ float alpha;
    __shared__ bool refused;
    if (threadIdx.x == 0) {
        refused = status[0] != 0;
        alpha = corrected_rate(*rate, *iterations, *beta_1, *beta_2);
    }
    __syncthreads();
    if (refused) return;
    const float keep_m = 1.0f - *beta_1, keep_v = 1.0f - *beta_2, my_alpha = alpha;
    const DenseWeight& one = one_of_block(weights);
    const index_t threads = threads_of(one);
    for (index_t i = thread_of(one); i < one.size; i += threads) {
        const float g = one.g[i];
        if (g - g != 0.0f) {  // NaN or infinite
            status[0] = 1;
            continue;
        }
        float w = one.w[i], m = one.m[i], v = one.v[i];
        adam(w, m, v, g, my_alpha, keep_m, keep_v, epsilon);
        one.w[i] = w;
        one.m[i] = m;
        one.v[i] = v;
    }
}
