// Keeps open pages up to date. Pages are complete without scripts.
"use strict";

const asMade = new WeakMap();
for (const part of document.querySelectorAll("[data-live]")) asMade.set(part, part.innerHTML);

let isRefreshing = false;
let isStale = false;
let heardSince = {}; // when jobs were last heard, as events told since the page was last fetched: what was fetched may be older

async function refresh() {
  isStale = true;
  if (isRefreshing) return;
  isRefreshing = true;
  try {
    while (isStale) {
      isStale = false;
      await replaceParts();
    }
  } catch {
    // The event stream reports the outage and its end.
  } finally {
    isRefreshing = false;
  }
}

async function replaceParts() {
  heardSince = {};
  const response = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!response.ok) {
    // The job was removed, or the token no longer grants access: reload to show what the service says.
    if (response.status < 500) location.reload();
    return;
  }
  const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
  const [next, shown] = [fresh, document].map((page) => page.querySelector("main").dataset);
  if (next.page !== shown.page) {
    const isMoved = next.attempt && shown.attempt && next.attempt !== shown.attempt;
    if (isMoved) sessionStorage.setItem("moved", JSON.stringify([shown.attempt, next.attempt]));
    location.reload();
    return;
  }
  const focused = document.activeElement?.getAttribute("href");
  for (const part of document.querySelectorAll("[data-live]")) {
    const other = fresh.getElementById(part.id);
    if (!other || other.innerHTML === asMade.get(part)) continue;
    asMade.set(part, other.innerHTML);
    part.replaceChildren(...other.childNodes);
    if (focused) part.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
  }
  tellHeard();
  tellScrollable();
  drawAll();
}

function tell(isReachable, text) {
  const outage = document.getElementById("outage");
  if (!isReachable && outage.hidden) text += ` This page shows the state of ${new Date().toLocaleTimeString()}.`;
  if (isReachable || outage.hidden) outage.textContent = text;
  outage.hidden = isReachable;
  document.getElementById("live").textContent = isReachable ? "● live" : "○ waiting";
}

const RECONNECT_MS = 3000;

function listen(address) {
  const source = new EventSource(address);
  source.addEventListener("store", (event) => {
    const { is_reachable: isReachable, detail } = JSON.parse(event.data);
    tell(isReachable, isReachable ? "" : `${detail}. Training continues; updates resume by themselves.`);
    if (isReachable) refresh();
  });
  source.addEventListener("change", refresh);
  source.addEventListener("heard", (event) => {
    Object.assign(heardSince, JSON.parse(event.data));
    tellHeard();
  });
  // The stream expired. A new one starts with a fresh check of the token.
  source.addEventListener("end", () => {
    source.close();
    listen(address);
  });
  source.addEventListener("error", () => {
    tell(false, "The status service does not respond. Training continues; updates resume by themselves.");
    // The browser reconnects by itself after a broken connection, but not after an error response.
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, RECONNECT_MS, address);
  });
}

function tellHeard() {
  for (const [job, time] of Object.entries(heardSince)) {
    for (const element of document.querySelectorAll(`[data-heard="${CSS.escape(job)}"] time`)) element.dateTime = time;
  }
  tellAges();
}

const AGES = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

function tellAges() {
  for (const element of document.querySelectorAll("time:not(.clock)")) {
    const seconds = Math.max(0, (Date.now() - Date.parse(element.dateTime)) / 1000);
    const [size, unit] = AGES.find(([least]) => seconds >= least) ?? [1, "s"];
    element.title = element.dateTime;
    element.textContent = `${Math.floor(seconds / size)} ${unit} ago`;
  }
}

function tellOfMove() {
  const moved = sessionStorage.getItem("moved");
  sessionStorage.removeItem("moved");
  if (!moved) return;
  const [from, to] = JSON.parse(moved);
  const note = document.getElementById("moved");
  const link = Object.assign(document.createElement("a"), { href: `?attempt=${from}`, textContent: `show attempt ${from}` });
  note.append(`Attempt ${to} began, and this page moved on to it: `, link, ".");
  note.hidden = false;
}

drawAll();
tellAges();
tellScrollable();
tellOfMove();
setInterval(tellAges, 10000);
if (document.body.dataset.events) listen(document.body.dataset.events);
