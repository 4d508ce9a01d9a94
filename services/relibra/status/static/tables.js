// Lets the keyboard scroll tables that are wider than the page.
"use strict";

// Return the heading above a table.
const nameOf = (table) => (
  [...document.querySelectorAll("h1, h2")].findLast((heading) => heading.compareDocumentPosition(table) & 4)?.innerText
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

addEventListener("resize", tellScrollable);
document.addEventListener("toggle", tellScrollable, true);  // <details> fires it
