// SPDX-License-Identifier: Apache-2.0
// Liveness: gives the FailureDetector what it decides on, twice a second while there is something to watch: how long
// the neighbours have been silent, whether a process whose connection broke has ended, whether one listens that is
// probed. What the detector finds becomes notices, and what is known of silence goes to the members.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "bootstrap/job/failure_detector.h"
#include "bootstrap/job/job_context.h"
#include "bootstrap/job/process_tree.h"
#include "bootstrap/job/ranks/members.h"
#include "bootstrap/job/tree_connections.h"

namespace treering {

class Liveness {
 public:
  struct Events {
    std::function<void(NoticeMessage)> notify;
    std::function<void()> parent_silent;
    std::function<void()> looked;  // those who are cut off are told of; now the probes
    std::function<void(uint32_t process)> other_part;
    std::function<void()> ticked;
  };
  Liveness(const JobContext& job, const ProcessTree& tree, FailureDetector& detector, TreeConnections& connections,
           const Members& members, Events events)
      : job_(job),
        tree_(tree),
        detector_(detector),
        connections_(connections),
        members_(members),
        events_(std::move(events)) {}

  void start_ticking();
  // A process whose connection has ended.
  void examine(uint32_t process);
  // It is there again. For this process: it has been told that it is silent, so it can be heard again, if by another way.
  void report_heard(uint32_t process);
  void publish_silence();

  // What notices say. take_loss() returns whether the loss is news.
  bool take_loss(uint32_t process);
  void take_silence(const NoticeMessage& notice);
  void take_heard(uint32_t process);
  void take_move(uint32_t process);
  void close();

 private:
  void tick();
  void listen(uint32_t neighbour, Clock::duration silence);
  bool drop_deserter(uint32_t child);
  void look_at_the_tree(Clock::time_point now);
  void take_step(uint32_t process, const FailureDetector::Step& step);
  void probe(uint32_t process);

  const JobContext& job_;
  const ProcessTree& tree_;
  FailureDetector& detector_;
  TreeConnections& connections_;
  const Members& members_;
  const Events events_;
  std::map<uint32_t, std::shared_ptr<Dial>> probes_;
  JobTimer tick_timer_{job_};
  Clock::time_point last_tick_, last_heartbeat_;
};

}  // namespace treering
