"""Pages of text as pictures, rendered from a seed: fonts, sizes, greys and noise are drawn, the text is told."""

from __future__ import annotations

import base64
import io
import random
from dataclasses import dataclass
from importlib.metadata import distribution

import numpy as np
from PIL import Image, ImageDraw, ImageFont

FONTS = {
    "font-roboto": "font_roboto/files/Roboto-Regular.ttf",
    "font-caladea": "font_caladea/files/Caladea-Regular.ttf",
    "font-hanken-grotesk": "font_hanken_grotesk/files/HankenGrotesk-Regular.otf",
    "font-source-sans-pro": "font_source_sans_pro/files/SourceSansPro-Regular.otf",
    "font-source-serif-pro": "font_source_serif_pro/files/SourceSerifPro-Regular.otf",
    "font-manrope": "font_manrope/files/Manrope-Medium.ttf",
}
TEXT = (
    "invoice number total amount payment within thirty days delivery address customer order quantity price each item"
    " account balance transfer received date signature contract between parties agreement term notice machine serial"
    " model weight length width pressure temperature maximum minimum report summary patient dose morning evening tablet"
    " laboratory result blood sample normal range train station platform departure arrival ticket window seat"
)
WORDS = TEXT.split()
SIZES = (22, 26, 32, 38)
NOISE = 12.0
"""Standard deviation of the grey noise on every pixel, of 255."""
WIDTH = 900


@dataclass(frozen=True)
class Page:
    """A picture, and what stands on it; the font's name is for a failing test's message."""

    image: str
    lines: tuple[str, ...]
    font: str
    upside_down: bool


def page(seed: int, font: str, *, lines: int = 7, upside_down: bool = False) -> Page:
    """One page in a font, its lines in different sizes."""
    draw = random.Random(seed)
    path = distribution(font).locate_file(FONTS[font])
    texts = [_line(draw) for _ in range(lines)]
    sizes = [draw.choice(SIZES) for _ in texts]
    ink, paper = draw.randint(0, 70), draw.randint(215, 255)
    picture = Image.new("L", (WIDTH, sum(int(size * 1.9) for size in sizes) + 60), paper)
    canvas, top = ImageDraw.Draw(picture), 30
    for text, size in zip(texts, sizes, strict=True):
        canvas.text((40 + draw.randint(0, 60), top), text, fill=ink, font=ImageFont.truetype(str(path), size))
        top += int(size * 1.9)
    pixels = np.asarray(picture, np.float32)
    pixels = pixels + np.random.default_rng(seed).normal(0.0, NOISE, pixels.shape)
    noisy = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    if upside_down:
        noisy = noisy.rotate(180)
    stream = io.BytesIO()
    noisy.save(stream, "JPEG", quality=85)
    return Page(base64.b64encode(stream.getvalue()).decode(), tuple(texts), font, upside_down)


def _line(draw: random.Random) -> str:
    parts = [draw.choice(WORDS) for _ in range(draw.randint(3, 4))]
    parts[0] = parts[0].capitalize()
    parts.insert(draw.randint(1, len(parts)), f"{draw.randint(10, 99999)}")
    return " ".join(parts)


def errors(expected: str, found: str) -> int:
    """Characters to insert, delete or change to make one text of the other (Levenshtein)."""
    row = list(range(len(found) + 1))
    for at, wanted in enumerate(expected, 1):
        before, row[0] = row[0], at
        for place, got in enumerate(found, 1):
            before, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, before + (wanted != got))
    return row[-1]
