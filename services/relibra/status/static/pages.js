// Draws charts and keeps open pages up to date. Pages are complete without this script.
"use strict";

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const script = document.currentScript;

// ---- charts -------------------------------------------------------------------------------------------------------

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

function line(name, x, y, shade, extra = {}) {
  const shape = { color: colour(shade), width: 2, ...extra };
  return { type: "scatter", mode: x.length > 40 ? "lines" : "lines+markers", name, x, y, line: shape, marker: { size: 5 } };
}

const axis = (title, extra = {}) => ({ title: { text: title }, gridcolor: colour("line"), zeroline: false, ...extra });
// Put ticks at whole numbers only, even if there are few of them.
const whole = (numbers) => ({ dtick: Math.max(...numbers) - Math.min(...numbers) <= 10 ? 1 : null, tickformat: "d" });

const isNarrow = () => matchMedia("(max-width: 45rem)").matches;

// Links name the attempt that the page shows, so that they stay right after a restart.
const inAttempt = (path) => `${path}?attempt=${document.querySelector("main").dataset.attempt}`;

function stepAddress(event) {
  return inAttempt(`${location.pathname}/steps/${event.points[0].x}`);
}

const CHARTS = {
  imbalance(points) {
    const x = points.map((each) => each.step);
    const of = (field) => points.map((each) => each[field]);
    return {
      traces: [
        line("without balancing", x, of("imbalance_before"), "before"),
        line("realised", x, of("imbalance_realised"), "realised", { width: 4 }),
        line("planned", x, of("imbalance_after"), "after"),
        line("bound", x, of("imbalance_bound"), "bound", { dash: "dot" }),
      ],
      layout: { xaxis: axis("step", whole(x)), yaxis: axis("slowest / mean rank") },
      choose: stepAddress,
    };
  },

  speedup(points) {
    const x = points.map((each) => each.step);
    const of = (field) => points.map((each) => each[field]);
    return {
      traces: [
        line("realised", x, of("speedup_realised"), "realised", { width: 4 }),
        line("planned", x, of("speedup_planned"), "after"),
      ],
      layout: { xaxis: axis("step", whole(x)), yaxis: axis("speed-up") },
      choose: stepAddress,
    };
  },

  waits(points) {
    const x = points.map((each) => each.step);
    const fallbacks = [0, 1, ...points.map((each) => each.num_fallbacks)];
    const bars = (name, field, shade, extra) => (
      { type: "bar", name, x, y: points.map((each) => each[field]), marker: { color: colour(shade) }, ...extra }
    );
    return {
      traces: [
        bars("plan took", "plan_latency_s", "replica", { offsetgroup: "latency" }),
        bars("longest wait for plan", "plan_wait_s", "after", { offsetgroup: "wait" }),
        bars("longest reorder", "reorder_s", "realised", { offsetgroup: "reorder" }),
        bars("longest wait for replicas", "replica_wait_s", "bound", { offsetgroup: "replicas" }),
        bars("ranks that fell back", "num_fallbacks", "hot", { offsetgroup: "fallback", yaxis: "y2" }),
      ],
      layout: {
        barmode: "group",
        xaxis: axis("step", whole(x)),
        yaxis: axis("seconds", { rangemode: "tozero" }),
        yaxis2: axis("ranks", { overlaying: "y", side: "right", rangemode: "tozero", showgrid: false, ...whole(fallbacks) }),
      },
      choose: stepAddress,
    };
  },

  heat(data) {
    const over = (tokens) => tokens.map((row, layer) => row.map((each) => each / (data.mean_tokens[layer] || 1)));
    const before = over(data.before_tokens);
    const highest = Math.min(3, Math.max(1.5, ...before.flat()));
    const map = (name, z, place) => ({
      type: "heatmap", name, z, ...place, zmin: 0, zmax: highest,
      colorscale: [[0, colour("cold")], [1 / highest, colour("ideal")], [1, colour("hot")]],
      colorbar: { outlinewidth: 0, thickness: 12, title: { text: "load / mean" } },
      showscale: place.xaxis === "x2",
      hovertemplate: `rank %{x}, layer %{y}<br>${name} %{z:.3f} of the mean<extra></extra>`,
    });
    const note = (text, x, y) => (
      { text, x, y, xref: "paper", yref: "paper", xanchor: "center", yanchor: "bottom", showarrow: false }
    );
    const layers = axis("layer", { autorange: "reversed", showgrid: false, ...whole([0, data.mean_tokens.length]) });
    const ranks = axis("rank", { showgrid: false, ...whole([0, before[0].length]) });
    const side = isNarrow()  // one map above the other, else both side by side
      ? { x: [0, 1], x2: [0, 1], y: [0.6, 1], y2: [0, 0.4], notes: [[0.5, 1.01], [0.5, 0.41]], hidden: {} }
      : { x: [0, 0.48], x2: [0.52, 1], y: [0, 1], y2: [0, 1], notes: [[0.24, 1.02], [0.76, 1.02]],
        hidden: { title: {}, showticklabels: false } };
    return {
      traces: [
        map("without balancing", before, { xaxis: "x", yaxis: "y" }),
        map("planned", over(data.after_tokens), { xaxis: "x2", yaxis: "y2" }),
      ],
      layout: {
        xaxis: { ...ranks, domain: side.x },
        xaxis2: { ...ranks, domain: side.x2, anchor: "y2" },
        yaxis: { ...layers, domain: side.y },
        yaxis2: { ...layers, ...side.hidden, domain: side.y2, anchor: "x2", matches: "y" },
        annotations: [note("without balancing", ...side.notes[0]), note("planned", ...side.notes[1])],
      },
      choose: (event) => data.row === null ? null : inAttempt(`${location.pathname}/cells/${data.row}/${event.points[0].y}`),
    };
  },

  layers(data) {
    const x = data.mean_tokens.map((_, layer) => layer);
    const slowest = (tokens) => tokens.map((row, layer) => Math.max(...row) / (data.mean_tokens[layer] || 1));
    return {
      traces: [
        line("without balancing", x, slowest(data.before_tokens), "before"),
        line("planned", x, slowest(data.after_tokens), "after"),
        line("floor of the fullest node", x, data.floor_tokens.map((each, layer) => each / (data.mean_tokens[layer] || 1)),
          "bound", { dash: "dot" }),
      ],
      layout: { xaxis: axis("layer", whole(x)), yaxis: axis("slowest / mean rank") },
      choose: (event) => data.row === null ? null : inAttempt(`${location.pathname}/cells/${data.row}/${event.points[0].x}`),
    };
  },

  cell(data) {
    const x = data.ranks.map((each) => each.rank);
    const of = (field) => data.ranks.map((each) => each[field]);
    const level = (tokens, shade, dash) => ({
      type: "line", xref: "paper", x0: 0, x1: 1, y0: tokens, y1: tokens, line: { color: colour(shade), width: 1.5, dash },
    });
    const node = data.ranks.filter((each, index) => index && each.node !== data.ranks[index - 1].node);
    const borders = node.map((each) => ({
      type: "line", yref: "paper", y0: 0, y1: 1, x0: each.rank - 0.5, x1: each.rank - 0.5,
      line: { color: colour("line"), width: 1 },
    }));
    return {
      traces: [
        { type: "bar", name: "experts at home", x, y: of("home_tokens"), marker: { color: colour("after") } },
        { type: "bar", name: "replicas", x, y: of("replica_tokens"), marker: { color: colour("replica") } },
        { type: "scatter", mode: "markers", name: "without balancing", x, y: of("before_tokens"),
          marker: { color: colour("text"), symbol: "line-ew-open", size: 14, line: { width: 2.5 } } },
      ],
      layout: {
        barmode: "stack",
        legend: { orientation: "h", y: 1.02, yanchor: "bottom", traceorder: "normal" },
        xaxis: axis("rank", { showgrid: false, ...whole(x) }),
        yaxis: axis("tokens", { rangemode: "tozero" }),
        shapes: [...borders, level(data.mean_tokens, "quiet", "dash"), level(data.lower_bound_tokens, "bound", "dot")],
      },
      choose: () => null,
    };
  },
};

