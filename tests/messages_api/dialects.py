"""The Messages API as platforms speak it: paths, credentials, events and errors.

Sources: lib/bedrock and lib/vertex of the anthropic package;
https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_InvokeModelWithResponseStream.html;
https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html;
https://smithy.io/2.0/aws/amazon-eventstream.html (frames);
https://platform.claude.com/docs/en/build-with-claude/claude-on-vertex-ai.
"""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import parse_qs, unquote

from tests.messages_api.conversation_rules import Refusal
from tests.messages_api.replies import Break, sse

API_KEY = "sk-ant-test-key"
_NOT_IN_BODIES = ("model", "cache_control")  # the latter since neither sets breakpoints by itself


class Dialect:
    """The Messages API itself."""

    stream_type = "text/event-stream; charset=utf-8"

    def answer(self, path: str, raw: bytes) -> dict[str, Any] | None:
        """The answer to a request for credentials; None: it is none."""
        return None

    def as_api(
        self, method: str, path: str, headers: dict[str, str], raw: bytes
    ) -> tuple[str, dict[str, str], bytes]:
        """A request's path, headers and body as the API itself would get them. Raises ``Refusal``."""
        return path, headers, raw

    def event(self, name: str, data: Mapping[str, Any]) -> bytes:
        return sse(name, data)

    def error_event(self, failure: Break, request_id: str) -> bytes:
        return sse("error", failure.error(request_id))

    def malformed(self) -> bytes:
        return b'event: content_block_delta\ndata: {"type": \n\n'

    def refusal(self, failure: Break, request_id: str) -> tuple[bytes, dict[str, str]]:
        """The body and further headers of an error answer."""
        return failure.error_body(request_id), {}


def _as_api(
    model: str, models: Mapping[str, str], headers: Mapping[str, str], raw: bytes, **more: Any
) -> tuple[dict[str, str], bytes]:
    body = json.loads(raw)
    for name in _NOT_IN_BODIES:
        if name in body:
            raise Refusal(f"{name}: Extra inputs are not permitted")
    if "anthropic_version" not in body:
        raise Refusal("anthropic_version: Field required")
    body.pop("anthropic_beta", None)
    version = body.pop("anthropic_version")
    known = {**headers, "x-api-key": API_KEY, "anthropic-version": version}
    known.pop("authorization")
    return known, json.dumps({**body, **more, "model": models[model]}).encode()


@dataclass
class Bedrock(Dialect):
    """Args: models: the API's names by those of Bedrock."""

    models: Mapping[str, str]
    region: str = "eu-central-1"
    key: str = "AKIATEST"
    secret: str = "secret-of-aws-for-tests"
    stream_type = "application/vnd.amazon.eventstream"

    @property
    def environment(self) -> dict[str, str]:
        return {"AWS_ACCESS_KEY_ID": self.key, "AWS_SECRET_ACCESS_KEY": self.secret}

    def as_api(
        self, method: str, path: str, headers: dict[str, str], raw: bytes
    ) -> tuple[str, dict[str, str], bytes]:
        self._check_signature(method, path, headers, raw)
        found = re.fullmatch(r"/model/([^/]+)/invoke-with-response-stream", path)
        if found is None or method != "POST":
            raise Refusal("UnknownOperationException", 404)
        model = unquote(found[1])
        if model not in self.models:
            raise Refusal("The provided model identifier is invalid.", 400)
        if "stream" in json.loads(raw):
            raise Refusal("stream: Extra inputs are not permitted")
        return "/v1/messages", *_as_api(model, self.models, headers, raw, stream=True)

    def _check_signature(
        self, method: str, path: str, headers: Mapping[str, str], raw: bytes
    ) -> None:
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.credentials import Credentials

        given = headers.get("authorization", "")
        parts = re.fullmatch(
            rf"AWS4-HMAC-SHA256 Credential={self.key}/\d{{8}}/{self.region}/bedrock/aws4_request, "
            r"SignedHeaders=([a-z0-9;-]+), Signature=([0-9a-f]{64})",
            given,
        )
        if parts is None:
            raise Refusal("The security token included in the request is invalid.", 403)
        signed = {name: headers[name] for name in parts[1].split(";")}
        assert {"host", "x-amz-date"} <= signed.keys()
        url = f"http://{headers['host']}{path}"
        request = AWSRequest(method, url, headers=signed, data=raw)
        request.context["timestamp"] = headers["x-amz-date"]
        auth = SigV4Auth(Credentials(self.key, self.secret), "bedrock", self.region)
        text = auth.string_to_sign(request, auth.canonical_request(request))
        if auth.signature(text, request) != parts[2]:
            raise Refusal("The request signature we calculated does not match", 403)

    def event(self, name: str, data: Mapping[str, Any]) -> bytes:
        payload = {"bytes": base64.b64encode(json.dumps(data).encode()).decode()}
        return _frame({":message-type": "event", ":event-type": "chunk"}, payload)

    def error_event(self, failure: Break, request_id: str) -> bytes:
        kind = failure.error_type or "throttlingException"
        headers = {":message-type": "exception", ":exception-type": kind}
        return _frame(headers, {"message": failure.message})

    def malformed(self) -> bytes:
        return self.event("ping", {"type": "ping"})[:-1] + b"?"

    def refusal(self, failure: Break, request_id: str) -> tuple[bytes, dict[str, str]]:
        names = {400: "Validation", 403: "UnrecognizedClient", 404: "ResourceNotFound"}
        names |= {429: "Throttling", 503: "ServiceUnavailable", 424: "ModelError"}
        kind = failure.error_type
        if kind is None or not kind.endswith("Exception"):
            kind = f"{names.get(failure.status, 'InternalServer')}Exception"
        headers = {"x-amzn-errortype": f"{kind}:http://internal.amazon.com/coral/"}
        return json.dumps({"message": failure.message}).encode(), headers


