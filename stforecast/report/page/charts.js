// The charts, by plotly.js.

const SHARES = { range: [0, 1.02], tickformat: ".0%" };
const DOTS = { mode: "lines+markers", marker: { size: 4 } };
const OBSERVED = { name: "observed" };
const SEASONAL = "seasonal naive";

// Text as plotly.js shows it: it takes some tags for its own.
function plain(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
}

function layout(x, y, more = {}) {
  const axis = { gridcolor: ofPage("grid"), zerolinecolor: ofPage("grid"), linecolor: ofPage("line"), automargin: true };
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: ofPage("text"), size: 12, family: getComputedStyle(document.body).fontFamily },
    margin: { l: 10, r: 10, t: 30, b: 10 },
    legend: { orientation: "h", y: -0.25, yanchor: "top", x: 0 },
    hovermode: "closest",
    hoverlabel: { namelength: 40 },
    dragmode: "zoom",
    modebar: { bgcolor: "rgba(0,0,0,0)", color: ofPage("faint"), activecolor: ofPage("text") },
    ...more,
    xaxis: { ...axis, ...x },
    yaxis: { ...axis, ...y },
  };
}

function title(text) {
  return { title: { text: plain(text), font: { size: 12 }, standoff: 8 } };
}

function line(method, x, y, more = {}) {
  const { name, color, dash } = method;
  return {
    type: "scatter", mode: "lines", name: plain(name), meta: name, x, y,
    line: { color, dash, width: 1.8 }, showlegend: false, ...more,
  };
}

function naiveLine(x, y) {
  return line({ name: SEASONAL, color: ofPage("faint"), dash: "dot" }, x, y);
}

// The line of a distribution: the share of values up to each of them.
function distribution(method, values) {
  const sorted = known(values);
  const { color, dash } = method;
  return line(method, sorted, sorted.map((_, k) => (k + 1) / sorted.length), { line: { color, dash, width: 1.8, shape: "hv" } });
}

function translucent(color) {
  const parts = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
  return `rgba(${parts.join(",")},0.22)`;
}

const BUTTONS = ["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"];
const CONFIG = { responsive: true, displaylogo: false, modeBarButtons: [BUTTONS] };

class Charts {
  constructor(section, task, numbers) {
    Object.assign(this, { section, task, numbers, hidden: new Set() });
  }

  place(name) {
    return this.section.querySelector(`[data-chart="${name}"]`);
  }

  // Draws a chart without the methods that are switched off.
  show(name, traces, ofLayout, words, config = CONFIG) {
    const place = this.place(name);
    // Not an image: that has no buttons inside.
    place.setAttribute("role", "group");
    place.setAttribute("aria-label", words);
    const drawn = traces.filter((trace) => !this.hidden.has(trace.meta));
    Plotly.react(place, drawn, ofLayout, config);
  }

  // The axis of a cell's series, with as many upright labels as have room: turned ones hide the legend.
  dates(clock) {
    const wide = this.place("series").clientWidth;
    return { ...title(clock), type: "date", tickangle: 0, nticks: Math.max(2, Math.floor(wide / 95)) };
  }

  hide(name) {
    this.place(name).closest("figure").hidden = true;
  }

  // Observations, forecasts and the band of the chosen method at a cell; of the best method where
  // the page has no room for the chosen one.
  series(cell, chosen) {
    const { series, methods, cells, quantity, clock } = this.task;
    if (!series.times.length) return this.hide("series");
    const method = chosen < series.methods.length ? chosen : 0;
    const [x, row] = [series.times, (place) => this.numbers.row(place, cell)];
    const traces = [];
    series.methods.forEach((of, i) => {
      const look = methods[i];
      const shown = i === method;
      if (shown && of.lower) {
        const edge = { mode: "lines", x, line: { width: 0 }, hoverinfo: "skip", legendgroup: "band" };
        traces.push({ ...edge, y: row(of.lower), showlegend: false });
        traces.push({ ...edge, y: row(of.upper), fill: "tonexty", fillcolor: translucent(look.color), name: `interval of ${plain(look.name)}` });
      }
      if (shown || !this.hidden.has(look.name)) {
        traces.push(line(look, x, row(of.forecast), { meta: "", showlegend: true, visible: shown ? true : "legendonly" }));
      }
    });
    const observed = { ...OBSERVED, color: ofPage("text"), dash: "solid" };
    traces.push(line(observed, x, row(series.observed), { showlegend: true }));
    const heading = `cell ${cells[cell]}`;
    const area = { title: { text: plain(heading), x: 0.02, font: { size: 14 } }, hovermode: "x unified" };
    this.show("series", traces, layout(this.dates(clock), title(quantity), area),
      `Observations and forecasts of ${heading} over ${x.length} steps.`);
  }

