// profile.cpp - what a warp's loads and stores cost: global memory sectors, passes over the shared-memory banks.
//
// Fibers run one lane after the other, so a warp's instruction shows up as up to 32 accesses. The lanes' n-th accesses
// at the same place in the program, counted from where all lanes of the warp last converged (a barrier, a warp
// operation of all lanes), form one request. Lanes that take another branch or leave a loop earlier are inactive in it.
#include <stdio.h>

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "checker.h"

namespace simulator {

constexpr size_t SECTOR = 32, BANKS = 32;
constexpr unsigned SECTOR_BITS = 5, WORD_BITS = 2, LINE_BITS = 7;  // a sector has 32 bytes, a bank's word 4, a line 128

struct Request {
    uint32_t mask;
    uint16_t bytes;
    Action action;
    bool shared;
    uintptr_t address[32];
};

// One place in the program, in one warp: the requests since its lanes last converged. requests[0] is number `base`;
// those before requests[done] have been counted.
struct Trace {
    uint32_t next[32] = {};  // number of accesses made by each lane
    uint32_t base = 0, done = 0;
    bool is_in_use = false;
    std::vector<Request> requests;
};

struct Site {
    bool shared;
    Action action;
    size_t bytes;
    uint64_t requests = 0, lanes = 0, transactions = 0, ideal = 0, lines = 0;
    uint64_t worst = 0;
    int64_t worst_offsets[32] = {};
    std::string array;              // accessed array; empty if there are several or it has no name
    uintptr_t begin = 0, size = 0;  // the array's location in this launch
};

struct Profile {
    std::string kernel, launch;
    dim3 grid, block;
    uint64_t launches = 0, barriers = 0, sectors_read = 0, sectors_written = 0, tensor_flops = 0;
    size_t static_shared = 0, dynamic_shared = 0;
    std::map<uint32_t, Site> sites;  // by 2 pc + (1 in shared memory): an asynchronous copy reads one and writes the other
    std::map<uint32_t, uint64_t> blocks;
    std::string sample;  // the last launch's, see sample.cpp
};
using ProfileKey = std::tuple<std::string, std::string, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned>;

static std::map<ProfileKey, Profile>& profiles() { return lasting<std::map<ProfileKey, Profile>>(); }
static Profile* current = nullptr;

// Numbers places in the program in the order of their first use; a warp's traces are indexed by it.
struct PlaceNumbers {
    struct Last {
        uint32_t key = ~0u, number = 0;
    };
    Last lasts[4096];  // cache hashed by key; a newer place evicts an older one
    std::unordered_map<uint32_t, uint32_t> all;
    std::vector<uint32_t> keys;
    uint32_t of(uint32_t key) {
        Last& last = lasts[key * 2654435761u >> 20];
        if (last.key == key) return last.number;
        const auto [entry, is_new] = all.try_emplace(key, static_cast<uint32_t>(keys.size()));
        if (is_new) keys.push_back(key);
        last = {key, entry->second};
        return last.number;
    }
};
struct WarpTraces {
    std::vector<Trace> traces;      // by place number
    std::vector<uint32_t> in_use;   // the nonempty ones
};
static PlaceNumbers places;
static std::vector<Site*> sites;  // of this launch, by place number
static WarpTraces warp_traces[32];
static std::vector<std::vector<Request>> spare;  // empty vectors with capacity, for reuse

// How often each basic block ran in this launch: counted in the cache `lasts`, added to `all` on eviction.
struct BlockCounts {
    struct Last {
        uint32_t site = 0;
        uint64_t times = 0;
    };
    Last lasts[4096];
    std::unordered_map<uint32_t, uint64_t> all;
    void collect() {
        for (Last& last : lasts)
            if (last.times) all[last.site] += std::exchange(last.times, 0);
    }
};
static BlockCounts block_counts;

// ---- cost of one request

struct Cost {
    uint64_t transactions, ideal;
};

// The distinct units of 2^bits bytes that these lanes touch, in ascending order; valid until the next call.
static const std::vector<uintptr_t>& units(const Request& r, uint32_t lanes, unsigned bits) {
    static std::vector<uintptr_t> result;
    result.clear();
    bool ascending = true;
    for (uint32_t rest = lanes; rest; rest &= rest - 1) {
        const uintptr_t address = r.address[__builtin_ctz(rest)];
        for (uintptr_t u = address >> bits; u <= (address + r.bytes - 1) >> bits; ++u) {
            if (!result.empty() && u <= result.back()) {
                if (u == result.back()) continue;
                ascending = false;
            }
            result.push_back(u);
        }
    }
    if (ascending) return result;
    std::sort(result.begin(), result.end());
    result.erase(std::unique(result.begin(), result.end()), result.end());
    return result;
}
static uint64_t divided(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

// Counts 32-byte sectors. Ideal: the fewest sectors that could hold the distinct bytes.
static Cost global_cost(const Request& r) {
    const unsigned piece = r.bytes >= 4 ? 2 : r.bytes == 2;
    const uint64_t sectors = units(r, r.mask, SECTOR_BITS).size();
    return {sectors, divided(units(r, r.mask, piece).size() << piece, SECTOR)};
}

// A bank serves one 4-byte word per pass; lanes that access the same word share it.
static uint64_t passes(const std::vector<uintptr_t>& words) {
    uint16_t words_in_bank[BANKS] = {}, most = 0;
    for (const uintptr_t word : words) most = std::max(most, ++words_in_bank[word % BANKS]);
    return most;
}
// Whether each lane accesses the same address as its partner, lane ^ distance.
static bool alike(const Request& r, uint32_t lanes, unsigned distance) {
    for (unsigned lane = 0; lane < 32; ++lane) {
        const unsigned other = lane ^ distance;
        if (lanes >> lane & 1 && lanes >> other & 1 && r.address[lane] != r.address[other]) return false;
    }
    return true;
}
// Accesses of 8 and 16 bytes are served in groups of 16 and 8 lanes. Two neighboring groups merge if their lanes access
// the same addresses pairwise (measured with ncu on an H200).
static Cost shared_cost(const Request& r) {
    if (r.bytes <= 4) {
        const std::vector<uintptr_t>& words = units(r, r.mask, WORD_BITS);
        return {passes(words), divided(words.size(), BANKS)};
    }
    const unsigned group = r.bytes <= 8 ? 32 : 16;  // lanes that may be merged
    uint64_t transactions = 0;
    for (unsigned first = 0; first < 32; first += group) {
        const uint32_t lanes = r.mask & (group == 32 ? ~0u : 0xffffu << first);
        const uint32_t low = group == 32 ? 0x0000ffffu : 0x00ffu << first;
        for (const uint32_t part : alike(r, lanes, 1) || alike(r, lanes, 2) ? std::array{lanes, 0u}
                                                                            : std::array{lanes & low, lanes & ~low})
            transactions += passes(units(r, part, WORD_BITS));
    }
    return {transactions, divided(units(r, r.mask, WORD_BITS).size(), BANKS)};
}

// Names the array that a site accesses. After a second array the site has no name, and lookups stop.
static void name_array(Site& site, uintptr_t address) {
    Range* range = site.shared ? &arena_range() : find_range(address, site.bytes);
    if (!range) return;
    const Place place = describe_place(*range, address);
    site.begin = address - static_cast<uintptr_t>(place.byte_offset), site.size = place.bytes();
    std::string name = place.is_dynamic ? "" : place.variable;
    if (range->kind == Range::allocated)
        name = "line " + range->allocated_at.substr(range->allocated_at.rfind(':') + 1) + "'s memory";
    if (!site.requests) site.array = name;
    if (site.array == name) return;
    site.array.clear();
    site.begin = 0, site.size = UINTPTR_MAX;
}

static void count(uint32_t place, unsigned warp, const Request& r) {
    static const std::vector<uintptr_t> nothing;
    const Cost cost = r.shared ? shared_cost(r) : global_cost(r);
    if (place >= sites.size()) sites.resize(places.keys.size());
    if (!sites[place]) {
        sites[place] = &current->sites.try_emplace(places.keys[place], Site{r.shared, r.action, r.bytes}).first->second;
        if (sites[place]->size != UINTPTR_MAX) sites[place]->size = 0;  // another launch may use other memory
    }
    Site& total = *sites[place];
    const uintptr_t somewhere = r.address[__builtin_ctz(r.mask)];
    if (somewhere - total.begin >= total.size) name_array(total, somewhere);
    if (sample_size) {
        sample_request(warp, r.shared, r.action, r.shared ? nothing : units(r, r.mask, SECTOR_BITS));
        if (!r.shared) total.lines += block_weight * units(r, r.mask, LINE_BITS).size();
    }
    total.requests += block_weight;
    total.lanes += block_weight * static_cast<unsigned>(__builtin_popcount(r.mask));
    total.transactions += block_weight * cost.transactions;
    total.ideal += block_weight * cost.ideal;
    if (cost.transactions <= total.worst) return;
    total.worst = cost.transactions;
    uintptr_t origin = r.shared ? reinterpret_cast<uintptr_t>(checker.worker->arena) : UINTPTR_MAX;
    for (uint32_t rest = r.shared ? 0 : r.mask; rest; rest &= rest - 1)  // global memory: the lowest address
        origin = std::min(origin, r.address[__builtin_ctz(rest)]);
    for (unsigned lane = 0; lane < 32; ++lane)
        total.worst_offsets[lane] = r.mask >> lane & 1 ? static_cast<int64_t>(r.address[lane] - origin) : -1;
}

// ---- gathering the lanes

static void forget_requests(Trace& trace) {
    trace.requests.clear();
    trace.done = 0;
    if (trace.requests.capacity()) spare.push_back(std::exchange(trace.requests, {}));
}
static void forget(Trace& trace) {
    forget_requests(trace);
    std::fill_n(trace.next, 32, 0u);
    trace.base = 0;
    trace.is_in_use = false;
}

void trace_access(Range& range, uintptr_t address, size_t bytes, Action action, uint32_t site) {
    if (range.kind != Range::shared) {
        const uintptr_t first = range.start / SECTOR;
        for (uintptr_t sector = address / SECTOR; sector <= (address + bytes - 1) / SECTOR; ++sector) {
            range.sectors[sector - first] |= action == Action::read ? 1 : action == Action::write ? 2 : 3;
            if (sample_size) sample_touch(range, sector - first, action);
        }
    }
    const Thread& thread = *checker.worker->running;
    const uint32_t place = places.of(2 * site + (range.kind == Range::shared));
    WarpTraces& warp = warp_traces[thread.warp];
    if (place >= warp.traces.size()) warp.traces.resize(places.keys.size());
    Trace& trace = warp.traces[place];
    if (!trace.is_in_use) {
        trace.is_in_use = true;
        warp.in_use.push_back(place);
    }
    const uint32_t index = trace.next[thread.lane]++ - trace.base;
    if (!trace.requests.capacity() && !spare.empty()) {
        trace.requests = std::move(spare.back());
        spare.pop_back();
    }
    while (trace.requests.size() <= index) {
        Request& fresh = trace.requests.emplace_back();  // addresses are valid for the lanes in the mask
        fresh.mask = 0, fresh.bytes = static_cast<uint16_t>(bytes), fresh.action = action;
        fresh.shared = range.kind == Range::shared;
    }
    Request& request = trace.requests[index];
    request.mask |= 1u << thread.lane;
    request.address[thread.lane] = address;
    const uint32_t all = checker.worker->warps[thread.warp].alive;
    while (trace.done < trace.requests.size() && (trace.requests[trace.done].mask & all) == all)
        count(place, thread.warp, trace.requests[trace.done++]);
    if (trace.done == trace.requests.size()) {
        trace.base += trace.done;
        forget_requests(trace);
    }
}

void profile_warps_aligned(uint32_t warps) {
    for (uint32_t rest = warps; rest; rest &= rest - 1) {
        const unsigned number = static_cast<unsigned>(__builtin_ctz(rest));
        WarpTraces& warp = warp_traces[number];
        for (const uint32_t place : warp.in_use) {
            Trace& trace = warp.traces[place];
            for (; trace.done < trace.requests.size(); ++trace.done) count(place, number, trace.requests[trace.done]);
            forget(trace);
        }
        warp.in_use.clear();
        if (sample_size) sample_warp_aligned(number);
    }
}

void profile_barrier() {
    profile_warps_aligned(~0u);
    if (sample_size) sample_barrier();
    current->barriers += block_weight;
}

void profile_block_begins(uint64_t number) {
    if (sample_size) sample_block_begins(number);
}
void profile_block_ends() {
    profile_warps_aligned(~0u);
    if (sample_size) sample_block_ends();
}

void check_tensor_work(unsigned flops) {
    if (current) current->tensor_flops += block_weight * flops;
}

void trace_basic_block(uint32_t site) {
    BlockCounts::Last& last = block_counts.lasts[site * 2654435761u >> 20];
    if (last.site != site) {
        if (last.times) block_counts.all[last.site] += last.times;
        last = {site, 0};
    }
    last.times += block_weight;
}

// ---- one launch

void profile_launch_begins() {
    const Grid& grid = *checker.worker->grid_run;
    const std::string launch = text_of(grid.kernel->position);
    const ProfileKey key = {grid.kernel->name, launch,       grid.size.x,  grid.size.y,
                            grid.size.z,       grid.block.x, grid.block.y, grid.block.z};
    current = &profiles()[key];
    current->kernel = grid.kernel->name;
    current->launch = launch;
    current->grid = grid.size;
    current->block = grid.block;
    if (sample_size) sample_launch_begins();
    block_counts.collect();
    block_counts.all.clear();
    sites.clear();
    for (Range* range : all_ranges()) std::fill_n(range->sectors, range->bytes / SECTOR + 2, uint8_t(0));
}

void profile_launch_ends() {
    if (!current) return;
    const Grid& grid = *checker.worker->grid_run;
    ++current->launches;
    if (sample_size) current->sample = sample_json();
    current->static_shared = std::max<size_t>(current->static_shared, grid.static_bytes);
    current->dynamic_shared = grid.dynamic_bytes;
    block_counts.collect();
    for (const auto& [site, times] : block_counts.all) current->blocks[site] += times;
    for (const Range* range : all_ranges())
        for (size_t i = 0; i < range->bytes / SECTOR + 2; ++i) {
            current->sectors_read += range->sectors[i] & 1;
            current->sectors_written += range->sectors[i] >> 1 & 1;
        }
    for (WarpTraces& warp : warp_traces) {
        for (const uint32_t place : warp.in_use) forget(warp.traces[place]);
        warp.in_use.clear();
    }
    current = nullptr;
}

void clear_profile() { profiles().clear(); }

// ---- JSON

static std::string field(const char* name, uint64_t value) {
    return std::string("\"") + name + "\": " + std::to_string(value) + ", ";
}

static std::string json_of(uint32_t pc, const Site& site) {
    static const char* const names[] = {"read", "write", "atomic", "async copy"};
    std::string offsets;
    for (const int64_t offset : site.worst_offsets) offsets += (offsets.empty() ? "" : ", ") + std::to_string(offset);
    return "{" + field("pc", pc) + "\"space\": \"" + (site.shared ? "shared" : "global") + "\", \"action\": \"" +
           names[static_cast<int>(site.action)] + "\", \"array\": " + quoted(site.array) + ", " + field("bytes", site.bytes) +
           field("requests", site.requests) + field("lanes", site.lanes) + field("transactions", site.transactions) +
           field("ideal", site.ideal) + (sample_size ? field("lines", site.lines) : "") + "\"worst\": {" + field("transactions", site.worst) + "\"offsets\": [" +
           offsets + "]}}";
}

std::string profile_json() {
    std::string text;
    for (const auto& [key, p] : profiles()) {
        std::string sites, blocks;
        for (const auto& [key, site] : p.sites) sites += (sites.empty() ? "" : ",\n  ") + json_of(key / 2, site);
        for (const auto& [pc, times] : p.blocks)
            blocks += (blocks.empty() ? "[" : ", [") + std::to_string(pc) + ", " + std::to_string(times) + "]";
        text += (text.empty() ? "" : ",\n ") + std::string("{\"kernel\": ") + quoted(p.kernel) +
                ", \"launch\": " + quoted(p.launch) + ", \"grid\": " + triple(p.grid) +
                ", \"block\": " + triple(p.block) + ", " + field("launches", p.launches) +
                field("barriers", p.barriers) + field("static_shared", p.static_shared) +
                field("dynamic_shared", p.dynamic_shared) + field("sectors_read", p.sectors_read) +
                field("sectors_written", p.sectors_written) +  field("tensor_flops", p.tensor_flops) +
                (p.sample.empty() ? "" : "\"sample\": " + p.sample + ", ") + "\"sites\": [" + sites + "],\n \"blocks\": [" + blocks +
                "]}";
    }
    return "[" + text + "]";
}

}  // namespace simulator
