// SPDX-License-Identifier: Apache-2.0
// A forked child holds its parent's connections open: as long as it lives, as a data loader may, peers would not see
// them end with the parent. So they are closed in the child.
#pragma once

#include <functional>

namespace treering {

// What `make` returns, a new socket or -1 with errno. Close it as ever.
int closed_in_children(const std::function<int()>& make);

}  // namespace treering
