// Only the autograd tape: how long nodes, slots and contexts live, and how gradients add up at joins of branches.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "autograd/tape_fixture.h"
#include "core/check.h"
#include "support/error_of.h"

namespace fp8lab {
namespace {

using autograd_test::probe;
using autograd_test::SavingNode;
using autograd_test::Tape;
using support::LeafNode;

class TapeTest : public ::testing::Test {
 protected:
  std::shared_ptr<SavingNode> saving_node(const std::string& name, std::shared_ptr<Node> input,
                                          ShellPolicy policy = ShellPolicy::kMoveOut) {
    return std::make_shared<SavingNode>(tape_.runtime, name, std::vector<std::shared_ptr<Node>>{std::move(input)},
                                        policy);
  }
  Tensor scratch(std::int64_t elements) { return tape_.tensor({1, elements}, DType::kF32, HolderKind::kWorkspace); }
  QuantizedTensor quantized(std::int64_t rows, std::int64_t cols) {
    QuantizedTensor made({rows, cols}, QuantFormat{});
    made.rowwise().data = tape_.tensor({rows, cols}, DType::kE4M3, HolderKind::kWorkspace);
    made.rowwise().scale_inv = scratch(1);
    return made;
  }
  std::vector<float> gradient_of(const std::shared_ptr<LeafNode>& leaf) { return tape_.device->read(leaf->gradient()); }

