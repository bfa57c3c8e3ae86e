// The interactive part of the page: one Gantt chart per run on a canvas, with zoom, pan, hover, and curves below it.
(() => {
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const tip = document.getElementById("tip");
const KINDS = data.kinds;
const DONE = 0, FAILED = 1, OPEN = 2;

// --- numbers and text ----------------------------------------------------------------------------------------------

const clamp = (x, low, high) => Math.min(Math.max(x, low), high);

function plain(value, digits = 4) {
  if (!value) return "0";
  const decimals = clamp(digits - 1 - Math.floor(Math.log10(Math.abs(value))), 0, 12);
  const text = value.toLocaleString("en-US", {minimumFractionDigits: decimals, maximumFractionDigits: decimals});
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

function seconds(value) {
  const size = Math.abs(value);
  if (size === 0) return "0 s";
  if (size < 1e-3) return plain(value * 1e6) + " µs";
  if (size < 1) return plain(value * 1e3) + " ms";
  return plain(value, size < 1e4 ? 4 : 7) + " s";
}

// An instant, with as many digits as the zoom can tell apart, and no more than are true if it may be off.
function instant(value, span, [name, unit], off = 0) {
  const decimals = clamp(Math.min(Math.ceil(-Math.log10(span / unit / 1000)), Math.floor(-Math.log10(2 * off / unit))), 0, 9);
  return (value / unit).toLocaleString("en-US", {minimumFractionDigits: decimals, maximumFractionDigits: decimals, signDisplay: "negative"}) + " " + name;
}

function niceStep(rough) {
  const size = 10 ** Math.floor(Math.log10(rough));
  for (const m of [1, 2, 5, 10]) if (size * m >= rough * (1 - 1e-9)) return size * m;
  return size * 10;
}

// A multiple of a step, with the digits that tell it from the next one.
function rounded(value, step) {
  const decimals = clamp(Math.ceil(-Math.log10(step) - 1e-9), 0, 12);
  return value.toLocaleString("en-US", {minimumFractionDigits: decimals, maximumFractionDigits: decimals});
}

// The step between labels that are as `wide` as it makes them, and at least so many pixels apart.
function roomyStep(perPixel, least, wide) {
  const step = niceStep(perPixel * least);
  return niceStep(perPixel * Math.max(least, wide(step)));
}

function element(name, text, className) {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  if (className) node.className = className;
  return node;
}

function style() {
  const css = getComputedStyle(document.documentElement);
  const get = name => css.getPropertyValue(name).trim();
  return {
    card: get("--card"), ink: get("--ink"), soft: get("--soft"), line: get("--line"), lane: get("--lane"),
    accent: get("--accent"), accentSoft: get("--accent-soft"), bound: get("--bound"), fail: get("--fail"),
    setup: get("--setup"), setupGround: get("--setup-ground"),
  };
}

const charts = [];  // of each run, once it was shown
const FONT = getComputedStyle(document.body).fontFamily;

// --- pieces: bars as compressed columns inside the page -------------------------------------------------------------

// What is kept of each bar: its end (b) in steps and its length (l), set-up, wait (q), time run if merged (x); how many jobs ago its
// job (w) came first; task, why (y); then numbers of tables: the group of devices that it is on, and what it has in common with others.
const TIMES = ["l", "u", "q", "x"], COLUMNS = ["b", ...TIMES, "w", "p", "y", "group", "alike"];
// What is read from these tables: device, span, devices as text (v); kind, replaces, number of tasks, merged bars, state (f),
// place (o) among those that share (h).
const GROUP = ["d", "s", "v"], ALIKE = ["k", "r", "n", "m", "f", "o", "h"];
const KEPT = 64;  // pieces of it that are kept ready
const ROUNDED = 2 ** -16;  // by this share lengths may be off
const SLACK = 1e-3;  // lengths are rounded: one near the limit is drawn twice rather than not at all
const kindPlaces = new Map(KINDS.map(([name], i) => [name, i]));
const complete = new Promise(done => document.readyState === "loading" ? document.addEventListener("DOMContentLoaded", done) : done());

async function unpack(id) {
  if (!document.getElementById(id)) await complete;  // the finest level follows this script
  const packed = Uint8Array.from(atob(document.getElementById(id).textContent), letter => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

class Piece {
  constructor(id, [from, to, count, base, tick]) {
    Object.assign(this, {id, from, to, count, base, tick, bars: null, strings: null});
  }

  // The names of its jobs.
  names() {
    return this.reading ??= unpack(`${this.id}-names`).then(bytes => this.jobs = JSON.parse(new TextDecoder().decode(bytes)));
  }

  load() {
    return this.loading ??= Promise.all([this.names(), unpack(this.id)]).then(([, bytes]) => this.read(bytes));
  }

  drop() {
    this.bars = this.strings = this.lanes = this.loading = null;
  }

  read(bytes) {
    const {count, base, tick} = this, bars = {};
    const [strings, groups, alike] = JSON.parse(new TextDecoder().decode(bytes.subarray(4 * count * COLUMNS.length)));
    COLUMNS.forEach((name, place) => {
      const column = new Uint32Array(count), at = 4 * count * place;
      for (let i = 0; i < count; i++) column[i] = bytes[at + i] | bytes[at + count + i] << 8 | bytes[at + 2 * count + i] << 16 | bytes[at + 3 * count + i] << 24;
      bars[name] = TIMES.includes(name) ? new Float32Array(column.buffer) : column;
    });
    for (const [names, table, column] of [[GROUP, groups, bars.group], [ALIKE, alike, bars.alike]]) names.forEach((name, j) => {
      bars[name] = Uint32Array.from(column, entry => table[entry][j]);
    });
    const ends = new Float64Array(count), begins = new Float64Array(count), places = strings.map(text => kindPlaces.get(text));
    for (let i = 0, ticks = 0, known = 0; i < count; i++) {
      ends[i] = base + tick * (ticks += bars.b[i]);
      begins[i] = ends[i] - bars.l[i];
      bars.k[i] = places[bars.k[i]];
      bars.w[i] = bars.w[i] ? known - bars.w[i] : known++;
    }
    this.strings = strings;
    this.bars = Object.assign(bars, {a: begins, b: ends});
  }

  // The number of a job here, if it has one.
  job(name) {
    if (this.asked !== name) [this.asked, this.found] = [name, name === null ? -1 : this.jobs.indexOf(name)];
    return this.found;
  }

  // The bars of a device, those that begin first at the front.
  lane(device) {
    if (!this.lanes) {
      const {a, d, s} = this.bars;
      this.lanes = [];
      for (let i = 0; i < this.count; i++) for (let j = d[i]; j < d[i] + s[i]; j++) (this.lanes[j] ??= []).push(i);
      for (const lane of this.lanes) lane?.sort((i, j) => a[i] - a[j]);
    }
    return this.lanes[device] || [];
  }
}

// --- the chart ----------------------------------------------------------------------------------------------------

class Gantt {
  constructor(root, run, place) {
    this.run = run;
    this.whole = new Piece(`bars-${place}`, run.whole);
    this.finest = run.finest.map((about, i) => new Piece(`bars-${place}-${i}`, about));
    this.layers = [];
    this.canvas = root.querySelector("canvas");
    this.pen = this.canvas.getContext("2d");
    this.find = root.querySelector("input");
    this.status = root.querySelector(".status");
    this.keys = [...root.querySelectorAll("button.key")];
    this.home = [run.from, run.to];
    const other = this.others().next().value;
    this.view = [...(other ? other.view : this.home)];
    this.hover = null;
    this.cursor = null;
    this.job = null;
    this.kind = -1;
    this.questions = 0;
    this.widths = new Map();
    this.queued = run.strip.queue.some(count => count > 0);
    const n = run.devices.length;
    this.pitch = n <= 8 ? 36 : n <= 16 ? 28 : n <= 32 ? 19 : n <= 64 ? 13 : n <= 128 ? 8 : n <= 512 ? 4 : Math.min(2, 1600 / n);
    // A line between servers; between types where a server has one device or a lane is too thin.
    const hosts = new Set(run.devices.map(device => device[2])).size;
    this.apart = hosts < n && this.pitch >= 4 ? 2 : 1;
    this.inset = this.pitch >= 12 ? 2 : this.pitch >= 6 ? 1 : 0;
    this.listen(root);
    new ResizeObserver(() => this.draw()).observe(this.canvas.parentElement);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    this.draw();
    this.read(this.whole);
  }

  // Draw a piece once it is there.
  read(piece) { this.told(piece.load().then(() => this.draw())); }

  // Say so if what is asked for cannot be read, as in a browser that is too old.
  told(asked) { asked.catch(error => this.status.textContent = `The bars cannot be read in this browser: ${error.message}`); }

  // Geometry: a ruler, one lane per device, then two strips, all over the same time.
  layout() {
    const width = this.canvas.parentElement.clientWidth;
    const gutter = this.gutter = width < 520 ? 84 : this.labels(), under = this.run.bound ? 44 : 30;
    this.width = width;
    this.plot = Math.max(width - gutter - 14, 10);
    this.top = 30;
    this.bottom = this.top + this.pitch * this.run.devices.length;
    this.strips = [
      {name: this.run.words.devices + " in use", y: this.bottom + under, height: 62},
      ...(this.queued ? [{name: this.run.words.waiting + " waiting", y: this.bottom + under + 62 + 30, height: 62}] : []),
    ];
    this.height = this.strips.at(-1).y + 62 + 10;
  }

  // Room for the longest label and type of a device, within reason.
  labels() {
    this.pen.font = `13px ${FONT}`;
    const length = ([label, , , type]) => this.pen.measureText(label).width + this.pen.measureText(type).width;
    return clamp(Math.ceil(Math.max(...this.run.devices.slice(0, 200).map(length)) + 26), 104, 300);
  }

  x(t) { return this.gutter + (t - this.view[0]) / (this.view[1] - this.view[0]) * this.plot; }
  t(x) { return this.view[0] + (x - this.gutter) / this.plot * (this.view[1] - this.view[0]); }
  device(y) { return y >= this.top && y < this.bottom ? Math.floor((y - this.top) / this.pitch) : -1; }

  draw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.paint(); });
  }

  paint() {
    if (!this.canvas.parentElement.clientWidth) return;  // hidden: painted when it is shown
    this.layout();
    const ratio = window.devicePixelRatio || 1, {canvas, pen} = this;
    const w = Math.round(this.width * ratio), h = Math.round(this.height * ratio);
    if (canvas.width !== w || canvas.height !== h) {
      canvas.width = w;
      canvas.height = h;
      canvas.style.height = this.height + "px";
    }
    this.colour = style();
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    this.hatch = this.makeHatch(ratio);
    this.choose();
    this.paintLanes();
    this.paintRuler();
    pen.save();
    pen.beginPath();
    pen.rect(this.gutter, 0, this.plot, this.height);
    pen.clip();
    this.paintBars();
    this.paintWaits();
    this.paintStrips();
    this.paintBound();
    this.paintCursor();
    pen.restore();
    this.paintStripLabels();
    canvas.dataset.view = this.view.join(",");
    canvas.dataset.drawn = this.drawn;
    canvas.dataset.near = this.near;
    canvas.dataset.plot = [this.gutter, this.plot];
  }

  // What is drawn: all from afar, or of that what is long, and of the finest level what is short and in view. Where that
  // is still being read, what is drawn from afar stands for it.
  choose() {
    const [from, to] = this.view, margin = to - from, {whole} = this, short = this.run.short;
    const within = (low, high) => this.finest.filter(piece => piece.to >= low && piece.from <= high);
    const inView = piece => piece.count * (Math.min(piece.to, to) - Math.max(piece.from, from)) / (piece.to - piece.from || 1);
    const pieces = within(from, to), count = pieces.reduce((sum, piece) => sum + inView(piece), 0);
    this.layers = [];
    this.near = pieces.length && count <= whole.count ? "reading" : "";  // no more than are drawn from afar
    if (this.near) {
      const around = within(from - margin, to + margin).slice(0, KEPT / 2), missing = pieces.filter(piece => !piece.bars);
      const wanted = new Set([...pieces, ...around]);
      for (const piece of wanted) {
        piece.used = performance.now();
        if (!piece.loading) this.read(piece);
      }
      this.dropOld(wanted);
      if (missing.length) this.layers.push({piece: whole, over: 0, upTo: Infinity, only: missing});
      else this.near = "all";
      this.layers.push({piece: whole, over: short * (1 - SLACK), upTo: Infinity});
      for (const piece of pieces) this.layers.push({piece, over: 0, upTo: short * (1 + SLACK)});
    } else this.layers.push({piece: whole, over: 0, upTo: Infinity});
    if (!short) this.near = "all";  // nothing is merged
    this.layers = this.layers.filter(({piece}) => piece.bars);
  }

  // Keep no more ready than those used last, and what is wanted: else what is shown.
  dropOld(wanted = this.layers.map(({piece}) => piece)) {
    const ready = this.finest.filter(piece => piece.bars).sort((p, q) => q.used - p.used), kept = new Set([...wanted, this.hover?.piece]);
    for (const piece of ready.slice(KEPT)) if (!kept.has(piece)) piece.drop();
  }

  // The pieces that have every bar of a run.
  get all() { return this.finest.length ? this.finest : [this.whole]; }

  makeHatch(ratio) {
    const tile = document.createElement("canvas"), size = Math.max(Math.round(6 * ratio), 4);
    tile.width = tile.height = size;
    const pen = tile.getContext("2d");
    pen.fillStyle = this.colour.setupGround;
    pen.fillRect(0, 0, size, size);
    pen.strokeStyle = this.colour.setup;
    pen.lineWidth = size * 0.26;
    pen.beginPath();
    for (const shift of [-size, 0, size]) {
      pen.moveTo(shift - 1, size + 1);
      pen.lineTo(shift + size + 1, -1);
    }
    pen.stroke();
    const pattern = this.pen.createPattern(tile, "repeat");
    pattern.setTransform(new DOMMatrix().scale(1 / ratio));
    return pattern;
  }

  paintLanes() {
    const {pen, run, pitch, inset, colour} = this;
    const every = Math.max(1, Math.ceil(15 / pitch));
    pen.textBaseline = "middle";
    if (!inset) {
      pen.fillStyle = colour.lane;
      pen.fillRect(this.gutter, this.top, this.plot, this.bottom - this.top);
    }
    run.devices.forEach(([label, , , type], i) => {
      const y = this.top + i * pitch;
      if (inset) {
        pen.fillStyle = colour.lane;
        pen.fillRect(this.gutter, y + inset, this.plot, pitch - 2 * inset);
      }
      if (i && run.devices[i][this.apart] !== run.devices[i - 1][this.apart]) {
        pen.fillStyle = colour.soft;
        const from = pitch < 15 ? this.gutter : 8;  // not through labels that are taller than their lane
        pen.fillRect(from, y - 0.5, this.gutter + this.plot - from, 1);
      }
      if (i % every) return;
      pen.textAlign = "left";
      pen.fillStyle = colour.ink;
      pen.font = `${pitch >= 16 ? 13 : 11}px ${FONT}`;
      pen.fillText(this.fitEnds(label, this.gutter - 8), 2, y + pitch / 2);
      if (this.gutter > 90) {
        pen.textAlign = "right";
        pen.fillStyle = colour.soft;
        pen.font = `${pitch >= 16 ? 12 : 10}px ${FONT}`;
        pen.fillText(this.fit(type, this.gutter - 14 - pen.measureText(label).width - 12), this.gutter - 8, y + pitch / 2);
      }
    });
  }

  // A name of which the middle is left out if need be: its last word is what tells devices apart.
  fitEnds(text, room) {
    const length = part => this.pen.measureText(part).width, last = text.slice(text.lastIndexOf(" ") + 1);
    if (length(text) <= room || last === text || length(last) > room / 2) return this.fit(text, room);
    return this.fit(text, room - length(last)) + last;
  }

  // The text, or as much of its beginning as there is room for.
  fit(text, room) {
    if (this.pen.measureText(text).width <= room) return text;
    let length = text.length;
    while (length > 1 && this.pen.measureText(text.slice(0, length) + "…").width > room) length--;
    return length > 1 ? text.slice(0, length) + "…" : "";
  }

  paintRuler() {
    const {pen, colour} = this, [name, unit] = this.run.unit;
    pen.font = `12px ${FONT}`;
    pen.textBaseline = "alphabetic";
    const wide = step => pen.measureText(`${rounded(this.view[1] / unit, step)} ${name}`).width + 20;
    const step = roomyStep((this.view[1] - this.view[0]) / unit / this.plot, 90, wide);
    let free = -Infinity;  // from here on there is no text
    for (let i = Math.ceil(this.view[0] / unit / step - 1e-9); i * step * unit <= this.view[1]; i++) {
      const x = Math.round(this.x(i * step * unit)) + 0.5;
      const text = `${rounded(i * step || 0, step)} ${name}`, half = pen.measureText(text).width / 2;
      const middle = clamp(x, this.gutter + half - 4, this.width - half - 1);
      pen.fillStyle = colour.line;
      pen.fillRect(x - 0.5, this.top - 5, 1, this.height - this.top - 5);
      pen.fillStyle = colour.soft;
      if (middle - half < free) continue;
      pen.textAlign = "center";
      pen.fillText(text, middle, this.top - 11);
      free = middle + half + 8;
    }
  }

  // Where a bar lies, from top to bottom; those that share devices lie below each other.
  box({bars}, i) {
    const {pitch, inset} = this, height = (bars.s[i] * pitch - 2 * inset) / bars.h[i];
    return [this.top + bars.d[i] * pitch + inset + bars.o[i] * height, height];
  }

  paintBars() {
    const {pen} = this;
    this.drawn = 0;
    this.columns = new Map();  // of a lane, where the last thin bar was drawn
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    for (const layer of this.layers) {
      pen.save();
      if (layer.only) {
        pen.beginPath();
        for (const {from, to} of layer.only) pen.rect(this.x(from), 0, this.x(to) - this.x(from), this.height);
        pen.clip();
      }
      this.paintLayer(layer);
      pen.restore();
    }
    if (!this.hover) return;
    const {piece, i} = this.hover, left = this.x(piece.bars.a[i]), [y, height] = this.box(piece, i);
    pen.strokeStyle = this.colour.ink;
    pen.lineWidth = 1.8;
    pen.strokeRect(left, y, Math.max(this.x(piece.bars.b[i]) - left, 1.5), height);
  }

  paintLayer({piece, over, upTo}) {
    const {pen, pitch, colour, columns, kind: chosen} = this, {bars} = piece, [from, to] = this.view;
    const job = piece.job(this.job), dims = this.job !== null || chosen >= 0;
    for (let i = 0; i < piece.count; i++) {
      if (bars.b[i] < from || bars.a[i] > to || bars.l[i] > upTo || (over && (bars.l[i] < over || bars.m[i] > 1))) continue;
      this.drawn++;
      const left = clamp(this.x(bars.a[i]), -9, this.width + 9), right = clamp(this.x(bars.b[i]), -9, this.width + 9);
      const middle = clamp(this.x(Math.min(bars.a[i] + bars.u[i], bars.b[i])), left, right);
      const [y, height] = this.box(piece, i);
      if (right - left < 0.5 && !dims) {  // in a column of pixels one of many thin bars is enough
        if (columns.get(y) === Math.round(left)) continue;
        columns.set(y, Math.round(left));
      }
      const gap = right - left > 4 ? 0.5 : 0, kind = KINDS[bars.k[i]];
      pen.globalAlpha = dims && ((this.job !== null && bars.w[i] !== job) || (chosen >= 0 && bars.k[i] !== chosen)) ? 0.13 : 1;
      if (middle > left) {
        pen.fillStyle = this.hatch;
        pen.fillRect(left + gap, y, Math.max(middle - left - gap, 0.4), height);
      }
      if (right > middle || !bars.u[i]) {
        pen.fillStyle = kind[1];
        const width = Math.max(right - middle - gap, 0.6);
        if (width > 7 && height > 8) {
          pen.beginPath();
          pen.roundRect(middle, y, width, height, middle > left ? [0, 2.5, 2.5, 0] : 2.5);
          pen.fill();
        } else pen.fillRect(middle, y, width, height);
        if (bars.m[i] > 1 && width > 10) {  // ribs: this is several bars
          pen.fillStyle = colour.card;
          const alpha = pen.globalAlpha;
          pen.globalAlpha = alpha * 0.28;
          for (let rib = Math.max(middle, this.gutter - 5) + 5; rib < Math.min(right, this.width); rib += 5) pen.fillRect(rib, y, 1, height);
          pen.globalAlpha = alpha;
        }
        if (bars.f[i] === OPEN) {
          pen.fillStyle = colour.card;
          for (let stripe = right - 8; stripe < right; stripe += 4) pen.fillRect(stripe, y, 1.5, height);
        }
        if (width > 26 && pitch >= 12 && height >= 12 && pen.globalAlpha === 1) this.paintLabel(piece, i, middle, right, y, height, kind[2]);
      }
      if (bars.f[i] === FAILED) {
        pen.strokeStyle = colour.fail;
        pen.lineWidth = 2;
        pen.strokeRect(left + 1, y + 1, Math.max(right - left - 2, 1), height - 2);
      }
    }
  }

  paintLabel({bars, jobs, strings}, i, left, right, y, height, ink) {
    const {pen, run} = this;
    const from = Math.max(left, this.gutter), room = Math.min(right, this.width - 14) - from - 12;
    if (room < 16) return;
    // Where jobs come back lease by lease, or all tasks are called alike, the job says more than the task.
    const job = /^\d+$/.test(jobs[bars.w[i]]) ? `${run.words.job} ${jobs[bars.w[i]]}` : jobs[bars.w[i]], task = strings[bars.p[i]];
    const [first, second] = run.byJob ? [job, task] : [task, job];
    const text = bars.m[i] > 1 ? `${bars.n[i].toLocaleString("en-US")} ${run.words.tasks}` : first;
    pen.fillStyle = ink;
    pen.font = `12px ${FONT}`;
    if (this.measure(text) > room) return;
    const two = bars.m[i] === 1 && height >= 30 && (this.measure(second) <= room);
    pen.fillText(text, from + 6, y + height / 2 + (two ? -6.5 : 0.5));
    if (two) {
      pen.globalAlpha *= 0.78;
      pen.fillText(second, from + 6, y + height / 2 + 7.5);
    }
  }

  measure(text) {
    if (this.widths.size > 20_000) this.widths.clear();
    let width = this.widths.get(text);
    if (width === undefined) this.widths.set(text, width = this.pen.measureText(text).width);
    return width;
  }

  // From when a bar was ready until it began: of what the mouse points at, and of the job that is followed.
  paintWaits() {
    const {pen, pitch, colour} = this;
    const show = ({bars}, i) => {
      if (!(bars.q[i] > 0) || bars.m[i] > 1) return;
      const x0 = this.x(bars.a[i] - bars.q[i]), x1 = this.x(bars.a[i]), y = this.top + (bars.d[i] + bars.s[i]) * pitch - Math.min(pitch / 2, 7);
      for (const [width, ink] of [[4.5, colour.card], [2, colour.ink]]) {
        pen.strokeStyle = ink;
        pen.lineWidth = width;
        pen.beginPath();
        pen.moveTo(x0, y - 4);
        pen.lineTo(x0, y + 4);
        pen.moveTo(x0, y);
        pen.lineTo(x1, y);
        pen.stroke();
      }
    };
    if (this.job !== null) for (const {piece} of this.layers) {
      const job = piece.job(this.job);
      if (job >= 0) for (let i = 0; i < piece.count; i++) if (piece.bars.w[i] === job) show(piece, i);
    }
    if (this.hover) show(this.hover.piece, this.hover.i);
  }

  paintStrips() {
    const {pen, run: {strip}, colour} = this, [busy, queue] = this.strips;
    this.queueTop = strip.queue.reduce((top, count) => Math.max(top, count), 1);
    const area = (values, base, box, top, fill) => {
      pen.fillStyle = fill;
      pen.beginPath();
      for (let i = 0; i < values.length; i++) {
        const x0 = this.x(strip.from + i * strip.bin), x1 = this.x(Math.min(strip.from + (i + 1) * strip.bin, this.run.end));
        if (x1 < 0 || x0 > this.width) continue;
        const low = base ? base[i] : 0, y = v => box.y + box.height * (1 - Math.min(v / top, 1));
        pen.rect(x0, y(low + values[i]), x1 - x0 + 0.3, y(low) - y(low + values[i]));
      }
      pen.fill();
    };
    for (const box of this.strips) {
      pen.fillStyle = colour.lane;
      pen.fillRect(this.gutter, box.y, this.plot, box.height);
    }
    area(strip.run, null, busy, 1, colour.accent);
    area(strip.setup, strip.run, busy, 1, this.hatch);
    if (queue) area(strip.queue, null, queue, this.queueTop, colour.accentSoft);
  }

  paintStripLabels() {
    const {pen, colour} = this;
    this.strips.forEach((box, i) => {
      pen.textAlign = "left";
      pen.textBaseline = "alphabetic";
      pen.fillStyle = colour.ink;
      pen.font = `600 12px ${FONT}`;
      pen.fillText(box.name[0].toUpperCase() + box.name.slice(1), this.gutter, box.y - 8);
      pen.font = `12px ${FONT}`;
      pen.fillStyle = colour.soft;
      pen.textAlign = "right";
      pen.fillText(i ? plain(this.queueTop, 3) : "100 %", this.gutter - 8, box.y + 10);
      pen.fillText("0", this.gutter - 8, box.y + box.height);
    });
  }

  paintBound() {
    const bound = this.run.bound;
    if (!bound) return;
    const {pen, colour} = this, x = this.x(bound), text = "lower bound";
    pen.strokeStyle = pen.fillStyle = colour.bound;
    pen.lineWidth = 1.6;
    pen.setLineDash([5, 4]);
    pen.beginPath();
    pen.moveTo(x, this.top - 4);
    pen.lineTo(x, this.bottom + 6);
    pen.stroke();
    pen.setLineDash([]);
    pen.font = `600 12px ${FONT}`;
    pen.textBaseline = "alphabetic";
    const room = this.gutter + this.plot - x > pen.measureText(text).width + 8;
    pen.textAlign = room ? "left" : "right";
    pen.fillText(text, x + (room ? 5 : -5), this.bottom + 16);
  }

  paintCursor() {
    if (!this.cursor) return;
    const {pen, colour, cursor} = this;
    if (cursor.select !== undefined) {
      pen.globalAlpha = 0.2;
      pen.fillStyle = colour.accent;
      pen.fillRect(Math.min(cursor.x, cursor.select), this.top, Math.abs(cursor.x - cursor.select), this.height);
      pen.globalAlpha = 1;
    }
    pen.fillStyle = colour.soft;
    pen.fillRect(cursor.x, this.top - 5, 1, this.height);
  }

  // --- moving about -----------------------------------------------------------------------------------------------

  show(from, to) {
    const [low, high] = this.home, least = (high - low) * 1e-6;
    const span = clamp(to - from, least, high - low);
    const start = clamp((from + to) / 2 - span / 2, low, high - span);
    this.view = [start, start + span];
    this.draw();
    for (const other of this.others()) {
      other.view = [...this.view];
      other.draw();
    }
    for (const each of curves) if (each.home === this.home.join()) each.show(this.view);
  }

  // The charts of other runs over the same time: what is chosen in one is shown in all.
  *others() {
    for (const chart of charts) if (chart && chart !== this && chart.home.join() === this.home.join()) yield chart;
  }

  zoom(factor, at = (this.view[0] + this.view[1]) / 2) {
    this.show(at - (at - this.view[0]) * factor, at + (this.view[1] - at) * factor);
  }

  pan(share) {
    const shift = (this.view[1] - this.view[0]) * share;
    this.show(this.view[0] + shift, this.view[1] + shift);
  }

  // Show a job by its name, or none, and tell what became of it: from all of its bars, also of those not in view.
  async follow(job, move = false) {
    const question = ++this.questions, {run} = this;
    this.job = job;
    this.draw();
    if (job === null) { this.status.textContent = ""; return; }
    let count = 0, first = Infinity, last = -Infinity, merged = false;
    for (const piece of this.all) {
      await piece.names();
      if (piece.job(job) < 0) continue;
      piece.used = performance.now();
      await piece.load();
      if (question !== this.questions) return;
      const {bars} = piece, place = piece.job(job);
      for (let i = 0; i < piece.count; i++) {
        merged ||= bars.m[i] > 1;
        if (bars.w[i] !== place) continue;
        count++;
        first = Math.min(first, bars.a[i] - bars.q[i]);
        last = Math.max(last, bars.b[i]);
      }
      if (this.finest.length) this.dropOld();
    }
    if (question !== this.questions) return;
    const told = merged ? "as far as its bars are drawn apart: --from and --to show all" : `${seconds(last - first)} from first ready to last end`;
    this.status.textContent = `${job}: ${count} ${count === 1 ? "bar" : "bars"}, ${told}`;
    if (move) this.show(first - (last - first) * 0.15, last + (last - first) * 0.15);
  }

  async search(text) {
    const question = ++this.questions, {run} = this, wanted = text.trim().toLowerCase(), numbered = `${run.words.job} ${wanted}`;
    if (!wanted) return this.follow(null);
    const lists = await Promise.all(this.all.map(piece => piece.names()));
    if (question !== this.questions) return;
    let found = null;
    search: for (const list of lists) for (let i = 0; i < list.length; i++) {
      const name = list[i].toLowerCase();
      if (name === wanted || name === numbered || name.startsWith(numbered + " ")) { found = list[i]; break search; }
      if (found === null && name.includes(wanted)) found = list[i];
    }
    if (found !== null) return this.follow(found, true);
    await this.follow(null);
    this.status.textContent = `no ${run.words.job} here is called “${text.trim()}”`;
  }

  // The bar at a place, as a piece and a number in it.
  hit(x, y) {
    const device = this.device(y);
    if (device < 0 || x < this.gutter) return null;
    const t = this.t(x), slack = this.t(x + 2) - t;
    let best = null;
    for (const {piece, over, upTo, only} of this.layers) {
      if (only && !only.some(({from, to}) => from <= t && t <= to)) continue;
      const lane = piece.lane(device), {a, b, l, m, h} = piece.bars;
      let low = 0, high = lane.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (a[lane[middle]] <= t + slack) low = middle + 1; else high = middle;
      }
      for (let j = low - 1; j >= 0 && j > low - 9; j--) {
        const i = lane[j], [top, height] = this.box(piece, i);
        if (l[i] > upTo || (over && (l[i] < over || m[i] > 1)) || (h[i] > 1 && (y < top || y >= top + height))) continue;
        if (a[i] <= t && t <= b[i]) return {piece, i};
        if (!best && t - slack <= b[i]) best = {piece, i};
      }
    }
    return best;
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  listen(root) {
    const {canvas} = this;
    let press = null;
    canvas.addEventListener("wheel", event => {
      event.preventDefault();
      const [x] = this.point(event), lines = event.deltaMode === 1 ? 18 : 1;
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan((event.deltaX || event.deltaY) * lines / 900);
      else this.zoom(Math.exp(clamp(event.deltaY * lines, -240, 240) * 0.0022), this.t(clamp(x, this.gutter, this.width)));
    }, {passive: false});
    canvas.addEventListener("pointerdown", event => {
      if (event.button) return;
      const [x, y] = this.point(event);
      press = {x, y, view: [...this.view], select: event.shiftKey || y < this.top, moved: false};
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", event => {
      const [x, y] = this.point(event);
      if (press) {
        press.moved ||= Math.abs(x - press.x) > 3;
        if (press.moved && press.select) this.cursor = {x: clamp(x, this.gutter, this.width), select: press.x};
        else if (press.moved) {
          canvas.classList.add("panning");
          const shift = (press.x - x) / this.plot * (press.view[1] - press.view[0]);
          this.show(press.view[0] + shift, press.view[1] + shift);
        }
        tip.hidden = true;
        return this.draw();
      }
      this.cursor = x >= this.gutter ? {x} : null;
      this.hover = this.hit(x, y);
      this.tell(event, x, y);
      this.draw();
    });
    const release = event => {
      if (!press) return;
      const [x, y] = this.point(event), {moved, select} = press;
      if (moved && select) this.show(...[this.t(press.x), this.t(clamp(x, this.gutter, this.width))].sort((p, q) => p - q));
      if (!moved) {
        const hit = this.hit(x, y), name = hit && hit.piece.jobs[hit.piece.bars.w[hit.i]];
        this.find.value = "";
        this.told(this.follow(name === this.job ? null : name));
      }
      press = null;
      this.cursor = null;
      canvas.classList.remove("panning");
      this.draw();
    };
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", () => { press = null; });
    canvas.addEventListener("pointerleave", () => {
      this.hover = null;
      this.cursor = null;
      tip.hidden = true;
      this.draw();
    });
    canvas.addEventListener("dblclick", () => this.show(...this.home));
    const actions = {
      "+": () => this.zoom(0.6), "=": () => this.zoom(0.6), "-": () => this.zoom(1 / 0.6), "0": () => this.show(...this.home),
      ArrowLeft: () => this.pan(-0.2), ArrowRight: () => this.pan(0.2), Escape: () => this.follow(null),
    };
    canvas.addEventListener("keydown", event => {
      if (event.ctrlKey || event.metaKey || !actions[event.key]) return;
      event.preventDefault();
      actions[event.key]();
    });
    for (const button of root.querySelectorAll("[data-do]")) button.addEventListener("click", () => actions[button.dataset.do]());
    this.find.addEventListener("input", () => this.told(this.search(this.find.value)));
    for (const key of this.keys) key.addEventListener("click", () => {
      const kind = Number(key.dataset.kind);
      this.kind = this.kind === kind ? -1 : kind;
      for (const other of this.keys) other.setAttribute("aria-pressed", String(Number(other.dataset.kind) === this.kind));
      this.draw();
    });
  }

  // --- what the mouse points at ---------------------------------------------------------------------------------------

  tell(event, x, y) {
    const rows = this.hover ? this.tellBar(this.hover) : this.tellTime(x, y);
    if (!rows) { tip.hidden = true; return; }
    tip.replaceChildren();
    tip.append(element("div", rows.title, "title"));
    const list = element("dl");
    for (const [name, value, colour] of rows.lines) {
      const cell = element("dd");
      if (colour) {
        const swatch = element("i", "", "swatch");
        swatch.style.setProperty("--c", colour);
        cell.append(swatch, " ");
      }
      cell.append(value);
      list.append(element("dt", name), cell);
    }
    tip.append(list);
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = event.clientX + 16 + box.width > innerWidth - 8 ? event.clientX - box.width - 16 : event.clientX + 16;
    const top = event.clientY + 18 + box.height > innerHeight - 8 ? event.clientY - box.height - 14 : event.clientY + 18;
    tip.style.left = Math.max(left, 8) + "px";
    tip.style.top = Math.max(top, 8) + "px";
  }

  tellBar({piece: {bars, jobs, strings, tick}, i}) {
    const {run} = this, {words} = run, span = this.view[1] - this.view[0], kind = KINDS[bars.k[i]];
    const lines = [];
    const merged = bars.m[i] > 1, length = bars.b[i] - bars.a[i];
    const at = (value, reach) => instant(value, span, run.unit, tick / 2 + ROUNDED * reach);
    const title = merged ? `${bars.n[i].toLocaleString("en-US")} ${words.tasks}, drawn as one` : `${jobs[bars.w[i]]} / ${strings[bars.p[i]]}`;
    lines.push([merged ? `longest ${words.task}` : words.kind, merged ? `${kind[0]} (${jobs[bars.w[i]]} / ${strings[bars.p[i]]})` : kind[0], kind[1]]);
    lines.push(["on", strings[bars.v[i]]]);
    lines.push(["time", `${at(bars.a[i], length)} to ${at(bars.b[i], 0)}`]);
    lines.push(["run", merged ? `${seconds(bars.x[i])} of ${seconds(length)}` : seconds(Math.max(length - bars.u[i], 0))]);
    if (bars.u[i] > 0) {
      const from = strings[bars.r[i]] !== null ? `, replaced ${strings[bars.r[i]]}` : merged || run.rounds ? "" : ", nothing was there before";
      lines.push([words.setup, seconds(bars.u[i]) + (merged ? " in all" : from)]);
    } else if (words.setup) lines.push([words.setup, merged ? "none" : `none, ${run.rounds ? "it" : kind[0]} was there`]);
    if (!merged) lines.push(["waited", bars.q[i] > 0 ? `${seconds(bars.q[i])}, ready at ${at(bars.a[i] - bars.q[i], length + bars.q[i])}` : "not at all"]);
    if (!merged && bars.n[i] > 1) lines.push(["batch", `${bars.n[i]} ${words.tasks} as one`]);
    if (bars.f[i] === FAILED) lines.push(["ended", merged ? "at least one failed" : "failed"]);
    if (bars.f[i] === OPEN) lines.push(["ended", "not yet, when the journal broke off"]);
    if (strings[bars.y[i]] && !merged) lines.push(["reason", strings[bars.y[i]]]);
    return {title, lines};
  }

  tellTime(x, y) {
    const {strip, words, end} = this.run, t = this.t(x);
    const bin = Math.floor((t - strip.from) / strip.bin);
    if (x < this.gutter || y < this.top || t > end || !(bin >= 0 && bin < strip.run.length)) return null;
    const share = value => (value * 100).toFixed(1) + " %";
    const lines = [
      [`${words.devices} running`, share(strip.run[bin])],
      ...(words.setup ? [[`in a ${words.setup}`, share(strip.setup[bin])]] : []),
      ...(this.queued ? [[`${words.waiting} waiting`, plain(strip.queue[bin], 3)]] : []),
    ];
    const device = this.device(y);
    return {title: device >= 0 ? `${this.run.devices[device][0]} idle at ${instant(t, this.view[1] - this.view[0], this.run.unit)}` : `about ${instant(t, strip.bin * 1000, this.run.unit)}`, lines};
  }
}

// --- curves over time, which show what is chosen in a schedule ---------------------------------------------------------

class Curves {
  constructor(svg, run) {
    [this.from, this.to, this.left, this.right, this.unit] = svg.dataset.time.split(" ").map(Number);
    this.home = [run.from, run.to].join();
    this.marks = svg.querySelector(".marks");
    this.all = this.marks.innerHTML;
    this.lines = [...svg.querySelectorAll("polyline")].map(line => [line, line.getAttribute("points")]);
    this.fixed = svg.querySelectorAll("svg svg :is(circle, path, polygon)");  // not the legend's
  }

  show([from, to]) {
    const whole = [from, to].join() === this.home, {left, right, unit} = this;
    const place = t => left + (t - from) / (to - from) * (right - left), second = x => this.from + (x - left) / (right - left) * (this.to - this.from);
    for (const [line, points] of this.lines) line.setAttribute("points", whole ? points : points.replace(/([\d.-]+),/g, (_, x) => place(second(Number(x))).toFixed(1) + ","));
    for (const mark of this.fixed) mark.style.display = whole ? "" : "none";
    this.marks.innerHTML = this.all;
    if (whole) return;
    const step = roomyStep((to - from) / unit / (right - left), 70, step => 7 * rounded(to / unit, step).length + 8);
    const pattern = this.marks.querySelector("text"), made = [];
    for (let i = Math.ceil(from / unit / step - 1e-9); i * step * unit <= to; i++) {
      const mark = pattern.cloneNode();
      mark.setAttribute("x", place(i * step * unit).toFixed(1));
      mark.textContent = rounded(i * step || 0, step);
      made.push(mark);
    }
    this.marks.replaceChildren(...made);
  }
}

// --- tabs -----------------------------------------------------------------------------------------------------------

const runs = [...document.querySelectorAll(".run")];
const curves = runs.flatMap((run, i) => [...run.querySelectorAll("svg[data-time]")].map(svg => new Curves(svg, data.runs[i])));
const tabs = [...document.querySelectorAll("[role=tab]")];

function select(which) {
  tabs.forEach((tab, i) => {
    tab.setAttribute("aria-selected", String(i === which));
    tab.tabIndex = i === which ? 0 : -1;
  });
  runs.forEach((run, i) => {
    run.hidden = tabs.length > 0 && i !== which;
    const root = run.querySelector(".schedule");
    if (!run.hidden && root && !charts[i]) charts[i] = new Gantt(root, data.runs[i], i);
  });
}

tabs.forEach((tab, i) => {
  tab.addEventListener("click", () => select(i));
  tab.addEventListener("keydown", event => {
    const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (!step) return;
    const next = (i + step + tabs.length) % tabs.length;
    select(next);
    tabs[next].focus();
  });
});
// A picture or a word of the overview leads to its run.
for (const link of document.querySelectorAll('a[href^="#run-"]')) link.addEventListener("click", () => select(Number(link.getAttribute("href").slice(5))));
document.documentElement.classList.add("js");
select(Math.max(tabs.findIndex(tab => tab.getAttribute("aria-selected") === "true"), 0));
})();
