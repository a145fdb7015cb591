#include "communicator/memory.h"

#include "transport/region.h"

namespace treering {

Status allocate_memory(size_t bytes, void** pointer) { return RegionTable::instance().allocate(bytes, pointer); }
Status free_memory(void* pointer) { return RegionTable::instance().release(pointer); }
Status register_memory(void* buffer, size_t bytes, uint32_t* id) {
  return RegionTable::instance().move_in_place(buffer, bytes, id);
}
Status deregister_memory(uint32_t id) { return RegionTable::instance().end_registration(id); }

}  // namespace treering
