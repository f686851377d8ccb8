// The map of cells: squares, outlines, points with roads, or tiles in the order of their values.

const SVG = "http://www.w3.org/2000/svg";
const MANY = 2000;
const NOT_DRAGGED = 4;

function setAll(one, attributes) {
  for (const [key, value] of Object.entries(attributes)) one.setAttribute(key, value);
}

function shape(name, attributes, parent) {
  const made = document.createElementNS(SVG, name);
  setAll(made, attributes);
  parent?.append(made);
  return made;
}

class CellMap {
  constructor(figure, task, numbers, choose) {
    Object.assign(this, { figure, task, numbers, choose, chosen: 0 });
    this.tiles = task.map.kind === "tiles";
    this.form = { points: "circle", outlines: "path" }[task.map.kind] ?? "rect";
    [this.width, this.height] = task.map.size;
    this.east = Array.from(numbers.floats(task.map.east));
    this.north = Array.from(numbers.floats(task.map.north));
    if (this.tiles) this.order(task.cells.map((_, i) => i));
    this.draw();
    this.listen();
  }

  // Places tiles row by row.
  order(cells) {
    const columns = Math.ceil(Math.sqrt(1.2 * cells.length));
    cells.forEach((cell, i) => {
      this.east[cell] = i % columns;
      this.north[cell] = -Math.floor(i / columns);
    });
  }

  draw() {
    const n = this.task.cells.length;
    const box = this.box();
    this.radius = Math.max(box[2], box[3]) / (n > 400 ? 160 : 80);
    this.svg = shape("svg", {
      class: this.tiles ? "tiles" : "", tabindex: 0, role: "application", "aria-label":
        `Map of ${n} cells. Arrow keys choose a cell; its numbers are shown above the map.`,
    });
    this.many = n > MANY && this.form !== "circle";
    const layer = shape("g", n > MANY ? { class: "many" } : {}, this.svg);
    for (const [from, to] of this.task.map.roads) {
      shape("line", {
        class: "road", x1: this.east[from], y1: -this.north[from],
        x2: this.east[to], y2: -this.north[to],
      }, layer);
    }
    this.shapes = this.task.cells.map((cell, i) => {
      const one = shape(this.form, { class: "shape", "data-i": i }, layer);
      shape("title", {}, one);
      return one;
    });
    this.mark = shape(this.form, { class: "chosen" }, layer);
    this.place();
    this.figure.querySelector(".plane").append(this.svg);
    this.view(box);
    if (this.tiles) this.svg.style.aspectRatio = `${box[2]} / ${box[3]}`;
    else this.drawLength();
  }

  place() {
    this.shapes.forEach((one, i) => this.put(one, i));
    this.put(this.mark, this.chosen);
  }

  put(one, i) {
    const { width, height } = this;
    const [x, y] = [this.east[i], -this.north[i]];
    if (this.form === "path") setAll(one, { d: this.task.map.outlines[i] });
    else if (this.form === "circle") setAll(one, { cx: x, cy: y, r: this.radius });
    else setAll(one, { x: x - width / 2, y: y - height / 2, width, height });
  }

  // Left, top, width and height of all cells, with a margin.
  box() {
    const [xs, ys] = [this.east, this.north.map((y) => -y)];
    const least = (values) => values.reduce((a, b) => Math.min(a, b));
    const most = (values) => values.reduce((a, b) => Math.max(a, b));
    const around = [
      least(xs) - this.width / 2, least(ys) - this.height / 2,
      most(xs) + this.width / 2, most(ys) + this.height / 2,
    ];
    const [left, top, right, bottom] = this.form === "path" ? this.task.map.bounds : around;
    const margin = 0.04 * Math.max(right - left, bottom - top, 0.1);
    return [left - margin, top - margin, right - left + 2 * margin, bottom - top + 2 * margin];
  }

  view(box) {
    this.shown = box;
    this.svg.setAttribute("viewBox", box.join(" "));
    this.showLength();
  }

  zoom(factor, x = this.shown[0] + this.shown[2] / 2, y = this.shown[1] + this.shown[3] / 2) {
    const [left, top, width, height] = this.shown;
    this.view([x - (x - left) * factor, y - (y - top) * factor, width * factor, height * factor]);
  }

  // A bar of a round number of kilometres below the map.
  drawLength() {
    this.bar = document.createElement("p");
    this.bar.className = "note length";
    this.figure.querySelector(".plane").append(this.bar);
    this.showLength();
  }

