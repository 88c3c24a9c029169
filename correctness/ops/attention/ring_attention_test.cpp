#include "ops/ring_attention.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "comm/ranks.h"
#include "ops/attention/attention_fixture.h"
#include "ops/attention/ring_fixture.h"

namespace fp8lab::attention_test {
namespace {

std::vector<int> ring_sizes() {
  const int launched = comm_test::launched_ranks();
  return launched > 0 ? std::vector{launched} : std::vector{1, 2, 3, 4};
}

void expect_definition(const Outcome& outcome, int rank) {
  EXPECT_EQ(outcome.o, "") << "O of rank " << rank;
  EXPECT_EQ(outcome.lse, "") << "lse of rank " << rank;
  EXPECT_EQ(outcome.q, "") << "dQ of rank " << rank;
  EXPECT_EQ(outcome.kv, "") << "dK and dV of rank " << rank;
}

class RingAttention : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, RingAttention, ::testing::ValuesIn(ring_sizes()), testing::PrintToStringParamName());

// Chunks that fill no tile and no vector, that fill some, and of one token; grouped heads.
constexpr RingCase kCases[] = {
    {.chunk = 1, .batch = 2, .heads = 2, .kv_heads = 1, .head_dim = 8},
    {.chunk = 5, .batch = 2, .heads = 4, .kv_heads = 2, .head_dim = 5},
    {.chunk = 33, .batch = 1, .heads = 3, .kv_heads = 3, .head_dim = 16},
    {.chunk = 16, .batch = 1, .heads = 2, .kv_heads = 1, .head_dim = 64},
};

TEST_P(RingAttention, EqualsUnsplitAttentionInBothPasses) {
  for (RingCase of : kCases)
    for (const bool causal : {true, false})
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        of.causal = causal;
        of.dtype = dtype;
        comm_test::on_ranks(GetParam(), [&](ProcessGroup& world) {
          Ring ring(of, {}, world);
          SCOPED_TRACE(describe(full_shape(of, world.size()), dtype));
          expect_definition(ring.run(ring.group()), world.rank());
        });
      }
}

// Every rank's scale is another one, so that keys must travel with theirs.
TEST_P(RingAttention, EqualsUnsplitAttentionOfOperandsInEightBits) {
  for (const RingCase& of : kCases)
    comm_test::on_ranks(GetParam(), [&](ProcessGroup& world) {
      Ring ring(of, {.on = true}, world);
      SCOPED_TRACE(describe(full_shape(of, world.size()), DType::kE4M3));
      expect_definition(ring.run(ring.group()), world.rank());
    });
}

// P is cast as the keys of one chunk normalise it, which no unsplit attention does, so the bound is the bound of any
// rounding to as few bits.
TEST_P(RingAttention, IsWithinTheRoundingOfPAndOfItsGradientInEightBits) {
  comm_test::on_ranks(GetParam(), [&](ProcessGroup& world) {
    Ring ring(kCases[2], {.on = true, .casts = true}, world);
    expect_definition(ring.run(ring.group()), world.rank());
  });
}

TEST_P(RingAttention, SendsEveryRanksKeysPastAllOthersAndTheirGradientsHome) {
  const RingCase of = kCases[1];
  comm_test::on_ranks(GetParam(), [&](ProcessGroup& world) {
    for (const bool eight_bits : {false, true}) {
      Ring ring(of, {.on = eight_bits}, world);
      ring.run(ring.group());
      const std::int64_t ranks = world.size();
      const std::int64_t elements = 2 * of.chunk * of.batch * 2 * of.kv_heads * of.head_dim;
      const std::int64_t of_pass = ranks * elements * (eight_bits ? 1 : 4), gradients = ranks * elements * 4;
      EXPECT_EQ(ring.group().traffic().of(CollectiveKind::kRingExchange),
                (TrafficCount{.collectives = 2 * (ranks - 1),
                              .payload_bytes = (ranks - 1) * (2 * of_pass + gradients),
                              .scale_bytes = eight_bits ? 2 * (ranks - 1) * ranks * 4 : 0}));
    }
  });
}

