// words.js - a step in a sentence: what the picture shows.
"use strict";

// "each once", "each 32 times", "4 to 32 times each"; "" for one.
function often(seen) {
  if (!seen.most || seen.readElements < 1) return "";
  if (seen.least === seen.most) return seen.most === 1 ? "each once" : `each ${seen.most.toLocaleString("en")} times`;
  return `${seen.least.toLocaleString("en")} to ${seen.most.toLocaleString("en")} times each`;
}

function sentenceOf(launch, view, steps, current) {
  const step = view.step, threads = view.active.reduce((n, one) => n + (one & 3 ? 1 : 0), 0);
  const reads = [], writes = [];
  launch.arrays.forEach((array, n) => {
    const seen = view.arrays[n];
    if (seen.reads) reads.push(`${counted(seen.readElements, "element")} of ${array.name} (${often(seen)})`);
    if (seen.writes) writes.push(`${counted(seen.writtenElements, "element")} of ${array.name}`);
  });
  const parts = [];
  if (reads.length) parts.push(`${threads === 1 ? "reads" : "read"} ${listed(reads)}`);
  if (writes.length) parts.push(`${threads === 1 ? "writes" : "write"} ${listed(writes)}`);
  const who = threads === launch.threads ? `All ${counted(threads, "thread")}` : `${counted(threads, "thread")} of ${launch.threads}`;
  let does = parts.length ? `${who} ${parts.join(" and ")}.` : "No thread touches memory.";
  for (const [name, warps] of view.exchanges)
    if (name !== "__syncwarp") does += ` The lanes of ${counted(warps.size, "warp")} exchange values with ${name}.`;
  const last = steps[current + 1] === undefined || steps[current + 1].segment !== step.segment;
  const place = DATA.places[step.segment.place];
  let then = "";
  if (last && place) then = ` Then all wait at the barrier on line ${place.lines[place.lines.length - 1]}.`;
  else if (last && step.segment.end === "grid barrier") then = " Then the block waits for other blocks.";
  else if (last && step.segment.end === "") then = " The launch ended here.";
  return does + then;
}
