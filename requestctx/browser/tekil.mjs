// The browser's side of a command that is done effectively once: it makes the key of a form, keeps it and sends it.
// Who makes the key, when, where it is kept and when it is thrown away is told in doc.go; the types are in tekil.d.mts.
// No dependencies, and no build step. The key is in sessionStorage and in the header, and nowhere else.

const HEADER = "Idempotency-Key";
const RETRY = { tries: 3, perTryTimeoutMs: 20_000, totalMs: 60_000, accepted: false };
const BACKOFF_MS = 500; // doubled with each try; half of it is chance
const MAX_TIMER = 2 ** 31 - 1; // what setTimeout and AbortSignal.timeout can wait
const AHEAD_MS = 5 * 60_000; // by how much the clock may be set back
const CERTAIN = new Set(["done", "refused", "conflict", "busy"]); // outcomes that say what became of this try
const unknown = (o) => (o?.final ? "We do not know whether this went through, and pressing again will not tell. Please ask us."
  : "We do not know whether this went through. Press again: it will not be done twice.");

/** What the person is told, in English. Each one may be replaced by a text or by a function of the outcome. */
export const messages = Object.freeze({
  open: "",
  sending: "Sending…",
  edited: "You changed this after an attempt whose outcome we do not know. The first attempt may have succeeded; then the change is not sent as new work. Sending…",
  unknown,
  blocked: unknown,
  conflict: (o) => (o?.problem?.code === "IDEMPOTENCY_KEY_CONFLICT"
    ? "The first attempt was received with other details, so this change was not sent as new work. Look at what was done before you start over."
    : "This conflicts with what is there already, so it was not done as new work. Look at what was done before you start over."),
  "in-progress": "This is still being worked on. Press again in a moment: it will not be done twice.",
  accepted: "This was received and is being worked on. It is not done yet.",
  busy: "The service is busy, and nothing was done. Press again in a moment.",
  refused: (o) => (o.final ? "This was refused. To try something else, start over." : "This was not accepted. Correct it and press again."),
  expired: "An earlier attempt is too old to be asked about. It may have succeeded: look at what was done before you start over.",
  failed: "This could not be sent. Nothing was done.",
  done: (o) => (o?.reference === undefined ? "Done." : `Done. Your number is ${o.reference}.`),
  again: "This has been done already. Nothing was sent.",
});

// Errors for the developer. They never hold the key.
const fail = (text, cause) => new Error(`tekil: ${text}`, { cause });
const noStorage = (cause) => fail("sessionStorage is forbidden or full, so the key would be lost with the page and the next one would be new work; " +
  "open the form with a draft", cause);

// What a callback of the page throws is reported and changes nothing: a success must not look as if it were still on its way.
function report(error) {
  if (typeof globalThis.reportError === "function") globalThis.reportError(error);
  else console.error(error);
}

function guarded(callback) {
  try {
    return callback();
  } catch (error) {
    report(error);
  }
}

const say = (text, outcome) => (typeof text === "function" ? text(outcome) : text);
const textOf = (texts, what, outcome) => guarded(() => say(texts?.[what], outcome)) ?? say(messages[what], outcome);

const utf8 = new TextEncoder();

async function hash(parts) {
  const chunks = parts.flatMap((part) => {
    const bytes = typeof part === "string" ? utf8.encode(part) : new Uint8Array(part);
    return [utf8.encode(`${bytes.length}:`), bytes];
  });
  const sum = await crypto.subtle.digest("SHA-256", await new Blob(chunks).arrayBuffer());
  return btoa(String.fromCharCode(...new Uint8Array(sum))).replaceAll("+", "-").replaceAll("/", "_").replace("=", "");
}

/** Makes a key of parts, the same in every language: base64url of SHA-256 over each part's length, ":" and bytes. */
export const derive = (...parts) => hash(parts);

// ---- What is kept -------------------------------------------------------------------------------------------------

