// One recurrent layer over ragged rows: LSTM, GRU or RNN, in one or two directions, in float32.
//
// A cluster of blocks computes ROWS rows from their first to their last timestep. The recurrent weights stay in
// registers: each unit has 16 lanes (SLICES), and each lane holds every 16th group of four columns of the unit's gates.
// A step multiplies them by the hidden state in shared memory, adds the partial sums over the lanes, and sends each new
// value to all blocks of the cluster. A block waits on a barrier in its own memory until all values have arrived.
// Rows do not wait for longer rows of other clusters.
//
// The method is that of persistent RNNs (Diamos et al., ICML 2016), with clusters in place of the whole device.
//
// The host defines CELL, HIDDEN, PADDED (HIDDEN rounded up to 64), UNITS (of a block), CLUSTER, ROWS and ROWS_AT_ONCE.

enum Cell { LSTM, GRU, RNN_TANH, RNN_RELU };

constexpr int SLICES = 16;
constexpr int GATES = CELL == LSTM ? 4 : CELL == GRU ? 3 : 1;
constexpr int COLUMN_GROUPS = PADDED / 64;
constexpr int ROW_LANES = SLICES / ROWS_AT_ONCE;
constexpr int PARTS = ROWS / ROWS_AT_ONCE;
constexpr int ROW_VALUES = GATES == 1 ? 1 : 4;  // a power of two, for the sums over lanes
constexpr int VALUES = ROWS_AT_ONCE * ROW_VALUES;
constexpr int THREADS = UNITS * SLICES;
[[maybe_unused]] constexpr int USED_BLOCKS = (HIDDEN + UNITS - 1) / UNITS;  // of a cluster; others have no unit
constexpr unsigned WARP = 0xffffffffu;

__device__ __forceinline__ unsigned shared_address(const void *own) {
    return static_cast<unsigned>(__cvta_generic_to_shared(own));
}

__device__ __forceinline__ unsigned address_in(int rank, const void *own) {
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(own)), "r"(rank));
    return there;
}

// Stores a value in the memory of a block of the cluster, and counts its bytes on the barrier there.
__device__ __forceinline__ void send(int rank, const float *own, const unsigned long long *barrier, float value) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
                     address_in(rank, own)),
                 "r"(__float_as_uint(value)), "r"(address_in(rank, barrier))
                 : "memory");
}

__device__ __forceinline__ void expect(const unsigned long long *barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void wait_for_bytes(const unsigned long long *barrier, int parity) {
    unsigned done;
    do {
        asm volatile(
            "{\n"
            ".reg .pred complete;\n"
            "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 complete, [%1], %2;\n"
            "selp.u32 %0, 1, 0, complete;\n"
            "}"
            : "=r"(done)
            : "r"(shared_address(barrier)), "r"(parity)
            : "memory");
    } while (!done);
}

// 1 / (1 + 2^x), to about 2^-22.
__device__ __forceinline__ float logistic(float x) {
    float power, result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(1.0f + power));
    return result;
}

__device__ __forceinline__ float sigmoid(float x) { return logistic(-1.4426950409f * x); }

__device__ __forceinline__ float tanh_of(float x) { return fmaf(2.0f, logistic(-2.8853900818f * x), -1.0f); }

// Adds up values over the 16 lanes of a unit. The sum of value v is returned in the lanes l with l * VALUES / 16 == v.
__device__ __forceinline__ float sum_over_lanes(float (&values)[VALUES], int slice) {
    int count = VALUES;
#pragma unroll
    for (int offset = SLICES / 2; offset; offset /= 2) {
        if (count > 1) {
            count /= 2;
            const bool upper = slice & offset;
#pragma unroll
            for (int i = 0; i < VALUES / 2; i++) {
                if (i >= count) break;
                const float sent = upper ? values[i] : values[i + count];
                const float kept = upper ? values[i + count] : values[i];
                values[i] = kept + __shfl_xor_sync(WARP, sent, offset);
            }
        } else {
            values[0] += __shfl_xor_sync(WARP, values[0], offset);
        }
    }
    return values[0];
}

__device__ __forceinline__ float of_gate(float value, int gate) {
    return __shfl_sync(WARP, value, ROW_LANES * gate / 4, ROW_LANES);
}

