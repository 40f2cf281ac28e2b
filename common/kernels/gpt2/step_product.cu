// step_product.cu - the GEMVs of a decode step: chooses the kernel.
//
// The rest is in step_product.cuh.
#include "common/kernels/gpt2/step_product.cuh"

// How many rows of the weights a warp processes. Few make many blocks, and every SM should have one; many save blocks
// from reading the same input again, which matters if rows are long or blocks process several tiles.
static int rows_per_warp(const StepGemv& p) {
    const int sms = device_attribute(cudaDevAttrMultiProcessorCount);
    const GemvPlan four = plan_step(p, 4);
    if (p.rows == 1 && 3 * four.tiles >= (four.slices > 1 ? 2 : 6) * sms) return 4;
    return plan_step(p, 2).tiles >= sms ? 2 : 1;
}

template <typename T, class Out, int MAX_ROWS>
static void with_rows(const StepGemv& p) {
    const int rows = rows_per_warp(p);
    if (rows == 1) return launch_step<T, Out, MAX_ROWS, 1>(p);
    if (rows == 2) return launch_step<T, Out, MAX_ROWS, 2>(p);
    if constexpr (MAX_ROWS == 1) launch_step<T, Out, MAX_ROWS, 4>(p);
}

template <typename T, class Out>
static void with_output(const StepGemv& p) {
    if (p.rows == 1)
        with_rows<T, Out, 1>(p);
    else
        with_rows<T, Out, MAX_STEP_ROWS>(p);
}

template <typename T>
static void with_type(const StepGemv& p) {
    using Kind = StepGemv::Output;
    switch (p.output) {
        case Kind::QKV: return with_output<T, Output<T, Kind::QKV>>(p);
        case Kind::RESIDUAL: return with_output<T, Output<T, Kind::RESIDUAL>>(p);
        case Kind::GELU: return with_output<T, Output<T, Kind::GELU>>(p);
        case Kind::LOGITS: return with_output<T, Output<T, Kind::LOGITS>>(p);
    }
}

void step_gemv(const StepGemv& p) {
    for_float_type(p.type, [&]<typename T>() { with_type<T>(p); });
}

int step_blocks(const StepGemv& p) { return plan_step(p, rows_per_warp(p)).blocks; }

size_t step_shared_bytes(const StepGemv& p) { return shared_of(nullptr, p, plan_step(p, rows_per_warp(p))).bytes; }