// A record is {key, generation, created, sent, confirmed}. With a draft there is no key in it, because it is derived, and confirmed
// says that it has succeeded once. sent says per call what was sent and not taken back by a certain answer: {digest, edited, done,
// route, gone}, where gone is that the server has forgotten it; or {refused}, if it was taken back.

const live = new Map(); // the intents of this page, so that two objects for one form have one guard

const nameOf = (id, draft) => `tekil ${JSON.stringify([id, draft ?? null])}`;
const isSent = (record) => Object.values(record.sent).some((s) => !s.refused);

// Throws where the browser forbids storage: there the property itself does.
function read(name, generation = 1) {
  const text = globalThis.sessionStorage.getItem(name);
  if (text === null) return undefined;
  try {
    const r = JSON.parse(text);
    const key = r.key === undefined || /^[A-Za-z0-9._:-]{8,128}$/.test(r.key);
    if (key && Number.isSafeInteger(r.generation) && r.generation > 0 && Number.isFinite(r.created) && typeof r.sent === "object" &&
      Object.values(r.sent).every((s) => typeof s === "object" && s)) return r;
  } catch {} // as below
  // Something has damaged it. What was sent under it is not known, so it is as one that is too old: a person decides.
  return { generation, created: 0, sent: { "": { digest: "" } } };
}

function fresh(draft, generation) {
  return { key: draft === undefined ? crypto.randomUUID() : undefined, generation, created: Date.now(), sent: {} };
}

const write = (name, record) => globalThis.sessionStorage.setItem(name, JSON.stringify(record));

// For what a later page only likes to know. The key itself is there already, or comes from the draft.
function note(intent) {
  if (intent.spent) return; // its key must not come back
  try {
    write(intent.name, intent.record);
    intent.unsaved = false;
  } catch {
    intent.unsaved = true; // full or forbidden
  }
}

// ---- The form -----------------------------------------------------------------------------------------------------

