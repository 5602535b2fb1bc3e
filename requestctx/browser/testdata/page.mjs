// The page of the browser's tests. The query says how the form is opened.
import { enhance } from "/assets/tekil/tekil.mjs";

const query = new URLSearchParams(location.search);
const element = document.querySelector("#checkout");
window.told = [];
element.addEventListener("tekil:state", (event) => window.told.push(event.detail.state));
window.shown = 0;
addEventListener("pageshow", (event) => (window.shown += event.persisted ? 1 : 0));
try {
  window.checkout = enhance(element, {
    id: "checkout",
    draft: query.get("draft") ?? undefined,
    url: query.get("api") ?? undefined,
    status: document.querySelector("#status"),
    startOver: document.querySelector("#over"),
    reference: (placed) => placed.order_id,
    retry: { tries: 1 },
  });
} catch (error) {
  window.refused = error.message;
}
window.ready = true;
