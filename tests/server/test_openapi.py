"""OpenAPI tells the truth: schemathesis asks what it says may be asked, and gets what it says is answered."""

import json
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from holdfast.server.app import ENDPOINTS
from holdfast.server.openapi import describe
from tests.docs.pages import page, rows
from tests.server.serving import TOKEN, Asking, Served

load_all_checks()
SCHEMA = schemathesis.openapi.from_dict(
    {
        **describe(ENDPOINTS, "0"),
        "paths": {path: item for path, item in describe(ENDPOINTS, "0")["paths"].items() if "/turns" not in path},
    }
)
CHECKS = [content_type_conformance, response_schema_conformance, status_code_conformance]


def test_the_document_that_is_served_is_made_of_the_routes(ask: Asking) -> None:
    """Every route is in it, once, with its scope."""
    document = ask.http.get("/openapi.json").json()
    told = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    assert told == {(each.method, each.path.replace(":path}", "}")) for each in ENDPOINTS}
    names = [operation["operationId"] for item in document["paths"].values() for operation in item.values()]
    assert len(set(names)) == len(names)
    assert json.loads(json.dumps(describe(ENDPOINTS, document["info"]["version"]))) == document


@pytest.mark.slow
@SCHEMA.parametrize()
@settings(
    max_examples=2, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
def test_whatever_is_asked_is_answered_as_the_document_says(case: Any, served: Served) -> None:
    """No answer has a status, a type or a form that is not written there, and none is a failure of the server."""
    if case.path.endswith("/events"):
        case.query = {**(case.query if isinstance(case.query, dict) else {}), "follow": "false"}
    case.headers = {**(case.headers or {}), "Authorization": f"Bearer {TOKEN}"}
    answer = case.call(base_url=served.url)
    assert answer.status_code < 500
    case.validate_response(answer, checks=CHECKS)


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda each: f"{each.method} {each.path}")
def test_a_route_is_documented_with_its_scope(endpoint: Any) -> None:
    """Whoever reads the page finds every route that there is, and who may use it."""
    route = f"`{endpoint.method} {endpoint.path.replace(':path}', '}')}`"
    [row] = [row for row in rows(page("http").text) if row[0] == route]
    assert row[1] == (f"`{endpoint.scope}`" if endpoint.scope is not None else "none")
