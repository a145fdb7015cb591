// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/membership.h"

#include <fmt/format.h>
#include <sodium.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "bootstrap/agent.h"
#include "bootstrap/job/job.h"
#include "bootstrap/member.h"
#include "core/log.h"

namespace treering {
namespace {

// Between two looks at what else there is to do in a wait: at the guard and the links, for each so many ranks, or only
// whether the agent still stands. A thousand ranks of a machine that looked more often would leave it no time for
// anything else.
constexpr auto kOftenLook = std::chrono::milliseconds(20), kAgentLook = std::chrono::milliseconds(1000);
constexpr uint32_t kRanksOfLook = 64;
constexpr auto kNewsOfGuard = std::chrono::milliseconds(300);
// How long a rank that leaves waits for a new place in the tree, where the old one has just ended.
constexpr auto kSeeking = std::chrono::milliseconds(200);

constexpr const char* kPorts = "TREERING_PORT says which to use, one for each process of this machine";
constexpr const char* kMastersPort =
    "It must be free for rank 0: is a rank 0 running already? If not, choose another MASTER_PORT";

// Starts a job whose ranks meet in this process; `complete` makes its id from where the process listens.
Status serve(const Config& config, const char* ports, const std::vector<std::string>& names,
             const std::function<UniqueId(const Place& own)>& complete) {
  Agent& agent = Agent::instance();
  Status status;
  TR_RETURN_IF_ERROR(agent.call([&] {
    Place own;
    status = agent.open(config, ports, &own);
    if (!status.ok()) return;
    const UniqueId id = complete(own);
    auto job = std::make_shared<Job>(&agent, id);
    job->serve(own, names);
    agent.add_job(id.job, job);
  }));
  return status;
}

}  // namespace

Status Membership::make_rendezvous_root(UniqueId* id, const std::vector<std::string>& names) {
  TR_RETURN_IF_ERROR(make_unique_id(id));
  Config config;
  TR_RETURN_IF_ERROR(resolve_config(nullptr, &config));
  return serve(config, kPorts, names, [id](const Place& own) {
    id->root_local = own.local;
    id->root_network = own.network;
    id->port = own.port;
    pack_addresses(own.addresses, id->addresses, sizeof id->addresses);
    return *id;
  });
}

Status Membership::rendezvous_root_at(const std::string& host, uint16_t port, const std::string& secret,
                                      uint32_t number, bool root, UniqueId* id) {
  TR_RETURN_IF_ERROR(make_unique_id(id));
  Config config;
  TR_RETURN_IF_ERROR(resolve_config(nullptr, &config));
  std::vector<Address> addresses;
  TR_RETURN_IF_ERROR(resolve_host(host, config.socket_family, &addresses));
  // They follow from the text, as a name is not the same address everywhere: Debian gives a host's own name 127.0.1.1.
  const auto derive = [&](const char* purpose, unsigned char* bytes, size_t count) {
    const std::string text = fmt::format("{}\n{}\n{}\n{}\n{}", purpose, host, port, number, secret);
    crypto_generichash(bytes, count, reinterpret_cast<const unsigned char*>(text.data()), text.size(), nullptr, 0);
  };
  derive("treering job", id->job.data(), id->job.size());
  derive("treering secret", id->secret.data(), id->secret.size());
  id->root_pid = 0;
  id->port = port;
  pack_addresses(addresses, id->addresses, sizeof id->addresses);
  // A loopback address means this machine.
  if (std::any_of(addresses.begin(), addresses.end(), [](const Address& each) { return each.loopback(); }))
    id->root_network = identify_host(config.host_id).network;
  if (!root) return {};
  config.first_port = config.last_port = port;
  uint16_t listens_on = 0;
  TR_RETURN_IF_ERROR(serve(config, kMastersPort, {}, [&](const Place& own) {
    listens_on = own.port;
    return *id;
  }));
  if (listens_on == port) return {};
  TR_RETURN_IF_ERROR(Agent::instance().call([&] { Agent::instance().remove_job(id->job); }));
  return {trInvalidUsage,
          fmt::format("the ranks meet on port {}, but this process listens on port {} already, for another "
                      "communicator: create the one from the environment first",
                      port, listens_on)};
}

Status Membership::join(const UniqueId& id, const JoinRequest& request, std::unique_ptr<Membership>* result,
                        const CreationTerms& terms) {
  Agent& agent = Agent::instance();
  auto member = std::make_shared<Member>();
  member->request = request;
  Config config;
  TR_RETURN_IF_ERROR(resolve_config(nullptr, &config));
  std::shared_ptr<Job> job;
  Status status;
  TR_RETURN_IF_ERROR(agent.call([&] {
    Place own;
    status = agent.open(config, kPorts, &own);
    if (!status.ok()) return;
    job = agent.find_job(id.job);
    if (!job) {
      job = std::make_shared<Job>(&agent, id);
      agent.add_job(id.job, job);
    }
    job->add_member(own, member);
  }));
  TR_RETURN_IF_ERROR(status);
  std::unique_ptr<Membership> made(new Membership(&agent, std::move(job), std::move(member)));
  made->guard_ = terms.guard;
  made->progress_ = terms.serve;
  made->start_deadline();
  TR_RETURN_IF_ERROR(made->wait_for([&] { return made->member_->joined; }, "for the other ranks to arrive"));
  made->start_deadline();
  *result = std::move(made);
  return {};
}

Membership::Membership(Agent* agent, std::shared_ptr<Job> job, std::shared_ptr<Member> member)
    : agent_(agent), job_(std::move(job)), member_(std::move(member)) {}

Membership::~Membership() {
  if (!agent_->of_this_process()) return;  // in a forked child: the rank is the parent's
  (void)agent_->call([this] { job_->leave(member_->request.rank, dissolved_, cause_); });
  // The process may end right after this. A creation that came to its deadline has little time left for that.
  const bool is_late = member_->creates && cause_.code() == trTimeout;
  const auto deadline = Clock::now() + (is_late ? kSeeking / 4 : kSeeking);
  for (bool seeks = true; seeks && Clock::now() < deadline;) {
    seeks = false;
    (void)agent_->call([this, &seeks] { seeks = job_->seeks_parent(); });
    if (seeks) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const bool released = agent_->call([this] { job_.reset(); }).ok();
  if (released && member_->segment >= 0) close(member_->segment);
  if (released) return;
  keep_for_ever(std::move(job_));
  keep_for_ever(std::move(member_));
}

bool Membership::has_descriptors() const { return agent_->has_pipe(); }

Status Membership::descriptors_closed() { return Agent::descriptors_closed(); }

void Membership::keep_for_ever(std::shared_ptr<void> owner_of_descriptors) {
  static std::mutex mutex;
  static auto* all = new std::vector<std::shared_ptr<void>>;
  std::lock_guard lock(mutex);
  all->push_back(std::move(owner_of_descriptors));
}

void Membership::end_creation() {
  guard_ = {};
  progress_ = {};
  member_->creates = false;
}

void Membership::start_deadline() {
  deadline_ = member_->request.deadline;
  if (const int timeout_ms = member_->request.timeout_ms; timeout_ms > 0)
    deadline_ = std::min(deadline_, Clock::now() + std::chrono::milliseconds(timeout_ms));
}

Status Membership::wait_for(const std::function<bool()>& condition, const char* what) {
  const JoinRequest& request = member_->request;
  const auto done = [&] { return condition() || !member_->failure.ok(); };
  const auto look = guard_ || progress_ ? kOftenLook * ((request.ranks + kRanksOfLook - 1) / kRanksOfLook) : kAgentLook;
  Clock::duration lateness{};
  std::unique_lock lock(member_->mutex);
  for (;;) {
    // The rendezvous root's deadline is the earlier one, because its message names who is missing.
    // Others may have heard later that all have met. No silence is known of: the way to the root stands, and its news
    // comes. While the ranks still meet, silence is not looked for.
    const auto last = [&] {
      if (deadline_ == Clock::time_point::max()) return deadline_;
      const bool hears = member_->joined && member_->silent.empty();
      return deadline_ + (hears ? kMaxNewsTime : time_for_news(lateness, member_->reach));
    };
    const auto next = std::min(last(), Clock::now() + look);
    if (member_->changed.wait_until(lock, next, done)) break;
    const auto now = Clock::now();
    lateness = std::max(lateness, now - next);
    if (now >= last()) {
      lock.unlock();
      return deadline_passed(what);
    }
    if (!agent_->stands()) return Agent::descriptors_closed();
    lock.unlock();
    if (progress_) progress_();
    Status status = guard_ ? guard_() : Status();
    lock.lock();
    if (!status.ok()) {
      leave_because(status);
      return status;
    }
  }
  if (condition()) return {};
  const Status failure = member_->failure;
  lock.unlock();
  return in_words_of_guard(failure);
}

// The guard knows the ranks by the names that the user gave them, and may be about to hear of the same end.
Status Membership::in_words_of_guard(const Status& failure) const {
  for (const auto until = Clock::now() + kNewsOfGuard;
       guard_ && failure.code() == trRemoteError && Clock::now() < until;) {
    Status better = guard_();
    if (!better.ok()) return better;
    if (progress_) progress_();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return failure;
}

void Membership::end_rendezvous(const UniqueId& id, const Status& status) {
  Agent& agent = Agent::instance();
  (void)agent.call([&] {
    if (const auto job = agent.find_job(id.job)) job->end_rendezvous(status);
  });
}

std::string Membership::heard_through() const {
  std::string text;
  (void)agent_->call([&] { text = job_->heard_through(); });
  return text;
}

Status Membership::deadline_passed(const char* what) const {
  Status status;
  // The rendezvous root names those that are missing. It may be in this process, and have more time than this call.
  std::string heard_through;
  (void)agent_->call([&] {
    status = job_->deadline_passed();
    heard_through = job_->heard_through();
  });
  const auto tell_those_below = [this](const Status& why) {
    agent_->post([job = job_, why] { job->give_up_rendezvous(why); });
  };
  if (!status.ok()) {
    tell_those_below(status);
    return status;
  }
  {
    std::lock_guard lock(member_->mutex);
    if (!member_->failure.ok()) return member_->failure;  // it has come meanwhile
  }
  const uint32_t rank = member_->request.rank;
  status = {trTimeout, fmt::format("the deadline passed while rank {} (pid {}) waited {}: {}", rank, getpid(), what,
                                   who_is_silent(heard_through))};
  tell_those_below(status);
  return status;
}

// Names the processes that do not answer. A rendezvous root in another process would have named others earlier.
std::string Membership::who_is_silent(const std::string& heard_through) const {
  std::lock_guard lock(member_->mutex);
  std::string text;
  for (const SilentRanks& silent : member_->silent) text += (text.empty() ? "" : "; ") + silent.text();
  if (!text.empty()) return text;
  if (!heard_through.empty()) return heard_through;
  return fmt::format("the process that made the unique id (pid {}) does not answer", job_->id().root_pid);
}

Status Membership::allgather(const std::string& blob, Blobs* all) {
  const uint64_t round = ++round_;
  agent_->post([job = job_, rank = member_->request.rank, round, blob] { job->give_blob(rank, round, blob); });
  TR_RETURN_IF_ERROR(wait_for([&] { return member_->answered >= round; }, "for the other ranks' part of an exchange"));
  std::lock_guard lock(member_->mutex);
  *all = std::move(member_->answer);
  return {};
}

Status Membership::creation_failure() const {
  if (guard_) TR_RETURN_IF_ERROR(guard_());
  const Status failed = failure();
  return failed.ok() || failed.code() == trTimeout ? Status() : in_words_of_guard(failed);
}

Status Membership::failure() const {
  std::lock_guard lock(member_->mutex);
  return member_->failure;
}

uint64_t Membership::staging_bytes() const {
  std::lock_guard lock(member_->mutex);
  return member_->staging_bytes;
}

int Membership::take_segment() {
  std::lock_guard lock(member_->mutex);
  return std::exchange(member_->segment, -1);
}

bool Membership::lost_segment() const {
  std::lock_guard lock(member_->mutex);
  return member_->lost_segment;
}

const std::vector<PeerPlace>& Membership::peers() const { return *member_->peers; }
std::shared_ptr<const std::vector<PeerPlace>> Membership::share_peers() const { return member_->peers; }

void Membership::set_events(MemberEvents events) {
  (void)agent_->call([this, &events] {
    member_->events = std::move(events);
    member_->has_events = true;
    for (auto& event : std::exchange(member_->waiting, {})) event(member_->events);
  });
}

void Membership::spread(uint32_t code, const std::string& text) {
  agent_->post([job = job_, code, text] { job->spread(code, text); });
}

std::string SilentRanks::text() const {
  if (!timed) return reason;
  return fmt::format("{} ({:.1f} s by now)", reason, std::chrono::duration<double>(Clock::now() - since).count());
}

OwnPause Membership::own_pause() const {
  const auto now = Clock::now();
  const bool ticks = agent_->stands();  // an agent that has ended leaves `ticked` as it was
  std::lock_guard lock(member_->mutex);
  // It may be over for this thread, and not yet for the agent's.
  if (ticks && member_->ticked && now - *member_->ticked > kOwnPause) return {now - *member_->ticked, now};
  return member_->own_pause;
}

Clock::duration Membership::reach() const {
  std::lock_guard lock(member_->mutex);
  return member_->reach;
}

std::vector<SilentRanks> Membership::silent() const {
  std::lock_guard lock(member_->mutex);
  return member_->silent;
}

std::optional<SilentRanks> Membership::silent_relay() const {
  std::lock_guard lock(member_->mutex);
  return member_->silent_relay;
}

// A rank that waits for an answer asks thousands of times in a millisecond, and the agent's thread may get little of a
// busy processor. Questions that it cannot keep up with would queue up before all else, introductions among them: so
// they wait here, and it takes them when it comes to it.
void Membership::request_status(uint32_t rank) {
  std::lock_guard lock(member_->mutex);
  const Clock::time_point now = Clock::now();
  if (!member_->questions) member_->questions.emplace(member_->request.ranks);
  member_->questions->want(rank, now);
  if (member_->is_asking_posted || !member_->questions->has_next(now)) return;
  agent_->post([job = job_, member = member_] {
    std::vector<uint32_t> due;
    const Clock::time_point when = Clock::now();
    {
      std::lock_guard lock(member->mutex);
      member->is_asking_posted = false;
      while (const auto next = member->questions->next(when)) due.push_back(*next);
    }
    for (const uint32_t next : due) job->ask(member->request.rank, next, when);
  });
  member_->is_asking_posted = true;  // the agent's thread sees it: it takes the mutex
}

bool Membership::latest_status(uint32_t rank, std::string* bytes, Clock::time_point* when) const {
  std::lock_guard lock(member_->mutex);
  auto found = member_->statuses.find(rank);
  if (found == member_->statuses.end()) return false;
  *bytes = found->second.bytes;
  *when = found->second.came;
  return true;
}

void Membership::introduce(uint32_t peer, Introduction introduction) {
  Status refused;
  if (introduction.bytes.size() > kMaxIntroductionBytes + kIntroductionOverhead)
    refused = {trInvalidArgument, fmt::format("an introduction of {} bytes; it may have {}", introduction.bytes.size(),
                                              kMaxIntroductionBytes)};
  // No answer would come, and no event be told on the agent's thread.
  if (!agent_->stands()) refused = Agent::descriptors_closed();
  if (!refused.ok() && !introduction.connects)
    return log_line(LogLevel::kError, fmt::format("introduction to rank {}: {}", peer, refused.message()));
  const auto tell = [member = member_, peer, introduction, refused] {
    member->tell([=](const MemberEvents& events) {
      if (events.on_connected) events.on_connected(peer, introduction.bytes, refused, -1);
    });
  };
  if (!agent_->stands()) return tell();
  agent_->post([job = job_, own = member_->request.rank, peer, introduction = std::move(introduction), refused, tell] {
    if (refused.ok())
      job->introduce(own, peer, introduction);
    else
      tell();
  });
}

}  // namespace treering
