// The module alone, with storage, fetch and clocks of the test's own. Run by TestBrowserModuleAlone, or by node --test.

import { test, beforeEach } from "node:test";
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { webcrypto } from "node:crypto";

const here = new URL("./", import.meta.url);

// A page: each import of the module with another query is a module of its own, as after a reload.
let pages = 0;
const page = () => import(`./tekil.mjs?page=${pages++}`);

class Store {
  items = new Map();
  full = false;
  getItem(name) { return this.items.get(name) ?? null; }
  setItem(name, value) {
    if (this.full) throw new DOMException("exceeded the quota", "QuotaExceededError");
    this.items.set(name, value);
  }
  removeItem(name) { this.items.delete(name); }
}

let requests, answers, store, pauses, told, offset, now;
const realTimeout = globalThis.setTimeout;
const realDate = Date.now;

function set(name, descriptor) {
  Object.defineProperty(globalThis, name, { configurable: true, ...descriptor });
}

beforeEach(() => {
  requests = [];
  answers = [];
  pauses = [];
  told = [];
  offset = 0;
  now = 0;
  store = new Store();
  set("sessionStorage", { get: () => store });
  set("location", { value: new URL("https://shop.example/checkout"), writable: true });
  set("crypto", { value: webcrypto, writable: true });
  set("performance", { value: { now: () => now }, writable: true });
  Date.now = () => realDate() + offset;
  globalThis.setTimeout = (fn, ms) => {
    pauses.push(ms);
    now += ms;
    return realTimeout(fn, 0);
  };
  globalThis.fetch = async (url, init) => {
    requests.push({ url: String(url), init, key: init.headers.get("Idempotency-Key"), body: Buffer.from(init.body ?? "").toString() });
    const next = answers.shift() ?? lost;
    return typeof next === "function" ? next(init) : next;
  };
});

const lost = () => { throw new TypeError("Failed to fetch"); };
const hang = (init) => new Promise((_, reject) => {
  const held = setInterval(() => {}, 1000); // as a socket would, this keeps Node alive
  init.signal.addEventListener("abort", () => { clearInterval(held); reject(init.signal.reason); });
});
const json = (status, body, headers = {}) => new Response(JSON.stringify(body), { status, headers: { "Content-Type": "application/json", ...headers } });
const problem = (status, code, retry, more = {}, headers = {}) =>
  new Response(JSON.stringify({ status, code, retry, ...more }), { status, headers: { "Content-Type": "application/problem+json", ...headers } });
const opaque = () => Object.defineProperties(new Response(""), { type: { value: "opaqueredirect" }, status: { value: 0 }, ok: { value: false } });
const placed = (headers) => json(201, { order_id: "o-1" }, { "Idempotency-Replayed": "false", ...headers });

const once = { tries: 1 };
async function opened(options = {}) {
  const { open } = await page();
  return open({ id: "checkout", onState: (t) => told.push(t), ...options });
}
const keys = () => [...new Set(requests.map((r) => r.key))];

test("derive gives the golden keys that the Go client gives", async () => {
  const { derive } = await page();
  const rows = JSON.parse(readFileSync(new URL("../client/testdata/derive.json", here), "utf8"));
  assert.ok(rows.length >= 8);
  for (const { parts, key } of rows) assert.equal(await derive(...parts), key, JSON.stringify(parts));
});

