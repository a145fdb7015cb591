// SPDX-License-Identifier: Apache-2.0
// Agent: the one background thread of a process that keeps its control connections, for all its ranks and
// communicators. An epoll loop with timers; asleep when nothing happens.
//
//   listeners (TCP, abstract Unix) --accept--> pending connections --handshake, first message--> a job (job/job.h)
//   other threads --post()--> the loop
//
// A program may close descriptors that it does not know, as daemons do. The agent then ends, for the numbers may mean
// other files by now: it looks whether they are its own before it uses them. The next communicator gets a new agent.
//
// It listens while the process has a job, and not longer. Pending connections are limited in number, size and time, so
// a caller without the secret costs the others nothing. Everything but instance(), post() and call() is for the agent's
// thread alone (stands() is for all). A forked child gets an agent of its own.
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <mutex>
#include <unordered_map>

#include "bootstrap/secure_connection.h"
#include "bootstrap/frames.h"
#include "bootstrap/host.h"
#include "bootstrap/draining_sockets.h"
#include "core/config.h"

namespace treering {

class Job;

class Agent {
 public:
  using Task = std::function<void()>;

  static Agent& instance();
  bool of_this_process() const;
  void post(Task task);  // dropped when the agent has ended
  // Runs the task on the agent's thread and waits for it. An error, and the task does not run: there is no such thread.
  Status call(const Task& task);
  // Whether its descriptors are still those that it has opened.
  bool stands() const;
  // The same at the cost of one system call, for a program that closes all descriptors.
  bool has_pipe() const;
  static Status descriptors_closed();

  // Calls `ready` with the events of epoll(7) until unwatch(). The result names the watch.
  uint64_t watch(int fd, uint32_t events, std::function<void(uint32_t)> ready);
  void rewatch(uint64_t watch, int fd, uint32_t events);
  void unwatch(uint64_t watch, int fd);

  uint64_t after(Clock::duration delay, Task task);
  void cancel(uint64_t timer);

  // Listens (if it does not) and says how this process is reached. `ports`: what to do where those of `config` cannot
  // be had.
  Status open(const Config& config, const char* ports, Place* own);
  const HostIdentity& identity() const { return identity_; }
  const std::vector<Address>& interfaces() const { return interfaces_; }  // all, also those not offered

  // Takes a socket that is shut down for writing and whose last bytes are not through (draining_sockets.h), for at most
  // `deadline`; any thread.
  void drain(int fd, std::chrono::milliseconds deadline);

  std::shared_ptr<Job> find_job(const JobName& name) const;
  void add_job(const JobName& name, std::shared_ptr<Job> job);
  void remove_job(const JobName& name);
  // Remembers whether the ranks of a rendezvous of this process had met; of the last ones alone.
  void rendezvous_ended(const JobName& name, bool complete);
  std::optional<bool> ended_rendezvous(const JobName& name) const;

 private:
  struct PendingConnection {
    std::shared_ptr<SecureConnection> connection;
    uint64_t timer = 0;
    Clock::time_point since;
  };
  struct Call;
  struct Watched {
    std::function<void(uint32_t)> ready;
  };

  bool is_pipe(int fd) const;
  bool usable() const;
  static void linger();
  explicit Agent(Agent* replaced);
  ~Agent();
  void start();
  void close_descriptors();
  void loop();
  void wake();
  void run_posted();
  int run_timers();  // milliseconds until the next one
  Status listen_tcp(const Config& config, const char* ports);
  void close_listeners();
  void accept_some(int listener, bool local);
  void pause_accepting();
  void note_no_descriptor();
  void tell_no_descriptor();
  void add_pending(int fd, bool local);
  void drop_pending(std::list<PendingConnection>::iterator pending);

  const pid_t process_;
  Agent* const replaced_;  // the one before, whose thread may still sleep
  std::atomic<bool> started_{false};
  bool running_ = false;
  pthread_t thread_{};
  int epoll_ = -1;
  int wake_[2] = {-1, -1};  // a pipe: it has an inode of its own, which tells it from what gets its numbers later
  uint64_t wake_device_ = 0, wake_inode_ = 0, wake_watch_ = 0;
  std::atomic<bool> ended_{false};
  std::mutex mutex_;
  std::vector<Task> posted_;
  Call* calls_ = nullptr;  // those that wait, the oldest first; each lies on the stack of its caller
  uint64_t last_call_ = 0;

  uint64_t next_id_ = 1;
  std::unordered_map<uint64_t, std::shared_ptr<Watched>> watched_;
  std::map<std::pair<Clock::time_point, uint64_t>, Task> timers_;
  std::unordered_map<uint64_t, Clock::time_point> timer_times_;

  DrainingSockets draining_{this};
  int tcp_ = -1, local_ = -1;
  uint64_t tcp_watch_ = 0, local_watch_ = 0;
  uint64_t accept_timer_ = 0;  // until it, no connection is accepted
  Clock::time_point no_descriptor_since_,
      no_descriptor_last_;  // none was left for a connection, again and again from then to then
  std::optional<Clock::time_point> no_descriptor_told_;  // when the log was told of it
  bool connections_wait_ = false;                        // as the members were told
  Place place_;
  HostIdentity identity_;
  std::vector<Address> interfaces_;
  std::list<PendingConnection> pending_;
  std::map<JobName, std::shared_ptr<Job>> jobs_;
  std::map<JobName, bool> ended_rendezvous_;
  std::deque<JobName> ended_order_;  // the oldest first
};

}  // namespace treering
