"""Query parameters that an address does not take, or that come twice, are refused: a filter must
not go unheard.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from litestar import Litestar, Request
from litestar.routes import HTTPRoute

from api.errors import InvalidParameter


def refuse_unknown(request: Request[Any, Any, Any]) -> None:
    """Raise InvalidParameter for the first; only where a key is asked for, not on pages."""
    if not request.route_handler.guards:
        return
    known = _taken(request.app).get((request.scope["path_template"], request.method), frozenset())
    for name in request.query_params:
        if name not in known:
            takes = f"; it takes {', '.join(sorted(known))}" if known else ""
            raise InvalidParameter(f"this address takes no query parameter {name!r}{takes}", name)
        if len(request.query_params.getall(name)) > 1:
            raise InvalidParameter(f"{name} is given more than once", name)


@lru_cache(maxsize=1)
def _taken(app: Litestar) -> Mapping[tuple[str, str], frozenset[str]]:
    return {
        (route.path_format, method): frozenset(
            parameter.field_alias for parameter in model.expected_query_params
        )
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for method, (_, model) in route.route_handler_map.items()
    }
