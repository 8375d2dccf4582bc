"""Which head goes with a model: the one named, or the one that comes with the package."""

from __future__ import annotations

from pathlib import Path

from engine.dfm.header import ModelCard
from engine.draft.head.file import HeadFile, read_card, read_head
from engine.errors import UnsupportedModel

SHIPPED = Path(__file__).parent.parent / "heads"
AUTO = "auto"
NONE = "none"


def chosen_head(choice: str, model: ModelCard) -> HeadFile | None:
    """Return the head for a model: `choice` is "auto", "none" or the path of a head file.

    A named head need only have the model's shape; one that comes with the package must have been
    trained for it. Raises InvalidModelFile, or UnsupportedModel for a head of another shape.
    """
    if choice == NONE:
        return None
    if choice == AUTO:
        paths = sorted(SHIPPED.glob("*.dfh"))
        return next((read_head(path) for path in paths if read_card(path).fits(model)), None)
    path = Path(choice)
    if not read_card(path).can_serve(model):
        raise UnsupportedModel(f"{path} was trained for a model of another shape than {model.name}")
    head = read_head(path)
    if head.highest_token >= model.architecture.vocab_size:
        raise UnsupportedModel(f"{path} proposes tokens that {model.name} does not have")
    return head
