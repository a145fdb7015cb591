// SPDX-License-Identifier: Apache-2.0
#include "layout_checks.h"

int main(void) { return check_initialisers(); }
