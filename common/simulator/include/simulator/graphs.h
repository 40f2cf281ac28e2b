// graphs.h - graphs of kernels, memory copies and sets, host functions and child graphs. Nodes run in some order that
// their dependencies allow. A launch returns when the graph has run.
#pragma once
#include "launch_api.h"
#include "pitched_memory.h"

struct CUgraphExec_st;
using cudaGraphExec_t = CUgraphExec_st*;
struct cudaHostNodeParams {
    cudaHostFn_t fn;
    void* userData;
};
struct cudaMemsetParams {
    void* dst;
    size_t pitch;
    unsigned value, elementSize;
    size_t width, height;  // in elements, in rows
};
struct cudaKernelNodeParams {
    void* func;
    dim3 gridDim_, blockDim_;
    unsigned sharedMemBytes;
    void** kernelParams;
    void** extra;
};
enum { cudaGraphInstantiateFlagAutoFreeOnLaunch = 1, cudaGraphInstantiateFlagUpload = 2, cudaGraphInstantiateFlagUseNodePriority = 8 };
enum cudaGraphExecUpdateResult { cudaGraphExecUpdateSuccess, cudaGraphExecUpdateError, cudaGraphExecUpdateErrorTopologyChanged, cudaGraphExecUpdateErrorNodeTypeChanged };
struct cudaGraphExecUpdateResultInfo {
    cudaGraphExecUpdateResult result;
    cudaGraphNode_t errorNode, errorFromNode;
};

// ---- graphs
cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned flags);
cudaError_t cudaGraphClone(cudaGraph_t* copy, cudaGraph_t graph);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags = 0);
// The last arguments depend on the CUDA version: flags, or a buffer for the error's description.
template <typename... Rest>
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, Rest...) {
    return cudaGraphInstantiateWithFlags(exec, graph);
}
// Fails unless both have the same nodes and edges.
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphExecUpdateResultInfo* info);
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphNode_t* node, cudaGraphExecUpdateResult* result);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);

// ---- nodes
namespace simulator {
// The node's work; an empty function if the parameters are invalid.
std::function<void()> work_of(const cudaKernelNodeParams& p, Position at);
std::function<void()> work_of(const cudaMemcpy3DParms& p, Position at);
std::function<void()> work_of(const cudaMemsetParams& p, Position at);
std::function<void()> work_of(const cudaHostNodeParams& p, Position at);
cudaError_t add_node(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, cudaGraphNodeType type,
                     std::function<void()> work);
cudaError_t set_work(cudaGraphExec_t exec, cudaGraphNode_t node, cudaGraphNodeType type, std::function<void()> work);
inline cudaMemcpy3DParms copied(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    return {nullptr, {}, {const_cast<void*>(from), bytes, bytes, 1}, nullptr, {}, {to, bytes, bytes, 1}, {bytes, 1, 1}, kind};
}
}  // namespace simulator
#define SIMULATOR_NODE(Kind, T)                                                                                               \
    inline cudaError_t cudaGraphAdd##Kind##Node(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs,       \
                                                size_t count, const T* p, simulator::Position at = simulator::here()) {       \
        SIMULATOR_NEED(p, cudaErrorInvalidValue);                                                                             \
        return simulator::add_node(node, graph, needs, count, cudaGraphNodeType##Kind, simulator::work_of(*p, at));           \
    }                                                                                                                         \
    inline cudaError_t cudaGraphExec##Kind##NodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node, const T* p,             \
                                                          simulator::Position at = simulator::here()) {                       \
        SIMULATOR_NEED(p, cudaErrorInvalidValue);                                                                             \
        return simulator::set_work(exec, node, cudaGraphNodeType##Kind, simulator::work_of(*p, at));                          \
    }
SIMULATOR_NODE(Kernel, cudaKernelNodeParams)
SIMULATOR_NODE(Memcpy, cudaMemcpy3DParms)
SIMULATOR_NODE(Memset, cudaMemsetParams)
SIMULATOR_NODE(Host, cudaHostNodeParams)
#undef SIMULATOR_NODE
inline cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, void* to,
                                            const void* from, size_t bytes, cudaMemcpyKind kind, simulator::Position at = simulator::here()) {
    const cudaMemcpy3DParms p = simulator::copied(to, from, bytes, kind);
    return cudaGraphAddMemcpyNode(node, graph, needs, count, &p, at);
}
inline cudaError_t cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t exec, cudaGraphNode_t node, void* to, const void* from, size_t bytes,
                                                      cudaMemcpyKind kind, simulator::Position at = simulator::here()) {
    const cudaMemcpy3DParms p = simulator::copied(to, from, bytes, kind);
    return cudaGraphExecMemcpyNodeSetParams(exec, node, &p, at);
}
// The node holds a copy of the child graph.
cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, cudaGraph_t child);
cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count);
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type);
// Callers query the count first (nodes = null), then the list.
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count);
cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count);
// CUDA 13 added the edge data, which is ignored here.
cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t* from, const cudaGraphNode_t* to, size_t count);
inline cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t* from, const cudaGraphNode_t* to, const cudaGraphEdgeData*,
                                            size_t count) {
    return cudaGraphAddDependencies(graph, from, to, count);
}
cudaError_t cudaGraphDebugDotPrint(cudaGraph_t graph, const char* path, unsigned);
