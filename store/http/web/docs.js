"use strict";

// A viewer of /openapi.json: operations with their parameters, bodies and answers, and all types.

const element = (name, text, ...children) => {
  const made = document.createElement(name);
  if (text) made.textContent = text;
  made.append(...children);
  return made;
};

const name = (reference) => reference.split("/").pop();

// The type of a schema in a few words; names of types lead to them.
const type = (schema) => {
  if (schema.$ref) {
    const link = element("a", name(schema.$ref));
    link.href = `#${name(schema.$ref)}`;
    return link;
  }
  const parts = schema.anyOf || schema.allOf;
  if (parts) {
    const made = element("span");
    parts.forEach((part, index) => made.append(index ? (schema.anyOf ? " or " : " and ") : "", type(part)));
    return made;
  }
  if (schema.enum) return element("span", schema.enum.map((value) => JSON.stringify(value)).join(" or "));
  if (schema.items) return element("span", "list of ", type(schema.items));
  if (schema.properties) {
    return element("span", "object", fields(Object.entries(schema.properties), schema.required));
  }
  return element("span", [].concat(schema.type || "any").join(" or "));
};

const fields = (entries, required = []) => {
  const list = element("dl");
  for (const [field, schema] of entries) {
    const needed = required.includes(field) ? " (required)" : "";
    list.append(element("dt", "", element("code", field), " ", type(schema), needed));
    if (schema.description) list.append(element("dd", schema.description));
  }
  return list;
};

const operation = (path, method, given) => {
  const made = element("section", "", element("h2", `${method.toUpperCase()} ${path}`));
  made.append(element("p", given.summary));
  if (given.parameters?.length) {
    const entries = given.parameters.map((each) => [
      each.name,
      { ...each.schema, description: each.description },
    ]);
    made.append(element("h3", "Parameters"), fields(entries));
  }
  const body = given.requestBody?.content["application/json"];
  if (body) made.append(element("h3", "Body"), element("p", "", type(body.schema)));
  made.append(element("h3", "Answers"));
  const answers = element("dl");
  for (const [status, answer] of Object.entries(given.responses)) {
    const content = Object.entries(answer.content || {})[0];
    answers.append(element("dt", `${status} `, content ? type(content[1].schema) : ""));
    answers.append(element("dd", content ? `${content[0]}: ${answer.description}` : answer.description));
  }
  made.append(answers);
  return made;
};

const show = async () => {
  const found = await (await fetch("/openapi.json")).json();
  const api = document.getElementById("api");
  api.append(element("p", found.info.description));
  for (const [path, methods] of Object.entries(found.paths)) {
    for (const [method, given] of Object.entries(methods)) api.append(operation(path, method, given));
  }
  for (const [title, schema] of Object.entries(found.components.schemas)) {
    const section = element("section", "", element("h2", title));
    section.id = title;
    if (schema.description) section.append(element("p", schema.description));
    section.append(element("p", "", type({ ...schema, description: undefined })));
    api.append(section);
  }
};

show();
