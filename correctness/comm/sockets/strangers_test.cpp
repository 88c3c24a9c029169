#include <poll.h>

#include <algorithm>
#include <cstdint>

#include "comm/sockets/connecting.h"
#include "comm/sockets/frames.h"
#include "comm/sockets/hostile_client.h"
#include "core/fnv1a.h"

// What a process that is no rank can do to a rendezvous: nothing but a line of text.
namespace fp8lab::sockets {
namespace {

using comm_test::HostileClient;

// ZMTP 3.0 (RFC 23), as far as these clients need it.
std::string zmtp_greeting(const std::string& mechanism) {
  return std::string("\xff\0\0\0\0\0\0\0\0\x7f\x03\0", 12) + mechanism + std::string(20 - mechanism.size() + 32, '\0');
}
std::string zmtp_ready() {
  const std::string command(
      "\x05READY\x0bSocket-Type\0\0\0\x06"
      "DEALER\x08Identity\0\0\0\0",
      41);
  return std::string("\x04") + static_cast<char>(command.size()) + command;
}
std::string zmtp_message(const std::vector<std::byte>& bytes) {
  return std::string("\0", 1) + static_cast<char>(bytes.size()) +
         std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}
std::uint64_t job_hash(int port) { return fnv1a(std::to_string(port) + "/"); }

std::string zmtp_handshake(int) { return zmtp_greeting("NULL") + zmtp_ready(); }
constexpr std::size_t kZmtpGreetingAndReady = 64 + 43;

struct Stranger {
  const char* name;
  std::string (*first)(int port);  ///< what it sends at once
  /// What it sends after rank 0's ZMTP greeting or, if it completes the ZMTP handshake itself, after that.
  std::string (*second)(int port);
  const char* reason = nullptr;  ///< in rank 0's line, if ranks have no secret and any client may send a message
};
std::string nothing(int) { return {}; }
std::string handshake_of(int port, int rank, int size, std::uint64_t job_offset = 0) {
  Handshake handshake;
  handshake.job = job_hash(port) + job_offset;
  handshake.rank = rank;
  handshake.size = size;
  handshake.port = 1;
  return zmtp_message(write(handshake));
}

const Stranger kStrangers[] = {
    {"silence", nothing, nothing},
    {"http",
     [](int) -> std::string {
       return "GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n" + std::string(200, 'x');
     },
     nothing},
    {"zeros", [](int) { return std::string(1 << 16, '\0'); }, nothing},
    {"half_a_greeting", [](int) { return zmtp_greeting("NULL").substr(0, 30); }, nothing},
    {"greeting_alone", [](int) { return zmtp_greeting("NULL"); }, nothing},
    {"unknown_mechanism", [](int) { return zmtp_greeting("TELEPATHY"); }, nothing},
    {"old_shutdown",  // tag 1 and a length of 2^20, behind an echo of the ZMTP greeting
     [](int) { return std::string("fp8lab/1", 8); },
     [](int) { return std::string("\x01\0\0\0\0\0\0\0\0\0\x10\0\0\0\0\0", 16) + std::string(1 << 20, 'x'); }},
    {"endless_command", [](int) { return zmtp_greeting("NULL"); },
     [](int) { return std::string("\x06\x7f\xff\xff\xff\xff\xff\xff\xff", 9) + std::string(1 << 16, 'x'); }},
    {"endless_message", [](int) { return zmtp_greeting("NULL"); },
     [](int) { return zmtp_ready() + std::string("\x02\0\0\0\x01\0\0\0\0", 9) + std::string(1 << 16, 'x'); }},
    {"no_handshake", zmtp_handshake, [](int) { return zmtp_message(std::vector<std::byte>(36, std::byte{'x'})); },
     "it sent what no rank sends"},
    {"many_parts", zmtp_handshake, [](int) { return std::string("\x01\x01x\x01\x01y\0\x01z", 9); },
     "it sent what no rank sends"},
    {"rank_-1", zmtp_handshake, [](int port) { return handshake_of(port, -1, 2); },
     "rank -1 is none of ranks 1 to 1, which rank 0 waits for"},
    {"rank_0", zmtp_handshake, [](int port) { return handshake_of(port, 0, 2); },
     "rank 0 is none of ranks 1 to 1, which rank 0 waits for"},
    {"rank_7", zmtp_handshake, [](int port) { return handshake_of(port, 7, 2); },
     "rank 7 is none of ranks 1 to 1, which rank 0 waits for"},
    {"size_99", zmtp_handshake, [](int port) { return handshake_of(port, 1, 99); },
     "rank 0 was started as one of 2 ranks, rank 1 as one of 99"},
    {"other_job", zmtp_handshake, [](int port) { return handshake_of(port, 1, 2, 1); },
     "it is of another job (MASTER_PORT, TORCHELASTIC_RUN_ID, SLURM_JOB_ID)"},
};

class Strangers : public testing::TestWithParam<Stranger> {};
INSTANTIATE_TEST_SUITE_P(Kinds, Strangers, testing::ValuesIn(kStrangers), [](const auto& param) {
  std::string name = param.param.name;
  std::replace(name.begin(), name.end(), '-', 'm');
  return name;
});

// Rank 0 waits for rank 1; a stranger connects first and stays.
TEST_P(Strangers, DoNotKeepRanksFromConnecting) {
  for (const char* secret : {"", kSecret}) {
    const int port = free_port();
    std::vector<Outcome> first, second;
    std::jthread rank0([&] { first = connect_all({rendezvous_of(0, 2, port, secret)}, 30); });
    const HostileClient stranger(port);
    ASSERT_TRUE(stranger.connected());
    stranger.say(GetParam().first(port));
    if (const std::string more = GetParam().second(port); !more.empty()) {
      stranger.hear(GetParam().reason != nullptr ? kZmtpGreetingAndReady : 10);
      stranger.say(more);
    }
    stranger.hear(64);  // rank 0 has accepted the connection
    second = connect_all({rendezvous_of(1, 2, port, secret)}, 30);
    rank0.join();
    expect_connected({&first[0], &second[0]});
    EXPECT_LT(second[0].seconds, 10) << "strangers delay nobody";
    std::vector<std::string>& lines = first[0].lines;
    if (*secret == '\0') lines.erase(lines.begin());  // the line that reports the missing secret
    EXPECT_LE(lines.size(), 1u) << testing::PrintToString(lines);
    if (*secret != '\0' || GetParam().reason == nullptr) continue;
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_TRUE(lines[0].starts_with("rank 0 refused a connection from 127.0.0.1:")) << lines[0];
    EXPECT_TRUE(lines[0].ends_with(std::string(": ") + GetParam().reason)) << lines[0];
  }
}

TEST(Stranger, FiveDroppedAlikeAreReportedInOneLine) {
  const int port = free_port();
  std::vector<Outcome> outcomes;
  {
    std::jthread rank0([&] { outcomes = connect_all({rendezvous_of(0, 2, port)}, 2); });
    for (int i = 0; i < 5; ++i) {
      const HostileClient stranger(port);
      stranger.hear(10);
      ::poll(nullptr, 0, 100);  // rank 0 can look up the address while the client is connected
      stranger.say("GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n" + std::string(200, 'x'));
      EXPECT_TRUE(stranger.is_dropped(5));
    }
  }
  const std::vector<std::string>& lines = outcomes[0].lines;  // one line for five strangers of one kind and address
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_TRUE(lines[0].starts_with("rank 0 refused a connection from 127.0.0.1:")) << lines[0];
  EXPECT_TRUE(lines[0].ends_with(": it does not speak ZMTP 3")) << lines[0];
}

TEST(Stranger, TwelveIdleConnectionsDoNotDelayTheRanks) {
  const int port = free_port();
  std::vector<Outcome> first, second;
  std::jthread rank0([&] { first = connect_all({rendezvous_of(0, 2, port)}, 30); });
  std::vector<HostileClient> idle;
  for (int i = 0; i < 12; ++i) idle.emplace_back(port);
  second = connect_all({rendezvous_of(1, 2, port)}, 30);
  rank0.join();
  expect_connected({&first[0], &second[0]});
  EXPECT_LT(second[0].seconds, 5);
}

}  // namespace
}  // namespace fp8lab::sockets
