// Saves tables as CSV, and charts as CSV and as PNG.
"use strict";

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

const PNG_SCALE = 2;

const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
// Spreadsheets calculate what begins like a formula, and processes of a job wrote some of the text: an apostrophe keeps it text.
const isFormula = (text) => /^[=+\-@]/.test(text) && Number.isNaN(Number(text.replace(/ ?%$/, "")));
const cellOf = (value) => { const text = String(value ?? ""); return quoted(isFormula(text) ? `'${text}` : text); };
const csvOf = (rows) => rows.map((row) => `${row.map(cellOf).join(",")}\r\n`).join("");

function download(address, name, ending) {
  const page = document.title.replace(" · relibra", "");
  const file = `${page} ${name}`.replace(/[^\w.-]+/g, "-").slice(0, 80);
  Object.assign(document.createElement("a"), { href: address, download: `${file}.${ending}` }).click();
}

function downloadBlob(blob, name, ending) {
  const address = URL.createObjectURL(blob);
  download(address, name, ending);
  URL.revokeObjectURL(address);
}

const downloadCsv = (rows, name) => downloadBlob(new Blob([csvOf(rows)], { type: "text/csv" }), name, "csv");

// Return a paragraph with a button for each way to save something. `ways` is ending -> function.
function saveButtons(name, ways) {
  const place = Object.assign(document.createElement("p"), { className: "saves" });
  for (const [ending, save] of Object.entries(ways)) {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: ending.toUpperCase() });
    button.setAttribute("aria-label", `Save as ${ending.toUpperCase()}: ${name}`);
    button.onclick = save;
    place.append(button);
  }
  return place;
}

// ---- charts -------------------------------------------------------------------------------------------------------

// Return what a chart shows as rows: one for each x, or for each square of heat maps.
function rowsOfChart(traces, layout) {
  const names = traces.map((trace) => trace.name);
  const title = layout.xaxis.title.text;
  if (traces[0].z) {
    const longest = (lists) => lists.reduce((most, list) => Math.max(most, list.length), 0);
    const [rows, columns] = [longest(traces.map((trace) => trace.z)), longest(traces.flatMap((trace) => trace.z))];
    const squares = Array.from({ length: rows * columns }, (_, index) => [Math.floor(index / columns), index % columns]);
    const values = ([y, x]) => [y, x, ...traces.map((trace) => trace.z[y]?.[x])];
    return [[layout.yaxis.title.text, title, ...names], ...squares.map(values)];
  }
  const steps = new Map(traces.flatMap((trace) => trace.x.map((x, index) => [x, trace.customdata?.[index]])));
  const isNamed = title !== "step" && [...steps.values()].some((step) => step !== undefined);
  const tables = traces.map((trace) => new Map(trace.x.map((x, index) => [x, trace.y[index]])));
  const order = [...steps.keys()].sort((one, other) => (one < other ? -1 : 1));
  const values = (x) => [x, ...(isNamed ? [steps.get(x)] : []), ...tables.map((table) => table.get(x))];
  return [[title, ...(isNamed ? ["step"] : []), ...names], ...order.map(values)];
}

async function saveChartAsPng(Plotly, plot, name) {
  const { data, layout } = plot;
  const page = document.title.replace(" · relibra", "");
  const shown = {
    ...layout, paper_bgcolor: colour("page"), plot_bgcolor: colour("page"), margin: { ...layout.margin, t: 90 },
    title: { text: page, x: 0.01, y: 0.98, yanchor: "top", font: { size: 16 } },
  };
  const size = { width: plot.clientWidth, height: plot.clientHeight + 60, scale: PNG_SCALE };
  download(await Plotly.toImage({ data, layout: shown }, { format: "png", ...size }), name, "png");
}

// ---- tables -------------------------------------------------------------------------------------------------------

// Return the text of a cell: times as ISO 8601, parts of several lines with semicolons.
const textOf = (cell) => cell.querySelector("time")?.dateTime ?? cell.innerText.trim().replace(/\s*\n\s*/g, "; ");

// Return a table as rows for programs: numbers without separators, nothing for a dash.
const rowsOfTable = (table) => [...table.rows].map((row) => [...row.cells].map((cell) => {
  const text = textOf(cell).replace(/(?<=\d)\u202f(?=\d)/g, "");
  return text === "–" ? "" : text;
}));
