// runtime.cpp - the whole runtime as one translation unit: its parts share headers that take longer to compile than
// the code (2 s together, 4 s one by one).
#define SIMULATOR_RUNTIME
#include "async_copy.cpp"
#include "cluster.cpp"
#include "copy_engine.cpp"
#include "fiber.cpp"
#include "host_api.cpp"
#include "launch.cpp"
#include "mbarrier.cpp"
#include "memory.cpp"
#include "named_barrier.cpp"
#include "program.cpp"
#include "report.cpp"
#include "scheduler.cpp"
#include "tensor_map.cpp"
#include "undefined.cpp"
#include "wgmma.cpp"
#include "work.cpp"
#ifdef SIMULATOR_CHECKED
#include "races.cpp"  // before its callers: what is quick there is inlined
#include "checked.cpp"
#include "async_order.cpp"
#include "findings.cpp"
#include "profile.cpp"
#include "ranges.cpp"
#include "replay.cpp"
#endif
