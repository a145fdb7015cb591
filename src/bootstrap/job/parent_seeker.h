// SPDX-License-Identifier: Apache-2.0
// ParentSeeker: dials the processes that a ParentSearch names, one after the other, until one of them takes this
// process for its child.
//
//   seek() --dial--> AttachMessage --> AttachedMessage: attached      none is left: the rendezvous has failed, or again
//     ^----- another one, when it refuses or does not answer          after a moment, or this process is the top
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "bootstrap/job/job_context.h"
#include "bootstrap/job/parent_search.h"
#include "bootstrap/job/tree_connections.h"

namespace treering {

class ParentSeeker {
 public:
  struct Events {
    std::function<AttachMessage()> request;  // what a parent is told
    // round: the last whose blobs the parent has.
    std::function<void(std::shared_ptr<SecureConnection> connection, uint32_t parent, uint64_t round)> attached;
    std::function<void(const Status&)> failed;  // while the ranks meet
    std::function<void()> become_top;
    std::function<void()> ended;  // the search, without a parent
  };
  ParentSeeker(const JobContext& job, const ProcessTree& tree, FailureDetector& detector, TreeConnections& connections,
               Events events)
      : job_(job), tree_(tree), detector_(detector), connections_(connections), events_(std::move(events)) {}

  void set_ancestors(std::vector<Place> ancestors) { search_.set_ancestors(std::move(ancestors)); }
  const ParentSearch& search() const { return search_; }

  // Whether this process is between two places in the tree.
  bool lacks_parent() const { return job_.runs() && !job_.closed && !tree_.is_top() && !tree_.has_parent(); }
  bool is_dialing() const { return dial_ || asked_; }
  // Unless one is dialled already.
  void seek();
  // One process alone, which may be in another part of the tree; not while this one seeks.
  void seek_part(uint32_t process);
  // The first of the ancestors, to which there is a connection.
  void ask_first(std::shared_ptr<SecureConnection> connection);
  // A process deserts this part of the tree, as `from` told.
  void follow(const MovingMessage& reparented, uint32_t from);
  void follow_reparented();
  void stop_dialing();
  void close();

 private:
  void ask(std::shared_ptr<SecureConnection> connection, const Place& parent);
  void try_only(const Place& place);
  void try_next();
  void stop_asking();
  void no_parent();
  Clock::duration timeout_for(const Place& parent) const;

  const JobContext& job_;
  const ProcessTree& tree_;
  FailureDetector& detector_;
  TreeConnections& connections_;
  const Events events_;
  ParentSearch search_{tree_, detector_};
  std::shared_ptr<Dial> dial_;
  std::shared_ptr<SecureConnection> asked_;  // whether it will be the parent
  JobTimer asked_timer_{job_};
  int drops_ = 0;
};

}  // namespace treering
