// Joins the parts of the page.

// A section with charts of lines alone.
class PlainSection {
  constructor(section, task, numbers) {
    Object.assign(this, { section, task, numbers });
    this.charts = new Charts(section, task, numbers);
    this.switches();
    this.begin();
  }

  begin() {
    this.redraw();
  }

  // One button for each line in the charts; it shows and hides the line in all of them.
  switches() {
    const names = this.task.methods.map((method) => [method.name, method.color, method.dash]);
    if (this.task.curves?.hours.naive) names.push([SEASONAL, "", "dot"]);
    const buttons = names.map(([name, color, dash]) => {
      const [button, swatch] = [document.createElement("button"), document.createElement("span")];
      swatch.className = `line ${dash}`;
      swatch.style.borderTopColor = color;
      button.append(swatch, name);
      button.type = "button";
      button.setAttribute("aria-pressed", "true");
      button.addEventListener("click", () => {
        const { hidden } = this.charts;
        if (!hidden.delete(name)) hidden.add(name);
        button.setAttribute("aria-pressed", String(!hidden.has(name)));
        this.redraw();
      });
      return button;
    });
    this.section.querySelector(".switches").replaceChildren(...buttons);
  }

  redraw() {
    this.charts.plots();
  }
}

// A section with a map of the cells.
class TaskSection extends PlainSection {
  begin() {
    const { section, task, numbers } = this;
    Object.assign(this, { cell: 0, method: 0 });
    this.fill("select.value", task.values.map((value) => value.title));
    this.fill("select.method", task.methods.map((method) => method.name));
    this.map = new CellMap(section.querySelector(".map"), task, numbers, (i) => this.select(i));
    this.listen();
    this.aboutSeries();
    this.drawAll();
    this.recolor();
    this.select(this.worst());
  }

  drawAll() {
    this.charts.overall();
  }

  fill(selector, names) {
    const options = names.map((name, i) => new Option(name, i));
    this.section.querySelector(selector)?.replaceChildren(...options);
  }

  get value() {
    return this.task.values[this.section.querySelector("select.value").value];
  }

  // Where a value of the method is, if it has any; those of all methods alike have one array.
  placeOf({ of }) {
    return of[Math.min(this.method, of.length - 1)];
  }

  get values() {
    const place = this.placeOf(this.value);
    return place ? this.numbers.floats(place) : new Float32Array(this.task.cells.length).fill(NaN);
  }

  listen() {
    const find = (selector) => this.section.querySelector(selector);
    find("select.value").addEventListener("change", () => { this.recolor(); this.say(); });
    find("select.method")?.addEventListener("change", (event) => {
      this.method = Number(event.target.value);
      this.recolor();
      this.select(this.cell);
    });
    find("input.cell").addEventListener("change", (event) => this.open(event.target.value.trim()));
    const own = `#${this.section.id} button.open`;  // The coming span shows cells of plain sections, too.
    const opening = this.task.ahead ? `${own}, section:not(.task) button.open` : own;
    for (const button of document.querySelectorAll(opening)) {
      button.addEventListener("click", () => {
        this.open(button.dataset.cell);
        this.section.querySelector(".controls").scrollIntoView({ block: "start" });
      });
    }
  }

  open(name) {
    const i = this.task.cells.indexOf(name);
    if (i >= 0) this.select(i);
    else this.section.querySelector(".said").textContent = `No cell ${name} among the ${this.task.cells.length} that were forecast.`;
  }

  worst() {
    const errors = Array.from(this.numbers.floats(this.task.values[0].of[0]));
    return errors.reduce((at, error, i) => (error > errors[at] || !Number.isFinite(errors[at]) ? i : at), 0);
  }

  recolor() {
    const { title, middle, share, of } = this.value;
    const method = of.length > 1 ? `, ${this.task.methods[this.method].name}` : "";
    this.map.color(this.values, { title: title + method, middle, share });
  }

  select(i) {
    this.cell = i;
    this.map.select(i);
    const { cells, groups } = this.task;
    this.section.querySelector("input.cell").value = cells[i] ?? groups[i - cells.length];
    this.drawCell(i);
    this.say();
  }

  drawCell(i) {
    this.charts.series(i, this.method);
    this.charts.cellHours(i);
  }

  // The numbers of the cell in words, for all who do not see the map.
  say() {
    const all = this.task.values.map((value) => {
      const place = this.placeOf(value);
      return place ? `${value.title} ${short(this.numbers.floats(place)[this.cell], value.share)}` : null;
    });
    this.section.querySelector(".said").textContent =
      `Cell ${this.task.cells[this.cell]}${this.task.ahead ? "" : `, ${this.task.methods[this.method].name}`}: ${all.filter(Boolean).join("; ")}.`;
  }

  aboutSeries() {
    const { series, methods } = this.task;
    const parts = [];
    if (!series.times.length) {
      parts.push("The series are left out, as the file would be too large with so many cells; report fewer cells.");
    } else {
      if (series.times.length < series.all) parts.push(`The first ${series.times.length} of ${series.all} steps.`);
      if (series.methods.length < methods.length) parts.push(`Only those of the best methods, as the file would be too large: ${methods.slice(0, series.methods.length).map((m) => m.name).join(", ")}.`);
      if (series.methods.length > 1) parts.push("Click the legend to show other methods.");
    }
    this.section.querySelector(".about-series").textContent = [this.task.about_series, ...parts].join(" ");
  }

