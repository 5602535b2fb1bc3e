// The page of the checkout: a form that pays, switches that make trouble, and a look at what the server holds. The key of the form is
// made, kept and sent by tekil.mjs; this file neither reads nor shows it.
import { enhance } from "/tekil/tekil.mjs";

const $ = (id) => document.getElementById(id);
const element = $("checkout");
const demo = $("trouble") !== null;
const on = (id) => $(id)?.checked ?? false;
const keyed = () => $("keyed")?.checked ?? true;

// ---- The cart -----------------------------------------------------------------------------------------------------

// A new order is a new cart. It is kept as long as the form's key is, in the same storage, so that both survive a reload. The cart's id
// is seen by everybody in the list of orders, so the key is not derived from it (enhance is given no draft).
const CART = "checkout cart";

function stored() {
  try {
    return JSON.parse(sessionStorage.getItem(CART)) ?? undefined;
  } catch {
    return undefined;
  }
}
const keep = () => cart.paid || sessionStorage.setItem(CART, JSON.stringify(cart));
const forget = () => sessionStorage.removeItem(CART);

let cart;
let made = 0; // the orders of this cart

function takeCart() {
  const before = cart?.id;
  cart = stored() ?? { id: `cart-${crypto.randomUUID().slice(0, 8)}`, presses: 0, requests: 0 };
  keep();
  $("cart").defaultValue = $("cart").value = cart.id; // a reset keeps it
  if (cart.id !== before) {
    made = 0;
    $("new-order").hidden = true;
    count();
  }
}

// ---- The form -----------------------------------------------------------------------------------------------------

function minorUnits() {
  const found = /^\s*(\d{1,9})(?:[.,](\d{1,2}))?\s*$/.exec($("amount").value);
  return found ? Number(found[1]) * 100 + Number((found[2] ?? "").padEnd(2, "0")) : undefined;
}

const order = () => ({ cart_id: cart.id, amount: minorUnits(), currency: "TRY", email: $("email").value.trim() });

// Each text stands beside its field, and the first field gets the focus.
function showErrors(errors) {
  let first;
  for (const [path, id] of [["cart_id", "cart"], ["amount", "amount"], ["email", "email"]]) {
    const text = errors?.[path]?.join(". ") ?? "";
    $(`${path}-error`).textContent = text && text[0].toUpperCase() + text.slice(1) + ".";
    $(`${path}-error`).hidden = !text;
    $(id).setAttribute("aria-invalid", String(Boolean(text)));
    if (text) first ??= $(id);
  }
  first?.focus();
}

function placed() {
  cart.paid = true; // and so neither cart nor key is taken up again
  forget();
  $("new-order").hidden = false;
}

element.addEventListener("tekil:state", ({ detail: { state, outcome } }) => {
  if (outcome === undefined) {
    showErrors();
    if (state !== "sending" && state !== "edited") takeCart(); // the form was opened
    return;
  }
  showErrors(outcome.errors);
  if (outcome.ok) placed();
  refresh();
});

$("start-over").addEventListener("click", () => form?.form.busy || forget()); // enhance does the rest

$("new-order").addEventListener("click", () => {
  if (blind > 0 || form.form.busy) return;
  const { state } = form.form;
  forget();
  element.reset(); // after a success this opens the form anew
  if ($("wrong")) $("wrong").checked = false;
  if (state === "unknown" || state === "expired") form.startOver(); // tried with a key, and then paid without one
  if (cart.paid) takeCart();
  $("status").textContent = "";
  $("pay").focus();
  refresh();
});

// Before enhance, so that this listener comes first.
element.addEventListener("submit", (event) => {
  if (minorUnits() === undefined) {
    event.preventDefault();
    showErrors({ amount: ["write an amount such as 49.90"] });
    return;
  }
  cart.presses++;
  keep();
  count();
  if (blind === 0 && !form.form.busy) lost = 0;
  if (!keyed()) {
    event.preventDefault();
    payBlindly();
  }
});

// ---- Trouble ------------------------------------------------------------------------------------------------------

