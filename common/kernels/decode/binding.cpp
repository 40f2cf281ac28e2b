// binding.cpp - the KV cache operators: write new tokens, attend to all tokens; contiguous and paged.
//
//   update_cache(k_cache!, v_cache!, key, value, positions)
//   decode_attention(query, k_cache, v_cache, lengths, scale=None) -> out
//
//       k_cache, v_cache     [batch, kv_heads, max_seq_len, head_dim]
//
//   update_cache_paged(k_pages!, v_pages!, key, value, positions, block_table)
//   decode_attention_paged(query, k_pages, v_pages, lengths, block_table, scale=None) -> out
//
//       k_pages, v_pages     [pages, kv_heads, page_size, head_dim]     token s of sequence b is row s % page_size of
//       block_table          int32 [batch, max_pages]                   page block_table[b, s / page_size]
//
//   update_cache_rotary(query, k_cache!, v_cache!, key, value, positions, cos, sin, interleaved=False,
//                       left_padding=None, block_table=None) -> out      contiguous caches, or pages with a block_table
//
//       query, out           [batch, heads, new_tokens, head_dim]
//       cos, sin             float32 [longest, rotary_dim / 2]
//       left_padding         int32 [batch]
//
//   query, out               [batch, heads, 1, head_dim]; heads is a multiple of kv_heads
//   key, value               [batch, kv_heads, new_tokens, head_dim]
//   positions, lengths       int32 [batch]
//
// Floats are float32, float16 or bfloat16, all of the same type; head_dim is 1 .. 128; page_size is 16, 32, 64, 128 or
// 256. query, key and value may have any strides as long as rows are contiguous; caches and out are contiguous.
//
// Shapes, types and devices are checked on the host. Values on the device are not checked, since that would need a
// synchronization; instead, no value there makes a kernel access memory out of bounds:
//
//   positions[b] outside 0 .. capacity - new_tokens      nothing is written for sequence b: its cache is full
//   rotary: the same, counting only tokens that are      likewise, and its rotated queries are zeros; capacity is
//   not padding                                          at most longest there
//   left_padding[b] outside 0 .. new_tokens              clamped
//   lengths[b] outside 0 .. capacity                     clamped
//   a page number outside 0 .. pages - 1                 not written to; its tokens are left out of the attention
//
// with capacity = max_seq_len or page_size * max_pages.
#include <optional>

#include "common/cuda/attention_binding.h"
#include "common/kernels/decode/decode.h"

namespace {

using torch::headeronly::ScalarType;

// Two caches of the same shape, contiguous [batch, kv_heads, max_seq_len, head_dim] or paged.
struct Caches {
    const Tensor &k, &v;
    const char *k_name, *v_name;
    const std::optional<Tensor>& block_table;

