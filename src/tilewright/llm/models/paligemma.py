"""PaliGemma 1 and 2: SigLIP before Gemma. Beyer et al., 2024; Steiner et al., 2024."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ...frontends.nn import Linear
from ...frontends.trace import Tensor
from ..config import Config
from ..vision.given import View
from ..vision.towers import SIGLIP, TOWER_NAMES, PatchTower
from .llava import PROJECTED
from .vision import FixedVision, Reading, Vision, register_vision

if TYPE_CHECKING:
    from PIL.Image import Image

TEXT = 256
"""The least number of tokens of text that fit a prompt beside an image."""


@register_vision("paligemma")
class PaliGemmaVision(FixedVision):
    """All tokens of a prompt with images see one another."""

    renamed: ClassVar[Mapping[str, str]] = {
        **Vision.renamed, **PROJECTED, **TOWER_NAMES, r"^vision\.projector\.linear\.": "vision.projector.",
    }  # fmt: skip
    defaults = SIGLIP
    two_way = "prompt"
    text_values: ClassVar[Mapping[str, Any]] = {"use_bidirectional_attention": None}  # that of prompts

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        tower = self.tower_config(config)
        self.tower = PatchTower(tower, clip=False)
        self.count, self.inputs = self.tower.side**2, self.tower.inputs
        self.projector = Linear(tower.hidden, config.hidden)

    @classmethod
    def least_chunk(cls, config: Config) -> int:
        return cls.side(config) ** 2 + TEXT

    def forward(self, patches: Tensor) -> Tensor:
        """Return vectors [rows, hidden] for `patches` [patches, 3 * size * size]."""
        result: Tensor = self.projector(self.tower(patches))
        return result

    @classmethod
    def arranged(cls, text: str, count: int, mark: str, reading: Reading) -> str:
        begin = reading.text_of(int(reading.config.get("bos_token_id", 2)))
        images, _, rest = text.rpartition(mark)
        images = images + mark if mark in text else mark * count
        return f"{images}{rest if rest.startswith(begin) else begin + rest}\n"

    @classmethod
    def pieces(cls, image: Image, reading: Reading) -> list[View | str]:
        return [cls.view(image, reading, cls.side(reading.config))]
