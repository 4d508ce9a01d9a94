// Lets the keyboard walk over the points of a chart: arrow keys move, Enter opens what a click would open.
"use strict";

const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
const within = (number, end) => Math.min(Math.max(number, 0), end - 1);

// Make a drawn chart focusable. `choose` returns the address that a click on a point opens, or null.
function makeWalkable(Plotly, plot, traces, layout, choose) {
  const grid = traces[0].z;  // only heat maps have one
  const [rows, columns] = grid ? [grid.length, grid[0].length] : [1, traces[0].x.length];
  const at = plot.walkedTo ??= { row: 0, column: grid ? 0 : columns - 1 };  // the last step is the newest
  const subplots = [...new Set(traces.map((trace) => `${trace.xaxis ?? "x"}${trace.yaxis ?? "y"}`))];
  const x = () => (grid ? at.column : traces[0].x[at.column]);
  const valueOf = (trace) => (grid ? trace.z[at.row][at.column] : trace.y[at.column]);

  function show() {
    at.row = within(at.row, rows);
    at.column = within(at.column, columns);
    const shown = traces.map((trace, curveNumber) => ({ trace, curveNumber })).filter(({ trace }) => valueOf(trace) != null);
    // The last of two heat maps shows the place: Plotly marks a square in one plot at a time.
    if (grid) Plotly.Fx.hover(plot, { xval: at.column, yval: at.row }, subplots.at(-1));
    else Plotly.Fx.hover(plot, shown.map(({ curveNumber }) => ({ curveNumber, pointNumber: at.column })), subplots);
    const place = `${layout.xaxis.title.text} ${x()}${grid ? `, ${layout.yaxis.title.text} ${at.row}` : ""}`;
    const values = shown.map(({ trace }) => `${trace.name} ${Number(valueOf(trace).toFixed(3))}`);
    plot.nextElementSibling.textContent = `${place}: ${values.join(", ")}`;
  }

  plot.tabIndex = 0;
  plot.setAttribute("role", "application");
  plot.setAttribute("aria-roledescription", "chart; arrow keys move over its points, Enter opens one");
  plot.onfocus = () => plot.matches(":focus-visible") && show();
  plot.onblur = () => Plotly.Fx.unhover(plot);
  plot.onkeydown = (event) => {
    if (event.key === "Enter") {
      const address = choose({ points: [{ x: x(), y: at.row, customdata: traces[0].customdata?.[at.column] }] });
      if (address) location.assign(address);
    }
    if (!MOVES[event.key]) return;
    event.preventDefault();
    at.row += MOVES[event.key][0];
    at.column += MOVES[event.key][1];
    show();
  };
}
