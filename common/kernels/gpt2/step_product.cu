// step_product.cu - the matrix products of a decode step: which kernel takes which.
//
// The rest is in step_product.cuh.
#include "common/kernels/gpt2/step_product.cuh"

// How many rows of the weights a warp takes. Few make many blocks, and all multiprocessors are to have one; many spare
// the blocks of reading the same input again, which counts where rows are long or blocks take one tile after another.
static int rows_per_warp(const StepProduct& p) {
    const int processors = device_attribute(cudaDevAttrMultiProcessorCount);
    const ProductPlan four = plan_step(p, 4);
    if (p.rows == 1 && 3 * four.tiles >= (four.slices > 1 ? 2 : 6) * processors) return 4;
    return plan_step(p, 2).tiles >= processors ? 2 : 1;
}

template <typename T, template <typename> class Output, int MAX_ROWS>
static void with_rows(const StepProduct& p) {
    const int rows = rows_per_warp(p);
    if (rows == 1) return launch_step<T, Output, MAX_ROWS, 1>(p);
    if (rows == 2) return launch_step<T, Output, MAX_ROWS, 2>(p);
    if constexpr (MAX_ROWS == 1) launch_step<T, Output, MAX_ROWS, 4>(p);
}

template <typename T, template <typename> class Output>
static void with_output(const StepProduct& p) {
    if (p.rows == 1)
        with_rows<T, Output, 1>(p);
    else
        with_rows<T, Output, MAX_STEP_ROWS>(p);
}

template <typename T>
static void with_type(const StepProduct& p) {
    switch (p.output) {
        case StepProduct::Output::QKV: return with_output<T, ToHeads>(p);
        case StepProduct::Output::RESIDUAL: return with_output<T, ToResidual>(p);
        case StepProduct::Output::GELU: return with_output<T, ToInner>(p);
        case StepProduct::Output::LOGITS: return with_output<T, ToLogits>(p);
    }
}

void step_product(const StepProduct& p) {
    for_float_type(p.type, [&]<typename T>() { with_type<T>(p); });
}

int step_blocks(const StepProduct& p) { return plan_step(p, rows_per_warp(p)).blocks; }

size_t step_shared_bytes(const StepProduct& p) { return shared_of(nullptr, p, plan_step(p, rows_per_warp(p))).bytes; }