function sourceOf(figure) {
  const slider = document.getElementById("row");
  const isByRow = figure.dataset.chart === "heat" || figure.dataset.chart === "layers";
  return isByRow && slider.value !== "-1" ? `${figure.dataset.source}&row=${slider.value}` : figure.dataset.source;
}

const drawn = new WeakMap();

async function draw(figure) {
  const state = figure.querySelector(".state");
  const turn = drawn.get(figure) ?? { source: null, data: null };
  drawn.set(figure, turn);
  const source = turn.source = sourceOf(figure);
  figure.setAttribute("aria-busy", "true");
  try {
    const [Plotly, response] = await Promise.all([plotly(), fetch(source)]);
    const data = await response.json();
    if (turn.source !== source) return;  // the slider moved meanwhile
    if (!response.ok) throw new Error(data.detail);
    if (Array.isArray(data) && !data.some((each) => each.imbalance_after !== null)) {
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
  const { traces, layout, choose } = CHARTS[figure.dataset.chart](data);
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
  // The address holds the choice, so that a link to the page or the way back from a cell shows the same micro-batch.
  slider.value = new URLSearchParams(location.search).get("row") ?? "-1";
  tellRow();
  slider.addEventListener("input", () => {
    tellRow();
    const address = new URL(location.href);
    if (slider.value === "-1") address.searchParams.delete("row");
    else address.searchParams.set("row", slider.value);
    history.replaceState(null, "", address);
    drawAll();
  });
}

// ---- live updates ---------------------------------------------------------------------------------------------------

const asMade = new WeakMap();
for (const part of document.querySelectorAll("[data-live]")) asMade.set(part, part.innerHTML);

let isRefreshing = false;
let isStale = false;

async function refresh() {
  isStale = true;
  if (isRefreshing) return;
  isRefreshing = true;
  try {
    while (isStale) {
      isStale = false;
      await replaceParts();
    }
  } catch {
    // The event stream reports the outage and its end.
  } finally {
    isRefreshing = false;
  }
}

async function replaceParts() {
  const response = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!response.ok) {
    // The job was removed, or the token no longer grants access: reload to show what the service says.
    if (response.status < 500) location.reload();
    return;
  }
  const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
  const [next, shown] = [fresh, document].map((each) => each.querySelector("main").dataset);
  if (next.page !== shown.page) {
    const isMoved = next.attempt && shown.attempt && next.attempt !== shown.attempt;
    if (isMoved) sessionStorage.setItem("moved", JSON.stringify([shown.attempt, next.attempt]));
    location.reload();
    return;
  }
  const focused = document.activeElement?.getAttribute("href");
  for (const part of document.querySelectorAll("[data-live]")) {
    const other = fresh.getElementById(part.id);
    if (!other || other.innerHTML === asMade.get(part)) continue;
    asMade.set(part, other.innerHTML);
    part.replaceChildren(...other.childNodes);
    if (focused) part.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
  }
  tellAges();
  prepareTables();
  drawAll();
}

function tell(isReachable, text) {
  const outage = document.getElementById("outage");
  if (!isReachable && outage.hidden) text += ` This page shows the state of ${new Date().toLocaleTimeString()}.`;
  if (isReachable || outage.hidden) outage.textContent = text;
  outage.hidden = isReachable;
  document.getElementById("live").textContent = isReachable ? "● live" : "○ waiting";
}

const RECONNECT_MS = 3000;

function listen(address) {
  const source = new EventSource(address);
  source.addEventListener("store", (event) => {
    const { is_reachable: isReachable, detail } = JSON.parse(event.data);
    tell(isReachable, isReachable ? "" : `${detail}. Training continues; updates resume by themselves.`);
    if (isReachable) refresh();
  });
  source.addEventListener("change", refresh);
  source.addEventListener("heard", (event) => {
    for (const [job, time] of Object.entries(JSON.parse(event.data))) {
      for (const element of document.querySelectorAll(`[data-heard="${CSS.escape(job)}"] time`)) element.dateTime = time;
    }
    tellAges();
  });
  // The stream expired. A new one starts with a fresh check of the token.
  source.addEventListener("end", () => {
    source.close();
    listen(address);
  });
  source.addEventListener("error", () => {
    tell(false, "The status service does not respond. Training continues; updates resume by themselves.");
    // The browser reconnects by itself after a broken connection, but not after an error response.
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, RECONNECT_MS, address);
  });
}

const AGES = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

function tellAges() {
  for (const element of document.querySelectorAll("time")) {
    const seconds = Math.max(0, (Date.now() - Date.parse(element.dateTime)) / 1000);
    const [size, unit] = AGES.find(([each]) => seconds >= each) ?? [1, "s"];
    element.title = element.dateTime;
    element.textContent = `${Math.floor(seconds / size)} ${unit} ago`;
  }
}

function tellOfMove() {
  const moved = sessionStorage.getItem("moved");
  sessionStorage.removeItem("moved");
  if (!moved) return;
  const [from, to] = JSON.parse(moved);
  const note = document.getElementById("moved");
  const link = Object.assign(document.createElement("a"), { href: `?attempt=${from}`, textContent: `show attempt ${from}` });
  note.append(`Attempt ${to} began, and this page moved on to it: `, link, ".");
  note.hidden = false;
}

drawAll();
tellAges();
prepareTables();
tellOfMove();
setInterval(tellAges, 10000);
if (document.body.dataset.events) listen(document.body.dataset.events);
