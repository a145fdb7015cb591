#include "layout_checks.h"

int main(void) { return check_initialisers(); }
