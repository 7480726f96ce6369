"""From a payload to a request."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from fusee.engine.worker.callbacks import Callback, CallbackTerms
from fusee.engine.worker.executor import Job
from fusee.executors.http.request import check_http, prepare, success_codes, terms_of


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ({}, "an HTTP payload is an object"),
        ({"url": 3}, "url must be text"),
        ({"url": "ftp://h/"}, "must start with http://"),
        ({"url": "file:///etc/passwd"}, "must start with http://"),
        ({"url": "/path"}, "must start with http://"),
        ({"url": "http://"}, "url"),
        ({"url": "http:///path"}, "has no host"),
        ({"url": "http://%7f/"}, "has no host"),
        ({"url": "http://h:99999/"}, "cannot be read"),
        ({"url": "http://me:pw@h/"}, "use a header"),
        ({"url": "http://me@h/"}, "use a header"),
        ({"url": "http://@h/"}, "use a header"),
        ({"url": "http://h\\@evil/"}, "backslash"),
        ({"url": "http://h/a b"}, "blank"),
        ({"url": "http://h/\r\nX: y"}, "control character"),
        ({"url": "http://0x7f.1/"}, "four decimal numbers"),
        ({"url": "http://h/{{param.x}}"}, "{{param.x}} is not a name here"),
        ({"url": "http://h/{{param.x}}/b", "params": {"x": ".."}}, "change the path"),
        ({"url": "http://h/", "method": "TRACE"}, "method must be one of"),
        ({"url": "http://h/", "retries": 3}, "has no 'retries'; it has body, callback_hmac"),
        ({"url": "http://h/", "headers": {"A b": "c"}}, "no name of a header"),
        ({"url": "http://h/", "headers": {"A\r\nB": "c"}}, "no name of a header"),
        ({"url": "http://h/", "headers": {"A": "b\r\nC: d"}}, "line break"),
        ({"url": "http://h/", "headers": {"A": "{{param.x}}"}, "params": {"x": "b\nC: d"}}, "line break"),
        ({"url": "http://h/", "headers": {"A": 1}}, "header A must be text"),
        ({"url": "http://h/", "headers": {"A": "1", "a": "2"}}, "given twice"),
        ({"url": "http://h/", "headers": {"Transfer-Encoding": "chunked"}}, "cannot be set"),
        ({"url": "http://h/", "headers": {"content-length": "0"}}, "cannot be set"),
        ({"url": "http://h/", "headers": []}, "headers must be an object"),
        ({"url": "http://h/", "params": []}, "params must be an object"),
        ({"url": "http://h/", "params": {"a b": 1}}, "params has 'a b'"),
        ({"url": "http://h/", "success": "2xx"}, "success must be statuses"),
        ({"url": "http://h/", "success": "200-999"}, "success must be statuses"),
        ({"url": "http://h/", "success": []}, "success must be statuses"),
        ({"url": "http://h/", "success": True}, "success must be statuses"),
        ({"url": "http://h/", "body": {"a": float("nan")}}, "not JSON compliant"),
        ({"url": "http://h/", "body": {"a": "{{nope}}"}}, "{{nope}} is not a name here"),
        ({"url": "http://h/", "mode": "ASYNC"}, 'mode must be "sync" or "async"'),
        ({"url": "http://h/", "mode": ["async"]}, 'mode must be "sync" or "async"'),
        ({"url": "http://h/", "callback_timeout": 5}, 'callback_timeout goes with "mode": "async"'),
        ({"url": "http://h/", "mode": "sync", "callback_hmac": True}, 'callback_hmac goes with "mode"'),
        ({"url": "http://h/{{callback_token}}"}, "{{callback_token}} is not a name here"),
        ({"url": "http://h/", "mode": "async", "callback_timeout": 0}, "seconds above 0"),
        ({"url": "http://h/", "mode": "async", "callback_timeout": True}, "seconds above 0"),
        ({"url": "http://h/", "mode": "async", "callback_timeout": "1h"}, "seconds above 0"),
        ({"url": "http://h/", "mode": "async", "callback_timeout": float("nan")}, "seconds above 0"),
        (
            {"url": "http://h/", "mode": "async", "callback_timeout": 30 * 86400 + 1},
            "at most 2592000 (30 days)",
        ),
        ({"url": "http://h/", "mode": "async", "callback_hmac": 1}, "callback_hmac must be true or false"),
    ],
)
def test_a_wrong_payload_is_refused_with_a_reason(payload: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError) as refusal:
        check_http(payload)
    assert text.lower() in str(refusal.value).lower()


def test_names_are_filled_in_everywhere(job: Callable[..., Job]) -> None:
    this = job(
        method="put",
        url="https://h.example/{{param.id}}?run={{run_id}}#gone",
        headers={"X-Try": "{{attempt}}"},
        body={"id": "{{param.id}}", "deep": [{"k": "{{idempotency_key}}"}]},
        params={"id": 'a/"b"'},
    )
    request = prepare(this.payload, this)
    assert request.method == "PUT"
    assert str(request.url) == "https://h.example/a%2F%22b%22?run=7"
    assert json.loads(request.body or b"") == {"id": 'a/"b"', "deep": [{"k": "fusee-run-7"}]}
    assert request.headers["x-try"] == "2"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["idempotency-key"] == "fusee-run-7"
    assert request.headers["x-fusee-run-id"] == "7"
    assert request.headers["x-fusee-attempt"] == "2"


def test_text_is_escaped_where_it_is_json() -> None:
    payload = {
        "url": "http://h/",
        "body": '{"x": "{{param.x}}", "n": {{param.n}}}',
        "params": {"x": '"', "n": [1]},
    }
    as_text = prepare(payload, None)
    assert as_text.body == b'{"x": """, "n": [1]}'
    assert as_text.headers["content-type"] == "text/plain; charset=utf-8"
    for kind in ("application/json", "application/vnd.api+json; charset=utf-8"):
        as_json = prepare(payload | {"headers": {"content-type": kind}}, None)
        assert json.loads(as_json.body or b"") == {"x": '"', "n": [1]}


