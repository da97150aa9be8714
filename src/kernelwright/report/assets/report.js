"use strict";
const startReport = (signal) => {
  const record = document.getElementById("evaluations");
  const data = record ? JSON.parse(record.textContent) : { rows: [], parameters: [], workloads: [], charted: null };
  const table = document.querySelector("table.all");
  const byIndex = new Map(data.rows.filter((row) => row.node === data.charted).map((row) => [row.index, row]));
  const short = (value) => (value === null || value === undefined ? "" : value >= 100 ? value.toFixed(0) : value.toPrecision(3));

  const describe = (row) => {
    const settings = data.parameters.map((name, k) => (row.values[k] === "" ? "" : `${name} = ${row.values[k]}`)).filter(Boolean).join("\n");
    const head = row.speedup === null ? row.failure : `${short(row.speedup)}× the baseline's speed${row.status === "passed" ? "" : `, ${row.status}`}`;
    return `#${row.index}  ${head}\n${settings}`;
  };

  if (table) {
    const body = table.tBodies[0];
    const search = document.getElementById("filter");
    const status = document.getElementById("status");
    const more = document.getElementById("more");
    const count = document.getElementById("count");
    const page = 25;
    let shown = page;
    let order = { key: "speedup", descending: true };
    const haystack = new Map(data.rows.map((row) => [row, `${row.node === null ? "" : `node=${row.node} `}#${row.index} ${row.status} ${row.failure} ${row.id} ${data.parameters.map((name, k) => `${name}=${row.values[k]}`).join(" ")}`.toLowerCase()]));
    const valueOf = (row, key) => (key.startsWith("p") && key !== "p" && !Number.isNaN(+key.slice(1)) ? row.raw[+key.slice(1)] : row[key]);

    const compare = (a, b) => {
      const x = valueOf(a, order.key);
      const y = valueOf(b, order.key);
      if (x === y) return a.node - b.node || a.index - b.index;
      if (x === null || x === undefined || x === "") return 1;
      if (y === null || y === undefined || y === "") return -1;
      const sign = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
      return order.descending ? -sign : sign;
    };

    const cell = (text, name) => {
      const made = document.createElement("td");
      made.textContent = text;
      if (name) made.className = name;
      return made;
    };

    const chosen = () => {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      return data.rows.filter((row) => (!status.value || row.status === status.value) && words.every((word) => haystack.get(row).includes(word))).sort(compare);
    };

    // Text that a spreadsheet would take for a formula gets an apostrophe before it: names and values are not ours.
    const quoted = (value) => {
      if (value === null || value === undefined) return "";
      if (typeof value !== "string") return String(value);
      const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
      return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    };
    const csv = (rows) => {
      const tree = data.rows.some((row) => row.node !== null);
      const head = [...(tree ? ["node"] : []), "index", "id", "status", "failure", "speedup", ...data.workloads.map((name) => `${name} (ms)`), ...data.parameters, "cost (s)", "source"];
      const lines = rows.map((row) => [...(tree ? [row.node] : []), row.index, row.id, row.status, row.failure, row.speedup, ...row.times, ...row.raw, row.cost, row.source]);
      return [head, ...lines].map((line) => line.map(quoted).join(",")).join("\r\n") + "\r\n";
    };
    const save = document.getElementById("save");
    save.addEventListener("click", () => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([csv(chosen())], { type: "text/csv" }));
      link.download = `${data.name}.csv`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60000);
    });

    const draw = () => {
      const kept = chosen();
      body.replaceChildren(...kept.slice(0, shown).map((row) => {
        const line = document.createElement("tr");
        if (row.won) line.className = "won";
        if (row.node !== null) line.append(cell(row.node, "num"));
        line.append(cell(row.index, "num"), row.speedup === null ? cell(row.failure, "fail") : cell(row.status), cell(row.speedup === null ? "" : `${short(row.speedup)}×`, "num"));
        row.times.forEach((time) => line.append(cell(short(time), "num")));
        row.values.forEach((value) => line.append(cell(value, "config")));
        line.append(cell(short(row.cost), "num"), cell(row.source));
        return line;
      }));
      count.value = `${Math.min(shown, kept.length)} of ${kept.length} shown`;
      more.hidden = kept.length <= shown;
      table.tHead.querySelectorAll("th").forEach((head) => {
        if (head.dataset.key === order.key) head.setAttribute("aria-sort", order.descending ? "descending" : "ascending");
        else head.removeAttribute("aria-sort");
      });
    };

    table.tHead.querySelectorAll("th[data-key]").forEach((head) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const isSame = order.key === head.dataset.key;
        order = { key: head.dataset.key, descending: isSame ? !order.descending : head.dataset.key === "speedup" };
        draw();
      });
    });
    search.addEventListener("input", () => { shown = page; draw(); });
    status.addEventListener("change", () => { shown = page; draw(); });
    more.addEventListener("click", () => { shown += 100; draw(); });
    document.getElementById("tools").hidden = false;
    draw();
  }

  const tip = document.getElementById("tip");
  const places = new WeakMap();
  const pointsOf = (svg) => {
    if (!places.has(svg)) {
      places.set(svg, [...svg.querySelectorAll("path.dots[data-i]")].flatMap((path) => {
        const indices = path.dataset.i.split(",");
        return path.getAttribute("d").split("M").slice(1).map((step, k) => {
          const [x, y] = step.split("h")[0].split(" ").map(Number);
          return { x, y, index: +indices[k] };
        });
      }));
    }
    return places.get(svg);
  };
  const hide = () => { tip.hidden = true; };
  const point = (event) => {
    const svg = event.target.closest ? event.target.closest("svg.chart") : null;
    if (!svg || !svg.getScreenCTM()) return hide();
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    let best = null;
    let nearest = 14 ** 2;
    for (const candidate of pointsOf(svg)) {
      const distance = (candidate.x - at.x) ** 2 + (candidate.y - at.y) ** 2;
      if (distance < nearest) { nearest = distance; best = candidate; }
    }
    if (!best || !byIndex.has(best.index)) return hide();
    show(svg, best);
  };
  const show = (svg, candidate) => {
    tip.textContent = describe(byIndex.get(candidate.index));
    tip.hidden = false;
    const at = new DOMPoint(candidate.x, candidate.y).matrixTransform(svg.getScreenCTM());
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(6, Math.min(at.x + 14, innerWidth - box.width - 6))}px`;
    tip.style.top = `${at.y + 18 + box.height > innerHeight ? at.y - box.height - 12 : at.y + 18}px`;
  };
  document.querySelectorAll("svg.chart").forEach((svg) => {
    const points = pointsOf(svg).filter((each) => byIndex.has(each.index)).sort((a, b) => a.x - b.x || a.y - b.y);
    if (!points.length) return;
    let place = -1;
    svg.tabIndex = 0;
    svg.setAttribute("aria-describedby", "keys");
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
      if (event.key === "Escape") return hide();
      if (!step) return;
      event.preventDefault();
      place = Math.max(0, Math.min(points.length - 1, place + step));
      show(svg, points[place]);
    });
    svg.addEventListener("blur", hide);
  });
  document.addEventListener("pointermove", point, { passive: true, signal });
  document.addEventListener("pointerdown", point, { passive: true, signal });
  document.addEventListener("scroll", hide, { passive: true, signal });

  const wide = [...document.querySelectorAll(".scroll")].map((part) => {
    const sign = document.createElement("p");
    sign.className = "sideways";
    sign.textContent = "wider than this page: scroll it sideways →";
    sign.hidden = true;
    part.before(sign);
    return { part, sign };
  });
  const look = () => wide.forEach(({ part, sign }) => {
    const isCut = part.scrollWidth > part.clientWidth + 1 && part.clientHeight > 0;
    part.classList.toggle("cut", isCut);
    part.classList.toggle("end", part.scrollLeft + part.clientWidth >= part.scrollWidth - 1);
    if (isCut) part.tabIndex = 0; else part.removeAttribute("tabindex");
    sign.hidden = !isCut;
  });
  wide.forEach(({ part }) => part.addEventListener("scroll", look, { passive: true }));
  window.addEventListener("resize", look, { signal });
  document.addEventListener("toggle", look, { capture: true, signal });
  look();

  const nodes = [...document.querySelectorAll("li.node")];
  const detailsOf = (node) => node.querySelector(":scope > details");
  const choose = () => {
    const chosen = location.hash.startsWith("#node-") ? document.getElementById(location.hash.slice(1)) : null;
    nodes.forEach((node) => node.classList.toggle("chosen", node === chosen));
    if (chosen && detailsOf(chosen)) { detailsOf(chosen).open = true; chosen.scrollIntoView({ block: "start" }); }
  };
  const isShown = { all: () => true, none: () => false, path: (node) => node.classList.contains("onpath"), failed: (node) => node.classList.contains("failed") || node.classList.contains("refused") };
  const treeTools = document.getElementById("tree-tools");
  if (treeTools) {
    treeTools.hidden = false;
    treeTools.querySelectorAll("button").forEach((button) => button.addEventListener("click", () => {
      nodes.forEach((node) => { detailsOf(node).open = isShown[button.dataset.show](node); });
    }));
    window.addEventListener("hashchange", choose, { signal });
    document.querySelectorAll('a[href^="#node-"]').forEach((link) => link.addEventListener("click", () => setTimeout(choose, 0)));
    choose();
  }

  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  if ("IntersectionObserver" in window) {
    const watcher = new IntersectionObserver((entries) => entries.forEach((entry) => {
      const link = links.get(entry.target.id);
      if (link && entry.isIntersecting) { links.forEach((other) => other.classList.remove("here")); link.classList.add("here"); link.parentElement.parentElement.scrollLeft = link.offsetLeft - link.parentElement.parentElement.clientWidth / 2; }
    }), { rootMargin: "-30% 0px -65% 0px" });
    document.querySelectorAll("main > section").forEach((section) => watcher.observe(section));
    signal.addEventListener("abort", () => watcher.disconnect());
  }
};
startReport(new AbortController().signal);