    const char* batch_name() const { return block_table ? "block_table" : k_name; }
    const Tensor& batch_tensor() const { return block_table ? *block_table : k; }
};

CacheLayout checked_layout(const Caches& caches) {
    check_float_type(caches.k, caches.k_name);
    const ScalarType dtype = caches.k.scalar_type();
    for (const auto& [cache, name] : {std::pair<const Tensor&, const char*>{caches.k, caches.k_name},
                                      std::pair<const Tensor&, const char*>{caches.v, caches.v_name}}) {
        if (caches.block_table)
            check_tensor(cache, name, {"pages", "kv_heads", "page_size", "head_dim"}, dtype);
        else
            check_tensor(cache, name, {"batch", "kv_heads", "max_seq_len", "head_dim"}, dtype);
    }
    for (int64_t i = 0; i < 4; ++i) check_same_size(caches.v, caches.v_name, i, caches.k, caches.k_name, i);
    check_same_device(caches.v, caches.v_name, caches.k, caches.k_name);
    check(caches.k.size(3) <= MAX_HEAD_DIM, caches.k_name, " has head_dim = ", caches.k.size(3),
          "; it must be 1 .. ", MAX_HEAD_DIM);
    CacheLayout layout = {caches.k.size(1), caches.k.size(2), nullptr, 0, static_cast<int>(caches.k.size(3)), 0};
    if (!caches.block_table) return layout;
    const int64_t page_size = caches.k.size(2);
    while (1 << layout.page_bits < page_size) ++layout.page_bits;
    check(page_size >= MIN_PAGE_SIZE && page_size <= MAX_PAGE_SIZE && page_size == 1 << layout.page_bits, caches.k_name,
          " has shape ", shape_of(caches.k), "; dimension 2, the tokens of a page, must be 16, 32, 64, 128 or 256");
    check_tensor(*caches.block_table, "block_table", {"batch", "max_pages"}, ScalarType::Int);
    check_same_device(*caches.block_table, "block_table", caches.k, caches.k_name);
    layout.capacity = page_size * caches.block_table->size(1);
    layout.block_table = data<int32_t>(*caches.block_table);
    layout.pages = caches.k.size(0);
    return layout;
}

// One number per sequence; the values stay on the device.
void check_per_sequence(const Tensor& x, const char* name, const Caches& caches) {
    check_tensor(x, name, {"batch"}, ScalarType::Int);
    check_same_size(x, name, 0, caches.batch_tensor(), caches.batch_name(), 0);
    check_same_device(x, name, caches.k, caches.k_name);
}

// Checks the new keys and values, for either update.
void check_new(const Caches& caches, const Tensor& key, const Tensor& value, const Tensor& positions) {
    check(caches.k.data_ptr() != caches.v.data_ptr(), caches.k_name, " and ", caches.v_name,
          " are the same memory; they must be two tensors");
    const ScalarType dtype = caches.k.scalar_type();
    check_rows(key, "key", {"batch", "kv_heads", "new_tokens", "head_dim"}, dtype);
    check_rows(value, "value", {"batch", "kv_heads", "new_tokens", "head_dim"}, dtype);
    check_same_size(key, "key", 0, caches.batch_tensor(), caches.batch_name(), 0);
    for (int64_t i : {1, 3}) check_same_size(key, "key", i, caches.k, caches.k_name, i);
    for (int64_t i = 0; i < 4; ++i) check_same_size(value, "value", i, key, "key", i);
    check_same_device(key, "key", caches.k, caches.k_name);
    check_same_device(value, "value", caches.k, caches.k_name);
    check_per_sequence(positions, "positions", caches);
}

void check_fits(const Tensor& key, int64_t capacity) {
    check(key.size(2) <= capacity, "key has new_tokens = ", key.size(2), "; at most ", capacity,
          " fit into the cache of a sequence");
}

void update(const Caches& caches, const Tensor& key, const Tensor& value, const Tensor& positions) {
    UpdateArguments arguments = {};
    arguments.layout = checked_layout(caches);
    check_new(caches, key, value, positions);
    check_fits(key, arguments.layout.capacity);

    arguments.k_cache = caches.k.data_ptr();
    arguments.v_cache = caches.v.data_ptr();
    arguments.key = key.data_ptr();
    arguments.value = value.data_ptr();
    arguments.key_strides = row_strides(key);
    arguments.value_strides = row_strides(value);
    arguments.positions = data<int32_t>(positions);
    arguments.batch = key.size(0);
    arguments.new_tokens = key.size(2);
    arguments.element_bytes = static_cast<int>(key.element_size());
    DeviceScope device(caches.k);
    arguments.stream = current_stream(caches.k);
    launch_update_cache(arguments);
}

// A table of angles, [longest, rotary_dim / 2].
void check_angles(const Tensor& x, const char* name, const Caches& caches) {
    check_tensor(x, name, {"longest", "rotary_dim / 2"}, ScalarType::Float);
    check_same_device(x, name, caches.k, caches.k_name);
}

Tensor update_cache_rotary(const Tensor& query, Tensor k_cache, Tensor v_cache, const Tensor& key, const Tensor& value,
                           const Tensor& positions, const Tensor& cos, const Tensor& sin, bool interleaved,
                           std::optional<Tensor> left_padding, std::optional<Tensor> block_table) {
    const Caches caches = {k_cache, v_cache, "k_cache", "v_cache", block_table};
    RotaryArguments arguments = {};
    arguments.layout = checked_layout(caches);
    check_new(caches, key, value, positions);
    if (left_padding)
        check_per_sequence(*left_padding, "left_padding", caches);
    else
        check_fits(key, arguments.layout.capacity);
    check_rows(query, "query", {"batch", "heads", "new_tokens", "head_dim"}, k_cache.scalar_type());
    for (int64_t i : {0, 2, 3}) check_same_size(query, "query", i, key, "key", i);
    check_same_device(query, "query", k_cache, "k_cache");
    check_angles(cos, "cos", caches);
    check_angles(sin, "sin", caches);
    for (int64_t i : {0, 1}) check_same_size(sin, "sin", i, cos, "cos", i);
    check(2 * cos.size(1) <= k_cache.size(3), "cos has rotary_dim / 2 = ", cos.size(1),
          "; it must be at most head_dim / 2, with head_dim = ", k_cache.size(3));

    arguments.k_cache = k_cache.data_ptr();
    arguments.v_cache = v_cache.data_ptr();
    arguments.query = query.data_ptr();
    arguments.key = key.data_ptr();
    arguments.value = value.data_ptr();
    arguments.query_strides = row_strides(query);
    arguments.key_strides = row_strides(key);
    arguments.value_strides = row_strides(value);
    arguments.positions = data<int32_t>(positions);
    arguments.left_padding = left_padding ? data<int32_t>(*left_padding) : nullptr;
    arguments.cos = data<float>(cos);
    arguments.sin = data<float>(sin);
    arguments.batch = query.size(0);
    arguments.heads = query.size(1);
    arguments.new_tokens = query.size(2);
    arguments.longest = cos.size(0);
    arguments.rotary_dim = static_cast<int>(2 * cos.size(1));
    arguments.interleaved = interleaved;
    DeviceScope device(query);
    const FloatType type = float_type(k_cache, "k_cache");
    Tensor out = new_like(query, "out");
    arguments.out = out.data_ptr();
    arguments.stream = current_stream(query);
    launch_update_cache_rotary(arguments, type);
    return out;
}

Tensor decode(const Tensor& query, const Caches& caches, const Tensor& lengths, std::optional<double> scale) {
    DecodeArguments arguments = {};
    arguments.layout = checked_layout(caches);
    const ScalarType dtype = caches.k.scalar_type();
    check_rows(query, "query", {"batch", "heads", "1", "head_dim"}, dtype);
    check(query.size(2) == 1, "query has shape ", shape_of(query),
          "; dimension 2 must be 1: one token per sequence");
    check_same_size(query, "query", 0, caches.batch_tensor(), caches.batch_name(), 0);
    check_same_size(query, "query", 3, caches.k, caches.k_name, 3);
    check_same_device(query, "query", caches.k, caches.k_name);
    check(query.size(1) % caches.k.size(1) == 0, "query has heads = ", query.size(1), " and ", caches.k_name,
          " has kv_heads = ", caches.k.size(1), "; heads must be a multiple of kv_heads");
    check_per_sequence(lengths, "lengths", caches);
    arguments.scale = attention_scale(scale, query.size(3));
    arguments.query = query.data_ptr();
    arguments.query_strides = row_strides(query);
    arguments.k_cache = caches.k.data_ptr();
    arguments.v_cache = caches.v.data_ptr();
    arguments.lengths = data<int32_t>(lengths);
    arguments.batch = query.size(0);
    arguments.heads = query.size(1);

    DeviceScope device(query);
    const FloatType type = float_type(caches.k, caches.k_name);
    Tensor out = new_like(query, "out");
    Tensor workspace = new_output(query, "workspace", {decode_workspace(arguments, type)}, ScalarType::Float);
    arguments.out = out.data_ptr();
    arguments.workspace = data<float>(workspace);
    arguments.stream = current_stream(query);
    launch_decode(arguments, type);
    return out;
}

void update_cache_operator(Tensor k_cache, Tensor v_cache, const Tensor& key, const Tensor& value,
                           const Tensor& positions) {
    update({k_cache, v_cache, "k_cache", "v_cache", std::nullopt}, key, value, positions);
}

Tensor decode_attention(const Tensor& query, const Tensor& k_cache, const Tensor& v_cache, const Tensor& lengths,
                        std::optional<double> scale) {
    return decode(query, {k_cache, v_cache, "k_cache", "v_cache", std::nullopt}, lengths, scale);
}

void update_cache_paged(Tensor k_pages, Tensor v_pages, const Tensor& key, const Tensor& value,
                        const Tensor& positions, const Tensor& block_table) {
    update({k_pages, v_pages, "k_pages", "v_pages", block_table}, key, value, positions);
}

Tensor decode_attention_paged(const Tensor& query, const Tensor& k_pages, const Tensor& v_pages,
                              const Tensor& lengths, const Tensor& block_table, std::optional<double> scale) {
    return decode(query, {k_pages, v_pages, "k_pages", "v_pages", block_table}, lengths, scale);
}

}  // namespace