/** Opens a form: takes up its key, or makes one. Throws where a key could not be kept. */
export function open(options) {
  const { id, draft, generation = 1, ttlHours = 24, onState } = options ?? {};
  if (typeof id !== "string" || id === "") throw fail("open() needs the id of the form, a text that is the same at every opening");
  if (draft !== undefined && (typeof draft !== "string" || draft === "")) throw fail("the draft must be its id, a text that is not empty, or be left out");
  if (!Number.isSafeInteger(generation) || generation < 1) throw fail("the generation must be a whole number from 1");
  if (!(ttlHours > 0)) throw fail("ttlHours must be a number of hours above 0");
  if (!globalThis.crypto?.randomUUID || !globalThis.crypto.subtle) {
    throw fail("crypto.randomUUID and crypto.subtle are missing; serve the page over HTTPS or from localhost");
  }
  const limits = { ...RETRY, ...options.retry };
  const name = nameOf(id, draft);
  const tooOld = ({ created }) => Date.now() - created > ttlHours * 3_600_000 || created - Date.now() > AHEAD_MS;
  const expired = (record) => Object.values(record.sent).some((s) => s.gone) ||
    (tooOld(record) && (isSent(record) || Boolean(record.confirmed)));
  const text = (what, outcome) => textOf(options.messages, what, outcome);
  const tell = (state, outcome) => guarded(() => onState?.({ state, message: outcome?.message ?? text(state, outcome), outcome }));

  const intent = take();
  renew();

  // Storage has the last word, because another page of this tab may have finished the work. Without storage there is the draft.
  function take() {
    const known = live.get(name);
    let record;
    try {
      record = read(name, generation);
      if (record === undefined || (draft !== undefined && record.generation < generation)) {
        record = fresh(draft, Math.max(generation, record?.generation ?? 1));
        write(name, record);
      }
    } catch (cause) {
      if (draft === undefined) throw noStorage(cause);
      record = known?.record ?? record ?? fresh(draft, generation);
    }
    if (known?.record.key === record.key && known?.record.generation === record.generation) {
      // This page may come from the back/forward cache, and another one has sent since.
      if (known.unsaved) record.sent = { ...known.record.sent, ...record.sent };
      if (!known.running.size) known.record = record;
      return known;
    }
    const made = { name, record, running: new Map(), results: new Map(), spent: false, unsaved: false };
    live.set(name, made);
    return made;
  }

  // A key that is past its time and was never sent is made anew, before anything is sent under it.
  function renew() {
    const { record } = intent;
    if (!tooOld(record) || expired(record) || intent.spent) return;
    const next = fresh(draft, record.generation);
    try {
      write(name, next);
    } catch (cause) {
      if (draft === undefined) throw noStorage(cause);
      intent.unsaved = true;
    }
    intent.record = next;
  }

  function finish() {
    const { record } = intent;
    record.sent = {};
    record.confirmed = true;
    if (draft !== undefined) note(intent); // its generation must not fall back
    intent.spent = true;
    live.delete(name);
    if (draft !== undefined) return;
    try {
      if (read(name)?.key === record.key) globalThis.sessionStorage.removeItem(name);
    } catch {} // forbidden since: the next opening says so
  }

  // Synchronous up to the guard, so that two events of one turn are one request.
  async function dispatch(label, url, init = {}) {
    const { method: verb = "POST", body, headers, signal, ...rest } = init;
    const method = verb.toUpperCase();
    const target = new URL(url, globalThis.location?.href);
    const call = label === undefined ? "" : `${method} ${target.pathname} ${label}`;
    const route = `${method} ${target.origin}${target.pathname}`;
    if (method === "GET" || method === "HEAD") throw fail("a read carries no key; use fetch");
    if (new Headers(headers).has(HEADER)) throw fail(`the header ${HEADER} is this module's; leave it out`);
    if (rest.mode === "no-cors") throw fail("the mode no-cors drops the header that holds the key; use cors");
    const other = intent.running.get(call) ?? (intent.spent ? undefined : intent.record.sent[call]);
    if (other?.route !== undefined && other.route !== route) {
      throw fail("send() is for the one request of a form, and this form's key has gone to another route; use call(), or another form");
    }
    if (intent.spent) {
      const outcome = intent.results.get(call);
      if (outcome === undefined) throw fail("the form is done; open() it again for new work");
      tell("done", { ...outcome, message: text("again", outcome) });
      return outcome;
    }
    const running = intent.running.get(call);
    if (running && label === undefined) return running.outcome;
    const encoded = encode(body);
    encoded.catch(() => {}); // it is told where it is awaited
    if (running) {
      const [one, two] = await Promise.all([running.encoded, encoded]);
      if ((await hash(one.print)) !== (await hash(two.print))) {
        throw fail("another body under the same label, while the first call is under way; give each its label");
      }
      return running.outcome;
    }
    const request = new Request(target, { ...rest, method, headers }); // throws here for what can never be sent
    const sent = { ...rest, method, redirect: rest.redirect ?? "manual" }; // on another resource the key would be other work
    const outcome = attempt({ call, label, route, target, request, encoded, signal, init: sent });
    intent.running.set(call, { route, outcome, encoded });
    try {
      return await outcome;
    } finally {
      intent.running.delete(call);
    }
  }

  async function attempt(it) {
    renew();
    const { record } = intent;
    if (expired(record)) return conclude({ kind: "expired", tries: 0 });
    const { bytes, type, print } = await it.encoded;
    const own = record.key ?? (await derive("draft/1", id, draft, String(record.generation)));
    const key = it.label === undefined ? own : await derive("call/1", own, it.init.method, it.target.pathname, it.label);
    const headers = new Headers(it.request.headers);
    if (type && !headers.has("Content-Type")) headers.set("Content-Type", type);
    headers.set(HEADER, key);

    const digest = await hash([key, ...print]);
    const last = record.sent[it.call];
    const before = last?.refused ? undefined : last;
    const edited = before !== undefined && (Boolean(before.edited) || before.digest !== digest);
    const mark = { digest, edited, done: false, route: it.route };
    record.sent[it.call] = mark;
    note(intent); // before it is sent: the page may not live to see the answer
    tell(edited ? "edited" : "sending");

    const outcome = await persist(it, { ...it.init, headers, body: bytes });
    outcome.edited = edited;
    if (outcome.kind === "done") {
      mark.done = true;
      intent.results.set(it.call, outcome);
      if (it.label === undefined) finish();
      else note(intent);
    } else if (outcome.kind === "expired") {
      mark.gone = true;
      note(intent);
    } else if (outcome.certain) { // this attempt has done nothing, which says nothing of an earlier one
      record.sent[it.call] = before ?? (outcome.kind === "conflict" ? { digest: "", edited: true, route: it.route } : { refused: true });
      note(intent);
    }
    return conclude(outcome);
  }

  function conclude(outcome) {
    delete outcome.certain;
    outcome.edited ??= false;
    outcome.ok = outcome.kind === "done";
    if (outcome.ok) outcome.reference = guarded(() => options.reference?.(outcome.data));
    outcome.message = text(outcome.kind, outcome);
    tell(outcome.kind, outcome);
    return outcome;
  }

  // The same bytes under the same key, within the limits.
  async function persist(it, init) {
    const until = performance.now() + limits.totalMs;
    for (let tries = 1, certain = true; ; tries++) {
      const left = Math.max(0, until - performance.now());
      const outcome = await once(it.target, init, it.signal, Math.min(limits.perTryTimeoutMs, left));
      certain &&= CERTAIN.has(outcome.kind);
      const slot = BACKOFF_MS * 2 ** (tries - 1);
      const wait = (outcome.retryAfterMs ?? 0) + slot / 2 + (Math.random() * slot) / 2;
      const again = outcome.kind === "accepted" ? limits.accepted : outcome.again;
      delete outcome.again;
      if (!again || tries >= limits.tries || it.signal?.aborted || performance.now() + wait >= until) return { ...outcome, certain, tries };
      await pause(wait, it.signal);
      if (it.signal?.aborted) return { ...outcome, certain, tries };
    }
  }

  return Object.freeze({
    /** Sends the one request of a form with the form's own key. Success spends the form. */
    send: (url, init) => dispatch(undefined, url, init),
    /** Sends one of several requests with a key derived from the form's, the method, the path and the label. */
    call: (url, { label = "", ...init } = {}) => dispatch(label, url, init),
    /** Says that all calls of a form have succeeded, and spends it. */
    done() {
      if (intent.spent) return;
      if (intent.running.size) throw fail("done() while a request is under way");
      if (Object.values(intent.record.sent).some((s) => !s.done)) throw fail("done() while the outcome of a call is not confirmed");
      finish();
    },
    /** Makes this new work, with a new key. It is the person's decision, and only theirs. */
    startOver() {
      if (intent.running.size) throw fail("startOver() while a request is under way");
      const next = fresh(draft, intent.record.generation + 1);
      try {
        write(name, next);
      } catch (cause) {
        throw fail("startOver() cannot keep the decision, as sessionStorage is forbidden or full; make a new draft", cause);
      }
      Object.assign(intent, { record: next, spent: false, unsaved: false });
      intent.results.clear();
      live.set(name, intent);
      tell("open");
    },
    get busy() {
      return intent.running.size > 0;
    },
    get generation() {
      return intent.record.generation;
    },
    /** open: nothing is in doubt; unknown: something was sent, and is not confirmed; expired: too old to be asked about; done: spent. */
    get state() {
      if (intent.spent) return "done";
      if (expired(intent.record)) return "expired";
      return isSent(intent.record) ? "unknown" : "open";
    },
    /** What the person is to be told now, "" for nothing. */
    get notice() {
      return text(this.state, intent.results.get(""));
    },
  });
}