// gates[B, T, D, GATES * H] are the products of the inputs, with biases; w_hh[D, GATES * H, H]; b_hn[D, H] is the
// recurrent bias of a GRU's candidate; lengths[B] may be null. y[B, T, D * H] is written at real timesteps only, and
// h_n[D, B, H] and c_n[D, B, H] for rows with at least one.
extern "C" __global__ void
#if CLUSTER > 1
__cluster_dims__(CLUSTER, 1, 1)
#endif
__launch_bounds__(THREADS, 512 / THREADS)
recurrence(const float *__restrict__ gates, const float *__restrict__ w_hh, const float *__restrict__ b_hn,
           const long long *__restrict__ lengths, const float *__restrict__ h_0, const float *__restrict__ c_0,
           float *__restrict__ y, float *__restrict__ h_n, float *__restrict__ c_n, int batch, int time) {
    __shared__ __align__(16) float states[2][ROWS][PADDED];  // of the step before and of this one, in turns
    const int first = blockIdx.y * ROWS, direction = blockIdx.z, directions = gridDim.z;
    const int slice = threadIdx.x % SLICES, unit = blockIdx.x * UNITS + threadIdx.x / SLICES;
    const bool is_unit = unit < HIDDEN;
    const int row_lane = slice % ROW_LANES, gate = row_lane * ROW_VALUES / ROW_LANES;

    float4 weights[GATES][COLUMN_GROUPS];
#pragma unroll
    for (int g = 0; g < GATES; g++) {
        const float *row = w_hh + (static_cast<size_t>(direction * GATES + g) * HIDDEN + unit) * HIDDEN;
#pragma unroll
        for (int group = 0; group < COLUMN_GROUPS; group++) {
            const int k = group * 64 + slice * 4;
            weights[g][group].x = is_unit && k < HIDDEN ? row[k] : 0.0f;
            weights[g][group].y = is_unit && k + 1 < HIDDEN ? row[k + 1] : 0.0f;
            weights[g][group].z = is_unit && k + 2 < HIDDEN ? row[k + 2] : 0.0f;
            weights[g][group].w = is_unit && k + 3 < HIDDEN ? row[k + 3] : 0.0f;
        }
    }
    for (int i = threadIdx.x; i < ROWS * PADDED; i += THREADS) {
        const int row = first + i / PADDED, k = i % PADDED;
        const bool is_state = row < batch && k < HIDDEN;
        states[0][i / PADDED][k] = is_state ? h_0[(static_cast<size_t>(direction) * batch + row) * HIDDEN + k] : 0.0f;
        states[1][i / PADDED][k] = 0.0f;
    }
    int longest = 0;
    for (int row = first; row < first + ROWS && row < batch; row++)
        longest = max(longest, lengths ? static_cast<int>(lengths[row]) : time);

    // This lane's gate of its row, in each part of the rows.
    int length[PARTS];
    const float *inputs[PARTS];
    float cell[PARTS], hidden[PARTS], input[PARTS];
    const int input_step = directions * GATES * HIDDEN;
    [[maybe_unused]] const float candidate_bias = CELL == GRU && is_unit ? b_hn[direction * HIDDEN + unit] : 0.0f;
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        const int row = first + part * ROWS_AT_ONCE + slice / ROW_LANES;
        const bool is_row = row < batch && is_unit;
        const size_t own = (static_cast<size_t>(direction) * batch + row) * HIDDEN + unit;
        length[part] = !is_row ? 0 : lengths ? static_cast<int>(lengths[row]) : time;
        inputs[part] =
            gates + (static_cast<size_t>(row) * time * directions + direction) * GATES * HIDDEN + gate * HIDDEN + unit;
        hidden[part] = is_row ? h_0[own] : 0.0f;
        cell[part] = CELL == LSTM && is_row ? c_0[own] : 0.0f;
        const int at = direction ? length[part] - 1 : 0;
        input[part] = length[part] > 0 && gate < GATES ? inputs[part][static_cast<size_t>(at) * input_step] : 0.0f;
    }
