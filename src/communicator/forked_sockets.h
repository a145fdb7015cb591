// A forked child holds its parent's connections open: as long as it lives, as a data loader may, peers would not see them
// end with the parent. So they are closed in the child.
#pragma once

namespace treering {

// Of a socket that was just made, or -1; returns it. Close it as ever.
int close_in_children(int fd);

}  // namespace treering