// ---- One try ------------------------------------------------------------------------------------------------------

// The body as bytes, which all tries send, and what the digest is made of. The two differ for FormData, as its boundary is new
// each time. What fetch would take as it is, of any realm, is sent so; every other object is JSON.
const RAW = new Set(["Blob", "File", "ArrayBuffer", "FormData", "URLSearchParams", "ReadableStream"]);

async function encode(body) {
  if (body === undefined || body === null) return { print: [] };
  const tag = Object.prototype.toString.call(body).slice(8, -1);
  const json = typeof body === "object" && !RAW.has(tag) && !ArrayBuffer.isView(body);
  const whole = new Response(json ? JSON.stringify(body) : body);
  const type = json ? "application/json" : whole.headers.get("Content-Type");
  const bytes = await whole.arrayBuffer();
  if (tag !== "FormData") return { bytes, type, print: [bytes] };
  const print = [];
  for (const [field, value] of body) print.push(field, ...(typeof value === "string" ? ["text", value] : ["file", await value.arrayBuffer()]));
  return { bytes, type, print };
}

async function once(target, init, stop, ms) {
  let response;
  try {
    const signal = AbortSignal.any([AbortSignal.timeout(Math.min(Math.ceil(ms), MAX_TIMER)), ...(stop ? [stop] : [])]);
    response = await fetch(target, { ...init, signal });
    return judge(response, await response.text()); // without its body an answer confirms nothing to the person
  } catch (cause) {
    const { location } = globalThis;
    if (cause?.name === "TypeError" && !response && location && location.origin !== target.origin) {
      return { kind: "blocked", again: true, error: fail("the request to another origin failed: the network, or CORS/preflight. The API must allow this origin and the " +
        `header ${HEADER} (httpedge.CORS), and the page's Content-Security-Policy must name it in connect-src`, cause) };
    }
    return { kind: "unknown", again: true, error: fail("there was no answer", cause) };
  }
}

