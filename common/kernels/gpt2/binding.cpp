// binding.cpp - the operators: check the arguments, allocate the outputs. README.md lists them with their shapes.
//
//   layernorm, bias_gelu, begin_text, store_heads, last_rows      of any number of rows
//   linear, linear_qkv, linear_fits                               GEMMs of a few hundred rows, on Hopper
//   step_qkv, step_residual, step_gelu, step_logits, draw_token, next_token   a decode step as kernels of a graph (gpt2.h)
//   plan_steps, run_steps                                         decode steps as one persistent kernel (step_plan.h)
//
// Floats are float32, float16 or bfloat16, all of the same type unless stated otherwise. The host does not read values
// on the device: a position outside the cache is not written.
#include <cmath>
#include <optional>
#include <tuple>

#include "common/cuda/alignment.h"
#include "common/cuda/binding.h"
#include "common/kernels/gpt2/gpt2.h"
#include "common/kernels/gpt2/step_plan.h"

namespace {

using torch::headeronly::ScalarType;

void check_vector(const Tensor& vector, const char* name, const Tensor& matrix, const char* matrix_name, int64_t dim) {
    check_tensor(vector, name, {dim == 0 ? "N" : "width"}, matrix.scalar_type());
    check_same_size(vector, name, 0, matrix, matrix_name, dim);
    check_same_device(vector, name, matrix, matrix_name);
}

void check_eps(double eps) { check(std::isfinite(eps) && eps >= 0, "eps is ", eps, "; it must be 0 or more"); }

// ---------------------------------------------------------------------------------------------- layernorm, gelu

constexpr const char* COLUMN_NUMBERS = "columns are counted by 32-bit integers";

std::tuple<Tensor, Tensor> layernorm_operator(const Tensor& x, const std::optional<Tensor>& residual,
                                              const Tensor& weight, const Tensor& bias, double eps) {
    const FloatType type = float_type(x, "x");
    check_tensor(x, "x", {"rows", "width"}, x.scalar_type());
    check_at_most(x.size(0), MAX_LAYERNORM_ROWS, "rows", x, "x", "a grid has no more blocks");
    check_at_most(x.size(1), INT32_MAX, "width", x, "x", COLUMN_NUMBERS);
    if (residual) {
        check_tensor(*residual, "residual", {"rows", "width"}, x.scalar_type());
        for (int64_t i : {0, 1}) check_same_size(*residual, "residual", i, x, "x", i);
        check_same_device(*residual, "residual", x, "x");
    }
    check_vector(weight, "weight", x, "x", 1);
    check_vector(bias, "bias", x, "x", 1);
    check_eps(eps);
    DeviceScope device(x);
    Tensor out = new_like(x, "out");
    Tensor sum = new_like(x, "sum");
    layernorm(type, x.data_ptr(), residual ? residual->data_ptr() : nullptr, weight.data_ptr(), bias.data_ptr(),
              out.data_ptr(), sum.data_ptr(), x.size(0), static_cast<int>(x.size(1)), static_cast<float>(eps),
              current_stream(x));
    return {out, sum};
}

Tensor bias_gelu_operator(const Tensor& x, const Tensor& bias) {
    const FloatType type = float_type(x, "x");
    check_tensor(x, "x", {"rows", "width"}, x.scalar_type());
    check(x.size(0) <= MAX_GELU_ELEMENTS / x.size(1), "x has shape ", shape_of(x), "; at most ", MAX_GELU_ELEMENTS,
          " elements are supported");
    check_at_most(x.size(1), INT32_MAX, "width", x, "x", COLUMN_NUMBERS);
    check_vector(bias, "bias", x, "x", 1);
    DeviceScope device(x);
    Tensor out = new_like(x, "out");
    bias_gelu(type, x.data_ptr(), bias.data_ptr(), out.data_ptr(), x.size(0), static_cast<int>(x.size(1)),
              current_stream(x));
    return out;
}

// ---------------------------------------------------------------------------------------------- prefill

void check_aligned(const Tensor& x, const char* name) {
    check(all_aligned({x.data_ptr()}), name, " begins at an address that is no multiple of 16");
}

void check_state(const Tensor& x, const char* name, int64_t rows, const Tensor& weight, const char* weight_name) {
    check_tensor(x, name, {"rows"}, ScalarType::Int);
    check(x.size(0) == rows, name, " has shape ", shape_of(x), "; rows must be ", rows);
    check_same_device(x, name, weight, weight_name);
}

// int32 host memory that the device can access.
int32_t* host_memory(const Tensor& x, const char* name, int64_t rows, int64_t columns) {
    check(x.is_cpu() && x.is_contiguous() && x.scalar_type() == ScalarType::Int, name,
          " must be a contiguous int32 tensor in the host's memory");
    check(x.numel() == rows * columns, name, " has shape ", shape_of(x), "; it must hold ", rows * columns, " numbers");
    register_with_checker(x, name, true);
    return data<int32_t>(x);
}

FloatType check_embeddings(const Tensor& wte, const Tensor& wpe) {
    const FloatType type = float_type(wte, "wte");
    check_tensor(wte, "wte", {"vocab", "width"}, wte.scalar_type());
    check_tensor(wpe, "wpe", {"context", "width"}, wte.scalar_type());
    check_same_size(wpe, "wpe", 1, wte, "wte", 1);
    check_same_device(wpe, "wpe", wte, "wte");
    return type;
}

Tensor begin_text_operator(const Tensor& host_state, const Tensor& prompts, Tensor state, const Tensor& wte,
                           const Tensor& wpe) {
    BeginText a = {};
    a.type = check_embeddings(wte, wpe);
    check(prompts.dim() == 2 && prompts.size(1) <= wpe.size(0), "prompts has shape ", shape_of(prompts),
          "; it must be [batch, seq_len] with seq_len of at most ", wpe.size(0));
    check_at_most(prompts.numel(), INT32_MAX, "batch * seq_len", prompts, "prompts", "rows are counted by 32-bit integers");
    a.state_size = state.numel();
    check_state(state, "state", a.state_size, wte, "wte");
    a.host_state = host_memory(host_state, "host_state", a.state_size, 1);
    a.prompts = host_memory(prompts, "prompts", prompts.size(0), prompts.size(1));
    DeviceScope device(wte);
    Tensor x = new_output(wte, "x", {prompts.numel(), wte.size(1)});
    a.state = data<int>(state), a.wte = wte.data_ptr(), a.wpe = wpe.data_ptr(), a.x = x.data_ptr();
    a.rows = static_cast<int>(prompts.numel()), a.seq_len = static_cast<int>(prompts.size(1));
    a.vocab = static_cast<int>(wte.size(0)), a.width = static_cast<int>(wte.size(1));
    a.stream = current_stream(wte);
    begin_text(a);
    return x;
}

Tensor store_heads_operator(const Tensor& attended, const Tensor& qkv, const std::optional<Tensor>& k_cache,
                            const std::optional<Tensor>& v_cache) {
    check_float_type(attended, "attended");
    const ScalarType dtype = attended.scalar_type();
    check_tensor(attended, "attended", {"batch", "heads", "seq_len", "head_dim"}, dtype);
    check_tensor(qkv, "qkv", {"rows", "3 width"}, dtype);
    check_same_device(qkv, "qkv", attended, "attended");
    const int64_t rows = attended.size(0) * attended.size(2), width = attended.size(1) * attended.size(3);
    check(qkv.size(0) == rows && qkv.size(1) == 3 * width, "qkv has shape ", shape_of(qkv), ", attended ",
          shape_of(attended), "; qkv must be [batch * seq_len, 3 heads head_dim]");
    check_at_most(3 * width, INT32_MAX, "3 heads head_dim", attended, "attended", COLUMN_NUMBERS);
    check(k_cache.has_value() == v_cache.has_value(), "k_cache and v_cache must both be given, or neither of them");
    StoreHeads a = {};
    if (k_cache) {
        for (const auto& [cache, name] : {std::pair<const Tensor&, const char*>{*k_cache, "k_cache"},
                                          std::pair<const Tensor&, const char*>{*v_cache, "v_cache"}}) {
            check_tensor(cache, name, {"batch", "heads", "max_seq_len", "head_dim"}, dtype);
            for (int64_t i : {0, 1, 3}) check_same_size(cache, name, i, attended, "attended", i);
            check_same_size(cache, name, 2, *k_cache, "k_cache", 2);
            check_same_device(cache, name, attended, "attended");
        }
        check(attended.size(2) <= k_cache->size(2), "attended has seq_len = ", attended.size(2), "; at most ",
              k_cache->size(2), " fit into the cache of a sequence");
        a.k_cache = k_cache->data_ptr(), a.v_cache = v_cache->data_ptr();
        a.qkv = qkv.data_ptr();
        a.max_seq_len = static_cast<int>(k_cache->size(2));
    }
    DeviceScope device(attended);
    Tensor out = new_output(attended, "out", {rows, width});
    a.attended = attended.data_ptr();
    a.out = out.data_ptr();
    a.batch = static_cast<int>(attended.size(0)), a.heads = static_cast<int>(attended.size(1));
    a.seq_len = static_cast<int>(attended.size(2)), a.head_dim = static_cast<int>(attended.size(3));
    a.element_bytes = static_cast<int>(attended.element_size());
    a.stream = current_stream(attended);
    store_heads(a);
    return out;
}

Tensor last_rows_operator(const Tensor& x, const Tensor& heads, const Tensor& positions, const Tensor& head,
                          const Tensor& residual) {
    LastRows a = {};
    a.type = float_type(x, "x");
    check_tensor(x, "x", {"batch * seq_len", "width"}, x.scalar_type());
    check_tensor(heads, "heads", {"batch * seq_len", "width"}, x.scalar_type());
    check_tensor(residual, "residual", {"batch", "width"});
    check_tensor(head, "head", {"vocab", "width"}, x.scalar_type());
    check_state(positions, "positions", residual.size(0), x, "x");
    for (int64_t i : {0, 1}) check_same_size(heads, "heads", i, x, "x", i);
    check_same_size(residual, "residual", 1, x, "x", 1);
    check_same_device(heads, "heads", x, "x");
    check_same_device(residual, "residual", x, "x");
    check_same_device(head, "head", x, "x");
    check(x.size(0) % residual.size(0) == 0, "x has shape ", shape_of(x), " and residual ", shape_of(residual),
          "; the rows of x must be a multiple of residual's");
    check_at_most(x.size(0), INT32_MAX, "batch * seq_len", x, "x", "rows are counted by 32-bit integers");
    check_at_most(x.size(1), INT32_MAX, "width", x, "x", COLUMN_NUMBERS);
    DeviceScope device(x);
    Tensor out = new_output(x, "out", {residual.size(0), x.size(1)});
    a.x = x.data_ptr(), a.heads = heads.data_ptr(), a.positions = data<int>(positions);
    a.residual = data<float>(residual), a.out = out.data_ptr();
    a.fetched = head.data_ptr(), a.fetched_bytes = head.numel() * static_cast<int64_t>(head.element_size());
    a.batch = static_cast<int>(residual.size(0)), a.width = static_cast<int>(x.size(1));
    a.seq_len = static_cast<int>(x.size(0)) / a.batch;
    a.stream = current_stream(x);
    last_rows(a);
    return out;
}

// x @ weight^T + bias; the caller sets the output.
Linear linear_of(const Tensor& x, const Tensor& weight, const Tensor& bias) {
    Linear a = {};
    a.type = float_type(weight, "weight");
    check_tensor(weight, "weight", {"N", "K"}, weight.scalar_type());
    check_tensor(x, "x", {"rows", "K"}, weight.scalar_type());
    check_same_size(x, "x", 1, weight, "weight", 1);
    check_same_device(x, "x", weight, "weight");
    check_vector(bias, "bias", weight, "weight", 0);
    check(linear_fits(a.type, x.size(0), weight.size(0), weight.size(1)), "x has shape ", shape_of(x), " and weight ",
          shape_of(weight), "; there is no kernel for them here: see linear_fits");
    a.M = static_cast<int>(x.size(0)), a.N = static_cast<int>(weight.size(0)), a.K = static_cast<int>(weight.size(1));
    a.x = x.data_ptr(), a.weight = weight.data_ptr(), a.bias = bias.data_ptr();
    a.seq_len = a.M;
    a.stream = current_stream(x);
    return a;
}

void run_linear(const Linear& a) {
    check(linear(a), "x and weight must begin at multiples of 16 bytes; one of them doesn't");
}

Tensor linear_operator(const Tensor& x, const Tensor& weight, const Tensor& bias, bool gelu) {
    DeviceScope device(x);
    Linear a = linear_of(x, weight, bias);
    Tensor y = new_output(x, "y", {x.size(0), weight.size(0)});
    a.gelu = gelu;
    a.y[0] = y.data_ptr(), a.strides[0] = {0, 0, a.N}, a.part_columns = a.head_dim = a.N;
    run_linear(a);
    return y;
}

Tensor linear_qkv_operator(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& k_cache,
                           const Tensor& v_cache) {
    DeviceScope device(x);
    Linear a = linear_of(x, weight, bias);
    for (const auto& [cache, name] : {std::pair<const Tensor&, const char*>{k_cache, "k_cache"},
                                      std::pair<const Tensor&, const char*>{v_cache, "v_cache"}}) {
        check_tensor(cache, name, {"batch", "heads", "max_seq_len", "head_dim"}, x.scalar_type());
        for (int64_t i = 0; i < 4; ++i) check_same_size(cache, name, i, k_cache, "k_cache", i);
        check_same_device(cache, name, x, "x");
        check_aligned(cache, name);
    }
    const int64_t batch = k_cache.size(0), heads = k_cache.size(1), slots = k_cache.size(2), head_dim = k_cache.size(3);
    check(weight.size(0) == 3 * heads * head_dim, "weight has shape ", shape_of(weight), " and k_cache ",
          shape_of(k_cache), "; weight must be [3 heads head_dim, K]");
    check(head_dim % 8 == 0, "k_cache has head_dim = ", head_dim, "; it must be a multiple of 8");
    check(x.size(0) % batch == 0 && x.size(0) / batch <= slots, "x has shape ", shape_of(x), " and k_cache ",
          shape_of(k_cache), "; x must be [batch * seq_len, K] with seq_len of at most ", slots);
    const int64_t seq_len = x.size(0) / batch;
    Tensor query = new_output(x, "query", {x.size(0), heads * head_dim});
    a.seq_len = static_cast<int>(seq_len), a.head_dim = static_cast<int>(head_dim), a.part_columns = a.N / 3;
    a.y[0] = query.data_ptr(), a.y[1] = k_cache.data_ptr(), a.y[2] = v_cache.data_ptr();
    a.strides[0] = {seq_len * heads * head_dim, head_dim, heads * head_dim};
    a.strides[1] = a.strides[2] = {heads * slots * head_dim, slots * head_dim, head_dim};
    run_linear(a);
    return query;
}

bool linear_fits_operator(const Tensor& x, const Tensor& weight) {
    const FloatType type = float_type(weight, "weight");
    check_tensor(weight, "weight", {"N", "K"}, weight.scalar_type());
    check_tensor(x, "x", {"rows", "K"}, weight.scalar_type());
    DeviceScope device(x);
    return linear_fits(type, x.size(0), weight.size(0), weight.size(1));
}

// ------------------------------------------------------------------------------------------------ decode step

// Sets a GEMV's sizes and weights; the caller sets its input and output.
StepGemv gemv_of(const Tensor& weight, int64_t rows, StepGemv::Output output) {
    StepGemv p = {};
    p.type = float_type(weight, "weight");
    check_tensor(weight, "weight", {"N", "K"}, weight.scalar_type());
    check(rows >= 1 && rows <= MAX_STEP_ROWS, "rows is ", rows, "; a step takes 1 .. ", MAX_STEP_ROWS, " sequences");
    const int64_t unit = 16 / static_cast<int64_t>(weight.element_size());
    check(weight.size(1) % unit == 0, "weight has shape ", shape_of(weight), "; K must be a multiple of ", unit);
    p.output = output;
    p.rows = static_cast<int>(rows);
    p.n = static_cast<int>(weight.size(0));
    p.k = static_cast<int>(weight.size(1));
    p.weight = weight.data_ptr();
    return p;
}

const float* per_output(const Tensor& vector, const char* name, const Tensor& weight) {
    check_tensor(vector, name, {"N"});
    check_same_size(vector, name, 0, weight, "weight", 0);
    check_same_device(vector, name, weight, "weight");
    return data<float>(vector);
}

void set_normalized_input(StepGemv& p, const Tensor& residual, const Tensor& norm_weight, const Tensor& weight_sum,
                          double eps, const Tensor& weight) {
    check_tensor(residual, "residual", {"rows", "K"});
    check_same_size(residual, "residual", 1, weight, "weight", 1);
    check_same_device(residual, "residual", weight, "weight");
    check_aligned(residual, "residual");
    check_vector(norm_weight, "norm_weight", weight, "weight", 1);
    p.weight_sum = per_output(weight_sum, "weight_sum", weight);
    check_eps(eps);
    p.residual = data<float>(residual);
    p.norm_weight = norm_weight.data_ptr();
    p.eps = static_cast<float>(eps);
}

void check_output(const Tensor& out, const char* name, const StepGemv& p, const Tensor& weight, ScalarType dtype) {
    check_tensor(out, name, {"rows", "N"}, dtype);
    check(out.size(0) == p.rows, name, " has shape ", shape_of(out), "; rows must be ", p.rows);
    check_same_size(out, name, 1, weight, "weight", 0);
    check_same_device(out, name, weight, "weight");
}

void run(StepGemv& p, const Tensor& weight, bool early) {
    check_aligned(weight, "weight");
    check(step_shared_bytes(p) <= MAX_STEP_SHARED, "weight has shape ", shape_of(weight), " and there are ", p.rows,
          " rows; so much input does not fit into ", static_cast<int64_t>(MAX_STEP_SHARED),
          " bytes of shared memory: use fewer rows");
    p.early = early;
    DeviceScope device(weight);
    p.stream = current_stream(weight);
    step_gemv(p);
}

void step_qkv(const Tensor& residual, const Tensor& norm_weight, const Tensor& weight_sum, double eps,
              const Tensor& weight, const Tensor& bias, const Tensor& positions, Tensor query, Tensor k_cache,
              Tensor v_cache, bool early) {
    StepGemv p = gemv_of(weight, residual.dim() ? residual.size(0) : 0, StepGemv::Output::QKV);
    set_normalized_input(p, residual, norm_weight, weight_sum, eps, weight);
    p.bias = per_output(bias, "bias", weight);
    check_state(positions, "positions", p.rows, weight, "weight");
    check_tensor(query, "query", {"rows", "heads", "1", "head_dim"}, weight.scalar_type());
    check_same_device(query, "query", weight, "weight");
    check(query.size(0) == p.rows && query.size(2) == 1 && 3 * query.size(1) * query.size(3) == weight.size(0),
          "query has shape ", shape_of(query), ", weight ", shape_of(weight), ", and there are ", p.rows,
          " rows; it must be [rows, heads, 1, head_dim] with 3 heads head_dim = N");
    for (const auto& [cache, name] : {std::pair<const Tensor&, const char*>{k_cache, "k_cache"},
                                      std::pair<const Tensor&, const char*>{v_cache, "v_cache"}}) {
        check_tensor(cache, name, {"rows", "heads", "max_seq_len", "head_dim"}, weight.scalar_type());
        for (int64_t i : {0, 1, 3}) check_same_size(cache, name, i, query, "query", i);
        check_same_size(cache, name, 2, k_cache, "k_cache", 2);
        check_same_device(cache, name, weight, "weight");
    }
    p.positions = data<int32_t>(positions);
    p.out = query.data_ptr();
    p.k_cache = k_cache.data_ptr();
    p.v_cache = v_cache.data_ptr();
    p.head_dim = static_cast<int>(query.size(3));
    p.max_seq_len = static_cast<int>(k_cache.size(2));
    run(p, weight, early);
}

void step_residual(const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor residual, bool early) {
    StepGemv p = gemv_of(weight, x.dim() ? x.size(0) : 0, StepGemv::Output::RESIDUAL);
    check_tensor(x, "x", {"rows", "K"}, weight.scalar_type());
    check_same_size(x, "x", 1, weight, "weight", 1);
    check_same_device(x, "x", weight, "weight");
    check_aligned(x, "x");
    p.bias = per_output(bias, "bias", weight);
    check_output(residual, "residual", p, weight, ScalarType::Float);
    p.x = x.data_ptr();
    p.residual = data<float>(residual);
    run(p, weight, early);
}

void step_gelu(const Tensor& residual, const Tensor& norm_weight, const Tensor& weight_sum, double eps,
               const Tensor& weight, const Tensor& bias, Tensor out, bool early) {
    StepGemv p = gemv_of(weight, residual.dim() ? residual.size(0) : 0, StepGemv::Output::GELU);
    set_normalized_input(p, residual, norm_weight, weight_sum, eps, weight);
    p.bias = per_output(bias, "bias", weight);
    check_output(out, "out", p, weight, weight.scalar_type());
    p.out = out.data_ptr();
    run(p, weight, early);
}

void step_logits(const Tensor& residual, const Tensor& norm_weight, const Tensor& weight_sum, double eps,
                 const Tensor& weight, const Tensor& bias, Tensor logits, Tensor best, bool early) {
    StepGemv p = gemv_of(weight, residual.dim() ? residual.size(0) : 0, StepGemv::Output::LOGITS);
    set_normalized_input(p, residual, norm_weight, weight_sum, eps, weight);
    p.bias = per_output(bias, "bias", weight);
    check_output(logits, "logits", p, weight, ScalarType::Float);
    check_tensor(best, "best", {"rows", "blocks"}, ScalarType::Long);
    check(best.size(0) == p.rows && best.size(1) == step_blocks(p), "best has shape ", shape_of(best),
          "; it must be [", p.rows, ", ", step_blocks(p), "]");
    check_same_device(best, "best", weight, "weight");
    p.out = logits.data_ptr();
    p.best = static_cast<Best*>(best.data_ptr());
    run(p, weight, early);
}

int64_t step_blocks_operator(const Tensor& weight, int64_t rows) {
    const StepGemv p = gemv_of(weight, rows, StepGemv::Output::LOGITS);
    DeviceScope device(weight);
    return step_blocks(p);
}

bool step_fits(const Tensor& weight, int64_t rows, bool norm) {
    const int64_t unit = 16 / static_cast<int64_t>(weight.element_size());
    if (rows > MAX_STEP_ROWS || weight.size(1) % unit != 0) return false;
    StepGemv p = gemv_of(weight, rows, StepGemv::Output::LOGITS);
    if (norm) p.norm_weight = p.weight;
    DeviceScope device(weight);
    return step_shared_bytes(p) <= MAX_STEP_SHARED;
}

// Sets the generation state and output history of NextToken or Steps. `row` is a tensor of [rows, ...].
template <typename Arguments>
void take_texts(Arguments& a, const Tensor& stop, Tensor finished, Tensor steps, Tensor positions, Tensor lengths,
                Tensor history, const Tensor& row, const char* row_name, const Tensor& wte) {
    const int64_t rows = row.size(0);
    check_state(stop, "stop", 1, wte, "wte");
    check_state(finished, "finished", rows, wte, "wte");
    check_state(steps, "steps", rows, wte, "wte");
    check_state(positions, "positions", rows, wte, "wte");
    check_state(lengths, "lengths", rows, wte, "wte");
    check_tensor(history, "history", {"steps", "rows"}, ScalarType::Int);
    check_same_size(history, "history", 1, row, row_name, 0);
    check_same_device(history, "history", wte, "wte");
    a.stop = data<int32_t>(stop);
    a.finished = data<int32_t>(finished);
    a.steps = data<int32_t>(steps);
    a.positions = data<int32_t>(positions);
    a.lengths = data<int32_t>(lengths);
    a.history = data<int32_t>(history);
    a.history_steps = static_cast<int>(history.size(0));
}

void next_token_operator(const std::optional<Tensor>& best, const std::optional<Tensor>& tokens, const Tensor& stop,
                         Tensor finished, Tensor steps, Tensor positions, Tensor lengths, Tensor history,
                         const Tensor& wte, const Tensor& wpe, Tensor residual, bool early,
                         const std::optional<Tensor>& arrived) {
    NextToken a = {};
    a.type = check_embeddings(wte, wpe);
    check_tensor(residual, "residual", {"rows", "width"});
    check_same_size(residual, "residual", 1, wte, "wte", 1);
    check_same_device(residual, "residual", wte, "wte");
    const int64_t rows = residual.size(0);
    check(best.has_value() != tokens.has_value(), "one of best and tokens must be given, and not both");
    if (best) {
        check_tensor(*best, "best", {"rows", "blocks"}, ScalarType::Long);
        check_same_size(*best, "best", 0, residual, "residual", 0);
        check_same_device(*best, "best", wte, "wte");
        a.best = static_cast<const Best*>(best->data_ptr());
        a.blocks = static_cast<int>(best->size(1));
    } else {
        check_tensor(*tokens, "tokens", {"rows"}, ScalarType::Long);
        check_same_size(*tokens, "tokens", 0, residual, "residual", 0);
        check_same_device(*tokens, "tokens", wte, "wte");
        a.tokens = data<int64_t>(*tokens);
    }
    take_texts(a, stop, finished, steps, positions, lengths, history, residual, "residual", wte);
    if (arrived) a.arrived = host_memory(*arrived, "arrived", history.size(0), rows);
    a.rows = static_cast<int>(rows);
    a.width = static_cast<int>(wte.size(1));
    a.vocab = static_cast<int>(wte.size(0));
    a.context = static_cast<int>(wpe.size(0));
    a.wte = wte.data_ptr();
    a.wpe = wpe.data_ptr();
    a.residual = data<float>(residual);
    a.early = early;
    DeviceScope device(wte);
    a.stream = current_stream(wte);
    next_token(a);
}

bool draw_fits_operator(const Tensor& logits) {
    check_tensor(logits, "logits", {"rows", "vocab"});
    DeviceScope device(logits);
    return draw_fits(static_cast<int>(logits.size(1)));
}

// Sets uniforms [history_steps, rows] and the sampling settings of DrawToken or Steps.
template <typename Arguments>
void take_draw(Arguments& a, const Tensor& uniforms, const Tensor& temperature, const Tensor& top_k,
               const Tensor& top_p) {
    check_tensor(uniforms, "uniforms", {"steps", "rows"}, ScalarType::Double);
    const auto setting = [&](const Tensor& x, const char* name, ScalarType dtype) {
        check_tensor(x, name, {"size"}, dtype);
        check(x.size(0) == 1, name, " has shape ", shape_of(x), "; it must be [1]");
        check_same_device(x, name, uniforms, "uniforms");
    };
    setting(temperature, "temperature", ScalarType::Double);
    setting(top_k, "top_k", ScalarType::Long);
    setting(top_p, "top_p", ScalarType::Double);
    a.uniforms = data<double>(uniforms);
    a.temperature = data<double>(temperature);
    a.top_k = data<int64_t>(top_k);
    a.top_p = data<double>(top_p);
}

void draw_token_operator(const Tensor& logits, const Tensor& best, const Tensor& steps, const Tensor& uniforms,
                         const Tensor& temperature, const Tensor& top_k, const Tensor& top_p, Tensor tokens) {
    DrawToken a = {};
    check(draw_fits_operator(logits), "there is no kernel that draws from ", logits.size(1),
          " logits on this GPU; see draw_fits");
    check_tensor(best, "best", {"rows", "blocks"}, ScalarType::Long);
    check_state(steps, "steps", logits.size(0), logits, "logits");
    check_tensor(tokens, "tokens", {"rows"}, ScalarType::Long);
    take_draw(a, uniforms, temperature, top_k, top_p);
    check_same_size(uniforms, "uniforms", 1, logits, "logits", 0);
    for (const auto& [x, name] : {std::pair<const Tensor&, const char*>{best, "best"},
                                  std::pair<const Tensor&, const char*>{tokens, "tokens"}})
        check_same_size(x, name, 0, logits, "logits", 0), check_same_device(x, name, logits, "logits");
    check_same_device(uniforms, "uniforms", logits, "logits");
    a.rows = static_cast<int>(logits.size(0)), a.vocab = static_cast<int>(logits.size(1));
    a.logits = data<float>(logits);
    a.best = static_cast<const Best*>(best.data_ptr()), a.blocks = static_cast<int>(best.size(1));
    a.steps = data<int32_t>(steps);
    a.history_steps = static_cast<int>(uniforms.size(0));
    a.tokens = data<int64_t>(tokens);
    DeviceScope device(logits);
    a.stream = current_stream(logits);
    draw_token(a);
}

// ------------------------------------------------------------------------------------------ the persistent kernel

StepModel model_of(const Tensor& wte, int64_t layers, int64_t heads, int64_t hidden, int64_t rows, int64_t max_seq_len,
                   bool sampled) {
    StepModel model = {};
    model.type = float_type(wte, "wte");
    check_tensor(wte, "wte", {"vocab", "width"}, wte.scalar_type());
    const std::pair<int64_t, const char*> sizes[] = {{layers, "layers"}, {heads, "heads"}, {hidden, "hidden"},
                                                     {rows, "rows"}, {max_seq_len, "max_seq_len"}};
    for (const auto& [size, name] : sizes) check_between(size, 1, 1 << 24, name);
    model.layers = static_cast<int>(layers);
    model.width = static_cast<int>(wte.size(1));
    model.heads = static_cast<int>(heads);
    model.hidden = static_cast<int>(hidden);
    model.vocab = static_cast<int>(wte.size(0));
    model.rows = static_cast<int>(rows);
    model.max_seq_len = static_cast<int>(max_seq_len);
    model.sampled = sampled;
    return model;
}

StepPlan plan_of(const StepModel& model, int64_t max_ctas) {
    check_between(max_ctas, 0, 1 << 16, "max_ctas");
    return plan_steps(model, static_cast<int>(max_ctas));
}

std::tuple<int64_t, int64_t, int64_t, int64_t> plan_steps_operator(const Tensor& wte, int64_t layers, int64_t heads,
                                                                   int64_t hidden, int64_t rows, int64_t max_seq_len,
                                                                   bool sampled, int64_t max_ctas) {
    const StepModel model = model_of(wte, layers, heads, hidden, rows, max_seq_len, sampled);
    DeviceScope device(wte);
    const StepPlan plan = plan_of(model, max_ctas);
    if (!plan.fits) return {0, 0, 0, 0};
    return {plan.ctas, static_cast<int64_t>(plan.weight_bytes), plan.vectors, plan.workspace};
}

// Checks a vector whose size the plan determines.
void check_planned(const Tensor& x, const char* name, ScalarType dtype, int64_t size, const Tensor& wte) {
    check_tensor(x, name, {"size"}, dtype);
    check(x.size(0) == size, name, " has shape ", shape_of(x), "; for this model it must be [", size, "]");
    check_same_device(x, name, wte, "wte");
    check_aligned(x, name);
}

// Either all four are given, or none.
void take_sampling(Steps& a, const std::optional<Tensor>& uniforms, const std::optional<Tensor>& temperature,
                   const std::optional<Tensor>& top_k, const std::optional<Tensor>& top_p, const Tensor& history,
                   const Tensor& wte) {
    if (!uniforms) return;
    check(a.logits != nullptr, "uniforms are given, but no logits; drawing needs both");
    take_draw(a, *uniforms, *temperature, *top_k, *top_p);
    for (int64_t i : {0, 1}) check_same_size(*uniforms, "uniforms", i, history, "history", i);
    check_same_device(*uniforms, "uniforms", wte, "wte");
}

void run_steps_operator(const Tensor& weights, const Tensor& vectors, const Tensor& wte, const Tensor& wpe,
                        Tensor cache, Tensor workspace, const std::optional<Tensor>& logits, Tensor positions,
                        Tensor lengths, Tensor steps, Tensor finished, const Tensor& stop, Tensor history,
                        Tensor arrived, const Tensor& cancel, double eps, int64_t hidden, int64_t count, int64_t first_flag,
                        bool first, const std::optional<Tensor>& uniforms, const std::optional<Tensor>& temperature,
                        const std::optional<Tensor>& top_k, const std::optional<Tensor>& top_p,
                        int64_t max_ctas) {
    Steps a = {};
    float_type(wte, "wte");
    check(uniforms.has_value() == temperature.has_value() && uniforms.has_value() == top_k.has_value() &&
              uniforms.has_value() == top_p.has_value(),
          "uniforms, temperature, top_k and top_p must all be given, or none of them");
    check_tensor(cache, "cache", {"layers", "2", "batch", "heads", "max_seq_len", "head_dim"}, wte.scalar_type());
    check_same_device(cache, "cache", wte, "wte");
    check_aligned(cache, "cache");
    const int64_t rows = positions.dim() == 1 ? positions.size(0) : 0;
    a.model = model_of(wte, cache.size(0), cache.size(3), hidden, rows, cache.size(4), uniforms.has_value());
    check(cache.size(1) == 2 && cache.size(3) * cache.size(5) == a.model.width && rows <= cache.size(2),
          "cache has shape ", shape_of(cache), ", wte ", shape_of(wte), ", and there are ", rows,
          " rows; it must be [layers, 2, batch, heads, max_seq_len, head_dim] with heads head_dim = width and rows <= "
          "batch");
    DeviceScope device(wte);
    a.plan = plan_of(a.model, max_ctas);
    check(a.plan.fits, "there is no persistent kernel for a model of width ", a.model.width, " with ", rows,
          " rows on this GPU; see plan_steps");
    check_tensor(weights, "weights", {"chunks", "bytes"}, ScalarType::Byte);
    const int64_t chunks = static_cast<int64_t>(a.plan.weight_bytes) / CHUNK_BYTES;
    check(weights.size(0) == chunks && weights.size(1) == CHUNK_BYTES, "weights has shape ", shape_of(weights),
          "; for this model it must be [", chunks, ", ", CHUNK_BYTES, "]");
    check_same_device(weights, "weights", wte, "wte");
    check_aligned(weights, "weights");
    check_planned(vectors, "vectors", ScalarType::Float, a.plan.vectors, wte);
    check_planned(workspace, "workspace", ScalarType::Long, a.plan.workspace, wte);
    check_tensor(wpe, "wpe", {"context", "width"}, wte.scalar_type());
    check_same_size(wpe, "wpe", 1, wte, "wte", 1);
    check_same_device(wpe, "wpe", wte, "wte");
    check_aligned(wte, "wte");
    check_aligned(wpe, "wpe");
    if (logits) {
        check_tensor(*logits, "logits", {"rows", "vocab"});
        check_same_size(*logits, "logits", 0, positions, "positions", 0);
        check_same_size(*logits, "logits", 1, wte, "wte", 0);
        check_same_device(*logits, "logits", wte, "wte");
        a.logits = data<float>(*logits);
    }
    take_texts(a, stop, finished, steps, positions, lengths, history, positions, "positions", wte);
    take_sampling(a, uniforms, temperature, top_k, top_p, history, wte);
    check_eps(eps);
    check_between(count, 1, 1 << 24, "count");
    check(first_flag >= 1 && first_flag + count <= int64_t{UINT32_MAX}, "first_flag is ", first_flag, "; it must be 1 .. ",
          int64_t{UINT32_MAX} - count, " for ", count, " steps");
    a.weights = static_cast<const unsigned char*>(weights.data_ptr());
    a.vectors = data<float>(vectors);
    a.wte = wte.data_ptr();
    a.wpe = wpe.data_ptr();
    a.context = static_cast<int>(wpe.size(0));
    a.eps = static_cast<float>(eps);
    a.cache = cache.data_ptr();
    a.batch = static_cast<int>(cache.size(2));
    a.workspace = static_cast<unsigned long long*>(workspace.data_ptr());
    a.arrived = host_memory(arrived, "arrived", history.size(0), rows);
    a.cancel = host_memory(cancel, "cancel", 1, 1);
    a.count = static_cast<int>(count);
    a.first_flag = static_cast<unsigned>(first_flag);
    a.first = first;
    a.stream = current_stream(wte);
    run_steps(a);
}

}  // namespace

