// SPDX-License-Identifier: Apache-2.0
// Ranks of a job as processes or threads, for tests of the rendezvous.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "bootstrap/membership.h"
#include "support/processes.h"

namespace treering::testing {

inline JoinRequest request_of(uint32_t rank, uint32_t ranks, int timeout_ms = 30'000) {
  return {rank, ranks, timeout_ms, 1 << 16, 1 << 12, "timeout=x\n"};
}

inline UniqueId unpacked(const trUniqueId& id) {
  UniqueId result;
  EXPECT_TRUE(unpack(id, &result).ok());
  return result;
}

// Inside a body of RankProcesses: a failed call ends the rank with its text.
#define JOB_CHECK(call)                                                        \
  do {                                                                         \
    if (::treering::Status status_ = (call); !status_.ok()) {                  \
      ::treering::testing::say(std::string(#call) + ": " + status_.message()); \
      return 100;                                                              \
    }                                                                          \
  } while (false)
#define JOB_EXPECT(condition)                                                                           \
  do {                                                                                                  \
    if (!(condition)) {                                                                                 \
      ::treering::testing::say(std::string(__FILE__ ":") + std::to_string(__LINE__) + ": " #condition); \
      return 101;                                                                                       \
    }                                                                                                   \
  } while (false)

// Polls for up to `patience`.
inline bool soon(const std::function<bool()>& condition,
                 std::chrono::milliseconds patience = std::chrono::seconds(20)) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

// A round in which rank r gives "r:" and filler; whether every rank's arrived.
inline Status check_round(Membership* membership, uint32_t rank, uint32_t ranks, size_t filler) {
  auto blob_of = [=](uint32_t r) {
    return std::to_string(r) + ":" + std::string(filler + r % 7, static_cast<char>('a' + r % 26));
  };
  Membership::Blobs blobs;
  TR_RETURN_IF_ERROR(membership->allgather(blob_of(rank), &blobs));
  const std::vector<std::string>& all = *blobs;
  if (all.size() != ranks) return {trInternalError, "blobs are missing"};
  for (uint32_t r = 0; r < ranks; ++r)
    if (all[r] != blob_of(r)) return {trInternalError, "the blob of rank " + std::to_string(r) + " is wrong"};
  return {};
}

// What a rank's events told.
struct Seen {
  std::mutex mutex;
  std::vector<std::string> verdicts;
  std::map<uint32_t, std::string> lost;  // by rank
  std::map<std::pair<uint32_t, uint32_t>, int> incoming, outgoing;
  std::string stream_error;

  MemberEvents events(const std::string& answer) {
    MemberEvents events;
    events.on_verdict = [this](uint32_t code, const std::string& text) {
      std::lock_guard lock(mutex);
      verdicts.push_back(std::to_string(code) + " " + text);
    };
    events.on_lost = [this](const std::vector<uint32_t>& ranks, const std::string& reason) {
      std::lock_guard lock(mutex);
      for (uint32_t rank : ranks) lost[rank] += reason;
    };
    events.status = [answer] { return answer; };
    events.on_incoming = [this](uint32_t source, PeerStreamId stream, int fd) {
      std::lock_guard lock(mutex);
      incoming[{source, stream.index}] = fd;
    };
    events.on_outgoing = [this](uint32_t peer, PeerStreamId stream, const Status& status, int fd) {
      std::lock_guard lock(mutex);
      if (!status.ok()) stream_error = status.message();
      outgoing[{peer, stream.index}] = fd;
    };
    return events;
  }
  template <typename T>
  T get(const T Seen::*field) {
    std::lock_guard lock(mutex);
    return this->*field;
  }
};

inline void pretend_hosts(int process, int hosts) {
  std::string host = "h";
  host += std::to_string(process % hosts);
  if (hosts > 1) setenv("TREERING_HOSTID", host.c_str(), 1);
}

// Joins, sets the events, and lets all ranks come this far.
struct Rank {
  Seen seen;
  std::unique_ptr<Membership> membership;
  Status start(int rank, int ranks, const trUniqueId& packed, int hosts = 1) {
    pretend_hosts(rank, hosts);
    TR_RETURN_IF_ERROR(Membership::join(
        unpacked(packed), request_of(static_cast<uint32_t>(rank), static_cast<uint32_t>(ranks)), &membership));
    membership->set_events(seen.events("answer of " + std::to_string(rank)));
    return check_round(membership.get(), static_cast<uint32_t>(rank), static_cast<uint32_t>(ranks), 1);
  }
};

}  // namespace treering::testing
