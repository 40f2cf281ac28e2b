// steps.js - what a block did, in steps: from one barrier to the next and, within that, source line by source line.
//
// Between two barriers the threads are independent, so the order that a page shows within is one of many. A step is a
// line of the kernel: of the function that is called there, unless that calls functions itself, whose lines are steps.
"use strict";

const WHOLE = -1; // in place of a line: all that happened between two barriers

// The key of the step that an entry belongs to: the lines from the kernel inwards, as far as they lead.
function stepKeys(launch, used) {
  const chains = new Map();
  for (const e of used) {
    const place = DATA.places[launch.entries[e].place];
    if (launch.entries[e].kind !== WARP_OPERATION && place) chains.set(e, place.lines);
  }
  const keys = new Map();
  for (const [e, lines] of chains) {
    let depth = 1;
    const alike = () => [...chains.values()].filter((other) => lines.slice(0, depth).every((x, i) => x === other[i]));
    while (depth < lines.length && alike().some((other) => other.length > depth + 1)) ++depth;
    keys.set(e, lines.slice(0, depth).join(" "));
  }
  return keys;
}

// The steps of a segment: [{segment, key, line, place, entries}], in the order in which the first thread came to them.
function stepsOf(launch, segment) {
  const used = new Set();
  for (let i = segment.first; i < segment.last; ++i) used.add(launch.entry[i]);
  const keys = stepKeys(launch, used), steps = new Map();
  for (const e of used) {
    if (!keys.has(e)) continue;
    const key = keys.get(e);
    if (!steps.has(key)) {
      const lines = key.split(" ").map(Number);
      const place = DATA.places[launch.entries[e].place];
      steps.set(key, { segment, key, line: lines[lines.length - 1], file: place.file, entries: new Set() });
    }
    steps.get(key).entries.add(e);
  }
  return [...steps.values()];
}

function wholeStep(launch, segment) {
  const entries = new Set();
  for (let i = segment.first; i < segment.last; ++i) entries.add(launch.entry[i]);
  return { segment, key: WHOLE, line: 0, file: -1, entries };
}

// All steps of a block; with `whole` one for each interval between barriers.
function stepsOfBlock(launch, block, whole) {
  const steps = [];
  for (const segment of launch.segments) {
    if (segment.block !== block) continue;
    const within = whole ? [] : stepsOf(launch, segment);
    if (within.length) steps.push(...within);
    else if (segment.last > segment.first || segment.end !== "end") steps.push(wholeStep(launch, segment));
  }
  return steps.length ? steps : launch.segments.filter((one) => one.block === block).map((one) => wholeStep(launch, one));
}

// What is to be seen in a step: memory behind it, and for each array who read and wrote which element in it.
function viewOf(launch, block, steps, current, picked) {
  const memory = memoryAtBlock(launch, block).copy(), step = steps[current];
  const before = new Map(); // the entries of the steps of this segment that come first
  for (let n = current - 1; n >= 0 && steps[n].segment === step.segment; --n) before.set(steps[n].key, steps[n].entries);
  const earlier = new Set([...before.values()].flatMap((entries) => [...entries]));
  const arrays = launch.arrays.map((array) => ({
    readBefore: new Uint8Array(array.elements),
    reader: null, writer: null, times: null,
    reads: 0, writes: 0, readElements: 0, writtenElements: 0, least: 0, most: 0,
  }));
  const active = new Uint8Array(launch.threads), counts = new Map(), followed = [];
  const exchanges = new Map(); // warps that meet, by what they meet in
  // Where a warp operation was called is known too vaguely: it belongs to the step of its warp's next access.
  let waiting = [];
  const settle = (warp, now) => {
    waiting = waiting.filter((one) => {
      if (one.warp !== warp && warp >= 0) return true;
      if (!now) return false;
      for (let lane = 0; lane < WARP; ++lane) if (one.lanes >>> lane & 1) active[one.warp * WARP + lane] |= 4;
      if (!exchanges.has(one.entry.label)) exchanges.set(one.entry.label, new Set());
      exchanges.get(one.entry.label).add(one.warp);
      if (picked >= 0 && one.warp === picked >> 5 && one.lanes >>> (picked & 31) & 1)
        followed.push({ i: one.i, entry: one.entry, values: null });
      return false;
    });
  };
  const first = launch.segments.find((segment) => segment.block === block);
  for (const segment of launch.segments.slice(first.number, step.segment.number + 1)) {
    const here = segment === step.segment, own = segment.block === block;
    for (let i = segment.first; i < segment.last; ++i) {
      const e = launch.entry[i], entry = launch.entries[e];
      if (entry.kind === WARP_OPERATION) {
        if (here && own) waiting.push({ i, entry, warp: launch.thread[i] >> 5, lanes: launch.offset[i] });
        continue;
      }
      if (!own) {
        if (launch.arrays[entry.array].space === "global") memory.apply(i);
        continue;
      }
      const now = here && step.entries.has(e);
      if (here && waiting.length) settle(launch.thread[i] >> 5, now);
      if (here && !now && !earlier.has(e)) continue; // of a later step
      const seen = arrays[entry.array], size = launch.arrays[entry.array].size;
      const from = Math.floor(launch.offset[i] / size), to = Math.ceil((launch.offset[i] + entry.bytes) / size);
      const reads = entry.kind === READ || entry.kind === ATOMIC, writes = entry.kind !== READ;
      const thread = launch.thread[i];
      if (!now) {
        if (reads) for (let k = from; k < to; ++k) seen.readBefore[k] = 1;
        if (writes) memory.apply(i);
        continue;
      }
      if (!seen.reader) {
        seen.reader = new Int32Array(launch.arrays[entry.array].elements).fill(-1);
        seen.writer = seen.reader.slice();
        seen.times = new Uint32Array(launch.arrays[entry.array].elements);
      }
      const known = () => Array.from({ length: to - from }, (_, k) => memory.value(entry.array, from + k));
      const values = thread === picked && reads ? known() : null;
      if (writes) memory.apply(i);
      if (thread === picked) followed.push({ i, entry, element: from, values: values && !writes ? values : known() });
      active[thread] |= (reads ? 1 : 0) | (writes ? 2 : 0);
      counts.set(entry.place, (counts.get(entry.place) || 0) + 1);
      for (let k = from; k < to; ++k) {
        if (reads) {
          ++seen.reads;
          if (seen.times[k]++ === 0) ++seen.readElements;
          seen.reader[k] = together(seen.reader[k], thread);
        }
        if (writes) {
          ++seen.writes;
          if (seen.writer[k] === -1) ++seen.writtenElements;
          seen.writer[k] = thread;
        }
      }
    }
  }
  const next = steps[current + 1];
  settle(-1, !next || next.segment !== step.segment);
  for (const seen of arrays) {
    if (!seen.times) continue;
    for (const times of seen.times) {
      if (!times) continue;
      seen.least = seen.least ? Math.min(seen.least, times) : times;
      seen.most = Math.max(seen.most, times);
    }
  }
  return { memory, arrays, active, counts, followed, exchanges, step };
}

// Who read an element: a thread; -2 - w for several threads of warp w; SEVERAL for those of several warps.
const SEVERAL = -1000000;
function together(known, thread) {
  if (known === -1 || known === thread) return thread;
  if (known === SEVERAL) return SEVERAL;
  const warp = known >= 0 ? known >> 5 : -2 - known;
  return warp === thread >> 5 ? -2 - warp : SEVERAL;
}
function warpOf(reader) {
  return reader >= 0 ? reader >> 5 : reader === SEVERAL ? -1 : -2 - reader;
}
