// checker.cpp - the code that the checked build runs at every access, as one translation unit.
#define SIMULATOR_RUNTIME
#include "races.cpp"  // before its callers, so that its fast paths are inlined
#include "checked.cpp"
#include "async_order.cpp"
#include "ranges.cpp"
