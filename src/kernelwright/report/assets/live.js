"use strict";
(() => {
  let version = null;
  let shownAt = 0;
  let pause = 1000;
  let running = new AbortController();
  document.querySelectorAll("script").forEach((script) => script.remove());

  const key = (part) => `${part.closest("section, li")?.id ?? ""}/${part.querySelector("summary")?.textContent ?? ""}`;
  const isBusy = () => {
    const focused = document.activeElement;
    return !getSelection().isCollapsed || !document.getElementById("tip").hidden || (focused && focused.matches("input, select, pre"));
  };

  const swap = (text) => {
    const next = new DOMParser().parseFromString(text, "text/html");
    if (!next.querySelector("main")) return;
    const open = new Set([...document.querySelectorAll("details")].filter((part) => part.open).map(key));
    const known = new Set([...document.querySelectorAll("details")].map(key));
    const kept = ["filter", "status"].map((id) => [id, document.getElementById(id)?.value]);
    const live = document.getElementById("live");
    const at = [...document.querySelectorAll("main > section")].find((part) => part.getBoundingClientRect().bottom > 0);
    const offset = at ? at.getBoundingClientRect().top : 0;
    running.abort();
    next.getElementById("live").replaceWith(live);
    for (const part of [".masthead", "nav", "main", "footer", "#evaluations"]) {
      document.querySelector(part)?.remove();
      const fresh = next.querySelector(part);
      if (fresh) document.body.append(fresh);
    }
    document.title = next.title;
    document.querySelectorAll("details").forEach((part) => { if (known.has(key(part))) part.open = open.has(key(part)); });
    running = new AbortController();
    startReport(running.signal);
    kept.forEach(([id, value]) => {
      const field = document.getElementById(id);
      if (field && value) { field.value = value; field.dispatchEvent(new Event(id === "filter" ? "input" : "change")); }
    });
    const same = at && document.getElementById(at.id);
    if (same) scrollBy({ top: same.getBoundingClientRect().top - offset, behavior: "instant" });
  };

  const look = async () => {
    try {
      const state = await (await fetch("state")).json();
      document.getElementById("live-state").textContent = state.words;
      const log = document.getElementById("live-log");
      const text = state.log.join("\n");
      if (log.textContent !== text) {
        const isAtEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
        log.textContent = text;
        if (isAtEnd) log.scrollTop = log.scrollHeight;
      }
      const isDue = Date.now() - shownAt >= state.pause_ms;
      if (state.version !== version && isDue && !isBusy()) {
        swap(await (await fetch("report")).text());
        [version, shownAt] = [state.version, Date.now()];
      }
      pause = 1000;
    } catch {
      document.getElementById("live-state").textContent = "the server does not answer: it was ended, or the run was moved";
      pause = Math.min(2 * pause, 30000);
    }
    setTimeout(look, pause);
  };
  look();
})();