function judge(response, text) {
  const { status, headers } = response;
  const outcome = { status, data: text, replayed: headers.get("Idempotency-Replayed") === "true" };
  if (/[/+]json\b/.test(headers.get("Content-Type") ?? "")) {
    try {
      outcome.data = JSON.parse(text);
    } catch {} // then it stays a text
  }
  const body = typeof outcome.data === "object" && outcome.data !== null ? outcome.data : {};
  Object.assign(outcome, {
    requestId: headers.get("X-Request-ID") ?? undefined,
    operationId: body.operation_id,
    location: headers.get("Location") ?? undefined,
    retryAfterMs: after(headers.get("Retry-After")),
  });
  if (!response.ok) Object.assign(outcome, { problem: body, errors: byPath(body.errors), final: body.retry === "none" });
  const kind = kindOf(response, body);
  const moved = response.type === "opaqueredirect" || (status >= 300 && status < 400);
  if (moved) {
    outcome.error = fail("the answer is a redirect, and a keyed request is not followed to another resource; send it where it is answered");
  } else if (kind === "unknown" && response.redirected) outcome.error = fail("the answer came from a redirect, perhaps to a login page, so it confirms nothing");
  const again = ["unknown", "busy", "in-progress"].includes(kind) && !response.redirected && !moved && (body.retry ?? "same-key") === "same-key";
  return { ...outcome, kind, again };
}

// What an answer means. The code counts before the status, because an application may choose its own statuses.
function kindOf(response, { code, retry }) {
  const { status } = response;
  // A redirect may have led to a page that knows nothing of the request. The edge marks every answer of its own.
  if (response.redirected && !response.headers.has("Idempotency-Replayed")) return "unknown";
  if (status === 202) return "accepted";
  if (response.ok) return "done";
  if (code === "IDEMPOTENCY_KEY_CONFLICT") return "conflict";
  if (code === "IDEMPOTENCY_REQUEST_IN_PROGRESS") return "in-progress";
  if (code === "IDEMPOTENCY_KEY_EXPIRED" || code === "IDEMPOTENCY_RESULT_UNAVAILABLE") return "expired";
  if (code === "IDEMPOTENCY_OUTCOME_UNKNOWN") return "unknown";
  if (status === 409) return retry === "same-key" || (!code && !retry && response.headers.has("Retry-After")) ? "in-progress" : "conflict";
  if (status === 429) return "busy";
  return status === 408 || status === 425 || status >= 500 || status < 400 ? "unknown" : "refused";
}

