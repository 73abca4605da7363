// Lists the operations of openapi.json, and sends them with the values entered. Texts are set as text, never as HTML: they come from the network.
"use strict";

const make = (name, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
};

const headers = () => {
  const token = document.getElementById("token").value.trim();
  return token ? { Authorization: `Bearer ${token}` } : {};
};

// An initial value for a schema.
const example = (schema, all, depth = 0) => {
  if (!schema || depth > 6) return null;
  if (schema.$ref) return example(all[schema.$ref.split("/").pop()], all, depth + 1);
  if (schema.example !== undefined) return schema.example;
  for (const choice of [schema.oneOf, schema.anyOf, schema.allOf]) {
    if (choice) return example(choice.find((one) => one.type !== "null"), all, depth + 1);
  }
  const type = [schema.type].flat().find((one) => one !== "null");
  if (type === "array") {
    const one = example(schema.items, all, depth + 1);
    return Array(schema.minItems || 1).fill(one);
  }
  if (schema.properties) {
    const required = new Set(schema.required || []);
    const members = Object.entries(schema.properties);
    // Optional members are left out, unless no member is required.
    const shown = members.filter(([name]) => required.size === 0 || required.has(name));
    return Object.fromEntries(shown.map(([name, one]) => [name, example(one, all, depth + 1)]));
  }
  return { string: "", integer: schema.minimum || 0, number: 0, boolean: false, object: {} }[type] ?? null;
};

// Shows a reply piece by piece, as event streams do not end.
const show = async (response, out) => {
  out.textContent = `${response.status} ${response.statusText}\n`;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    text = (text + value).slice(-200000);
    out.textContent = `${response.status} ${response.statusText}\n${text}`;
  }
  if ((response.headers.get("content-type") || "").includes("json")) {
    out.textContent = `${response.status} ${response.statusText}\n${JSON.stringify(JSON.parse(text), null, 2)}`;
  }
};

const operation = (method, path, described, all) => {
  const fields = [];
  const form = make("form");
  for (const one of described.parameters || []) {
    const input = make("input", { required: one.required === true });
    form.append(make("label", {}, `${one.name} (${one.in}) `, input, ` ${one.description || ""}`));
    fields.push([one, input]);
  }
  const content = described.requestBody && Object.entries(described.requestBody.content)[0];
  let body = null;
  if (content) {
    const [kind, media] = content;
    const first = media.example ?? example(media.schema, all);
    body = make("textarea", { value: typeof first === "string" ? first : JSON.stringify(first, null, 2) });
    body.dataset.kind = kind;
    form.append(make("label", {}, `body (${kind})`, body));
  }
  const out = make("pre", { hidden: true });
  form.append(make("button", {}, "Send"), out);
  let pending = null;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (pending) pending.abort();
    pending = new AbortController();
    let url = path;
    const query = new URLSearchParams();
    for (const [one, input] of fields) {
      if (one.in === "path") url = url.replace(`{${one.name}}`, encodeURIComponent(input.value));
      else if (input.value) query.set(one.name, input.value);
    }
    if ([...query].length) url += `?${query.toString().replaceAll("+", "%20")}`;
    out.hidden = false;
    out.textContent = "...";
    const request = { method, headers: headers(), signal: pending.signal };
    if (body) {
      request.body = body.value;
      request.headers["Content-Type"] = body.dataset.kind;
    }
    try {
      await show(await fetch(url, request), out);
    } catch (error) {
      out.textContent += `\n${error}`;
    }
  });
  const head = make("summary", {}, make("span", { className: `method ${method}` }, method), make("code", {}, path), ` ${described.summary || ""}`);
  return make("details", {}, head, make("p", {}, described.description || ""), form);
};

const load = async () => {
  const place = document.getElementById("operations");
  const about = document.getElementById("about");
  about.className = "";
  try {
    const response = await fetch("openapi.json", { headers: headers() });
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.detail);
    about.textContent = answer.info.description || "";
    const groups = new Map();
    for (const [path, methods] of Object.entries(answer.paths)) {
      for (const [method, described] of Object.entries(methods)) {
        const tag = (described.tags || ["other"])[0];
        if (!groups.has(tag)) groups.set(tag, []);
        groups.get(tag).push(operation(method.toUpperCase(), path, described, answer.components.schemas));
      }
    }
    const sections = [...groups].map(([tag, all]) => make("section", {}, make("h2", {}, tag), ...all));
    place.replaceChildren(...sections);
  } catch (error) {
    about.className = "error";
    about.textContent = String(error);
  }
};

document.getElementById("load").addEventListener("click", load);
load();
