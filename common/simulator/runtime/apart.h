// apart.h - what the parts of the runtime send to the device's process where host code runs alone, see apart.cpp.
#pragma once
#include "worker.h"

namespace simulator {

bool is_host_alone();                        // whether this is such a host process
bool is_device_alone();                      // whether this is the device's process
bool is_device_address(const void* address);  // of its memory, as both processes know it
bool is_host_variable(const void* address);   // in such a host process

cudaError_t send_allocate(void** address, size_t bytes);
cudaError_t send_release(void* address);
cudaError_t send_copy(void* to, const void* from, size_t bytes);
cudaError_t send_fill(void* address, int value, size_t bytes);
cudaError_t send_limit(const void* kernel, size_t bytes);
size_t ask_static_bytes(const void* kernel);

}  // namespace simulator
