// apart.h - the messages that the runtime sends to the device process when host code has a process to itself:
// apart.cpp.
#pragma once
#include "worker.h"

namespace simulator {

bool is_host_alone();                        // whether this is the host process of the two
bool is_device_alone();                      // whether this is the device process
bool is_device_address(const void* address);  // in device memory, whose range both processes know
bool is_host_variable(const void* address);   // in the host process only

cudaError_t send_allocate(void** address, size_t bytes);
cudaError_t send_release(void* address);
cudaError_t send_copy(void* to, const void* from, size_t bytes);
cudaError_t send_fill(void* address, int value, size_t bytes);
cudaError_t send_limit(const void* kernel, size_t bytes);
size_t ask_static_bytes(const void* kernel);

}  // namespace simulator