function byPath(errors) {
  const found = Object.create(null); // a path may be anything
  for (const e of Array.isArray(errors) ? errors : []) (found[e.path] ??= []).push(e.message);
  return found;
}

function after(value) {
  if (value === null) return undefined;
  const ms = /^\d+$/.test(value) ? value * 1000 : Date.parse(value) - Date.now();
  return Number.isFinite(ms) ? Math.max(0, ms) : undefined;
}

function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, Math.min(ms, MAX_TIMER));
    signal?.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}

// ---- A plain form -------------------------------------------------------------------------------------------------

const OVER = new Set(["edited", "conflict", "expired"]); // where to start over is something to decide

// The fields as JSON: a number for <input type=number>, else a text, a list where a name comes more than once.
function fields(element, submitter) {
  const body = Object.create(null);
  for (const [field, value] of new FormData(element, submitter)) {
    if (typeof value !== "string") throw fail("the form has a file; give encode");
    const input = element.elements.namedItem(field);
    const item = input?.type === "number" && value !== "" ? input.valueAsNumber : value;
    body[field] = field in body ? [].concat(body[field], item) : item;
  }
  return body;
}

/** Makes a form of the page send its fields by open(). Says what happens in options.status and by the event "tekil:state". */
export function enhance(element, options) {
  const { status, startOver, encode: body = fields, headers, credentials } = options;
  const url = options.url ?? (element.getAttribute("action") || location.href);
  const method = options.method ?? element.getAttribute("method") ?? "GET";
  if (/^(get|head)$/i.test(method)) throw fail("the form has the method GET, whose fields would stand in the URL; give it method=\"post\"");
  if (status && !status.hasAttribute("aria-live") && !status.hasAttribute("role")) status.setAttribute("role", "status");
  const ended = new AbortController();
  const on = (target, event, listener) => target.addEventListener(event, listener, { signal: ended.signal });

  // aria-disabled and not disabled, which would take the focus away. The guard is what stops a second press.
  function show(detail) {
    const sending = detail.outcome === undefined && (detail.state === "sending" || detail.state === "edited");
    element.setAttribute("aria-busy", String(sending));
    for (const button of element.elements) if (button.type === "submit") button.setAttribute("aria-disabled", String(sending));
    if (status) status.textContent = detail.message;
    if (startOver) startOver.hidden = !(OVER.has(detail.state) || detail.outcome?.final || (detail.outcome?.edited && !detail.outcome.ok));
    element.dispatchEvent(new CustomEvent("tekil:state", { bubbles: true, detail }));
    guarded(() => options.onState?.(detail));
  }

  const reopen = () => {
    const form = open({ ...options, onState: show });
    show({ state: form.state, message: form.notice });
    return form;
  };
  let form = reopen();

  // After a success nothing is sent until the person begins something else: the second half of a slow double click is no order.
  const renew = () => {
    if (form.state === "done" && options.draft === undefined) form = reopen();
  };
  on(element, "input", renew);
  on(element, "reset", renew);
  on(globalThis, "pageshow", (event) => {
    if (event.persisted && !form.busy) form = reopen(); // back from another page, which may have finished the work
  });
  on(element, "submit", async (event) => {
    if (event.defaultPrevented) return;
    event.preventDefault();
    if (form.busy) return;
    try {
      await form.send(url, { method, headers, credentials, body: body(element, event.submitter) });
    } catch (error) { // thrown before anything was sent; an earlier attempt may still be in doubt
      report(error);
      show({ state: "failed", message: form.state === "open" ? textOf(options.messages, "failed") : form.notice });
    }
  });
  if (startOver) on(startOver, "click", () => form.busy || form.startOver());

  return Object.freeze({
    startOver: () => form.startOver(),
    /** Gives the form back to the browser. */
    release: () => ended.abort(),
    get form() {
      return form;
    },
  });
}
