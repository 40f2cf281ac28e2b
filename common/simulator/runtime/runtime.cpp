// runtime.cpp - the runtime of every build as one translation unit: the shared headers take longer to compile than the
// code. The checked build adds checker.cpp and reports.cpp.
#define SIMULATOR_RUNTIME
#include "apart.cpp"
#include "async_copy.cpp"
#include "cluster.cpp"
#include "copy_engine.cpp"
#include "fiber.cpp"
#include "streams.cpp"
#include "graphs.cpp"  // needs streams.cpp's types
#include "heap.cpp"
#include "host_api.cpp"
#include "launch.cpp"
#include "mbarrier.cpp"
#include "memory.cpp"
#include "named_barrier.cpp"
#include "program.cpp"
#include "report.cpp"
#include "scheduler.cpp"
#include "stores.cpp"
#include "tensor_map.cpp"
#include "undefined.cpp"
#include "wgmma.cpp"
#include "work.cpp"
