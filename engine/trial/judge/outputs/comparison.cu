// The moments of an expected output, the errors of an output beside it, and what is infinite or NaN in one of them, in one pass each.
// Compiled for one pair of types, OUTPUT and EXPECTED; with FINITE_ONLY, elements that are not finite in both do not count; with TO_FLOAT,
// the expected elements rounded to float are compared where the output is finite, instead of the output's. With ONLY, one of the kernels
// is compiled: 1, moments; 2, errors; 3, unlike. Needs no header.
//
// A thread takes TILE elements at a time, and its neighbour the neighbouring ones: without vector loads, which would need an alignment,
// a warp reads whole sectors, and a tile is in flight at once. A block leaves a row of three doubles. The host joins the rows.

constexpr int THREADS = 256, TILE = 8, BLOCKS_PER_UNIT = 4;
constexpr double LARGEST = 1.7976931348623157e308;
typedef unsigned long long Count;

struct Half { unsigned short bits; };
struct Bfloat { unsigned short bits; };
struct Moments { double count, mean, squares; };                // squares: the sum of (x - mean)^2
struct Errors { double squares, largest, scaled; };
struct Unlike { double hidden, exposed, different; };           // elements finite in the output only; in the expected one only; not finite alike

__device__ inline double wide(double value) { return value; }
__device__ inline double wide(float value) { return value; }
__device__ inline double wide(Bfloat value) { return __uint_as_float((unsigned)value.bits << 16); }
__device__ inline double wide(Half value) {
    const unsigned rest = value.bits & 0x7FFFu;                 // 2^112 brings the exponent, also a subnormal one, from half to float
    const double size = rest < 0x7C00u ? __uint_as_float(rest << 13) * 5192296858534827628530496329220096.0f
                                       : __uint_as_float(rest << 13 | 0x7F800000u);
    return value.bits & 0x8000u ? -size : size;
}
__device__ inline bool is_finite(double value) { return fabs(value) <= LARGEST; }
template <class Output> __device__ inline double compared(Output output, double right) {
    const double mine = wide(output);
    if (!TO_FLOAT) return mine;
    return is_finite(mine) ? (double)(float)right : mine - mine;    // of infinities and NaN that is NaN
}
__device__ inline double larger(double one, double other) { return other > one || other != other ? other : one; }   // NaN if either is

// As accurate as a second pass with the mean (Chan, Golub and LeVeque, 1979): sums of squares alone lose the spread of numbers far from 0.
__device__ inline Moments joined(Moments a, Moments b) {
    if (a.count == 0) return b;
    if (b.count == 0) return a;
    const double count = a.count + b.count, share = b.count / count, apart = b.mean - a.mean;
    return {count, a.mean + apart * share, a.squares + b.squares + apart * apart * a.count * share};
}
__device__ inline Errors joined(Errors a, Errors b) {
    return {a.squares + b.squares, larger(a.largest, b.largest), larger(a.scaled, b.scaled)};
}
__device__ inline Unlike joined(Unlike a, Unlike b) {
    return {a.hidden + b.hidden, a.exposed + b.exposed, a.different + b.different};
}
template <class Row> __device__ void leave(Row mine, Row* rows) {
    __shared__ Row parts[THREADS];
    parts[threadIdx.x] = mine;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half) parts[threadIdx.x] = joined(parts[threadIdx.x], parts[threadIdx.x + half]);
    }
    if (threadIdx.x == 0) rows[blockIdx.x] = parts[0];
}

#if !defined(ONLY) || ONLY == 1
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_UNIT)
moments(const OUTPUT* output, const EXPECTED* expected, Count count, Moments* rows) {
    Moments mine = {0, 0, 0};
    for (Count start = (Count)blockIdx.x * THREADS * TILE + threadIdx.x; start < count; start += (Count)gridDim.x * THREADS * TILE) {
        double values[TILE], sum = 0, squares = 0;
        bool kept[TILE];
        int number = 0;
#pragma unroll
        for (int i = 0; i < TILE; ++i) {
            const Count at = start + i * THREADS;
            kept[i] = at < count;
            values[i] = kept[i] ? wide(expected[at]) : 0;
            if (FINITE_ONLY && kept[i]) kept[i] = is_finite(values[i]) && is_finite(compared(output[at], values[i]));
        }
#pragma unroll
        for (int i = 0; i < TILE; ++i) sum += kept[i] ? values[i] : 0, number += kept[i];
        const double mean = number ? sum / number : 0;
#pragma unroll
        for (int i = 0; i < TILE; ++i) squares += kept[i] ? (values[i] - mean) * (values[i] - mean) : 0;
        mine = joined(mine, Moments{(double)number, mean, squares});
    }
    leave(mine, rows);
}
#endif

#if !defined(ONLY) || ONLY == 2
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_UNIT)
errors(const OUTPUT* output, const EXPECTED* expected, Count count, double unit, Errors* rows) {
    Errors mine = {0, 0, 0};
    for (Count start = (Count)blockIdx.x * THREADS * TILE + threadIdx.x; start < count; start += (Count)gridDim.x * THREADS * TILE) {
        double found[TILE], right[TILE];
#pragma unroll
        for (int i = 0; i < TILE; ++i) {                        // what does not count is 0 in both
            const Count at = start + i * THREADS;
            right[i] = at < count ? wide(expected[at]) : 0;
            found[i] = at < count ? compared(output[at], right[i]) : 0;
            if (FINITE_ONLY && !(is_finite(found[i]) && is_finite(right[i]))) found[i] = right[i] = 0;
        }
#pragma unroll
        for (int i = 0; i < TILE; ++i) {
            const double error = fabs(found[i] - right[i]), scale = fabs(right[i]) + unit;
            mine.squares += error * error;
            mine.largest = larger(mine.largest, error);
            // A product in place of most quotients. Infinite and NaN errors always take the quotient.
            if (!(error <= mine.scaled * scale) || error > LARGEST) mine.scaled = larger(mine.scaled, error / scale);
        }
    }
    leave(mine, rows);
}
#endif

#if !defined(ONLY) || ONLY == 3
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_UNIT)
unlike(const OUTPUT* output, const EXPECTED* expected, Count count, Unlike* rows) {
    Unlike mine = {0, 0, 0};
    for (Count start = (Count)blockIdx.x * THREADS * TILE + threadIdx.x; start < count; start += (Count)gridDim.x * THREADS * TILE) {
        double found[TILE], right[TILE];
#pragma unroll
        for (int i = 0; i < TILE; ++i) {
            const Count at = start + i * THREADS;
            found[i] = at < count ? wide(output[at]) : 0;
            right[i] = at < count ? wide(expected[at]) : 0;
        }
#pragma unroll
        for (int i = 0; i < TILE; ++i) {
            const bool here = is_finite(found[i]), there = is_finite(right[i]), both_nan = found[i] != found[i] && right[i] != right[i];
            mine.hidden += here && !there;
            mine.exposed += there && !here;
            mine.different += !(found[i] == right[i] || both_nan || (here && there));
        }
    }
    leave(mine, rows);
}
#endif