/// Ranks whose exchanges are changed on the way.
class ChangedGroup final : public ProcessGroup {
 public:
  /// `change` may change the shift of exchange `number`, from 0; a shift of 0 keeps each rank's own bytes.
  using Change = std::function<int(int number, int shift)>;
  ChangedGroup(ProcessGroup& host, Change change)
      : ProcessGroup(identity_of(host)), host_(host), change_(std::move(change)) {}

 private:
  void do_all_gather(const Signature& call, std::span<const GatherPart> parts, bool) override {
    do_over(host_, call, parts);
  }
  void do_reduce_scatter(const Signature& call, std::span<const ScatterPart> parts) override {
    do_over(host_, call, parts);
  }
  void do_all_reduce(const Signature& call, std::span<const ReducePart> parts) override { do_over(host_, call, parts); }
  void do_broadcast(const Signature& call, std::span<const BroadcastPart> parts) override {
    do_over(host_, call, parts);
  }
  void do_ring_exchange(const Signature& call, std::span<const ExchangePart> parts) override {
    Signature changed = call;
    changed.shift = (change_(number_++, call.shift) + size()) % size();
    do_over(host_, changed, parts);
  }
  void do_all_to_all(const Signature& call, std::span<const AllToAllPart> parts) override {
    do_over(host_, call, parts);
  }
  void do_barrier(const Signature& call) override { barrier_over(host_, call); }
  std::unique_ptr<ProcessGroup> do_split(const Signature&, int, Identity) override { return nullptr; }

  ProcessGroup& host_;
  Change change_;
  int number_ = 0;
};

// Each is an error that an implementation could make; some rank must be off by more than the bounds.
TEST(RingAttentionMutations, AreOutsideTheBounds) {
  const int ranks = comm_test::launched_ranks() > 0 ? comm_test::launched_ranks() : 3;
  const struct {
    const char* what;
    ChangedGroup::Change change;
    bool noticed;
  } kMutations[] = {
      {"nothing changed", [](int, int shift) { return shift; }, false},
      {"first exchange skipped", [](int number, int shift) { return number == 0 ? 0 : shift; }, true},
      {"last exchange skipped", [=](int number, int shift) { return number == 2 * (ranks - 1) - 1 ? 0 : shift; }, true},
      {"no exchange", [](int, int) { return 0; }, true},
      // Over two ranks it is the same.
      {"around the other way", [](int, int shift) { return -shift; }, ranks > 2},
  };
  for (const auto& mutation : kMutations)
    comm_test::on_ranks(ranks, [&](ProcessGroup& world) {
      Ring ring(kCases[1], {}, world);
      ChangedGroup changed(ring.group(), mutation.change);
      EXPECT_EQ(ring.run(changed).any(), mutation.noticed) << mutation.what << " on rank " << world.rank();
    });
}

TEST_F(AttentionTest, RingAttentionRefusesWhatItCannotSplit) {
  const auto refusal = [&](ShapeOptions options, std::int64_t kv_columns) {
    return comm_test::error_of([&] {
      run_ranks("simulated", {.ranks = 2, .simulated_rank = 0}, [&](ProcessGroup& ranks) {
        const AttentionShape shape = make_shape(options);
        ring_attention_forward(device_, {.shape = shape,
                                         .ranks = ranks,
                                         .q = {make_tensor(device_, tokens(shape), query_cols(shape), DType::kF32)},
                                         .kv = {make_tensor(device_, tokens(shape), kv_columns, DType::kF32)},
                                         .s = {},
                                         .label = "ring"});
      });
    });
  };
  EXPECT_NE(refusal({.seq = 3}, 16).find("seq is 3; a rank has two chunks of equal length"), std::string::npos);
  EXPECT_NE(refusal({.seq = 4, .dropout = 0.5f}, 16).find("dropout is 0.5"), std::string::npos);
  EXPECT_NE(refusal({.seq = 4, .window = 3}, 16).find("window is 3"), std::string::npos);
  EXPECT_NE(refusal({.seq = 4}, 8).find("kv is [4, 8]; it must be a contiguous"), std::string::npos);
}

}  // namespace
}  // namespace fp8lab::attention_test