  redraw() {
    this.drawAll();
    this.select(this.cell);
  }
}

// The coming span: a map, and the series of a cell or, after the cells, of a group.
class AheadSection extends TaskSection {
  begin() {
    const { cells, groups, why } = this.task;
    this.names = [...cells.map((cell) => `cell ${cell}`), ...groups];
    if (why) {
      this.fill("select.step", [`the ${why.extreme} forecast`, ...this.charts.times().next.map((time) => time.replace("T", " "))]);
      this.section.querySelector("select.step").addEventListener("change", () => this.why());
    }
    super.begin();
    const chart = this.section.querySelector("[data-chart=series]");
    if (why) chart.on("plotly_click", ({ points }) => this.explain(points[0].x));
  }

  switches() {}

  aboutSeries() {
    const click = this.task.why ? " Click the forecast to explain another step." : "";
    this.section.querySelector(".about-series").textContent = `The dotted line is the end of the history.${click}`;
  }

  worst() {
    return this.task.first;
  }

  drawAll() {}

  open(name) {
    const group = this.task.groups.indexOf(name);
    if (group >= 0 && !this.task.cells.includes(name)) this.select(this.task.cells.length + group);
    else super.open(name);
  }

  drawCell(i) {
    this.charts.coming(i, this.names[i]);
    if (this.task.why) this.why();
  }

  say() {
    if (this.cell < this.task.cells.length) super.say();
    else this.section.querySelector(".said").textContent = `${this.names[this.cell]}: the sum of its cells.`;
  }

  explain(time) {
    const step = this.charts.times().next.indexOf(time);
    if (step < 0) return;
    this.section.querySelector("select.step").value = step + 1;
    this.why();
  }

  why() {
    const { why } = this.task;
    const step = Number(this.section.querySelector("select.step").value) - 1;
    const place = why.cells.indexOf(this.cell);
    const about = this.section.querySelector(".about-why");
    const chart = this.section.querySelector("[data-chart=why]");
    chart.hidden = place < 0;
    if (place >= 0) about.textContent = this.charts.why(place, step < 0 ? why.worst[place] : step, this.names[this.cell]);
    else about.textContent = `No parts of ${this.names[this.cell]}: the page has those of the first ${why.cells.length} cells of the plan; stforecast explain gives others.`;
  }
}

function made(section, task, numbers) {
  const kind = task.ahead ? AheadSection : task.plots ? PlainSection : TaskSection;
  return new kind(section, task, numbers);
}

// The load event waits for a document that is being written: so whoever prints the page at once, as
// headless browsers do, gets its charts.
function holdLoad() {
  const frame = document.createElement("iframe");
  frame.hidden = true;
  document.body.append(frame);
  frame.contentDocument.open();
  return () => { frame.contentDocument.close(); frame.remove(); };
}

const PRINTED = 680;

// On paper, charts are as wide as an A4 page, or half of it, and have light colours; notes are open.
function forPrint(shown, drawAll) {
  const plots = () => [...document.querySelectorAll(".js-plotly-plot")];
  const printed = (plot) => {
    const [width, high] = plot.closest(".charts") ? [PRINTED / 2 - 25, 240] : [PRINTED, 300];
    const ticks = plot.layout.xaxis.type === "date" ? { "xaxis.nticks": Math.floor(width / 110) } : {};
    return { width, height: plot.classList.contains("low") ? 220 : high, ...ticks };
  };
  let [theme, closed] = ["", []];
  addEventListener("beforeprint", () => {
    drawAll();
    closed = [...document.querySelectorAll("details:not([open])")].filter((one) => one.querySelector("summary.note"));
    closed.forEach((one) => { one.open = true; });
    ({ theme } = document.documentElement.dataset);
    document.documentElement.dataset.theme = "light";
    if (theme === "dark") shown.forEach((section) => section.redraw());
    plots().forEach((plot) => Plotly.relayout(plot, printed(plot)));
  });
  addEventListener("afterprint", () => {
    document.documentElement.dataset.theme = theme;
    closed.forEach((one) => { one.open = false; });
    plots().forEach((plot) => Plotly.relayout(plot, { width: null, height: null, autosize: true }));
    if (theme === "dark") shown.forEach((section) => section.redraw());
  });
}

const AT_ONCE = 3;

async function start() {
  sortTables();
  showMore();
  const sections = [...document.querySelectorAll("section.task")];
  const shown = new Map();
  themeSwitch(() => shown.forEach((section) => section.redraw()));
  if (!sections.length) return forPrint(shown, () => {});
  const library = document.createElement("script");
  library.textContent = await unpackText("plotly");
  document.head.append(library);
  const numbers = await Numbers.read();
  const draw = (section) => {
    if (shown.has(section)) return;
    shown.set(section, made(section, numbers.tasks[sections.indexOf(section)], numbers));
    section.dataset.drawn = "yes";
  };
  forPrint(shown, () => sections.forEach(draw));
  sections.slice(0, AT_ONCE).forEach(draw);
  const observer = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) if (isIntersecting) draw(target);
  });
  sections.forEach((section) => observer.observe(section));
}

const release = holdLoad();
start().catch((error) => {
  const problem = document.getElementById("problem");
  problem.hidden = false;
  problem.textContent = `Charts cannot be drawn (${error.message}); open the page in a browser of 2023 or later.`;
  throw error;
}).finally(release);