  Tape tape_;
  Runtime& runtime_ = tape_.runtime;
  std::shared_ptr<LeafNode> leaf_ = std::make_shared<LeafNode>(runtime_);
  Variable x_{tape_.tensor({1, 2}, DType::kF32, HolderKind::kInput), leaf_};
};

TEST_F(TapeTest, NodesLiveAsLongAsTheLoss) {
  auto first = saving_node("first", leaf_);
  auto second = saving_node("second", first);
  const std::weak_ptr<Node> watched_first = first, watched_second = second;
  Variable loss = sum_loss(runtime_, {x_.value, second});
  first.reset();
  second.reset();

  run_backward(runtime_, loss);
  EXPECT_FALSE(watched_first.expired());
  EXPECT_FALSE(watched_second.expired());
  loss = {};
  EXPECT_TRUE(watched_second.expired());
  EXPECT_TRUE(watched_first.expired()) << "a node outlived the only one that led to it";
  EXPECT_TRUE(leaf_) << "a node that somebody else holds stays";
}

TEST_F(TapeTest, BackwardStartsFromTheGivenGradient) {
  const Variable y{x_.value, saving_node("node", leaf_)};
  const Tensor gradient = scratch(2);
  tape_.device->write(gradient, std::vector<float>{3.0f, -0.5f});
  run_backward(runtime_, y, gradient);
  EXPECT_EQ(gradient_of(leaf_), (std::vector<float>{3.0f, -0.5f}));
  EXPECT_THROW(run_backward(runtime_, y, scratch(3)), Error) << "a gradient of another size";
}

// A recursive destructor would overflow the stack at this depth.
TEST_F(TapeTest, DeepGraphIsDestroyedWithItsRoot) {
  Variable value = x_;
  for (int i = 0; i < 200000; ++i) value = probe(runtime_, value, nullptr);
  value = {};
  EXPECT_EQ(leaf_.use_count(), 2) << "held only by the fixture and its x";
}

TEST_F(TapeTest, SlotsAreFreedAfterTheirNodeRanAndContextsWithTheNode) {
  auto early = saving_node("early", leaf_, ShellPolicy::kRestoreAndKeep);
  early->save("plain", scratch(10));
  early->save_quantized("quantized", quantized(4, 16));
  early->save_split("split", quantized(8, 16));
  std::vector<std::int64_t> slots, contexts;
  const auto watch = [&](const Tensor&) {
    slots.push_back(tape_.bytes_of("saved slot of early"));
    contexts.push_back(tape_.bytes_of("context of early"));
  };
  auto late = saving_node("late", probe(runtime_, {x_.value, early}, watch).producer);
  late->save("plain", scratch(100));
  Variable loss = sum_loss(runtime_, {x_.value, late});
  late.reset();
  EXPECT_EQ(tape_.bytes_of("saved slot of late"), 400);
  EXPECT_EQ(tape_.bytes_of("saved slot of early"), 40 + (64 + 4) + (128 + 4));
  EXPECT_EQ(tape_.bytes_of("context of early"), 0);

  std::int64_t during = 0;
  early->on_backward = [&](Restored&) { during = tape_.bytes_of("context of early"); };
  early.reset();
  run_backward(runtime_, loss);
  EXPECT_EQ(tape_.bytes_of("saved slot of late"), 0);
  EXPECT_EQ(slots, std::vector<std::int64_t>{40 + 68 + 132}) << "backward of `late` frees only the slots of `late`";
  EXPECT_EQ(contexts, std::vector<std::int64_t>{0});
  EXPECT_EQ(during, 132) << "restored into the shell";
  EXPECT_EQ(tape_.bytes_of("saved slot of early"), 0);
  EXPECT_EQ(tape_.bytes_of("context of early"), 132) << "and kept there";
  loss = {};
  EXPECT_EQ(tape_.bytes_of("context of early"), 0);
}

TEST_F(TapeTest, RestoreReturnsTheSavedTensorsInOrder) {
  for (const ShellPolicy policy :
       {ShellPolicy::kMoveOut, ShellPolicy::kRestoreAndKeep, ShellPolicy::kKeepFromForward}) {
    const auto node = saving_node("node", leaf_, policy);
    const Tensor plain = scratch(3);
    QuantizedTensor unsplit = quantized(2, 16), split = quantized(4, 16);
    const BufferRef unsplit_data = unsplit.rowwise().data.buffer(), split_data = split.rowwise().data.buffer();
    node->save("plain", plain);
    node->save_quantized("quantized", unsplit);
    node->save_split("split", std::move(split));
    Restored saved = node->restore();
    ASSERT_EQ(saved.size(), 3u);
    EXPECT_TRUE(saved.tensor(0).buffer().same_block(plain.buffer()));
    EXPECT_TRUE(saved.quantized(1).rowwise().data.buffer().same_block(unsplit_data));
    EXPECT_TRUE(saved.quantized(2).rowwise().data.buffer().same_block(split_data));
    EXPECT_EQ(saved.quantized(2).shape(), (Shape{4, 16}));
    EXPECT_FALSE(saved.quantized(2).columnwise());
    EXPECT_FALSE(unsplit.empty()) << "saving takes a claim of its own";
  }
}

TEST_F(TapeTest, RestoringTwiceIsAnError) {
  const auto node = saving_node("layers[0].attention", leaf_);
  node->save("plain", scratch(1));
  node->restore();
  const std::string error = support::error_of([&] { node->restore(); });
  EXPECT_NE(error.find("layers[0].attention"), std::string::npos) << error;
}

TEST_F(TapeTest, BackwardThroughAGraphTwiceIsAnError) {
  const auto node = saving_node("node", leaf_);
  node->save("plain", scratch(1));
  const Variable loss = sum_loss(runtime_, {x_.value, node});
  run_backward(runtime_, loss);
  EXPECT_THROW(run_backward(runtime_, loss), Error);
}

TEST_F(TapeTest, BackwardNeedsAProducer) { EXPECT_THROW(run_backward(runtime_, Variable{x_.value, nullptr}), Error); }

TEST_F(TapeTest, GradientsAddUpWhereBranchesJoin) {
  // sum(((x + x) + x) + (x + x)) has gradient 5, although each sum passes the same tensor to both of its inputs.
  const Variable two = add(runtime_, "two", x_, x_);
  const Variable three = add(runtime_, "three", two, x_);
  run_backward(runtime_, sum_loss(runtime_, add(runtime_, "five", three, two)));
  EXPECT_EQ(gradient_of(leaf_), (std::vector<float>{5.0f, 5.0f}));
}

TEST_F(TapeTest, NodeRunsOnceAfterAllItsConsumers) {
  std::vector<std::string> order;
  const auto named = [&](const std::string& name, const Variable& x) {
    return probe(runtime_, x, [&order, name](const Tensor&) { order.push_back(name); });
  };
  const Variable root = named("root", x_);
  // The short branch must wait for the long one.
  const Variable longer = named("long2", named("long1", root));
  run_backward(runtime_, sum_loss(runtime_, add(runtime_, "join", named("short", root), longer)));
  ASSERT_EQ(order.size(), 4u);
  EXPECT_EQ(order.back(), "root");
  EXPECT_EQ(gradient_of(leaf_), (std::vector<float>{2.0f, 2.0f}));
}

TEST_F(TapeTest, BranchesWithoutAProducerGetNoGradient) {
  const Variable constant{tape_.tensor({1, 2}, DType::kF32, HolderKind::kInput), nullptr};
  run_backward(runtime_, sum_loss(runtime_, add(runtime_, "sum", constant, x_)));
  EXPECT_EQ(gradient_of(leaf_), (std::vector<float>{1.0f, 1.0f}));
}

TEST_F(TapeTest, ParameterKeepsTheFirstGradientsBufferAndAddsLaterOnes) {
  Parameter parameter;
  parameter.name = "w";
  parameter.grad_holder = tape_.device->holder(HolderKind::kGradient, "w");
  Tensor first = tape_.tensor({1, 2}, DType::kF32, HolderKind::kWorkspace, {}, 2.0f);
  const BufferRef block = first.buffer();
  parameter.accumulate(*tape_.device, std::move(first));
  EXPECT_TRUE(parameter.grad.buffer().same_block(block)) << "taken over, not copied";
  EXPECT_EQ(tape_.bytes_of("gradient of w"), 8);
  parameter.accumulate(*tape_.device, tape_.tensor({1, 2}, DType::kF32, HolderKind::kWorkspace, {}, 3.0f));
  EXPECT_EQ(tape_.device->read(parameter.grad), (std::vector<float>{5.0f, 5.0f}));
  EXPECT_TRUE(parameter.grad.buffer().same_block(block));
}

}  // namespace
}  // namespace fp8lab
