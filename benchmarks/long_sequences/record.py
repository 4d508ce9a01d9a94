"""Train a small MoE transformer on the text of this machine for minutes, and count its routing of long held-out texts.

    python -m benchmarks.long_sequences.record [MINUTES]

The model: 6 layers, hidden size 128, 32 experts with FFN 128, top 4, and a loss for balance too weak to flatten them.
Attention sees the block of 256 tokens of a token and the block before. A sequence is a run of files of one domain:
Python, C headers, Perl, English manuals, or manuals in other languages. One in three is held out. Writes the counts
of every 256 tokens to `counts.npz`, uint16 `[S, pieces, L, E]`, with the domain of each sequence.

B sequences of a batch, S sequences, T tokens, X tokens of a batch, D hidden size, L layers, E experts, K top-k.
"""

import gzip
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

COUNTS = Path(__file__).parent / "counts.npz"
NUM_LAYERS, NUM_EXPERTS, TOP_K = 6, 32, 4
SEQUENCE_LENGTH, PIECE_LENGTH = 32768, 256
_HIDDEN_SIZE, _NUM_HEADS, _FFN_SIZE, _VOCABULARY_SIZE = 128, 4, 128, 4096
_BALANCE_WEIGHT = 1e-3
"""A tenth of the usual 0.01, so that experts stay as popular as training makes them."""
_BATCH, _WINDOW, _LEARNING_RATE = 4, 1024, 2e-3
_SEQUENCES = 30
"""The most sequences of a domain."""
_LANGUAGES = ("cs", "da", "de", "es", "fi", "fr", "hu", "id", "it", "nl", "pl", "pt_BR", "ro", "sv", "tr")
_TEXTS = {
    "python": [("/usr/lib/python3", "*.py"), (str(Path(torch.__file__).parent), "*.py")],
    "c": [("/usr/include", "*.h")],
    "perl": [("/usr/share/perl", "*.p[lm]")],
    "manuals": [(f"/usr/share/man/man{section}", "*.gz") for section in range(1, 9)],
    "other languages": [(f"/usr/share/man/{language}", "*.gz") for language in _LANGUAGES],
}


