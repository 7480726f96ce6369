"""The few calls of the Kubernetes API that Jobs need, as plain HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import aiohttp

from fusee.executors.kubernetes.access import Access
from fusee.executors.tail import Tail

__all__ = ["ApiRefused", "ApiUnavailable", "Client"]

CALL = 15.0
"""Seconds for a call; a watch has its own time."""
LONGEST_EVENT = 4 * 2**20
MOST_LINES = 20_000
"""Lines to read of a log, from its end."""


class ApiRefused(Exception):
    """The API server refused the call."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ApiUnavailable(Exception):
    """No response, or one that says nothing about the request: the same call may succeed later."""


class Client:
    """Jobs and pods of one namespace."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._session: aiohttp.ClientSession | None = None
        self._jobs = f"/apis/batch/v1/namespaces/{access.namespace}/jobs"
        self._pods = f"/api/v1/namespaces/{access.namespace}/pods"

    async def create_job(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        return await self._call("POST", self._jobs, body=manifest)

    async def get_job(self, name: str) -> dict[str, Any] | None:
        """Return the Job; None when there is none of that name."""
        try:
            return await self._call("GET", f"{self._jobs}/{name}")
        except ApiRefused as error:
            if error.status == 404:
                return None
            raise

    async def jobs_of(self, selector: str) -> list[dict[str, Any]]:
        return list((await self._call("GET", self._jobs, {"labelSelector": selector}))["items"])

    async def label_job(self, seen: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, Any]:
        """Change labels of the Job as it was seen; raises an `ApiRefused` with 409 if it changed since."""
        metadata = seen["metadata"]
        version = {"resourceVersion": metadata["resourceVersion"], "uid": metadata["uid"]}
        body = {"metadata": {**version, "labels": dict(labels)}}
        return await self._call("PATCH", f"{self._jobs}/{metadata['name']}", body=body)

    async def delete_job(self, seen: Mapping[str, Any]) -> None:
        """Delete the Job as it was seen, and its pods first; does nothing when it is gone already."""
        metadata = seen["metadata"]
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            # Foreground: the Job exists until its pods are gone.
            "propagationPolicy": "Foreground",
            "preconditions": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]},
        }
        try:
            await self._call("DELETE", f"{self._jobs}/{metadata['name']}", body=body)
        except ApiRefused as error:
            if error.status != 404:
                raise

    async def pods_of(self, job: str) -> list[dict[str, Any]]:
        return list((await self._call("GET", self._pods, {"labelSelector": f"job-name={job}"}))["items"])

    async def read_log(self, pod: str, container: str, tail: Tail, seconds: float) -> None:
        """Read the end of what it printed; nothing when the log cannot be read."""
        query = {"container": container, "tailLines": str(MOST_LINES)}
        try:
            async with (
                asyncio.timeout(seconds),
                self._request("GET", f"{self._pods}/{pod}/log", query) as response,
            ):
                if response.status == 200:
                    async for chunk in response.content.iter_chunked(65536):
                        tail.write(chunk)
        except (aiohttp.ClientError, OSError):
            return

    async def wait_for_change(self, seen: Mapping[str, Any], seconds: float) -> None:
        """Return when the Job differs from what was seen, when the time is up, or when the watch fails."""
        metadata = seen["metadata"]
        query = {
            "watch": "true",
            "fieldSelector": f"metadata.name={metadata['name']}",
            "resourceVersion": metadata["resourceVersion"],
            "timeoutSeconds": str(max(1, int(seconds))),
        }
        try:
            async with (
                asyncio.timeout(seconds + 1),
                self._request("GET", self._jobs, query) as response,
            ):
                # 410: what we saw is too old to watch from; it is read again.
                if response.status != 200:
                    await asyncio.sleep(0.2)
                    return
                async for line in response.content:
                    event = json.loads(line)
                    if event.get("type") != "BOOKMARK":
                        return
        except (aiohttp.ClientError, OSError, ValueError):  # also when the time is up
            await asyncio.sleep(0.2)

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        try:
            async with asyncio.timeout(CALL), self._request(method, path, query, body) as response:
                text = await response.text()
                if response.status < 300:
                    found: dict[str, Any] = json.loads(text)
                    return found
        except (aiohttp.ClientError, OSError, ValueError) as error:
            why = str(error) or type(error).__name__
            raise ApiUnavailable(f"the Kubernetes API did not answer: {why}") from error
        message = _message(text) or f"HTTP {response.status}"
        # 401: the token was rotated; the next call reads the new one.
        if response.status in (401, 408, 429) or response.status >= 500:
            raise ApiUnavailable(f"the Kubernetes API returned {response.status}: {message}")
        raise ApiRefused(response.status, message)

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> aiohttp.client._RequestContextManager:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=self._access.tls() or True, limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
                # Runs last for hours: each call has its own time limit.
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
                read_bufsize=LONGEST_EVENT,
                headers={"User-Agent": "fusee"},
            )
        headers = {**self._access.headers(), "Accept": "application/json"}
        data = None
        if body is not None:
            patch = "merge-patch+" if method == "PATCH" else ""
            data, headers["Content-Type"] = json.dumps(body), f"application/{patch}json"
        url = self._access.server + path
        # A redirect would carry the token to another host.
        return self._session.request(
            method, url, params=query, data=data, headers=headers, allow_redirects=False
        )


def _message(text: str) -> str:
    """Return the message of the API server's Status object."""
    try:
        return str(json.loads(text).get("message", ""))[:1000]
    except (ValueError, AttributeError):
        return ""