TASK_OPERATORS(m) {
    m.def("layernorm(Tensor x, Tensor? residual, Tensor weight, Tensor bias, float eps) -> (Tensor, Tensor)");
    m.def("bias_gelu(Tensor x, Tensor bias) -> Tensor");
    m.def("begin_text(Tensor host_state, Tensor prompts, Tensor(a!) state, Tensor wte, Tensor wpe) -> Tensor");
    m.def("store_heads(Tensor attended, Tensor qkv, Tensor(a!)? k_cache, Tensor(b!)? v_cache) -> Tensor");
    m.def("last_rows(Tensor x, Tensor heads, Tensor positions, Tensor head, Tensor(a!) residual) -> Tensor");
    m.def("linear(Tensor x, Tensor weight, Tensor bias, bool gelu=False) -> Tensor");
    m.def("linear_qkv(Tensor x, Tensor weight, Tensor bias, Tensor(a!) k_cache, Tensor(b!) v_cache) -> Tensor");
    m.def("linear_fits(Tensor x, Tensor weight) -> bool");
    m.def(
        "step_qkv(Tensor residual, Tensor norm_weight, Tensor weight_sum, float eps, Tensor weight, Tensor bias, "
        "Tensor positions, Tensor(a!) query, Tensor(b!) k_cache, Tensor(c!) v_cache, bool early=False) -> ()");
    m.def("step_residual(Tensor x, Tensor weight, Tensor bias, Tensor(a!) residual, bool early=False) -> ()");
    m.def(
        "step_gelu(Tensor residual, Tensor norm_weight, Tensor weight_sum, float eps, Tensor weight, Tensor bias, "
        "Tensor(a!) out, bool early=False) -> ()");
    m.def(
        "step_logits(Tensor residual, Tensor norm_weight, Tensor weight_sum, float eps, Tensor weight, "
        "Tensor bias, Tensor(a!) logits, Tensor(b!) best, bool early=False) -> ()");
    m.def("step_blocks(Tensor weight, int rows) -> int");
    m.def("step_fits(Tensor weight, int rows, bool norm) -> bool");
    m.def("draw_fits(Tensor logits) -> bool");
    m.def(
        "draw_token(Tensor logits, Tensor best, Tensor steps, Tensor uniforms, Tensor temperature, Tensor top_k, "
        "Tensor top_p, Tensor(a!) tokens) -> ()");
    m.def(
        "next_token(Tensor? best, Tensor? tokens, Tensor stop, Tensor(a!) finished, Tensor(b!) steps, "
        "Tensor(c!) positions, Tensor(d!) lengths, Tensor(e!) history, Tensor wte, Tensor wpe, Tensor(f!) residual, "
        "bool early=False, Tensor(g!)? arrived=None) -> ()");
    m.def(
        "plan_steps(Tensor wte, int layers, int heads, int hidden, int rows, int max_seq_len, bool sampled=False, "
        "int max_ctas=0) -> (int, int, int, int)");
    m.def(
        "run_steps(Tensor weights, Tensor vectors, Tensor wte, Tensor wpe, Tensor(a!) cache, Tensor(b!) workspace, "
        "Tensor(c!)? logits, Tensor(d!) positions, Tensor(e!) lengths, Tensor(f!) steps, Tensor(g!) finished, "
        "Tensor stop, Tensor(h!) history, Tensor(i!) arrived, Tensor cancel, float eps, int hidden, int count, "
        "int first_flag, bool first=True, Tensor? uniforms=None, Tensor? temperature=None, Tensor? top_k=None, Tensor? top_p=None, "
        "int max_ctas=0) -> ()");
}

