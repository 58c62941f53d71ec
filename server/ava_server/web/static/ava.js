// Keeps a page up to date: listens to the server's events, and says when the connection is lost.
"use strict";

const RETRY_MS = 1000;
const LONGEST_RETRY_MS = 15000;
const HIDDEN_MS = 30 * 60 * 1000; // a forgotten tab lets the server stop

let source = null;
let wait = RETRY_MS;
let hiddenTimer = 0;
let missed = false;

function say(text) {
  const place = document.getElementById("connection");
  place.textContent = text;
  place.hidden = !text;
}

function refresh() {
  document.body.dispatchEvent(new CustomEvent("ava:changed"));
}

function listen() {
  const address = document.body.dataset.stream;
  if (!address || source) return;
  source = new EventSource(address);
  source.addEventListener("open", () => {
    wait = RETRY_MS;
    say("");
    if (missed) refresh();
    missed = false;
  });
  source.addEventListener("changed", refresh);
  source.onerror = () => {
    if (!source) return;
    source.close();
    source = null;
    missed = true;
    say("The server does not answer. This page continues when it is back; on your own machine, ava ui starts it.");
    setTimeout(listenAgain, wait);
    wait = Math.min(wait * 2, LONGEST_RETRY_MS);
  };
}

// To a stream, a session that has ended looks like a server that is away: ask which of the two it is.
async function listenAgain() {
  try {
    const answer = await fetch(document.body.dataset.stream, { method: "HEAD" });
    if (answer.status === 401) return say("Your session has ended. Reload this page to sign in again.");
  } catch {
    // it is away, which listen() finds too
  }
  listen();
}

function stop() {
  if (source) source.close();
  source = null;
  missed = true;
}

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

// The same words as `ago` in web/context.py.
function ago(moment) {
  const seconds = Math.floor((Date.now() - moment) / 1000);
  const [size, unit] = UNITS.find(([size]) => Math.abs(seconds) >= size) || [1, "s"];
  const words = `${Math.floor(Math.abs(seconds) / size)} ${unit}`;
  return seconds === 0 ? "now" : seconds > 0 ? `${words} ago` : `in ${words}`;
}

// A time on this clock, in the form that terminals use: 2026-01-31 14:05:32.
function stamp(moment) {
  const two = (number) => String(number).padStart(2, "0");
  const day = [moment.getFullYear(), two(moment.getMonth() + 1), two(moment.getDate())].join("-");
  return `${day} ${[moment.getHours(), moment.getMinutes(), moment.getSeconds()].map(two).join(":")}`;
}

function localTimes(root) {
  for (const each of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(each.dateTime);
    if (!each.dateTime || isNaN(moment)) continue;
    const exact = "exact" in each.dataset;
    each.title = exact ? each.dateTime : stamp(moment);
    each.textContent = exact ? stamp(moment) : ago(moment);
  }
}

document.addEventListener("visibilitychange", () => {
  clearTimeout(hiddenTimer);
  if (document.hidden) hiddenTimer = setTimeout(stop, HIDDEN_MS);
  else listen();
});
addEventListener("pagehide", stop);
addEventListener("pageshow", listen);
// A page that looks every few seconds whether its question was decided: not in a forgotten tab, which lets the server
// stop, and not over a decision of this page that is on its way.
let leaves = false;
addEventListener("beforeunload", () => (leaves = true));
addEventListener("pageshow", () => (leaves = false));
document.body.addEventListener("htmx:beforeRequest", (event) => {
  const looks = (event.detail.elt.getAttribute("hx-trigger") || "").startsWith("every ");
  if (looks && (leaves || document.hidden)) event.preventDefault();
});
document.body.addEventListener("htmx:beforeOnLoad", (event) => {
  if (leaves) event.preventDefault();
});
// The pictures of time of a run in progress came at different moments: they all get the newest scale.
function sameScales() {
  const pictures = [...document.querySelectorAll(".timeline svg.flow")];
  const spans = pictures.map((each) => each.viewBox.baseVal.width);
  const longest = Math.max(0, ...spans);
  pictures.forEach((each, place) => {
    if (spans[place] !== longest) each.setAttribute("viewBox", `0 0 ${longest} 8`);
  });
}

document.body.addEventListener("htmx:load", (event) => {
  localTimes(event.detail.elt);
  sameScales();
});
localTimes(document);
setInterval(() => document.hidden || localTimes(document), 15000);
listen();
