// SPDX-License-Identifier: Apache-2.0
// The contexts of libibverbs that this library has open, and how a forked child lets go of them.
//
//            descriptors: device, its events, channels       mappings of the device: queues, doorbells
//   parent   open                                            as they are
//   child    closed                                          empty memory of its own
//
// A child has copies of both, and the kernel keeps the queue pairs as long as any process has the device's file open or
// mapped: without this they would outlive a killed parent by a child that lives on, as a data loader may.
//
// The child itself looks for the mappings, which a driver makes when it likes, most often with a queue pair. So none is
// missed that was made just before the fork, and a queue pair costs its parent nothing more. It takes all mappings of a
// device that this library has open. Those that another library in the process has of it go, too; that does no harm, as
// verbs objects of a parent cannot be used by a forked child. Empty memory takes their place, so that nothing else comes
// to lie where the parent's objects, of which the child has copies, point to.
//
// A child by vfork() or posix_spawn() does nothing of this: both end with its exec().
#pragma once

#include <infiniband/verbs.h>

namespace treering::verbs {

// As ibv_open_device() and so on; nullptr with errno. Any thread, but without a lock that a fork takes: a fork waits for
// them. In a forked child what its parent has opened is left alone.
ibv_context* open_context(ibv_device* device);
void close_context(ibv_context* context);
ibv_comp_channel* open_channel(ibv_context* context);
void close_channel(ibv_comp_channel* channel);

}  // namespace treering::verbs
