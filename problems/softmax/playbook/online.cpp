// Maximum and sum in one pass, BLOCK values at a time, and the sum so far is rescaled only when
// a block raises the maximum. The second pass writes the result; nothing is written and read back.
// @tune BLOCK = 256, 1024, 64
#include <cmath>
#include <limits>
#include "problem.h"

extern "C" void launch(const float* x, float* out, void*) {
    for (long row = 0; row < X_DIM0; ++row) {
        const float* in = x + row * X_DIM1;
        float* to = out + row * X_DIM1;
        float largest = -std::numeric_limits<float>::infinity();
        double sum = 0;
        for (long start = 0; start < X_DIM1; start += BLOCK) {
            const long end = start + BLOCK < X_DIM1 ? start + BLOCK : X_DIM1;
            float here = largest;
            for (long i = start; i < end; ++i) here = in[i] > here ? in[i] : here;
            if (here > largest) {
                sum *= std::exp(largest - here);
                largest = here;
            }
            float part = 0;
            for (long i = start; i < end; ++i) part += std::exp(in[i] - largest);
            sum += part;
        }
        const float scale = static_cast<float>(1 / sum);
        for (long i = 0; i < X_DIM1; ++i) to[i] = std::exp(in[i] - largest) * scale;
    }
}