test("the types declare what the module exports", async () => {
  const module = Object.keys(await page()).sort();
  const types = readFileSync(new URL("tekil.d.mts", here), "utf8");
  const declared = [...types.matchAll(/^export (?:function|const) (\w+)/gm)].map((m) => m[1]).sort();
  assert.deepEqual(declared, module);
  const members = (name) => [...types.match(new RegExp(`interface ${name} \\{([^]*?)\\n\\}`))[1].matchAll(/^ {2}(?:readonly )?(\w+)[?:<(]/gm)].map((m) => m[1]).sort();
  assert.deepEqual(members("Form"), Object.keys(await opened()).sort());
  const { messages } = await page();
  const kinds = [...types.match(/export type Kind = (.*);/)[1].matchAll(/"([\w-]+)"/g)].map((m) => m[1]);
  assert.deepEqual(Object.keys(messages).sort(), [...kinds, "sending", "edited", "again", "open", "failed"].sort());
});

test("BR-17: reload, error and time-out keep the key, and success ends it", async () => {
  for (const fault of [lost, () => json(503, {}), () => json(500, {}), () => new Response("", { status: 408 }), hang]) {
    requests = [];
    store.items.clear();
    answers = [fault];
    const retry = { tries: 1, perTryTimeoutMs: 20 };
    const first = await (await opened({ retry })).send("/orders", { body: { amount: 5 } });
    assert.equal(first.kind, "unknown");
    assert.match(first.message, /not be done twice/);
    const reloaded = await opened({ retry });
    assert.equal(reloaded.state, "unknown");
    assert.match(reloaded.notice, /not be done twice/);
    answers = [placed({ "Idempotency-Replayed": "true" })];
    const second = await reloaded.send("/orders", { body: { amount: 5 } });
    assert.deepEqual([second.kind, second.replayed, second.edited, second.data.order_id], ["done", true, false, "o-1"]);
    assert.equal(keys().length, 1);
    assert.equal(store.items.size, 0, "the key is gone");
    answers = [placed()];
    await (await opened()).send("/orders", { body: { amount: 5 } });
    assert.equal(keys().length, 2, "new work has a new key");
  }
});

test("BR-63: what keeps the key and what ends it", async (t) => {
  const fieldErrors = { errors: [{ path: "amount", rule: "gt", message: "must be above 0" }] };
  const rows = [
    ["done", "done", () => placed()],
    ["done", "done", () => new Response(null, { status: 204 })],
    ["accepted", "unknown", () => json(202, { operation_id: "op-1", state: "in_progress" }, { Location: "/operations/op-1", "Retry-After": "2" })],
    ["refused", "open", () => problem(400, "VALIDATION_FAILED", "same-key", fieldErrors)],
    ["refused", "open", () => problem(422, "ROOM_TAKEN", "none")],
    ["refused", "open", () => problem(401, "UNAUTHENTICATED", "same-key")],
    ["conflict", "unknown", () => problem(409, "IDEMPOTENCY_KEY_CONFLICT", "none")],
    ["conflict", "unknown", () => problem(422, "IDEMPOTENCY_KEY_CONFLICT", "none")],
    ["in-progress", "unknown", () => problem(409, "IDEMPOTENCY_REQUEST_IN_PROGRESS", "same-key", { operation_id: "op-1" })],
    ["in-progress", "unknown", () => new Response("", { status: 409, headers: { "Retry-After": "1" } })],
    ["in-progress", "unknown", () => problem(409, "WAIT", "same-key")],
    ["in-progress", "unknown", () => problem(409, undefined, "same-key")],
    ["conflict", "unknown", () => new Response("", { status: 409 })],
    ["conflict", "unknown", () => problem(409, "ROOM_TAKEN", "none", {}, { "Retry-After": "1" })],
    ["conflict", "unknown", () => problem(409, undefined, "new-key", {}, { "Retry-After": "1" })],
    ["busy", "open", () => new Response("", { status: 429 })],
    ["unknown", "unknown", () => new Response("", { status: 502 })],
    ["unknown", "unknown", () => problem(409, "IDEMPOTENCY_OUTCOME_UNKNOWN", "none")],
    ["unknown", "unknown", lost],
    ["expired", "expired", () => problem(410, "IDEMPOTENCY_KEY_EXPIRED", "new-key")],
    ["expired", "expired", () => problem(410, "IDEMPOTENCY_RESULT_UNAVAILABLE", "none")],
    ["unknown", "unknown", () => new Response("", { status: 307, headers: { Location: "/elsewhere" } })],
    ["unknown", "unknown", () => opaque()],
    ["unknown", "unknown", () => Object.defineProperty(json(200, "login"), "redirected", { value: true })],
    ["unknown", "unknown", () => Response.error()],
    ["unknown", "unknown", () => new Response(new ReadableStream({ start: (c) => c.error(new TypeError("network error")) }), { status: 201 })],
  ];
  for (const [kind, state, answer] of rows) {
    await t.test(`${kind}, ${state}: ${answer}`, async () => {
      store.items.clear();
      requests = [];
      answers = [answer, placed()];
      const form = await opened({ retry: once });
      const outcome = await form.send("/orders", { body: { amount: 5 } });
      assert.equal(outcome.kind, kind);
      assert.equal(form.state, state);
      assert.equal(outcome.ok, kind === "done");
      assert.equal(outcome.message, told.at(-1).message);
      assert.ok(outcome.message);
      if (kind === "done") {
        assert.equal(store.items.size, 0);
        return;
      }
      const later = await opened({ retry: once });
      assert.equal(later.state, state);
      const next = await later.send("/orders", { body: { amount: 5 } });
      assert.equal(keys().length, 1, "the key stays");
      if (kind !== "expired") return assert.equal(next.kind, "done");
      assert.deepEqual([next.kind, next.tries, requests.length], ["expired", 0, 1], "nothing is sent before startOver");
      offset = 25 * 3_600_000;
      assert.equal((await opened()).state, "expired");
      later.startOver();
      assert.equal((await later.send("/orders")).kind, "done");
    });
  }
});

test("field errors and the rest of an answer are given to the caller", async () => {
  answers = [problem(400, "VALIDATION_FAILED", "same-key", { errors: [{ path: "a", message: "1" }, { path: "a", message: "2" }, { path: "__proto__", message: "3" }] },
    { "X-Request-ID": "r-1" })];
  const refused = await (await opened()).send("/orders", { body: {} });
  assert.deepEqual(refused.errors.a, ["1", "2"]);
  assert.deepEqual(refused.errors.__proto__, ["3"]);
  assert.deepEqual([refused.requestId, refused.problem.code, refused.final], ["r-1", "VALIDATION_FAILED", false]);
  answers = [json(202, { operation_id: "op-1", state: "in_progress" }, { Location: "/operations/op-1", "Retry-After": "2" })];
  const accepted = await (await opened({ retry: once })).send("/orders", { body: {} });
  assert.deepEqual([accepted.operationId, accepted.location, accepted.retryAfterMs], ["op-1", "/operations/op-1", 2000]);
  answers = [placed()];
  const done = await (await opened({ reference: (d) => d.order_id })).send("/orders", { body: {} });
  assert.deepEqual([done.reference, done.message], ["o-1", "Done. Your number is o-1."]);
});

test("two submits in one turn, or one while another is under way, are one request", async () => {
  answers = [placed()];
  const form = await opened();
  const first = form.send("/orders", { body: {} });
  const second = form.send("/orders", { body: {} });
  assert.ok(form.busy);
  assert.deepEqual(await first, await second);
  assert.equal(requests.length, 1);
  assert.ok(!form.busy);
  const third = await form.send("/orders", { body: {} });
  assert.equal(requests.length, 1, "the second half of a slow double click is no second order");
  assert.equal(third.data.order_id, "o-1");
  assert.match(told.at(-1).message, /already/);
});

test("two objects for one form of a page have one guard and one key", async () => {
  const { open } = await page();
  answers = [placed()];
  const [a, b] = [open({ id: "checkout" }), open({ id: "checkout" })];
  await Promise.all([a.send("/orders"), b.send("/orders")]);
  assert.equal(requests.length, 1);
  assert.equal(b.state, "done");
  assert.equal(open({ id: "checkout" }).state, "open");
});

test("BR-24: each try has one header, the same key and the same bytes", async () => {
  const data = new FormData();
  data.append("command", "{}");
  data.append("file", new Blob(["%PDF"]), "a.pdf");
  for (const body of [{ amount: 5 }, '{"amount":5}', new URLSearchParams({ amount: "5" }), new Blob(["x"]), new Uint8Array([1, 2]), data]) {
    requests = [];
    answers = [() => json(503, {}), () => json(503, {}), placed()];
    const outcome = await (await opened()).send("/orders", { body, headers: { Accept: "application/json" } });
    assert.deepEqual([outcome.kind, outcome.tries, requests.length], ["done", 3, 3]);
    assert.equal(keys().length, 1);
    assert.doesNotMatch(keys()[0], /,/);
    assert.equal(new Set(requests.map((r) => r.body)).size, 1);
    assert.equal(new Set(requests.map((r) => r.init.headers.get("Content-Type"))).size, 1);
    assert.equal(requests[0].init.headers.get("Accept"), "application/json");
  }
  assert.match(requests[0].init.headers.get("Content-Type"), /^multipart\/form-data; boundary=/);
  await assert.rejects((await opened()).send("/orders", { headers: { "idempotency-key": "mine-0001" } }), /this module's/);
});

test("retries wait as told, with chance, and within the limits", async () => {
  answers = [() => problem(409, "IDEMPOTENCY_REQUEST_IN_PROGRESS", "same-key", {}, { "Retry-After": "2" }), () => json(503, {}), placed()];
  assert.equal((await (await opened()).send("/orders")).kind, "done");
  assert.equal(pauses.length, 2);
  assert.ok(pauses[0] >= 2250 && pauses[0] <= 2500, `waited ${pauses[0]}`);
  assert.ok(pauses[1] >= 500 && pauses[1] <= 1000, `waited ${pauses[1]}`);

  requests = [];
  answers = [() => new Response("", { status: 429, headers: { "Retry-After": "120" } })];
  assert.equal((await (await opened()).send("/orders")).kind, "busy");
  assert.equal(requests.length, 1, "past totalMs it is left to the person");

  for (const final of [() => problem(500, "INTERNAL", "none"), () => problem(409, "IDEMPOTENCY_OUTCOME_UNKNOWN", "none")]) {
    requests = [];
    answers = [final];
    const outcome = await (await opened()).send("/orders");
    assert.equal(requests.length, 1, "what the server calls final is not asked again");
    assert.match(outcome.message, /ask us/);
  }

  requests = [];
  answers = [() => json(202, {}), () => json(202, {}), placed()];
  assert.equal((await (await opened({ retry: { accepted: true } })).send("/orders")).kind, "done");
  assert.equal(requests.length, 3);
});

test("a caller's signal ends the tries and not the key", async () => {
  const stop = new AbortController();
  answers = [() => { stop.abort(); lost(); }, placed()];
  const form = await opened();
  assert.equal((await form.send("/orders", { signal: stop.signal })).kind, "unknown");
  assert.equal(requests.length, 1);
  await form.send("/orders");
  assert.equal(keys().length, 1);
});

test("an edited payload after an unknown outcome keeps its key and is told", async () => {
  answers = [lost];
  await (await opened({ retry: once })).send("/orders", { body: { amount: 5 } });
  answers = [lost];
  told = [];
  const edited = await (await opened({ retry: once })).send("/orders", { body: { amount: 6 } });
  assert.deepEqual([told[0].state, edited.edited], ["edited", true]);
  assert.match(told[0].message, /may have succeeded/);
  answers = [() => problem(400, "VALIDATION_FAILED", "same-key")];
  assert.equal((await (await opened()).send("/orders", { body: { amount: 0 } })).edited, true);
  answers = [() => problem(409, "IDEMPOTENCY_KEY_CONFLICT", "none")];
  const form = await opened({ retry: once });
  const conflict = await form.send("/orders", { body: { amount: 6 } });
  assert.match(conflict.message, /received with other details/);
  assert.deepEqual([conflict.kind, conflict.edited], ["conflict", true], "still edited: the first attempt was another one");
  assert.equal(keys().length, 1);
  form.startOver();
  answers = [placed()];
  assert.equal((await form.send("/orders", { body: { amount: 6 } })).edited, false);
  assert.equal(keys().length, 2);
});

test("a refused payload was not done, so correcting it is no edit", async () => {
  answers = [() => problem(400, "VALIDATION_FAILED", "same-key"), placed()];
  const form = await opened();
  await form.send("/orders", { body: { amount: 0 } });
  assert.equal(form.state, "open");
  assert.equal((await form.send("/orders", { body: { amount: 5 } })).edited, false);
  assert.equal(keys().length, 1);
});

test("a conflict of the application is not told as one of the key", async () => {
  answers = [() => problem(409, "ROOM_TAKEN", "none")];
  const outcome = await (await opened()).send("/orders");
  assert.match(outcome.message, /^This conflicts with what is there already/);
});

test("a refusal after a lost try says nothing of that try", async () => {
  answers = [lost, () => problem(400, "VALIDATION_FAILED", "same-key")];
  const form = await opened();
  assert.equal((await form.send("/orders", { body: { amount: 5 } })).kind, "refused");
  assert.equal(form.state, "unknown");
});

test("the same FormData twice is no edit, and another file is one", async () => {
  const data = (content) => { const d = new FormData(); d.append("file", new Blob([content]), "a.pdf"); return d; };
  const form = await opened({ retry: once });
  await form.send("/orders", { body: data("one") });
  assert.equal((await form.send("/orders", { body: data("one") })).edited, false);
  assert.equal((await form.send("/orders", { body: data("two") })).edited, true);
});

test("a draft's key is derived from its identity, with or without storage", async () => {
  const { derive } = await page();
  const expected = await derive("draft/1", "checkout", "cart-77", "1");
  answers = [lost];
  await (await opened({ draft: "cart-77", retry: once })).send("/orders", { body: { amount: 5 } });
  store = new Store(); // another tab
  await (await opened({ draft: "cart-77", retry: once })).send("/orders", { body: { amount: 6 } });
  store.full = true;
  const full = await opened({ draft: "cart-77", retry: once });
  await full.send("/orders");
  assert.throws(() => full.startOver(), /make a new draft/);
  set("sessionStorage", { get: () => { throw new DOMException("denied", "SecurityError"); } });
  answers = [placed()];
  await (await opened({ draft: "cart-77" })).send("/orders");
  answers = [placed()];
  await (await opened({ draft: "cart-77" })).send("/orders"); // after success: a replay
  assert.deepEqual(keys(), [expected]);
  answers = [placed()];
  await (await opened({ draft: "cart-78" })).send("/orders");
  assert.equal(keys().length, 2);
});

test("a draft's generation rises only by startOver, and does not fall back", async () => {
  const { derive } = await page();
  const form = await opened({ draft: "cart-77" });
  form.startOver();
  assert.equal(form.generation, 2);
  answers = [placed()];
  await form.send("/orders");
  assert.equal((await opened({ draft: "cart-77" })).generation, 2);
  store = new Store();
  answers = [placed()];
  await (await opened({ draft: "cart-77", generation: 2 })).send("/orders");
  assert.deepEqual(keys(), [await derive("draft/1", "checkout", "cart-77", "2")]);
});

test("BR-17: storage that is disabled or full is an error at opening, never a key per call", async () => {
  const { open } = await page();
  for (const broken of [
    { get: () => { throw new DOMException("denied", "SecurityError"); } },
    { value: undefined, writable: true },
    { get: () => Object.assign(new Store(), { full: true }) },
  ]) {
    set("sessionStorage", broken);
    assert.throws(() => open({ id: "checkout" }), /^Error: tekil: sessionStorage is forbidden or full/);
  }
});

test("a page that is not secure is an error at opening", async () => {
  const { open } = await page();
  for (const crypto of [undefined, {}, { randomUUID() {} }, { subtle: {} }]) {
    set("crypto", { value: crypto });
    assert.throws(() => open({ id: "checkout", draft: "cart-77" }), /HTTPS or from localhost/);
  }
});

test("N09: each call has its own key, stable over retries, and never the form's", async () => {
  const { derive } = await page();
  const run = async () => {
    const form = await opened({ retry: once });
    const all = [await form.call("/accounts", { body: {} }), await form.call("/lines?x=1", { method: "put", body: {} }), await form.call("/lines", { method: "PUT", label: "second" })];
    return { form, all };
  };
  answers = [placed(), lost, placed()];
  const first = await run();
  assert.throws(() => first.form.done(), /not confirmed/);
  const before = requests.map((r) => r.key);
  const own = JSON.parse([...store.items.values()][0]).key;
  assert.deepEqual(before, [await derive("call/1", own, "POST", "/accounts", ""), await derive("call/1", own, "PUT", "/lines", ""), await derive("call/1", own, "PUT", "/lines", "second")]);
  assert.equal(new Set([own, ...before]).size, 4);

  requests = [];
  answers = [placed(), placed(), placed()];
  const again = await run(); // after a reload
  assert.deepEqual(requests.map((r) => r.key), before);
  again.form.done();
  assert.deepEqual([again.form.state, store.items.size], ["done", 0]);
  assert.equal((await again.form.call("/accounts")).ok, true);
  assert.equal(requests.length, 3);
  await assert.rejects(again.form.call("/other"), /open\(\) it again/);

  requests = [];
  answers = [placed(), placed(), placed()];
  await run();
  assert.ok(requests.every((r) => !before.includes(r.key)), "new work");
});

test("a form's own key goes to one route", async () => {
  const form = await opened({ retry: once });
  await form.send("/pay/card", { body: {} });
  await assert.rejects(form.send("/pay/transfer", { body: {} }), /another route/);
  await assert.rejects((await opened()).send("/pay/transfer", { body: {} }), /another route/);
  assert.equal(requests.length, 1);
});

test("a key is not taken up past its time, and an unknown outcome is told", async () => {
  answers = [lost];
  await (await opened({ retry: once })).send("/orders", { body: {} });
  offset = 25 * 3_600_000;
  const late = await opened({ retry: once });
  assert.equal(late.state, "expired");
  assert.match(late.notice, /may have succeeded/);
  const outcome = await late.send("/orders", { body: {} });
  assert.deepEqual([outcome.kind, outcome.tries, requests.length], ["expired", 0, 1]);
  late.startOver();
  await late.send("/orders", { body: {} });
  assert.equal(keys().length, 2);

  store.items.clear();
  await opened();
  const [name] = store.items.keys();
  const old = JSON.parse(store.getItem(name)).key;
  offset += 25 * 3_600_000;
  assert.equal((await opened()).state, "open");
  assert.notEqual(JSON.parse(store.getItem(name)).key, old, "a key that was never sent is made anew");
});

test("a key whose clock was ahead is too old as well", async () => {
  offset = 365 * 24 * 3_600_000;
  await (await opened({ retry: once })).send("/orders", { body: {} });
  offset -= 4 * 60_000;
  assert.equal((await opened()).state, "unknown");
  offset -= 2 * 60_000;
  assert.equal((await opened()).state, "expired");
  store.items.clear();
  await opened();
  const [name] = store.items.keys();
  const ahead = store.getItem(name);
  offset = 0;
  await opened();
  assert.notEqual(store.getItem(name), ahead, "never sent, so it is made anew");
});

test("a confirmed draft that is too old is not sent again", async () => {
  answers = [placed(), placed()];
  await (await opened({ draft: "cart-77" })).send("/orders", { body: {} });
  assert.equal((await opened({ draft: "cart-77" })).state, "open");
  offset = 25 * 3_600_000;
  const late = await opened({ draft: "cart-77" });
  assert.equal(late.state, "expired");
  assert.equal((await late.send("/orders", { body: {} })).tries, 0);
  assert.equal(requests.length, 1);
  late.startOver();
  assert.deepEqual([late.state, late.generation], ["open", 2]);
});

test("a damaged record of a draft does not fall below the generation that is given", async () => {
  await opened({ draft: "cart-77", generation: 4 });
  const [name] = store.items.keys();
  store.setItem(name, "{");
  const form = await opened({ draft: "cart-77", generation: 4 });
  assert.deepEqual([form.state, form.generation], ["expired", 4]);
  form.startOver();
  assert.equal(form.generation, 5);
});

test("a page of the back/forward cache takes what another page of the tab has left", async () => {
  const [a, b] = [await page(), await page()];
  const open = (p) => p.open({ id: "checkout", retry: once });
  for (const late of [0, 25 * 3_600_000]) {
    requests = [];
    store.items.clear();
    offset = 0;
    open(a);
    answers = [lost, placed()];
    await open(b).send("/orders", { body: { amount: 5 } });
    offset = late;
    const back = open(a);
    assert.equal(back.state, late ? "expired" : "unknown");
    const outcome = await back.send("/orders", { body: { amount: 9 } });
    assert.deepEqual([outcome.kind, outcome.edited, keys().length], late ? ["expired", false, 1] : ["done", true, 1]);
  }
});

test("a page of the back/forward cache does not forget what it could not write", async () => {
  const a = await page();
  const open = () => a.open({ id: "checkout", retry: once });
  const form = open();
  store.full = true;
  await form.send("/orders", { body: { amount: 5 } });
  assert.equal(open().state, "unknown");
});

test("a callback that throws after a success changes nothing and is reported", async () => {
  const thrower = () => { throw new Error("of the page"); };
  for (const bad of [{ reference: thrower }, { messages: { done: thrower, sending: thrower } }, { onState: thrower }]) {
    for (const reporter of [true, false]) {
      const reported = [];
      const { error } = console;
      if (reporter) set("reportError", { value: (e) => reported.push(e) });
      else console.error = (e) => reported.push(e);
      try {
        answers = [placed()];
        told = [];
        const form = await opened(bad);
        const outcome = await form.send("/orders", { body: {} });
        assert.deepEqual([outcome.kind, outcome.message, form.state], ["done", "Done.", "done"]);
        if (!bad.onState) assert.deepEqual([told.at(-1).state, told.at(-1).message], ["done", "Done."]);
        assert.ok(reported.length >= 1 && reported.every((e) => e.message === "of the page"));
      } finally {
        console.error = error;
        delete globalThis.reportError;
      }
    }
  }
});

test("done is refused while something is under way or was refused", async () => {
  let form = await opened({ retry: once });
  answers = [() => json(503, {}), placed(), () => problem(400, "X", "same-key"), placed()];
  const under = form.call("/accounts", { body: {} });
  assert.throws(() => form.done(), /under way/);
  await under;
  assert.throws(() => form.done(), /not confirmed/);
  assert.ok((await form.call("/accounts", { body: {} })).ok);
  assert.equal((await form.call("/addresses", { body: {} })).kind, "refused");
  assert.throws(() => form.done(), /not confirmed/);
  form = await opened({ retry: once });
  assert.throws(() => form.done(), /not confirmed/, "nor after a reload");
  assert.equal((await form.call("/addresses", { body: { corrected: true } })).edited, false);
  form.done();
  assert.equal(store.items.size, 0);
  assert.equal((await form.call("/addresses", { body: {} })).ok, true);
  assert.deepEqual([form.notice, requests.length], ["Done.", 4]);
});

test("a call that ends after the form was spent does not bring its key back", async () => {
  for (const late of [() => json(503, {}), () => json(400, {}), () => problem(410, "IDEMPOTENCY_KEY_EXPIRED", "new-key"), placed]) {
    const form = await opened({ retry: once });
    let go;
    answers = [() => new Promise((resolve) => { go = () => resolve(late()); }), placed()];
    const call = form.call("/accounts", { body: {} });
    while (!go) await new Promise(setImmediate);
    await form.send("/orders", { body: {} });
    go();
    await call;
    assert.equal(store.items.size, 0);
  }
});

test("a form that is opened again while a call is under way keeps what becomes of it", async () => {
  const { open } = await page();
  const form = open({ id: "checkout", retry: once });
  let go;
  answers = [() => new Promise((resolve) => { go = () => resolve(placed()); })];
  const call = form.call("/accounts", { body: {} });
  while (!go) await new Promise(setImmediate);
  const again = open({ id: "checkout", retry: once });
  go();
  await call;
  again.done();
  assert.deepEqual([form.state, again.state, store.items.size], ["done", "done", 0]);
});

test("two calls under one label at once are one if their bodies are, and an error if not", async () => {
  const data = (text) => { const d = new FormData(); d.append("a", text); return d; };
  for (const [one, two] of [[{ n: 1 }, { n: 2 }], [data("1"), data("2")], [undefined, { n: 1 }]]) {
    requests = [];
    answers = [placed(), placed()];
    const form = await opened();
    const [first, second] = await Promise.allSettled([form.call("/lines", { body: one }), form.call("/lines", { body: two })]);
    assert.equal(first.value.ok, true);
    assert.match(second.reason.message, /another body under the same label/);
    assert.equal(requests.length, 1);
    form.done();
  }
  requests = [];
  answers = [placed()];
  const form = await opened();
  const both = await Promise.all([form.call("/lines", { body: data("1") }), form.call("/lines", { body: data("1") })]);
  assert.deepEqual([both[0].ok, both[0] === both[1], requests.length], [true, true, 1]);
});

test("a redirect is not followed and not asked again", async () => {
  for (const answer of [opaque, () => new Response("", { status: 307, headers: { Location: "https://other.example/" } })]) {
    requests = [];
    answers = [answer, placed()];
    const form = await opened();
    const outcome = await form.send("/orders", { body: {} });
    assert.deepEqual([outcome.kind, outcome.tries, form.state, requests[0].init.redirect], ["unknown", 1, "unknown", "manual"]);
    assert.match(outcome.error.message, /not followed to another resource/);
    await form.send("/orders", { body: {}, redirect: "follow" });
    assert.equal(requests[1].init.redirect, "follow");
  }
});

test("limits may be fractions, and as long as anybody likes", async () => {
  for (const limit of [20_000.5, 2 ** 31, Infinity]) {
    requests = [];
    answers = [placed()];
    const outcome = await (await opened({ retry: { perTryTimeoutMs: limit, totalMs: limit } })).send("/orders");
    assert.deepEqual([outcome.kind, requests.length], ["done", 1], String(limit));
  }
});

test("every object that fetch does not take is sent as JSON", async () => {
  class Order { constructor(n) { this.n = n; } }
  const stream = (text) => new Response(text).body;
  const rows = [
    [new Order(1), '{"n":1}'], [Object.assign(Object.create(null), { n: 1 }), '{"n":1}'], [[1], "[1]"], [new Date(0), '"1970-01-01T00:00:00.000Z"'],
    ["text", "text"], [new Uint8Array([97]), "a"], [new DataView(new Uint8Array([97]).buffer), "a"], [new Uint8Array([97]).buffer, "a"],
    [new Blob(["a"]), "a"], [new File(["a"], "a.txt"), "a"], [new URLSearchParams({ a: "1" }), "a=1"], [stream("a"), "a"],
  ];
  for (const [body, sent] of rows) {
    requests = [];
    answers = [() => json(503, {}), placed()];
    await (await opened()).send("/orders", { body });
    assert.deepEqual(requests.map((r) => r.body), [sent, sent]);
    assert.equal(requests[0].init.headers.get("Content-Type") === "application/json", /^[{["]/.test(sent), sent);
  }
  const used = stream("a");
  await new Response(used).text();
  await assert.rejects((await opened()).send("/orders", { body: used }), TypeError);
});

test("what encode throws is told to the person and reported", async () => {
  class Element extends EventTarget {
    attributes = new Map([["method", "post"], ["action", "/orders"]]);
    elements = [];
    getAttribute(name) { return this.attributes.get(name) ?? null; }
    setAttribute(name, value) { this.attributes.set(name, value); }
    hasAttribute(name) { return this.attributes.has(name); }
  }
  const page0 = new EventTarget();
  set("addEventListener", { value: page0.addEventListener.bind(page0) });
  const reported = [];
  set("reportError", { value: (e) => reported.push(e) });
  try {
    const { enhance } = await page();
    const [element, status] = [new Element(), new Element()];
    let body = () => { throw new Error("no file"); };
    enhance(element, { id: "checkout", status, retry: once, encode: (...args) => body(...args), onState: (t) => told.push(t) });
    const press = async (state) => {
      told = [];
      element.dispatchEvent(new Event("submit", { cancelable: true }));
      for (let turns = 0; turns < 2000 && told.at(-1)?.state !== state; turns++) await new Promise(setImmediate);
      assert.equal(told.at(-1)?.state, state);
    };
    await press("failed");
    assert.deepEqual([status.textContent, reported[0].message], ["This could not be sent. Nothing was done.", "no file"]);
    const bad = body;
    body = () => ({ toJSON() { throw new Error("cyclic"); } }); // and what send throws
    await press("failed");
    assert.equal(reported[1].message, "cyclic");
    body = () => ({});
    await press("unknown");
    body = bad;
    await press("failed");
    assert.match(status.textContent, /We do not know/, "an earlier attempt is still in doubt");
    assert.equal(requests.length, 1);
  } finally {
    delete globalThis.reportError;
    delete globalThis.addEventListener;
  }
});

test("a damaged record waits for the person", async () => {
  await opened();
  const [name] = store.items.keys();
  for (const bad of ["", "{", "null", "[]", '{"key":"x y"}', '{"key":"abcdefgh","generation":1,"created":1}']) {
    store.setItem(name, bad);
    const form = await opened();
    assert.equal(form.state, "expired", bad);
    assert.equal((await form.send("/orders")).kind, "expired");
    form.startOver();
    assert.equal(form.state, "open");
  }
  assert.equal(requests.length, 0);
});

test("BR-62: a failed request to another origin names CORS/preflight and keeps the key", async () => {
  const form = await opened({ retry: once });
  const outcome = await form.send("https://api.example/orders", { body: {} });
  assert.equal(outcome.kind, "blocked");
  assert.match(outcome.error.message, /CORS\/preflight/);
  assert.equal(form.state, "unknown");
  answers = [placed()];
  await form.send("https://api.example/orders", { body: {} });
  assert.equal(keys().length, 1);
});

test("what a developer gets wrong is said before anything is sent", async () => {
  const { open } = await page();
  for (const options of [undefined, {}, { id: "" }, { id: 7 }, { id: "a", draft: "" }, { id: "a", draft: 7 }, { id: "a", generation: 0 }, { id: "a", ttlHours: 0 }]) {
    assert.throws(() => open(options), /^Error: tekil: /);
  }
  const form = await opened();
  await assert.rejects(form.send("/orders", { method: "GET" }), /read/);
  await assert.rejects(form.send("/orders", { mode: "no-cors" }), /no-cors/);
  await assert.rejects(form.send("http://["), TypeError);
  assert.equal(requests.length, 0);
  answers = [hang];
  const stop = new AbortController();
  const sent = form.send("/orders", { signal: stop.signal });
  assert.throws(() => form.startOver(), /under way/);
  while (requests.length === 0) await new Promise(setImmediate);
  stop.abort();
  await sent;
});

test("the key is in no outcome, message or error", async () => {
  const seen = [];
  for (const answer of [placed, lost, () => problem(409, "IDEMPOTENCY_KEY_CONFLICT", "none"), () => problem(400, "X", "same-key")]) {
    answers = [answer];
    const form = await opened({ retry: once, onState: (t) => seen.push(t) });
    const outcome = await form.send("https://api.example/orders", { body: {} });
    seen.push(outcome, form, String(outcome.error?.stack), form.notice);
  }
  const text = JSON.stringify(seen);
  for (const key of keys()) assert.ok(!text.includes(key));
  assert.equal(keys().length, 2);
});

test("texts may be replaced", async () => {
  answers = [placed()];
  const outcome = await (await opened({ messages: { done: (o) => `Bestellt: ${o.data.order_id}` } })).send("/orders");
  assert.equal(outcome.message, "Bestellt: o-1");
});
