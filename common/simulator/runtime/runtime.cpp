// runtime.cpp - the whole runtime as one translation unit: its parts share headers that take longer to compile than
// the code (2 s together, 4 s one by one).
#define SIMULATOR_RUNTIME
#include "async_copy.cpp"
#include "fiber.cpp"
#include "host_api.cpp"
#include "launch.cpp"
#include "memory.cpp"
#include "program.cpp"
#include "report.cpp"
#include "scheduler.cpp"
#include "undefined.cpp"
#ifdef SIMULATOR_CHECKED
#include "races.cpp"  // before its callers: what is quick there is inlined
#include "checked.cpp"
#include "findings.cpp"
#include "profile.cpp"
#include "ranges.cpp"
#include "replay.cpp"
#endif