TASK_KERNELS(m) {
    m.impl("layernorm", TORCH_BOX(&layernorm_operator));
    m.impl("bias_gelu", TORCH_BOX(&bias_gelu_operator));
    m.impl("begin_text", TORCH_BOX(&begin_text_operator));
    m.impl("store_heads", TORCH_BOX(&store_heads_operator));
    m.impl("last_rows", TORCH_BOX(&last_rows_operator));
    m.impl("linear", TORCH_BOX(&linear_operator));
    m.impl("linear_qkv", TORCH_BOX(&linear_qkv_operator));
    m.impl("linear_fits", TORCH_BOX(&linear_fits_operator));
    m.impl("step_qkv", TORCH_BOX(&step_qkv));
    m.impl("step_residual", TORCH_BOX(&step_residual));
    m.impl("step_gelu", TORCH_BOX(&step_gelu));
    m.impl("step_logits", TORCH_BOX(&step_logits));
    m.impl("step_blocks", TORCH_BOX(&step_blocks_operator));
    m.impl("step_fits", TORCH_BOX(&step_fits));
    m.impl("draw_fits", TORCH_BOX(&draw_fits_operator));
    m.impl("draw_token", TORCH_BOX(&draw_token_operator));
    m.impl("next_token", TORCH_BOX(&next_token_operator));
    m.impl("plan_steps", TORCH_BOX(&plan_steps_operator));
    m.impl("run_steps", TORCH_BOX(&run_steps_operator));
}
