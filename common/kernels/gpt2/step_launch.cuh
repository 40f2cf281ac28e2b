// step_launch.cuh - host code of persistent_step.cu: choosing a kernel for a model, its layout, the launch.
#pragma once
#include <algorithm>

#include "common/cuda/check.h"
#include "common/cuda/float_conversion.cuh"
#include "common/cuda/hopper_tiles.cuh"
#include "common/kernels/gpt2/step_plan.h"

template <typename T>
static auto kernel_for(const StepModel& model, int cluster) {
    if (model.rows == 1 && model.head_dim() == 64 && cluster == SLICES)
        return model.sampled ? persistent_step_kernel<Step<T, true, true>>
                             : persistent_step_kernel<Step<T, true, false>>;
#ifndef CUDA_SIMULATOR  // in the simulator it would only add compile time
    if (!model.sampled) return persistent_step_kernel<Step<T, false, false>>;
#endif
    return persistent_step_kernel<Step<T, false, true>>;
}

struct LaunchShape {
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t config = {};
    LaunchShape(int ctas, int cluster, int smem_bytes, bool cooperative, cudaStream_t stream) {
        attributes[0].id = cudaLaunchAttributeClusterDimension;
        attributes[0].val.clusterDim.x = static_cast<unsigned>(cluster);
        attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
        attributes[1].id = cudaLaunchAttributeCooperative;
        attributes[1].val.cooperative = cooperative;
        config.gridDim = dim3(static_cast<unsigned>(ctas)), config.blockDim = dim3(KERNEL_THREADS);
        config.dynamicSmemBytes = static_cast<size_t>(smem_bytes), config.stream = stream;
        config.attrs = attributes, config.numAttrs = 2;
    }
};

template <typename T>
static void plan_for(StepPlan& plan, const StepModel& model, int max_ctas) {
    constexpr int FEWEST_STAGES = 4;
    int cluster = SLICES;
    while (cluster > 1 && (cluster > model.width / TILE_ROWS || max_ctas % cluster != 0)) cluster /= 2;
    const auto kernel = kernel_for<T>(model, cluster);
    if (device_attribute(cudaDevAttrComputeCapabilityMajor) < 9) return;
    if (!sizes_fit(model, cluster) || !hopper::is_built(kernel)) return;
    cudaFuncAttributes attributes;
    CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
    // The simulator knows the kernel's static shared memory only after running it
    constexpr int STATIC_BYTES = static_cast<int>(sizeof(PipelineBarriers) + sizeof(Gathers) + sizeof(StepState)) + 64;
    const int smem = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) -
                     std::max(static_cast<int>(attributes.sharedSizeBytes), STATIC_BYTES);
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem));
    const LaunchShape one(cluster, cluster, smem, false, nullptr);
    int clusters = 0;
    CUDA_CHECK(cudaOccupancyMaxActiveClusters(&clusters, kernel, &one.config));
    clusters = std::min({max_ctas ? max_ctas / cluster : MAX_CLUSTERS, MAX_CLUSTERS, clusters});
    if (clusters == 0) return;
    plan_layout(plan, model, cluster, clusters);
    const int rest = smem_layout(nullptr, model, plan).bytes;
    plan.stages = std::min(MAX_STAGES, (smem - rest) / static_cast<int>(plan.stage_bytes));
    if (plan.stages < FEWEST_STAGES || plan.stage_tokens < 1) return;
    plan.smem_bytes = smem_layout(nullptr, model, plan).bytes;
    plan.fits = true;
}

StepPlan plan_steps(const StepModel& model, int max_ctas) {
    StepPlan plan = {};
    for_float_type(model.type, [&]<typename T>() { plan_for<T>(plan, model, max_ctas); });
    return plan;
}

void run_steps(const Steps& steps) {
    Steps a = steps;
    const auto on_device = [](const int* host) {
        void* device = nullptr;
        CUDA_CHECK(cudaHostGetDevicePointer(&device, const_cast<int*>(host), 0));
        return static_cast<int*>(device);
    };
    a.arrived = on_device(steps.arrived), a.cancel = on_device(steps.cancel);
    // The sums; with the first launch also the word that says whether the text has ended
    const int from = a.first ? 0 : a.plan.sums;
    CUDA_CHECK(cudaMemsetAsync(a.workspace + from, 0, sizeof(*a.workspace) * (a.plan.lines - from), a.stream));
    const LaunchShape shape(a.plan.ctas, a.plan.cluster, a.plan.smem_bytes, true, a.stream);
    for_float_type(a.model.type, [&]<typename T>() {
        const auto kernel = kernel_for<T>(a.model, a.plan.cluster);
        // At least 64 KB: dynamic and static shared memory may then exceed 48 KB together
        const int smem = std::max(a.plan.smem_bytes, 64 << 10);
        CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem));
        CUDA_CHECK(cudaLaunchKernelEx(&shape.config, kernel, a));
    });
}
