// dom.js - small helpers of both pages: elements, numbers, colors.
"use strict";

const DATA = JSON.parse(document.getElementById("data").textContent);
const DARK = matchMedia("(prefers-color-scheme: dark)");

// h("p", {class: "soft"}, "text", element, ...): an element; attributes that are functions are listeners.
function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

// The same for SVG.
function s(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// What stands behind # in the address; a page within another page has none of its own.
function remember(words) {
  try {
    history.replaceState(null, "", `#${words}`);
  } catch (error) {
    if (error.name !== "SecurityError") throw error;
  }
}

function counted(number, what) {
  return `${number.toLocaleString("en")} ${what}${number === 1 ? "" : "s"}`;
}

// "a", "a and b", "a, b and c".
function listed(words) {
  return words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words[words.length - 1]}`;
}

function triple(values) {
  return `(${values.join(",")})`;
}

// "(2, 3)" of [2, 3, 1]: the sizes of a grid or block without trailing ones.
function sizes(values) {
  let n = values.length;
  while (n > 1 && values[n - 1] === 1) --n;
  return `(${values.slice(0, n).join(", ")})`;
}

// The coordinates of number n in a grid of these sizes, x first.
function coordinates(n, [x, y]) {
  return [n % x, Math.floor(n / x) % y, Math.floor(n / x / y)];
}
