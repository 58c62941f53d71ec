// Asks the browser for a passkey before a form is sent that has a field for one.
"use strict";

const FIELD = "input[name=passkey]";

function toBytes(text) {
  const plain = atob(text.replace(/-/g, "+").replace(/_/g, "/"));
  return Uint8Array.from(plain, (letter) => letter.charCodeAt(0));
}

function toText(buffer) {
  const letters = Array.from(new Uint8Array(buffer), (byte) => String.fromCharCode(byte));
  return btoa(letters.join("")).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
}

function withBytes(options) {
  const described = (each) => ({ ...each, id: toBytes(each.id) });
  const made = { ...options, challenge: toBytes(options.challenge) };
  if (options.user) made.user = described(options.user);
  if (options.allowCredentials) made.allowCredentials = options.allowCredentials.map(described);
  if (options.excludeCredentials) made.excludeCredentials = options.excludeCredentials.map(described);
  return made;
}

function asJson(credential) {
  const response = {};
  for (const name of ["clientDataJSON", "attestationObject", "authenticatorData", "signature", "userHandle"]) {
    if (credential.response[name]) response[name] = toText(credential.response[name]);
  }
  const id = toText(credential.rawId);
  return JSON.stringify({ id, rawId: id, type: credential.type, clientExtensionResults: {}, response });
}

// What the server has to know before: all fields for an approval, those of a new passkey, nothing to sign in.
function question(form, button, address) {
  const given = new FormData(form, button);
  for (const name of ["csrf", "passkey"]) given.delete(name);
  if (address === "/sign-in/options") return {};
  if (address === "/passkeys/new/options") return Object.fromEntries(given);
  given.delete("pin");
  return { path: new URL(form.action).pathname, fields: Array.from(given) };
}

async function ask(form, button, field) {
  const address = field.dataset.options;
  const csrf = form.querySelector("input[name=csrf]");
  const answer = await fetch(address, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-CSRF-Token": csrf ? csrf.value : "" },
    body: JSON.stringify(question(form, button, address)),
  });
  const options = await answer.json();
  if (!answer.ok) throw new Error(options.error || options.error_description);
  const publicKey = withBytes(options);
  const creates = Boolean(options.user);
  field.value = asJson(await navigator.credentials[creates ? "create" : "get"]({ publicKey }));
}

function explain(error) {
  if (error.name === "NotAllowedError") return "The passkey was not used, so nothing was sent. Try again.";
  if (error.name === "InvalidStateError") return "This device has a passkey for this site already.";
  return error.message || "The passkey could not be used, so nothing was sent.";
}

document.addEventListener("submit", async (event) => {
  const form = event.target;
  const button = event.submitter;
  const field = form.querySelector(FIELD);
  const rejects = button && button.formNoValidate; // a no takes nothing
  const pin = field && field.dataset.orPin !== undefined && form.querySelector("input[name=pin]");
  if (!field || field.value || rejects || (pin && pin.value)) return;
  event.preventDefault();
  if (field.dataset.busy) return;
  field.dataset.busy = "yes";
  const problem = form.querySelector("[data-problem]");
  problem.hidden = true;
  try {
    if (!window.PublicKeyCredential) throw new Error("This browser does not support passkeys.");
    await ask(form, button, field);
    form.requestSubmit(button);
  } catch (error) {
    problem.textContent = explain(error);
    problem.hidden = false;
  } finally {
    delete field.dataset.busy;
  }
});

// After a step back the browser may have kept a field that was used.
addEventListener("pageshow", () => {
  for (const each of document.querySelectorAll(FIELD)) each.value = "";
});
