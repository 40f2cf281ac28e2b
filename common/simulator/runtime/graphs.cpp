// graphs.cpp - graphs, their nodes and edges: include/simulator/graphs.h.
#include <string.h>

#include <algorithm>
#include <map>

#include "../include/simulator/graphs.h"

struct CUgraphExec_st {
    struct Node {
        const CUgraphNode_st* of;  // may have been destroyed with its graph
        cudaGraphNodeType type;
        size_t needs;
        std::function<void()> work;
    };
    std::vector<Node> nodes;  // in the order in which they run
};
namespace simulator {

static bool is_graph(const CUgraph_st* graph) { return is_alive(graph, Handle::graph); }
static bool has_node(const CUgraph_st* graph, const CUgraphNode_st* node) {
    return std::any_of(graph->nodes.begin(), graph->nodes.end(), [&](const auto& one) { return one.get() == node; });
}

// Topological order. Returns fewer nodes than the graph has if there is a cycle.
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
    for (const CUgraphNode_st* node : in_order(graph)) node->work();
}
static cudaGraph_t clone_of(const CUgraph_st* graph) {
    auto* copy = new CUgraph_st;
    born(copy, Handle::graph);
    std::map<const CUgraphNode_st*, CUgraphNode_st*> twin;
    for (const auto& node : graph->nodes) twin[node.get()] = new_node(copy, node->type, node->work, {});
    for (const auto& node : graph->nodes)
        for (const CUgraphNode_st* one : node->needs) twin[node.get()]->needs.push_back(twin[one]);
    return copy;
}

std::function<void()> work_of(const cudaKernelNodeParams& p, Position at) {
    const RegisteredKernel* kernel = registered_kernel(p.func);
    if (!kernel) return {};
    return [=, bound = kernel->bind(p.func, p.kernelParams)] {
        launch_bound(kernel->name, bound, p.gridDim_, p.blockDim_, p.sharedMemBytes, nullptr, false, at);
    };
}
std::function<void()> work_of(const cudaMemcpy3DParms& p, Position at) {
    return [p, at] { cudaMemcpy3D(&p, at); };
}
std::function<void()> work_of(const cudaMemsetParams& p, Position at) {
    if (p.elementSize != 1 && p.elementSize != 2 && p.elementSize != 4) return {};
    return [p, at] {
        std::vector<char> row(p.width * p.elementSize);
        for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<char>(p.value >> 8 * (i % p.elementSize));
        for (size_t y = 0; y < p.height; ++y)
            copy(static_cast<char*>(p.dst) + y * p.pitch, row.data(), row.size(), cudaMemcpyDefault, at);
    };
}
std::function<void()> work_of(const cudaHostNodeParams& p, Position) {
    return p.fn ? std::function<void()>([p] { p.fn(p.userData); }) : std::function<void()>();
}
cudaError_t add_node(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, cudaGraphNodeType type,
                     std::function<void()> work) {
    SIMULATOR_NEED(node && is_graph(graph) && (needs || !count), cudaErrorInvalidValue);
    for (size_t i = 0; i < count; ++i) SIMULATOR_NEED(has_node(graph, needs[i]), cudaErrorInvalidValue);
    SIMULATOR_NEED(work, type == cudaGraphNodeTypeKernel ? cudaErrorInvalidDeviceFunction : cudaErrorInvalidValue);
    return *node = new_node(graph, type, std::move(work), {needs, needs + count}), cudaSuccess;
}
cudaError_t set_work(cudaGraphExec_t exec, cudaGraphNode_t node, cudaGraphNodeType type, std::function<void()> work) {
    SIMULATOR_NEED(is_alive(exec, Handle::graph_exec) && work, cudaErrorInvalidValue);
    for (auto& one : exec->nodes)
        if (one.of == node && one.type == type) return one.work = std::move(work), cudaSuccess;
    return finished(cudaErrorInvalidValue);
}
template <typename Wanted>
cudaError_t give_nodes(const CUgraph_st* graph, cudaGraphNode_t* nodes, size_t* count, Wanted wanted) {
    SIMULATOR_NEED(is_graph(graph) && count, cudaErrorInvalidValue);
    size_t number = 0;
    for (const auto& node : graph->nodes) {
        if (!wanted(*node)) continue;
        if (nodes && number < *count) nodes[number] = node.get();
        ++number;
    }
    if (nodes)
        for (size_t i = number; i < *count; ++i) nodes[i] = nullptr;
    return *count = number, cudaSuccess;
}

}  // namespace simulator

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
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
    SIMULATOR_NEED(exec && simulator::is_graph(graph), cudaErrorInvalidValue);
    const std::vector<CUgraphNode_st*> order = simulator::in_order(graph);
    SIMULATOR_NEED(order.size() == graph->nodes.size(), cudaErrorInvalidValue);
    *exec = new CUgraphExec_st;
    for (const CUgraphNode_st* node : order) (*exec)->nodes.push_back({node, node->type, node->needs.size(), node->work});
    return simulator::born(*exec, simulator::Handle::graph_exec), cudaSuccess;
}
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphExecUpdateResultInfo* info) {
    SIMULATOR_NEED(simulator::is_alive(exec, simulator::Handle::graph_exec) && simulator::is_graph(graph), cudaErrorInvalidValue);
    const std::vector<CUgraphNode_st*> order = simulator::in_order(graph);
    if (info) *info = {};
    bool same = order.size() == exec->nodes.size();
    for (size_t i = 0; same && i < order.size(); ++i)
        same = order[i]->type == exec->nodes[i].type && order[i]->needs.size() == exec->nodes[i].needs;
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
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t) {
    SIMULATOR_NEED(simulator::is_alive(exec, simulator::Handle::graph_exec), cudaErrorInvalidValue);
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    SIMULATOR_NEED(simulator::is_alive(exec, simulator::Handle::graph_exec), cudaErrorInvalidValue);
    const auto run = [exec] {
        return simulator::error_alone([exec] {
            for (const auto& node : exec->nodes) node.work();
        });
    };
    return simulator::in_stream(stream, run, cudaGraphNodeTypeGraph);
}
cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count) {
    return simulator::add_node(node, graph, needs, count, cudaGraphNodeTypeEmpty, [] {});
}
cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, cudaGraph_t child) {
    SIMULATOR_NEED(simulator::is_graph(child), cudaErrorInvalidValue);
    const auto run = [copy = simulator::clone_of(child)] { simulator::run_all(copy); };
    return simulator::add_node(node, graph, needs, count, cudaGraphNodeTypeGraph, run);
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
    SIMULATOR_NEED(node && type, cudaErrorInvalidValue);
    return *type = node->type, cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
    return simulator::give_nodes(graph, nodes, count, [](const CUgraphNode_st&) { return true; });
}
cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
    return simulator::give_nodes(graph, nodes, count, [](const CUgraphNode_st& node) { return node.needs.empty(); });
}
cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t* from, const cudaGraphNode_t* to, size_t count) {
    SIMULATOR_NEED(simulator::is_graph(graph) && (!count || (from && to)), cudaErrorInvalidValue);
    for (size_t i = 0; i < count; ++i) {
        SIMULATOR_NEED(simulator::has_node(graph, from[i]) && simulator::has_node(graph, to[i]) && from[i] != to[i], cudaErrorInvalidValue);
        auto& needs = to[i]->needs;
        SIMULATOR_NEED(!std::count(needs.begin(), needs.end(), from[i]), cudaErrorInvalidValue);
        needs.push_back(from[i]);
    }
    return cudaSuccess;
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
