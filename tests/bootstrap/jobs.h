// SPDX-License-Identifier: Apache-2.0
// Ranks of a job as processes or threads, for tests of the rendezvous.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cctype>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "bootstrap/agent.h"
#include "bootstrap/job/job.h"
#include "bootstrap/membership.h"
#include "support/processes.h"
#include "support/waiting.h"

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

// Which ranks this process's rendezvous root misses, in words: while the ranks meet, and in an exchange that has begun.
inline std::string missing_at(const UniqueId& id, bool* meets) {
  Status status;
  (void)Agent::instance().call([&] {
    const auto job = Agent::instance().find_job(id.job);
    *meets = job && job->meets();
    if (job) status = job->deadline_passed();
  });
  const std::string words = "missing: ";
  const size_t at = status.message().find(words);
  return at == std::string::npos ? "" : status.message().substr(at + words.size());
}

inline bool names(const std::string& text, int rank) {
  const std::string name = "rank " + std::to_string(rank);
  for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1))
    if (at + name.size() == text.size() || !std::isdigit(text[at + name.size()])) return true;
  return false;
}

// Whether the rank has come to the rendezvous root of this process, or all have met already.
inline bool has_come(const UniqueId& id, int rank) {
  bool meets = false;
  const std::string missing = missing_at(id, &meets);
  return !meets || (missing.find("rank ") != std::string::npos && !names(missing, rank));
}

// Whether the part of this rank is all that an exchange at this process still misses.
inline bool only_misses(const UniqueId& id, int rank, int ranks) {
  bool meets = false;
  const std::string missing = missing_at(id, &meets);
  for (int other = 0; other < ranks; ++other)
    if (names(missing, other) != (other == rank)) return false;
  return !meets;
}

// Lets the processes of a job come to the rendezvous root one after the other, by their numbers; that of the rendezvous
// root comes last. Process n holds rank n; below a relay, n - 1.
class Arrivals {
 public:
  explicit Arrivals(bool below_relay = false) : first_rank_(below_relay ? 0 : 1) {}
  // In each process, before it joins: whether it may.
  bool await(int number, int processes, const trUniqueId& id) const {
    if (number > 0) return soon([&] { return *next_ >= number; }, std::chrono::seconds(60));
    for (int next = 1; next < processes; ++next) {
      *next_ = next;
      if (!soon([&] { return has_come(unpacked(id), first_rank_ + next - 1); })) return false;
    }
    return true;
  }

 private:
  SharedNumber next_;
  int first_rank_;
};

// Whether all of these ranks answer questions that are asked from now on: the tree leads to them.
inline bool all_answer(Membership* membership, const std::vector<uint32_t>& ranks) {
  const auto begin = Clock::now();
  return soon([&] {
    bool all = true;
    for (uint32_t rank : ranks) {
      std::string bytes;
      Clock::time_point when;
      if (membership->latest_status(rank, &bytes, &when) && when > begin) continue;
      membership->request_status(rank);
      all = false;
    }
    return all;
  });
}

inline std::vector<uint32_t> all_but(int left_out, int ranks) {
  std::vector<uint32_t> result;
  for (int rank = 0; rank < ranks; ++rank)
    if (rank != left_out) result.push_back(static_cast<uint32_t>(rank));
  return result;
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
  std::set<uint32_t> left;
  std::map<std::pair<uint32_t, std::string>, int> incoming, outgoing;  // sockets of introductions, by peer and bytes
  std::map<uint32_t, std::vector<std::string>> introduced;             // without a socket, by source
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
    events.on_left = [this](uint32_t rank, const Status&) {
      std::lock_guard lock(mutex);
      left.insert(rank);
    };
    events.status = [answer] { return answer; };
    events.on_introduced = [this](uint32_t source, const std::string& bytes, int fd) {
      std::lock_guard lock(mutex);
      if (fd < 0)
        introduced[source].push_back(bytes);
      else
        incoming[{source, bytes}] = fd;
    };
    events.on_connected = [this](uint32_t peer, const std::string& bytes, const Status& status, int fd) {
      std::lock_guard lock(mutex);
      if (!status.ok()) stream_error = status.message();
      outgoing[{peer, bytes}] = fd;
    };
    return events;
  }
  template <typename T>
  T get(const T Seen::*field) {
    std::lock_guard lock(mutex);
    return this->*field;
  }
};

// Ends every connection of this process, and none of its listeners.
inline int shut_connections_down() {
  int count = 0;
  for (int fd = 3; fd < 1024; ++fd) {
    sockaddr_storage peer{};
    socklen_t length = sizeof peer;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0) continue;
    count += shutdown(fd, SHUT_RDWR) == 0;
  }
  return count;
}

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
