"use strict";
document.addEventListener("click", event => {
  const at = event.target.closest ? event.target.closest("[data-line]") : null;
  if (!at) return;
  for (const old of document.querySelectorAll(".row.on")) old.classList.remove("on");
  const side = at.dataset.line.slice(0, 3), line = at.dataset.line.slice(3);
  const row = document.querySelector(`[data-${side}="${line}"]`);
  if (!row) return;
  row.closest("details").open = true;
  row.classList.add("on");
  row.scrollIntoView({ block: "center" });
});
