// SPDX-License-Identifier: Apache-2.0
// Asks for /arena.json twice a second and shows it. Every text from the arena becomes a text node, never markup.
"use strict";

const EVERY_MS = 500;
const POINT_COUNT = 240;
const CELL_SIZES = { min: 4, max: 20 };
const PICTURE_HEIGHT = 260;
const STRIPE_SIZE_MIN = 9;

const $ = (id) => document.getElementById(id);
const colourOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

let last = null;
let isByTopic = false;
let place = null;
const history = [];
const topicNumbers = new Map();

// --- words

function scaled(value, units, base) {
  let index = 0;
  while (Math.abs(value) >= base && index < units.length - 1) { value /= base; index += 1; }
  const digits = value >= 100 || Number.isInteger(value) ? 0 : value >= 10 ? 1 : 2;
  return `${value.toFixed(digits)}${units[index] && " "}${units[index]}`;
}
const size = (bytes) => scaled(bytes, ["B", "KiB", "MiB", "GiB", "TiB"], 1024);
const number = (value) => Math.round(value).toLocaleString("en-US");
const short = (value) => scaled(value, ["", "k", "M", "G"], 1000);
const percent = (share) => `${(share * 100).toFixed(1)} %`;
const count = (value, one, many = `${one}s`) => `${number(value)} ${value === 1 ? one : many}`;
function duration(ns) {
  const units = [[86400e9, "d"], [3600e9, "h"], [60e9, "min"], [1e9, "s"], [1e6, "ms"], [1e3, "µs"]];
  for (const [length, name] of units) if (ns >= length) return `${(ns / length).toPrecision(3)} ${name}`;
  return `${ns} ns`;
}

// --- building

function element(tag, text = "", className = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

function drawn(tag, attributes, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
}

function table(columns, rows, nothing) {
  if (!rows.length) return element("p", nothing, "empty");
  const made = element("table");
  const head = made.createTHead().insertRow();
  for (const [name, , className = ""] of columns) head.append(element("th", name, className));
  const body = made.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    for (const [, read, className = ""] of columns) line.append(element("td", read(row), className));
  }
  return made;
}

// --- the picture

// The hues that topics have, [first, last] in degrees: each is 14 degrees or more from those of the states.
const TOPIC_HUES = [[14, 32], [62, 130], [240, 271], [302, 345]];
const TOPIC_HUES_WIDTH = TOPIC_HUES.reduce((sum, [first, last]) => sum + last - first, 0);

function hue(topic) {
  if (!topicNumbers.has(topic)) topicNumbers.set(topic, topicNumbers.size);
  let left = ((topicNumbers.get(topic) * 0.618034 + 0.85) % 1) * TOPIC_HUES_WIDTH;
  const [first] = TOPIC_HUES.find(([from, to]) => left < to - from || ((left -= to - from), false));
  return `hsl(${first + left} 62% 52%)`;
}

function measure(cellCount, width) {
  const wanted = Math.floor(Math.sqrt((width * PICTURE_HEIGHT) / cellCount));
  const cell = Math.max(CELL_SIZES.min, Math.min(CELL_SIZES.max, wanted));
  const columns = Math.max(1, Math.floor(width / cell));
  return { cell, columns, height: Math.ceil(cellCount / columns) * cell };
}

