"""A fake `ts.context.Context` that records a handler's calls and fails where TorchServe would."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class FakeContext:
    """A batch of TorchServe: the headers of each row as inputs, statuses and content types as outputs."""

    headers: Sequence[Mapping[str, object]] = ()
    model_dir: Path = Path()
    model_name: str = "model"
    manifest: Any = field(default_factory=lambda: {"model": {"modelVersion": "1.0"}})
    model_yaml_config: Any = field(default_factory=lambda: {"maxWorkers": 1})
    metrics: Any = None
    gpu_id: Any = None
    statuses: dict[int, int] = field(default_factory=dict)
    content_types: dict[int, str] = field(default_factory=dict)
    response_headers: dict[int, dict[str, str]] = field(default_factory=dict)

    @property
    def system_properties(self) -> Mapping[str, Any]:
        return {"model_dir": str(self.model_dir), "batch_size": max(1, len(self.headers)), "gpu_id": self.gpu_id}

    def get_all_request_header(self, idx: int) -> Mapping[str, object]:
        return self.headers[idx]

    def set_response_status(self, code: int = 200, phrase: str = "", idx: int = 0) -> None:
        """Refuse line breaks and non-ASCII characters in a reason phrase: TorchServe would lose its worker."""
        assert 0 <= idx < len(self.headers)
        assert phrase.isascii()
        assert phrase.isprintable()
        self.statuses[idx] = code

    def set_response_content_type(self, idx: int, value: str) -> None:
        """Refuse the same in a content type."""
        assert 0 <= idx < len(self.headers)
        assert isinstance(value, str)
        assert value.isascii()
        assert value.isprintable()
        self.content_types[idx] = value

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        """Refuse values that are not valid text of a header."""
        assert 0 <= idx < len(self.headers)
        assert isinstance(value, str)
        assert value.isascii()
        assert value.isprintable()
        self.response_headers.setdefault(idx, {})[key] = value