def _runs(places: list[tuple[str, str]], size: int, num_runs: int) -> Iterator[str]:
    """Yield texts of at least `size` characters, each of files that lie beside each other."""
    files = [file for folder, pattern in places for file in sorted(Path(folder).rglob(pattern)) if file.is_file()]
    starts = np.random.default_rng(0).permutation(max(1, len(files) // 20)) * 20
    seen = set[Path]()
    for start in starts.tolist():
        text = ""
        for file in files[start:]:
            if file in seen or len(text) >= size:
                break
            seen.add(file)
            content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
            text += content.decode(errors="replace")
        if len(text) >= size:
            yield text
            num_runs -= 1
        if not num_runs:
            return


_WORD = re.compile(r"\w+|\s+|[^\w\s]")


def _tokens(text: str, index: dict[str, int]) -> list[int]:
    """Return known words as themselves, and others letter by letter, by the bytes of UTF-8."""
    found: list[int] = []
    for word in _WORD.findall(text):
        number = index.get(word)
        found += [number] if number is not None else word.encode()
        if len(found) >= SEQUENCE_LENGTH:
            break
    return found[:SEQUENCE_LENGTH]


def sequences() -> tuple[NDArray[np.int64], NDArray[np.str_]]:
    """Return the tokens of all sequences, `[S, T]`, and their domains."""
    texts = [(name, text) for name, where in _TEXTS.items() for text in _runs(where, 4 * SEQUENCE_LENGTH, _SEQUENCES)]
    words = Counter(word for _, text in texts for word in _WORD.findall(text))
    common = [word for word, _ in words.most_common(_VOCABULARY_SIZE - 256)]
    index = {word: 256 + rank for rank, word in enumerate(common)}
    tokens = [(name, found) for name, text in texts if len(found := _tokens(text, index)) == SEQUENCE_LENGTH]
    return np.array([found for _, found in tokens]), np.array([name for name, _ in tokens])


def _rotated(heads: Tensor) -> Tensor:
    """Apply rotary positions to `[B, H, T, D]`."""
    half = heads.shape[-1] // 2
    angle = torch.arange(heads.shape[2])[:, None] * 1e4 ** (-torch.arange(half) / half)
    first, second = heads[..., :half], heads[..., half:]
    return torch.cat([first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()], -1)


class Layer(nn.Module):
    """Attention over two blocks, then experts."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.RMSNorm(_HIDDEN_SIZE), nn.RMSNorm(_HIDDEN_SIZE)])
        self.qkv = nn.Linear(_HIDDEN_SIZE, 3 * _HIDDEN_SIZE, bias=False)
        self.out = nn.Linear(_HIDDEN_SIZE, _HIDDEN_SIZE, bias=False)
        self.router = nn.Linear(_HIDDEN_SIZE, NUM_EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(NUM_EXPERTS, _HIDDEN_SIZE, _FFN_SIZE) * _HIDDEN_SIZE**-0.5)
        self.down = nn.Parameter(torch.randn(NUM_EXPERTS, _FFN_SIZE, _HIDDEN_SIZE) * _FFN_SIZE**-0.5)

    def _attend(self, hidden_BTD: Tensor) -> Tensor:
        batch, length, _ = hidden_BTD.shape
        shape = (batch, length, 3, _NUM_HEADS, -1)
        query, key, value = self.qkv(hidden_BTD).view(shape).permute(2, 0, 3, 1, 4)
        blocks = (batch, _NUM_HEADS, length // PIECE_LENGTH, PIECE_LENGTH, -1)
        query = _rotated(query).reshape(blocks)
        pairs = []
        for each in (_rotated(key), value):
            block = each.reshape(blocks)
            before = torch.cat([torch.zeros_like(block[:, :, :1]), block[:, :, :-1]], 2)
            pairs.append(torch.cat([before, block], 3))
        seen = torch.ones(PIECE_LENGTH, 2 * PIECE_LENGTH, dtype=torch.bool).tril(PIECE_LENGTH)
        mixed = functional.scaled_dot_product_attention(query, *pairs, attn_mask=seen)
        return self.out(mixed.reshape(batch, _NUM_HEADS, length, -1).transpose(1, 2).reshape(hidden_BTD.shape))  # type: ignore[no-any-return]

    def forward(self, hidden_BTD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the new hidden states, the experts `[X, K]`, and the loss for balance."""
        hidden_BTD = hidden_BTD + self._attend(self.norms[0](hidden_BTD))
        normed_XD = self.norms[1](hidden_BTD).flatten(0, 1)
        likely_XE = self.router(normed_XD).softmax(-1)
        weight_XK, chosen_XK = likely_XE.topk(TOP_K)
        weight_XK = weight_XK / weight_XK.sum(-1, keepdim=True)
        order = chosen_XK.flatten().argsort()
        load_E = chosen_XK.flatten().bincount(minlength=NUM_EXPERTS)
        sent = normed_XD[order // TOP_K].split(load_E.tolist())
        results = [functional.silu(each @ up) @ down for each, up, down in zip(sent, self.up, self.down, strict=True)]
        mixed = torch.cat(results) * weight_XK.flatten()[order, None]
        added_XD = torch.zeros_like(normed_XD).index_add(0, order // TOP_K, mixed)
        balance = NUM_EXPERTS * (load_E / load_E.sum() * likely_XE.mean(0)).sum()
        return hidden_BTD + added_XD.view_as(hidden_BTD), chosen_XK, balance


class Transformer(nn.Module):
    """A language model of MoE layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY_SIZE, _HIDDEN_SIZE)
        nn.init.normal_(self.embedding.weight, std=0.5)
        self.layers = nn.ModuleList([Layer() for _ in range(NUM_LAYERS)])
        self.norm = nn.RMSNorm(_HIDDEN_SIZE)
        self.head = nn.Linear(_HIDDEN_SIZE, _VOCABULARY_SIZE, bias=False)

    def forward(self, token_BT: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
        """Return the last hidden states, the experts of each layer `[X, K]`, and the loss for balance."""
        hidden_BTD, chosen, balance = self.embedding(token_BT), [], torch.zeros(())
        for layer in self.layers:
            hidden_BTD, chosen_XK, of_layer = layer(hidden_BTD)
            chosen.append(chosen_XK)
            balance = balance + of_layer
        return self.norm(hidden_BTD), chosen, balance


def train(token_ST: NDArray[np.int64], minutes: float) -> tuple[Transformer, dict[str, float]]:
    """Train for some minutes; return the model, and how long and how well."""
    torch.manual_seed(0)
    model, rng = Transformer(), np.random.default_rng(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE, weight_decay=0.01)
    began_s, step, losses = time.monotonic(), 0, list[float]()
    while (part := (time.monotonic() - began_s) / 60 / minutes) < 1:
        for group in optimizer.param_groups:
            group["lr"] = _LEARNING_RATE * min(1, (step + 1) / 50) * (1 - 0.9 * part)
        row_B = rng.integers(len(token_ST), size=_BATCH)
        begin_B = rng.integers(SEQUENCE_LENGTH - _WINDOW - 1, size=_BATCH)
        window_BT = torch.tensor(token_ST[row_B[:, None], begin_B[:, None] + np.arange(_WINDOW + 1)])
        hidden, _, balance = model(window_BT[:, :-1])
        loss = functional.cross_entropy(model.head(hidden).flatten(0, 1), window_BT[:, 1:].flatten())
        optimizer.zero_grad()
        (loss + _BALANCE_WEIGHT * balance).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        losses.append(float(loss.detach()))
        if step % 25 == 0:
            print(f"{part:.0%} step {step} loss {np.mean(losses[-25:]):.3f}", flush=True)
    trained_tokens = step * _BATCH * _WINDOW
    return model, {"minutes": minutes, "trained_tokens": trained_tokens, "loss": float(np.mean(losses[-25:]))}


@torch.no_grad()
def count(model: Transformer, token_ST: NDArray[np.int64]) -> tuple[NDArray[np.uint16], float]:
    """Return the counts of every piece, `[S, pieces, L, E]`, and the loss on these sequences."""
    rows, losses = [], []
    num_pieces = SEQUENCE_LENGTH // PIECE_LENGTH
    for token_T in torch.tensor(token_ST):
        hidden, chosen, _ = model(token_T[None])
        losses.append(float(functional.cross_entropy(model.head(hidden[0, :4096]), token_T[1:4097])))
        chosen_PLY = torch.stack(chosen).view(NUM_LAYERS, num_pieces, -1).transpose(0, 1)
        rows.append(functional.one_hot(chosen_PLY, NUM_EXPERTS).sum(2).numpy().astype(np.uint16))
    return np.stack(rows), float(np.mean(losses))


def main() -> None:
    """Train, count, and write the counts."""
    torch.set_num_threads(1)
    token_ST, domain_S = sequences()
    is_held_out_S = np.arange(len(token_ST)) % 3 == 0
    print(Counter(domain_S.tolist()), flush=True)
    model, facts = train(token_ST[~is_held_out_S], float(sys.argv[1]) if len(sys.argv) > 1 else 40.0)
    counts, facts["held_out_loss"] = count(model, token_ST[is_held_out_S])
    np.savez_compressed(COUNTS, counts=counts, domain=domain_S[is_held_out_S], facts=json.dumps(facts))
    print(facts, f"{COUNTS.stat().st_size / 1e6:.2f} MB", flush=True)


if __name__ == "__main__":
    main()
