// What each kind of chart shows: data of the service -> traces, a layout, and what a click on a point opens.
"use strict";

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

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

const stepAddress = (event) => inAttempt(`${location.pathname}/steps/${event.points[0].customdata}`);

// Return points over steps, or over the time at which steps were planned, as the page asks.
function overSteps(points) {
  const isTime = document.getElementById("axis")?.value === "time";
  const shown = isTime ? points.filter((point) => point.published_at) : points;
  const steps = shown.map((point) => point.step);
  return {
    steps,
    isTime,
    x: isTime ? shown.map((point) => point.published_at) : steps,
    of: (field) => shown.map((point) => point[field]),
    xaxis: isTime ? axis("time (UTC)", { type: "date" }) : axis("step", whole(steps)),
    // Name the step of each point: over time the axis does not.
    named: (traces) => traces.map((trace) => (
      { ...trace, customdata: steps, hovertemplate: `step %{customdata}${isTime ? ", %{x}" : ""}<br>${trace.name} %{y:.4~f}<extra></extra>` }
    )),
  };
}

// Return loads over the mean of their layer.
const overMean = (data, tokens) => tokens.map((row, layer) => row.map((load) => load / (data.mean_tokens[layer] || 1)));
const slowest = (data, tokens) => tokens.map((row, layer) => Math.max(...row) / (data.mean_tokens[layer] || 1));

// Return two heat maps beside each other, on a phone one above the other.
function heatMaps(data) {
  const loads = [overMean(data, data.before_tokens), overMean(data, data.after_tokens)];
  const highest = Math.min(3, Math.max(1.5, ...loads.flat(2)));
  const trace = (name, z, place) => ({
    type: "heatmap", name, z, ...place, zmin: 0, zmax: highest,
    colorscale: [[0, colour("cold")], [1 / highest, colour("ideal")], [1, colour("hot")]],
    colorbar: { outlinewidth: 0, thickness: 12, title: { text: "load / mean" } },
    showscale: place.xaxis === "x2",
    hovertemplate: `rank %{x}, MoE layer %{y}<br>${name} %{z:.3f} of the mean<extra></extra>`,
  });
  const note = (text, x, y) => (
    { text, x, y, xref: "paper", yref: "paper", xanchor: "center", yanchor: "bottom", showarrow: false }
  );
  const layers = axis("MoE layer", { autorange: "reversed", showgrid: false, ...whole([0, loads[0].length]) });
  const ranks = axis("rank", { showgrid: false, ...whole([0, loads[0][0].length]) });
  const side = isNarrow()
    ? { x: [0, 1], x2: [0, 1], y: [0.6, 1], y2: [0, 0.4], notes: [[0.5, 1.01], [0.5, 0.41]], hidden: {} }
    : { x: [0, 0.48], x2: [0.52, 1], y: [0, 1], y2: [0, 1], notes: [[0.24, 1.02], [0.76, 1.02]],
      hidden: { title: {}, showticklabels: false } };
  return {
    traces: [
      trace("without relibra", loads[0], { xaxis: "x", yaxis: "y" }),
      trace("planned", loads[1], { xaxis: "x2", yaxis: "y2" }),
    ],
    layout: {
      xaxis: { ...ranks, domain: side.x },
      xaxis2: { ...ranks, domain: side.x2, anchor: "y2" },
      yaxis: { ...layers, domain: side.y },
      yaxis2: { ...layers, ...side.hidden, domain: side.y2, anchor: "x2", matches: "y" },
      annotations: [note("without relibra", ...side.notes[0]), note("planned", ...side.notes[1])],
    },
  };
}

