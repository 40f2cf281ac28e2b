// memory.js - what memory holds at a moment: what it held at the start, and the writes up to then.
"use strict";

class Memory {
  constructor(launch) {
    this.launch = launch;
    this.bytes = launch.arrays.map((array) => {
      const bytes = new Uint8Array(array.bytes).fill(0xff);
      bytes.set(array.initial);
      return bytes;
    });
    this.writer = launch.arrays.map((array) => new Int32Array(array.elements).fill(-1)); // the event of the last write
    this.known = launch.arrays.map((array) => array.initialized);
  }

  copy() {
    const same = Object.create(Memory.prototype);
    same.launch = this.launch;
    same.known = this.known;
    same.bytes = this.bytes.map((one) => one.slice());
    same.writer = this.writer.map((one) => one.slice());
    return same;
  }

  // What event i leaves behind, if it writes.
  apply(i) {
    const { launch } = this, { array, kind, bytes } = launch.entries[launch.entry[i]];
    if (kind === READ || kind === WARP_OPERATION) return;
    const at = launch.valueAt[i], offset = launch.offset[i], size = launch.arrays[array].size;
    const to = this.bytes[array], from = launch.values, writer = this.writer[array];
    for (let k = 0; k < bytes; ++k) to[offset + k] = from[at + k];
    for (let k = Math.floor(offset / size); k * size < offset + bytes; ++k) writer[k] = i;
  }

  // The number in an element; null where nothing has been written yet.
  value(array, element) {
    if (!this.known[array] && this.writer[array][element] < 0) return null;
    const { type, size } = this.launch.arrays[array];
    return numberIn(this.bytes[array], element * size, type);
  }
}

function numberIn(bytes, at, type) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (type === "f4") return view.getFloat32(at, true);
  if (type === "f8") return view.getFloat64(at, true);
  if (type === "i4") return view.getInt32(at, true);
  if (type === "i2") return view.getInt16(at, true);
  if (type === "i8") return Number(view.getBigInt64(at, true));
  if (type === "f2") return half(view.getUint16(at, true));
  if (type === "bf16") {
    const word = new DataView(new ArrayBuffer(4));
    word.setUint32(0, view.getUint16(at, true) << 16);
    return word.getFloat32(0);
  }
  return view.getUint8(at);
}

function half(bits) {
  const sign = bits >> 15 ? -1 : 1, exponent = bits >> 10 & 31, fraction = bits & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

function shown(value) {
  if (value === null) return "not written yet";
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  if (!Number.isFinite(value)) return String(value).replace("Infinity", "inf");
  const small = Math.abs(value) < 1e-3 || Math.abs(value) >= 1e6;
  return small ? value.toExponential(3) : String(Number(value.toPrecision(5)));
}

// A number in so many characters: "0.53", "-12", "2e5"; "" where nothing has been written yet.
function brief(value, most) {
  if (value === null) return "";
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "nan" : value < 0 ? "-∞" : "∞";
  for (let digits = 4; digits > 0; --digits) {
    const words = String(Number(value.toPrecision(digits))).replace(/^(-?)0\./, "$1.");
    if (words.length <= most && !words.includes("e")) return words;
  }
  if (Math.abs(value) < 1) return value.toFixed(1) === "0.0" || value.toFixed(1) === "-0.0" ? "~0" : value.toFixed(1);
  return value.toExponential(0).replace("e+", "e");
}

// The memory when a block begins: its shared memory is empty, whatever other blocks did.
const beginnings = new Map();
function memoryAtBlock(launch, block) {
  const key = `${launch.number} ${block}`;
  if (!beginnings.has(key)) {
    if (beginnings.size > 8) beginnings.clear();
    const memory = new Memory(launch);
    const first = launch.segments.find((segment) => segment.block === block);
    const is_global = launch.arrays.map((array) => array.space === "global");
    for (let i = 0; first && i < first.first; ++i) {
      const { array } = launch.entries[launch.entry[i]];
      if (array >= 0 && is_global[array]) memory.apply(i);
    }
    beginnings.set(key, memory);
  }
  return beginnings.get(key);
}
