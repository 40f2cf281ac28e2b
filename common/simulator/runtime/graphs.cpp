// graphs.cpp - graphs, their nodes and edges: include/simulator/graphs.h.
#include <string.h>

#include <algorithm>
#include <map>

#include "../include/simulator/graphs.h"

struct CUgraphExec_st {
    struct Node {
        const CUgraphNode_st* of;
        std::function<void()> work;
        bool enabled = true;
    };
    std::vector<Node> nodes;  // in the order in which they run
    unsigned long long flags = 0;
};
namespace simulator {

struct Copy1D {
    void* to;
    const void* from;
    size_t bytes;
    cudaMemcpyKind kind;
    Position at;
};
static bool is_graph(const CUgraph_st* graph) { return is_alive(graph, Handle::graph); }
static bool has_node(const CUgraph_st* graph, const CUgraphNode_st* node) {
    return std::any_of(graph->nodes.begin(), graph->nodes.end(), [&](const auto& one) { return one.get() == node; });
}

// The nodes so that each comes after what it needs; fewer than all where they need each other.
static std::vector<CUgraphNode_st*> in_order(const CUgraph_st* graph) {
    std::vector<CUgraphNode_st*> order;
    std::map<const CUgraphNode_st*, bool> done;
    for (bool more = true; more;) {
        more = false;
        for (const auto& node : graph->nodes) {
            const auto& needs = node->needs;
            if (done[node.get()] || !std::all_of(needs.begin(), needs.end(), [&](const auto* one) { return done[one]; })) continue;
            done[node.get()] = more = true;
            order.push_back(node.get());
        }
    }
    return order;
}
static void run_all(const CUgraph_st* graph) {
    for (const CUgraphNode_st* node : in_order(graph))
        if (node->work) node->work();
}
static cudaGraph_t clone_of(const CUgraph_st* graph) {
    auto* copy = new CUgraph_st;
    born(copy, Handle::graph);
    std::map<const CUgraphNode_st*, CUgraphNode_st*> twin;
    for (const auto& node : graph->nodes) {
        twin[node.get()] = new_node(copy, node->type, node->work, {}, node->parameters);
        twin[node.get()]->original = node.get();
    }
    for (const auto& node : graph->nodes)
        for (const CUgraphNode_st* one : node->needs) twin[node.get()]->needs.push_back(twin[one]);
    return copy;
}

// What each kind of node does; an empty function: its parameters make no sense.
static std::function<void()> work_of(const cudaKernelNodeParams& p, Position at) {
    const RegisteredKernel* kernel = registered_kernel(p.func);
    if (!kernel) return {};
    return [=, bound = kernel->bind(p.func, p.kernelParams), p = p] {
        launch_bound(kernel->name, bound, p.gridDim_, p.blockDim_, p.sharedMemBytes, nullptr, false, at);
    };
}
static std::function<void()> work_of(const cudaHostNodeParams& p, Position) {
    if (!p.fn) return {};
    return [p] { p.fn(p.userData); };
}
static std::function<void()> work_of(const cudaMemcpy3DParms& p, Position at) {
    return [p, at] { cudaMemcpy3D(&p, at); };
}
static std::function<void()> work_of(const Copy1D& p, Position) {
    return [p] { copy(p.to, p.from, p.bytes, p.kind, p.at); };
}
static std::function<void()> work_of(const cudaMemsetParams& p, Position at) {
    if (p.elementSize != 1 && p.elementSize != 2 && p.elementSize != 4) return {};
    return [p, at] {
        const size_t row_bytes = p.width * p.elementSize;
        std::vector<char> row(row_bytes);
        for (size_t i = 0; i < row_bytes; ++i) row[i] = static_cast<char>(p.value >> 8 * (i % p.elementSize));
        for (size_t y = 0; y < p.height; ++y)
            copy(static_cast<char*>(p.dst) + y * p.pitch, row.data(), row_bytes, cudaMemcpyDefault, at);
    };
}
static std::function<void()> work_of(const cudaEvent_t& event, Position) {
    if (!is_alive(event, Handle::event)) return {};
    return [event] { cudaEventRecord(event); };
}
static std::function<void()> work_of(const cudaGraph_t& graph, Position) {
    if (!is_graph(graph)) return {};
    return [graph] { run_all(graph); };
}

template <typename Parameters>
std::function<void()> work_for(cudaGraphNodeType type, const Parameters& parameters, Position at) {
    if (type == cudaGraphNodeTypeWaitEvent || type == cudaGraphNodeTypeEmpty) return [] {};  // here nothing is under way
    return work_of(parameters, at);
}
template <typename Parameters>
cudaError_t add_node(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, cudaGraphNodeType type,
                     const Parameters& parameters, Position at) {
    SIMULATOR_NEED(node && is_graph(graph) && (needs || !count), cudaErrorInvalidValue);
    for (size_t i = 0; i < count; ++i) SIMULATOR_NEED(has_node(graph, needs[i]), cudaErrorInvalidValue);
    std::function<void()> work = work_for(type, parameters, at);
    SIMULATOR_NEED(work, type == cudaGraphNodeTypeKernel ? cudaErrorInvalidDeviceFunction : cudaErrorInvalidValue);
    *node = new_node(graph, type, std::move(work), {needs, needs + count}, parameters);
    return cudaSuccess;
}
template <typename Parameters>
cudaError_t get_parameters(cudaGraphNode_t node, Parameters* parameters) {
    const auto* known = node && parameters ? std::any_cast<Parameters>(&node->parameters) : nullptr;
    SIMULATOR_NEED(known, cudaErrorInvalidValue);
    return *parameters = *known, cudaSuccess;
}
template <typename Parameters>
cudaError_t set_parameters(cudaGraphNode_t node, const Parameters& parameters, cudaGraphNodeType type, Position at) {
    SIMULATOR_NEED(node && node->type == type, cudaErrorInvalidValue);
    std::function<void()> work = work_for(type, parameters, at);
    SIMULATOR_NEED(work, cudaErrorInvalidValue);
    node->work = std::move(work);
    return node->parameters = parameters, cudaSuccess;
}
static CUgraphExec_st::Node* node_of(cudaGraphExec_t exec, const CUgraphNode_st* node) {
    if (!is_alive(exec, Handle::graph_exec)) return nullptr;
    for (auto& one : exec->nodes)
        if (one.of == node) return &one;
    return nullptr;
}
template <typename Parameters>
cudaError_t set_parameters(cudaGraphExec_t exec, cudaGraphNode_t node, const Parameters& parameters, cudaGraphNodeType type, Position at) {
    CUgraphExec_st::Node* one = node_of(exec, node);
    SIMULATOR_NEED(one && node->type == type, cudaErrorInvalidValue);
    std::function<void()> work = work_for(type, parameters, at);
    SIMULATOR_NEED(work, cudaErrorInvalidValue);
    return one->work = std::move(work), cudaSuccess;
}
// Lists are asked for twice: first how long they are, then for the entries.
template <typename T>
cudaError_t give_list(const std::vector<T>& all, T* entries, size_t* count) {
    SIMULATOR_NEED(count, cudaErrorInvalidValue);
    if (entries)
        for (size_t i = 0; i < *count; ++i) entries[i] = i < all.size() ? all[i] : T{};
    return *count = all.size(), cudaSuccess;
}

}  // namespace simulator