def _frame(headers: Mapping[str, str], payload: Mapping[str, Any]) -> bytes:
    """One message of an AWS event stream."""
    head = b"".join(
        struct.pack("!B", len(name))
        + name.encode()
        + struct.pack("!BH", 7, len(value))
        + value.encode()
        for name, value in {**headers, ":content-type": "application/json"}.items()
    )
    body = json.dumps(payload).encode()
    prelude = struct.pack("!II", 16 + len(head) + len(body), len(head))
    whole = prelude + struct.pack("!I", zlib.crc32(prelude)) + head + body
    return whole + struct.pack("!I", zlib.crc32(whole))


@dataclass
class Vertex(Dialect):
    """Args: models: the API's names by those of Vertex AI. It gives out tokens at ``/token``, too."""

    models: Mapping[str, str]
    region: str = "europe-west1"
    project: str = "test-project"
    token: str = "ya29.token-of-google-for-tests"
    issued: int = 0

    def answer(self, path: str, raw: bytes) -> dict[str, Any] | None:
        if path != "/token":
            return None
        given = parse_qs(raw.decode())
        assert given["grant_type"] == ["urn:ietf:params:oauth:grant-type:jwt-bearer"]
        self.issued += 1
        return {"access_token": self.token, "expires_in": 3600, "token_type": "Bearer"}

    def as_api(
        self, method: str, path: str, headers: dict[str, str], raw: bytes
    ) -> tuple[str, dict[str, str], bytes]:
        if headers.get("authorization") != f"Bearer {self.token}":
            raise Refusal("Request had invalid authentication credentials.", 401)
        place = f"/v1/projects/{self.project}/locations/{self.region}/publishers/anthropic/models/"
        if method != "POST" or not path.startswith(place):
            raise Refusal("Not found", 404, "not_found_error")
        model, _, verb = unquote(path.removeprefix(place)).rpartition(":")
        if (model, verb) == ("count-tokens", "rawPredict"):
            model = json.loads(raw)["model"]
            bare = {name: value for name, value in json.loads(raw).items() if name != "model"}
            return "/v1/messages/count_tokens", *_as_api(
                model, self.models, headers, json.dumps(bare).encode()
            )
        if verb != "streamRawPredict" or model not in self.models:
            raise Refusal(f"Publisher Model `{model}` was not found", 404, "not_found_error")
        assert json.loads(raw)["stream"] is True
        return "/v1/messages", *_as_api(model, self.models, headers, raw)

    def refusal(self, failure: Break, request_id: str) -> tuple[bytes, dict[str, str]]:
        if failure.status not in (401, 403, 404, 429):
            return super().refusal(failure, request_id)
        error = {"code": failure.status, "message": failure.message, "status": "GOOGLE"}
        return json.dumps([{"error": error}]).encode(), {}

    def credentials(self, url: str) -> str:
        """A service account's file whose tokens the server at ``url`` gives out."""
        return json.dumps(
            {
                "type": "service_account",
                "project_id": self.project,
                "private_key_id": "1",
                "private_key": _private_key(),
                "client_email": "runner@test-project.iam.gserviceaccount.com",
                "token_uri": f"{url}/token",
            }
        )


@cache
def _private_key() -> str:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(65537, 2048)
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, plain).decode()
