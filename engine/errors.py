"""The engine's errors. Codes are stable; the gateway maps them to HTTP in `api.problems`."""

from __future__ import annotations


class EngineError(Exception):
    """Anything the engine refuses or fails to do."""


class InvalidModelFile(EngineError):
    """A `.dfm` or GGUF that is truncated, tampered with, or not what it says it is."""


class UnsupportedModel(EngineError):
    """A well-formed file of an architecture or tensor type that the engine does not implement."""


class ModelNotFound(EngineError):
    """No model file at this path or of this name."""


class InvalidConfig(EngineError):
    """Engine parameters that cannot be run, or not with this model."""


class InvalidRequest(EngineError):
    """A request that can never run; `parameter` names what is wrong with it."""

    def __init__(self, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class PromptTooLong(InvalidRequest):
    """The prompt and the tokens asked for do not fit the model's context."""


class EngineOverloaded(EngineError):
    """The queue is full; the request was not taken and may be sent again."""


class EngineUnavailable(EngineError):
    """The engine is not running, or was lost; `retry` is safe."""