TASK_OPERATORS(m) {
    m.def(
        "update_cache(Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor key, Tensor value, Tensor positions) -> ()");
    m.def(
        "decode_attention(Tensor query, Tensor k_cache, Tensor v_cache, Tensor lengths, float? scale=None) -> Tensor");
    m.def(
        "update_cache_paged(Tensor(a!) k_pages, Tensor(b!) v_pages, Tensor key, Tensor value, Tensor positions, "
        "Tensor block_table) -> ()");
    m.def(
        "decode_attention_paged(Tensor query, Tensor k_pages, Tensor v_pages, Tensor lengths, Tensor block_table, "
        "float? scale=None) -> Tensor");
    m.def(
        "update_cache_rotary(Tensor query, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor key, Tensor value, "
        "Tensor positions, Tensor cos, Tensor sin, bool interleaved=False, Tensor? left_padding=None, "
        "Tensor? block_table=None) -> Tensor");
}

TASK_KERNELS(m) {
    m.impl("update_cache", TORCH_BOX(&update_cache_operator));
    m.impl("decode_attention", TORCH_BOX(&decode_attention));
    m.impl("update_cache_paged", TORCH_BOX(&update_cache_paged));
    m.impl("decode_attention_paged", TORCH_BOX(&decode_attention_paged));
    m.impl("update_cache_rotary", TORCH_BOX(&update_cache_rotary));
}
