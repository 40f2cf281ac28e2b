// flow.js - arrows between the arrays and the threads: what is read goes to the threads, what is written comes from them.
"use strict";

function drawFlow(svg, stage, threads, boxes) {
  svg.replaceChildren();
  const frame = stage.getBoundingClientRect(), middle = threads.getBoundingClientRect();
  const place = (rect) => ({ left: rect.left - frame.left, right: rect.right - frame.left, top: rect.top - frame.top, bottom: rect.bottom - frame.top });
  const to = place(middle);
  for (const kind of ["read", "write"])
    svg.append(s("marker", { id: `tip-${kind}`, viewBox: "0 0 8 8", refX: 6, refY: 4, markerWidth: 5, markerHeight: 5, orient: "auto" },
      s("path", { d: "M0 0 8 4 0 8z", fill: color(kind) })));
  for (const { element, side, reads, writes } of boxes) {
    const box = place(element.getBoundingClientRect());
    const height = Math.min(30, (box.bottom - box.top) / 2);
    for (const kind of ["read", "write"]) {
      if (!(kind === "read" ? reads : writes)) continue;
      let a, b, path;
      if (side === "middle") { // below the threads: along their left (reads) or right (writes) edge
        const bend = kind === "read" ? -26 : 26, end = kind === "read" ? to.left - 3 : to.right + 3;
        a = { x: kind === "read" ? box.left - 4 : end, y: kind === "read" ? box.top + height : to.bottom - 8 };
        b = { x: kind === "read" ? end : box.right + 4, y: kind === "read" ? to.bottom - 8 : box.top + height };
        path = `M${a.x} ${a.y}C${a.x + bend} ${a.y} ${b.x + bend} ${b.y} ${b.x} ${b.y}`;
      } else {
        const left = side === "left", outer = left ? box.right + 4 : box.left - 4, inner = left ? to.left - 4 : to.right + 4;
        const y = box.top + height + (kind === "write" && reads ? 10 : 0), yThreads = (to.top + to.bottom) / 2 + (kind === "write" ? 5 : -5);
        a = kind === "read" ? { x: outer, y } : { x: inner, y: yThreads };
        b = kind === "read" ? { x: inner, y: yThreads } : { x: outer, y };
        const bend = (b.x - a.x) / 2;
        path = `M${a.x} ${a.y}C${a.x + bend} ${a.y} ${b.x - bend} ${b.y} ${b.x} ${b.y}`;
      }
      svg.append(s("path", { d: path, fill: "none", stroke: color(kind), "stroke-width": 2, "stroke-opacity": 0.75, "marker-end": `url(#tip-${kind})` }));
    }
  }
}
