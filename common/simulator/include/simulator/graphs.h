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

// ---- nodes: what each kind does is in its parameters, which are kept as bytes
namespace simulator {
struct Parameters {
    const void* bytes;
    size_t size;
};
template <typename T>
Parameters parameters(const T& value) {
    return {&value, sizeof value};
}
cudaError_t add_node(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, cudaGraphNodeType type,
                     Parameters parameters, Position at);
cudaError_t get_parameters(cudaGraphNode_t node, cudaGraphNodeType type, void* bytes, size_t size);
cudaError_t set_parameters(cudaGraphNode_t node, cudaGraphNodeType type, Parameters parameters, Position at);
cudaError_t set_parameters(cudaGraphExec_t exec, cudaGraphNode_t node, cudaGraphNodeType type, Parameters parameters, Position at);
inline cudaMemcpy3DParms copied(const void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    return {nullptr, {}, {const_cast<void*>(from), bytes, bytes, 1}, nullptr, {}, {const_cast<void*>(to), bytes, bytes, 1}, {bytes, 1, 1}, kind};
}
}  // namespace simulator
// cudaGraphAdd<ADD>, cudaGraph<SET>, cudaGraphExec<SET>: the last argument makes the parameters of the declared ones.
#define SIMULATOR_LIST(...) __VA_ARGS__
#define SIMULATOR_NODE(ADD, SET, TYPE, DECLARED, ...)                                                                         \
    inline cudaError_t cudaGraphAdd##ADD(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, \
                                         SIMULATOR_LIST DECLARED, simulator::Position at = simulator::here()) {               \
        return simulator::add_node(node, graph, needs, count, cudaGraphNodeType##TYPE, __VA_ARGS__, at);                      \
    }                                                                                                                         \
    inline cudaError_t cudaGraph##SET(cudaGraphNode_t node, SIMULATOR_LIST DECLARED, simulator::Position at = simulator::here()) { \
        return simulator::set_parameters(node, cudaGraphNodeType##TYPE, __VA_ARGS__, at);                                     \
    }                                                                                                                         \
    inline cudaError_t cudaGraphExec##SET(cudaGraphExec_t exec, cudaGraphNode_t node, SIMULATOR_LIST DECLARED,                \
                                          simulator::Position at = simulator::here()) {                                       \
        return simulator::set_parameters(exec, node, cudaGraphNodeType##TYPE, __VA_ARGS__, at);                               \
    }
#define SIMULATOR_GETTER(name, TYPE, T) \
    inline cudaError_t name(cudaGraphNode_t node, T* value) { return simulator::get_parameters(node, cudaGraphNodeType##TYPE, value, sizeof *value); }
#define SIMULATOR_NODE_OF(Kind, T)                                                                                            \
    SIMULATOR_NODE(Kind##Node, Kind##NodeSetParams, Kind, (const T* p), simulator::Parameters{p, sizeof *p})                  \
    SIMULATOR_GETTER(cudaGraph##Kind##NodeGetParams, Kind, T)
SIMULATOR_NODE_OF(Kernel, cudaKernelNodeParams)
SIMULATOR_NODE_OF(Host, cudaHostNodeParams)
SIMULATOR_NODE_OF(Memcpy, cudaMemcpy3DParms)
SIMULATOR_NODE_OF(Memset, cudaMemsetParams)
SIMULATOR_NODE(MemcpyNode1D, MemcpyNodeSetParams1D, Memcpy, (void* to, const void* from, size_t bytes, cudaMemcpyKind kind),
               simulator::parameters(simulator::copied(to, from, bytes, kind)))
SIMULATOR_NODE(MemcpyNodeToSymbol, MemcpyNodeSetParamsToSymbol, Memcpy,
               (const void* symbol, const void* from, size_t bytes, size_t offset, cudaMemcpyKind kind),
               simulator::parameters(simulator::copied(static_cast<const char*>(symbol) + offset, from, bytes, kind)))
SIMULATOR_NODE(MemcpyNodeFromSymbol, MemcpyNodeSetParamsFromSymbol, Memcpy,
               (void* to, const void* symbol, size_t bytes, size_t offset, cudaMemcpyKind kind),
               simulator::parameters(simulator::copied(to, static_cast<const char*>(symbol) + offset, bytes, kind)))
SIMULATOR_NODE(EventRecordNode, EventRecordNodeSetEvent, EventRecord, (cudaEvent_t event), simulator::parameters(event))
SIMULATOR_NODE(EventWaitNode, EventWaitNodeSetEvent, WaitEvent, (cudaEvent_t event), simulator::parameters(event))
SIMULATOR_GETTER(cudaGraphEventRecordNodeGetEvent, EventRecord, cudaEvent_t)
SIMULATOR_GETTER(cudaGraphEventWaitNodeGetEvent, WaitEvent, cudaEvent_t)
SIMULATOR_GETTER(cudaGraphChildGraphNodeGetGraph, Graph, cudaGraph_t)
#undef SIMULATOR_NODE
#undef SIMULATOR_NODE_OF
#undef SIMULATOR_GETTER
// A child graph is a copy of its own.
cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, cudaGraph_t child);
cudaError_t cudaGraphExecChildGraphNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node, cudaGraph_t child);
cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count);
cudaError_t cudaGraphDestroyNode(cudaGraphNode_t node);
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type);
cudaError_t cudaGraphNodeFindInClone(cudaGraphNode_t* twin, cudaGraphNode_t node, cudaGraph_t clone);
cudaError_t cudaGraphNodeSetEnabled(cudaGraphExec_t exec, cudaGraphNode_t node, unsigned enabled);
cudaError_t cudaGraphNodeGetEnabled(cudaGraphExec_t exec, cudaGraphNode_t node, unsigned* enabled);

// ---- lists: asked for twice, first for their length. Since CUDA 13 they take what edges carry, too; here that is nothing.
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count);
cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count);
#define SIMULATOR_EDGES(name, DECLARED, GIVEN, Count)      \
    cudaError_t name(SIMULATOR_LIST DECLARED, Count count); \
    inline cudaError_t name(SIMULATOR_LIST DECLARED, const cudaGraphEdgeData*, Count count) { return name(SIMULATOR_LIST GIVEN, count); }
SIMULATOR_EDGES(cudaGraphNodeGetDependencies, (cudaGraphNode_t of, cudaGraphNode_t* nodes), (of, nodes), size_t*)
SIMULATOR_EDGES(cudaGraphNodeGetDependentNodes, (cudaGraphNode_t of, cudaGraphNode_t* nodes), (of, nodes), size_t*)
SIMULATOR_EDGES(cudaGraphGetEdges, (cudaGraph_t of, cudaGraphNode_t* from, cudaGraphNode_t* to), (of, from, to), size_t*)
SIMULATOR_EDGES(cudaGraphAddDependencies, (cudaGraph_t of, const cudaGraphNode_t* from, const cudaGraphNode_t* to), (of, from, to), size_t)
SIMULATOR_EDGES(cudaGraphRemoveDependencies, (cudaGraph_t of, const cudaGraphNode_t* from, const cudaGraphNode_t* to), (of, from, to), size_t)
#undef SIMULATOR_EDGES
#undef SIMULATOR_LIST
cudaError_t cudaGraphDebugDotPrint(cudaGraph_t graph, const char* path, unsigned);
