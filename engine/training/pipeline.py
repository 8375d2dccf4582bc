"""From a model to its head: corpus, phrases, fitting, head file, evaluation. Resumable throughout.

origin.json     whose folder it is
corpus/         shards of what the model said
features/       its residual stream on them, computed when they are first fitted to
vocabulary.npy  the tokens that can be proposed, decided once
fitting-*.pt    the last checkpoint of a head with so many groups, layers, tokens of window, slots
head.dfh        phrases and the head
evaluation.json
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from engine.config import EngineConfig
from engine.dfm.container import ModelFile
from engine.draft.head.file import HeadCard, HeadFile, write_head
from engine.draft.head.shape import HeadShape, default_shape
from engine.errors import InvalidConfig
from engine.opening import foresight_of, open_model
from engine.requests import GenerationRequest, SamplingParams
from engine.training.corpus import (
    Progress,
    Sequence,
    Shard,
    grow,
    response_tokens,
    shards,
)
from engine.training.counting import count_phrases
from engine.training.evaluation import Evaluation, arms_of, evaluate
from engine.training.features import Features, features_of
from engine.training.fitting import Fitting, FrozenParts

_EVALUATED_TOKENS = 160  # of one answer


@dataclass(frozen=True, slots=True)
class Orders:
    """What was asked for."""

    tokens: int
    hours: float  # of processor time spent on fitting, all runs together
    groups: int
    layers: int
    window: int
    slots: int
    seed: int
    threads: int | None
    evaluated_prompts: int


class _Origin(msgspec.Struct, frozen=True):
    """What a folder's corpus was sampled from."""

    source_sha256: str
    seed: int


def train(model_path: Path, out: Path, orders: Orders, progress: Progress) -> Evaluation:
    """Do what is still to be done in `out`, and evaluate the head on prompts it never saw.

    Raises InvalidConfig for a folder that was begun for another model or with another seed.
    """
    file = ModelFile.open(model_path)
    _claim(out, _Origin(file.header.model.source_sha256, orders.seed))
    config = EngineConfig(threads=orders.threads, draft_head="none")
    model = open_model(model_path, config)
    corpus = out / "corpus"
    grow(corpus, model, config, tokens=orders.tokens, seed=orders.seed, progress=progress)
    fitted = [shard for shard in shards(corpus) if not shard.held_out]
    sequences = [sequence for shard in fitted for sequence in shard.sequences()]
    phrases = count_phrases(sequences, model.tokenizer.vocab_size)
    card = HeadCard(
        model=file.header.model.name,
        source_sha256=file.header.model.source_sha256,
        shape=None,
        corpus_tokens=sum(map(response_tokens, fitted)),
        seed=orders.seed,
    )
    head = HeadFile(card, None, phrases)
    if orders.hours:
        shape = default_shape(
            model.decoder.info,
            groups=orders.groups,
            layers=orders.layers,
            slots=orders.slots,
            window=orders.window,
        )
        token_ids = _vocabulary(out, shape, sequences, model.tokenizer.vocab_size)
        fitting = Fitting(shape, token_ids, frozen_parts(file, shape, token_ids), seed=orders.seed)
        sizes = (shape.groups, shape.layers, shape.window, shape.slots)
        checkpoint = out / f"fitting-{'-'.join(map(str, sizes))}.pt"
        if checkpoint.is_file():
            fitting.resume(checkpoint)

        def features(shard: Shard) -> Features:
            return features_of(shard, out / "features", model.decoder, shape.tap_layers)

        fitting.fit(
            fitted, features, seconds=orders.hours * 3600, checkpoint=checkpoint, progress=progress
        )
        card = msgspec.structs.replace(
            card, shape=shape, fitting_s=round(fitting.elapsed_s, 1), steps=fitting.steps
        )
        head = HeadFile(card, fitting.weights(), phrases)
    path = out / "head.dfh"
    write_head(path, head)
    products = card.shape.products if card.shape else 0
    progress(f"head: {path}, {path.stat().st_size:,} bytes, {products:,} products a draft")
    requests = held_out_requests(corpus, orders.evaluated_prompts)
    arms = arms_of(foresight_of(head, file, model.decoder))
    evaluation = evaluate(model, config, arms, requests)
    document = msgspec.json.format(msgspec.json.encode({"head": card, "evaluation": evaluation}))
    (out / "evaluation.json").write_bytes(document)
    return evaluation


def frozen_parts(file: ModelFile, shape: HeadShape, token_ids: NDArray[np.int32]) -> FrozenParts:
    """Return what a head of this shape and vocabulary takes from the model as it is."""
    tied = file.header.model.architecture.tied_embeddings
    embedding = torch.from_numpy(file.tensor("embedding.weight"))
    head = embedding if tied else torch.from_numpy(file.tensor("head.weight"))
    width = shape.hidden // shape.groups
    rows = head[torch.from_numpy(token_ids).long()].chunk(shape.groups)
    columns = [part[:, at * width : (at + 1) * width] for at, part in enumerate(rows)]
    return FrozenParts(
        embedding=embedding.bfloat16(),
        vocabulary=torch.stack(columns).bfloat16(),
        final_norm=torch.from_numpy(file.tensor("final_norm.weight")),
    )


def _claim(out: Path, origin: _Origin) -> None:
    """Begin a folder; what another model said must never be fitted to in this one's name."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "origin.json"
    if not path.is_file():
        path.write_bytes(msgspec.json.encode(origin))
        return
    try:
        known = msgspec.json.decode(path.read_bytes(), type=_Origin)
    except msgspec.MsgspecError as error:
        raise InvalidConfig(f"{path} cannot be read: {error}") from error
    if known != origin:
        what = "seed" if known.source_sha256 == origin.source_sha256 else "model"
        raise InvalidConfig(f"{out} was begun with another {what}; name another folder")


def _vocabulary(
    out: Path, shape: HeadShape, sequences: list[Sequence], vocab_size: int
) -> NDArray[np.int32]:
    """Return the commonest tokens of the responses, dealt out to the groups in turn."""
    path = out / "vocabulary.npy"
    if not path.is_file():
        counts = np.zeros(vocab_size, np.int64)
        for sequence in sequences:
            np.add.at(counts, sequence.tokens[sequence.prompt_length :], 1)
        np.save(path, np.lexsort((np.arange(vocab_size), -counts)).astype(np.int32))
    commonest = np.load(path)[: shape.vocabulary]
    return np.concatenate([commonest[group :: shape.groups] for group in range(shape.groups)])


def held_out_requests(corpus: Path, count: int) -> list[GenerationRequest]:
    """Return greedy requests for prompts of the shards that nothing is fitted to."""
    held_out = (
        sequence for shard in shards(corpus) if shard.held_out for sequence in shard.sequences()
    )
    prompts = [sequence.tokens[: sequence.prompt_length].tolist() for sequence in held_out]
    return [
        GenerationRequest(
            request_id=f"held-out/{index}",
            tenant_id="evaluation",
            prompt_ids=tuple(prompt),
            max_tokens=_EVALUATED_TOKENS,
            sampling=SamplingParams(),
        )
        for index, prompt in enumerate(prompts[:count])
    ]
