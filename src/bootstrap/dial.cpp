// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/dial.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sodium.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <set>

#include "bootstrap/agent.h"
#include "bootstrap/local_socket.h"
#include "core/forked_sockets.h"
#include "core/process.h"
#include "core/tcp_sockets.h"

namespace treering {
namespace {

constexpr auto kStagger = std::chrono::milliseconds(100);
// A listener that has too many pending connections drops the oldest, which may be of a job whose processes come all at
// the same time. Dialled again after 10 ms, 20 ms, ... half a second: 6 to 10 s in all, as another program may have the
// port by now.
constexpr uint32_t kMaxDrops = 14;
constexpr uint32_t kMaxDoublings = 6;
constexpr size_t kMaxInterfaces = 16;  // that a link-local address is tried through

// A moment that differs between processes: a full listener is not asked by all at the same time.
Clock::duration jitter(uint32_t times = 0) {
  const uint32_t most = 10u << std::min(times, kMaxDoublings);
  return std::chrono::milliseconds(most / 2 + randombytes_uniform(most));
}

DialEnd failure_of(const std::string& why) {
  if (why == std::strerror(ECONNREFUSED)) return DialEnd::kRefused;
  if (why == Handshake::kNoSuchJob) return DialEnd::kNoSuchJob;
  for (const int error : {EHOSTUNREACH, ENETUNREACH, ENETDOWN, EHOSTDOWN, ETIMEDOUT})
    if (why == std::strerror(error)) return DialEnd::kNoAnswer;
  return DialEnd::kFailed;
}

int open_socket(const DialTarget& candidate, int* error) {
  int fd = -1;
  if (!candidate.local_name.empty()) {
    (void)connect_local(candidate.local_name, &fd, error);
    return fd;
  }
  fd = closed_in_children(
      [&] { return socket(candidate.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
  if (fd >= 0) prepare_control(fd);
  if (fd >= 0) begin_unpaced(fd);  // it may become a stream
  const bool bound =
      fd >= 0 && (candidate.source_length == 0 ||
                  bind(fd, reinterpret_cast<const sockaddr*>(&candidate.source), candidate.source_length) == 0);
  if (bound && (connect(fd, reinterpret_cast<const sockaddr*>(&candidate.address), candidate.length) == 0 ||
                errno == EINPROGRESS))
    return fd;
  *error = errno;
  if (fd >= 0) close(fd);
  return -1;
}

// This process's address in the network of another's, or nullptr.
const Address* own_address_beside(const Place& own, const Address& address) {
  const auto shared = std::find_if(own.addresses.begin(), own.addresses.end(), [&](const Address& mine) {
    return !mine.link_local() && !address.link_local() && same_network(mine, address);
  });
  return shared == own.addresses.end() ? nullptr : &*shared;
}

// The interfaces to reach a link-local address through: those that this process uses itself, then all others.
std::vector<uint32_t> link_local_scopes(const Place& own, const std::vector<Address>& interfaces) {
  std::vector<uint32_t> scopes;
  for (const auto* addresses : {&own.addresses, &interfaces})
    for (const Address& mine : *addresses) {
      const bool known = std::find(scopes.begin(), scopes.end(), mine.scope) != scopes.end();
      if (mine.link_local() && mine.scope != 0 && !known && scopes.size() < kMaxInterfaces)
        scopes.push_back(mine.scope);
    }
  return scopes;
}

}  // namespace

std::vector<DialTarget> find_candidates(const Place& own, const std::vector<Address>& interfaces, const Place& target,
                                        bool tcp_only, uint32_t index) {
  std::vector<DialTarget> direct, again, others;  // again: by an interface that is among `direct`
  std::set<uint32_t> interfaces_used;
  const bool near = own.network == target.network;
  auto add = [&](const Address& address, uint32_t scope, const Address* source) {
    DialTarget candidate;
    candidate.process = target.local;
    candidate.text = fmt::format("{}{} port {}", to_text(address),
                                 source != nullptr ? fmt::format(" from {}", to_text(*source)) : "", target.port);
    candidate.length = to_sockaddr(address, target.port, scope, &candidate.address);
    if (source != nullptr) candidate.source_length = to_sockaddr(*source, 0, source->scope, &candidate.source);
    if (source == nullptr)
      others.push_back(std::move(candidate));
    else if (interfaces_used.insert(source->scope).second)
      direct.push_back(std::move(candidate));
    else
      again.push_back(std::move(candidate));
  };
  for (const Address& address : target.addresses) {
    if (target.port == 0 || (address.loopback() && !near)) continue;
    const Address* shared = own_address_beside(own, address);
    if (tcp_only && shared != nullptr) add(address, 0, shared);
    if (!address.link_local()) {
      add(address, 0, nullptr);
      continue;
    }
    for (uint32_t scope : link_local_scopes(own, interfaces)) add(address, scope, nullptr);
  }
  // The index-th interface first.
  std::vector<DialTarget> ordered;
  if (near && !tcp_only && target.local != 0) {
    DialTarget local;
    local.process = target.local;
    local.local_name = local_socket_name(target.local);
    local.text = "Unix socket " + local.local_name;
    ordered.push_back(std::move(local));
  }
  for (size_t i = 0; i < direct.size(); ++i) ordered.push_back(direct[(i + index) % direct.size()]);
  std::move(again.begin(), again.end(), std::back_inserter(ordered));
  const size_t first = direct.empty() && tcp_only ? index : 0;
  for (size_t i = 0; i < others.size(); ++i) ordered.push_back(others[(i + first) % others.size()]);
  return ordered;
}

uint32_t count_shared_interfaces(const Place& own, const Place& target) {
  if (own.network == target.network) return 1;  // all of them are the loopback
  std::set<uint32_t> scopes;
  for (const Address& address : target.addresses)
    if (const Address* shared = own_address_beside(own, address); shared != nullptr && !shared->same_bytes(address))
      scopes.insert(shared->scope);
  return static_cast<uint32_t>(scopes.size());
}

std::shared_ptr<Dial> Dial::start(Agent* agent, std::vector<DialTarget> candidates, const JobName& job,
                                  const Secret& secret, Clock::time_point deadline, Done done) {
  std::shared_ptr<Dial> dial(new Dial(agent, job, secret, deadline, std::move(done)));
  for (DialTarget& candidate : candidates) dial->attempts_.push_back({.candidate = std::move(candidate)});
  // Never from inside this call.
  dial->stagger_ = agent->after({}, [dial] { dial->start_next(); });
  if (deadline != Clock::time_point::max())
    dial->limit_ = agent->after(deadline - Clock::now(), [dial] {
      dial->limit_ = 0;
      for (const Attempt& attempt : dial->attempts_)
        if (!attempt.failure)
          dial->reasons_ += fmt::format("{}{}: no answer", dial->reasons_.empty() ? "" : "; ", attempt.candidate.text);
      dial->finish({trTimeout, dial->reasons_}, DialEnd::kNoAnswer, nullptr);
    });
  return dial;
}

void Dial::start_next() {
  stagger_ = 0;
  if (finished_) return;
  if (attempts_.empty())
    return finish({trRemoteError, "it has no address that could be reached from here"}, DialEnd::kFailed, nullptr);
  if (next_ == attempts_.size()) return;
  const size_t number = next_++;
  if (next_ < attempts_.size()) stagger_ = agent_->after(kStagger, [self = shared_from_this()] { self->start_next(); });
  try_one(number);
}

void Dial::try_one(size_t number) {
  Attempt& attempt = attempts_[number];
  attempt.retry = 0;
  const bool local = !attempt.candidate.local_name.empty();
  int error = 0;
  const int fd = open_socket(attempt.candidate, &error);
  if (fd < 0 && error == EAGAIN) {  // the listener's queue is full
    attempt.retry = agent_->after(jitter(), [self = shared_from_this(), number] { self->try_one(number); });
    return;
  }
  if (fd < 0 && (error == EMFILE || error == ENFILE))  // no other address helps
    return finish(no_descriptor_left(), DialEnd::kFailed, nullptr);
  if (fd < 0) return failed(number, std::strerror(error));
  attempt.connection = SecureConnection::create(agent_, fd, local, Handshake(job_, secret_, attempt.candidate.process));
  SecureConnection::Events events;
  std::weak_ptr<Dial> weak = shared_from_this();
  events.ready = [weak, number] {
    if (auto self = weak.lock())
      self->finish({}, DialEnd::kReached, std::exchange(self->attempts_[number].connection, nullptr));
  };
  events.closed = [weak, number](const std::string& reason) {
    auto self = weak.lock();
    if (!self || self->finished_) return;
    Attempt& closed = self->attempts_[number];
    if (!SecureConnection::was_dropped(reason) || ++closed.drops > kMaxDrops) return self->failed(number, reason);
    closed.connection = nullptr;
    closed.retry = self->agent_->after(jitter(closed.drops), [self, number] { self->try_one(number); });
  };
  attempt.connection->start(std::move(events));
}

void Dial::failed(size_t number, const std::string& why) {
  if (finished_) return;
  Attempt& attempt = attempts_[number];
  attempt.failure = failure_of(why);
  attempt.connection = nullptr;
  reasons_ += fmt::format("{}{}: {}", reasons_.empty() ? "" : "; ", attempt.candidate.text, why);
  if (next_ < attempts_.size()) {
    if (stagger_ != 0) agent_->cancel(stagger_);
    return start_next();
  }
  const auto all = [this](DialEnd end, DialEnd other) {
    return std::all_of(attempts_.begin(), attempts_.end(),
                       [=](const Attempt& each) { return each.failure == end || each.failure == other; });
  };
  const auto is_open = [](const Attempt& each) { return !each.failure; };
  if (std::any_of(attempts_.begin(), attempts_.end(), is_open)) return;
  DialEnd end = DialEnd::kFailed;
  if (all(DialEnd::kRefused, DialEnd::kRefused))
    end = DialEnd::kRefused;
  else if (all(DialEnd::kRefused, DialEnd::kNoSuchJob))
    end = DialEnd::kNoSuchJob;
  else if (all(DialEnd::kNoAnswer, DialEnd::kNoAnswer))
    end = DialEnd::kNoAnswer;
  finish({trRemoteError, reasons_}, end, nullptr);
}

void Dial::finish(const Status& status, DialEnd end, std::shared_ptr<SecureConnection> connection) {
  if (finished_) return;
  auto self = shared_from_this();
  stop();
  if (connection) connection->set_events({});
  Done done = std::move(done_);
  done(status, end, std::move(connection));
}

void Dial::stop() {
  finished_ = true;
  if (stagger_ != 0) agent_->cancel(stagger_);
  if (limit_ != 0) agent_->cancel(limit_);
  for (Attempt& attempt : attempts_) {
    if (attempt.retry != 0) agent_->cancel(attempt.retry);
    if (attempt.connection) attempt.connection->close();
  }
}

void Dial::cancel() {
  if (finished_) return;
  stop();
  done_ = nullptr;
}

}  // namespace treering
