// findings.cpp - what the checker found: each kind of mistake once per pair of source lines, with the first example and
// a count. The report is JSON; common/inspect/findings/model.py turns it into text.
#include <algorithm>
#include <stdio.h>
#include <string.h>

#include <map>
#include <set>
#include <tuple>

#include "checker.h"

namespace simulator {

struct Finding {
    std::string kind, kernel, launch, space, detail;
    Place place;
    std::vector<Touch> touches;
    uint64_t count;
    bool same_value = false;  // so far none of these writes changed the value
};
using Key = std::tuple<std::string, std::string, uint32_t, uint32_t, std::string>;

static std::vector<Finding>& findings() { return lasting<std::vector<Finding>>(); }
static std::map<Key, size_t>& known() { return lasting<std::map<Key, size_t>>(); }

uint3 thread_at(unsigned number) { return place_in(checker.worker->size, number); }

Touch touch_now(Action action, size_t bytes, uint32_t site) {
    const Worker& worker = *checker.worker;
    return {action, bytes, site, worker.Block::index, worker.running->index};
}

static Finding& found(const char* kind, const Place& place, const std::vector<Touch>& touches,
                      const std::string& detail) {
    const std::string kernel = checker.worker->grid_run->kernel->name;
    const Touch& now = touches[0];
    const uint32_t where = now.at.file ? static_cast<uint32_t>(now.at.line) : now.site;
    const Key key = {kind, kernel, where, touches.size() > 1 ? touches[1].site : 0, place.variable};
    const auto [entry, is_new] = known().try_emplace(key, findings().size());
    if (!is_new) {
        ++findings()[entry->second].count;
        return findings()[entry->second];
    }
    const char* space = place.range && place.range->kind == Range::shared ? "shared" : "global";
    findings().push_back({kind, kernel, text_of(checker.worker->grid_run->kernel->position), space, detail, place, touches, 1});
    return findings().back();
}

void add_finding(const char* kind, const Place& place, const std::vector<Touch>& touches, const std::string& detail) {
    found(kind, place, touches, detail).same_value = false;
}

// ---- races that change no result are classified separately

static struct {
    size_t finding;
    const void* address;
    size_t bytes;
    char before[16];
} write_under_way;

void add_racing_write(const Place& place, const std::vector<Touch>& touches, uintptr_t address, size_t bytes) {
    const size_t known_before = findings().size();
    Finding& finding = found("race", place, touches, "");
    if (findings().size() > known_before) finding.same_value = true;
    if (!finding.same_value) return;
    if (bytes > sizeof write_under_way.before) {
        finding.same_value = false;
        return;
    }
    write_under_way.finding = static_cast<size_t>(&finding - findings().data());
    write_under_way.address = reinterpret_cast<const void*>(address);
    write_under_way.bytes = bytes;
    memcpy(write_under_way.before, write_under_way.address, bytes);
    checker.unresolved = true;
}

void resolve_write() {
    checker.unresolved = false;
    if (memcmp(write_under_way.before, write_under_way.address, write_under_way.bytes) != 0)
        findings()[write_under_way.finding].same_value = false;
}

static std::set<uint32_t>& guarded_reads() { return lasting<std::set<uint32_t>>(); }
void note_guarded_read(uint32_t site) { guarded_reads().insert(site); }

static std::string kind_of(const Finding& finding) {
    if (finding.same_value) return "same_value";
    if (finding.kind != "race" || finding.touches.size() < 2) return finding.kind;
    for (int i = 0; i < 2; ++i)
        if (finding.touches[i].action == Action::read && guarded_reads().count(finding.touches[i].site) &&
            finding.touches[1 - i].action == Action::atomic)
            return "stale_read";
    return finding.kind;
}

// A mistake at an operation in which this thread waits.
static void add_wait(const char* kind, const Thread& thread, Position at, const std::string& detail) {
    if (checker.mode != Mode::check) return;
    const Touch touch = {Action::read, 0, 0, checker.worker->Block::index, thread.index, at};
    add_finding(kind, {nullptr, "", 1, {}, 0}, {touch}, detail);
}

void check_barrier_after_return(Position at) {
    Quiet quiet;
    const Worker& worker = *checker.worker;
    const std::string detail = std::to_string(worker.thread_count - worker.live) + " of " +
                               std::to_string(worker.thread_count) + " threads have run to their end";
    const Thread* one = worker.running;
    if (one->state == State::returned)  // it was the last one to return: the others have waited
        one = std::find_if(worker.threads, worker.threads + worker.thread_count,
                           [](const Thread& other) { return other.state == State::at_barrier; });
    add_wait("barrier", *one, at, detail);
}

void check_absent_lane(const Thread& reader, unsigned source, bool gone) {
    Quiet quiet;
    const std::string detail = "lane " + std::to_string(reader.lane) + " reads from lane " + std::to_string(source) +
                               (gone ? ", which no longer takes part" : ", which its mask does not name");
    add_wait("absent_lane", reader, reader.position, detail);
}

void check_absent_votes(const Thread& voter, uint32_t gone) {
    Quiet quiet;
    if (strncmp(voter.operation, "__shfl", 6) == 0) return;  // see check_absent_lane
    const std::string detail = std::to_string(__builtin_popcount(gone)) + " of the lanes that the mask of " + voter.operation +
                               " names have returned, the first of them lane " + std::to_string(__builtin_ctz(gone));
    add_wait("absent_vote", voter, voter.position, detail);
}

void add_host_access(const Place& place, Touch touch) {
    touch.on_host = true;
    const auto [entry, is_new] = known().try_emplace({"host_access", "", touch.site, 0, place.variable}, findings().size());
    if (is_new)
        findings().push_back({"host_access", "", "", "global", "", place, {touch}, 1});
    else
        ++findings()[entry->second].count;
}

void add_host_finding(const char* kind, const std::string& name, const std::string& at, const std::string& detail) {
    findings().push_back({kind, "", at, "host", detail, {nullptr, name, 1, {}, 0}, {}, 1});
}

void clear_findings() {
    findings().clear();
    known().clear();
    guarded_reads().clear();
    checker.unresolved = false;
}

// ---- JSON

std::string quoted(const std::string& text) {
    std::string result = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') result += '\\';
        if (static_cast<unsigned char>(c) < 32) {
            char code[8];
            snprintf(code, sizeof code, "\\u%04x", c);
            result += code;
        } else
            result += c;
    }
    return result + "\"";
}

