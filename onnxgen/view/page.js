"use strict";
const nodes = new Map(), lines = new Map();
for (const line of document.querySelectorAll("#source [data-nodes]")) {
  for (const number of line.dataset.nodes.split(" ")) {
    if (!lines.has(number)) lines.set(number, []);
    lines.get(number).push(line);
  }
}
for (const node of document.querySelectorAll("#graph [data-node]")) nodes.set(node.dataset.node, node);
let shown = [], pinned = null;
function partners(element) {
  if (element.dataset.node !== undefined) return lines.get(element.dataset.node) || [];
  return element.dataset.nodes.split(" ").map(number => nodes.get(number)).filter(Boolean);
}
function show(element, scroll) {
  for (const old of shown) old.classList.remove("on");
  shown = element ? [element, ...partners(element)] : [];
  for (const now of shown) {
    now.classList.add("on");
    if (now.closest("details")) now.closest("details").open = true;
  }
  if (scroll && shown.length > 1) shown[1].scrollIntoView({ block: "center" });
}
function target(event) {
  return event.target.closest ? event.target.closest("[data-node], [data-nodes]") : null;
}
function search(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  for (const node of nodes.values()) node.hidden = !words.every(word => node.textContent.toLowerCase().includes(word));
  for (const scope of document.querySelectorAll("#graph details")) {
    scope.hidden = !scope.querySelector(".node:not([hidden])");
  }
  const left = document.querySelectorAll("#graph .node:not([hidden])").length;
  document.querySelector("#found").textContent = words.length ? `${left} of ${nodes.size} nodes` : "";
}
document.querySelector("#search").addEventListener("input", event => search(event.target.value));
document.addEventListener("mouseover", event => { if (!pinned && target(event)) show(target(event), true); });
document.addEventListener("click", event => {
  const at = target(event);
  pinned = at && at !== pinned ? at : null;
  show(pinned, true);
});
