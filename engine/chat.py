"""Chat templates: from messages to the text a model was trained on.

Rendered as `transformers` renders them, in Jinja's sandbox: a template comes with a model file
and is not trusted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import InvalidModelFile, InvalidRequest


class ChatTemplate:
    """A compiled template. Immutable, and safe to share between threads."""

    def __init__(self, source: str, *, bos_token: str | None, eos_token: str | None) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except Exception as error:
            # besides syntax errors: nesting too deep, constants too large to fold
            raise InvalidModelFile(f"the chat template does not compile: {error}") from error
        self._tokens = {"bos_token": bos_token or "", "eos_token": eos_token or ""}

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Return the conversation as text that ends where the assistant speaks.

        Raises InvalidRequest when the template refuses these messages.
        """
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=True, **self._tokens
            )
        except jinja2.TemplateError as error:
            raise InvalidRequest(f"the chat template refuses: {error}", "messages") from error


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _to_json(value: Any, indent: int | None = None) -> str:
    # Jinja's own escapes HTML, which no model was trained on
    return json.dumps(value, ensure_ascii=False, indent=indent)
