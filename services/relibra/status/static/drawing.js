// Loads the charting library and draws the charts of a page, as the controls of the page say.
"use strict";

const script = document.currentScript;

let library = null;
function plotly() {
  library ??= new Promise((resolve, reject) => {
    const element = document.createElement("script");
    element.src = script.dataset.plotly;
    element.onload = () => resolve(window.Plotly);
    element.onerror = () => { library = null; reject(new Error("the charting library could not be loaded")); };
    document.head.append(element);
  });
  return library;
}

function sourceOf(figure) {
  const { chart, source } = figure.dataset;
  const row = document.getElementById("row");
  const isByRow = chart === "heat" || chart === "layers";
  return isByRow && row.value !== "-1" ? `${source}&row=${row.value}` : source;
}

async function load(source) {
  const response = await fetch(source);
  const data = await response.json();
  if (!response.ok) throw new Error(data.detail);
  return data;
}

const isEmpty = (data) => Array.isArray(data) && !data.some((point) => point.imbalance_after !== null);

const drawn = new WeakMap();

async function draw(figure) {
  const state = figure.querySelector(".state");
  const turn = drawn.get(figure) ?? { source: null, data: null };
  drawn.set(figure, turn);
  const source = turn.source = sourceOf(figure);
  figure.setAttribute("aria-busy", "true");
  try {
    const [Plotly, data] = await Promise.all([plotly(), load(source)]);
    if (turn.source !== source) return;  // the slider moved meanwhile
    if (isEmpty(data)) {
      state.textContent = "No step is planned yet.";
      return;
    }
    turn.data = data;
    await paint(Plotly, figure, data);
    state.textContent = "";
  } catch (error) {
    if (!turn.data) state.textContent = `Cannot draw this chart now: ${error.message}`;
  } finally {
    figure.removeAttribute("aria-busy");
  }
}

async function paint(Plotly, figure, data) {
  const plot = figure.querySelector(".plot");
  const { traces, layout, choose = () => null } = CHARTS[figure.dataset.chart](data);
  const common = {
    margin: { t: 30, r: 50, b: 45, l: 60 }, paper_bgcolor: "transparent", plot_bgcolor: "transparent",
    font: { color: colour("text"), family: "system-ui, DejaVu Sans, sans-serif", size: 13 }, showlegend: true,
    legend: { orientation: "h", y: 1.02, yanchor: "bottom" }, hovermode: "closest",
    height: figure.clientHeight,
  };
  await Plotly.react(plot, traces, { ...common, ...layout }, { displayModeBar: false, responsive: true });
  plot.removeAllListeners("plotly_click");
  plot.on("plotly_click", (event) => {
    const address = choose(event);
    if (address) location.assign(address);
  });
  makeWalkable(Plotly, plot, traces, layout, choose);
}

const figures = () => [...document.querySelectorAll("[data-chart]")];
const drawAll = () => figures().map(draw);

// Put the value of a control into the address, so that a link to the page or the way back shows the same.
function keepInAddress(name, value, usual) {
  const address = new URL(location.href);
  if (value === usual) address.searchParams.delete(name);
  else address.searchParams.set(name, value);
  history.replaceState(null, "", address);
}

const inAddress = (name) => new URLSearchParams(location.search).get(name);

for (const change of ["(prefers-color-scheme: dark)", "(max-width: 45rem)"]) {
  matchMedia(change).addEventListener("change", async () => {
    const Plotly = await plotly();
    for (const figure of figures()) if (drawn.get(figure)?.data) paint(Plotly, figure, drawn.get(figure).data);
  });
}

const slider = document.getElementById("row");
if (slider) {
  const name = document.getElementById("row-name");
  const { microBatches, groups } = slider.dataset;
  const tellRow = () => {
    const row = Number(slider.value);
    const group = Number(groups) > 1 ? ` of group ${Math.floor(row / microBatches)}` : "";
    name.textContent = row < 0 ? "all" : `${row % microBatches}${group}`;
    slider.setAttribute("aria-valuetext", name.textContent);
  };
  slider.value = inAddress("row") ?? "-1";
  tellRow();
  slider.addEventListener("input", () => {
    tellRow();
    keepInAddress("row", slider.value, "-1");
    drawAll();
  });
}

const horizontal = document.getElementById("axis");
if (horizontal) {
  horizontal.closest(".scripted").hidden = false;
  if (inAddress("axis") === "time") horizontal.value = "time";
  horizontal.addEventListener("change", () => {
    keepInAddress("axis", horizontal.value, "step");
    drawAll();
  });
}
