"""A page that draws /openapi.json, made of nothing but itself: no script comes from another host."""

from __future__ import annotations

import base64
import hashlib

__all__ = ["CSP", "PAGE"]

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
details { border: 1px solid #8884; border-radius: 6px; margin: .4rem 0; padding: .4rem .8rem; }
summary { cursor: pointer; } code, pre { font: 13px/1.5 ui-monospace, monospace; }
pre { overflow: auto; background: #8881; padding: .6rem; border-radius: 6px; }
b { display: inline-block; min-width: 4.2rem; } h2 { text-transform: capitalize; margin-top: 2rem; }
"""

_SCRIPT = """
const make = (tag, text, ...children) => {
  const node = document.createElement(tag);
  if (text) node.textContent = text;
  node.append(...children);
  return node;
};
const json = (value) => make("pre", JSON.stringify(value, null, 2));
const draw = (document_) => {
  const main = document.querySelector("main");
  const base = document_.servers ? document_.servers[0].url : "";
  const nouns = new Map();
  for (const [path, methods] of Object.entries(document_.paths))
    for (const [method, route] of Object.entries(methods)) {
      const title = make("summary", "", make("b", method.toUpperCase()), make("code", base + path));
      const box = make("details", "", title);
      if (route.description) box.append(make("p", route.description));
      if (route.parameters) box.append(make("h4", "Parameters"), json(route.parameters));
      if (route.requestBody) box.append(make("h4", "Body"), json(route.requestBody.content));
      box.append(make("h4", "Answers"), json(route.responses));
      const noun = (route.tags || ["other"])[0];
      nouns.set(noun, [...(nouns.get(noun) || []), box]);
    }
  for (const [noun, boxes] of nouns) main.append(make("h2", noun), ...boxes);
  main.append(make("h2", "schemas"));
  for (const [name, schema] of Object.entries(document_.components.schemas))
    main.append(make("details", "", make("summary", "", make("code", name)), json(schema)));
};
fetch("openapi.json").then((answer) => answer.json()).then(draw);
"""

PAGE = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Fusee API</title><style>{_STYLE}</style></head>
<body><h1>Fusee API</h1><p>The same as <a href="openapi.json">openapi.json</a>, for people.</p>
<main></main><script>{_SCRIPT}</script></body></html>
"""


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


CSP = (
    f"default-src 'none'; script-src {_hash(_SCRIPT)}; style-src {_hash(_STYLE)}; connect-src 'self';"
    " base-uri 'none'; frame-ancestors 'none'"
)
