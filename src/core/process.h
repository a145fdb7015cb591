// Other processes of this machine.
#pragma once

#include <sys/types.h>

namespace treering {

// Whether a process of this pid namespace has ended, also where its parent has not waited for it yet.
bool process_has_ended(pid_t pid);

}  // namespace treering
