// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/agent.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sodium.h>
#include <sys/epoll.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "bootstrap/dial.h"
#include "bootstrap/job/job.h"
#include "bootstrap/local_socket.h"
#include "core/background_thread.h"
#include "core/forked_sockets.h"
#include "core/log.h"
#include "core/process.h"
#include "core/tcp_sockets.h"

namespace treering {
namespace {

constexpr size_t kStackBytes = 256 << 10;
constexpr size_t kMaxPendingConnections = 128;  // connections that have not said what they want
// So long none gives way to another, which waits in the listener's queue: a process of a job needs a millisecond, and
// more where all come at once to a busy one.
constexpr auto kYoung = std::chrono::milliseconds(250);
constexpr auto kPendingTimeout = std::chrono::seconds(5);
constexpr int kAcceptAtOnce = 32;
constexpr auto kAcceptPause = std::chrono::milliseconds(20);
constexpr auto kDescriptorTimeout = std::chrono::milliseconds(500);  // others may be closed meanwhile
constexpr auto kToldAgainAfter = std::chrono::minutes(1);
constexpr int kBacklog = 4096;
constexpr size_t kEndedRendezvous = 1024;  // of which who comes late is told; more would be memory that grows
// Between two looks whether the agent still stands, and how many of them a task may have to wait for its turn. Counted,
// for a process that was stopped has not waited.
constexpr auto kLook = std::chrono::milliseconds(100);
constexpr int kMaxLooks = 600;
constexpr auto kLongestLinger = std::chrono::seconds(3);

std::atomic<Agent*> current{nullptr};

// A kernel without it, or with it switched off.
bool lacks_family(int error) { return error == EAFNOSUPPORT || error == EADDRNOTAVAIL; }

// A listening socket, or -1 and why. With SO_REUSEADDR two processes may both bind to a port; only one can listen, and
// the other's socket keeps its port, so each try needs a new one.
int open_listener(int domain, bool ipv6_only, uint16_t port, int* error) {
  const int fd = closed_in_children([&] { return socket(domain, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
  const int only = ipv6_only, yes = 1;
  sockaddr_storage address{};
  Address any;
  any.version = domain == AF_INET6 ? 6 : 4;
  const socklen_t length = to_sockaddr(any, port, 0, &address);
  if (fd >= 0 && domain == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only);
  if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (fd >= 0) begin_unpaced(fd);
  if (fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0 && listen(fd, kBacklog) == 0) return fd;
  *error = errno;
  if (fd >= 0) ::close(fd);
  return -1;
}

}  // namespace

// At the end of the process: others may be on their way to it, to hear of a verdict, or that it has left, which no other
// process can tell them, and what it has sent may be on its way to them.
void Agent::linger() {
  Agent* agent = current.load(std::memory_order_acquire);
  if (agent == nullptr || !agent->started_.load(std::memory_order_acquire) || !agent->usable()) return;
  const auto until = Clock::now() + kLongestLinger;
  for (bool waits = true; waits && Clock::now() < until; std::this_thread::sleep_for(std::chrono::milliseconds(2))) {
    waits = false;
    const auto look = [&] {
      waits = !agent->draining_.empty();
      for (const auto& [name, job] : agent->jobs_) waits |= job->must_stay();
    };
    if (!agent->call(look).ok() || !waits) return;
  }
}

Agent& Agent::instance() {
  [[maybe_unused]] static const int registered = std::atexit(linger);
  Agent* found = current.load(std::memory_order_acquire);
  while (found == nullptr || !found->usable()) {
    auto* made = new Agent(found);  // never destroyed: its thread runs until the process ends
    if (current.compare_exchange_strong(found, made)) {
      made->start();
      return *made;
    }
    delete made;
  }
  while (!found->started_.load(std::memory_order_acquire)) std::this_thread::yield();
  return *found;
}

Agent::~Agent() { close_descriptors(); }

void Agent::close_descriptors() {
  for (int* fd : {&epoll_, &wake_[0], &wake_[1]})
    if (*fd >= 0) ::close(std::exchange(*fd, -1));
}

Agent::Agent(Agent* replaced) : process_(getpid()), replaced_(replaced) {
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  struct stat file {};
  if (pipe2(wake_, O_CLOEXEC | O_NONBLOCK) != 0 || fstat(wake_[0], &file) != 0) return;
  wake_device_ = file.st_dev;
  wake_inode_ = file.st_ino;
}

// One that could not be started is replaced: descriptors may be free by now. So is one that has lost its own.
bool Agent::usable() const {
  return of_this_process() && (!started_.load(std::memory_order_acquire) || (running_ && stands()));
}

// An epoll descriptor has no inode of its own, but another one does not have the pipe.
bool Agent::stands() const {
  if (ended_.load(std::memory_order_acquire)) return false;
  if (!is_pipe(wake_[0]) || !is_pipe(wake_[1])) return false;
  epoll_event event{EPOLLIN, {}};
  event.data.u64 = wake_watch_;
  return epoll_ctl(epoll_, EPOLL_CTL_MOD, wake_[0], &event) == 0;
}

bool Agent::is_pipe(int fd) const {
  struct stat file {};
  return fstat(fd, &file) == 0 && file.st_dev == wake_device_ && file.st_ino == wake_inode_;
}

bool Agent::has_pipe() const { return is_pipe(wake_[0]); }

Status Agent::descriptors_closed() {
  return {trSystemError,
          "the program has closed descriptors of this library: the control connections of its communicators are lost "
          "(a program that closes all descriptors does so before it makes communicators)"};
}

bool Agent::of_this_process() const { return process_ == getpid(); }

void Agent::start() {
  if (epoll_ >= 0 && wake_[0] >= 0) {
    wake_watch_ = watch(wake_[0], EPOLLIN, [this](uint32_t) { run_posted(); });
    running_ = start_background_thread(
        "treering-agent", kStackBytes, [this] { loop(); }, &thread_);
  }
  if (!running_) close_descriptors();  // another one takes its place
  started_.store(true, std::memory_order_release);
}

struct Agent::Call {
  const Task& task;
  uint64_t number = 0;
  Call* next = nullptr;
  enum { kWaits, kRuns, kDone } state = kWaits;
  std::condition_variable changed{};  // with the agent's mutex
};

void Agent::wake() {
  const char byte = 1;
  (void)!write(wake_[1], &byte, sizeof byte);
}

void Agent::post(Task task) {
  if (!stands()) return;
  std::lock_guard lock(mutex_);
  posted_.push_back(std::move(task));
  if (posted_.size() == 1 && calls_ == nullptr) wake();
}

// Takes no memory unless it fails: destructors call.
Status Agent::call(const Task& task) {
  if (!running_)
    return {
        trSystemError,
        "the thread of the control connections could not be started (too many threads or open files? see ulimit -n)"};
  if (pthread_equal(pthread_self(), thread_) != 0) {
    task();
    return {};
  }
  if (!stands()) return descriptors_closed();
  Call call{task};
  std::unique_lock lock(mutex_);
  call.number = ++last_call_;
  Call** end = &calls_;
  while (*end != nullptr) end = &(*end)->next;
  *end = &call;
  if (calls_ == &call && posted_.empty()) wake();
  for (int looks = 0; call.state != Call::kDone; ++looks) {
    const bool lost = !stands();
    if (call.state == Call::kWaits && (lost || looks > kMaxLooks)) {
      for (end = &calls_; *end != &call;) end = &(*end)->next;
      *end = call.next;
      if (lost) return descriptors_closed();
      return {trTimeout, fmt::format("the thread of the control connections has not answered for {} s",
                                     std::chrono::duration_cast<std::chrono::seconds>(kMaxLooks * kLook).count())};
    }
    call.changed.wait_for(lock, kLook);
  }
  return {};
}

// What is there now, and then the connections have their turn. What a thread posted before it calls runs before its
// call.
void Agent::run_posted() {
  char bytes[64];
  (void)!read(wake_[0], bytes, sizeof bytes);
  std::vector<Task> tasks;
  std::unique_lock lock(mutex_);
  tasks.swap(posted_);
  const uint64_t last = last_call_;
  lock.unlock();
  for (Task& task : tasks) task();
  lock.lock();
  while (calls_ != nullptr && calls_->number <= last) {
    Call* const call = std::exchange(calls_, calls_->next);
    call->state = Call::kRuns;
    lock.unlock();
    call->task();
    lock.lock();
    call->state = Call::kDone;
    call->changed.notify_one();
  }
  if ((calls_ != nullptr || !posted_.empty()) && stands()) wake();
}

uint64_t Agent::watch(int fd, uint32_t events, std::function<void(uint32_t)> ready) {
  const uint64_t id = next_id_++;
  watched_[id] = std::make_shared<Watched>(Watched{std::move(ready)});
  epoll_event event{events, {}};
  event.data.u64 = id;
  epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
  return id;
}

void Agent::rewatch(uint64_t watch, int fd, uint32_t events) {
  epoll_event event{events, {}};
  event.data.u64 = watch;
  epoll_ctl(epoll_, EPOLL_CTL_MOD, fd, &event);
}

void Agent::unwatch(uint64_t watch, int fd) {
  watched_.erase(watch);
  epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
}

uint64_t Agent::after(Clock::duration delay, Task task) {
  const uint64_t id = next_id_++;
  const auto when = Clock::now() + delay;
  timers_[{when, id}] = std::move(task);
  timer_times_[id] = when;
  return id;
}

void Agent::cancel(uint64_t timer) {
  auto found = timer_times_.find(timer);
  if (found == timer_times_.end()) return;
  timers_.erase({found->second, timer});
  timer_times_.erase(found);
}

int Agent::run_timers() {
  while (!timers_.empty()) {
    const auto left = timers_.begin()->first.first - Clock::now();
    if (left > Clock::duration::zero())
      return static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(left).count()) + 1;
    Task task = std::move(timers_.begin()->second);
    timer_times_.erase(timers_.begin()->first.second);
    timers_.erase(timers_.begin());
    task();
  }
  return -1;
}

void Agent::loop() {
  for (;;) {
    epoll_event events[64];
    const int count = epoll_wait(epoll_, events, 64, run_timers());
    if (!stands()) break;
    for (int i = 0; i < count; ++i) {
      auto found = watched_.find(events[i].data.u64);
      if (found == watched_.end()) continue;  // unwatched by an earlier event of this round
      auto watched = found->second;
      watched->ready(events[i].events);
    }
  }
  // What jobs and tasks hold stays: their descriptors are not theirs any more, to close.
  ended_.store(true, std::memory_order_release);
  log_line(LogLevel::kWarn, descriptors_closed().message());
}

Status Agent::open(const Config& config, const char* ports, Place* own) {
  if (sodium_init() < 0) return {trSystemError, "libsodium could not be initialised (no source of random numbers?)"};
  if (local_ < 0 && tcp_ < 0) {
    identity_ = identify_host(config.host_id);
    TR_RETURN_IF_ERROR(list_addresses(&interfaces_));
    place_ = Place();
    TR_RETURN_IF_ERROR(choose_addresses(interfaces_, config.socket_ifname, config.socket_family, &place_.addresses));
    if (!place_.addresses.empty()) TR_RETURN_IF_ERROR(listen_tcp(config, ports));
    place_.pid = static_cast<uint32_t>(process_);
    place_.network = identity_.network;
    place_.host_name = identity_.name;
    randombytes_buf(&place_.local, sizeof place_.local);
    if (Status status = listen_local(local_socket_name(place_.local), &local_); !status.ok()) {
      if (tcp_ < 0) return status;
      log_line(LogLevel::kInfo, status.message() + "; control connections within the machine go over TCP, too");
    } else {
      local_watch_ = watch(local_, EPOLLIN, [this](uint32_t) { accept_some(local_, true); });
    }
  }
  *own = place_;
  return {};
}

Status Agent::listen_tcp(const Config& config, const char* ports) {
  const std::string& family = config.socket_family;
  const bool asked = config.first_port > 0;
  int error = 0;
  for (int domain : {family != "ipv4" ? AF_INET6 : AF_INET, family == "ipv6" ? AF_INET6 : AF_INET}) {
    for (int port = config.first_port; port <= config.last_port && tcp_ < 0; ++port) {
      tcp_ = open_listener(domain, family == "ipv6", static_cast<uint16_t>(port), &error);
      if (tcp_ < 0 && lacks_family(error)) break;
    }
    if (tcp_ >= 0) break;
    log_line(LogLevel::kInfo,
             fmt::format("cannot listen on TCP (IPv{}): {}", domain == AF_INET6 ? 6 : 4, std::strerror(error)));
    if (asked && !lacks_family(error)) break;
  }
  if (tcp_ < 0 && asked)
    return {trSystemError,
            fmt::format("no port of {} to {} can be listened on: {}{}{}", config.first_port, config.last_port,
                        std::strerror(error), error == EADDRINUSE ? ". " : "", error == EADDRINUSE ? ports : "")};
  if (tcp_ < 0) {  // the processes of this machine can still meet
    place_.addresses.clear();
    return {};
  }
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  getsockname(tcp_, reinterpret_cast<sockaddr*>(&bound), &length);
  place_.port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                                  : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
  if (bound.ss_family == AF_INET) std::erase_if(place_.addresses, [](const Address& a) { return a.version == 6; });
  tcp_watch_ = watch(tcp_, EPOLLIN, [this](uint32_t) { accept_some(tcp_, false); });
  return {};
}

void Agent::close_listeners() {
  if (tcp_ >= 0) {
    unwatch(tcp_watch_, tcp_);
    ::close(std::exchange(tcp_, -1));
  }
  if (local_ >= 0) {
    unwatch(local_watch_, local_);
    ::close(std::exchange(local_, -1));
  }
  while (!pending_.empty()) drop_pending(pending_.begin());
}

void Agent::accept_some(int listener, bool local) {
  for (int i = 0; i < kAcceptAtOnce; ++i) {
    if (pending_.size() >= kMaxPendingConnections && Clock::now() - pending_.front().since < kYoung)
      return pause_accepting();
    const int fd =
        closed_in_children([&] { return accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC); });
    if (fd >= 0) {
      add_pending(fd, local);
      if (std::exchange(connections_wait_, false)) tell_no_descriptor();
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      if (errno == EMFILE || errno == ENFILE) note_no_descriptor();
      if (!pending_.empty()) drop_pending(pending_.begin());
      return pause_accepting();
    } else if (errno != EINTR && errno != ECONNABORTED) {
      return;
    }
  }
}

// Those who call this process hear nothing, and could only say that it does not answer. A communicator that is being
// created fails here. Those that are there go on, because who calls may not have the secret: the log says why, and so do
// the ranks' deadlines.
void Agent::note_no_descriptor() {
  const auto now = Clock::now();
  if (now - std::exchange(no_descriptor_last_, now) > kDescriptorTimeout) no_descriptor_since_ = now;
  if (now - no_descriptor_since_ < kDescriptorTimeout) return;
  const auto jobs = jobs_;  // one may end
  for (const auto& [name, job] : jobs)
    if (job->creates()) job->fail_at_own_limit(no_descriptor_left());
  if (!std::exchange(connections_wait_, true)) tell_no_descriptor();
  if (jobs_.empty() || (no_descriptor_told_ && now - *no_descriptor_told_ < kToldAgainAfter)) return;
  no_descriptor_told_ = now;
  log_line(LogLevel::kWarn, "connections to this process wait: " + no_descriptor_left().message());
}

void Agent::tell_no_descriptor() {
  const auto jobs = jobs_;
  for (const auto& [name, job] : jobs) job->tell_no_descriptor(connections_wait_);
}

// Level-triggered epoll would spin.
void Agent::pause_accepting() {
  for (auto [fd, id] : {std::pair{tcp_, tcp_watch_}, {local_, local_watch_}})
    if (fd >= 0) rewatch(id, fd, 0);
  if (accept_timer_ != 0) return;
  accept_timer_ = after(kAcceptPause, [this] {
    accept_timer_ = 0;
    for (auto [fd, id] : {std::pair{tcp_, tcp_watch_}, {local_, local_watch_}})
      if (fd >= 0) rewatch(id, fd, EPOLLIN);
  });
}

void Agent::add_pending(int fd, bool local) {
  // The oldest goes.
  if (pending_.size() >= kMaxPendingConnections) drop_pending(pending_.begin());
  if (!local) prepare_control(fd);
  auto connection = SecureConnection::create(
      this, fd, local, Handshake([this](const JobName& name, uint64_t process) -> const Secret* {
        auto job = find_job(name);
        const bool meant = process != 0 ? process == place_.local : job && job->is_root();
        return job && meant ? &job->id().secret : nullptr;
      }));
  auto at = pending_.insert(pending_.end(), {connection, 0, Clock::now()});
  at->timer = after(kPendingTimeout, [this, at] {
    at->timer = 0;
    drop_pending(at);
  });
  SecureConnection::Events events;
  events.frame = [this, at](const std::string& bytes, int received) {
    if (received >= 0) ::close(received);
    auto known = at->connection;
    if (auto job = find_job(known->job())) {
      known->set_events({});
      at->connection = nullptr;
      job->greet(known, bytes);
    }
    drop_pending(at);
  };
  events.closed = [this, at](const std::string& reason) {
    log_line(LogLevel::kInfo, "a connection was refused or given up: " + reason);
    drop_pending(at);
  };
  connection->start(std::move(events));
}

void Agent::drop_pending(std::list<PendingConnection>::iterator pending) {
  if (pending->timer != 0) cancel(pending->timer);
  if (pending->connection) pending->connection->close();
  pending_.erase(pending);
}

void Agent::drain(int fd, std::chrono::milliseconds deadline) {
  const auto add = [this, fd, deadline] { draining_.add(fd, deadline); };
  if (!call(std::ref(add)).ok()) ::close(fd);  // a task of one reference takes no memory
}

std::shared_ptr<Job> Agent::find_job(const JobName& name) const {
  auto found = jobs_.find(name);
  return found == jobs_.end() ? nullptr : found->second;
}

void Agent::rendezvous_ended(const JobName& name, bool complete) {
  if (ended_rendezvous_.insert_or_assign(name, complete).second) ended_order_.push_back(name);
  if (ended_order_.size() <= kEndedRendezvous) return;
  ended_rendezvous_.erase(ended_order_.front());
  ended_order_.pop_front();
}

std::optional<bool> Agent::ended_rendezvous(const JobName& name) const {
  auto found = ended_rendezvous_.find(name);
  return found == ended_rendezvous_.end() ? std::nullopt : std::optional(found->second);
}

void Agent::add_job(const JobName& name, std::shared_ptr<Job> job) { jobs_[name] = std::move(job); }

void Agent::remove_job(const JobName& name) {
  jobs_.erase(name);
  if (jobs_.empty()) close_listeners();
}

}  // namespace treering