function paint() {
  const canvas = $("picture");
  const { cells } = last;
  const width = canvas.parentElement.clientWidth - 32;
  place = measure(cells.states.length, width);
  place.labels = new Map(cells.filled.map(([cell, label]) => [cell, cells.labels[label]]));
  const ratio = window.devicePixelRatio || 1;
  canvas.style.height = `${place.height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(place.height * ratio);
  const brush = canvas.getContext("2d");
  brush.scale(ratio, ratio);
  const colours = cells.state_names.map(colourOf);
  for (let cell = 0; cell < cells.states.length; cell += 1) paintCell(brush, cell, colours[cells.states[cell]]);
}

function paintCell(brush, cell, colour) {
  const label = place.labels.get(cell);
  const inner = place.cell - (place.cell > 5 ? 2 : 1);
  const left = (cell % place.columns) * place.cell;
  const top = Math.floor(cell / place.columns) * place.cell;
  brush.fillStyle = isByTopic && label ? hue(label[0]) : colour;
  brush.fillRect(left, top, inner, inner);
  if (label && place.cell >= STRIPE_SIZE_MIN) {
    const stripe = Math.ceil(inner / 4);
    brush.fillStyle = isByTopic ? colour : hue(label[0]);
    brush.fillRect(left, top + inner - stripe, inner, stripe);
  }
}

function swatch(colour, text) {
  const item = element("li");
  const mark = element("i");
  mark.style.background = colour;
  item.append(mark, text);
  return item;
}

function legend() {
  const states = Object.entries(last.slots).filter(([, found]) => found);
  const topics = [...new Set(last.cells.labels.map(([topic]) => topic))].sort().slice(0, 24);
  const items = states.map(([state, found]) => swatch(colourOf(state), `${state} ${number(found)}`));
  $("states").replaceChildren(element("li", "state", "empty"), ...items);
  const hues = topics.map((topic) => swatch(hue(topic), topic));
  $("topics").replaceChildren(...(hues.length ? [element("li", "topic", "empty"), ...hues] : []));
}

function point(event) {
  if (!place) return;
  const column = Math.floor(event.offsetX / place.cell);
  const cell = Math.floor(event.offsetY / place.cell) * place.columns + column;
  const { states, state_names: names, span } = last.cells;
  const isCell = column < place.columns && cell < states.length;
  const label = place.labels.get(cell);
  const batch = label ? `, a batch of ${label[0]}-${label[1]}` : "";
  const buffers = span === 1 ? `buffer ${cell}` : `buffers ${cell * span} to ${(cell + 1) * span - 1}`;
  $("pointed").textContent = isCell ? `${buffers}: ${names[states[cell]]}${batch}` : "\u00a0";
}

// --- the curves

const CURVES = {
  records: { names: ["appended", "delivered"], read: (at) => [at.in, at.out], show: short },
  bytes: { names: ["appended"], read: (at) => [at.bytes], show: size, base: 1024 },
  latency: {
    names: ["oldest batch that waits", "request to the sink", "wait of a batch in the arena"],
    read: (at) => [at.oldest, at.request, at.queue],
    show: short,
  },
  share: { names: ["not free"], read: (at) => [at.fill], show: (value) => value.toFixed(0), most: 100 },
};
const STROKES = ["first", "second", "third"];

function remember(now) {
  const seconds = last ? (now.time_ns - last.time_ns) / 1e9 : 0;
  if (seconds <= 0) return;
  const rate = (name) => Math.max(0, now[name] - last[name]) / seconds;
  history.push({
    in: rate("record_count"), out: rate("completed_count"), bytes: rate("record_bytes"), fill: now.fill * 100,
    oldest: now.oldest_age_ms, request: now.latencies.request_latency_ms, queue: now.latencies.queue_time_ms,
  });
  if (history.length > POINT_COUNT) history.shift();
}

function niceMost(value, base) {
  const unit = base ** Math.max(0, Math.floor(Math.log(value || 1) / Math.log(base)));
  const power = 10 ** Math.floor(Math.log10(value / unit || 1));
  return [1, 2, 5, 10].map((step) => step * power * unit).find((most) => most >= value);
}

function curve(id, { names, read, show, most, base = 1000 }) {
  const rows = history.map(read);
  const known = rows.flat().filter(Number.isFinite);
  const top = most ?? niceMost(Math.max(0, ...known), base);
  const picture = drawn("svg", { viewBox: `0 0 ${POINT_COUNT} 100`, preserveAspectRatio: "none" });
  for (const height of [0, 50, 100]) {
    picture.append(drawn("line", { x1: 0, x2: POINT_COUNT, y1: height, y2: height, "vector-effect": "non-scaling-stroke" }));
  }
  const keys = element("div", "", "key");
  names.forEach((name, index) => {
    const value = rows.length ? rows[rows.length - 1][index] : undefined;
    if (!rows.some((row) => Number.isFinite(row[index]))) return;
    picture.append(drawn("polyline", { class: STROKES[index], points: points(rows, index, top) }));
    const key = element("span");
    key.append(element("i", "", STROKES[index]), `${name} ${Number.isFinite(value) ? show(value) : "–"}`);
    keys.append(key);
  });
  const minutes = (POINT_COUNT * EVERY_MS) / 60000;
  const scale = [["most", show(top)], ["past", `${minutes} min ago`], ["now", "now"]];
  const field = element("div", "", "field");
  field.append(picture, ...scale.map(([corner, text]) => element("span", text, corner)));
  $(id).replaceChildren(field, keys);
}

function points(rows, index, top) {
  const start = POINT_COUNT - rows.length;
  return rows
    .map((row, at) => (Number.isFinite(row[index]) ? `${start + at},${(100 - (row[index] / top) * 100).toFixed(2)}` : ""))
    .filter(Boolean)
    .join(" ");
}

// --- the lists

function processState({ state, is_waiting, is_on_fallback }) {
  if (state === "stopped") return state;
  if (is_on_fallback) return "fallback";
  return is_waiting ? "waits for a buffer" : state;
}

const PROCESSES = [
  ["pid", (row) => row.pid, "word"],
  ["name", (row) => row.name, "word"],
  ["role", (row) => row.role, "word"],
  ["state", processState, "word"],
  ["records", (row) => number(row.record_count)],
  ["bytes", (row) => size(row.record_bytes)],
  ["holds", (row) => count(row.held_slot_count, "buffer")],
  ["CPU", (row) => (row.cpu_percent === null ? "–" : `${row.cpu_percent.toFixed(0)} %`)],
  ["memory", (row) => (row.memory_size === null ? "–" : size(row.memory_size))],
  ["attached", (row) => duration(row.attached_age_ns)],
];
const QUEUES = [
  ["partition", (row) => `${row.topic}-${row.partition}`, "word long"],
  ["batches", (row) => number(row.batch_count)],
  ["records", (row) => number(row.record_count)],
  ["bytes", (row) => size(row.size)],
  ["oldest", (row) => duration(row.oldest_age_ns)],
];
const LIMITED_TOPICS = [
  ["topic", (row) => row.topic, "word long"],
  ["stuck", (row) => (isStuck(row) ? `${number(row.stuck_partition_count)} of ${count(row.partition_count, "partition")}` : "–"), "word"],
  ["since", (row) => duration(isStuck(row) ? row.stuck_age_ns : row.waiting_age_ns ?? 0)],
  ["holds", (row) => `${size(row.held_size)} (${percent(row.held_share)})`],
  ["needs free", (row) => (row.free_needed ? count(row.free_needed, "buffer") : "–")],
  ["waiting", (row) => count(row.waiting_count, "thread")],
  ["overflow", (row) => (row.overflow_batch_count ? `≤ ${count(row.overflow_batch_count, "batch", "batches")}` : "–")],
  ["why", (row) => row.why, "word long"],
];
const ERRORS = [
  ["last", (row) => `${duration(row.age_ns)} ago`, "word"],
  ["times", (row) => number(row.count)],
  ["sentence", (row) => row.text || row.status, "word long"],
];

const isStuck = (row) => row.stuck_partition_count > 0;

function shown(all, found) {
  return found > all.length ? `${all.length} of ${number(found)}` : number(found);
}

function lists() {
  const { processes, queues, limited_topics: topics, errors, list_counts: counts } = last;
  $("limited").hidden = !topics.length;
  $("limited_topics").replaceChildren(table(LIMITED_TOPICS, topics, "none"));
  $("topic_count").textContent = shown(topics, counts.limited_topics);
  $("processes").replaceChildren(table(PROCESSES, processes, "no process is attached"));
  $("queues").replaceChildren(table(QUEUES, queues, "nothing waits"));
  $("errors").replaceChildren(table(ERRORS, errors, "none"));
  $("process_count").textContent = shown(processes, counts.processes);
  $("queue_count").textContent = shown(queues, counts.queues);
  $("error_count").textContent = shown(errors, counts.errors);
}

function overflowSentence(overflow) {
  if (overflow.age_ns === null) return "";
  return `; overflow: ${count(overflow.record_count, "record")} (${size(overflow.size)}) on disk, ` +
    `for ${Math.round(overflow.age_ns / 1e9)} s`;
}

function senderSentence({ is_alive, name, pid, sink, epoch, heartbeat_age_ns, is_asleep }) {
  if (!is_alive) return "none: nothing is delivered until one is started (shmaccum sender)";
  const heartbeat = heartbeat_age_ns === null ? "" : `, heartbeat ${duration(heartbeat_age_ns)} ago`;
  return `${name ?? "alive"}${pid === null ? "" : ` (${pid})`}, delivers to ${sink ?? "a sink without a name"}, ` +
    `take-over ${epoch}${heartbeat}${is_asleep ? ", asleep" : ""}`;
}

function transactionSentence({ number: nth, state, why, age_ns }) {
  if (age_ns !== null) return `${number(nth)} is ${state}, begun ${duration(age_ns)} ago${why ? `: ${why}` : ""}`;
  if (nth === 0) return "none so far";
  return `none; the last one was ${why ? `aborted: ${why}` : "committed"}`;
}

// --- all of it

function tell(sentences) {
  $("troubles").replaceChildren(...sentences.map((sentence) => element("li", sentence)));
  $("answer").textContent = sentences.length ? count(sentences.length, "trouble") : "well";
  $("answer").className = `pill ${sentences.length ? "bad" : "good"}`;
}

function show(now) {
  remember(now);
  last = now;
  document.title = `${now.name} (shmaccum)`;
  $("name").textContent = now.name;
  $("memory").textContent = `${size(now.buffer_memory)} in ${count(now.slot_count, "buffer")} of ${size(now.batch_size)}`;
  $("fill").textContent = `${percent(now.fill)} taken, ${count(now.queued_record_count, "record")} ` +
    `(${size(now.queued_size)}) to deliver, ${count(now.waiting_count, "thread")} waiting` +
    overflowSentence(now.overflow);
  $("sender").textContent = senderSentence(now.sender);
  $("transactions").hidden = now.transaction === null;
  if (now.transaction !== null) $("transaction").textContent = transactionSentence(now.transaction);
  tell(now.troubles.map((trouble) => trouble.sentence));
  paint();
  legend();
  for (const [id, options] of Object.entries(CURVES)) curve(id, options);
  lists();
}

async function refresh() {
  try {
    const answer = await fetch("/arena.json", { cache: "no-store" });
    if (!answer.ok) throw new Error(await answer.text());
    show(await answer.json());
  } catch (error) {
    tell([`This page has no news: the process that serves it is gone, or cannot read the arena (${error.message}).`]);
  }
  setTimeout(refresh, EVERY_MS);
}

$("picture").addEventListener("mousemove", point);
$("picture").addEventListener("mouseleave", () => { $("pointed").textContent = "\u00a0"; });
$("colour").addEventListener("click", () => {
  isByTopic = !isByTopic;
  $("colour").textContent = isByTopic ? "colour by state" : "colour by topic";
  if (last) { paint(); legend(); }
});
window.addEventListener("resize", () => { if (last) paint(); });
refresh();
