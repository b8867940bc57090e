"use strict";
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const canvas = document.getElementById("timeline"), tip = document.getElementById("tip");
  const pen = canvas.getContext("2d");
  const PALETTE = ["#0173b2", "#de8f05", "#029e73", "#d55e00", "#cc78bc", "#ca9161", "#fbafe4",
    "#7a7a7a", "#a89a00", "#56b4e9"];
  const OF_ROW = { ran: "#0173b2", served: "#0173b2", loaded: "#029e73", moved: "#cc78bc",
    waited: "#d7a9a1", held: "#c9ced2", noted: "#8a939b" };
  const HEIGHT = { ran: 16, served: 16, loaded: 5, moved: 5, waited: 5, held: 3, noted: 4 };
  const ORDER = ["ran", "served", "loaded", "moved", "waited", "held", "noted"];
  const TOP = 74, GAP = 7, FOOT = 24;
  let from = 0, until = data.end_s, left = 100, width = 0, lanes = [];

  // A batch has the colour of its model where there are several.
  const model = data.labels.map(label => label.startsWith("run ") ? label.split(", ")[1] || "" : "");
  const models = [...new Set(model.filter(Boolean))].sort();
  const colourOf = (row, label) => row === "ran" && models.length > 1
    ? PALETTE[models.indexOf(model[label]) % PALETTE.length] : OF_ROW[row];
  const most = Math.max(1, ...data.labels.map(l => +(/^decoding (\d+)/.exec(l) || [0, 0])[1]));

  function lay() {
    let y = TOP;
    lanes = data.lanes.map((name, i) => {
      const rows = ORDER.filter(row => data.rows[i][row]).map(row => {
        const at = { row, y, h: HEIGHT[row], spans: data.rows[i][row] };
        y += HEIGHT[row] + 1;
        return at;
      });
      const lane = { name, y: rows.length ? rows[0].y : y, rows };
      y = Math.max(y, lane.y + 13) + GAP;
      lane.end = y - GAP;
      return lane;
    });
    return y + FOOT;
  }

  function size() {
    width = canvas.parentElement.clientWidth;
    left = Math.min(120, Math.max(64, width * 0.13));
    const height = lay(), scale = window.devicePixelRatio || 1;
    canvas.style.height = height + "px";
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    draw();
  }

  const x = t => left + (t - from) / (until - from) * (width - left - 8);
  const time = px => from + (px - left) / (width - left - 8) * (until - from);
  const told = t => Math.abs(t) >= 1 || t === 0 ? +t.toFixed(3) + " s"
    : Math.abs(t) >= 1e-3 ? +(t * 1e3).toFixed(2) + " ms" : +(t * 1e6).toFixed(1) + " µs";

  function draw() {
    const height = canvas.height / (window.devicePixelRatio || 1);
    pen.clearRect(0, 0, width, height);
    pen.font = "11px system-ui, 'DejaVu Sans', sans-serif";
    grid(height);
    load();
    for (const lane of lanes) {
      pen.fillStyle = "#1c2126";
      pen.fillText(short(lane.name), 6, lane.y + 12);
      pen.save();
      pen.beginPath(); pen.rect(left, 0, width - left, height); pen.clip();
      for (const row of lane.rows) for (const [start, length, label] of row.spans) {
        if (start + length < from || start > until) continue;
        const decode = row.row === "ran" && data.labels[label].startsWith("run decode");
        pen.fillStyle = colourOf(row.row, label);
        const count = /^decoding (\d+)/.exec(data.labels[label]);
        pen.globalAlpha = count ? 0.2 + 0.8 * count[1] / most : 1;
        const y = decode ? row.y + 5 : row.y, h = decode ? row.h - 5 : row.h;
        pen.fillRect(x(start), y, Math.max(0.7, x(start + length) - x(start)), h);
        pen.globalAlpha = 1;
      }
      pen.restore();
    }
    pen.fillStyle = "#b3261e";
    for (const [at, lane] of data.marks) {
      if (at < from || at > until) continue;
      pen.beginPath(); pen.moveTo(x(at), lanes[lane].y + 2); pen.lineTo(x(at) - 3, lanes[lane].y - 4);
      pen.lineTo(x(at) + 3, lanes[lane].y - 4); pen.fill();
    }
    document.getElementById("window").textContent = told(from) + " to " + told(until);
  }

  const short = name => {
    while (name.length > 4 && pen.measureText(name).width > left - 10) name = name.slice(0, -2) + "…";
    return name;
  };

  function grid(height) {
    const rough = (until - from) / Math.max(3, (width - left) / 110);
    const decade = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map(n => n * decade).find(n => n >= rough);
    pen.strokeStyle = "#eceff1"; pen.fillStyle = "#667079"; pen.textAlign = "center";
    for (let t = Math.ceil(from / step) * step; t <= until; t += step) {
      pen.beginPath(); pen.moveTo(x(t), 6); pen.lineTo(x(t), height - FOOT + 4); pen.stroke();
      pen.fillText(told(+t.toPrecision(12)), Math.min(x(t), width - 22), height - 8);
    }
    pen.textAlign = "left";
  }

  function load() {
    const { time_s: ends, running, queued } = data.load, step = ends.length > 1 ? ends[1] - ends[0] : 1;
    const top = Math.max(1, ...ends.map((_, i) => running[i] + Math.max(0, queued[i])));
    const y = value => TOP - 14 - value / top * (TOP - 26);
    pen.save(); pen.beginPath(); pen.rect(left, 0, width - left, TOP); pen.clip();
    const area = (low, high, colour) => {
      pen.fillStyle = colour;
      ends.forEach((end, i) => {
        const start = end - step;
        if (end < from || start > until) return;
        pen.fillRect(x(start), y(high(i)), Math.max(0.7, x(end) - x(start) + 0.4), y(low(i)) - y(high(i)));
      });
    };
    area(() => 0, i => running[i], "#8fc1df");
    area(i => running[i], i => running[i] + Math.max(0, queued[i]), "#e9b872");
    pen.restore();
    pen.fillStyle = "#1c2126"; pen.fillText("requests", 6, 24);
    pen.fillStyle = "#667079"; pen.fillText("at most " + top, 6, 38);
  }

  function legend() {
    const rows = ORDER.filter(row => data.rows.some(of => of[row]));
    const words = { ran: "batches (prefills are taller)", served: "requests decoding, darker is more",
      loaded: "weights loading", moved: "weights or KV moving", waited: "waiting", held: "held for a role",
      noted: "noted by the system" };
    const items = [["#8fc1df", "requests running"], ["#e9b872", "requests queued"]];
    if (models.length > 1) {
      models.slice(0, 12).forEach((name, i) => items.push([PALETTE[i % PALETTE.length], name]));
      if (models.length > 12) items.push(["#fff", (models.length - 12) + " more models, colours repeat"]);
    }
    for (const row of rows) if (row !== "ran" || models.length < 2) items.push([OF_ROW[row], words[row]]);
    if (data.marks.length) items.push(["#b3261e", "marks: " +
      [...new Set(data.marks.map(mark => data.labels[mark[2]].split(/[ ,]/)[0]))].slice(0, 5).join(", ")]);
    const box = document.getElementById("legend");
    for (const [colour, text] of items) {
      const item = document.createElement("span");
      item.style.setProperty("--c", colour); item.textContent = text; box.append(item);
    }
  }

  function zoom(factor, around) {
    const span = Math.min(data.end_s, Math.max(data.end_s / 1e6, (until - from) * factor));
    from = Math.max(0, around - (around - from) * span / (until - from));
    until = Math.min(data.end_s, from + span);
    from = Math.max(0, until - span);
    draw();
  }

  function move(seconds) {
    const span = until - from;
    from = Math.min(data.end_s - span, Math.max(0, from + seconds));
    until = from + span;
    draw();
  }

  for (const button of document.querySelectorAll("[data-zoom]")) button.onclick = () => {
    if (button.dataset.zoom === "all") { from = 0; until = data.end_s; draw(); }
    else zoom(+button.dataset.zoom, (from + until) / 2);
  };
  const at = event => event.clientX - canvas.getBoundingClientRect().left;
  canvas.addEventListener("wheel", event => {
    if (!event.ctrlKey && !event.shiftKey && !event.metaKey) return; // else the page scrolls
    event.preventDefault();
    zoom(Math.exp((event.deltaY || event.deltaX) / 300), time(Math.max(left, at(event))));
  }, { passive: false });

  const held = new Map();
  canvas.addEventListener("pointerdown", event => {
    held.set(event.pointerId, at(event)); canvas.setPointerCapture(event.pointerId);
  });
  for (const kind of ["pointerup", "pointercancel"])
    canvas.addEventListener(kind, event => held.delete(event.pointerId));
  canvas.addEventListener("pointermove", event => {
    const here = at(event);
    if (held.has(event.pointerId)) {
      const before = held.get(event.pointerId);
      if (held.size === 2) {
        const other = [...held].find(pair => pair[0] !== event.pointerId)[1];
        const was = Math.abs(before - other), is = Math.abs(here - other);
        if (was > 5 && is > 5) zoom(was / is, time((here + other) / 2));
      } else move((before - here) / (width - left - 8) * (until - from));
      held.set(event.pointerId, here);
    }
    hover(event, here);
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });

  function hover(event, here) {
    const y = event.clientY - canvas.getBoundingClientRect().top, t = time(here);
    const near = (until - from) / (width - left) * 2;
    tip.hidden = true;
    for (const lane of lanes) {
      if (y < lane.y - 5 || y > lane.end) continue;
      const mark = data.marks.find(m => lanes[m[1]] === lane && Math.abs(m[0] - t) <= 2 * near);
      const row = lane.rows.find(r => y >= r.y - 1 && y <= r.y + r.h + 1);
      const span = row && row.spans.find(s => t >= s[0] - near && t <= s[0] + s[1] + near);
      const text = mark && y < lane.y + 4 ? data.labels[mark[2]] + " at " + told(mark[0])
        : span ? data.labels[span[2]] + ": " + told(span[0]) + ", for " + told(span[1]) : "";
      if (!text) return;
      tip.textContent = lane.name + " · " + text;
      tip.hidden = false;
      tip.style.left = Math.min(event.clientX + 12, window.innerWidth - tip.offsetWidth - 6) + "px";
      tip.style.top = event.clientY + 14 + "px";
    }
  }

  legend();
  size();
  window.addEventListener("resize", size);
})();
