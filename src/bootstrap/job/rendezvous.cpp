// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/job/rendezvous.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "core/log.h"

namespace treering {
namespace {

constexpr auto kToldWhoIsMissing = std::chrono::seconds(10);  // and again in each of these

bool is_at_limit() { return errno == EMFILE || errno == ENFILE; }

}  // namespace

Clock::time_point deadline_of(const JoinRequest& request, Clock::time_point now) {
  if (request.timeout_ms == 0) return request.deadline;
  return std::min(request.deadline, now + std::chrono::milliseconds(request.timeout_ms));
}

HelloMessage make_hello(const JoinRequest& request, const Place& own, uint64_t nonce, Clock::time_point now) {
  HelloMessage hello;
  hello.process = own.process;
  hello.rank = request.rank;
  hello.ranks = request.ranks;
  hello.timeout_ms = request.timeout_ms;
  if (request.deadline != Clock::time_point::max()) {
    const std::chrono::duration<double, std::milli> left = request.deadline - now;
    hello.timeout_ms =
        std::clamp(static_cast<int>(left.count()), 1, request.timeout_ms > 0 ? request.timeout_ms : INT_MAX);
  }
  hello.segment_bytes = request.segment_bytes;
  hello.staging_bytes = request.staging_bytes;
  hello.pid = own.pid;
  hello.nonce = nonce;
  hello.settings = request.settings;
  return hello;
}

Place Rendezvous::serve(const Place& own, const std::vector<std::string>& names) {
  root_ = std::make_unique<RendezvousRoot>(own, job_.agent->identity().host, names);
  JoinMessage self;
  self.host = job_.agent->identity().host;
  self.place = own;
  return root_->place(self).own;
}

void Rendezvous::take_hello(const HelloMessage& hello) {
  if (!job_.meets() || !root_) return;
  bool complete = false;
  if (Status status = root_->hello(hello, Clock::now(), &complete); !status.ok()) return events_.failed(status);
  deadline_.cancel();
  if (root_->deadline() != Clock::time_point::max())
    deadline_.set(root_->deadline() - Clock::now(), [this] { events_.failed(root_->deadline_passed(nullptr, {})); });
  if (!missing_.is_set()) tell_who_is_missing();
  if (complete) take_process_table(root_->process_table(), -1);
}

// Ranks that wait for one that was never started hear of it before the deadline.
void Rendezvous::tell_who_is_missing() {
  missing_.set(kToldWhoIsMissing, [this] {
    if (!job_.meets() || job_.closed) return;
    log_line(LogLevel::kWarn, root_->still_waiting(Clock::now()));
    tell_who_is_missing();
  });
}

// This host's memory: made by its first process, received by the others.
int Rendezvous::host_segment(int received) {
  const ProcessTableMessage& table = tree_.process_table();
  auto first = std::find_if(table.places.begin(), table.places.end(),
                            [this](const Place& place) { return place.host == job_.own.host; });
  if (first == table.places.end() || first->process != job_.own.process) return received;
  if (received >= 0) ::close(received);
  const int fd = memfd_create("treering-segment", MFD_CLOEXEC);
  if (fd >= 0 && ftruncate(fd, static_cast<off_t>(table.segment_bytes)) == 0) return fd;
  lost_segment_ = fd < 0 && is_at_limit();
  if (fd >= 0) ::close(fd);
  return -1;
}

int Rendezvous::duplicate_segment() {
  const int fd = segment_ < 0 ? -1 : fcntl(segment_, F_DUPFD_CLOEXEC, 3);
  if (segment_ >= 0 && fd < 0 && is_at_limit()) lost_segment_ = true;
  return fd;
}

void Rendezvous::take_process_table(ProcessTableMessage table, int segment) {
  auto known = [&](uint32_t process) { return process < table.places.size(); };
  if (!job_.meets() || !known(job_.own.process) ||
      !std::all_of(table.process_of_rank.begin(), table.process_of_rank.end(), known)) {
    if (segment >= 0) ::close(segment);
    return;
  }
  close();
  met_ = Clock::now();
  // The kernel drops a descriptor that a process has no place for.
  lost_segment_ = table.has_segment && segment < 0;
  tree_.meet(std::move(table));
  segment_ = host_segment(segment);
  for (uint32_t child : tree_.children()) send_process_table(child);
  tell_members();
  events_.met();
}

void Rendezvous::tell_members() {
  auto peers = std::make_shared<std::vector<PeerPlace>>();
  peers->reserve(tree_.ranks());
  std::vector<uint32_t> interfaces;
  for (const Place& place : tree_.process_table().places)
    interfaces.push_back(count_shared_interfaces(job_.own, place));
  for (uint32_t process : tree_.process_table().process_of_rank) {
    const Place& place = tree_.place(process);
    peers->push_back({place.pid, process, place.host, place.host_name, interfaces[process]});
  }
  members_.change([&](Member& member) {
    member.joined = true;
    member.staging_bytes = tree_.process_table().staging_bytes;
    member.peers = peers;
    member.segment = duplicate_segment();
    member.lost_segment = lost_segment_;
  });
}

void Rendezvous::send_process_table(uint32_t child) {
  const bool takes_it = connections_.takes_descriptors(child) && tree_.place(child).host == job_.own.host;
  const int fd = takes_it ? duplicate_segment() : -1;
  connections_.send(child, tree_.process_table_bytes(fd >= 0), fd);
}

void Rendezvous::drop_segment() {
  if (segment_ >= 0) ::close(std::exchange(segment_, -1));
}

void Rendezvous::close() {
  deadline_.cancel();
  missing_.cancel();
}

}  // namespace treering