let lost = 0; // the answers of this press that were lost

// Counts what is sent, and asks the server for trouble. The module calls the page's fetch for each of its tries.
const send = globalThis.fetch;
globalThis.fetch = (input, init) => {
  if (init?.method !== "POST") return send(input, init);
  const headers = new Headers(init.headers);
  if (on("lose-all") || (on("lose") && lost++ < 4)) headers.set("X-Demo-Drop", "1");
  if (on("slow")) headers.set("X-Demo-Delay", "3s");
  cart.requests++;
  keep();
  count();
  return send(input, { ...init, headers });
};

// One press is two submits in one turn.
$("pay").addEventListener("click", (event) => {
  if (!on("double")) return;
  event.preventDefault();
  element.requestSubmit($("pay"));
  element.requestSubmit($("pay"));
});

$("wrong")?.addEventListener("change", () => ($("amount").value = on("wrong") ? "0.00" : "49.90"));
$("amount").addEventListener("input", () => on("wrong") && ($("wrong").checked = false));

let blind = 0; // how many of these are under way

// What a page does that knows nothing of keys: no guard, and the same again where no answer comes.
async function payBlindly() {
  blind++;
  cart.keyless = true;
  showErrors();
  $("status").textContent = "Sending…";
  element.setAttribute("aria-busy", "true");
  const body = JSON.stringify(order());
  const mine = cart;
  let says = "There was no answer. Was it paid? Nobody knows.";
  for (let tries = 1; tries <= 5; tries++) {
    try {
      const response = await fetch("/demo/checkouts", { method: "POST", headers: { "Content-Type": "application/json" }, body });
      const answer = await response.json();
      if (response.ok) {
        says = `Order ${answer.order_id} is placed.`;
        if (mine === cart) placed();
      } else {
        says = "This was not accepted. Correct it and press again.";
        showErrors(errorsOf(answer));
      }
      break;
    } catch {
      await new Promise((resolve) => setTimeout(resolve, 300));
    }
  }
  blind--;
  if (blind === 0) element.setAttribute("aria-busy", "false");
  $("status").textContent = says;
  refresh();
}

function errorsOf({ errors = [] }) {
  const found = {};
  for (const { path, message } of errors) (found[path] ??= []).push(message);
  return found;
}

// ---- What the server holds ----------------------------------------------------------------------------------------

const some = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;

function verdict() {
  const { requests, presses } = cart;
  const keyless = cart.keyless || !$("keyed"); // there is no such switch where the server reads no key
  if (requests === 0) return "Press Pay.";
  if (made === 0) return `${some(requests, "request")}, no order yet.`;
  if (made > 1) return `${some(requests, "request")}, ${made} orders: without a key nobody could know they were one.`;
  if (requests > 1 && !keyless) return `${requests} requests, 1 order: the key did its work.`;
  if (presses > 1 && !keyless) return `${presses} presses, 1 request, 1 order: the page sent it once.`;
  return `${some(requests, "request")}, 1 order.`;
}

function count() {
  if (!demo) return;
  for (const [id, value] of [["presses", cart.presses], ["requests", cart.requests], ["made", made], ["verdict", verdict()]]) {
    if ($(id).textContent !== String(value)) $(id).textContent = value;
  }
  $("live").classList.toggle("bad", made > 1);
}

function make(tag, text, ...children) {
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = text;
  e.append(...children);
  return e;
}

// A column is [heading, what makes its cell, class].
function table(id, caption, columns, rows) {
  const place = $(id);
  const said = JSON.stringify([caption, rows, cart.id]);
  if (place.said === said) return; // so that a selection stays
  place.said = said;
  const cell = (tag, value, kind) => {
    const e = value instanceof Node ? make(tag, undefined, value) : make(tag, value);
    if (kind) e.className = kind;
    if (tag === "th") e.scope = "col";
    return e;
  };
  if (rows.length === 0) {
    const none = make("p", "None yet.");
    none.className = "empty";
    place.replaceChildren(make("h3", caption), none);
    return;
  }
  const body = rows.map((row) => {
    const line = make("tr", undefined, ...columns.map(([, of, kind]) => cell("td", of(row), kind)));
    if (row.cart_id === cart.id) line.className = "mine";
    return line;
  });
  place.replaceChildren(make("table", undefined, make("caption", caption),
    make("thead", undefined, make("tr", undefined, ...columns.map(([heading, , kind]) => cell("th", heading, kind)))),
    make("tbody", undefined, ...body)));
  place.tabIndex = 0; // it can be scrolled where the window is narrow
  place.setAttribute("role", "region");
  place.setAttribute("aria-label", caption);
}