const CHARTS = {
  imbalance(points) {
    const { x, of, named, xaxis } = overSteps(points);
    return {
      traces: named([
        line("without relibra", x, of("imbalance_plain"), "before"),
        line("with relibra", x, of("imbalance_realised"), "realised", { width: 4 }),
        line("expected", x, of("imbalance_after"), "after"),
        line("bound", x, of("imbalance_bound"), "bound", { dash: "dot" }),
      ]),
      layout: { xaxis, yaxis: axis("slowest / mean rank") },
      choose: stepAddress,
    };
  },

  speedup(points) {
    const { x, of, named, xaxis } = overSteps(points);
    return {
      traces: named([
        line("realised", x, of("speedup_realised"), "realised", { width: 4 }),
        line("expected", x, of("speedup_planned"), "after"),
      ]),
      layout: { xaxis, yaxis: axis("speed-up") },
      choose: stepAddress,
    };
  },

  waits(points) {
    const { x, of, named, xaxis, isTime } = overSteps(points);
    const fallbacks = of("num_fallbacks");
    const hasFallbacks = fallbacks.some((number) => number > 0);
    // Steps are not evenly spaced in time, and bars would be as narrow as the shortest of them.
    const shape = isTime ? { type: "scatter", mode: "markers" } : { type: "bar" };
    const bars = (name, field, shade, extra) => ({ ...shape, name, x, y: of(field), marker: { color: colour(shade) }, ...extra });
    return {
      traces: named([
        bars("plan took", "plan_latency_s", "replica", { offsetgroup: "latency" }),
        bars("longest wait for plan", "plan_wait_s", "after", { offsetgroup: "wait" }),
        bars("longest reorder", "reorder_s", "realised", { offsetgroup: "reorder" }),
        bars("longest wait for replicas", "replica_wait_s", "bound", { offsetgroup: "replicas" }),
        ...(hasFallbacks ? [bars("ranks that fell back", "num_fallbacks", "hot", { offsetgroup: "fallback", yaxis: "y2" })] : []),
      ]),
      layout: {
        barmode: "group",
        xaxis,
        yaxis: axis("seconds", { rangemode: "tozero" }),
        yaxis2: axis("ranks", { overlaying: "y", side: "right", rangemode: "tozero", showgrid: false, ...whole([0, 1, ...fallbacks]) }),
      },
      choose: stepAddress,
    };
  },

  heat(data) {
    return {
      ...heatMaps(data),
      choose: (event) => data.row === null ? null : inAttempt(`${location.pathname}/cells/${data.row}/${event.points[0].y}`),
    };
  },

  layers(data) {
    const x = data.mean_tokens.map((_, layer) => layer);
    return {
      traces: [
        line("without relibra", x, slowest(data, data.before_tokens), "before"),
        line("planned", x, slowest(data, data.after_tokens), "after"),
        line("floor of the fullest node", x, data.floor_tokens.map((floor, layer) => floor / (data.mean_tokens[layer] || 1)),
          "bound", { dash: "dot" }),
      ],
      layout: { xaxis: axis("MoE layer", whole(x)), yaxis: axis("slowest / mean rank") },
      choose: (event) => data.row === null ? null : inAttempt(`${location.pathname}/cells/${data.row}/${event.points[0].x}`),
    };
  },

  cell(data) {
    const x = data.ranks.map((rank) => rank.rank);
    const of = (field) => data.ranks.map((rank) => rank[field]);
    const level = (tokens, shade, dash) => ({
      type: "line", xref: "paper", x0: 0, x1: 1, y0: tokens, y1: tokens, line: { color: colour(shade), width: 1.5, dash },
    });
    const node = data.ranks.filter((rank, index) => index && rank.node !== data.ranks[index - 1].node);
    const borders = node.map((rank) => ({
      type: "line", yref: "paper", y0: 0, y1: 1, x0: rank.rank - 0.5, x1: rank.rank - 0.5,
      line: { color: colour("line"), width: 1 },
    }));
    return {
      traces: [
        { type: "bar", name: "experts at home", x, y: of("home_tokens"), marker: { color: colour("after") } },
        { type: "bar", name: "replicas", x, y: of("replica_tokens"), marker: { color: colour("replica") } },
        { type: "scatter", mode: "markers", name: "without relibra", x, y: of("before_tokens"),
          marker: { color: colour("text"), symbol: "line-ew-open", size: 14, line: { width: 2.5 } } },
      ],
      layout: {
        barmode: "stack",
        legend: { orientation: "h", y: 1.02, yanchor: "bottom", traceorder: "normal" },
        xaxis: axis("rank", { showgrid: false, ...whole(x) }),
        yaxis: axis("tokens", { rangemode: "tozero" }),
        shapes: [...borders, level(data.mean_tokens, "quiet", "dash"), level(data.lower_bound_tokens, "bound", "dot")],
      },
    };
  },
};