  showLength() {
    if (!this.bar) return;
    const pixels = this.svg.getBoundingClientRect();
    const [, , width, height] = this.shown;
    const scale = Math.min(pixels.width / width, pixels.height / height) || 1;
    const wished = 100 / scale;
    const power = 10 ** Math.floor(Math.log10(wished));
    const length = [5, 2, 1].map((digit) => digit * power).find((each) => each <= wished) ?? power;
    const text = length < 1 ? `${Math.round(1000 * length)} m` : `${length} km`;
    this.bar.innerHTML = `<svg width="${length * scale}" height="8" aria-hidden="true" style="display:inline-block;width:${length * scale}px;height:8px;cursor:auto"><path d="M1 1v6h${length * scale - 2}v-6" fill="none" stroke="currentColor" stroke-width="2"/></svg> ${text}`;
  }

  // Shows values by cell; `title` and `share` describe them.
  color(values, { title, middle, share }) {
    const scale = new ColorScale(values, middle, this.numbers.scales);
    if (this.tiles) {
      const rank = (i) => (Number.isFinite(values[i]) ? values[i] : -Infinity);
      const cells = this.task.cells.map((_, i) => i);
      this.order(cells.sort((a, b) => rank(b) - rank(a) || a - b));
      this.place();
    }
    this.shapes.forEach((one, i) => {
      const there = Number.isFinite(values[i]);
      one.classList.toggle("unknown", !there);
      one.style.fill = there ? scale.color(values[i]) : "";
      // The background would shine through between neighbours whose edges are smoothed.
      if (this.many) one.style.stroke = one.style.fill;
      one.firstChild.textContent = `cell ${this.task.cells[i]}: ${short(values[i], share)}`;
    });
    this.legend(scale, title, share, Array.from(values).some((value) => !Number.isFinite(value)));
  }

  legend(scale, title, share, lacks) {
    const legend = this.figure.querySelector(".legend");
    const part = (name, text = "") => {
      const made = document.createElement("span");
      made.className = name;
      made.textContent = text;
      legend.append(made);
      return made;
    };
    legend.replaceChildren();
    part("title", title);
    const [less, more] = scale.clipped ? ["≤ ", "≥ "] : ["", ""];
    part("low", less + short(scale.low, share));
    part("bar").style.background = `linear-gradient(to right, ${scale.colors.join(", ")})`;
    part("high", more + short(scale.high, share));
    if (scale.middle !== null) part("middle", `middle: ${short(scale.middle, share)}`);
    if (lacks) {
      part("swatch");
      part("", "unknown");
    }
  }

  select(i) {
    // A group, which comes after the cells, has no place.
    this.mark.style.display = i < this.task.cells.length ? "" : "none";
    if (i >= this.task.cells.length) return;
    this.chosen = i;
    this.put(this.mark, i);
  }

  // The nearest cell in a direction, nearer to its axis first.
  neighbour(toEast, toNorth) {
    let [found, least] = [this.chosen, Infinity];
    this.east.forEach((x, i) => {
      const [dx, dy] = [x - this.east[this.chosen], this.north[i] - this.north[this.chosen]];
      const along = dx * toEast + dy * toNorth;
      const aside = Math.abs(dx * toNorth) + Math.abs(dy * toEast);
      const distance = along + 2 * aside;
      if (along > 1e-9 && aside <= 2 * along && distance < least) [found, least] = [i, distance];
    });
    return found;
  }

  listen() {
    const ways = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
    this.svg.addEventListener("keydown", (event) => {
      if (!(event.key in ways) || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      this.choose(this.neighbour(...ways[event.key]));
    });
    this.svg.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const at = new DOMPoint(event.clientX, event.clientY);
      const { x, y } = at.matrixTransform(this.svg.getScreenCTM().inverse());
      this.zoom(event.deltaY > 0 ? 1.2 : 1 / 1.2, x, y);
    }, { passive: false });
    const zooms = { in: () => this.zoom(0.7), out: () => this.zoom(1 / 0.7), all: () => this.view(this.box()) };
    for (const button of this.figure.querySelectorAll("[data-zoom]")) {
      button.addEventListener("click", zooms[button.dataset.zoom]);
    }
    new ResizeObserver(() => this.showLength()).observe(this.svg);
    this.drag();
  }

  // A click chooses; a longer way of the pointer moves the map.
  drag() {
    let from = null;
    this.svg.addEventListener("pointerdown", (event) => {
      if (event.button === 0) from = { x: event.clientX, y: event.clientY, box: this.shown, far: false };
    });
    this.svg.addEventListener("pointermove", (event) => {
      if (!from || !event.buttons) return;
      const [dx, dy] = [event.clientX - from.x, event.clientY - from.y];
      from.far ||= Math.hypot(dx, dy) > NOT_DRAGGED;
      if (!from.far) return;
      const scale = 1 / this.svg.getScreenCTM().a;
      this.view([from.box[0] - dx * scale, from.box[1] - dy * scale, from.box[2], from.box[3]]);
    });
    this.svg.addEventListener("click", (event) => {
      const place = event.target.dataset?.i ?? event.target.parentNode?.dataset?.i;
      if (!from?.far && place !== undefined) this.choose(Number(place));
      from = null;
    });
  }
}