const code = (text) => make("code", text);
const time = (text) => text.slice(0, 19).replace("T", " ");
const short = (text) => (text.length > 14 ? `${text.slice(0, 13)}…` : text);
const clock = (text) => text.slice(11, 19);

function money({ amount, currency }) {
  const digits = new Intl.NumberFormat("en", { style: "currency", currency }).resolvedOptions().maximumFractionDigits;
  return `${(amount / 10 ** digits).toFixed(digits)} ${currency}`;
}

function showOrders(caption, rows) {
  table("orders", caption, [
    ["Cart", (o) => o.cart_id], ["Amount", money, "amount"], ["Status", (o) => o.status], ["Placed at (UTC)", (o) => time(o.created_at)],
    ["Order", (o) => code(o.order_id)],
  ], rows);
}

function show(state) {
  made = state.cart_orders;
  count();
  showOrders(`Orders: ${state.orders.total}`, state.orders.newest);
  const { total, newest } = state.authorizations ?? { total: "not known, as the provider does not answer", newest: [] };
  table("authorizations", `Authorisations: ${total}`, [
    ["Cart", (a) => a.cart_id], ["Amount", money, "amount"], ...(newest.some((a) => a.key) ? [["Key", (a) => code(a.key ?? "none")]] : []),
    ["Authorisation", (a) => code(a.id)],
  ], newest);
  table("records", "Idempotency records", [
    ["Key", (r) => code(r.key)], ["State", (r) => r.state], ["Attempts", (r) => r.attempts, "amount"], ["Command", (r) => r.command],
    ["Created (UTC)", (r) => time(r.created_at)], ["Expires (UTC)", (r) => time(r.expires_at)], ["Points to", (r) => code(short(r.external_ref ?? ""))],
  ], state.records);
  const lines = state.log.filter((l) => l.kind === "command").slice(0, 5).map((l) => make("li",
    [clock(l.time), l.command, l.outcome, l.state, l.key ? `key=${l.key}` : "no key", l.duration].filter(Boolean).join("  ")));
  $("log").replaceChildren(...lines);
}

let asked = 0;

async function refresh() {
  const mine = ++asked;
  try {
    if (!demo) {
      const { orders } = await (await send("/api/v1/orders?limit=50")).json();
      if (mine === asked) showOrders("Orders", orders);
      return;
    }
    const id = cart.id;
    const response = await send(`/demo/state?cart=${encodeURIComponent(id)}`, { cache: "no-store" });
    if (!response.ok) return;
    const state = await response.json();
    if (mine === asked && id === cart.id) show(state);
  } catch {} // the next look says more
}

// ---- Begin --------------------------------------------------------------------------------------------------------

let form;
try {
  form = begin();
  $("pay").disabled = false;
} catch (error) { // nothing can be kept, or the page is not secure
  $("status").textContent = `Paying is not possible here. ${error.message}`;
}

function begin() {
  return enhance(element, {
    id: "checkout",
    encode: order,
    status: $("status"),
    startOver: $("start-over"),
    reference: (answer) => answer.order_id,
    retry: { tries: 5 },
    messages: {
      done: (o) => (o.replayed ? `Order ${o.reference} is placed. An earlier try had placed it already.` : `Order ${o.reference} is placed.`),
      again: (o) => `Order ${o.reference} is placed already. Nothing was sent.`,
    },
  });
}

if (demo && cart) {
  refresh();
  setInterval(() => document.visibilityState === "visible" && refresh(), 1000);
}
