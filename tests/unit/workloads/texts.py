"""A small tokenizer and small datasets, made here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import tokenizers

QUESTIONS = [
    "what is a page table ?",
    "naïve 🙂 text, with two   spaces",
    "tell me of " + "scheduling " * 40,
    "why ?",
]
PAIR = ("workload.text.prompt=article", "workload.text.output=abstract")
ANSWERS = ["a map from pages to frames .", "yes .", "first come first served " * 3, "because ."]


def make_tokenizer(folder: Path, *, bos: bool = True) -> Path:
    """A byte-level BPE's tokenizer.json in `folder`, as checkpoints have it."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<s>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([*QUESTIONS, *ANSWERS], trainer)
    if bos:
        made.post_processor = tokenizers.processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 0)]
        )
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    return folder


def conversations() -> list[dict[str, Any]]:
    """Four with a question and an answer, two without, in both forms of turns."""
    rows: list[Any] = []
    for i, (question, answer) in enumerate(zip(QUESTIONS, ANSWERS, strict=True)):
        ask, tell = ("human", "gpt") if i % 2 else ("user", "chatgpt")
        turns = [{"from": ask, "value": question}, {"from": tell, "value": answer}]
        rows.append({"id": str(i), "conversations": [*turns, *turns]})
    rows[1]["conversations"].insert(0, {"from": "system", "value": "be brief"})
    rows.insert(1, {"id": "lonely", "conversations": rows[0]["conversations"][:1]})
    rows.insert(3, {"id": "answer first", "conversations": rows[0]["conversations"][1:2]})
    return rows


def pairs() -> list[dict[str, str]]:
    return [{"article": q, "abstract": a} for q, a in zip(QUESTIONS, ANSWERS, strict=True)]


def write_json(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps(rows))
    return path


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path