std::string triple(dim3 v) {
    return "[" + std::to_string(v.x) + ", " + std::to_string(v.y) + ", " + std::to_string(v.z) + "]";
}

static std::string json_of(const Touch& touch) {
    static const char* const names[] = {"read", "write", "atomic", "async copy", "bulk copy", "product"};
    return std::string("{\"action\": \"") + (touch.at.file ? "wait" : names[static_cast<int>(touch.action)]) +
           "\", \"bytes\": " + std::to_string(touch.bytes) + ", \"pc\": " + std::to_string(touch.site) +
           (touch.at.file ? ", \"at\": " + quoted(text_of(touch.at)) : "") +
           ", \"block\": " + (touch.on_host ? "null" : triple(touch.block)) + ", \"thread\": " + (touch.on_host ? "null" : triple(touch.thread)) + "}";
}

static std::string json_of(const Finding& finding) {
    std::string shape, accesses;
    for (const int64_t size : finding.place.shape) shape += (shape.empty() ? "" : ", ") + std::to_string(size);
    for (const Touch& touch : finding.touches) accesses += (accesses.empty() ? "" : ", ") + json_of(touch);
    return "{\"kind\": " + quoted(kind_of(finding)) + ", \"kernel\": " + quoted(finding.kernel) +
           ", \"launch\": " + quoted(finding.launch) + ", \"space\": " + quoted(finding.space) +
           ", \"variable\": " + quoted(finding.place.variable) + ", \"shape\": [" + shape +
           "], \"element_bytes\": " + std::to_string(finding.place.element_bytes) +
           ", \"byte_offset\": " + std::to_string(finding.place.byte_offset) +
           ", \"count\": " + std::to_string(finding.count) + ", \"accesses\": [" + accesses +
           "], \"detail\": " + quoted(finding.detail) + "}";
}

// A read that ran before the write it races with sees unwritten memory: a symptom of the race, not a finding of its
// own.
static bool is_race_seen_early(const Finding& finding) {
    if (finding.kind != "uninitialized") return false;
    for (const Finding& other : findings()) {
        if (other.kind != "race" || other.kernel != finding.kernel || other.place.variable != finding.place.variable)
            continue;
        for (const Touch& touch : other.touches)
            if (touch.site == finding.touches[0].site) return true;
    }
    return false;
}

std::string findings_json() {
    std::vector<Finding> all;
    for (const Finding& finding : findings())
        if (!is_race_seen_early(finding)) all.push_back(finding);
    for (Range* range : all_ranges())
        if (range->kind == Range::allocated && !range->freed && !range->told) {
            range->told = true;
            all.push_back({"leak", "", range->allocated_at, "host", "", {nullptr, range->name, 1, {}, 0}, {}, 1});
        }
    // Device heap leaks: one finding per allocating line.
    std::map<std::string, Finding> heap;
    for_each_heap_leak(
        [](const HeapBlock& block, void* data) {
            const std::string at = text_of(block.at);
            const auto [entry, is_new] = static_cast<std::map<std::string, Finding>*>(data)->try_emplace(
                at, Finding{"leak", "", at, "device", "", {nullptr, name_of(block), 1, {}, 0}, {}, 1});
            if (!is_new) ++entry->second.count;
        },
        &heap);
    for (const auto& [at, finding] : heap) all.push_back(finding);
    std::string text;
    for (const Finding& finding : all) text += (text.empty() ? "" : ",\n ") + json_of(finding);
    return "[" + text + "]";
}

}  // namespace simulator