  // Times of the history, and of the forecast.
  times() {
    const { times, observed } = this.task.series;
    const length = observed.shape[1];
    return { past: times.slice(0, length), next: times.slice(length) };
  }

  // The end of the history, the forecast with its bounds, and the threshold of a cell or group.
  coming(cell, heading) {
    const { series, methods, quantity, clock } = this.task;
    const row = (place) => this.numbers.row(place, cell);
    const observed = row(series.observed);
    const { past, next } = this.times();
    const color = methods[0].color;
    const traces = [];
    if (series.lower) {
      const edge = { mode: "lines", x: next, line: { width: 0 }, hoverinfo: "skip", legendgroup: "band" };
      traces.push({ ...edge, y: row(series.lower), showlegend: false });
      traces.push({ ...edge, y: row(series.upper), fill: "tonexty", fillcolor: translucent(color), name: "bounds" });
    }
    traces.push(line({ ...OBSERVED, color: ofPage("text"), dash: "solid" }, past, observed, { showlegend: true }));
    // One step is a point, which lines alone do not show.
    const look = next.length > 1 ? {} : { mode: "markers", marker: { color, size: 7 } };
    const forecast = row(series.forecast);
    if (next.length === 1 && series.lower) {
      const [lower, upper] = [series.lower, series.upper].map((place) => row(place)[0] ?? forecast[0]);
      const [above, below] = [upper - forecast[0], forecast[0] - lower];
      look.error_y = { type: "data", symmetric: false, array: [above], arrayminus: [below] };
    }
    traces.push(line(methods[0], next, forecast, { showlegend: true, line: { color, width: 2.6 }, ...look }));
    if (series.threshold) {
      const limit = this.numbers.floats(series.threshold)[cell];
      const ends = [series.times[0], series.times[series.times.length - 1]];
      traces.push(line({ name: "threshold", color: ofPage("chosen"), dash: "dash" }, ends, [limit, limit], { showlegend: true }));
    }
    const now = { type: "line", x0: next[0], x1: next[0], yref: "paper", y0: 0, y1: 1, line: { dash: "dot", width: 1, color: ofPage("faint") } };
    const area = { title: { text: plain(heading), x: 0.02, font: { size: 14 } }, hovermode: "x unified", shapes: [now] };
    this.show("series", traces, layout(this.dates(clock), title(quantity), area),
      `History and forecast of ${heading}, ${next.length} steps ahead.`);
  }

  // What each part of the readings adds to what is usual at a step; returns the same in words.
  why(place, step, name) {
    const { why, quantity } = this.task;
    const [parts, usual] = [this.numbers.floats(why.parts), this.numbers.floats(why.usual)];
    const steps = this.times().next.length;
    const x = why.names.map((_, k) => parts[(place * why.names.length + k) * steps + step]);
    const [base, sum] = [usual[place * steps + step], x.reduce((a, b) => a + b, 0)];
    const text = x.map((value) => (value < 0 ? "" : "+") + short(value));
    const color = x.map((value) => why.colors[Number(value < 0)]);
    const bar = { type: "bar", orientation: "h", x, y: why.names.map(plain), text, marker: { color }, textposition: "outside", hoverinfo: "skip", cliponaxis: false };
    const [least, most] = [Math.min(0, ...x), Math.max(0, ...x)];
    // For the numbers next to the bars.
    const room = ((most - least || 1) * 60) / Math.max(120, this.place("why").clientWidth - 260);
    const heading = `why ${short(base + sum)} in ${name}, ${this.times().next[step]}`;
    const area = { title: { text: plain(heading), x: 0.02, font: { size: 14 } } };
    const ofX = { ...title(`${quantity}: added to the usual ${short(base)}`), range: [least - room, most + room] };
    const ofY = { autorange: "reversed", ticklabelstandoff: 4 };
    this.show("why", [bar], layout(ofX, ofY, area),
      `Parts of the forecast of ${name}.`, { ...CONFIG, displayModeBar: false });
    const words = why.names.map((part, k) => `${part} ${text[k]}`);
    return `Usual at this time of the week: ${short(base)}; ${words.join(", ") || "no parts"}; forecast: ${short(base + sum)}.`;
  }

