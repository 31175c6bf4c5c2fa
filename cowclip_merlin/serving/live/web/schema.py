"""What the OpenAPI document says of requests and responses."""

from __future__ import annotations

from pydantic import BaseModel, Field

from cowclip_merlin.types import JsonObject

_EXAMPLE = {"events": [{"user": 7, "item": "i12", "site": None, "price": 4.5}]}

PREDICT_BODY: JsonObject = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["events"],
                "properties": {
                    "events": {
                        "type": "array",
                        "minItems": 1,
                        "description": "Each event has all columns of /v1/status; null is a "
                        "missing value. A column with several values per row takes a list, or text "
                        "with its separator. So does a vector, whose length /v1/status says; it "
                        "cannot be missing. Other columns are ignored.",
                        "items": {
                            "type": "object",
                            "additionalProperties": {"type": ["string", "number", "null", "array"]},
                        },
                    }
                },
            },
            "example": _EXAMPLE,
        }
    },
}


class ModelVersion(BaseModel):
    """Which model answered."""

    generation: int = Field(description="counts the starts of the trainer")
    seq: int = Field(description="number of the last complete sync in its generation")
    trained: int | None = Field(description="events that the model was trained on")
    event_time: float | None = Field(description="time of the newest of them, s since 1970")


class Predictions(BaseModel):
    """One probability for each event, in their order; of several labels one for each."""

    predictions: list[float] | list[dict[str, float]] = Field(
        description="probability of a click; of several labels by name, of a regression the number"
    )
    model: ModelVersion


class DamagedEvent(BaseModel):
    """An event that cannot be scored."""

    event: int = Field(description="its number in the request, from 0")
    reason: str


class Problem(BaseModel):
    """Why there is no answer."""

    error: str = Field(description="one line: what is wrong, and what to do")
    events: list[DamagedEvent] | None = Field(None, description="damaged events, 20 at most")


def problems(**texts: str) -> dict[int | str, JsonObject]:
    """Responses with errors, by status.

    >>> problems(_401="the token is wrong")[401]["description"]
    'the token is wrong'
    """
    return {int(k[1:]): {"model": Problem, "description": text} for k, text in texts.items()}
