// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/job/job.h"

#include <fmt/format.h>
#include <malloc.h>
#include <sodium.h>
#include <unistd.h>

#include "core/log.h"

namespace treering {
namespace {

constexpr auto kLateArrivals = std::chrono::seconds(5);        // are told why the rendezvous failed
constexpr auto kLateAtExit = std::chrono::milliseconds(1000);  // and so long by a process that ends
[[maybe_unused]] constexpr size_t kManyRanks = 64;

double milliseconds(Clock::duration time) { return std::chrono::duration<double, std::milli>(time).count(); }

std::string failed_message(const Status& status) {
  return encode(FailedMessage{static_cast<uint32_t>(status.code()), status.message()});
}

}  // namespace

Job::Job(Agent* agent, const UniqueId& id)
    : context_{.agent = agent, .id = id, .hold = [this] { return shared_from_this(); }, .own = {}},
      connections_(context_, tree_,
                   {.message = [this](uint32_t from, const std::string& bytes, int fd) { on_message(from, bytes, fd); },
                    .broken = [this](uint32_t process, const auto& broken) { on_broken(process, broken); }}),
      notices_(context_, tree_, connections_, [this](const NoticeMessage& notice) { apply(notice); }),
      root_client_(context_, {.placed =
                                  [this](PlacedMessage message, std::shared_ptr<SecureConnection> connection) {
                                    placed(std::move(message), std::move(connection));
                                  },
                              .failed = [this](const Status& status) { fail(status); }}),
      rendezvous_(context_, tree_, connections_, members_,
                  {.met = [this] { met(); }, .failed = [this](const Status& status) { fail(status); }}),
      exchanger_(context_, tree_, detector_, connections_, members_, notices_.log(), rendezvous_,
                 {.hello = [this](const HelloMessage& hello) { rendezvous_.take_hello(hello); },
                  .verdict =
                      [this](const SpreadMessage& verdict) {
                        notices_.notify({.type = NoticeType::kVerdict, .code = verdict.code, .text = verdict.text});
                      },
                  .failed = [this](const Status& status) { fail(status); }}),
      seeker_(context_, tree_, detector_, connections_,
              {.request =
                   [this] {
                     return AttachMessage{tree_.own(), context_.runs(), exchanger_.round()};
                   },
               .attached = [this](std::shared_ptr<SecureConnection> connection, uint32_t parent,
                                  uint64_t round) { attached(std::move(connection), parent, round); },
               .failed = [this](const Status& status) { fail(status); },
               .become_top = [this] { become_top(); },
               .ended = [this] { maybe_finish(); }}),
      teller_(context_, tree_, detector_, seeker_.search(), notices_.log(), [this] { maybe_finish(); }),
      liveness_(context_, tree_, detector_, connections_, members_,
                {.notify = [this](NoticeMessage notice) { notices_.notify(std::move(notice)); },
                 .parent_silent = [this] { seeker_.seek(); },
                 .looked = [this] { teller_.tell(); },
                 .other_part = [this](uint32_t process) { seeker_.seek_part(process); },
                 .ticked = [this] { maybe_finish(); }}),
      rank_messages_(context_, tree_, connections_, members_),
      connector_(context_, tree_, members_, [this](const Status& status) { fail_at_own_limit(status); }) {}

Job::~Job() {
#ifdef __GLIBC__
  // With many ranks the exchanges took as much memory as all that is kept. The allocator would hold it for good.
  if (tree_.ranks() > kManyRanks) {
    tree_ = {};
    malloc_trim(0);
  }
#endif
}

void Job::serve(const Place& own, const std::vector<std::string>& names) {
  context_.own = rendezvous_.serve(own, names);
  tree_.set_own(context_.own.process);
  tree_.become_top();
  root_client_.is_root();
  attached_ = root_client_.times().found;
}

void Job::add_member(const Place& own, const std::shared_ptr<Member>& member) {
  if (!meets()) {
    const Status late = !failure_.ok() ? failure_
                                       : Status(trInvalidUsage, fmt::format("rank {}: all ranks of this unique id have "
                                                                            "met already; make a new one",
                                                                            member->request.rank));
    return member->change([&] { member->failure = late; });
  }
  members_.add(member);
  if (attached_ != Clock::time_point()) member->change([&] { member->reach = attached_ - root_client_.times().found; });
  if (tree_.own() != kNobody) return say_hello(*member);
  if (root_client_.has_started()) return;
  context_.own = own;
  context_.own.rank = member->request.rank;
  root_client_.start(deadline_of(member->request, Clock::now()));
}

void Job::placed(PlacedMessage placed, std::shared_ptr<SecureConnection> connection) {
  context_.own = std::move(placed.own);
  tree_.set_own(context_.own.process);
  seeker_.set_ancestors(std::move(placed.ancestors));
  for (const auto& [rank, member] : members_.all()) say_hello(*member);
  // A rendezvous root that was agreed on is found by TCP alone, but the memory of a host goes over its Unix sockets.
  const Place& own = context_.own;
  const Place& first = seeker_.search().ancestors().front();
  const bool nearer =
      !connection->local() && first.host == own.host && first.network == own.network && first.local != 0;
  if (first.process == 0 && !nearer) return seeker_.ask_first(std::move(connection));
  connection->close();
  seeker_.seek();
}

void Job::say_hello(const Member& member) {
  uint64_t nonce = 0;
  randombytes_buf(&nonce, sizeof nonce);
  exchanger_.up(Kind::kHello, encode(make_hello(member.request, context_.own, nonce, Clock::now())));
}

void Job::greet(std::shared_ptr<SecureConnection> connection, const std::string& bytes) {
  const auto kind = kind_of(bytes);
  JoinMessage join;
  AttachMessage attach;
  if (kind == Kind::kIntroduction) return connector_.accept(connection, bytes);
  if (is_root() && decode(bytes, &join)) return answer_join(connection, join);
  if (kind == Kind::kNotice) return notices_.hear(std::move(connection), bytes);
  if (decode(bytes, &attach)) return accept_child(std::move(connection), attach);
  connection->close();
}

void Job::answer_join(const std::shared_ptr<SecureConnection>& connection, const JoinMessage& join) {
  if (meets())
    connection->send(encode(rendezvous_.place(join)));
  else
    connection->send(failed_message(
        failure_.ok() ? Status(trInvalidUsage, "all ranks of this unique id have met already") : failure_));
  // It may ask to be attached on the same connection.
  SecureConnection::Events events;
  events.frame = [self = shared_from_this(), connection](const std::string& next, int fd) {
    if (fd >= 0) ::close(fd);
    AttachMessage message;
    if (decode(next, &message)) return self->accept_child(connection, message);
    connection->close();
  };
  connection->set_events(std::move(events));
}

void Job::attached(std::shared_ptr<SecureConnection> connection, uint32_t parent, uint64_t round) {
  if (context_.closed) return connection->close();
  if (attached_ == Clock::time_point()) {
    attached_ = Clock::now();
    members_.change([&](Member& member) { member.reach = attached_ - root_client_.times().found; });
  }
  connections_.part_from_parent(parent);
  if (tree_.is_top()) exchanger_.hand_over();
  detector_.connected(parent);
  connections_.add_parent(parent, std::move(connection));
  members_.tree_changed();
  liveness_.publish_silence();  // it may be of the parent before
  // Before the notices: one that a rank has left would end an exchange whose blobs the parent lacks.
  exchanger_.bring_up_to_date(parent, round);
  notices_.tell_all(parent);
  exchanger_.attached(parent);
  if (context_.runs() && tree_.parent_of(tree_.own()) != parent) tell_parent(parent);
  liveness_.start_ticking();
  seeker_.follow_reparented();
  maybe_finish();
}

void Job::become_top() {
  detector_.become_top(Clock::now());
  liveness_.start_ticking();
  connections_.part_from_parent(tree_.own());
  tree_.become_top();
  tell_parent(kNobody);
  exchanger_.become_top();
}

void Job::tell_parent(uint32_t parent) {
  notices_.notify({.type = NoticeType::kMoved, .process = tree_.own(), .other = parent});
}

void Job::accept_child(std::shared_ptr<SecureConnection> connection, const AttachMessage& attach) {
  const uint32_t process = attach.process;
  if (context_.closed || process == tree_.own() || (tree_.has_met() && process >= tree_.size()))
    return connection->close();
  if (tree_.is_parent(process)) return connection->close();
  // A top that attaches to a process of a lower number takes none of these: each would be above the other. They come where
  // an old connection has told them that this is a top.
  if (context_.runs() && process < tree_.own() && seeker_.is_dialing()) return connection->close();
  connection->send(encode(AttachedMessage{tree_.own(), exchanger_.round()}));
  detector_.connected(process);
  connections_.add_child(process, std::move(connection));
  members_.tree_changed();
  if (context_.runs() && !attach.has_process_table) rendezvous_.send_process_table(process);
  if (context_.runs()) exchanger_.bring_up_to_date(process, attach.round);
  notices_.tell_all(process);
  if (context_.has_failed()) connections_.send(process, failed_message(failure_));
  liveness_.report_heard(process);
  liveness_.start_ticking();
}

void Job::on_message(uint32_t from, const std::string& bytes, int fd) {
  const auto kind = kind_of(bytes);
  const bool from_parent = tree_.is_parent(from);
  ProcessTableMessage table;
  if (from_parent && decode(bytes, &table)) return rendezvous_.take_process_table(std::move(table), fd);
  if (fd >= 0) ::close(fd);
  if (!kind) return;
  NoticeMessage notice;
  FailedMessage failed;
  MovingMessage moving;
  switch (*kind) {
    case Kind::kHello:
    case Kind::kBlob:
    case Kind::kSpread:
      if (!from_parent) exchanger_.up(*kind, bytes);
      break;
    case Kind::kBlobs:
      exchanger_.take_blobs(bytes, from);
      break;
    case Kind::kFailed:
      if (from_parent && decode(bytes, &failed)) fail({static_cast<trResult_t>(failed.code), failed.text});
      break;
    case Kind::kNotice:
      if (decode(bytes, &notice)) notices_.take(notice, from);
      break;
    case Kind::kMoving:
      if (decode(bytes, &moving)) on_moving(from, moving);
      break;
    case Kind::kQuestion:
      rank_messages_.take_question(bytes, from);
      break;
    case Kind::kAnswer:
      rank_messages_.take_answer(bytes, from);
      break;
    case Kind::kIntroduction:
      rank_messages_.take_introduction(bytes, from);
      break;
    default:  // kHeartbeat: that it was heard is all
      break;
  }
}

// A child has another parent, or has left. It may have had to, because this process did not answer for a while.
void Job::on_moving(uint32_t from, const MovingMessage& message) {
  if (message.process == from) connections_.end(from);
  members_.tree_changed();
  if (context_.runs() && message.new_top != tree_.own() && message.new_top < tree_.size())
    seeker_.follow(message, from);
  maybe_finish();
}

void Job::on_broken(uint32_t process, const FailureDetector::Broken& broken) {
  members_.tree_changed();
  if (tree_.has_left(process)) {
    detector_.relay_is_gone(process, Clock::now());
  } else if (!context_.has_failed()) {
    detector_.connection_ended(process, broken);
    liveness_.examine(process);
  }
  if (context_.closed) return;
  if (broken.was_parent && !context_.has_failed()) seeker_.seek();
  maybe_finish();
}

void Job::apply(const NoticeMessage& notice) {
  switch (notice.type) {
    case NoticeType::kVerdict:
      exchanger_.take_verdict();
      members_.tell([code = notice.code, text = notice.text](const MemberEvents& events) {
        if (events.on_verdict) events.on_verdict(code, text);
      });
      return teller_.tell();
    case NoticeType::kLost:
      return apply_loss(notice);
    case NoticeType::kSilent:
      return liveness_.take_silence(notice);
    case NoticeType::kHeard:
      return liveness_.take_heard(notice.process);
    case NoticeType::kMoved:
      tree_.move(notice.process, notice.other);
      members_.tree_changed();
      return liveness_.take_move(notice.process);
    case NoticeType::kRankLeft: {
      const Status cause(static_cast<trResult_t>(notice.code), notice.text);
      tree_.rank_left(notice.other);
      exchanger_.take_leaving(notice.other);
      return members_.tell([left = notice.other, cause](const MemberEvents& events) {
        if (events.on_left) events.on_left(left, cause);
      });
    }
    case NoticeType::kDissolved:
      for (uint32_t rank : tree_.ranks_of(notice.process)) tree_.rank_left(rank);
      return;
  }
}

void Job::apply_loss(const NoticeMessage& notice) {
  if (!liveness_.take_loss(notice.process) || exchanger_.take_loss(notice)) return;
  if (!context_.runs() || tree_.has_left(notice.process)) return;
  const std::vector<uint32_t> ranks = tree_.present_ranks(notice.process);
  if (ranks.empty()) return;
  // Members name the rank themselves.
  members_.tell([ranks, text = ranks.size() == 1 ? notice.text : tree_.say(notice)](const MemberEvents& events) {
    if (events.on_lost) events.on_lost(ranks, text);
  });
}

void Job::introduce(uint32_t source, uint32_t peer, const Introduction& introduction) {
  const auto member = members_.find(source);
  if (!member || meets()) return;
  if (introduction.connects) return connector_.connect(member, peer, introduction);
  rank_messages_.take_introduction(encode(IntroductionMessage{source, peer, introduction.bytes}), tree_.own());
}

void Job::met() {
  context_.phase = JobContext::Phase::kRunning;
  exchanger_.met();
  log_phases();
  // It has moved while the ranks met: the process table has its first place.
  if (tree_.has_parent() && tree_.parent_of(tree_.own()) != tree_.parent()) tell_parent(tree_.parent());
  liveness_.start_ticking();
  maybe_finish();
}

void Job::log_phases() const {
  if (!log_enabled(LogLevel::kInfo)) return;
  const Place& own = context_.own;
  const RootClient::Times& times = root_client_.times();
  std::string addresses;
  for (const Address& address : own.addresses) addresses += " " + to_text(address);
  const std::string& configured = context_.agent->identity().configured;
  log_line(
      LogLevel::kInfo,
      fmt::format(
          "rendezvous of process {} ({} ranks of {} here, parent {}, host {} '{}'{}, offers{} port {}): root found and "
          "authenticated after {:.1f} ms, placed {:.1f} ms, attached {:.1f} ms, all arrived {:.1f} ms",
          own.process, members_.all().size(), tree_.ranks(), tree_.is_top() ? "none" : std::to_string(tree_.parent()),
          own.host, own.host_name, configured.empty() ? "" : fmt::format(" (TREERING_HOSTID {})", configured),
          addresses, own.port, milliseconds(times.found - times.began), milliseconds(times.placed - times.began),
          milliseconds(attached_ - times.began), milliseconds(Clock::now() - times.began)));
}

Status Job::deadline_passed() const {
  if (!failure_.ok()) return failure_;  // the members may not have been told yet
  if (Status status = exchanger_.deadline_passed(); !status.ok()) return status;
  if (is_root() || !meets()) return {};
  const auto heard = tree_.has_parent() ? connections_.heard(tree_.parent()) : Clock::time_point();
  return seeker_.search().deadline_passed(context_.own, heard, Clock::now());
}

void Job::spread(uint32_t code, const std::string& text) {
  if (!notices_.log().has_verdict()) exchanger_.up(Kind::kSpread, encode(SpreadMessage{code, text}));
}

void Job::fail_at_own_limit(const Status& status) {
  if (context_.closed || notices_.log().has_verdict() || context_.has_failed()) return;
  if (context_.runs()) {
    spread(static_cast<uint32_t>(status.code()), fmt::format("{}: {}", tree_.describe(tree_.own()), status.message()));
  } else if (is_root()) {
    fail({status.code(), fmt::format("the process that made the unique id (pid {} on {}): {}", context_.own.pid,
                                     context_.own.host_name, status.message())});
  }
}

// The processes below heard of the others through this one alone.
void Job::give_up_rendezvous(const Status& status) {
  if (meets() && !is_root()) connections_.send_to_children(failed_message(status));
}

// The ranks cannot meet, or an exchange cannot be completed. Those of this process are told last: when they fail, the
// process may end and this thread with it.
void Job::fail(const Status& status) {
  if (context_.has_failed()) return;
  context_.phase = JobContext::Phase::kFailed;
  failure_ = status;
  failed_at_ = Clock::now();
  rendezvous_.stop_deadline();
  exchanger_.stop_deadline();
  root_client_.stop_dialing();
  seeker_.stop_dialing();
  connections_.send_to_children(failed_message(status));
  connections_.after_sending([this, status] {
    members_.fail(status);
    maybe_finish();
  });
  context_.after(kLateArrivals, [this] { finish(); });
}

// What this process has told last would be lost with its parent. If that is not heard soon, another one is sought.
bool Job::waits_for_parent() const {
  return context_.runs() && !context_.closed && members_.all_have_left() && connections_.has(tree_.parent()) &&
         detector_.is_overdue(Clock::now() - connections_.heard(tree_.parent()));
}

bool Job::must_stay() const {
  const bool may_tell_late_ranks = is_root() && context_.has_failed() && !rendezvous_.root()->has_all();
  return teller_.must_stay() || tells_another_part() || waits_for_parent() ||
         (may_tell_late_ranks && Clock::now() < failed_at_ + kLateAtExit);
}

void Job::leave(uint32_t rank, bool dissolved, const Status& cause) {
  if (!members_.leave(rank) || context_.closed) return;
  const bool all_left = members_.all_have_left();
  if (dissolved && context_.runs()) {
    tree_.rank_left(rank);
    if (all_left) notices_.tell_dissolved();
  } else if (!context_.has_failed() && tree_.own() != kNobody) {
    notices_.notify({.type = NoticeType::kRankLeft,
                     .process = tree_.own(),
                     .other = rank,
                     .code = static_cast<uint32_t>(cause.code()),
                     .text = cause.message()});
  }
  if (meets() && all_left && !is_root()) return finish();
  maybe_finish();
}

void Job::maybe_finish() {
  // A new parent that has not been told that this process leaves would take its end for a death. It may also lack what
  // all gave in an exchange that was complete here.
  if (context_.closed || meets() || seeker_.lacks_parent() || seeker_.is_dialing()) return;
  if (!members_.all_have_left() || (is_root() && context_.has_failed())) return;
  // A child that does not answer finds another parent when it can: it would hold this process for ever.
  if (detector_.hears_a_child() && !detector_.is_over(Clock::now())) return;
  if (waits_for_parent()) return;
  teller_.leave(Clock::now());
  if (teller_.must_stay()) return teller_.stay();
  finish();
}

void Job::finish() {
  if (context_.closed) return;
  context_.closed = true;
  auto self = shared_from_this();
  const UniqueId& id = context_.id;
  if (is_root() && id.root_local != 0)
    context_.agent->rendezvous_ended(id.job, !context_.has_failed() && tree_.has_met());
  rendezvous_.close();
  exchanger_.stop_deadline();
  liveness_.close();
  teller_.close();
  root_client_.close();
  seeker_.close();  // before the connections, which take what it leaves
  connector_.close();
  connections_.close();
  context_.agent->remove_job(id.job);
}

}  // namespace treering