def test_the_method_follows_the_body() -> None:
    assert prepare({"url": "http://h/"}, None).method == "GET"
    assert prepare({"url": "http://h/", "body": ""}, None).method == "POST"


def test_ones_own_idempotency_key_stays(job: Callable[..., Job]) -> None:
    this = job(url="http://h/", headers={"idempotency-key": "mine", "X-Fusee-Attempt": "forged"})
    headers = prepare(this.payload, this).headers
    assert headers.getall("Idempotency-Key") == ["mine"]
    assert headers.getall("X-Fusee-Attempt") == ["2"]


def test_success_is_written_in_many_ways() -> None:
    assert success_codes(204) == {204}
    assert success_codes("200-202") == {200, 201, 202}
    assert success_codes("200, 404-405") == {200, 404, 405}
    assert success_codes([200, "300-301"]) == {200, 300, 301}


def test_an_asynchronous_call_says_where_and_with_which_token_it_is_answered(job: Callable[..., Job]) -> None:
    this = job(
        url="http://h/?back={{callback_url}}",
        mode="async",
        headers={"X-Token": "{{callback_token}}", "X-Fusee-Callback-Token": "forged"},
        body={"answer": {"to": "{{callback_url}}", "with": "{{callback_token}}"}},
    )
    request = prepare(this.payload, this, Callback("https://f.example/api/v1/callbacks/7", "s3cret"))
    assert request.url.query["back"] == "https://f.example/api/v1/callbacks/7"
    assert json.loads(request.body or b"") == {
        "answer": {"to": "https://f.example/api/v1/callbacks/7", "with": "s3cret"}
    }
    assert request.headers["X-Token"] == "s3cret"
    assert request.headers.getall("X-Fusee-Callback-Token") == ["s3cret"]
    assert request.headers["X-Fusee-Callback-Url"] == "https://f.example/api/v1/callbacks/7"
    check_http(this.payload)


def test_what_an_asynchronous_call_asks_for() -> None:
    assert terms_of({"url": "http://h/"}) is None
    assert terms_of({"mode": "sync"}) is None
    assert terms_of({"mode": "async"}) == CallbackTerms(timeout=3600.0, signed=False)
    assert terms_of({"mode": "async", "callback_timeout": 2592000, "callback_hmac": True}) == CallbackTerms(
        2592000.0, True
    )


def test_a_token_is_not_shown() -> None:
    assert "s3cret" not in repr(Callback("https://f.example", "s3cret"))
