// SPDX-License-Identifier: Apache-2.0
/* Makes a unique id for ranks that a script starts (start_ranks.sh), prints it in hex, and lives until standard input ends. */
#include "ranks.h"

int main(void) {
  trUniqueId id;
  CHECK(trGetUniqueId(&id));
  const unsigned char* bytes = (const unsigned char*)&id;
  for (size_t i = 0; i < sizeof id; ++i) printf("%02x", bytes[i]);
  printf("\n");
  fflush(stdout);
  while (getchar() != EOF) continue;
  return 0;
}
