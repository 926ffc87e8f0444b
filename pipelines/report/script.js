"use strict";
// The page works without this. It keeps metric choosers in step, and filters the queries.
for (const radio of document.querySelectorAll('.tabs > input[name^="metric-"]'))
  radio.addEventListener("change", () => {
    for (const other of document.querySelectorAll('.tabs > input[name^="metric-"]'))
      if (other.value === radio.value) other.checked = true;
  });

const tools = document.querySelector(".find");
if (tools) {
  const queries = [...document.querySelectorAll(".change")];
  const texts = queries.map((query) => query.textContent.toLowerCase());
  const shown = tools.querySelector("output");
  tools.hidden = false;
  tools.querySelector("input").addEventListener("input", (event) => {
    const words = event.target.value.toLowerCase().split(/\s+/);
    queries.forEach((query, i) => (query.hidden = !words.every((word) => texts[i].includes(word))));
    const count = queries.filter((query) => !query.hidden).length;
    shown.value = count === queries.length ? "" : `${count} of ${queries.length}, all systems together`;
  });
  tools.querySelector("button").addEventListener("click", (event) => {
    const open = event.target.getAttribute("aria-pressed") !== "true";
    event.target.setAttribute("aria-pressed", String(open));
    for (const query of queries) query.open = open;
  });
}
