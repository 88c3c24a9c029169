#include "harness/eager/layer.h"

// Attention of ranks that have each sequence between them, as PyTorch 2.15 computes it under context_parallel()
// (torch/distributed/tensor/experimental/_context_parallel/_attention.py: _templated_ring_attention() and its
// backward). A rank has chunk `ring_rank` of each sequence from the start, and the same from the end. It gathers the
// keys and values of all ranks, and then merges in FP32 its attention to the keys of one rank after the other: of all
// its queries to the first chunk of an earlier rank, or of the queries of its second chunk to both chunks of a later
// one.
namespace fp8lab::eager {

namespace {

/// The attention of a call: of all queries to half of the keys, or the other way round. The first call has all of both.
struct Call {
  bool has_all_queries, has_all_keys;

  Bytes queries(Bytes of_all) const { return has_all_queries ? of_all : of_all / 2; }
  Bytes keys(Bytes of_all) const { return has_all_keys ? of_all : of_all / 2; }
};

Call call_of(const Numbers& numbers, Bytes index) {
  const bool is_earlier = index <= numbers.ring_rank;
  return {.has_all_queries = index == 0 || is_earlier, .has_all_keys = index == 0 || !is_earlier};
}

/// PyTorch copies keys and values whose heads are not one after the other in memory.
bool copies_keys(const Numbers& numbers) { return numbers.kv != numbers.head_dim; }

}  // namespace

bool Layer::merges_parts_of_queries() const { return numbers_.ring_rank < numbers_.context_parallel - 1; }

void Layer::attend_in_ring(bool keeps) {
  const Numbers& n = numbers_;
  const Bytes ranks = n.context_parallel, keys = n.rows(n.kv), sums = n.tokens * n.heads * kF32;
  const auto merge = [&](Bytes bytes) {  // merged - weight * (merged - part)
    Block difference = temporary(bytes), product = temporary(bytes);
    heap_.free(difference);
    const Block out = temporary(bytes);
    heap_.free(product);
    return out;
  };
  const auto put = [&](Block& all, Block& part, Bytes bytes, bool is_all) {  // or joins the part to the rest
    Block next = is_all ? part : temporary(bytes);
    heap_.free(all);
    all = next;
    if (!is_all) heap_.free(part);
  };
  Block key = copies_keys(n) ? temporary(keys) : 0, value = copies_keys(n) ? temporary(keys) : 0;
  Block sent = temporary(2 * keys);
  Block gathered = temporary(ranks * 2 * keys);
  // The process group holds what it sends until the gather is waited for; no group holds shapes.
  if (n.operators == Operators::kCudaOnShapes) heap_.free(sent);
  Block out = temporary(n.rows(n.query)), sums_of_call = 0;
  sums_ = allocate(sums);
  if (!n.on_host()) {
    seed_ = allocate(16);
    offset_ = allocate(8);
  }
  Block seed = 0, offset = 0;
  Block merged = temporary(n.rows_f32(n.query));
  for (Bytes i = 1; i < ranks; ++i) {
    heap_.free(sent);
    if (i < ranks - 1) {  // joined to be sent on, and not sent
      Block joined = temporary(2 * keys);
      heap_.free(joined);
    }
    heap_.free(key);
    heap_.free(value);
    const Call call = call_of(n, i);
    const auto replace = [&](Block& block, Bytes bytes) {
      Block next = temporary(bytes);
      heap_.free(block);
      block = next;
    };
    Block next_out = temporary(call.queries(n.rows(n.query))), next_sums = temporary(call.queries(sums));
    if (!n.on_host()) {
      replace(seed, 16);
      replace(offset, 8);
    }
    heap_.free(out);
    heap_.free(sums_of_call);
    out = next_out;
    sums_of_call = next_sums;
    const Bytes wide = call.queries(n.rows_f32(n.query)), narrow = call.queries(sums);
    Block part = temporary(wide);
    Block difference = temporary(narrow), weight = temporary(narrow);
    heap_.free(difference);
    Block next = merge(wide);
    heap_.free(weight);
    difference = temporary(narrow);
    Block logarithm = temporary(narrow), buffer = n.on_host() ? temporary(narrow) : 0;
    heap_.free(buffer);
    heap_.free(difference);
    Block more = allocate(narrow);
    heap_.free(logarithm);
    put(sums_, more, sums, call.has_all_queries);
    put(merged, next, n.rows_f32(n.query), call.has_all_queries);
    heap_.free(part);
  }
  attended_ = allocate(n.rows(n.query));
  for (Block* block : {&merged, &gathered, &out, &sums_of_call, &seed, &offset}) heap_.free(*block);
  for (Block* block : {&sums_, &seed_, &offset_}) done(*block, keeps);
  if (!merges_parts_of_queries()) return;
  raw_attended_ = attended_;  // joined parts have their heads one after the other, and the product reads a copy
  attended_ = allocate(n.rows(n.query));
}

Layer::OfAttention Layer::ring_backward(Block& of_attended) {
  const Numbers& n = numbers_;
  const Bytes ranks = n.context_parallel, keys = n.rows(n.kv), wide_keys = n.rows_f32(n.kv),
              sums = n.tokens * n.heads * kF32;
  // FP32 sums of the gradients.
  Block query_sum = temporary(n.rows_f32(n.query)), key_sum = temporary(wide_keys), value_sum = temporary(wide_keys);
  Block key = copies_keys(n) ? temporary(keys) : 0, value = copies_keys(n) ? temporary(keys) : 0;
  Block sent = temporary(2 * keys);
  Block gathered = temporary(ranks * 2 * keys);
  Block of_query = 0, of_key = 0, of_value = 0, sums_of_call = 0;
  Block carried = 0, received = 0, viewed = 0;  // gradients of keys and values on their way around the ring
  for (Bytes i = 0; i < ranks; ++i) {
    if (i > 0 && i < ranks - 1) {
      Block joined = temporary(2 * keys);
      heap_.free(sent);
      sent = joined;
    }
    if (i > 0) {
      heap_.free(key);
      heap_.free(value);
    }
    const Call call = call_of(n, i);
    if (!call.has_all_queries) {
      Block copy = temporary(call.queries(sums));
      heap_.free(sums_of_call);
      sums_of_call = copy;
    }
    Block next_query = temporary(call.queries(n.rows(n.query))), next_key = temporary(call.keys(keys)),
          next_value = temporary(call.keys(keys));
    Block workspace = flash_backward_workspace(call.queries(n.tokens), call.keys(n.tokens));
    heap_.free(workspace);
    for (Block* block : {&of_query, &of_key, &of_value}) heap_.free(*block);
    of_query = next_query;
    of_key = next_key;
    of_value = next_value;
    if (i == 0) {
      Block copy_of_key = copies_keys(n) ? temporary(wide_keys) : 0,
            copy_of_value = copies_keys(n) ? temporary(wide_keys) : 0;
      carried = temporary(2 * wide_keys);
      heap_.free(copy_of_key);
      heap_.free(copy_of_value);
    } else {
      for (Block* block : {&carried, &key_sum, &value_sum, &viewed}) heap_.free(*block);
      if (call.has_all_queries) {
        key_sum = temporary(wide_keys);
        value_sum = temporary(wide_keys);
      }
      carried = temporary(2 * wide_keys);
    }
    Block next = temporary(2 * wide_keys);
    if (call.has_all_queries)
      heap_.free(received);
    else
      viewed = received;
    received = next;
    if (call.has_all_queries) continue;
    Block joined = temporary(n.rows_f32(n.query));
    heap_.free(query_sum);
    query_sum = joined;
  }
  OfAttention out;
  out.query = temporary(n.rows(n.query));
  heap_.free(query_sum);
  Block both = temporary(2 * keys);
  for (Block* block : {&carried, &received, &viewed, &key_sum, &value_sum, &of_query, &of_key, &of_value, &sent,
                       &gathered, &sums_of_call})
    heap_.free(*block);
  // Both gradients are views of one tensor. It lives until the later one has been used, which is the key's without
  // rotations.
  (n.gated ? out.value : out.key) = both;
  Block& saved = merges_parts_of_queries() ? raw_attended_ : attended_;
  if (recomputed_)
    heap_.free_read(of_attended, {&saved, &value_, &query_, &key_, &sums_, &seed_, &offset_}, true);
  else
    heap_.free_read(of_attended, {&key_, &query_, &value_, &saved, &sums_, &seed_, &offset_}, false);
  return out;
}

}  // namespace fp8lab::eager