#define SIMULATOR_NODE(Kind, type, Parameters)                                                                                \
    cudaError_t cudaGraphAdd##Kind##Node(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs,       \
                                                size_t count, const Parameters* p, simulator::Position at) { \
        SIMULATOR_NEED(p, cudaErrorInvalidValue);                                                                             \
        return simulator::add_node(node, graph, needs, count, type, *p, at);                                                  \
    }                                                                                                                         \
    cudaError_t cudaGraph##Kind##NodeGetParams(cudaGraphNode_t node, Parameters* p) { return simulator::get_parameters(node, p); } \
    cudaError_t cudaGraph##Kind##NodeSetParams(cudaGraphNode_t node, const Parameters* p, simulator::Position at) { \
        SIMULATOR_NEED(p, cudaErrorInvalidValue);                                                                             \
        return simulator::set_parameters(node, *p, type, at);                                                                 \
    }                                                                                                                         \
    cudaError_t cudaGraphExec##Kind##NodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node, const Parameters* p,    \
                                                          simulator::Position at) {                       \
        SIMULATOR_NEED(p, cudaErrorInvalidValue);                                                                             \
        return simulator::set_parameters(exec, node, *p, type, at);                                                           \
    }
SIMULATOR_NODE(Kernel, cudaGraphNodeTypeKernel, cudaKernelNodeParams)
SIMULATOR_NODE(Host, cudaGraphNodeTypeHost, cudaHostNodeParams)
SIMULATOR_NODE(Memcpy, cudaGraphNodeTypeMemcpy, cudaMemcpy3DParms)
SIMULATOR_NODE(Memset, cudaGraphNodeTypeMemset, cudaMemsetParams)
#undef SIMULATOR_NODE
#define SIMULATOR_COPY_NODE(Name, Declared, to_, from_)                                                                       \
    cudaError_t cudaGraphAddMemcpyNode##Name(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs,   \
                                                    size_t count, SIMULATOR_FOUR Declared, cudaMemcpyKind kind,               \
                                                    simulator::Position at) {                             \
        return simulator::add_node(node, graph, needs, count, cudaGraphNodeTypeMemcpy, simulator::Copy1D{to_, from_, bytes, kind, at}, at); \
    }                                                                                                                         \
    cudaError_t cudaGraphMemcpyNodeSetParams##Name(cudaGraphNode_t node, SIMULATOR_FOUR Declared, cudaMemcpyKind kind, \
                                                          simulator::Position at) {                       \
        return simulator::set_parameters(node, simulator::Copy1D{to_, from_, bytes, kind, at}, cudaGraphNodeTypeMemcpy, at);  \
    }                                                                                                                         \
    cudaError_t cudaGraphExecMemcpyNodeSetParams##Name(cudaGraphExec_t exec, cudaGraphNode_t node,                     \
                                                              SIMULATOR_FOUR Declared, cudaMemcpyKind kind,                   \
                                                              simulator::Position at) {                   \
        return simulator::set_parameters(exec, node, simulator::Copy1D{to_, from_, bytes, kind, at}, cudaGraphNodeTypeMemcpy, at); \
    }
