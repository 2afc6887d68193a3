"use strict";
// Everything is built with textContent and setAttribute: what users wrote is never read as HTML.
(() => {
  const root = document.documentElement;
  const printing = window.matchMedia("print");
  const darkness = window.matchMedia("(prefers-color-scheme: dark)");
  const ROWS = 100;
  const NUMBERS = new Set(["rank", "row", "risk", "attacked"]);
  root.classList.add("js");

  const text = (id) => document.getElementById(id).textContent;
  const audit = JSON.parse(text("audit"));
  const figures = JSON.parse(text("figures"));

  function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  function drawn(name, attributes, ...children) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  function save(blob, name) {
    const address = URL.createObjectURL(blob);
    element("a", { href: address, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  }

  // Numbers

  function shown(value) {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e5)) return value.toExponential(1).replace("-", "−");
    return String(Number(value.toPrecision(3)));
  }

  function power(value) {
    const exponent = Math.round(Math.log10(value));
    if (Math.abs(value / 10 ** exponent - 1) > 1e-9) return shown(value);
    if (exponent >= 0 && exponent < 4) return String(10 ** exponent);
    const digits = [...String(exponent)].map((d) => (d === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[d]));
    return "10" + digits.join("");
  }

  // Powers of ten, and where these are few also twice and five times them.
  function logTicks(low, high) {
    const few = high / low < 1e3;
    const ticks = [];
    for (let exponent = Math.floor(Math.log10(low)); 10 ** exponent <= high * 1.0001; exponent += 1) {
      for (const factor of few ? [1, 2, 5] : [1]) {
        const tick = factor * 10 ** exponent;
        if (tick >= low * 0.9999 && tick <= high * 1.0001) ticks.push(tick);
      }
    }
    return ticks;
  }

  // Charts: every series is read off at the same values of x, so that one cursor reads them all.

  function commonX(figure) {
    const { low, high } = figure.x;
    const every = new Set([low, high]);
    for (const series of figure.series) for (const x of series.x) if (x >= low && x <= high) every.add(x);
    return [...every].sort((a, b) => a - b);
  }

  const SIDES = { left_bars: -1, right_bars: 1 };

  function readOff(series, column, xs) {
    const { x } = series;
    const holds = series.kind === "step" || series.kind === "bars";
    let at = -1;
    return xs.map((value) => {
      while (at + 1 < x.length && x[at + 1] <= value) at += 1;
      return valueAt(x, column, at, value, holds, series.kind);
    });
  }

  // Zero has no place on a logarithmic axis: it is drawn below the frame, and so cut off there.
  function drawable(values, axis) {
    return axis.log ? values.map((y) => (y === null ? null : Math.max(y, axis.low / 10))) : values;
  }

  function valueAt(x, y, at, value, holds, kind) {
    if (at < 0) return null;
    if (kind === "points" || kind in SIDES) return x[at] === value ? y[at] : null;
    if (holds) return at < y.length ? y[at] : y[y.length - 1];
    if (x[at] === value) return y[at];
    if (at + 1 >= x.length) return null;
    return y[at] + ((y[at + 1] - y[at]) * (value - x[at])) / (x[at + 1] - x[at]);
  }

  function translucent(colour, share) {
    return colour.replace("rgb(", "rgba(").replace(")", `, ${share})`);
  }

  const DASHES = { chance: [2, 4], gdp: [7, 4], bound: [12, 4], claim: [7, 4] };

  function plotted(series, colour) {
    const { bars, linear, stepped } = uPlot.paths;
    const style = { label: series.name, stroke: colour, width: 2, points: { show: false }, spanGaps: true };
    if (series.dashed) style.dash = DASHES[series.role] || [7, 4];
    if (series.role === "chance") style.width = 1;
    style.paths = series.kind === "step" || series.kind === "bars" ? stepped({ align: 1 }) : linear();
    // Half way to the next is where the axis ends, so that this is 0.4 of the way.
    if (series.kind in SIDES) style.paths = bars({ align: SIDES[series.kind], size: [0.8, Infinity] });
    if (series.kind === "bars" || series.kind in SIDES) Object.assign(style, { fill: translucent(colour, 0.3), width: 1.25 });
    if (series.kind === "band") style.width = 0;
    if (series.kind === "points") style.points = { show: true, size: 7, fill: colour };
    return style;
  }

  // One entry per series: its columns in the chart, and its button in the legend.
  function entries(figure, legend) {
    return figure.series.map((series) => {
      const value = element("span", { class: "value" });
      const button = element(
        "button", { type: "button", "aria-pressed": "true" },
        swatch(series), element("span", { class: "legend-name" }, element("bdi", {}, series.name)), value,
      );
      legend.append(element("li", {}, button));
      return { series, value, button, columns: [], values: [] };
    });
  }

  function swatch(series) {
    const box = { class: `swatch role-${series.role}`, width: 22, height: 12, "aria-hidden": "true" };
    if (["band", "bars", ...Object.keys(SIDES)].includes(series.kind)) {
      return drawn("svg", box, drawn("rect", { width: 22, height: 12, rx: 2 }));
    }
    const line = drawn("line", { x1: 0, x2: 22, y1: 6, y2: 6, class: series.dashed ? "dashed" : "solid" });
    const dot = series.kind === "points" ? [drawn("circle", { cx: 11, cy: 6, r: 4 })] : [];
    return drawn("svg", box, line, ...dot);
  }

  class Chart {
    constructor(host) {
      this.host = host;
      this.figure = figures[Number(host.dataset.chart)];
      const card = host.closest("figure");
      this.legend = card.querySelector(".legend");
      this.reset = card.querySelector(".reset");
      this.entries = entries(this.figure, this.legend);
      this.xs = commonX(this.figure);
      for (const entry of this.entries) {
        entry.button.addEventListener("click", () => this.toggle(entry));
      }
      this.reset.addEventListener("click", () => this.showAll());
      card.querySelector(".png").addEventListener("click", () => this.savePng(card.id));
      this.draw();
      new ResizeObserver(() => this.fit()).observe(host);
    }

    draw() {
      if (this.plot) this.plot.destroy();
      const data = [this.xs];
      const series = [{ label: this.figure.x.title }];
      const bands = [];
      for (const entry of this.entries) {
        const colour = getComputedStyle(entry.button.querySelector(".swatch")).color;
        const sides = entry.series.kind === "band" ? [entry.series.top, entry.series.y] : [entry.series.y];
        entry.values = sides.map((column) => readOff(entry.series, column, this.xs)).reverse();
        entry.columns = sides.map((_, side) => {
          data.push(drawable(entry.values[sides.length - 1 - side], this.figure.y));
          series.push({ ...plotted(entry.series, colour), show: entry.button.ariaPressed === "true" });
          return data.length - 1;
        });
        if (sides.length === 2) bands.push({ series: entry.columns, fill: translucent(colour, 0.2) });
      }
      this.plot = new uPlot(this.options(series, bands), data, this.host);
      this.showAll();
    }

    options(series, bands) {
      const { x, y } = this.figure;
      const scale = (axis) => ({
        time: false, auto: false, distr: axis.log ? 3 : 1, min: axis.low, max: axis.high,
        range: (_, low, high) => [low ?? axis.low, high ?? axis.high],
      });
      return {
        ...this.size(), series, bands,
        padding: [10, 14, 0, 0],
        scales: { x: scale(x), y: scale(y) },
        axes: [this.axis(x, 48), this.axis(y, 62)],
        legend: { show: false },
        cursor: {
          drag: { x: true, y: true, uni: 24 },
          points: { size: 7 },
          bind: { dblclick: () => () => this.showAll() },
        },
        hooks: {
          setCursor: [(plot) => this.tell(plot.cursor.idx)],
          setSelect: [(plot) => { if (plot.select.width > 0) this.reset.hidden = false; }],
          draw: [(plot) => this.mark(plot)],
        },
      };
    }

    axis(axis, size) {
      const style = getComputedStyle(this.host);
      const lines = { stroke: style.borderTopColor, width: 1 };
      const ticks = axis.log ? { splits: (_, __, low, high) => logTicks(low, high), filter: (_, all) => all } : {};
      if (axis.names.length) ticks.splits = () => axis.names.map((_, i) => i + 1);
      const name = (v) => axis.names[v - 1] ?? (axis.log ? power(v) : shown(v));
      const more = Math.max(0, ...axis.names.map((text) => text.split("\n").length - 1)); // lines
      return {
        ...ticks, label: axis.title, labelSize: 20, size: size - 14 + 16 * more, stroke: style.color,
        font: `12px ${style.fontFamily}`, labelFont: `12px ${style.fontFamily}`, grid: lines, ticks: { ...lines, size: 4 },
        values: (_, splits) => splits.map((v) => (v === null ? "" : name(v))),
      };
    }

    // Vertical lines at values that matter, with their names.
    mark(plot) {
      const { ctx, bbox } = plot;
      const scale = uPlot.pxRatio;
      for (const mark of this.figure.marks) {
        const at = plot.valToPos(mark.x, "x", true);
        if (at < bbox.left || at > bbox.left + bbox.width) continue;
        const style = getComputedStyle(this.host);
        ctx.save();
        ctx.strokeStyle = ctx.fillStyle = style.color;
        ctx.setLineDash([4 * scale, 3 * scale]);
        ctx.beginPath();
        ctx.moveTo(at, bbox.top);
        ctx.lineTo(at, bbox.top + bbox.height);
        ctx.stroke();
        ctx.font = `${12 * scale}px ${style.fontFamily}`;
        const left = at > bbox.left + bbox.width / 2;
        ctx.textAlign = left ? "right" : "left";
        ctx.fillText(mark.name, at + (left ? -6 : 6) * scale, bbox.top + 12 * scale);
        ctx.restore();
      }
    }

    size() {
      const width = Math.max(this.host.clientWidth, 200);
      return { width, height: Math.round(Math.min(Math.max(width * 0.62, 250), 330)) };
    }

    fit() {
      const wanted = this.size();
      if (this.host.clientWidth && wanted.width !== this.plot.width) this.plot.setSize(wanted);
    }

    showAll() {
      const { x, y } = this.figure;
      this.plot.setScale("x", { min: x.low, max: x.high });
      this.plot.setScale("y", { min: y.low, max: y.high });
      this.reset.hidden = true;
    }

    toggle(entry) {
      const visible = entry.button.ariaPressed !== "true";
      entry.button.ariaPressed = String(visible);
      for (const column of entry.columns) this.plot.setSeries(column, { show: visible });
    }

    tell(index) {
      for (const entry of this.entries) {
        const known = index !== null && index !== undefined;
        entry.value.textContent = known ? entry.values.map((v) => shown(v[index])).join(" … ") : "";
      }
    }

    savePng(name) {
      const source = this.plot.ctx.canvas;
      const copy = element("canvas", { width: source.width, height: source.height });
      const context = copy.getContext("2d");
      context.fillStyle = getComputedStyle(this.host.closest(".card")).backgroundColor;
      context.fillRect(0, 0, copy.width, copy.height);
      context.drawImage(source, 0, 0);
      copy.toBlob((blob) => save(blob, `${name}.png`));
    }
  }

  // Records

  class Records {
    constructor(box, records) {
      this.all = records.map((r) => ({ ...r, risk: Number(String(r.risk).replace("inf", "Infinity")) }));
      for (const r of this.all) r.found = [r.rank, r.row, r.measure, r.note].join("\n").toLowerCase();
      this.box = box;
      this.columns = [...box.querySelectorAll("th")].map((head) => head.dataset.column);
      this.body = box.querySelector("tbody");
      this.status = box.querySelector(".status");
      this.more = box.querySelector(".more");
      this.search = box.querySelector("input");
      this.by = "rank";
      this.rising = true;
      this.limit = ROWS;
      for (const head of box.querySelectorAll("th")) this.makeSortable(head);
      this.search.addEventListener("input", () => { this.limit = ROWS; this.show(); });
      this.more.addEventListener("click", () => { this.limit += ROWS; this.show(); });
      this.show();
    }

    makeSortable(head) {
      const button = element("button", { type: "button" }, head.textContent);
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const column = head.dataset.column;
        this.rising = this.by === column ? !this.rising : !["risk", "attacked"].includes(column);
        this.by = column;
        for (const other of this.box.querySelectorAll("th")) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", this.rising ? "ascending" : "descending");
        this.show();
      });
    }

    sorted() {
      const wanted = this.search.value.trim().toLowerCase();
      const kept = this.all.filter((r) => r.found.includes(wanted));
      const way = this.rising ? 1 : -1;
      const words = new Intl.Collator(undefined, { numeric: true });
      const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
      const order = NUMBERS.has(this.by) ? compare : words.compare;
      return kept.sort((a, b) => way * order(a[this.by], b[this.by]));
    }

    show() {
      const rows = this.sorted();
      const visible = rows.slice(0, this.limit);
      this.body.replaceChildren(...visible.map((r) => this.row(r)));
      this.more.hidden = rows.length <= this.limit;
      const count = (n) => n.toLocaleString("en");
      this.status.textContent = `${count(visible.length)} of ${count(rows.length)} shown`;
    }

    row(record) {
      const cells = this.columns.map((column) => {
        if (!NUMBERS.has(column)) return element("td", {}, element("bdi", {}, record[column]));
        const value = this.write(column, record[column]);
        return element("td", { class: "numeric" }, value);
      });
      return element("tr", {}, ...cells);
    }

    write(column, value) {
      if (column === "risk") return this.risk(value);
      if (column === "attacked" && value !== null) return `${(100 * value).toFixed(0)}%`;
      return String(value ?? "–");
    }

    risk(value) {
      if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
      return Math.abs(value) < 1e5 ? value.toFixed(4) : value.toPrecision(3);
    }
  }

  // The page

  const charts = [...document.querySelectorAll("[data-chart]")].map((host) => new Chart(host));
  for (const box of document.querySelectorAll("[data-finding]")) {
    new Records(box, audit.findings.filter((finding) => finding.kind === box.dataset.finding));
  }
  const redraw = () => charts.forEach((chart) => chart.draw());

  const theme = document.getElementById("theme");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : darkness.matches);
  const name = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    name();
    redraw();
  });
  darkness.addEventListener("change", () => { name(); redraw(); });
  name();

  document.getElementById("download").addEventListener("click", () => {
    save(new Blob([text("audit")], { type: "application/json" }), "audit.json");
  });

  // What a figure shows in words is there for whoever cannot see it; others need not read it twice.
  for (const words of document.querySelectorAll(".in-words")) words.open = false;

  for (const button of document.querySelectorAll(".copy")) {
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch {
        window.getSelection().selectAllChildren(code); // forbidden here: one key is left to press
        button.textContent = "Selected";
      }
    });
  }

  // Paper is light, whatever the screen was; the browser lays out for print before it tells us.
  printing.addEventListener("change", redraw);
  window.addEventListener("beforeprint", redraw);
  window.addEventListener("afterprint", redraw);
})();
