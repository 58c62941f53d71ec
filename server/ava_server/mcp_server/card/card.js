"use strict";
// Shows runs and plans from the result that the host passes on, then reads ava://runs/… to stay up to date.
// It calls no tool.
// Text of others gets onto the page only through `element`, as text, without characters that a person does not see.
(() => {
  const ENDED = new Set(["success", "no_answer", "timeout", "cost_exceeded", "token_exceeded", "iteration_limit",
    "tool_limit", "guardrail", "cancelled", "abandoned", "error", "partial", "rejected", "expired", "superseded"]);
  const NOT_BAD = /^(partial|cancelled|rejected|expired|superseded)$/;
  const WORDS = new Map([["awaiting_approval", "to approve"], ["awaiting_extension", "asks for more"],
    ["awaiting_answer", "asks you"], ["superseded", "replaced"]]);
  const PERSON = /^(awaiting|held)/;
  const REQUEST_MS = 15000, FAST_MS = 3000, SLOW_MS = 15000, FAST_ROUNDS = 100, MOST_FAILURES = 3;
  const MOST_RUNS = 20, MOST_ITEMS = 50, LINE = 300, QUOTE = 1000, TEXT = 4000, OUTPUT = 40000;
  const UNSEEN = new RegExp("[\\p{C}\\u034f\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u3164\\ufe00-\\ufe0d\\uffa0]", "gu");

  const runs = new Map(), drawn = new Map(), pending = new Map();
  let nextId = 1, canRead = false, following = false, stopped = false, size = "";

  // -- the host --

  const post = (message) => window.parent.postMessage({ jsonrpc: "2.0", ...message }, "*");

  function request(method, params) {
    const id = nextId++;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => settle(id, { error: { message: "no answer" } }), REQUEST_MS);
      pending.set(id, { resolve, reject, timer });
      post({ id, method, params });
    });
  }

  function settle(id, answer) {
    const waiting = pending.get(id);
    if (!waiting) return;
    pending.delete(id);
    clearTimeout(waiting.timer);
    if (answer.error) waiting.reject(new Error(String(answer.error.message)));
    else waiting.resolve(answer.result || {});
  }

  window.addEventListener("message", (event) => {
    const message = event.data;
    if (event.source !== window.parent || !message || message.jsonrpc !== "2.0") return;
    const params = message.params || {};
    if (message.method === undefined) settle(message.id, message);
    else if (message.method === "ui/notifications/tool-result") take(params);
    else if (message.method === "ui/notifications/tool-cancelled") say("The call was cancelled.");
    else if (message.method === "ui/notifications/host-context-changed") dress(params);
    else if (message.id !== undefined) reply(message);
  });

  function reply({ id, method }) {
    if (method === "ui/resource-teardown") stopped = true;
    if (method === "ping" || method === "ui/resource-teardown") post({ id, result: {} });
    else post({ id, error: { code: -32601, message: "Method not found" } });
  }

  function dress(context) {
    const root = document.documentElement;
    if (context.theme === "light" || context.theme === "dark") root.style.colorScheme = context.theme;
    for (const [name, value] of Object.entries((context.styles && context.styles.variables) || {}))
      if (/^--(color|font|border)-[a-z0-9-]+$/.test(name) && typeof value === "string" && !value.toLowerCase().includes("url"))
        root.style.setProperty(name, value);
  }

  function measure() {
    const root = document.documentElement;
    root.style.height = "max-content";
    const height = Math.ceil(root.getBoundingClientRect().height), width = Math.ceil(window.innerWidth);
    root.style.height = "";
    if (size === `${width} ${height}`) return;
    size = `${width} ${height}`;
    post({ method: "ui/notifications/size-changed", params: { width, height } });
  }

  // -- the runs --

  function take(result) {
    const content = result.structuredContent;
    if (!content || typeof content !== "object") {
      const blocks = Array.isArray(result.content) ? result.content : [];
      return say(blocks.map((block) => text(block.text, TEXT)).join("\n") || "The answer is empty.");
    }
    for (const run of list(content.runs)) if (idOf(run)) runs.set(run.subagent_id, run);
    for (const one of list(content.decisions))
      if (idOf(one) && !runs.has(one.subagent_id))
        runs.set(one.subagent_id, { ...one, state: one.status, waits_for: one.refused_because });
    say(runs.size && !result.isError ? "" : text(content.message, TEXT) || "There are no runs.");
    draw();
    follow();
  }

  const list = (value) => (Array.isArray(value) ? value : []).filter((item) => item && typeof item === "object");
  const idOf = (run) => /^(S-[0-9a-f]{6}|G-[0-9a-f]{7})$/.test(run.subagent_id);

  async function read(id) {
    const uri = `ava://runs/${id}`;
    const [content] = (await request("resources/read", { uri })).contents;
    const run = JSON.parse(content.text);
    if (run.subagent_id === id) runs.set(id, run);
  }

  async function follow() {
    if (following || !canRead) return;
    following = true;
    let wanted = [...runs.keys()].slice(0, MOST_RUNS), failures = 0;
    for (let round = 0; wanted.length && failures < MOST_FAILURES && !stopped; round++) {
      for (const id of document.hidden ? [] : wanted)
        await read(id).then(() => { failures = 0; draw(); }, () => { failures++; });
      await new Promise((resolve) => setTimeout(resolve, round < FAST_ROUNDS ? FAST_MS : SLOW_MS));
      wanted = [...runs.values()].filter((run) => !ENDED.has(run.state)).map((run) => run.subagent_id).slice(0, MOST_RUNS);
    }
    following = false;
    if (failures >= MOST_FAILURES) say("No longer up to date: the host does not pass on what this page asks for.");
  }

  // -- the page --

  function text(value, most) {
    const whole = typeof value === "string" ? value : value == null ? "" : JSON.stringify(value, null, 2);
    const seen = whole.slice(0, most).replace(UNSEEN, (one) => (one === "\n" || one === "\t" ? one : ""));
    return whole.length > most ? `${seen}… (${whole.length - most} more characters)` : seen;
  }

  const line = (value) => text(value, LINE).replace(/\s+/g, " ");

  function element(tag, name, words = "", ...children) {
    const made = document.createElement(tag);
    if (name) made.className = name;
    made.dir = "auto";
    made.textContent = words;
    made.append(...children.filter(Boolean));
    return made;
  }

  function say(words) {
    document.getElementById("note").textContent = words;
  }

  function draw() {
    const place = document.getElementById("runs");
    for (const [id, run] of [...runs].slice(0, MOST_RUNS)) {
      const now = JSON.stringify(run), before = drawn.get(id);
      if (before && before.now === now) continue;
      let made;
      try {
        made = card(run);
      } catch {
        made = element("details", "run", "", element("summary", "", `${id}: cannot be shown`));
      }
      made.open = before ? before.made.open : runs.size === 1;
      if (before) before.made.replaceWith(made);
      else place.append(made);
      drawn.set(id, { now, made });
    }
    if (runs.size > MOST_RUNS) say(`${runs.size - MOST_RUNS} more runs are not shown.`);
  }

  function card(run) {
    const mood = run.state === "success" ? "good" : !ENDED.has(run.state) ? "live" : NOT_BAD.test(run.state) ? "" : "bad";
    const title = element("summary", "", "",
      element("strong", "name", line(run.name || run.subagent_id)),
      element("span", "dim", line([run.name && run.subagent_id, run.role, run.model].filter(Boolean).join(" · "))),
      element("span", `state ${/^(await|held|no_answer)/.test(run.state) ? "person" : mood}`, WORDS.get(run.state) || line(run.state).replace(/_/g, " ")),
      element("span", "dim brief", figures(run)));
    return element("details", "run", "", title, bars(run), situation(run), planned(run), steps(run), result(run));
  }

  function figures(run) {
    if (typeof run.cost_cents !== "number") return "";
    const limits = run.limits;
    if (!limits || run.plan) return line(run.status_line);
    const cost = limits.max_cost_cents ? `${money(run.cost_cents)}${of(limits.max_cost_cents, money)}` : "free";
    return `${cost} · ${time(run.elapsed_seconds)}${of(limits.timeout, time)} · turn ${Number(run.iteration)}` +
      of(limits.max_iterations, String);
  }

  const of = (most, shown) => (most ? ` of ${shown(most)}` : "");
  const money = (cents) => {
    const usd = Number(cents) / 100;
    return `$${usd && usd < 0.01 ? usd.toPrecision(2) : usd.toFixed(2)}`;
  };
  const time = (seconds) => {
    const whole = Math.round(Number(seconds));
    return whole < 120 ? `${whole} s` : `${Math.floor(whole / 60)} min${whole % 60 ? ` ${whole % 60} s` : ""}`;
  };

  function bars(run) {
    const limits = run.limits || {};
    return element("div", "bars", "",
      bar("Cost", run.cost_cents, limits.max_cost_cents), bar("Time", run.elapsed_seconds, limits.timeout));
  }

  function bar(what, used, most) {
    if (!(most > 0)) return null;
    const made = element("progress", "");
    made.max = most;
    made.value = Math.min(Number(used) || 0, most);
    made.setAttribute("aria-label", what);
    return element("label", "dim", what, made);
  }

  function situation(run) {
    const asked = run.untrusted_question && foreign("The subagent asks", element("p", "", text(run.untrusted_question, TEXT)));
    const facts = [PERSON.test(run.state) && "Waits for a person. Decide in your host or a terminal, not here.",
      !PERSON.test(run.state) && line(run.waits_for),
      !ENDED.has(run.state) && run.untrusted_activity && `Now: ${line(run.untrusted_activity)}`,
      run.stop_reason && `Ended because: ${line(run.stop_reason)}`, run.error && line(run.error.what_to_do),
      run.advice && line(run.advice)];
    return element("div", "", "", ...facts.filter(Boolean).map((fact) => element("p", "", fact)), asked);
  }

  function planned(run) {
    const lines = run.plan && Array.isArray(run.plan.lines) ? run.plan.lines.slice(0, MOST_ITEMS) : [];
    return listed("Steps", lines.map((words) => element("li", "", line(words))));
  }

  function steps(run) {
    return listed("Last steps", list(run.untrusted_steps).slice(-5).map((step) => element("li", step.failed ? "failed" : "",
      `${clock(step.at)} ${line(step.what)}: ${line(step.outcome) || "in progress"}`)));
  }

  function listed(title, items) {
    return items.length && element("div", "", "", element("h2", "", title), element("ul", "steps", "", ...items));
  }

  function clock(at) {
    const when = new Date(at);
    return Number.isNaN(when.getTime()) ? "" : when.toLocaleTimeString();
  }

  function foreign(title, ...children) {
    return element("section", "foreign", "", element("h2", "", title), ...children);
  }

  function result(run) {
    const given = run.untrusted_result;
    if (!given || typeof given !== "object") return null;
    const verdicts = new Map(list(run.quotes_checked).map((quote) => [quote.finding, quote.verdict]));
    const findings = list(given.findings).slice(0, MOST_ITEMS).map((one, index) => finding(one, verdicts.get(index + 1)));
    const output = given.output === given.summary ? "" : text(given.output, OUTPUT);
    const more = [...(Array.isArray(given.caveats) ? given.caveats : []).map((caveat) => `Caveat: ${line(caveat)}`),
      ...list(given.artifacts).map((file) => `File: ${line(file.name)} (${Number(file.bytes)} bytes)`),
      ...list(given.changed && given.changed.files).map((file) => `Changed: ${line(file.path)}`)];
    return foreign("Result, in the subagent's own words",
      given.summary && element("p", "", text(given.summary, TEXT)),
      findings.length && element("ol", "", "", ...findings),
      output && element("pre", "", output),
      ...more.slice(0, MOST_ITEMS).map((words) => element("p", "dim", words)),
      given.error_text && element("p", "failed", text(given.error_text, TEXT)));
  }

  function finding(one, verdict) {
    const found = { found: "✓ quote found", near: "≈ quote nearly found", not_found: "✗ quote not found" }[verdict];
    const source = [one.source_name, one.source_url, one.found_in].filter(Boolean).map(line).join(" ");
    return element("li", "", text(one.claim, QUOTE),
      one.quote && element("blockquote", "", text(one.quote, QUOTE)),
      (source || found) && element("p", "dim", [source, found].filter(Boolean).join(" · ")));
  }

  // -- the start --

  async function start() {
    const policy = document.querySelector("meta[http-equiv]");
    if (policy.parentNode !== document.head) document.head.append(policy); // a host that wraps the page puts it elsewhere
    const appInfo = { name: "Ava", version: "1" }, appCapabilities = { availableDisplayModes: ["inline"] };
    const host = await request("ui/initialize", { appInfo, appCapabilities, protocolVersion: "2026-01-26" });
    canRead = Boolean(host.hostCapabilities && host.hostCapabilities.serverResources);
    dress(host.hostContext || {});
    post({ method: "ui/notifications/initialized" });
    new ResizeObserver(() => requestAnimationFrame(measure)).observe(document.body);
    follow();
  }

  start().catch(() => say("No answer."));
})();
