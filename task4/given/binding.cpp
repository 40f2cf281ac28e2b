// binding.cpp - checks the arguments of flash_attention and of its stages, and registers them as operators. You don't
// need to change anything here.
#include <optional>
#include <tuple>

#include "common/cuda/attention_binding.h"
#include "task4/given/flash_attention.h"
#include "task4/given/stages.h"

namespace {

Tensor flash_attention(const Tensor& query, const Tensor& key, const Tensor& value, bool causal,
                       std::optional<double> scale, bool lower_right) {
    check_query_key_value(query, key, value);
    const int64_t batch_heads = query.size(0) * query.size(1);
    const int64_t S_q = query.size(2), S_k = key.size(2), head_dim = query.size(3);
    check(head_dim <= MAX_HEAD_DIM, "query has head_dim = ", head_dim, "; it must be 1 .. ", MAX_HEAD_DIM);
    const float factor = attention_scale(scale, head_dim);
    const int64_t diagonal = lower_right ? S_k - S_q : 0;  // with causal, query i sees the keys j <= i + diagonal

    DeviceScope device(query);
    Tensor out = new_output(query, "out", {query.size(0), query.size(1), query.size(2), query.size(3)});
    custom_flash_attention(data<float>(query), data<float>(key), data<float>(value), data<float>(out),
                           batch_heads, S_q, S_k, static_cast<int>(head_dim), factor, causal, diagonal,
                           current_stream(query));
    return out;
}

// The stages: one tile each, of the sizes in stages.h.

template <typename Run>
void check_stage_is_there(Run* run) {
    check(run != nullptr, "flash_attention.cu does not include task4/given/stages.cuh, which runs its stages alone");
}

// x [rows, cols], or [rows] for cols = 0
void check_stage(const Tensor& x, const char* name, int64_t rows, int64_t cols) {
    if (cols)
        check_tensor(x, name, {"rows", "cols"});
    else
        check_tensor(x, name, {"rows"});
    check(x.size(0) == rows && (!cols || x.size(1) == cols), name, " has shape ", shape_of(x), "; it must be [", rows,
          cols ? ", " + std::to_string(cols) : std::string(), "]");
}

// The sizes of a stage that reads or writes only part of a tile.
void check_part(int64_t rows, int64_t most, int64_t head_dim) {
    check(rows >= 1 && rows <= most, "rows_left is ", rows, "; it must be 1 .. ", most);
    check(head_dim >= 1 && head_dim <= STAGE_DIM, "head_dim is ", head_dim, "; it must be 1 .. ", STAGE_DIM);
}

Tensor load_stage(const Tensor& source, double factor) {
    check_stage_is_there(&run_load_stage);
    check_tensor(source, "source", {"rows_left", "head_dim"});
    const int64_t rows_left = source.size(0), head_dim = source.size(1);
    check_part(rows_left, STAGE_KEYS, head_dim);
    DeviceScope device(source);
    Tensor tile = new_output(source, "tile", {STAGE_KEYS, STAGE_DIM});
    run_load_stage(data<float>(source), data<float>(tile), rows_left, static_cast<int>(head_dim),
                   static_cast<float>(factor), current_stream(source));
    return tile;
}

Tensor scores_stage(const Tensor& q, const Tensor& k) {
    check_stage_is_there(&run_scores_stage);
    check_stage(q, "q", STAGE_ROWS, STAGE_DIM);
    check_stage(k, "k", STAGE_KEYS, STAGE_DIM);
    DeviceScope device(q);
    Tensor s = new_output(q, "s", {STAGE_ROWS, STAGE_KEYS});
    run_scores_stage(data<float>(q), data<float>(k), data<float>(s), current_stream(q));
    return s;
}

Tensor mask_stage(const Tensor& s, int64_t keys_left, int64_t diagonal) {
    check_stage_is_there(&run_mask_stage);
    check_stage(s, "s", STAGE_ROWS, STAGE_KEYS);
    DeviceScope device(s);
    Tensor masked = new_output(s, "masked", {STAGE_ROWS, STAGE_KEYS});
    run_mask_stage(data<float>(s), data<float>(masked), static_cast<int>(keys_left), static_cast<int>(diagonal),
                   current_stream(s));
    return masked;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> softmax_stage(const Tensor& s, const Tensor& m, const Tensor& l,
                                                         const Tensor& o) {
    check_stage_is_there(&run_softmax_stage);
    check_stage(s, "s", STAGE_ROWS, STAGE_KEYS);
    check_stage(m, "m", STAGE_ROWS, 0);
    check_stage(l, "l", STAGE_ROWS, 0);
    check_stage(o, "o", STAGE_ROWS, STAGE_DIM);
    DeviceScope device(s);
    Tensor p = new_output(s, "p", {STAGE_ROWS, STAGE_KEYS});
    Tensor new_m = new_output(s, "new_m", {STAGE_ROWS});
    Tensor new_l = new_output(s, "new_l", {STAGE_ROWS});
    Tensor new_o = new_output(s, "new_o", {STAGE_ROWS, STAGE_DIM});
    run_softmax_stage(data<float>(s), data<float>(m), data<float>(l), data<float>(o), data<float>(p),
                      data<float>(new_m), data<float>(new_l), data<float>(new_o), current_stream(s));
    return {p, new_m, new_l, new_o};
}

Tensor output_stage(const Tensor& p, const Tensor& v, const Tensor& o) {
    check_stage_is_there(&run_output_stage);
    check_stage(p, "p", STAGE_ROWS, STAGE_KEYS);
    check_stage(v, "v", STAGE_KEYS, STAGE_DIM);
    check_stage(o, "o", STAGE_ROWS, STAGE_DIM);
    DeviceScope device(p);
    Tensor sum = new_output(p, "sum", {STAGE_ROWS, STAGE_DIM});
    run_output_stage(data<float>(p), data<float>(v), data<float>(o), data<float>(sum), current_stream(p));
    return sum;
}

Tensor store_stage(const Tensor& o, const Tensor& l, int64_t rows_left, int64_t head_dim) {
    check_stage_is_there(&run_store_stage);
    check_stage(o, "o", STAGE_ROWS, STAGE_DIM);
    check_stage(l, "l", STAGE_ROWS, 32);
    check_part(rows_left, STAGE_ROWS, head_dim);
    DeviceScope device(o);
    Tensor out = new_output(o, "out", {rows_left, head_dim});
    run_store_stage(data<float>(o), data<float>(l), data<float>(out), rows_left, static_cast<int>(head_dim),
                    current_stream(o));
    return out;
}

}  // namespace

TASK_OPERATORS(m) {
    m.def(
        "flash_attention(Tensor query, Tensor key, Tensor value, bool causal, float? scale=None, "
        "bool lower_right=False) -> Tensor");
    m.def("load_stage(Tensor source, float factor) -> Tensor");
    m.def("scores_stage(Tensor q, Tensor k) -> Tensor");
    m.def("mask_stage(Tensor s, int keys_left, int diagonal) -> Tensor");
    m.def("softmax_stage(Tensor s, Tensor m, Tensor l, Tensor o) -> (Tensor, Tensor, Tensor, Tensor)");
    m.def("output_stage(Tensor p, Tensor v, Tensor o) -> Tensor");
    m.def("store_stage(Tensor o, Tensor l, int rows_left, int head_dim) -> Tensor");
}

TASK_KERNELS(m) {
    m.impl("flash_attention", TORCH_BOX(&flash_attention));
    m.impl("load_stage", TORCH_BOX(&load_stage));
    m.impl("scores_stage", TORCH_BOX(&scores_stage));
    m.impl("mask_stage", TORCH_BOX(&mask_stage));
    m.impl("softmax_stage", TORCH_BOX(&softmax_stage));
    m.impl("output_stage", TORCH_BOX(&output_stage));
    m.impl("store_stage", TORCH_BOX(&store_stage));
}
