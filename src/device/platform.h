// SPDX-License-Identifier: Apache-2.0
// Platform: what the device code needs of the machine that runs it. The same code is compiled by nvcc for GPUs
// (platform_gpu.h) and as plain C++ where a block's threads are threads of the CPU (platform_cpu.h), so that protocols
// and interpreter are tested, ThreadSanitizer included, without a GPU.
//
//   Thread         index(), count(), barrier(): one thread of a block
//   load_acquire   of a counter that another GPU writes; what was written before it is visible afterwards
//   store_release  the other side of it
//   load_pair      8 bytes that are read, or written, at once: data and flag of the LL protocol
//   kLanesOfLine   threads that share a line of 128 bytes whose last 8 are a flag (LL128): try_read_line, write_line; it is
//                  seen whole when its flag is seen. true_for_line: a decision that they make together
//   relax          while waiting: for how many turns so far
//
// Memory order: data are written by all threads of a block, then barrier(), then one thread's store_release(). The
// reader's thread polls with load_acquire(), then barrier(), then all threads read. On a GPU a barrier orders the
// threads of a block and release and acquire at system scope are cumulative (PTX memory model, "causality order"); on
// the CPU the same follows from the C++ memory model.
#pragma once

#if defined(__CUDACC__)
#include "device/platform_gpu.h"
#else
#include "device/platform_cpu.h"
#endif
