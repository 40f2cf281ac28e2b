// decode.js - the page's data -> launches, with a number of each column for every event.
//
//   launch.entry[i]    what event i is: launch.entries[...], a place in the program and what it does to which array
//   launch.offset[i]   the byte in the array; of a warp operation the mask of its lanes
//   launch.thread[i]   who: the thread's number in its block
//   launch.valueAt[i]  where in launch.values the bytes stand that a write left
//
// common/inspect/replay/recording.py says what the parts mean, packing.py how they are packed.
"use strict";

const READ = 0, WRITE = 1, ATOMIC = 2, ASYNC_COPY = 3, ARRIVAL = 4, WARP_OPERATION = 5;
const VERBS = ["reads", "writes", "updates", "starts a copy to", "receives its copy in", "meets its warp in"];
const WARP = 32;

async function inflate(text) {
  const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

function decodeLaunch(one, buffer, number) {
  const part = ([at, bytes]) => new Uint8Array(buffer, at, bytes);
  const numbers = (Type, [at, bytes]) => new Type(buffer, at, bytes / Type.BYTES_PER_ELEMENT);
  const columns = one.columns;
  const entries = one.entries.map(([place, array, kind, bytes, label]) => ({ place, array, kind, bytes, label }));
  const entry = numbers(entries.length > 256 ? Uint16Array : Uint8Array, columns.entry);
  const step = numbers(Int32Array, columns.step);
  const count = entry.length;
  const offset = new Uint32Array(count), valueAt = new Uint32Array(count), thread = new Uint16Array(count);
  const last = new Uint32Array(entries.length);
  let at = 0;
  for (let i = 0; i < count; ++i) {
    const e = entry[i], { kind, bytes } = entries[e];
    offset[i] = last[e] = last[e] + step[i];
    valueAt[i] = at;
    if (kind !== READ && kind !== WARP_OPERATION) at += bytes;
  }
  const runThread = numbers(Uint16Array, columns.runThread), runEvents = numbers(Uint16Array, columns.runEvents);
  for (let run = 0, i = 0; run < runThread.length; ++run) {
    thread.fill(runThread[run], i, i + runEvents[run]);
    i += runEvents[run];
  }
  const segments = one.segments.map(([block, first, end, place], n) => ({
    number: n, block, first, end, place,
    last: n + 1 < one.segments.length ? one.segments[n + 1][1] : count,
  }));
  const arrays = one.arrays.map((array, n) => ({
    ...array, number: n, initial: part(array.initial), elements: Math.floor(array.bytes / array.size),
  }));
  const threads = one.block[0] * one.block[1] * one.block[2];
  return {
    ...one, number, arrays, entries, segments, entry, offset, thread, valueAt, threads,
    values: part(columns.values), warps: Math.ceil(threads / WARP), blocks: one.grid[0] * one.grid[1] * one.grid[2],
  };
}
