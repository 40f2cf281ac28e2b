// fixed_point.cu - sums that count their addends (common/kernels/gpt2/fixed_point.cuh): a CTA adds, one addend by each
// thread, and looks at the word before and behind. Host code knows what must be found.
#include <cmath>
#include <cstdio>
#include <vector>

#include "common/cuda/check.h"
#include "common/kernels/gpt2/fixed_point.cuh"

struct Found {
    long long came;
    bool whole, number, whole_with_one_more;
};

// before, in two words: whatever; x [addends]
__global__ void add_up(fixed_point::Scale scale, fixed_point::Sum* words, const float* x, Found* found) {
    const unsigned addends = blockDim.x;
    const ulonglong2 before = fixed_point::load_pair(words);
    __syncthreads();
    fixed_point::add(words, fixed_point::to_fixed(scale, x[threadIdx.x]));
    __syncthreads();
    if (threadIdx.x > 0) return;
    const ulonglong2 now = fixed_point::load_pair(words);
    const long long came = fixed_point::added(now.x, before.x, addends);
    found->came = came;
    found->whole = fixed_point::complete(came);
    found->number = fixed_point::is_number(scale, came, addends);
    found->whole_with_one_more = fixed_point::complete(fixed_point::added(now.x, before.x, addends + 1));
}

static Found found_of(int room, const std::vector<float>& x) {
    fixed_point::Sum *words, host[2] = {0x123456789abcdef0ull, 0};
    float* addends;
    Found *found, result;
    CUDA_CHECK(cudaMalloc(&words, sizeof host));
    CUDA_CHECK(cudaMalloc(&addends, x.size() * sizeof(float)));
    CUDA_CHECK(cudaMalloc(&found, sizeof result));
    CUDA_CHECK(cudaMemcpy(words, host, sizeof host, cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaMemcpy(addends, x.data(), x.size() * sizeof(float), cudaMemcpyHostToDevice));
    add_up<<<1, static_cast<unsigned>(x.size())>>>(fixed_point::scale_for(room), words, addends, found);
    CUDA_CHECK_LAUNCH();
    CUDA_CHECK(cudaMemcpy(&result, found, sizeof result, cudaMemcpyDeviceToHost));
    CUDA_CHECK(cudaFree(words));
    CUDA_CHECK(cudaFree(addends));
    CUDA_CHECK(cudaFree(found));
    return result;
}

// The sum in float64, of addends that are rounded to units of 2^-21 at worst.
static bool sum_is(int room, const std::vector<float>& x) {
    const fixed_point::Scale scale = fixed_point::scale_for(room);
    double sum = 0.0;
    for (float one : x) sum += one;
    const Found found = found_of(room, x);
    const double off = std::fabs(static_cast<double>(found.came) * scale.down - sum);
    const double most_off = 0.5 * scale.down * static_cast<double>(x.size());
    return found.whole && found.number && !found.whole_with_one_more && off <= most_off;
}
static bool is_no_number(int room, const std::vector<float>& x) {
    const Found found = found_of(room, x);
    return found.whole && !found.number && !found.whole_with_one_more;
}

int main() {
    const float most = std::nextafter(fixed_point::LIMIT, 0.0f), wrong[] = {fixed_point::LIMIT, -1e30f, INFINITY, NAN};
    bool right = true;
    for (int room : {1, 2, 12, 15, 16, 32, 132, 255}) {
        const size_t count = static_cast<size_t>(room);
        std::vector<float> mixed(count);
        for (size_t i = 0; i < count; ++i)
            mixed[i] = 0.3f * static_cast<float>(i) - 3000.0f / static_cast<float>(i + 1);
        bool fine = sum_is(room, mixed) && sum_is(room, std::vector<float>(count, most)) &&
                    sum_is(room, std::vector<float>(count, -most)) && sum_is(room, std::vector<float>(1, -1e-7f));
        for (float bad : wrong) {
            for (float other : {most, -most}) {  // none of the others hides it, nor do many of them
                std::vector<float> one(count, other);
                one[count / 2] = bad;
                fine &= is_no_number(room, one) && is_no_number(room, std::vector<float>(count, bad));
            }
        }
        std::printf("%3d addends, units of 2^%d: %s\n", room, std::ilogb(fixed_point::scale_for(room).down),
                    fine ? "right" : "WRONG");
        right &= fine;
    }
    return right ? 0 : 1;
}
