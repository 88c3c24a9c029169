#include "memory/host_copies.h"

#include <gtest/gtest.h>

#include <utility>

namespace fp8lab {
namespace {

std::vector<std::byte> counted(std::int64_t size) {
  std::vector<std::byte> bytes;
  for (std::int64_t i = 0; i < size; ++i) bytes.push_back(static_cast<std::byte>(i));
  return bytes;
}

TEST(HostCopies, CountFromConstructionToDestruction) {
  HostCopies copies;
  {
    const HostCopy first(copies, counted(10), 10);
    EXPECT_EQ(copies.live_bytes(), 10);
    {
      const HostCopy second(copies, counted(7), 7);
    }
    EXPECT_EQ(copies.live_bytes(), 10);
  }
  EXPECT_EQ(copies.live_bytes(), 0);
  EXPECT_EQ(copies.peak_bytes(), 17);
}

TEST(HostCopies, AMovedCopyIsCountedOnceAndAReplacedOneNoMore) {
  HostCopies copies;
  HostCopy first(copies, counted(10), 10);
  HostCopy second = std::move(first);
  EXPECT_EQ(copies.live_bytes(), 10);
  EXPECT_FALSE(static_cast<bool>(first));  // NOLINT(bugprone-use-after-move): a moved copy holds nothing
  EXPECT_EQ(second.bytes().size(), 10u);
  second = HostCopy(copies, counted(3), 3);
  EXPECT_EQ(copies.live_bytes(), 3);
  second = {};
  EXPECT_EQ(copies.live_bytes(), 0);
  EXPECT_FALSE(static_cast<bool>(second));
}

TEST(HostCopies, APartIsACopyOfItsBytesAndIsCountedBesideThem) {
  HostCopies copies;
  const HostCopy all(copies, counted(10), 10);
  const HostCopy part = all.part(4, 3), none = all.part(10, 0);
  EXPECT_EQ(std::vector(part.bytes().begin(), part.bytes().end()),
            (std::vector{std::byte{4}, std::byte{5}, std::byte{6}}));
  EXPECT_TRUE(static_cast<bool>(none)) << "a shard without rows has a copy without bytes";
  EXPECT_TRUE(none.bytes().empty());
  EXPECT_EQ(copies.live_bytes(), 13);
  EXPECT_FALSE(static_cast<bool>(HostCopy().part(0, 4)));
  EXPECT_EQ(copies.live_bytes(), 13);
}

// Device `meta` has only sizes.
TEST(HostCopies, WithoutValuesCountAsManyBytes) {
  HostCopies copies;
  const HostCopy all(copies, {}, 10);
  const HostCopy part = all.part(4, 3);
  EXPECT_TRUE(static_cast<bool>(part));
  EXPECT_TRUE(part.bytes().empty());
  EXPECT_EQ(copies.live_bytes(), 13);
}

}  // namespace
}  // namespace fp8lab
