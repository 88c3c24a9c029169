// The order in which the roles of a block of attention's backward wait for each other
// (lib/backend/cuda/attention/device/attention_backward_tiles.cuh and attention_tensor_backward.cu), as a model whose
// every interleaving is checked. On a GPU rare interleavings occur once in days.
//
// There are three roles: one loads keys, job by job; one multiplies tiles of queries and passes their sums on; one adds
// the sums to dQ. A wait at a barrier tests only the parity of its phase, so a role that is two phases late waits for
// ever. The model omits the order between blocks, since a role that waits for another block is merely late, and the
// ring buffers of Q and dO, which only these roles fill and empty in step.

#include <gtest/gtest.h>

#include <array>
#include <compare>
#include <cstddef>
#include <set>
#include <utility>
#include <vector>

namespace fp8lab {
namespace {

/// A barrier: the number of completed phases, and the arrivals that the present phase still needs.
struct Phases {
  int over = 0;
  int wanted = 1;

  bool passes(int parity) const { return over % 2 != parity % 2; }
  void arrive(int count) {
    if (--wanted > 0) return;
    ++over;
    wanted = count;
  }
  auto operator<=>(const Phases&) const = default;
};

enum class Step { kAwaitJob, kFirst, kSecond, kThird, kDone };

struct Block {
  // The role that loads keys: kAwaitJob waits until the previous keys are no longer in use, kFirst loads.
  Step load = Step::kAwaitJob;
  int load_round = 0;
  // The role that multiplies: kFirst waits for room for sums, kSecond signals them, kThird ends the job.
  Step multiply = Step::kAwaitJob;
  int multiply_round = 0, tile_of_job = 0, tile = 0;
  // The role that adds: kFirst waits for sums, kSecond frees their room, kThird writes them.
  Step add = Step::kAwaitJob;
  int add_round = 0, added_of_job = 0, sums_parity = 0;
  Phases keys_here, keys_free, sums_here, sums_free;
  std::array<int, 2> jobs = {-1, -1};

  auto operator<=>(const Block&) const = default;
};

class Model {
 public:
  /// `tiles_of_jobs`: the number of query tiles of each job. `adder_confirms`: the adding role arrives at keys_free
  /// too.
  Model(std::vector<int> tiles_of_jobs, bool adder_confirms)
      : tiles_(std::move(tiles_of_jobs)), confirms_(adder_confirms) {}

  /// The number of states in which no role can continue before all are done, or a role has a wrong job.
  std::size_t stuck() {
    Block start;
    start.keys_free.wanted = free_count();
    std::set<Block> seen{start};
    std::vector<Block> open{start};
    std::size_t bad = 0;
    while (!open.empty()) {
      const Block block = open.back();
      open.pop_back();
      const std::vector<Block> next = after(block);
      const bool done = block.load == Step::kDone && block.multiply == Step::kDone && block.add == Step::kDone;
      bad += (next.empty() && !done) || wrong(block);
      for (const Block& one : next)
        if (seen.insert(one).second) open.push_back(one);
    }
    return bad;
  }

 private:
  int count() const { return static_cast<int>(tiles_.size()); }
  int free_count() const { return confirms_ ? 2 : 1; }
  bool wrong(const Block& block) const {
    const auto took_another = [&](Step step, int round) {
      return step == Step::kFirst && block.jobs[static_cast<std::size_t>(round % 2)] != round;
    };
    return took_another(block.multiply, block.multiply_round) ||
           (block.added_of_job == 0 && took_another(block.add, block.add_round));
  }

  std::vector<Block> after(const Block& block) const {
    std::vector<Block> next;
    for (void (Model::*role)(Block&) const : {&Model::load, &Model::multiply, &Model::add}) {
      Block moved = block;
      (this->*role)(moved);
      if (moved != block) next.push_back(moved);
    }
    return next;
  }

  void load(Block& b) const {
    if (b.load == Step::kAwaitJob && b.keys_free.passes(b.load_round + 1)) {
      b.jobs[static_cast<std::size_t>(b.load_round % 2)] = b.load_round;
      b.load = Step::kFirst;
    } else if (b.load == Step::kFirst) {
      b.keys_here.arrive(1);
      b.load = b.load_round >= count() ? Step::kDone : Step::kAwaitJob;
      ++b.load_round;
    }
  }

  void multiply(Block& b) const {
    switch (b.multiply) {
      case Step::kAwaitJob:
        if (!b.keys_here.passes(b.multiply_round)) return;
        b.multiply = b.jobs[static_cast<std::size_t>(b.multiply_round % 2)] >= count() ? Step::kDone : Step::kFirst;
        b.tile_of_job = 0;
        return;
      case Step::kFirst:
        if (b.sums_free.passes(b.tile + 1)) b.multiply = Step::kSecond;
        return;
      case Step::kSecond:
        b.sums_here.arrive(1);
        ++b.tile;
        b.multiply =
            ++b.tile_of_job == tiles_[static_cast<std::size_t>(b.multiply_round)] ? Step::kThird : Step::kFirst;
        return;
      case Step::kThird:
        b.keys_free.arrive(free_count());
        ++b.multiply_round;
        b.multiply = Step::kAwaitJob;
        return;
      case Step::kDone: return;
    }
  }

  void add(Block& b) const {
    switch (b.add) {
      case Step::kAwaitJob:
        if (!b.keys_here.passes(b.add_round)) return;
        b.add = b.jobs[static_cast<std::size_t>(b.add_round % 2)] >= count() ? Step::kDone : Step::kFirst;
        if (b.add == Step::kFirst && confirms_) b.keys_free.arrive(free_count());
        b.added_of_job = 0;
        return;
      case Step::kFirst:
        if (!b.sums_here.passes(b.sums_parity)) return;
        b.sums_parity ^= 1;
        b.add = Step::kSecond;
        return;
      case Step::kSecond:
        b.sums_free.arrive(1);
        b.add = Step::kThird;
        return;
      case Step::kThird:
        b.add = ++b.added_of_job == tiles_[static_cast<std::size_t>(b.add_round)] ? Step::kAwaitJob : Step::kFirst;
        if (b.add == Step::kAwaitJob) ++b.add_round;
        return;
      case Step::kDone: return;
    }
  }

  std::vector<int> tiles_;
  bool confirms_;
};

/// Every list of up to five jobs of up to three tiles.
std::vector<std::vector<int>> job_lists() {
  std::vector<std::vector<int>> lists{{}};
  for (std::size_t i = 0; i < lists.size(); ++i) {
    if (lists[i].size() == 5) break;
    for (int tiles = 1; tiles <= 3; ++tiles) {
      lists.push_back(lists[i]);
      lists.back().push_back(tiles);
    }
  }
  return lists;
}

TEST(AttentionBackwardOrder, EveryInterleavingEnds) {
  for (const std::vector<int>& jobs : job_lists())
    EXPECT_EQ(Model(jobs, true).stuck(), 0u) << ::testing::PrintToString(jobs);
}

// Without the adding role's arrival, as in a former version, a job of one tile can end before that role has seen it.
TEST(AttentionBackwardOrder, WithoutTheAddersArrivalSomeInterleavingHangs) {
  EXPECT_GT(Model({1, 3, 5}, false).stuck(), 0u);
  EXPECT_GT(Model({3, 2, 1, 2}, false).stuck(), 0u);
  EXPECT_EQ(Model({2, 3, 2}, false).stuck(), 0u);
}

}  // namespace
}  // namespace fp8lab
