// Lets the keyboard scroll tables that are wider than the page, and saves tables as CSV.
"use strict";

// Return the heading above a table.
const nameOf = (table) => (
  [...document.querySelectorAll("h1, h2")].findLast((each) => each.compareDocumentPosition(table) & 4)?.innerText
);

function tellScrollable() {
  for (const part of document.querySelectorAll(".scroll, .prose table")) {
    const isWide = part.scrollWidth > part.clientWidth;
    if (isWide) part.tabIndex = 0;
    else part.removeAttribute("tabindex");
    if (!part.matches(".scroll")) continue;  // a table keeps its role
    if (isWide) {
      part.setAttribute("role", "region");
      part.setAttribute("aria-label", nameOf(part.querySelector("table")));
    } else {
      part.removeAttribute("role");
      part.removeAttribute("aria-label");
    }
  }
}

// Return a table as CSV: times as ISO 8601, numbers without separators, nothing for a dash.
function csvOf(table) {
  const text = (cell) => {
    const time = cell.querySelector("time")?.dateTime;
    const shown = time ?? cell.innerText.trim().replace(/\s*\n\s*/g, "; ").replace(/(?<=\d)\u202f(?=\d)/g, "");
    return shown === "–" ? "" : /[",\n]/.test(shown) ? `"${shown.replaceAll('"', '""')}"` : shown;
  };
  return [...table.rows].map((row) => `${[...row.cells].map(text).join(",")}\r\n`).join("");
}

function save(table) {
  const name = `${document.title.replace(" · relibra", "")} ${nameOf(table)}`.replace(/[^\w.-]+/g, "-").slice(0, 80);
  const address = URL.createObjectURL(new Blob([csvOf(table)], { type: "text/csv" }));
  Object.assign(document.createElement("a"), { href: address, download: `${name}.csv` }).click();
  URL.revokeObjectURL(address);
}

function offerCsv() {
  for (const part of document.querySelectorAll(".scroll")) {
    if (part.nextElementSibling?.matches(".csv")) continue;
    const button = Object.assign(document.createElement("button"), { className: "csv", type: "button", textContent: "CSV" });
    button.setAttribute("aria-label", `Save as CSV: ${nameOf(part.querySelector("table"))}`);
    button.onclick = () => save(part.querySelector("table"));
    part.after(button);
  }
}

function prepareTables() {
  tellScrollable();
  offerCsv();
}

addEventListener("resize", tellScrollable);
document.addEventListener("toggle", tellScrollable, true);  // of <details>
