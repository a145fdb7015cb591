// SPDX-License-Identifier: Apache-2.0
// What a link wants of the kernel for its streams, and asks it about them.
#pragma once

#include <cstdint>

#include "transport/tcp/resume.h"

namespace treering {

// How a stream sends: no waiting for more, so many bytes unsent at most, and again every second what is not
// acknowledged. All are improvements: a stream without them works.
void prepare_stream(int fd, uint32_t most_unsent, const TcpTimeouts& timeouts);
// The kernel goes on alone, when the stream is closed.
void leave_to_kernel(int fd);
// Closing throws away what is under way.
void throw_away(int fd);
// The facts about a stream that was given so many bytes; false: the kernel does not say.
bool look_at_stream(int fd, uint64_t given, TcpStall::Facts* facts);
// Bytes that the peer's kernel has not acknowledged, its end among them; -1: not known.
int unacknowledged_bytes(int fd);
// Whether the peer may still send on it, or why not. What has arrived stays.
enum class StreamEnd { kNone, kSomethingThere, kClosed, kBroken };
StreamEnd find_end(int fd, int* error);

}  // namespace treering
