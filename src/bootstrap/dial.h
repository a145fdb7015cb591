// SPDX-License-Identifier: Apache-2.0
// Dial: reaches a process by any of its addresses: attempts start one after the other, a little apart, and the first
// that proves to be the right process wins. When all have failed, the error lists each and why.
#pragma once

#include <sys/socket.h>

#include <optional>

#include "bootstrap/secure_connection.h"
#include "bootstrap/frames.h"

namespace treering {

// One way to reach a process.
struct DialTarget {
  std::string text;
  std::string local_name;  // of a Unix socket; else:
  sockaddr_storage address{};
  socklen_t length = 0;
  sockaddr_storage source{};  // to bind to; no length: the kernel chooses
  socklen_t source_length = 0;
  uint64_t process = 0;  // Place::local of the one that shall answer; 0: the one where the job's ranks meet
};

// The ways from `own` to `target`, best first: the Unix socket within a network namespace (unless `tcp_only`), then the
// target's addresses, loopback only within the namespace. If several interfaces are in networks of both, connection
// number `index` prefers the index-th.
std::vector<DialTarget> find_candidates(const Place& own, const std::vector<Address>& interfaces, const Place& target,
                                        bool tcp_only, uint32_t index);

// Interfaces of `own` that are in a network of `target`, by other than link-local addresses: connections to it can take
// so many ways. 1 within a network namespace; an address that both have is a private one of each.
uint32_t count_shared_interfaces(const Place& own, const Place& target);

// How a dial ended. kRefused: nothing listens at any address. kNoSuchJob: the same, but at one of them a process does
// that does not have the job, or not any more. kNoAnswer: all networks led nowhere. kFailed: else, or one of each.
enum class DialEnd { kReached, kRefused, kNoSuchJob, kNoAnswer, kFailed };

class Dial : public std::enable_shared_from_this<Dial> {
 public:
  using Done = std::function<void(const Status& status, DialEnd end, std::shared_ptr<SecureConnection> connection)>;

  static std::shared_ptr<Dial> start(Agent* agent, std::vector<DialTarget> candidates, const JobName& job,
                                     const Secret& secret, Clock::time_point deadline, Done done);
  void cancel();

 private:
  struct Attempt {
    DialTarget candidate;
    std::shared_ptr<SecureConnection> connection;
    std::optional<DialEnd> failure;  // once it has failed
    uint64_t retry = 0;
    uint32_t drops = 0;  // by the listener, before it has heard what is wanted
  };
  Dial(Agent* agent, const JobName& job, const Secret& secret, Clock::time_point deadline, Done done)
      : agent_(agent), job_(job), secret_(secret), deadline_(deadline), done_(std::move(done)) {}
  void start_next();
  void try_one(size_t number);
  void failed(size_t number, const std::string& why);
  void finish(const Status& status, DialEnd end, std::shared_ptr<SecureConnection> connection);
  void stop();

  Agent* agent_;
  JobName job_;
  Secret secret_;
  Clock::time_point deadline_;
  Done done_;
  std::vector<Attempt> attempts_;
  size_t next_ = 0;
  std::string reasons_;
  bool finished_ = false;
  uint64_t stagger_ = 0;
  uint64_t limit_ = 0;
};

}  // namespace treering