#if CLUSTER > 1
    __shared__ unsigned long long barriers[2];
    constexpr int BYTES = ROWS * HIDDEN * 4;  // of a step
    if (threadIdx.x == 0) {
        for (unsigned long long &barrier : barriers)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&barrier)) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        for (unsigned long long &barrier : barriers) expect(&barrier, BYTES);
    }
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    // No warp waits for a warp without units, so it could fall behind by more than one use of a barrier. It returns.
    if constexpr (CLUSTER * UNITS >= HIDDEN + 2)
        if (blockIdx.x * UNITS + threadIdx.x / 32 * 2 >= HIDDEN) return;
#else
    __syncthreads();
#endif

    for (int step = 0; step < longest; step++) {
        const int now = step & 1;
#if CLUSTER > 1
        // Each warp sends other values, so each can send those of the next step only after all have sent those of
        // this one. So no value arrives in memory that is still read, and none of the next use of a barrier before the
        // end of this one.
        if (step) {
            wait_for_bytes(&barriers[now], ((step - 1) >> 1) & 1);
            if (threadIdx.x == 0) expect(&barriers[now], BYTES);
        }
        __syncwarp();
#endif
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            float sums[VALUES];
#pragma unroll
            for (float &sum : sums) sum = 0.0f;
#pragma unroll
            for (int group = 0; group < COLUMN_GROUPS; group++) {
#pragma unroll
                for (int row = 0; row < ROWS_AT_ONCE; row++) {
                    const float4 h = *reinterpret_cast<const float4 *>(
                        &states[now][part * ROWS_AT_ONCE + row][group * 64 + slice * 4]);
#pragma unroll
                    for (int g = 0; g < GATES; g++) {
                        float &sum = sums[row * ROW_VALUES + g];
                        sum = fmaf(weights[g][group].x, h.x, sum);
                        sum = fmaf(weights[g][group].y, h.y, sum);
                        sum = fmaf(weights[g][group].z, h.z, sum);
                        sum = fmaf(weights[g][group].w, h.w, sum);
                    }
                }
            }
            const float product = sum_over_lanes(sums, slice);
            if constexpr (CELL == LSTM) {
                // sigmoid(x), and tanh(x) = 2 sigmoid(2 x) - 1 for the candidate, without a branch.
                const float scale = gate == 2 ? 2.0f : 1.0f;
                const float opened = fmaf(scale, sigmoid(scale * (product + input[part])), 1.0f - scale);
                const float in = of_gate(opened, 0), keep = of_gate(opened, 1), out = of_gate(opened, 3);
                cell[part] = fmaf(keep, cell[part], in * of_gate(opened, 2));
                hidden[part] = out * tanh_of(cell[part]);
            } else if constexpr (CELL == GRU) {
                const float opened = sigmoid(product + input[part]);
                const float reset = of_gate(opened, 0), update = of_gate(opened, 1);
                const float recurrent = of_gate(product, 2) + candidate_bias;
                const float candidate = tanh_of(fmaf(reset, recurrent, of_gate(input[part], 2)));
                hidden[part] = fmaf(update, hidden[part] - candidate, candidate);
            } else {
                const float sum = product + input[part];
                hidden[part] = CELL == RNN_TANH ? tanh_of(sum) : sum < 0.0f ? 0.0f : sum;
            }
            float *own = &states[1 - now][part * ROWS_AT_ONCE + slice / ROW_LANES][unit];
#if CLUSTER > 1
            if (is_unit && step + 1 < longest)
#pragma unroll
                for (int rank = row_lane; rank < USED_BLOCKS; rank += ROW_LANES)
                    send(rank, own, &barriers[1 - now], hidden[part]);
#else
            if (is_unit && row_lane == 0) *own = hidden[part];
#endif
        }
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            const int row = first + part * ROWS_AT_ONCE + slice / ROW_LANES, last = length[part] - 1;
            if (step > last) continue;
            if (row_lane == 0) {
                const int at = direction ? last - step : step;
                y[(static_cast<size_t>(row) * time + at) * directions * HIDDEN + direction * HIDDEN + unit] =
                    hidden[part];
                if (step == last) {
                    const size_t own = (static_cast<size_t>(direction) * batch + row) * HIDDEN + unit;
                    h_n[own] = hidden[part];
                    if (CELL == LSTM) c_n[own] = cell[part];
                }
            }
            if (step < last && gate < GATES)
                input[part] = inputs[part][static_cast<size_t>(direction ? last - 1 - step : step + 1) * input_step];
        }
#if CLUSTER == 1
        __syncthreads();
#endif
    }
}