#define SIMULATOR_FOUR(...) __VA_ARGS__
SIMULATOR_COPY_NODE(1D, (void* to, const void* from, size_t bytes), to, from)
SIMULATOR_COPY_NODE(ToSymbol, (const void* symbol, const void* from, size_t bytes, size_t offset),
                    const_cast<char*>(static_cast<const char*>(symbol)) + offset, from)
SIMULATOR_COPY_NODE(FromSymbol, (void* to, const void* symbol, size_t bytes, size_t offset), to,
                    static_cast<const char*>(symbol) + offset)
#undef SIMULATOR_FOUR
#undef SIMULATOR_COPY_NODE
#define SIMULATOR_EVENT_NODE(Kind, type)                                                                                      \
    cudaError_t cudaGraphAddEvent##Kind##Node(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs,  \
                                                     size_t count, cudaEvent_t event) {                                       \
        return simulator::add_node(node, graph, needs, count, type, event, {});                                               \
    }                                                                                                                         \
    cudaError_t cudaGraphEvent##Kind##NodeGetEvent(cudaGraphNode_t node, cudaEvent_t* event) { return simulator::get_parameters(node, event); } \
    cudaError_t cudaGraphEvent##Kind##NodeSetEvent(cudaGraphNode_t node, cudaEvent_t event) { return simulator::set_parameters(node, event, type, {}); } \
    cudaError_t cudaGraphExecEvent##Kind##NodeSetEvent(cudaGraphExec_t exec, cudaGraphNode_t node, cudaEvent_t event) { \
        return simulator::set_parameters(exec, node, event, type, {});                                                        \
    }
