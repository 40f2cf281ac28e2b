// binding.cpp - checks the arguments of task 6's operators and registers them. Given.
//
//   update_cache(k_cache!, v_cache!, key, value, positions)
//   decode_attention(query, k_cache, v_cache, lengths, scale=None) -> out
//   decode_attention_split(query, k_cache, v_cache, lengths, splits, scale=None) -> (outs, lse)      optional
//
//   k_cache, v_cache     [batch, kv_heads, max_seq_len, head_dim]
//   key, value           [batch, kv_heads, new_tokens, head_dim]
//   query, out           [batch, heads, 1, head_dim]
//   outs                 [splits, batch * heads, head_dim]    as task 3's merge_states takes them
//   lse                  [splits, batch * heads]
//   positions, lengths   int32 [batch]
#include <optional>
#include <tuple>

#include "common/cuda/attention_binding.h"
#include "task6/given/decode_attention.h"

namespace {

constexpr auto INT32 = torch::headeronly::ScalarType::Int;

void check_caches(const Tensor& k_cache, const Tensor& v_cache) {
    check_tensor(k_cache, "k_cache", {"batch", "kv_heads", "max_seq_len", "head_dim"});
    check_tensor(v_cache, "v_cache", {"batch", "kv_heads", "max_seq_len", "head_dim"});
    for (int64_t i = 0; i < 4; ++i) check_same_size(v_cache, "v_cache", i, k_cache, "k_cache", i);
    check(k_cache.size(3) <= MAX_HEAD_DIM, "k_cache has head_dim = ", k_cache.size(3), "; it must be 1 .. ",
          MAX_HEAD_DIM);
    check_same_device(v_cache, "v_cache", k_cache, "k_cache");
}

// Checks shape, type and device only: the values stay on the device. No value makes a kernel leave the cache.
void check_per_sequence(const Tensor& x, const char* name, const Tensor& k_cache) {
    check_tensor(x, name, {"batch"}, INT32);
    check_same_size(x, name, 0, k_cache, "k_cache", 0);
    check_same_device(x, name, k_cache, "k_cache");
}

void update_cache_checked(Tensor k_cache, Tensor v_cache, const Tensor& key, const Tensor& value,
                          const Tensor& positions) {
    check_caches(k_cache, v_cache);
    check(data<float>(k_cache) != data<float>(v_cache),
          "k_cache and v_cache are the same memory; they must be two tensors");
    check_tensor(key, "key", {"batch", "kv_heads", "new_tokens", "head_dim"});
    check_tensor(value, "value", {"batch", "kv_heads", "new_tokens", "head_dim"});
    for (int64_t i : {0, 1, 3}) check_same_size(key, "key", i, k_cache, "k_cache", i);
    for (int64_t i = 0; i < 4; ++i) check_same_size(value, "value", i, key, "key", i);
    check(key.size(2) <= k_cache.size(2), "key has new_tokens = ", key.size(2), "; at most max_seq_len = ",
          k_cache.size(2), " fit into the cache");
    check_same_device(key, "key", k_cache, "k_cache");
    check_same_device(value, "value", k_cache, "k_cache");
    check_per_sequence(positions, "positions", k_cache);

    DeviceScope device(k_cache);
    update_cache(data<float>(k_cache), data<float>(v_cache), data<float>(key), data<float>(value),
                 data<int32_t>(positions), k_cache.size(0), k_cache.size(1), k_cache.size(2), key.size(2),
                 static_cast<int>(k_cache.size(3)), current_stream(k_cache));
}

// Checks the arguments of decoding, split or not; returns the scale.
float check_decode(const Tensor& query, const Tensor& k_cache, const Tensor& v_cache, const Tensor& lengths,
                   std::optional<double> scale) {
    check_tensor(query, "query", {"batch", "heads", "1", "head_dim"});
    check(query.size(2) == 1, "query has shape ", shape_of(query),
          "; dimension 2 must be 1: one token per sequence");
    check_caches(k_cache, v_cache);
    check_same_size(query, "query", 0, k_cache, "k_cache", 0);
    check_same_size(query, "query", 3, k_cache, "k_cache", 3);
    check_same_device(query, "query", k_cache, "k_cache");
    check(query.size(1) % k_cache.size(1) == 0, "query has heads = ", query.size(1),
          " and k_cache has kv_heads = ", k_cache.size(1), "; heads must be a multiple of kv_heads");
    check_per_sequence(lengths, "lengths", k_cache);
    return attention_scale(scale, query.size(3));
}

Tensor decode_attention_checked(const Tensor& query, const Tensor& k_cache, const Tensor& v_cache,
                                const Tensor& lengths, std::optional<double> scale) {
    const float factor = check_decode(query, k_cache, v_cache, lengths, scale);
    DeviceScope device(query);
    Tensor out = new_output(query, "out", {query.size(0), query.size(1), query.size(2), query.size(3)});
    decode_attention(data<float>(query), data<float>(k_cache), data<float>(v_cache), data<int32_t>(lengths),
                     data<float>(out), query.size(0), query.size(1), k_cache.size(1), k_cache.size(2),
                     static_cast<int>(query.size(3)), factor, current_stream(query));
    return out;
}

std::tuple<Tensor, Tensor> split_checked(const Tensor& query, const Tensor& k_cache, const Tensor& v_cache,
                                         const Tensor& lengths, int64_t splits, std::optional<double> scale) {
    const float factor = check_decode(query, k_cache, v_cache, lengths, scale);
    check(splits >= 1 && splits <= k_cache.size(2), "splits is ", splits,
          "; it must be 1 .. max_seq_len = ", k_cache.size(2));
    DeviceScope device(query);
    const int64_t rows = query.size(0) * query.size(1);
    Tensor outs = new_output(query, "outs", {splits, rows, query.size(3)});
    Tensor lse = new_output(query, "lse", {splits, rows});
    decode_attention_split(data<float>(query), data<float>(k_cache), data<float>(v_cache), data<int32_t>(lengths),
                           data<float>(outs), data<float>(lse), query.size(0), query.size(1), k_cache.size(1),
                           k_cache.size(2), splits, static_cast<int>(query.size(3)), factor, current_stream(query));
    return {outs, lse};
}

}  // namespace

TASK_OPERATORS(m) {
    m.def(
        "update_cache(Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor key, Tensor value, Tensor positions) "
        "-> ()");
    m.def(
        "decode_attention(Tensor query, Tensor k_cache, Tensor v_cache, Tensor lengths, float? scale=None) "
        "-> Tensor");
    m.def(
        "decode_attention_split(Tensor query, Tensor k_cache, Tensor v_cache, Tensor lengths, int splits, "
        "float? scale=None) -> (Tensor, Tensor)");
}

TASK_KERNELS(m) {
    m.impl("update_cache", TORCH_BOX(&update_cache_checked));
    m.impl("decode_attention", TORCH_BOX(&decode_attention_checked));
    m.impl("decode_attention_split", TORCH_BOX(&split_checked));
}
