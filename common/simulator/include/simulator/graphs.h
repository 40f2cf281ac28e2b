// graphs.h - graphs: nodes of kernels, copies, host functions, events and other graphs, in any order that their
// dependencies allow. A launched graph has run when the call returns.
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
enum cudaGraphInstantiateResult { cudaGraphInstantiateSuccess, cudaGraphInstantiateError };
enum { cudaGraphInstantiateFlagAutoFreeOnLaunch = 1, cudaGraphInstantiateFlagUpload = 2, cudaGraphInstantiateFlagUseNodePriority = 8 };
struct cudaGraphInstantiateParams {
    unsigned long long flags;
    cudaStream_t uploadStream;
    cudaGraphNode_t errNode_out;
    cudaGraphInstantiateResult result_out;
};
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
// The last arguments have changed between versions of CUDA: flags, or where an error is described.
template <typename... Rest>
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, Rest...) {
    return cudaGraphInstantiateWithFlags(exec, graph);
}
cudaError_t cudaGraphInstantiateWithParams(cudaGraphExec_t* exec, cudaGraph_t graph, cudaGraphInstantiateParams* p);
// The same nodes with the same edges, or it fails.
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphExecUpdateResultInfo* info);
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphNode_t* node, cudaGraphExecUpdateResult* result);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGraphExecGetFlags(cudaGraphExec_t exec, unsigned long long* flags);
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);

// ---- nodes and edges
cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count);
#define SIMULATOR_NODE(Kind, Parameters)                                                                                    \
    cudaError_t cudaGraphAdd##Kind##Node(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs,          \
                                         size_t count, const Parameters* p, simulator::Position at = simulator::here());  \
    cudaError_t cudaGraph##Kind##NodeGetParams(cudaGraphNode_t node, Parameters* p);                                      \
    cudaError_t cudaGraph##Kind##NodeSetParams(cudaGraphNode_t node, const Parameters* p,                                 \
                                               simulator::Position at = simulator::here());                               \
    cudaError_t cudaGraphExec##Kind##NodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node, const Parameters* p,       \
                                                   simulator::Position at = simulator::here());
SIMULATOR_NODE(Kernel, cudaKernelNodeParams)
SIMULATOR_NODE(Host, cudaHostNodeParams)
SIMULATOR_NODE(Memcpy, cudaMemcpy3DParms)
SIMULATOR_NODE(Memset, cudaMemsetParams)
#undef SIMULATOR_NODE
#define SIMULATOR_COPY_NODE(Name, ...)                                                                                       \
    cudaError_t cudaGraphAddMemcpyNode##Name(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs,       \
                                             size_t count, __VA_ARGS__, cudaMemcpyKind kind,                               \
                                             simulator::Position at = simulator::here());                                  \
    cudaError_t cudaGraphMemcpyNodeSetParams##Name(cudaGraphNode_t node, __VA_ARGS__, cudaMemcpyKind kind,                 \
                                                   simulator::Position at = simulator::here());                            \
    cudaError_t cudaGraphExecMemcpyNodeSetParams##Name(cudaGraphExec_t exec, cudaGraphNode_t node, __VA_ARGS__,            \
                                                       cudaMemcpyKind kind, simulator::Position at = simulator::here());
SIMULATOR_COPY_NODE(1D, void* to, const void* from, size_t bytes)
SIMULATOR_COPY_NODE(ToSymbol, const void* symbol, const void* from, size_t bytes, size_t offset)
SIMULATOR_COPY_NODE(FromSymbol, void* to, const void* symbol, size_t bytes, size_t offset)
#undef SIMULATOR_COPY_NODE
// A child graph is a copy of its own.
cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, cudaGraph_t child);
cudaError_t cudaGraphChildGraphNodeGetGraph(cudaGraphNode_t node, cudaGraph_t* graph);
cudaError_t cudaGraphExecChildGraphNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node, cudaGraph_t child);
#define SIMULATOR_EVENT_NODE(Kind)                                                                                           \
    cudaError_t cudaGraphAddEvent##Kind##Node(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs,      \
                                              size_t count, cudaEvent_t event);                                            \
    cudaError_t cudaGraphEvent##Kind##NodeGetEvent(cudaGraphNode_t node, cudaEvent_t* event);                              \
    cudaError_t cudaGraphEvent##Kind##NodeSetEvent(cudaGraphNode_t node, cudaEvent_t event);                               \
    cudaError_t cudaGraphExecEvent##Kind##NodeSetEvent(cudaGraphExec_t exec, cudaGraphNode_t node, cudaEvent_t event);
SIMULATOR_EVENT_NODE(Record)
SIMULATOR_EVENT_NODE(Wait)
#undef SIMULATOR_EVENT_NODE
cudaError_t cudaGraphDestroyNode(cudaGraphNode_t node);
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type);
cudaError_t cudaGraphNodeFindInClone(cudaGraphNode_t* twin, cudaGraphNode_t node, cudaGraph_t clone);
cudaError_t cudaGraphNodeSetEnabled(cudaGraphExec_t exec, cudaGraphNode_t node, unsigned enabled);
cudaError_t cudaGraphNodeGetEnabled(cudaGraphExec_t exec, cudaGraphNode_t node, unsigned* enabled);
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count);
cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count);
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* needs, size_t* count);
cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t node, cudaGraphNode_t* nodes, size_t* count);
cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t* from, cudaGraphNode_t* to, size_t* count);
cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t* from, const cudaGraphNode_t* to, size_t count);
cudaError_t cudaGraphRemoveDependencies(cudaGraph_t graph, const cudaGraphNode_t* from, const cudaGraphNode_t* to, size_t count);
// Since CUDA 13 they take what edges carry, too; here that is nothing.
cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t* from, const cudaGraphNode_t* to,
                                     const cudaGraphEdgeData*, size_t count);
cudaError_t cudaGraphRemoveDependencies(cudaGraph_t graph, const cudaGraphNode_t* from, const cudaGraphNode_t* to,
                                        const cudaGraphEdgeData*, size_t count);
cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t* from, cudaGraphNode_t* to, cudaGraphEdgeData*, size_t* count);
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* needs, cudaGraphEdgeData*, size_t* count);
cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t node, cudaGraphNode_t* nodes, cudaGraphEdgeData*, size_t* count);
cudaError_t cudaGraphDebugDotPrint(cudaGraph_t graph, const char* path, unsigned);