  // Errors of each method by hour at a cell.
  cellHours(cell) {
    const { series, methods, cells, error, curves } = this.task;
    if (!series.times.length) return this.hide("cell-hours");
    const hours = Array.from({ length: 24 }, (_, hour) => hour);
    const traces = series.methods.map((of, i) => line(methods[i], hours, this.numbers.row(of.hours, cell)));
    const area = { title: { text: `errors of cell ${plain(cells[cell])} by hour`, x: 0.02, font: { size: 14 } } };
    this.show("cell-hours", traces, layout({ ...title(curves.hours.axis), dtick: 3 }, { ...title(error), rangemode: "tozero" }, area),
      `Errors by hour of the day at cell ${cells[cell]}.`);
  }

  cdf() {
    const { methods, values, error } = this.task;
    const traces = values[0].of.map((place, i) => distribution(methods[i], this.numbers.floats(place)));
    this.show("cdf", traces, layout(title(`${error} of a cell`), { ...title("share of cells"), ...SHARES }),
      "Share of cells with an error of at most x, for each method.");
  }

  ahead() {
    const { methods, curves, error } = this.task;
    const { axis, x, of, naive } = curves.ahead;
    if (x.length < 2) return this.hide("ahead");
    const traces = of.map((y, i) => line(methods[i], x, y, DOTS));
    if (naive) traces.push(naiveLine(x, naive));
    this.show("ahead", traces, layout(title(axis), title(error)), "Error of each method by time ahead.");
  }

  hours() {
    const { methods, curves, error } = this.task;
    const { axis, of, naive } = curves.hours;
    const x = of[0].map((_, hour) => hour);
    const traces = of.map((y, i) => line(methods[i], x, y));
    if (naive) traces.push(naiveLine(x, naive));
    this.show("hours", traces, layout({ ...title(axis), dtick: 3 }, title(error)), "Error of each method by hour of the day.");
  }

  // Losses by round, or by megabytes sent and received.
  losses(name, x, axis) {
    const { methods, curves } = this.task;
    const shown = curves.losses.filter((run) => name !== "communication" || run.bytes[run.bytes.length - 1] > 0);
    if (!shown.length) return this.hide(name);
    const kind = shown.some((run) => run.validation.some((loss) => loss !== null)) ? "validation" : "training";
    const first = new Set();
    const traces = shown.map((run) => {
      const alone = !first.has(run.method);
      first.add(run.method);
      const more = { name: plain(run.name), connectgaps: true, ...DOTS };
      return line(methods[run.method], x(run), run[kind], { ...more, opacity: alone ? 1 : 0.6 });
    });
    const kinds = [...new Set(shown.map((run) => run.loss))].join(", ");
    const what = kind === "validation" ? "validation MSE of z-scores" : `training loss (${kinds})`;
    this.show(name, traces, layout({ ...title(axis), rangemode: "tozero" }, { ...title(what), rangemode: "tozero" }), `The ${what} of each run.`);
  }

  // Charts whose lines and axes the numbers give; lines without x are distributions.
  plots() {
    const { methods, plots } = this.task;
    plots.forEach(({ caption, x, y, lines, log }, i) => {
      const places = lines[0].x;
      const named = typeof places?.[0] === "string";
      const dots = named ? { mode: "markers", marker: { size: 8 } } : DOTS;
      const traces = lines.map((one) => {
        const of = methods[one.method];
        return places ? line(of, one.x, one.y, { ...dots, marker: { ...dots.marker, color: of.color } }) : distribution(of, one.y);
      });
      const whole = Number.isInteger(places?.[0]) ? [...new Set(lines.flatMap((one) => one.x))] : [];
      const few = 0 < whole.length && whole.length <= 8;
      const type = named ? "category" : log ? "log" : "linear";
      const ofX = { type, ...(named ? {} : few ? { tickvals: whole } : { nticks: 8 }) };
      this.show(i, traces, layout({ ...title(x), ...ofX }, { ...title(y), ...(places ? {} : SHARES) }), caption);
    });
  }

  overall() {
    this.cdf();
    this.ahead();
    this.hours();
    this.losses("convergence", (run) => run.round, "round");
    this.losses("communication", (run) => run.bytes.map((n) => n / 1e6), "megabytes sent and received by all clients");
  }
}
