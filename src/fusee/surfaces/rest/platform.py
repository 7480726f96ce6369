"""What machines ask: is it up, is it ready, how is it doing; and the page that describes the API."""

from __future__ import annotations

import base64
import hashlib

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from fusee.surfaces.rest.context import context_of, services_of
from fusee.surfaces.rest.problems import Problem

__all__ = ["router"]

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


router = APIRouter(tags=["platform"])


class ReadyOut(BaseModel):
    ready: bool
    reasons: list[str] = []
    warnings: list[str] = []
    """What is wrong with the work; the process is ready all the same."""


@router.get("/healthz")
async def healthz(request: Request) -> dict[str, str]:
    """The process is up; asks nobody."""
    return {"status": "ok", "version": services_of(request).version}


@router.get("/readyz", responses={503: {"description": "Not ready; `reasons` says why."}})
async def readyz(request: Request) -> ReadyOut:
    """The database answers, its schema fits, no loop keeps failing."""
    services = services_of(request)
    reasons = ["shutting down"] if services.closing.is_set() else list(await services.health())
    if reasons:
        raise Problem(
            503,
            "not ready: " + "; ".join(reasons),
            headers={"Retry-After": "2"},
            ready=False,
            reasons=reasons,
        )
    caller = context_of(request).caller
    return ReadyOut(
        ready=True, warnings=list(services.warnings(None if caller is None else caller.namespace))
    )


@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """Prometheus metrics: of this process and its namespace, or of the namespace of the key."""
    render = services_of(request).metrics
    if render is None:
        raise Problem(404, "metrics are off: set metrics.enabled = true")
    caller = context_of(request).caller
    assert caller is not None
    return Response(await render(caller.namespace), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/docs", include_in_schema=False)
async def docs() -> Response:
    return Response(PAGE, media_type="text/html", headers={"Content-Security-Policy": CSP})