SIMULATOR_EVENT_NODE(Record, cudaGraphNodeTypeEventRecord)
SIMULATOR_EVENT_NODE(Wait, cudaGraphNodeTypeWaitEvent)
#undef SIMULATOR_EVENT_NODE
#define SIMULATOR_WITH_EDGES(name, Of, Node)                                                                                \
    cudaError_t name(Of of, Node* a, Node* b, const cudaGraphEdgeData*, size_t count) { return name(of, a, b, count); }
SIMULATOR_WITH_EDGES(cudaGraphAddDependencies, cudaGraph_t, const cudaGraphNode_t)
SIMULATOR_WITH_EDGES(cudaGraphRemoveDependencies, cudaGraph_t, const cudaGraphNode_t)
#undef SIMULATOR_WITH_EDGES
cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned flags) {
    SIMULATOR_NEED(graph && !flags, cudaErrorInvalidValue);
    *graph = new CUgraph_st;
    return simulator::born(*graph, simulator::Handle::graph), cudaSuccess;
}
cudaError_t cudaGraphClone(cudaGraph_t* copy, cudaGraph_t graph) {
    SIMULATOR_NEED(copy && simulator::is_graph(graph), cudaErrorInvalidValue);
    return *copy = simulator::clone_of(graph), cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    SIMULATOR_NEED(simulator::dies(graph, simulator::Handle::graph), cudaErrorInvalidValue);
    return delete graph, cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
    SIMULATOR_NEED(exec && simulator::is_graph(graph), cudaErrorInvalidValue);
    const std::vector<CUgraphNode_st*> order = simulator::in_order(graph);
    SIMULATOR_NEED(order.size() == graph->nodes.size(), cudaErrorInvalidValue);
    *exec = new CUgraphExec_st{{}, flags};
    for (const CUgraphNode_st* node : order) (*exec)->nodes.push_back({node, node->work});
    return simulator::born(*exec, simulator::Handle::graph_exec), cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithParams(cudaGraphExec_t* exec, cudaGraph_t graph, cudaGraphInstantiateParams* p) {
    SIMULATOR_NEED(p, cudaErrorInvalidValue);
    const cudaError_t error = cudaGraphInstantiateWithFlags(exec, graph, p->flags);
    return p->result_out = error ? cudaGraphInstantiateError : cudaGraphInstantiateSuccess, error;
}
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphExecUpdateResultInfo* info) {
    SIMULATOR_NEED(simulator::is_alive(exec, simulator::Handle::graph_exec) && simulator::is_graph(graph), cudaErrorInvalidValue);
    const std::vector<CUgraphNode_st*> order = simulator::in_order(graph);
    if (info) *info = {};
    bool same = order.size() == exec->nodes.size();
    for (size_t i = 0; same && i < order.size(); ++i)
        same = order[i]->type == exec->nodes[i].of->type && order[i]->needs.size() == exec->nodes[i].of->needs.size();
    if (!same && info) info->result = cudaGraphExecUpdateErrorTopologyChanged;
    SIMULATOR_NEED(same, cudaErrorGraphExecUpdateFailure);
    for (size_t i = 0; i < order.size(); ++i) exec->nodes[i].work = order[i]->work;
    return cudaSuccess;
}
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphNode_t* node, cudaGraphExecUpdateResult* result) {
    cudaGraphExecUpdateResultInfo info;
    const cudaError_t error = cudaGraphExecUpdate(exec, graph, &info);
    if (node) *node = info.errorNode;
    if (result) *result = info.result;
    return error;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    SIMULATOR_NEED(simulator::dies(exec, simulator::Handle::graph_exec), cudaErrorInvalidValue);
    return delete exec, cudaSuccess;
}
cudaError_t cudaGraphExecGetFlags(cudaGraphExec_t exec, unsigned long long* flags) {
    SIMULATOR_NEED(simulator::is_alive(exec, simulator::Handle::graph_exec) && flags, cudaErrorInvalidValue);
    return *flags = exec->flags, cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t) {
    SIMULATOR_NEED(simulator::is_alive(exec, simulator::Handle::graph_exec), cudaErrorInvalidValue);
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    SIMULATOR_NEED(simulator::is_alive(exec, simulator::Handle::graph_exec), cudaErrorInvalidValue);
    const auto run = [exec] {
        for (const auto& node : exec->nodes)
        if (node.enabled && node.work) node.work();
        return cudaPeekAtLastError();
    };
    return simulator::in_stream(stream, run, cudaGraphNodeTypeGraph);
}
cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count) {
    return simulator::add_node(node, graph, needs, count, cudaGraphNodeTypeEmpty, simulator::Copy1D{}, {});
}
cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, cudaGraph_t child) {
    SIMULATOR_NEED(simulator::is_graph(child), cudaErrorInvalidValue);
    return simulator::add_node(node, graph, needs, count, cudaGraphNodeTypeGraph, simulator::clone_of(child), {});
}
cudaError_t cudaGraphChildGraphNodeGetGraph(cudaGraphNode_t node, cudaGraph_t* graph) { return simulator::get_parameters(node, graph); }
cudaError_t cudaGraphExecChildGraphNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node, cudaGraph_t child) {
    SIMULATOR_NEED(simulator::is_graph(child), cudaErrorInvalidValue);
    return simulator::set_parameters(exec, node, simulator::clone_of(child), cudaGraphNodeTypeGraph, {});
}
cudaError_t cudaGraphDestroyNode(cudaGraphNode_t node) {
    SIMULATOR_NEED(node && simulator::is_graph(node->graph), cudaErrorInvalidValue);
    auto& nodes = node->graph->nodes;
    for (const auto& one : nodes) std::erase(one->needs, node);
    std::erase_if(nodes, [node](const auto& one) { return one.get() == node; });
    return cudaSuccess;
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
    SIMULATOR_NEED(node && type, cudaErrorInvalidValue);
    return *type = node->type, cudaSuccess;
}
cudaError_t cudaGraphNodeFindInClone(cudaGraphNode_t* twin, cudaGraphNode_t node, cudaGraph_t clone) {
    SIMULATOR_NEED(twin && node && simulator::is_graph(clone), cudaErrorInvalidValue);
    for (const auto& one : clone->nodes)
        if (one->original == node) return *twin = one.get(), cudaSuccess;
    return simulator::finished(cudaErrorInvalidValue);
}
cudaError_t cudaGraphNodeSetEnabled(cudaGraphExec_t exec, cudaGraphNode_t node, unsigned enabled) {
    CUgraphExec_st::Node* one = simulator::node_of(exec, node);
    SIMULATOR_NEED(one, cudaErrorInvalidValue);
    return one->enabled = enabled, cudaSuccess;
}
cudaError_t cudaGraphNodeGetEnabled(cudaGraphExec_t exec, cudaGraphNode_t node, unsigned* enabled) {
    const CUgraphExec_st::Node* one = simulator::node_of(exec, node);
    SIMULATOR_NEED(one && enabled, cudaErrorInvalidValue);
    return *enabled = one->enabled, cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
    SIMULATOR_NEED(simulator::is_graph(graph), cudaErrorInvalidValue);
    std::vector<CUgraphNode_st*> all;
    for (const auto& node : graph->nodes) all.push_back(node.get());
    return simulator::give_list(all, nodes, count);
}
cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
    SIMULATOR_NEED(simulator::is_graph(graph), cudaErrorInvalidValue);
    std::vector<CUgraphNode_st*> all;
    for (const auto& node : graph->nodes)
        if (node->needs.empty()) all.push_back(node.get());
    return simulator::give_list(all, nodes, count);
}
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* needs, size_t* count) {
    SIMULATOR_NEED(node, cudaErrorInvalidValue);
    return simulator::give_list(node->needs, needs, count);
}
cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t node, cudaGraphNode_t* nodes, size_t* count) {
    SIMULATOR_NEED(node, cudaErrorInvalidValue);
    std::vector<CUgraphNode_st*> all;
    for (const auto& one : node->graph->nodes)
        if (std::count(one->needs.begin(), one->needs.end(), node)) all.push_back(one.get());
    return simulator::give_list(all, nodes, count);
}
cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t* from, cudaGraphNode_t* to, size_t* count) {
    SIMULATOR_NEED(simulator::is_graph(graph) && count, cudaErrorInvalidValue);
    std::vector<CUgraphNode_st*> ends[2];
    for (const auto& node : graph->nodes)
        for (CUgraphNode_st* one : node->needs) ends[0].push_back(one), ends[1].push_back(node.get());
    size_t same = *count;
    simulator::give_list(ends[0], from, &same);
    return simulator::give_list(ends[1], to, count);
}
cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t* from, const cudaGraphNode_t* to, size_t count) {
    SIMULATOR_NEED(simulator::is_graph(graph) && (!count || (from && to)), cudaErrorInvalidValue);
    for (size_t i = 0; i < count; ++i) {
        SIMULATOR_NEED(simulator::has_node(graph, from[i]) && simulator::has_node(graph, to[i]) && from[i] != to[i], cudaErrorInvalidValue);
        SIMULATOR_NEED(!std::count(to[i]->needs.begin(), to[i]->needs.end(), from[i]), cudaErrorInvalidValue);
        to[i]->needs.push_back(from[i]);
    }
    return cudaSuccess;
}
cudaError_t cudaGraphRemoveDependencies(cudaGraph_t graph, const cudaGraphNode_t* from, const cudaGraphNode_t* to, size_t count) {
    SIMULATOR_NEED(simulator::is_graph(graph) && (!count || (from && to)), cudaErrorInvalidValue);
    for (size_t i = 0; i < count; ++i)
        SIMULATOR_NEED(simulator::has_node(graph, to[i]) && std::erase(to[i]->needs, from[i]), cudaErrorInvalidValue);
    return cudaSuccess;
}
cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t* from, cudaGraphNode_t* to, cudaGraphEdgeData*, size_t* count) {
    return cudaGraphGetEdges(graph, from, to, count);
}
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* needs, cudaGraphEdgeData*, size_t* count) {
    return cudaGraphNodeGetDependencies(node, needs, count);
}
cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t node, cudaGraphNode_t* nodes, cudaGraphEdgeData*, size_t* count) {
    return cudaGraphNodeGetDependentNodes(node, nodes, count);
}
cudaError_t cudaGraphDebugDotPrint(cudaGraph_t graph, const char* path, unsigned) {
    SIMULATOR_NEED(simulator::is_graph(graph) && path, cudaErrorInvalidValue);
    FILE* file = fopen(path, "w");
    SIMULATOR_NEED(file, cudaErrorOperatingSystem);
    static const char* const names[] = {"kernel", "memcpy", "memset", "host", "graph", "empty", "wait event", "event record"};
    fprintf(file, "digraph graph {\n");
    for (const auto& node : graph->nodes) {
        fprintf(file, "  \"%p\" [label=\"%s\"];\n", static_cast<void*>(node.get()), names[node->type]);
        for (const CUgraphNode_st* one : node->needs)
        fprintf(file, "  \"%p\" -> \"%p\";\n", static_cast<const void*>(one), static_cast<void*>(node.get()));
    }
    fprintf(file, "}\n");
    return fclose(file), cudaSuccess;
}
