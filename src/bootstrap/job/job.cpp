// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/job/job.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <sodium.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "core/log.h"

namespace treering {
namespace {

// The root's deadline is the earlier one, because its message names who is missing.
constexpr auto kLateArrivals = std::chrono::seconds(5);  // are told why the rendezvous failed
constexpr auto kNearTimeout = std::chrono::seconds(1);   // with a root of this machine that does not take this process
constexpr auto kGoneTimeout = std::chrono::seconds(5);   // with a root on another machine that refuses connections
constexpr auto kSendingTimeout = std::chrono::seconds(2);
[[maybe_unused]] constexpr size_t kManyRanks = 64;
constexpr auto kRetry = std::chrono::milliseconds(50);
constexpr auto kToldWhoIsMissing = std::chrono::seconds(10);  // and again in each of these

Clock::time_point deadline_of(const JoinRequest& request) {
  if (request.timeout_ms == 0) return request.deadline;
  return std::min(request.deadline, Clock::now() + std::chrono::milliseconds(request.timeout_ms));
}

double milliseconds(Clock::duration time) { return std::chrono::duration<double, std::milli>(time).count(); }

}  // namespace

Job::~Job() {
#ifdef __GLIBC__
  // With many ranks the exchanges took as much memory as all that is kept. The allocator would hold it for good.
  if (tree_.ranks() > kManyRanks) {
    tree_ = {};
    malloc_trim(0);
  }
#endif
  if (segment_ >= 0) close(segment_);
}

void Job::serve(const Place& own, const std::vector<std::string>& names) {
  root_ = std::make_unique<RendezvousRoot>(own, agent_->identity().host, names);
  JoinMessage self;
  self.host = agent_->identity().host;
  self.place = own;
  own_ = root_->place(self).own;
  tree_.set_own(own_.process);
  tree_.become_top();
  found_ = placed_ = attached_ = began_;
}

void Job::add_member(const Place& own, std::shared_ptr<Member> member) {
  if (state_ != State::kRendezvous) {
    const Status late = !failure_.ok() ? failure_
                                       : Status(trInvalidUsage, fmt::format("rank {}: all ranks of this unique id have "
                                                                            "met already; make a new one",
                                                                            member->request.rank));
    return member->change([&] { member->failure = late; });
  }
  members_.emplace(member->request.rank, member);
  if (attached_ != Clock::time_point()) member->change([&] { member->reach = attached_ - found_; });
  if (own_.process != kNobody) return say_hello(*member);
  if (finding_) return;
  finding_ = true;
  own_ = own;
  own_.rank = member->request.rank;
  began_ = Clock::now();
  join_deadline_ = deadline_of(member->request);
  find_root();
}

void Job::find_root() {
  const std::optional<bool> ended = agent_->ended_rendezvous(id_.job);
  if (ended && id_.root_local != 0)  // that of MASTER_ADDR may be another process's next
    return fail({trInvalidUsage, fmt::format("the ranks of this unique id, which this process made, {}; make a new one",
                                             *ended ? "have met already" : "have failed to meet")});
  Place root;
  root.pid = id_.root_pid;
  root.local = id_.root_local;
  root.network = id_.root_network;
  root.port = id_.port;
  root.addresses = unpack_addresses(id_.addresses, sizeof id_.addresses);
  auto self = shared_from_this();
  dial_ = Dial::start(
      agent_, find_candidates(own_, agent_->interfaces(), root, false, 0), id_.job, id_.secret, join_deadline_,
      [self](const Status& status, bool gone, std::shared_ptr<Channel> channel) {
        self->dial_ = nullptr;
        if (status.ok()) return self->root_reached(std::move(channel));
        if (status.code() == trSystemError) return self->fail({status.code(), "this process: " + status.message()});
        // A rendezvous root that was agreed on before its process started: it may yet come.
        const bool awaited = self->id_.root_pid == 0;
        const bool near = self->own_.network == self->id_.root_network && !awaited;
        const auto timeout = near ? Clock::duration(kNearTimeout) : kGoneTimeout;
        const bool late =
            (!awaited && Clock::now() - self->began_ > timeout) || self->join_deadline_ - Clock::now() < 4 * kRetry;
        if (status.code() != trTimeout && !late && !(gone && near)) {
          self->agent_->after(kRetry + std::chrono::milliseconds(randombytes_uniform(100)), [self] {
            if (!self->closed_ && self->state_ == State::kRendezvous) self->find_root();
          });
          return;
        }
        self->fail(
            {status.code(),
             fmt::format(
                 "{} cannot be reached: {} ended, or all its ranks have met already or failed to meet, or "
                 "no network leads to it: {}",
                 awaited ? "rank 0, at MASTER_ADDR and the port after MASTER_PORT,"
                         : fmt::format("the process that made the unique id (pid {})", self->id_.root_pid),
                 awaited ? "it has not come, or has another TREERING_SECRET (or torchrun's run id), or has" : "it has",
                 status.message())});
      });
}

void Job::root_reached(std::shared_ptr<Channel> channel) {
  found_ = Clock::now();
  auto self = shared_from_this();
  Channel::Events events;
  events.frame = [self](const std::string& bytes, int fd) {
    if (fd >= 0) ::close(fd);
    if (auto root = std::exchange(self->joining_, nullptr)) self->placed(std::move(root), bytes);
  };
  events.closed = [self](const std::string& reason) {
    self->joining_ = nullptr;
    if (self->own_.process != kNobody || self->closed_) return;
    self->agent_->after(kRetry, [self] {  // a moment of too many arrivals; find_root() knows when to give up
      if (!self->closed_ && self->state_ == State::kRendezvous) self->find_root();
    });
  };
  channel->set_events(std::move(events));
  JoinMessage join;
  join.host = agent_->identity().host;
  join.place = own_;
  channel->send(encode(join));
  joining_ = std::move(channel);
}

void Job::placed(std::shared_ptr<Channel> channel, const std::string& bytes) {
  PlacedMessage message;
  FailedMessage failed;
  if (decode(bytes, &failed)) {
    channel->close();
    return fail({static_cast<trResult_t>(failed.code), failed.text});
  }
  if (!decode(bytes, &message) || message.ancestors.empty()) {
    channel->close();
    return fail({trInternalError, "the rendezvous root of the communicator sent something unexpected"});
  }
  placed_ = Clock::now();
  own_ = message.own;
  tree_.set_own(own_.process);
  // The numbers of interfaces do not travel.
  for (Address& address : own_.addresses)
    for (const Address& mine : agent_->interfaces())
      if (mine.same_bytes(address)) address.scope = mine.scope;
  search_.set_ancestors(message.ancestors);
  for (const auto& [rank, member] : members_) say_hello(*member);
  // A rendezvous root that was agreed on is found by TCP alone, but the memory of a host goes over its Unix sockets.
  const Place& first = search_.ancestors().front();
  const bool nearer = !channel->local() && first.host == own_.host && first.network == own_.network && first.local != 0;
  if (first.process == 0 && !nearer) return ask_to_attach(std::move(channel), first);
  channel->close();
  attach();
}

void Job::greet(std::shared_ptr<Channel> channel, const std::string& bytes) {
  const auto kind = kind_of(bytes);
  JoinMessage join;
  AttachMessage attach;
  if (kind == Kind::kIntroduction) return take_connection(channel, bytes);
  if (root_ && decode(bytes, &join)) {
    if (state_ == State::kRendezvous) {
      channel->send(encode(root_->place(join)));
    } else {
      const Status why =
          failure_.ok() ? Status(trInvalidUsage, "all ranks of this unique id have met already") : failure_;
      channel->send(encode(FailedMessage{static_cast<uint32_t>(why.code()), why.message()}));
    }
    // It may ask to be attached on the same connection.
    auto self = shared_from_this();
    Channel::Events events;
    events.frame = [self, channel](const std::string& next, int fd) {
      if (fd >= 0) ::close(fd);
      AttachMessage message;
      if (decode(next, &message)) return self->accept_child(channel, message);
      channel->close();
    };
    return channel->set_events(std::move(events));
  }
  if (kind == Kind::kNotice) return hear(std::move(channel), bytes);
  if (decode(bytes, &attach)) return accept_child(std::move(channel), attach);
  channel->close();
}

void Job::say_hello(const Member& member) {
  const JoinRequest& request = member.request;
  HelloMessage hello;
  hello.process = own_.process;
  hello.rank = request.rank;
  hello.ranks = request.ranks;
  hello.timeout_ms = request.timeout_ms;
  if (request.deadline != Clock::time_point::max())
    hello.timeout_ms = std::clamp(static_cast<int>(milliseconds(request.deadline - Clock::now())), 1,
                                  request.timeout_ms > 0 ? request.timeout_ms : INT_MAX);
  hello.segment_bytes = request.segment_bytes;
  hello.staging_bytes = request.staging_bytes;
  hello.pid = own_.pid;
  randombytes_buf(&hello.nonce, sizeof hello.nonce);
  hello.settings = request.settings;
  up(Kind::kHello, encode(hello));
}

// What flows up has arrived.
void Job::at_top(Kind kind, const std::string& bytes) {
  HelloMessage hello;
  BlobMessage blob;
  SpreadMessage verdict;
  if (kind == Kind::kHello && decode(bytes, &hello)) {
    take_hello(hello);
  } else if (kind == Kind::kBlob && decode(bytes, &blob)) {
    take_blob(blob);
  } else if (kind == Kind::kSpread && decode(bytes, &verdict) && !notices_.has_verdict()) {
    notify({.type = NoticeType::kVerdict, .code = verdict.code, .text = verdict.text});
  }
}

void Job::take_hello(const HelloMessage& hello) {
  if (state_ != State::kRendezvous || !root_) return;
  bool complete = false;
  if (Status status = root_->hello(hello, Clock::now(), &complete); !status.ok()) return fail(status);
  watch_deadline(root_->deadline());
  if (missing_timer_ == 0) {
    first_hello_ = Clock::now();
    tell_who_is_missing();
  }
  if (complete) take_process_table(root_->process_table(), -1);
}

void Job::watch_deadline(Clock::time_point deadline) {
  if (deadline_timer_ != 0) agent_->cancel(std::exchange(deadline_timer_, 0));
  if (deadline == Clock::time_point::max()) return;
  auto self = shared_from_this();
  deadline_timer_ = agent_->after(deadline - Clock::now(), [self] {
    self->deadline_timer_ = 0;
    if (Status status = self->deadline_passed(); !status.ok()) self->fail(status);
  });
}

Status Job::deadline_passed() const {
  if (!failure_.ok()) return failure_;  // the members may not have been told yet
  const bool in_rendezvous = state_ == State::kRendezvous;
  if (root_ && tree_.is_top() && (in_rendezvous || exchange_.is_under_way()))
    return root_->deadline_passed(in_rendezvous ? nullptr : &exchange_.parts());
  if (tree_.is_top() && exchange_.is_under_way())
    return {trTimeout, fmt::format("the deadline passed while {} waited for the other ranks' part of an exchange; "
                                   "missing: {}",
                                   tree_.describe(own_.process), exchange_.missing(tree_.process_table()))};
  const std::vector<Place>& ancestors = search_.ancestors();
  if (root_ || !in_rendezvous || ancestors.empty() || ancestors.front().process == 0) return {};
  // The parent, or the one that is asked to be it.
  const Place& parent = ancestors.front();
  if (tree_.has_parent() && !tree_.is_parent(parent.process)) return {};
  if (tree_.has_parent() && Clock::now() - links_.at(parent.process)->heard() < kSilence) return {};
  return {trTimeout,
          fmt::format(
              "the deadline passed while the ranks met: rank {} (pid {} on {}), through which rank {} (pid {} on {}) "
              "hears of the others, does not answer",
              parent.rank, parent.pid, parent.host_name, own_.rank, own_.pid, own_.host_name)};
}

// Ranks that wait for one that was never started hear of it before the deadline.
void Job::tell_who_is_missing() {
  auto self = shared_from_this();
  missing_timer_ = agent_->after(kToldWhoIsMissing, [self] {
    self->missing_timer_ = 0;
    if (self->state_ != State::kRendezvous || self->closed_) return;
    const auto deadline = self->root_->deadline();
    const std::string until = deadline == Clock::time_point::max()
                                  ? "there is no deadline"
                                  : fmt::format("the deadline (TREERING_TIMEOUT) is in {:.0f} s",
                                                milliseconds(deadline - Clock::now()) / 1000);
    log_line(LogLevel::kWarn,
             fmt::format("the first rank has been waiting for {:.0f} s for {}; {}",
                         milliseconds(Clock::now() - self->first_hello_) / 1000, self->root_->missing(nullptr), until));
    self->tell_who_is_missing();
  });
}

// This host's memory: made by its first process, received by the others.
int Job::host_segment(const ProcessTableMessage& table, int received) const {
  auto first = std::find_if(table.places.begin(), table.places.end(),
                            [this](const Place& place) { return place.host == own_.host; });
  if (first == table.places.end() || first->process != own_.process) return received;
  if (received >= 0) close(received);
  const int fd = memfd_create("treering-segment", MFD_CLOEXEC);
  if (fd >= 0 && ftruncate(fd, static_cast<off_t>(table.segment_bytes)) == 0) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

void Job::take_process_table(ProcessTableMessage table, int received) {
  auto known = [&](uint32_t process) { return process < table.places.size(); };
  if (state_ != State::kRendezvous || !known(own_.process) ||
      !std::all_of(table.process_of_rank.begin(), table.process_of_rank.end(), known)) {
    if (received >= 0) close(received);
    return;
  }
  watch_deadline(Clock::time_point::max());
  if (missing_timer_ != 0) agent_->cancel(std::exchange(missing_timer_, 0));
  state_ = State::kRunning;
  met_ = Clock::now();
  exchange_.answered(Kind::kHello);
  tree_.meet(std::move(table));
  segment_ = host_segment(tree_.process_table(), received);
  for (uint32_t child : tree_.children()) send_process_table(child);
  auto peers = std::make_shared<std::vector<PeerPlace>>();
  peers->reserve(tree_.ranks());
  std::vector<uint32_t> interfaces;
  for (const Place& place : tree_.process_table().places) interfaces.push_back(count_shared_interfaces(own_, place));
  for (uint32_t process : tree_.process_table().process_of_rank) {
    const Place& place = tree_.place(process);
    peers->push_back({place.pid, process, place.host, place.host_name, interfaces[process]});
  }
  for (auto& [rank, member] : members_)
    member->change([&, &member = member] {
      member->joined = true;
      member->staging_bytes = tree_.process_table().staging_bytes;
      member->peers = peers;
      if (segment_ >= 0) member->segment = fcntl(segment_, F_DUPFD_CLOEXEC, 3);
    });
  log_phases();
  start_ticking();
  maybe_finish();
}

void Job::send_process_table(uint32_t child) {
  Channel& channel = *links_.at(child);
  const bool has_segment = segment_ >= 0 && channel.takes_descriptors() && tree_.place(child).host == own_.host;
  channel.send(tree_.process_table_bytes(has_segment), has_segment ? fcntl(segment_, F_DUPFD_CLOEXEC, 3) : -1);
}

void Job::log_phases() const {
  if (!log_enabled(LogLevel::kInfo)) return;
  std::string addresses;
  for (const Address& address : own_.addresses) addresses += " " + to_text(address);
  const std::string& configured = agent_->identity().configured;
  log_line(
      LogLevel::kInfo,
      fmt::format(
          "rendezvous of process {} ({} ranks of {} here, parent {}, host {} '{}'{}, offers{} port {}): root found and "
          "authenticated after {:.1f} ms, placed {:.1f} ms, attached {:.1f} ms, all arrived {:.1f} ms",
          own_.process, members_.size(), tree_.ranks(), tree_.is_top() ? "none" : std::to_string(tree_.parent()),
          own_.host, own_.host_name, configured.empty() ? "" : fmt::format(" (TREERING_HOSTID {})", configured),
          addresses, own_.port, milliseconds(found_ - began_), milliseconds(placed_ - began_),
          milliseconds(attached_ - began_), milliseconds(Clock::now() - began_)));
}

void Job::give_blob(uint32_t rank, uint64_t round, std::string blob) {
  if (notices_.has_verdict()) return fail_exchange();
  // One that ended before this rank came so far has no part in the exchange, either.
  for (const NoticeMessage& notice : notices_.notices())
    if (notice.type == NoticeType::kLost && notice.process != own_.process && !tree_.has_left(notice.process))
      return fail_members({trRemoteError, tree_.say(notice)});
  up(Kind::kBlob, encode(BlobMessage{rank, round, std::move(blob)}));
}

void Job::take_blob(const BlobMessage& blob) {
  const bool is_first = !exchange_.is_under_way();
  if (state_ != State::kRunning || notices_.has_verdict() || !exchange_.take_part(blob, tree_.ranks())) return;
  if (is_first) watch_deadline(creation_deadline());
  for (uint32_t rank : tree_.ranks_that_left())
    if (root_ && !notices_.has_verdict() && exchange_.lacks(rank)) return fail(why_left(rank));
  const std::string all = exchange_.complete(tree_.ranks());
  if (all.empty()) return;
  watch_deadline(Clock::time_point::max());
  take_blobs(all);
}

void Job::take_blobs(const std::string& bytes) {
  const auto blobs = exchange_.finish_round(bytes, tree_.ranks());
  if (!blobs) return;
  if (segment_ >= 0) close(std::exchange(segment_, -1));  // all have the process table
  down(bytes);
  auto self = shared_from_this();
  // Afterwards, for what the blobs say may end this process.
  after_sending(Clock::now() + kSendingTimeout, [self, blobs, round = exchange_.round()] {
    for (auto& [rank, member] : self->members_)
      member->change([&, &member = member] {
        member->answered = round;
        member->answer = blobs;
      });
  });
}

// Once the children's connections have taken everything.
void Job::after_sending(Clock::time_point limit, std::function<void()> task) {
  const bool sending = std::any_of(tree_.children().begin(), tree_.children().end(),
                                   [this](uint32_t child) { return links_.at(child)->sending(); });
  if (!sending || Clock::now() > limit) return task();
  auto self = shared_from_this();
  agent_->after(std::chrono::milliseconds(1), [self, limit, task] { self->after_sending(limit, task); });
}

// The failure of those who wait for a rank that has left.
Status Job::why_left(uint32_t rank) const {
  const Status cause = notices_.cause_of_leaving(rank);
  return cause.ok() ? root_->lost_rank(rank) : cause;
}

// Its deadline is none any more.
void Job::end_exchange() {
  watch_deadline(Clock::time_point::max());
  exchange_.drop_parts();
}

// No rank gives its part of an exchange after a verdict.
void Job::fail_exchange() { fail_members(notices_.verdict()); }

void Job::fail_members(const Status& status) {
  for (auto& [rank, member] : members_)
    member->change([&, &member = member] {
      if (member->failure.ok()) member->failure = status;
    });
}

// Once all ranks have met, for all that follows: else each exchange could take as long as the whole creation may. All
// ranks have the same timeout. Only the rendezvous root can be without ranks of its own.
Clock::time_point Job::creation_deadline() const {
  int timeout_ms = root_ ? root_->timeout_ms() : 0;
  auto latest = Clock::time_point::max();
  if (!members_.empty()) {
    const JoinRequest& request = members_.begin()->second->request;
    if (!root_) timeout_ms = request.timeout_ms;
    latest = request.deadline;
  }
  return timeout_ms == 0 ? latest : std::min(latest, met_ + std::chrono::milliseconds(timeout_ms));
}

std::string Job::heard_through() const {
  if (state_ != State::kRunning || tree_.is_top()) return {};
  const std::string own = tree_.describe(own_.process);
  if (!tree_.has_parent()) return "no other process answers " + own;
  return fmt::format("{}, through which {} hears of the others, has not passed it on", tree_.describe(tree_.parent()),
                     own);
}

// The processes below heard of the others through this one alone.
void Job::give_up_rendezvous(const Status& status) {
  if (state_ == State::kRendezvous && !root_)
    down(encode(FailedMessage{static_cast<uint32_t>(status.code()), status.message()}));
}

// The ranks cannot meet, or an exchange cannot be completed. Those of this process are told last: when they fail, the
// process may end and this thread with it.
void Job::fail(const Status& status) {
  if (state_ == State::kFailed) return;
  state_ = State::kFailed;
  failure_ = status;
  watch_deadline(Clock::time_point::max());
  if (dial_) std::exchange(dial_, nullptr)->cancel();
  down(encode(FailedMessage{static_cast<uint32_t>(status.code()), status.message()}));
  auto self = shared_from_this();
  after_sending(Clock::now() + kSendingTimeout, [self, status] {
    self->fail_members(status);
    self->maybe_finish();
  });
  agent_->after(kLateArrivals, [self] { self->finish(); });
}

}  // namespace treering
