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

// What a node does; an empty function: its parameters make no sense.
static std::function<void()> work_of(cudaGraphNodeType type, const void* parameters, Position at) {
    if (type == cudaGraphNodeTypeKernel) {
        const auto p = *static_cast<const cudaKernelNodeParams*>(parameters);
        const RegisteredKernel* kernel = registered_kernel(p.func);
        if (!kernel) return {};
        return [=, bound = kernel->bind(p.func, p.kernelParams)] {
            launch_bound(kernel->name, bound, p.gridDim_, p.blockDim_, p.sharedMemBytes, nullptr, false, at);
        };
    }
    if (type == cudaGraphNodeTypeMemcpy)
        return [p = *static_cast<const cudaMemcpy3DParms*>(parameters), at] { cudaMemcpy3D(&p, at); };
    if (type == cudaGraphNodeTypeMemset) {
        const auto p = *static_cast<const cudaMemsetParams*>(parameters);
        if (p.elementSize != 1 && p.elementSize != 2 && p.elementSize != 4) return {};
        return [p, at] {
            std::vector<char> row(p.width * p.elementSize);
            for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<char>(p.value >> 8 * (i % p.elementSize));
            for (size_t y = 0; y < p.height; ++y)
                copy(static_cast<char*>(p.dst) + y * p.pitch, row.data(), row.size(), cudaMemcpyDefault, at);
        };
    }
    if (type == cudaGraphNodeTypeHost) {
        const auto p = *static_cast<const cudaHostNodeParams*>(parameters);
        return p.fn ? std::function<void()>([p] { p.fn(p.userData); }) : std::function<void()>();
    }
    if (type == cudaGraphNodeTypeGraph) return [graph = *static_cast<const cudaGraph_t*>(parameters)] { run_all(graph); };
    if (type == cudaGraphNodeTypeEventRecord) {
        const cudaEvent_t event = *static_cast<const cudaEvent_t*>(parameters);
        return is_alive(event, Handle::event) ? std::function<void()>([event] { cudaEventRecord(event); }) : std::function<void()>();
    }
    return [] {};  // empty, or it waits for an event: here nothing is under way
}
cudaError_t add_node(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, cudaGraphNodeType type,
                     Parameters parameters, Position at) {
    SIMULATOR_NEED(node && parameters.bytes && is_graph(graph) && (needs || !count), cudaErrorInvalidValue);
    for (size_t i = 0; i < count; ++i) SIMULATOR_NEED(has_node(graph, needs[i]), cudaErrorInvalidValue);
    std::function<void()> work = work_of(type, parameters.bytes, at);
    SIMULATOR_NEED(work, type == cudaGraphNodeTypeKernel ? cudaErrorInvalidDeviceFunction : cudaErrorInvalidValue);
    *node = new_node(graph, type, std::move(work), {needs, needs + count}, {static_cast<const char*>(parameters.bytes), parameters.size});
    return cudaSuccess;
}
cudaError_t get_parameters(cudaGraphNode_t node, cudaGraphNodeType type, void* bytes, size_t size) {
    SIMULATOR_NEED(node && bytes && node->type == type && node->parameters.size() == size, cudaErrorInvalidValue);
    return memcpy(bytes, node->parameters.data(), size), cudaSuccess;
}
cudaError_t set_parameters(cudaGraphNode_t node, cudaGraphNodeType type, Parameters parameters, Position at) {
    SIMULATOR_NEED(node && parameters.bytes && node->type == type, cudaErrorInvalidValue);
    std::function<void()> work = work_of(type, parameters.bytes, at);
    SIMULATOR_NEED(work, cudaErrorInvalidValue);
    node->work = std::move(work);
    return node->parameters.assign(static_cast<const char*>(parameters.bytes), parameters.size), cudaSuccess;
}
static CUgraphExec_st::Node* node_of(cudaGraphExec_t exec, const CUgraphNode_st* node) {
    if (!is_alive(exec, Handle::graph_exec)) return nullptr;
    for (auto& one : exec->nodes)
        if (one.of == node) return &one;
    return nullptr;
}
cudaError_t set_parameters(cudaGraphExec_t exec, cudaGraphNode_t node, cudaGraphNodeType type, Parameters parameters, Position at) {
    CUgraphExec_st::Node* one = node_of(exec, node);
    SIMULATOR_NEED(one && parameters.bytes && node->type == type, cudaErrorInvalidValue);
    std::function<void()> work = work_of(type, parameters.bytes, at);
    SIMULATOR_NEED(work, cudaErrorInvalidValue);
    return one->work = std::move(work), cudaSuccess;
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
static bool needs(const CUgraphNode_st& node, const CUgraphNode_st* other) { return std::count(node.needs.begin(), node.needs.end(), other); }

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
    return simulator::add_node(node, graph, needs, count, cudaGraphNodeTypeEmpty, {"", 0}, {});
}
cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, cudaGraph_t child) {
    SIMULATOR_NEED(simulator::is_graph(child), cudaErrorInvalidValue);
    return simulator::add_node(node, graph, needs, count, cudaGraphNodeTypeGraph, simulator::parameters(simulator::clone_of(child)), {});
}
cudaError_t cudaGraphExecChildGraphNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node, cudaGraph_t child) {
    SIMULATOR_NEED(simulator::is_graph(child), cudaErrorInvalidValue);
    return simulator::set_parameters(exec, node, cudaGraphNodeTypeGraph, simulator::parameters(simulator::clone_of(child)), {});
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
    return simulator::give_nodes(graph, nodes, count, [](const CUgraphNode_st&) { return true; });
}
cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
    return simulator::give_nodes(graph, nodes, count, [](const CUgraphNode_st& node) { return node.needs.empty(); });
}
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t of, cudaGraphNode_t* nodes, size_t* count) {
    SIMULATOR_NEED(of, cudaErrorInvalidValue);
    return simulator::give_nodes(of->graph, nodes, count, [of](const CUgraphNode_st& node) { return simulator::needs(*of, &node); });
}
cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t of, cudaGraphNode_t* nodes, size_t* count) {
    SIMULATOR_NEED(of, cudaErrorInvalidValue);
    return simulator::give_nodes(of->graph, nodes, count, [of](const CUgraphNode_st& node) { return simulator::needs(node, of); });
}
cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t* from, cudaGraphNode_t* to, size_t* count) {
    SIMULATOR_NEED(simulator::is_graph(graph) && count, cudaErrorInvalidValue);
    size_t number = 0;
    for (const auto& node : graph->nodes)
        for (CUgraphNode_st* one : node->needs) {
            if (from && to && number < *count) from[number] = one, to[number] = node.get();
            ++number;
        }
    return *count = number, cudaSuccess;
}
cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t* from, const cudaGraphNode_t* to, size_t count) {
    SIMULATOR_NEED(simulator::is_graph(graph) && (!count || (from && to)), cudaErrorInvalidValue);
    for (size_t i = 0; i < count; ++i) {
        SIMULATOR_NEED(simulator::has_node(graph, from[i]) && simulator::has_node(graph, to[i]) && from[i] != to[i] &&
                       !simulator::needs(*to[i], from[i]), cudaErrorInvalidValue);
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
